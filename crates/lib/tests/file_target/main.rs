//! One file as a target, for real: killed and frozen at every system call, full disks, damaged fences.

/// Lists functions under their own names.
#[cfg(target_os = "linux")]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
#[cfg(target_os = "linux")]
use tests;

#[cfg(target_os = "linux")]
mod frozen;
#[cfg(target_os = "linux")]
mod killed;
#[cfg(target_os = "linux")]
mod kit;
#[cfg(target_os = "linux")]
mod manners;
#[cfg(target_os = "linux")]
mod role;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod trees;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
use leasehold_testkit::program::Test;

#[cfg(target_os = "linux")]
fn main() {
    if let Ok(role) = std::env::var(role::ROLE) {
        role::play(&role);
    }
    // A few at a time, for each mostly waits for the processes it starts.
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(2).max(1);
    let tests = [table::TESTS, manners::TESTS, trees::TESTS, killed::TESTS, frozen::TESTS].concat();
    leasehold_testkit::program::main(&tests, threads);
}
