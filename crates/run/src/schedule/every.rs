//! Slots at a fixed interval.

use std::fmt;
use std::time::Duration;

use leasehold_core::ledger::job_record::ScheduleKey;

/// The longest interval: a typo such as `9000d` should not become a schedule.
const MOST: Duration = Duration::from_secs(366 * 86_400);

/// A slot in each interval, counted from 1970-01-01T00:00Z, so that all machines agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Every {
    /// In seconds.
    interval: i64,
    offset: i64,
}

/// Why an interval cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EveryError {
    /// It is zero.
    #[error("the interval is zero; write at least 1s")]
    Zero,
    /// Slots have names in whole seconds.
    #[error("intervals and offsets are whole seconds; write 1s or more, without a fraction")]
    Fraction,
    /// Longer than a year.
    #[error("the interval is longer than 366 days; write a date instead, such as cron = \"0 0 1 1 *\"")]
    TooLong,
    /// It only moves slots within their interval.
    #[error("the offset must be shorter than the interval")]
    Offset,
}

impl Every {
    /// A slot each `interval`, `offset` after the multiples of it.
    pub fn new(interval: Duration, offset: Duration) -> Result<Every, EveryError> {
        if interval.is_zero() {
            return Err(EveryError::Zero);
        }
        if interval.subsec_nanos() != 0 || offset.subsec_nanos() != 0 {
            return Err(EveryError::Fraction);
        }
        if interval > MOST {
            return Err(EveryError::TooLong);
        }
        if offset >= interval {
            return Err(EveryError::Offset);
        }
        // Both are below a year: they fit.
        Ok(Every { interval: interval.as_secs() as i64, offset: offset.as_secs() as i64 })
    }

    /// The distance between two slots.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.unsigned_abs())
    }

    /// How far the slots are moved from the multiples of the interval.
    pub fn offset(&self) -> Duration {
        Duration::from_secs(self.offset.unsigned_abs())
    }

    /// When it is due, as machines compare it.
    pub(super) fn key(&self) -> ScheduleKey {
        ScheduleKey::Every { seconds: self.interval, offset: self.offset }
    }

    /// The number of the last slot at or before a second.
    fn index(&self, second: i64) -> i64 {
        (second - self.offset).div_euclid(self.interval)
    }

    pub(super) fn at_or_before(&self, second: i64) -> i64 {
        self.offset + self.index(second) * self.interval
    }

    pub(super) fn after(&self, second: i64) -> i64 {
        self.at_or_before(second) + self.interval
    }

    /// How many slots come after `from`, up to and with `to`.
    pub(super) fn count(&self, from: i64, to: i64) -> u64 {
        u64::try_from(self.index(to) - self.index(from)).unwrap_or(0)
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |seconds| format!("{:#}", jiff::SignedDuration::from_secs(seconds)).replace(' ', "");
        write!(f, "every {}", shown(self.interval))?;
        if self.offset != 0 { write!(f, " + {}", shown(self.offset)) } else { Ok(()) }
    }
}
