//! Runs commands under a lease: single ones, and jobs on schedules, each slot once on one of the machines.
//!
//! The [`runner`] runs a command under a lease; its [`step_server`] answers the processes of the job over a socket.
//! [`jobs`] are read from a [configuration file](config_file), [`schedule`] knows when they are due, and [`job_records`]
//! keeps in the store how their slots ended. The [`scheduler`] starts a run for each slot that is due, and
//! [hands](handoff) it one description.

pub mod config_file;
pub mod duration;
pub mod handoff;
pub mod job_records;
pub mod jobs;
pub mod manual;
pub mod notify;
pub mod placeholders;
#[cfg(unix)]
pub mod runner;
pub mod schedule;
pub mod scheduler;
pub mod step_server;
