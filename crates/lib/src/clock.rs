//! The only file that asks what time it is.

use std::time::Duration;

use leasehold_core::time::{BootTime, Now};
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Duration {
    // These clocks start near zero at boot, so the seconds are never negative.
    let t = clock_gettime(clock);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Boot time: counts while the machine sleeps.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn boot_time() -> BootTime {
    BootTime(read(ClockId::Boottime))
}

/// Boot time: `CLOCK_MONOTONIC` counts through sleep on macOS and the BSDs' equivalents differ;
/// untested there.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn boot_time() -> BootTime {
    BootTime(read(ClockId::Monotonic))
}

/// Both clocks, for one step of a session.
pub fn now() -> Now {
    Now { boot: boot_time(), awake: read(ClockId::Monotonic) }
}

/// Time since 1970 by this machine's wall clock. For people to read only.
///
/// Asked by way of libc, unlike the clocks that decide: so a test can move it for one process.
#[allow(clippy::disallowed_methods)] // the one place
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Which boot of this machine we are in; readings of the boot-time clock compare only within one.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}
