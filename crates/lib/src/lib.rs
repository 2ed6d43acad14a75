//! Leasehold: a lease with a fencing token over any store that can compare-and-set.

pub mod clock;
pub mod stores;

pub use leasehold_core as core;
