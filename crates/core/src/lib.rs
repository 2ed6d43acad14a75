//! The rules of Leasehold, and nothing else: no clock, no I/O, no threads.
//!
//! A lease is a record in a store that can compare-and-set. A run takes the lease by writing `held` and the
//! next token into the record. It holds the lease as long as it changes the record at least once in each TTL.
//!
//! - [`session::Session`] is one run of one lease, as a state machine; [`rules`] are its decisions.
//! - [`timing`] says when the job must be dead.
//! - [`fence`] is the check that a target makes before it accepts a write.
//! - [`ledger`] says whether an item of work may be started.
//!
//! `#![no_std]` makes the compiler refuse a clock, a file, a socket or a thread here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod additions;
pub mod alert;
mod codec;
pub mod fence;
pub mod fence_record;
pub mod forgotten;
pub mod human_duration;
pub mod ids;
pub mod ledger;
pub mod name;
pub mod one_shot;
mod past_lines;
pub mod record;
pub mod rules;
pub mod run_log;
pub mod run_stats;
pub mod session;
pub mod store;
pub mod time;
pub mod timing;
pub mod update;
pub mod write_policy;
