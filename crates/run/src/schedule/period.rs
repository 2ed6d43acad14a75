//! The stretches of time in which a zone's wall clock runs evenly.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// From one change of a zone's offset to the next; all in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    /// The first second, in Unix time.
    pub start: i64,
    /// The second after the last.
    pub end: i64,
    /// The wall clock's time less Unix time.
    pub offset: i64,
    /// The offset before `start`; the same if there was no change.
    pub before: i64,
    /// The offset from `end` on; the same if there is no change.
    pub after: i64,
}

impl Period {
    /// The period that `second` belongs to.
    pub(super) fn at(zone: &TimeZone, second: i64) -> Option<Period> {
        let at = Timestamp::from_second(second).ok()?;
        let offset = i64::from(zone.to_offset(at).seconds());
        let (start, before) = change_until(zone, second, offset);
        let (end, after) = change_after(zone, second, offset);
        Some(Period { start, end, offset, before, after })
    }

    pub(super) fn next(&self, zone: &TimeZone) -> Option<Period> {
        if self.end > Timestamp::MAX.as_second() {
            return None;
        }
        let (end, after) = change_after(zone, self.end, self.after);
        Some(Period { start: self.end, end, offset: self.after, before: self.offset, after })
    }

    pub(super) fn previous(&self, zone: &TimeZone) -> Option<Period> {
        if self.start <= Timestamp::MIN.as_second() {
            return None;
        }
        let (start, before) = change_until(zone, self.start - 1, self.before);
        Some(Period { start, end: self.start, offset: self.before, before, after: self.offset })
    }

    /// The seconds that the wall clock skips when the period starts, without the first that it shows. Empty unless the
    /// clock goes forward.
    pub(super) fn gap(&self) -> std::ops::Range<i64> {
        self.start + self.before..self.start + self.offset
    }
}

/// The last change of the offset at or before `second`, and the offset before it. Changes of the name alone, which a
/// zone's records also have, do not count.
fn change_until(zone: &TimeZone, second: i64, offset: i64) -> (i64, i64) {
    let never = (Timestamp::MIN.as_second(), offset);
    let Ok(from) = Timestamp::from_second(second + 1) else { return never };
    for change in zone.preceding(from) {
        let at = change.timestamp().as_second();
        let Ok(just_before) = Timestamp::from_second(at - 1) else { return never };
        let before = i64::from(zone.to_offset(just_before).seconds());
        if before != offset {
            return (at, before);
        }
    }
    never
}

/// The first change of the offset after `second`, and the offset from then on.
fn change_after(zone: &TimeZone, second: i64, offset: i64) -> (i64, i64) {
    let never = (Timestamp::MAX.as_second() + 1, offset);
    let Ok(from) = Timestamp::from_second(second) else { return never };
    zone.following(from)
        .find(|change| i64::from(change.offset().seconds()) != offset)
        .map_or(never, |change| (change.timestamp().as_second(), i64::from(change.offset().seconds())))
}
