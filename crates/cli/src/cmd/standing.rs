//! How a job of leasehold.toml stands: for `plan` and `why`.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::agenda::{self, ON_TIME};
use leasehold::core::ledger::agenda::{Agenda, Range, Why, stuck};
use leasehold::core::ledger::{Entry, Subject};
use leasehold::core::name::Name;
use leasehold::core::stop::Text;
use leasehold::schedule::Slot;

use super::{Opened, history, items, store_failed};
use crate::exit::Failed;
use crate::jobs::Job;

/// Records that are looked at lie at most this far, in seconds, before what is settled.
const LOOK_BACK: i64 = 30 * 86_400;

/// What is known of a job.
pub struct Stood {
    /// Its record; nothing if no machine has seen it.
    pub agenda: Option<Agenda>,
    /// Its newest slot that has a record, and what came of it.
    pub last: Option<(Entry, &'static str)>,
    pub standing: Standing,
}

/// How it stands.
pub enum Standing {
    /// No scheduler has seen it.
    Unseen,
    Paused {
        by: String,
        at: String,
    },
    /// Another machine has loaded this schedule since.
    Elsewhere(String),
    /// So many slots in a row found its lease held.
    Stuck(usize),
    /// A run is at it.
    Running(String),
    /// Its newest slot ended so, and that is not well.
    Ended(&'static str),
    /// A slot is due for so long, and nobody has begun it.
    Overdue(Duration),
    Fine,
}

impl Standing {
    /// In a few words.
    pub fn in_words(&self, job: &Name) -> String {
        match self {
            Self::Unseen => "no daemon and no tick has seen it yet".into(),
            Self::Paused { by, at } => format!("paused by {by} at {at}"),
            Self::Elsewhere(schedule) => format!("another schedule is in force: {schedule}"),
            Self::Stuck(slots) => format!("stuck: {slots} slots in a row found its lease held"),
            Self::Running(by) => format!("running, begun by {by}"),
            Self::Ended(word) => format!("last slot {word}: leasehold why {job}"),
            Self::Overdue(late) => format!("overdue for {}: does a daemon run?", Text(*late)),
            Self::Fine => "ok".into(),
        }
    }
}

/// Looks. Without the job itself, only what is recorded of it can be told.
pub fn stood(opened: &mut Opened, name: &Name, job: Option<&Job>, now: Timestamp) -> Result<Stood, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let agenda = agenda::read(store, name).map_err(failed)?;
    let from = agenda.as_ref().map_or(0, |agenda| agenda.settled.min(now.as_second()) - LOOK_BACK);
    let (entries, _) = agenda::recorded(store, name, from, i64::MAX).map_err(failed)?;
    let entries: Vec<Entry> = entries.into_iter().map(|(entry, _)| entry).collect();
    let last = match entries.last().cloned() {
        Some(entry) => {
            let word = history::word(store, &entry).map_err(failed)?;
            Some((entry, word))
        }
        None => None,
    };
    let standing = standing(job, agenda.as_ref(), &entries, last.as_ref(), now);
    Ok(Stood { agenda, last, standing })
}

fn standing(
    job: Option<&Job>,
    agenda: Option<&Agenda>,
    entries: &[Entry],
    last: Option<&(Entry, &'static str)>,
    now: Timestamp,
) -> Standing {
    let Some(agenda) = agenda else { return Standing::Unseen };
    if let Some(paused) = agenda.paused.clone() {
        return Standing::Paused { by: paused.by, at: paused.at };
    }
    if job.is_some_and(|job| job.written != agenda.schedule) {
        return Standing::Elsewhere(agenda.schedule.clone());
    }
    if let Some(waved_off) = stuck(entries.iter().rev().map(|entry| entry.state)) {
        return Standing::Stuck(waved_off);
    }
    match last {
        Some((entry, "started")) => return Standing::Running(items::by_whom(entry)),
        Some((_, word @ ("failed" | "unknown" | "lost" | "killed"))) => return Standing::Ended(word),
        _ => {}
    }
    let due = job.and_then(|job| {
        let slot = job.schedule.prev_at_or_before(now).filter(|slot| slot.number() > agenda.settled)?;
        Some((slot, job.stagger))
    });
    let recorded = |slot: &Slot| entries.iter().any(|entry| is_at(entry, slot.number()));
    let late = due
        .filter(|(slot, _)| !recorded(slot))
        .map(|(slot, stagger)| now.as_second() - slot.number() - stagger.as_secs().cast_signed());
    match late {
        Some(late) if late > ON_TIME.as_secs().cast_signed() => {
            Standing::Overdue(Duration::from_secs(late.unsigned_abs()))
        }
        _ => Standing::Fine,
    }
}

/// Whether it is the record of the slot that is due then.
pub fn is_at(entry: &Entry, second: i64) -> bool {
    matches!(entry.subject, Subject::Slot { at, .. } if at == second)
}

/// A second since 1970, for people.
pub fn time(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |at| at.to_string())
}

/// Which slots were dropped, and why.
pub fn dropped(range: &Range) -> String {
    let which = match (range.first == range.last, range.count) {
        (true, _) => format!("the slot {}", time(range.first)),
        (false, count) => format!("{count} slots from {} to {}", time(range.first), time(range.last)),
    };
    format!("{which}: {}", because(range.why))
}

/// "dropped 525597 slots of minutely, from … to …: …"
pub fn dropped_of(job: &Name, range: &Range) -> String {
    let slots = if range.count == 1 { "slot" } else { "slots" };
    let (first, last) = (time(range.first), time(range.last));
    format!("dropped {} {slots} of {job}, from {first} to {last}: {}", range.count, because(range.why))
}

fn because(why: Why) -> &'static str {
    match why {
        Why::Missed => {
            "nobody ran them in time, and catch_up, which says how many of the newest missed slots are run later, asks \
             for no more"
        }
        Why::Paused => "the job was paused, and what is due in a pause is not caught up",
    }
}
