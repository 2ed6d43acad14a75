//! Leasehold: a lease with a fencing token over any store that can compare-and-set.

pub mod clock;
#[cfg(unix)]
pub mod runner;
pub mod stores;

pub use leasehold_core as core;
