//! The only file that asks what time it is.

use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::Duration;

use leasehold_core::time::{BootTime, Now};
use rustix::time::{ClockId, clock_gettime};

#[allow(clippy::disallowed_methods)] // only this file may
fn read(clock: ClockId) -> Duration {
    // These clocks start near zero at boot, so the seconds are never negative.
    let t = clock_gettime(clock);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Boot time. It counts while the machine sleeps.
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

/// The clocks, for one step of a session.
pub fn now() -> Now {
    Now { boot: boot_time(), awake: read(ClockId::Monotonic), wall: wall() }
}

/// Time since 1970 by this machine's wall clock, to show to people.
///
/// It is read through libc, unlike the clocks that decide, so that a test can move it for one process.
#[allow(clippy::disallowed_methods)] // only this file may
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The file system type of a real `/proc`.
const PROC_SUPER_MAGIC: rustix::fs::FsWord = 0x9fa0;

/// Names this boot and this time namespace. Readings of the boot-time clock compare only within one.
pub fn clock_domain() -> Option<String> {
    Some(format!("{} {}", boot_id()?, time_namespace()?))
}

/// The number of the first time namespace; no other one ever has it.
const FIRST_TIME_NAMESPACE: &str = "4026531834";

/// Our time namespace, which may shift the boot-time clock: its number and the shift. The kernel reuses the
/// number of a namespace that is gone, so the number alone does not name one. Nothing: it is unknown.
pub fn time_namespace() -> Option<String> {
    // Kernels before 5.6 have no time namespaces, so there all processes share one.
    let Ok(link) = std::fs::read_link("/proc/self/ns/time") else { return Some("none".into()) };
    let number: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    if number == FIRST_TIME_NAMESPACE {
        return Some(number);
    }
    shifted(&number, &std::fs::read_to_string("/proc/self/timens_offsets").ok()?)
}

/// The number with the shift of the boot-time clock in the kernel's table.
fn shifted(number: &str, table: &str) -> Option<String> {
    let mut rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| matches!(row[..], ["boottime" | "7", _, _]))?;
    Some(format!("{number}.{}.{}", row[1], row[2]))
}

/// Names this boot of the machine; readings of the boot-time clock compare only within one.
/// It does not change while a process lives, so it is read once.
pub fn boot_id() -> Option<&'static str> {
    static ID: OnceLock<Option<String>> = OnceLock::new();
    let read = || -> io::Result<String> {
        let mut id = [0; 64];
        let mut file = File::open("/proc/sys/kernel/random/boot_id")?;
        // Container tools may mount another file there, which does not name a boot of this machine.
        if rustix::fs::fstatfs(&file)?.f_type != PROC_SUPER_MAGIC {
            return Ok(String::new());
        }
        let length = file.read(&mut id)?;
        Ok(String::from_utf8_lossy(&id[..length]).trim().to_owned())
    };
    ID.get_or_init(|| read().ok().filter(|id| !id.is_empty())).as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_told_by_its_shift_as_well() {
        let table =
            |shift: u64| format!("monotonic           0         0\nboottime        {shift}         0\n");
        let named = |shift| shifted("4026532177", &table(shift)).unwrap();
        assert_ne!(named(10), named(86400), "the same number, given out again");
        assert_eq!(named(10), "4026532177.10.0");
        assert_eq!(shifted("4026532177", "garbage"), None);
    }
}
