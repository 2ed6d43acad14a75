//! Commands under a lease: one by one, and on schedules, each slot once on whichever machine.
//!
//! The [`runner`] runs a command under a lease; its [`step_server`] ask it over a socket. [`jobs`] are read from a
//! [configuration file](config_file), [`schedule`] says when they are due, and [`job_records`] what became of their slots,
//! as the store tells it. The [`scheduler`] starts a run for each slot that is to be run, and [hands](handoff) it one
//! description.

pub mod config_file;
pub mod duration;
pub mod handoff;
pub mod job_records;
pub mod jobs;
pub mod manual;
pub mod placeholders;
#[cfg(unix)]
pub mod runner;
pub mod schedule;
pub mod scheduler;
pub mod step_server;
