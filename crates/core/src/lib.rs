//! The rules of Leasehold, and nothing else: no clock, no I/O, no threads.
//!
//! A lease is a record in a store that can compare-and-set. Whoever writes `held` into it with the
//! next token holds it until the record has not changed for its TTL. [`session::Session`] is one run
//! of one lease as a state machine; [`rules`] are the decisions it takes; [`timing`] says when the job
//! must be dead; [`fence`] is the check a target makes before it accepts a write; [`ledger`] says whether an
//! item of work may be begun.
//!
//! `#![no_std]` makes the compiler refuse a clock, a file, a socket or a thread here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod additions;
pub mod fence;
pub mod fence_record;
pub mod history;
pub mod human_duration;
pub mod ids;
pub mod ledger;
pub mod name;
pub mod one_shot;
pub mod record;
pub mod rules;
pub mod session;
pub mod store;
pub mod time;
pub mod timing;
pub mod update;
pub mod write_policy;
