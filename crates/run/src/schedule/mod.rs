//! When a job is due: a cron pattern on the wall clock of a time zone, or an interval counted from the epoch.
//!
//! Nothing here reads a clock: the caller gives the time. All machines with the same schedule and the same time zone
//! records find the same [slots](Slot) with the same names, forwards and backwards.
//!
//! Where a wall clock is changed, these are the rules (`docs/decisions/0020`):
//!
//! - A job at fixed times never runs twice for one time of day. A time that comes twice counts in its first
//!   pass ([`Overlap::First`]) or its last.
//! - A fixed time that is skipped is due when the gap ends ([`Gap::Run`]), or not at all. All times of one gap
//!   are one slot, with the name of the earliest. If the job is due at that instant anyway, that slot
//!   stands for them.
//! - A job whose minute or hour begins with `*` follows time as it passes: in both passes of an hour that
//!   comes twice, and not for an hour that never comes. A list or a range is not a `*`.
//!
//! ```
//! use jiff::tz::TimeZone;
//! use leasehold_run::schedule::{Cron, Policy, Schedule};
//!
//! let zone = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0")?;
//! let schedule = Schedule::cron(Cron::parse("30 2 * * *")?, zone, Policy::default());
//! let slot = schedule.next_after("2026-03-08T00:00-05:00".parse()?).unwrap();
//! assert_eq!(slot.id(), "2026-03-08T02:30-05:00");
//! assert_eq!(slot.due(), "2026-03-08T03:00-04:00".parse()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cron;
mod every;
mod missed;
mod parse;
mod period;
mod slot;
mod wall;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold_core::ledger::job_record::ScheduleKey;

pub use cron::Cron;
pub use every::{Every, EveryError};
pub use missed::{Dropped, Missed};
pub use parse::{CronError, Field};
pub use slot::{Slot, SlotError};
use wall::{Cursor, Wall};

/// What happens to a fixed time that the wall clock skips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gap {
    /// It is due when the gap ends.
    #[default]
    Run,
    /// It is not due at all.
    Skip,
}

/// In which pass a fixed time counts that the wall clock shows twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// In the first.
    #[default]
    First,
    /// In the last.
    Last,
}

/// What happens where a wall clock is changed. It has no effect on jobs that follow time as it passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Where it goes forward.
    pub gap: Gap,
    /// Where it goes back.
    pub overlap: Overlap,
}

/// When a job is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    kind: ScheduleKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ScheduleKind {
    Wall(Wall),
    Every(Every),
}

impl Schedule {
    /// A pattern on the wall clock of a zone.
    pub fn cron(cron: Cron, zone: TimeZone, policy: Policy) -> Schedule {
        Schedule { kind: ScheduleKind::Wall(Wall { cron, zone, policy }) }
    }

    /// An interval.
    pub fn every(every: Every) -> Schedule {
        Schedule { kind: ScheduleKind::Every(every) }
    }

    /// The schedule as machines compare it.
    pub fn key(&self) -> ScheduleKey {
        match &self.kind {
            ScheduleKind::Every(every) => every.key(),
            ScheduleKind::Wall(Wall { cron, zone, policy }) => ScheduleKey::Cron {
                times: cron.canonical(),
                // A zone without a name is known by its rules.
                zone: zone.iana_name().map_or_else(|| format!("{zone:?}"), Into::into),
                gap_skip: policy.gap == Gap::Skip,
                overlap_last: policy.overlap == Overlap::Last,
            },
        }
    }

    /// The zone of its wall clock.
    pub fn zone(&self) -> Option<&TimeZone> {
        match &self.kind {
            ScheduleKind::Every(_) => None,
            ScheduleKind::Wall(wall) => Some(&wall.zone),
        }
    }

    /// The first slot that is due after `at`; `None` only at the end of time.
    pub fn next_after(&self, at: Timestamp) -> Option<Slot> {
        self.after(at).next()
    }

    /// The last slot that was due at or before `at`.
    pub fn prev_at_or_before(&self, at: Timestamp) -> Option<Slot> {
        self.back_from(at).next()
    }

    /// The slots that are due after `at`, in order.
    pub fn after(&self, at: Timestamp) -> After<'_> {
        After { schedule: self, cursor: None, last: Some(whole_seconds(at)) }
    }

    /// The slots that were due at or before `at`, the newest first.
    pub fn back_from(&self, at: Timestamp) -> BackFrom<'_> {
        BackFrom { schedule: self, cursor: None, next: Some(whole_seconds(at)) }
    }

    /// How many slots are due after `from`, up to and including `to`. They are not visited one by one.
    pub fn count(&self, from: Timestamp, to: Timestamp) -> u64 {
        let (from, to) = (whole_seconds(from), whole_seconds(to));
        match &self.kind {
            ScheduleKind::Wall(wall) => wall.count(from, to),
            ScheduleKind::Every(every) => every.count(from, to),
        }
    }
}

/// The last whole second at or before an instant; slots are due at whole seconds.
fn whole_seconds(at: Timestamp) -> i64 {
    at.as_second() - i64::from(at.subsec_nanosecond() < 0)
}

/// The slots of a schedule from some time on; see [`Schedule::after`].
#[derive(Clone, Debug)]
pub struct After<'a> {
    schedule: &'a Schedule,
    cursor: Option<Cursor>,
    /// The second after which to continue; `None` at the end.
    last: Option<i64>,
}

impl Iterator for After<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let last = self.last?;
        let slot = match &self.schedule.kind {
            ScheduleKind::Every(every) => Slot::of_instant(every.after(last)),
            ScheduleKind::Wall(wall) => {
                self.cursor = self.cursor.or_else(|| wall.cursor(last + 1));
                self.cursor.as_mut().and_then(|cursor| wall.next(cursor, last))
            }
        };
        self.last = slot.map(|slot| slot.number());
        slot
    }
}

/// The slots of a schedule up to some time, the newest first; see [`Schedule::back_from`].
#[derive(Clone, Debug)]
pub struct BackFrom<'a> {
    schedule: &'a Schedule,
    cursor: Option<Cursor>,
    /// The second from which to continue; `None` at the end.
    next: Option<i64>,
}

impl Iterator for BackFrom<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let at = self.next?;
        let slot = match &self.schedule.kind {
            ScheduleKind::Every(every) => Slot::of_instant(every.at_or_before(at)),
            ScheduleKind::Wall(wall) => {
                self.cursor = self.cursor.or_else(|| wall.cursor(at));
                self.cursor.as_mut().and_then(|cursor| wall.previous(cursor, at))
            }
        };
        self.next = slot.map(|slot| slot.number() - 1);
        slot
    }
}
