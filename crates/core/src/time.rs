//! Time in core: clock readings come with every input; core reads no clock.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// A reading of a clock that keeps counting while the machine sleeps (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The time `later` after this one.
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// The time `earlier` before this one; never before boot.
    pub fn minus(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }

    /// The time since `earlier`; zero if that is in the future.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The clocks, read together when an input arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// Counts while the machine sleeps. Every deadline is on this one.
    pub boot: BootTime,
    /// Stops while the machine sleeps. It falls behind `boot` then, which shows that the machine slept.
    pub awake: Duration,
    /// The wall clock, since 1970. For people who read records; no rule uses it.
    pub wall: Duration,
}

/// A reading of the wall clock as `2026-11-15T14:02:11Z`, for people to read.
pub fn utc(wall: Duration) -> String {
    let (days, second) = (wall.as_secs() / 86_400, wall.as_secs() % 86_400);
    // Years that begin in March have their leap day last. 400 of them are 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
