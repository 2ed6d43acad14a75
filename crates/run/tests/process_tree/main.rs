//! The whole process tree, for real: every test starts a supervisor process of its own.

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
mod dead;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod gone;
#[cfg(target_os = "linux")]
mod manners;
#[cfg(target_os = "linux")]
mod role;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
use leasehold_testkit::program::Test;

#[cfg(target_os = "linux")]
fn main() {
    if let Ok(role) = std::env::var(role::ROLE) {
        role::play(&role);
    }
    let tests = [dead::TESTS, gone::TESTS, manners::TESTS].concat();
    leasehold_testkit::program::main(&tests, 1);
}
