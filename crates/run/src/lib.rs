//! Jobs that are due again and again, each slot run once on whichever machine.
//!
//! [`jobs`] are read from a [configuration file](config_file), [`schedule`] says when they are due, and [`job_records`] what
//! became of their slots, as the store tells it. The [`scheduler`] starts a run for each slot that is to be run, and
//! [hands](handoff) it one description.

pub mod config_file;
pub mod duration;
pub mod handoff;
pub mod job_records;
pub mod jobs;
pub mod placeholders;
pub mod schedule;
pub mod scheduler;
