//! What needs no server: the stores of one machine, the doctor, the async API. All in one, so that it is linked once.

mod async_fences;
mod async_lease;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod doctor_far;
mod round_trips;
mod run_log;
mod sloppy;
mod spy;
mod sqlite_many;
mod store_bad_input;
mod store_conformance;
mod store_costs;
mod store_processes;
mod two_crontabs;
