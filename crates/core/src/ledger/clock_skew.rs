//! A job that is settled up to a time that is still to come: somebody's clock was wrong when that was written.

use core::time::Duration;

use super::catch_up::{Calendar, ON_TIME};
use super::job_record::{DroppedRange, JobRecord, Paused};
use crate::ids::WriteId;

impl JobRecord {
    /// Up to when nothing becomes due, if that lies further ahead of `now` than clocks may differ: then one of them was
    /// wrong, or this one is. Whoever asks may be this much `late`, on purpose.
    pub fn ahead(&self, now: i64, late: Duration) -> Option<i64> {
        let until = self.paused.as_ref().and_then(|paused| paused.until);
        let upto = self.settled.max(until.unwrap_or(i64::MIN));
        let most = i64::try_from((ON_TIME + late).as_secs()).unwrap_or(i64::MAX);
        (upto > now.saturating_add(most)).then_some(upto)
    }

    /// The same going on with what is due after `now`; nothing if it does. Without its calendar only a pause ends: what
    /// is settled too far is set back only by whoever can count what was dropped.
    pub fn going_on(&self, calendar: Option<&dyn Calendar>, now: i64, write: WriteId) -> Option<Self> {
        let back = calendar.and_then(|calendar| self.set_back(calendar, now, write));
        back.as_ref().unwrap_or(self).resuming(now, write).or(back)
    }

    /// The same settled up to `now`, if it is too far ahead. What lies before stays settled, and dropped if it was. What
    /// lies after becomes due in its time, unless it has a record: whatever was begun too early is not begun again for
    /// that.
    fn set_back(&self, calendar: &dyn Calendar, now: i64, write: WriteId) -> Option<Self> {
        self.ahead(now, Duration::ZERO)?;
        let begun = self.dropped.iter().filter(|range| range.first <= now);
        let dropped = begun.filter_map(|range| self.cut(range, calendar, now)).collect();
        let earlier = |paused: Paused| Paused { until: paused.until.map(|until| until.min(now)), ..paused };
        let mut next = self.clone();
        (next.since, next.settled) = (self.since.min(now), self.settled.min(now));
        (next.dropped, next.write) = (dropped, write);
        next.open.retain(|at| *at <= now);
        next.paused = next.paused.map(earlier);
        Some(next)
    }

    /// A range up to `now`. Those of its slots that have a record are taken off the count by the next look.
    fn cut(&self, range: &DroppedRange, calendar: &dyn Calendar, now: i64) -> Option<DroppedRange> {
        if range.last <= now {
            return Some(*range);
        }
        // The schedule was changed while it was ahead, so this is of the one before, by which nobody can count any more:
        // what was counted then stands.
        if self.since > now && range.first <= self.since {
            return Some(DroppedRange { last: now, ..*range });
        }
        let gap = calendar.gap(range.first - 1, now)?;
        // One that was listed, and never begun, has a range of its own.
        let own =
            |other: &&DroppedRange| *other != range && other.first >= range.first && other.last <= gap.last;
        let told: u64 = self.dropped.iter().filter(own).map(|other| other.count).sum();
        let count = gap.count.saturating_sub(told);
        (count > 0).then_some(DroppedRange {
            first: gap.first,
            last: gap.last,
            count,
            counting: true,
            ..*range
        })
    }
}
