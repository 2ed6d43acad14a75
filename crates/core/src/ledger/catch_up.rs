//! Which slots of a job are run, and how all others are accounted for.
//!
//! Schedulers remember nothing. Every function here takes the present content of the store, and any scheduler
//! may call it at any time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::job_record::{Account, DropReason, DroppedRange, JobRecord};
use super::{IfUnknown, ItemRequest};

/// A slot is on time for this long, or until the next one is due.
pub const ON_TIME: Duration = Duration::from_secs(300);
/// Slots that have records are accounted for once there are this many of them.
const ROW: usize = 8;

/// The slots of a job, in seconds since 1970.
pub trait Calendar {
    /// The last slot at or before a second.
    fn newest(&self, upto: i64) -> Option<i64>;
    /// The first slot after a second.
    fn next(&self, after: i64) -> Option<i64>;
    /// The slots after one second, up to and including another.
    fn gap(&self, after: i64, upto: i64) -> Option<SlotGap>;
    /// The newest `most` of those that were due at most `max_age` before `upto`, the oldest first.
    fn newest_of(&self, after: i64, upto: i64, most: usize, max_age: Option<Duration>) -> Vec<i64>;
}

/// Slots in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGap {
    /// The oldest.
    pub first: i64,
    /// The newest.
    pub last: i64,
    /// How many they are, including both.
    pub count: u64,
}

/// How many missed slots are run after an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// How many of the newest slots.
    pub most: usize,
    /// Only slots that were due at most this long ago.
    pub max_age: Option<Duration>,
}

/// The slots of a job that became due after those that are settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSlots {
    /// The slots to run, the oldest first.
    pub run: Vec<i64>,
    /// The newest, whether it is run or not.
    newest: i64,
    on_time: bool,
    paused: bool,
}

impl DueSlots {
    /// None if no slot became due.
    pub fn of(calendar: &dyn Calendar, job_record: &JobRecord, catch_up: CatchUp, now: i64) -> Option<Self> {
        let newest = calendar.newest(now).filter(|newest| *newest > job_record.settled)?;
        let on_time = now - newest <= ON_TIME.as_secs().cast_signed();
        let paused = job_record.is_paused();
        let mut run = match paused {
            true => Vec::new(),
            false => calendar.newest_of(job_record.settled, now, catch_up.most, catch_up.max_age),
        };
        // The slot that is due now is run, even if `catch_up` is 0.
        if run.is_empty() && on_time && !paused {
            run.push(newest);
        }
        Some(Self { run, newest, on_time, paused })
    }

    /// Whether a slot is run later than it was due.
    pub fn is_late(&self, at: i64) -> bool {
        at != self.newest || !self.on_time
    }

    /// The first slot to run.
    pub fn first_wanted(&self) -> i64 {
        self.run.first().copied().unwrap_or(i64::MAX)
    }

    /// Slots up to and including this second are accounted for.
    pub fn account_upto(&self, now: i64) -> i64 {
        self.first_wanted().saturating_sub(1).min(now)
    }

    /// Why those slots are not run.
    pub fn why(&self) -> DropReason {
        if self.paused { DropReason::Paused } else { DropReason::Missed }
    }
}

/// The state of a slot, for a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStanding {
    /// A run of it may be started.
    Open,
    /// A run is at work on it.
    Taken,
    /// A run of it was started, and has made no record yet.
    Starting,
    /// It is settled.
    Settled,
}

impl SlotStanding {
    /// Whether newer slots may start before this one has ended. Where every slot counts, the oldest comes first.
    pub fn may_be_passed(self, skips: bool) -> bool {
        skips || !matches!(self, Self::Taken | Self::Starting)
    }
}

/// The request of a scheduler for a slot. A slot that is too old to be caught up is also too old to be tried
/// again, unless a person asked for that.
pub fn asked_by_itself(ask: ItemRequest, max_age: Option<Duration>, at: i64, now: i64) -> ItemRequest {
    let age = Duration::from_secs(u64::try_from(now - at).unwrap_or(0));
    match max_age {
        Some(most) if age > most.max(ON_TIME) => {
            ItemRequest { if_unknown: IfUnknown::Refuse, attempts: 0, ..ask }
        }
        _ => ask,
    }
}

/// An account of every slot up to a second; none if nothing has to be written. Slots without a record are
/// dropped, and slots that are not over stay open. `stands`: the slots with a record.
pub fn account(
    calendar: &dyn Calendar,
    job_record: &JobRecord,
    upto: i64,
    stands: &BTreeMap<i64, SlotStanding>,
    why: DropReason,
) -> Option<Account> {
    if upto <= job_record.settled {
        return None;
    }
    let recorded = || stands.range(..=upto);
    let (mut dropped, mut from) = (Vec::new(), job_record.settled);
    // A range ends at a slot with a record.
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
    // A scheduler looks at a slot that is not over only if it is listed.
    let unseen = recorded().any(|(_, stands)| matches!(stands, SlotStanding::Open | SlotStanding::Taken));
    if dropped.is_empty() && !unseen && recorded().count() < ROW {
        return None;
    }
    let open = listed_first(recorded().map(|(at, stands)| (*at, *stands)));
    Some(Account { upto, dropped, open })
}

/// Slots that are not over, in the order in which they are listed while there is room: first those that a run
/// is at work on, then the newest.
pub fn listed_first(slots: impl Iterator<Item = (i64, SlotStanding)>) -> Vec<i64> {
    let mut open: Vec<(i64, SlotStanding)> =
        slots.filter(|(_, stands)| *stands != SlotStanding::Settled).collect();
    open.sort_unstable_by_key(|(at, stands)| (*stands == SlotStanding::Open, Reverse(*at)));
    open.into_iter().map(|(at, _)| at).collect()
}

/// The range of a slot that was listed but never got a record. It may lie within another range, which did not
/// count it because it was listed.
pub fn never_started(at: i64) -> DroppedRange {
    DroppedRange { first: at, last: at, count: 1, why: DropReason::Missed, counting: true }
}

/// The count of a range of dropped slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How many of its slots have no record.
    pub count: u64,
    /// The slots that have one.
    pub recorded: Vec<i64>,
    /// The recorded slots that are not over.
    pub open: Vec<i64>,
}

/// Counts a range; none while a run is at work on one of its slots, because that run may take its record
/// back. `stands`: the slots of the range that have a record, which they got after the range was made.
pub fn counted(range: &DroppedRange, stands: &BTreeMap<i64, SlotStanding>) -> Option<Counted> {
    if stands.values().any(|stands| *stands == SlotStanding::Taken) {
        return None;
    }
    let open =
        stands.iter().filter(|(_, stands)| **stands == SlotStanding::Open).map(|(at, _)| *at).collect();
    let count = range.count.saturating_sub(stands.len() as u64);
    Some(Counted { count, recorded: stands.keys().copied().collect(), open })
}
