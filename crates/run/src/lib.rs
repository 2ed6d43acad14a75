//! Jobs that are due again and again, each slot run once on whichever machine.
//!
//! [`schedule`] says when a job is due, [`job_records`] what became of its slots, as the store tells it.

pub mod duration;
pub mod job_records;
pub mod schedule;
