//! What a machine has seen of an item on another store. The store in use knows nothing of it, so without this a change of
//! store does the work a second time.

use core::time::Duration;

use super::{Entry, ItemState, Subject};

/// What is noted of a key, or of the slots of a job, on one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Of a key: when it was begun or done. Of a job: when its newest slot was due. In seconds since 1970.
    pub at: i64,
    /// From then on a key need not be noted any more: it was done with a `keep`, which is over.
    pub until: Option<i64>,
}

impl Sighting {
    /// Whether it need not be noted any more.
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| now > until)
    }
}

/// What is to be noted of an entry that was seen on a store. `ended`: when, by a wall clock. `keep`: of the run that saw it.
/// Nothing if the work was not done, and cannot have been.
pub fn sighting(entry: &Entry, ended: i64, keep: Option<Duration>) -> Option<Sighting> {
    match (&entry.subject, entry.state) {
        (_, ItemState::Planned | ItemState::Failed) | (Subject::Latest(_), _) => None,
        (Subject::Key(_), _) => Some(Sighting { at: ended, until: keep.map(|keep| after(ended, keep)) }),
        (Subject::Slot { at, .. }, _) => Some(Sighting { at: *at, until: None }),
    }
}

/// Whether an entry of the store in use answers for its item, so that other stores need not be asked: it was done there, or
/// may have been. That it is planned there or failed says nothing of the others.
pub fn answers(entry: &Entry, ended: i64, keep: Option<Duration>, now: i64) -> bool {
    sighting(entry, ended, None).is_some_and(|seen| refuses(&entry.subject, seen, keep, now))
}

/// Whether an item that was seen on another store may not be begun, if the store in use does not answer for it. `keep`: of the
/// run that asks. `now`: by a wall clock, which here can only end a refusal.
pub fn refuses(subject: &Subject, seen: Sighting, keep: Option<Duration>, now: i64) -> bool {
    match subject {
        Subject::Key(_) => !seen.is_over(now) && keep.is_none_or(|keep| now <= after(seen.at, keep)),
        Subject::Slot { at, .. } => *at <= seen.at,
        Subject::Latest(_) => false,
    }
}

fn after(at: i64, time: Duration) -> i64 {
    at.saturating_add(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_key_is_refused_until_a_keep_is_over() {
        let key = Subject::Key("invoice".into());
        let seen = |until| Sighting { at: 1_000, until };
        let day = 1_000 + 86_400;
        assert!(refuses(&key, seen(None), None, i64::MAX), "for ever");
        assert!(refuses(&key, seen(Some(day)), None, day));
        assert!(!refuses(&key, seen(Some(day)), None, day + 1), "of the run that did it");
        assert!(refuses(&key, seen(None), Some(DAY), day));
        assert!(!refuses(&key, seen(None), Some(DAY), day + 1), "of the run that asks");
        assert!(refuses(&key, seen(None), Some(DAY), 0), "a clock that was set back ends nothing");
    }

    #[test]
    fn a_slot_is_refused_up_to_the_newest_one_that_was_seen() {
        let slot = |at| Subject::Slot { job: Name::new("site").unwrap(), at, id: "x".into() };
        let seen = Sighting { at: 600, until: None };
        assert!(refuses(&slot(600), seen, None, 0) && refuses(&slot(0), seen, Some(DAY), i64::MAX));
        assert!(!refuses(&slot(601), seen, None, 0));
        assert!(!refuses(&Subject::Latest(Name::new("site").unwrap()), seen, None, 0));
    }
}
