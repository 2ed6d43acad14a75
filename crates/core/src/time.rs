//! Time as core sees it: two readings handed in with every input, never asked for.

use core::time::Duration;

/// A reading of a clock that keeps counting while the machine sleeps (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// This instant, `later` further on.
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// This instant, `earlier` before; never before boot.
    pub fn minus(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both clocks, read together when an input arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// Counts while the machine sleeps. Every deadline is on this one.
    pub boot: BootTime,
    /// Stops while the machine sleeps. Used only to notice a nap: it falls behind `boot`.
    pub awake: Duration,
}
