//! Leasehold: a lease with a fencing token over any store that can compare-and-set.

pub mod byhand;
pub mod clock;
pub mod host;
pub mod keeper;
pub mod lease;
pub mod memory;
pub mod random;
pub mod runner;
pub mod shell;
pub mod state;
pub mod stores;
pub mod targets;
pub mod text;

pub use leasehold_core as core;
