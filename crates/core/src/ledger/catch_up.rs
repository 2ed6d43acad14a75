//! Which slots of a job are run, and what becomes of all others.
//!
//! Schedulers remember nothing: each of these is asked with what the store says now, by any of them, at any time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::job_record::{Account, DropReason, DroppedRange, JobRecord};
use super::{IfUnknown, ItemRequest};

/// A slot is on time for this long, or until the next one is due.
pub const ON_TIME: Duration = Duration::from_secs(300);
/// So many records of slots are looked at again and again before it is written down how they stand.
const ROW: usize = 8;

/// When a job is due, in seconds since 1970.
pub trait Calendar {
    /// The last slot at or before a second.
    fn newest(&self, upto: i64) -> Option<i64>;
    /// The first slot after a second.
    fn next(&self, after: i64) -> Option<i64>;
    /// The slots after one second, up to and with another, however many.
    fn gap(&self, after: i64, upto: i64) -> Option<SlotGap>;
    /// Of those: the newest so many that were due at most `max_age` before `upto`, the oldest first.
    fn newest_of(&self, after: i64, upto: i64, most: usize, max_age: Option<Duration>) -> Vec<i64>;
}

/// Slots in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGap {
    /// The oldest.
    pub first: i64,
    /// The newest.
    pub last: i64,
    /// How many they are, with both.
    pub count: u64,
}

/// What is made up for after an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// So many of the newest slots.
    pub most: usize,
    /// None that was due longer ago than this.
    pub max_age: Option<Duration>,
}

/// What became due of a job since everything was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSlots {
    /// To be run, the oldest first.
    pub run: Vec<i64>,
    /// The newest, whether it is run or not.
    newest: i64,
    on_time: bool,
    paused: bool,
}

impl DueSlots {
    /// Nothing if nothing became due.
    pub fn of(calendar: &dyn Calendar, agenda: &JobRecord, catch_up: CatchUp, now: i64) -> Option<Self> {
        let newest = calendar.newest(now).filter(|newest| *newest > agenda.settled)?;
        let on_time = now - newest <= ON_TIME.as_secs().cast_signed();
        let paused = agenda.is_paused();
        let mut run = match paused {
            true => Vec::new(),
            false => calendar.newest_of(agenda.settled, now, catch_up.most, catch_up.max_age),
        };
        // However little is caught up, what is due just now is run.
        if run.is_empty() && on_time && !paused {
            run.push(newest);
        }
        Some(Self { run, newest, on_time, paused })
    }

    /// Whether a slot of it is made up for, rather than run when it is due.
    pub fn is_late(&self, at: i64) -> bool {
        at != self.newest || !self.on_time
    }

    /// From this one on, slots are wanted.
    pub fn first_wanted(&self) -> i64 {
        self.run.first().copied().unwrap_or(i64::MAX)
    }

    /// What lies before is accounted for, up to and with this second.
    pub fn account_upto(&self, now: i64) -> i64 {
        self.first_wanted().saturating_sub(1).min(now)
    }

    /// Why those before are not run.
    pub fn why(&self) -> DropReason {
        if self.paused { DropReason::Paused } else { DropReason::Missed }
    }
}

/// How a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStanding {
    /// It may be begun.
    Open,
    /// A run is at it.
    Taken,
    /// A run of it was started, and has not come as far as a record.
    Starting,
    /// Nothing more is done about it.
    Settled,
}

impl SlotStanding {
    /// Whether newer slots may start before this one has ended. Where every slot counts, the oldest comes first.
    pub fn may_be_passed(self, skips: bool) -> bool {
        skips || !matches!(self, Self::Taken | Self::Starting)
    }
}

/// What a scheduler asks of a slot: one that is too old to be caught up is too old to be tried again, unless a person
/// said so.
pub fn asked_by_itself(ask: ItemRequest, max_age: Option<Duration>, at: i64, now: i64) -> ItemRequest {
    let age = Duration::from_secs(u64::try_from(now - at).unwrap_or(0));
    match max_age {
        Some(most) if age > most.max(ON_TIME) => {
            ItemRequest { if_unknown: IfUnknown::Refuse, attempts: 0, ..ask }
        }
        _ => ask,
    }
}

/// An account of every slot up to a second: those without a record are dropped, those that are not over stay open.
/// `stands` are those with a record. Nothing if there is nothing that had to be written down.
pub fn account(
    calendar: &dyn Calendar,
    agenda: &JobRecord,
    upto: i64,
    stands: &BTreeMap<i64, SlotStanding>,
    why: DropReason,
) -> Option<Account> {
    if upto <= agenda.settled {
        return None;
    }
    let recorded = || stands.range(..=upto);
    let (mut dropped, mut from) = (Vec::new(), agenda.settled);
    // A range ends where a record is.
    for end in recorded().map(|(at, _)| *at).chain([upto + 1]) {
        let gap = calendar.gap(from, end - 1);
        dropped.extend(gap.map(|SlotGap { first, last, count }| DroppedRange {
            first,
            last,
            count,
            why,
            counting: true,
        }));
        from = end;
    }
    // Nobody looks at one that is not over unless it is listed.
    let unseen = recorded().any(|(_, stands)| matches!(stands, SlotStanding::Open | SlotStanding::Taken));
    if dropped.is_empty() && !unseen && recorded().count() < ROW {
        return None;
    }
    let open = listed_first(recorded().map(|(at, stands)| (*at, *stands)));
    Some(Account { upto, dropped, open })
}

/// Slots that are not over, in the order in which they are to be listed where there is no room for all: what a run is at,
/// then the newest.
pub fn listed_first(slots: impl Iterator<Item = (i64, SlotStanding)>) -> Vec<i64> {
    let mut open: Vec<(i64, SlotStanding)> =
        slots.filter(|(_, stands)| *stands != SlotStanding::Settled).collect();
    open.sort_unstable_by_key(|(at, stands)| (*stands == SlotStanding::Open, Reverse(*at)));
    open.into_iter().map(|(at, _)| at).collect()
}

/// One slot that was listed and never came as far as a record, as a range. It may lie within another: then it was not
/// counted there, for it was listed.
pub fn never_begun(at: i64) -> DroppedRange {
    DroppedRange { first: at, last: at, count: 1, why: DropReason::Missed, counting: true }
}

/// What turned out about a range of dropped slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How many of its slots have no record.
    pub count: u64,
    /// Those that have one.
    pub recorded: Vec<i64>,
    /// Of these: which are not over.
    pub open: Vec<i64>,
}

/// Counts a range. `stands` are the slots of it that turned out to have a record: there was none when the range was
/// made. Nothing while a run is at one of them: it may yet withdraw.
pub fn counted(range: &DroppedRange, stands: &BTreeMap<i64, SlotStanding>) -> Option<Counted> {
    if stands.values().any(|stands| *stands == SlotStanding::Taken) {
        return None;
    }
    let open =
        stands.iter().filter(|(_, stands)| **stands == SlotStanding::Open).map(|(at, _)| *at).collect();
    let count = range.count.saturating_sub(stands.len() as u64);
    Some(Counted { count, recorded: stands.keys().copied().collect(), open })
}
