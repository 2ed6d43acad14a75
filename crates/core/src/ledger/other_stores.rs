//! Sightings: what a machine saw of an item on another store.
//!
//! The store in use does not know what was done on another one. Without sightings, a change of store would do the work a
//! second time.

use core::time::Duration;

use super::{Entry, ItemState, Subject};

/// The note of a key, or of the slots of a job, on one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Of a key: when it was started or done. Of a job: when its newest slot was due. In seconds since 1970.
    pub at: i64,
    /// When the note of a key may be forgotten: the end of its `keep`.
    pub until: Option<i64>,
}

/// The subject of a note. All slots of a job share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// A key.
    Key,
    /// The slots of a job; the newest one counts.
    Job,
}

/// In a note that takes an earlier one back: the work was started and not done.
const TAKEN_BACK: Option<i64> = Some(0);

impl Sighting {
    /// A slot that was seen started, done or settled.
    pub fn of_slot(at: i64) -> Self {
        Self { at, until: None }
    }

    /// Whether the note may be forgotten.
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| now > until)
    }
}

/// The note to make of an entry of a store. If its work was not done after all, the note takes the earlier one back.
/// `ended`: when, by a wall clock. `keep`: of the run that saw it.
pub fn sighting(entry: &Entry, ended: i64, keep: Option<Duration>) -> Option<Sighting> {
    let undone = Sighting { at: 0, until: TAKEN_BACK };
    done(entry, ended, keep).or(match &entry.subject {
        Subject::Key(_) => Some(undone),
        Subject::Slot { at, .. } => Some(Sighting { at: *at, ..undone }),
        Subject::Latest(_) => None,
    })
}

/// The note of an entry whose work was done, or may have been.
fn done(entry: &Entry, ended: i64, keep: Option<Duration>) -> Option<Sighting> {
    match (&entry.subject, entry.state) {
        (_, ItemState::Planned | ItemState::Failed) | (Subject::Latest(_), _) => None,
        (Subject::Key(_), _) => Some(Sighting { at: ended, until: keep.map(|keep| after(ended, keep)) }),
        (Subject::Slot { at, .. }, _) => Some(Sighting::of_slot(*at)),
    }
}

/// The note that two notes of one key or job make together. Unless the second takes the first back, the new
/// note has the later of the two times and the longer of the two terms: a run that found a key done must not
/// shorten another run's note.
pub fn both(noted: Noted, before: Option<Sighting>, after: Sighting) -> Sighting {
    match (noted, before) {
        // The slots before it were seen too, and stay noted. A slot that is not the newest takes nothing back.
        (Noted::Job, _) if after.until == TAKEN_BACK => {
            let newest = before.map_or(after.at, |before| before.at);
            Sighting::of_slot(if newest == after.at { newest.saturating_sub(1) } else { newest })
        }
        (_, Some(before)) if after.until != TAKEN_BACK => {
            let until = before.until.zip(after.until).map(|(before, after)| before.max(after));
            Sighting { at: before.at.max(after.at), until }
        }
        _ => after,
    }
}

/// Whether a note of another store says more than the note of this one.
pub fn is_unknown(noted: Noted, here: Option<&Sighting>, there: &Sighting, now: i64) -> bool {
    match noted {
        Noted::Job => here.is_none_or(|here| here.at < there.at),
        Noted::Key => here.is_none_or(|here| here.is_over(now)) && !there.is_over(now),
    }
}

/// Whether an entry of the store in use answers for its item, so that the notes of other stores do not matter: the work was
/// done there, or may have been. An entry that is planned or failed says nothing about other stores.
pub fn answers(entry: &Entry, ended: i64, keep: Option<Duration>, now: i64) -> bool {
    done(entry, ended, None).is_some_and(|seen| refuses(&entry.subject, seen, keep, now))
}

/// Whether an item that was seen on another store is refused, if the store in use does not answer for it. `keep`: of the run
/// that asks. `now`: by a wall clock, which here can only end a refusal.
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

    #[test]
    fn a_note_lasts_as_long_as_the_longer_of_two() {
        let note = |at, until| Sighting { at, until };
        let key = |before, after| both(Noted::Key, Some(before), after);
        assert_eq!(both(Noted::Key, None, note(5, Some(6))), note(5, Some(6)));
        assert_eq!(key(note(5, None), note(7, Some(9))), note(7, None));
        assert_eq!(key(note(7, Some(9)), note(5, None)), note(7, None));
        assert_eq!(key(note(5, Some(9)), note(5, Some(6))), note(5, Some(9)));
    }

    #[test]
    fn a_key_is_taken_back_and_of_a_job_only_its_newest_slot() {
        let back = |at| Sighting { at, until: TAKEN_BACK };
        assert!(both(Noted::Key, Some(Sighting { at: i64::MAX, until: None }), back(0)).is_over(1));
        let job = |before, after| both(Noted::Job, Some(Sighting::of_slot(before)), after);
        assert_eq!(job(600, Sighting::of_slot(300)), Sighting::of_slot(600));
        assert_eq!(job(600, back(300)), Sighting::of_slot(600), "the others are not known");
        assert_eq!(job(600, back(600)), Sighting::of_slot(599));
        assert_eq!(job(599, Sighting::of_slot(600)), Sighting::of_slot(600), "started again");
        assert_eq!(both(Noted::Job, None, back(600)), Sighting::of_slot(599));
    }

    #[test]
    fn a_note_of_another_store_is_unknown_here_until_it_is_over() {
        let (old, new) = (Sighting { at: 5, until: Some(6) }, Sighting { at: 9, until: None });
        let key = |here, there| is_unknown(Noted::Key, here, there, 7);
        assert!(key(None, &new) && key(Some(&old), &new));
        assert!(!key(None, &old) && !key(Some(&new), &new));
        let job = |here, there| is_unknown(Noted::Job, here, there, 7);
        assert!(job(None, &old) && job(Some(&old), &new) && !job(Some(&new), &new));
    }
}
