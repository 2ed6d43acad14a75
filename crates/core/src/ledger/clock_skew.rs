//! A job whose slots are settled up to a time in the future: a machine's clock was wrong when that was written.

use core::time::Duration;

use super::catch_up::{Calendar, ON_TIME};
use super::job_record::{DroppedRange, JobRecord, Paused};
use crate::ids::WriteId;

impl JobRecord {
    /// The time until which nothing becomes due, if it is further ahead of `now` than clocks may differ. Then
    /// the clock that wrote it was wrong, or this one is. `late`: how much later than a slot is due the
    /// caller may look.
    pub fn ahead(&self, now: i64, late: Duration) -> Option<i64> {
        let until = self.paused.as_ref().and_then(|paused| paused.until);
        let upto = self.settled.max(until.unwrap_or(i64::MIN));
        let most = i64::try_from((ON_TIME + late).as_secs()).unwrap_or(i64::MAX);
        (upto > now.saturating_add(most)).then_some(upto)
    }

    /// The record that goes on with slots due after `now`; none if it does already. Without a calendar only a
    /// pause ends: the dropped slots could not be counted.
    pub fn going_on(&self, calendar: Option<&dyn Calendar>, now: i64, write: WriteId) -> Option<Self> {
        let back = calendar.and_then(|calendar| self.set_back(calendar, now, write));
        back.as_ref().unwrap_or(self).resuming(now, write).or(back)
    }

    /// The record settled up to `now` only, if it is too far ahead. Slots before `now` stay settled, and
    /// dropped if they were. Slots after `now` become due in their time. One that was started too early has a
    /// record, so it is not started again.
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

    /// A range, cut at `now`. The next look subtracts the slots that have a record.
    fn cut(&self, range: &DroppedRange, calendar: &dyn Calendar, now: i64) -> Option<DroppedRange> {
        if range.last <= now {
            return Some(*range);
        }
        // The schedule was changed while the record was ahead, so this range is of the schedule before. Its
        // slots cannot be counted any more: the count stays.
        if self.since > now && range.first <= self.since {
            return Some(DroppedRange { last: now, ..*range });
        }
        let gap = calendar.gap(range.first - 1, now)?;
        // A slot that was listed, and never started, has its own range.
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
