//! A host's clocks: boot time, with its own rate, and awake time, which stops in suspend.

use std::time::Duration;

use leasehold_core::time::{BootTime, Now};

#[derive(Clone, Debug)]
pub(crate) struct Clock {
    base_real: u64,
    base_boot: i64,
    ppm: i64,
    slept: i64,
}

impl Clock {
    pub(crate) fn new(offset: u64, ppm: i64) -> Self {
        Self { base_real: 0, base_boot: i64::try_from(offset).unwrap_or(0), ppm, slept: 0 }
    }

    fn local(&self, real: u64) -> i64 {
        let real = i64::try_from(real).unwrap_or(i64::MAX);
        real + real * self.ppm / 1_000_000
    }

    pub(crate) fn boot(&self, real: u64) -> u64 {
        let boot = self.base_boot + self.local(real) - self.local(self.base_real);
        u64::try_from(boot).unwrap_or(0)
    }

    pub(crate) fn boot_time(&self, real: u64) -> BootTime {
        BootTime(Duration::from_nanos(self.boot(real)))
    }

    pub(crate) fn now(&self, real: u64) -> Now {
        let boot = self.boot(real);
        let awake = boot.saturating_sub(u64::try_from(self.slept).unwrap_or(0));
        let (boot, awake) = (BootTime(Duration::from_nanos(boot)), Duration::from_nanos(awake));
        Now { boot, awake, wall: Duration::ZERO }
    }

    /// The first real instant at which boot time is at least `boot`.
    pub(crate) fn real_at(&self, boot: BootTime) -> u64 {
        let target = i64::try_from(boot.0.as_nanos()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
        let ahead = i128::from(target - self.base_boot + self.local(self.base_real));
        let guess = ahead * 1_000_000 / (1_000_000 + i128::from(self.ppm));
        let mut real = u64::try_from(guess).unwrap_or(0).saturating_sub(2);
        while self.boot(real) < u64::try_from(target).unwrap_or(0) {
            real += 1;
        }
        real
    }

    /// The machine slept for this long: boot time went on, awake time did not.
    pub(crate) fn slept(&mut self, real: u64) {
        self.slept += self.local(real);
    }

    /// The whole machine stood still, including its clocks.
    pub(crate) fn stood_still(&mut self, real: u64) {
        self.base_boot -= self.local(real);
    }

    pub(crate) fn reboot(&mut self, now: u64) {
        *self = Self { base_real: now, base_boot: 1_000_000_000, ppm: self.ppm, slept: 0 };
    }
}
