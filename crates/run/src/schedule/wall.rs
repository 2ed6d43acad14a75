//! A cron pattern on the wall clock of a time zone: what happens where the clock is changed.
//!
//! A search goes through periods of one offset. Within a period the wall clock runs evenly, so a search there is one search
//! in the calendar. The rules below decide which part of a period counts, and whether its first instant stands for times
//! that were skipped. Both directions use the same two rules, so they cannot disagree.

use std::ops::Range;

use jiff::Timestamp;
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::cron::{Cron, Month};
use super::period::Period;
use super::slot::Slot;
use super::{Gap, Overlap, Policy};

/// A pattern, the zone of its clock, and what happens when that clock is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wall {
    pub cron: Cron,
    pub zone: TimeZone,
    pub policy: Policy,
}

/// The position of a search, kept between steps because to find it costs more than a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    period: Period,
    month: Month,
}

/// The times that a wall clock can show, in seconds: jiff's range without its first day, so that every day has a midnight.
fn all_time() -> Range<i64> {
    Timestamp::MIN.as_second() + 86_400..Timestamp::MAX.as_second() + 1
}

/// Whole minutes within a range of seconds.
fn minutes(seconds: Range<i64>) -> Range<i64> {
    let round_up = |second: i64| (second + 59).div_euclid(60);
    round_up(seconds.start)..round_up(seconds.end)
}

impl Wall {
    pub(super) fn cursor(&self, second: i64) -> Option<Cursor> {
        let period = Period::at(&self.zone, second)?;
        let shown = (second + period.offset).clamp(all_time().start, all_time().end - 1);
        Some(Cursor { period, month: self.cron.month(shown.div_euclid(60))? })
    }

    /// The first slot after a second.
    pub(super) fn next(&self, cursor: &mut Cursor, after: i64) -> Option<Slot> {
        loop {
            let period = cursor.period;
            let from = period.start.max(after + 1);
            if from < period.end {
                if from == period.start
                    && let Some(slot) = self.moved(cursor)
                {
                    return Some(slot);
                }
                let shown = self.counted(&period);
                let minutes = minutes(shown.start.max(from + period.offset)..shown.end);
                if let Some(minute) = self.cron.first(&mut cursor.month, minutes.start, minutes.end) {
                    return Slot::of_wall(minute * 60 - period.offset, minute, period.offset);
                }
            }
            cursor.period = period.next(&self.zone)?;
        }
    }

    /// The last slot at or before a second.
    pub(super) fn previous(&self, cursor: &mut Cursor, at: i64) -> Option<Slot> {
        loop {
            let period = cursor.period;
            let end = period.end.min(at + 1);
            if end > period.start {
                let shown = self.counted(&period);
                let minutes = minutes(shown.start..shown.end.min(end + period.offset));
                if let Some(minute) = self.cron.last(&mut cursor.month, minutes.start, minutes.end) {
                    return Slot::of_wall(minute * 60 - period.offset, minute, period.offset);
                }
                if let Some(slot) = self.moved(cursor) {
                    return Some(slot);
                }
            }
            cursor.period = period.previous(&self.zone)?;
        }
    }

    /// How many slots come after `after`, up to and including `at`.
    pub(super) fn count(&self, after: i64, at: i64) -> u64 {
        let mut count = 0;
        let Some(mut cursor) = self.cursor(after + 1).filter(|_| after < at) else { return 0 };
        loop {
            let period = cursor.period;
            if period.start > at {
                return count;
            }
            if period.start > after && self.moved(&mut cursor).is_some() {
                count += 1;
            }
            let shown = self.counted(&period);
            let from = shown.start.max(after + 1 + period.offset);
            let minutes = minutes(from..shown.end.min(at + 1 + period.offset));
            count += self.cron.count(&mut cursor.month, minutes.start, minutes.end);
            let Some(next) = period.next(&self.zone) else { return count };
            cursor.period = next;
        }
    }

    /// The seconds of the wall clock, within a period, whose times are slots. A job at fixed times does not
    /// run twice for a time that is shown twice.
    fn counted(&self, period: &Period) -> Range<i64> {
        let (mut start, mut end) = (period.start + period.offset, period.end + period.offset);
        if !self.cron.is_interval() {
            match self.policy.overlap {
                Overlap::First => start = start.max(period.start + period.before),
                Overlap::Last => end = end.min(period.end + period.after),
            }
        }
        start.max(all_time().start)..end.min(all_time().end)
    }

    /// The one slot at the first instant of a period for all times skipped there, with the name of the earliest; `None` if
    /// that instant is a slot anyway.
    fn moved(&self, cursor: &mut Cursor) -> Option<Slot> {
        let Period { start, offset, before, .. } = cursor.period;
        if offset <= before || !self.makes_up() {
            return None;
        }
        let skipped = minutes(cursor.period.gap());
        let minute = self.cron.first(&mut cursor.month, skipped.start, skipped.end)?;
        let own =
            (start + offset) % 60 == 0 && self.is_match(&mut cursor.month, (start + offset).div_euclid(60));
        if own { None } else { Slot::of_wall(start, minute, before) }
    }

    /// Whether times that the clock skips are due when the gap ends.
    fn makes_up(&self) -> bool {
        self.policy.gap == Gap::Run && !self.cron.is_interval()
    }

    fn is_match(&self, month: &mut Month, minute: i64) -> bool {
        self.cron.first(month, minute, minute + 1).is_some()
    }

    /// The slot with this wall clock time and offset in its name, if there is one. In a gap the offset is the one before it;
    /// there the name means the skipped time, not the instant with that time and offset.
    pub(super) fn named(&self, minute: i64, offset: i64) -> Option<Slot> {
        let at = minute * 60 - offset;
        let mut cursor = self.cursor(at)?;
        let period = cursor.period;
        let skipped = period.before == offset && period.gap().contains(&(minute * 60));
        let due = if skipped && self.makes_up() && self.is_match(&mut cursor.month, minute) {
            period.start
        } else {
            at
        };
        self.previous(&mut cursor, due).filter(|slot| slot.number() == due)
    }

    /// The slots with this wall clock time and any offset: none, one, or one in each pass.
    pub(super) fn named_without_offset(&self, minute: i64) -> Vec<Slot> {
        let Some(shown) = super::slot::wall_clock(minute) else { return Vec::new() };
        let offsets = match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => vec![offset],
            AmbiguousOffset::Gap { before, .. } => vec![before],
            AmbiguousOffset::Fold { before, after } => vec![before, after],
        };
        offsets.into_iter().filter_map(|offset| self.named(minute, i64::from(offset.seconds()))).collect()
    }
}
