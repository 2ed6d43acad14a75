//! One time at which a job is due, and its name.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::temporal::{Pieces, PiecesOffset};
use jiff::tz::Offset;

use super::{Schedule, ScheduleKind};

/// One time at which a job is due. It is displayed as its name, by which all machines know it.
///
/// The name of a slot of a cron pattern is what the wall clock shows and its offset from UTC, such as
/// `2026-11-01T01:30-04:00`. One that the wall clock skips has the skipped time and the offset before, such
/// as `2026-03-08T02:30-05:00`: it is due when the gap ends, and has no instant of its own. The name of a
/// slot of an interval is its instant, such as `2026-11-16T05:45:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    due: Timestamp,
    name: SlotName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SlotName {
    Instant,
    /// In local minutes, and seconds.
    Wall {
        minute: i64,
        offset: i64,
    },
}

impl Slot {
    pub(super) fn of_wall(due: i64, minute: i64, offset: i64) -> Option<Slot> {
        Some(Slot { due: Timestamp::from_second(due).ok()?, name: SlotName::Wall { minute, offset } })
    }

    pub(super) fn of_instant(due: i64) -> Option<Slot> {
        Some(Slot { due: Timestamp::from_second(due).ok()?, name: SlotName::Instant })
    }

    /// The slot that is due at a second, of any schedule. Its name is its instant.
    pub fn due_at(second: i64) -> Option<Slot> {
        Slot::of_instant(second)
    }

    /// When it is due.
    pub fn due(&self) -> Timestamp {
        self.due
    }

    /// Its name. No two slots of a schedule share one.
    pub fn id(&self) -> String {
        self.to_string()
    }

    /// A number that grows from each slot of a schedule to the next: when it is due, in Unix seconds.
    pub fn number(&self) -> i64 {
        self.due.as_second()
    }

    /// The wall clock time in its name; for an interval, in UTC.
    pub fn civil(&self) -> DateTime {
        match self.name {
            SlotName::Instant => Offset::UTC.to_datetime(self.due),
            // Searches do not leave the range in which this succeeds.
            SlotName::Wall { minute, .. } => wall_clock(minute).unwrap_or_default(),
        }
    }

    /// The offset from UTC in its name, in seconds.
    pub fn utc_offset(&self) -> i64 {
        match self.name {
            SlotName::Instant => 0,
            SlotName::Wall { offset, .. } => offset,
        }
    }
}

/// The wall clock time at this local minute.
pub(super) fn wall_clock(minute: i64) -> Option<DateTime> {
    Timestamp::from_second(minute.checked_mul(60)?).ok().map(|at| Offset::UTC.to_datetime(at))
}

/// The local minutes of a wall clock time; `None` within a minute.
fn local_minute(shown: DateTime) -> Option<i64> {
    let seconds = Offset::UTC.to_timestamp(shown).ok()?.as_second();
    (shown.subsec_nanosecond() == 0 && seconds % 60 == 0).then_some(seconds / 60)
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotName::Wall { offset, .. } = self.name else { return write!(f, "{}", self.due) };
        let shown = self.civil();
        write!(f, "{}T{:02}:{:02}", shown.date(), shown.hour(), shown.minute())?;
        let (sign, offset) = (if offset < 0 { '-' } else { '+' }, offset.abs());
        write!(f, "{sign}{:02}:{:02}", offset / 3600, offset / 60 % 60)?;
        // Only offsets of long ago have seconds.
        if offset % 60 != 0 { write!(f, ":{:02}", offset % 60) } else { Ok(()) }
    }
}

/// Why a text does not name a slot of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// It is not a time.
    #[error("{0:?} is not a time; write it like 2026-11-16T05:45+01:00 or 2026-11-16T04:45Z")]
    NotATime(String),
    /// It could be any of several instants.
    #[error("{0:?} has no offset from UTC; write it with one, such as {0}Z")]
    NoOffset(String),
    /// The wall clock shows it twice, and the job runs in both passes.
    #[error("the clock shows {text:?} twice; write {first} or {second}")]
    Twice {
        /// The text.
        text: String,
        /// In the first pass.
        first: Slot,
        /// In the second pass.
        second: Slot,
    },
    /// The job is not due then.
    #[error("{text:?} is not a slot of this schedule{}", nearest(.before, .after))]
    NotASlot {
        /// The text.
        text: String,
        /// The slot before it.
        before: Option<Slot>,
        /// The slot after it.
        after: Option<Slot>,
    },
}

fn nearest(before: &Option<Slot>, after: &Option<Slot>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!(": the nearest are {before} and {after}"),
        (Some(only), None) | (None, Some(only)) => format!(": the nearest is {only}"),
        (None, None) => String::new(),
    }
}

/// A time as it was typed: a clock time, and its offset if that was typed too.
struct Typed {
    shown: DateTime,
    offset: Option<Offset>,
    /// It ends in Z, as no name of a wall clock time does.
    instant: bool,
}

fn typed(text: &str) -> Option<Typed> {
    let pieces = Pieces::parse(text).ok().filter(|pieces| pieces.time_zone_annotation().is_none())?;
    let offset = pieces.offset().map(|offset| match offset {
        PiecesOffset::Numeric(offset) => offset.offset(),
        _ => Offset::UTC,
    });
    let instant = matches!(pieces.offset(), Some(PiecesOffset::Zulu));
    Some(Typed { shown: pieces.date().to_datetime(pieces.time()?), offset, instant })
}

impl Schedule {
    /// The slot of this schedule that a text names: by its [name](Slot::id), by the instant when it is due in any offset, or
    /// for a cron pattern by the wall clock time alone.
    pub fn parse_slot_id(&self, text: &str) -> Result<Slot, SlotError> {
        let Typed { shown, offset, instant } = typed(text).ok_or_else(|| SlotError::NotATime(text.into()))?;
        let found = match (&self.kind, offset) {
            (ScheduleKind::Every(_), None) => return Err(SlotError::NoOffset(text.into())),
            (ScheduleKind::Every(_), Some(offset)) => self.due_at(shown, offset),
            (ScheduleKind::Wall(wall), Some(offset)) => {
                let due = || self.due_at(shown, offset);
                let minute = local_minute(shown);
                let named = || wall.named(minute?, i64::from(offset.seconds()));
                if instant { due().or_else(named) } else { named().or_else(due) }
            }
            (ScheduleKind::Wall(wall), None) => {
                let slots =
                    local_minute(shown).map_or_else(Vec::new, |minute| wall.named_without_offset(minute));
                if let [first, second] = slots[..] {
                    return Err(SlotError::Twice { text: text.into(), first, second });
                }
                slots.first().copied()
            }
        };
        found.ok_or_else(|| self.not_a_slot(text, shown, offset))
    }

    fn due_at(&self, shown: DateTime, offset: Offset) -> Option<Slot> {
        let at = offset.to_timestamp(shown).ok()?;
        self.prev_at_or_before(at).filter(|slot| slot.due() == at)
    }

    fn not_a_slot(&self, text: &str, shown: DateTime, offset: Option<Offset>) -> SlotError {
        let at = match (offset, &self.kind) {
            (Some(offset), _) => offset.to_timestamp(shown).ok(),
            (None, ScheduleKind::Wall(wall)) => wall.zone.to_timestamp(shown).ok(),
            (None, ScheduleKind::Every(_)) => None,
        };
        let before = at.and_then(|at| self.prev_at_or_before(at));
        let after = at.and_then(|at| self.next_after(at));
        SlotError::NotASlot { text: text.into(), before, after }
    }
}
