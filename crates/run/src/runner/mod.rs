//! Starts the command of a run, sees its whole process tree, stops it, and waits for events.
//!
//! The session decides when a job starts and stops. Three things are decided here, because the session cannot see them:
//! a job that cannot be frozen is killed; a run that the system keeps from watching over its job kills it and lets the
//! lease expire; and after such a stop, processes that got away are waited for. One main thread does all this, because
//! it owns the process: it is the subreaper, the only waiter, and the parent whose death the kernel reports to the job.

pub mod environment;
pub mod exec;
pub mod lookup;
pub mod run;
pub mod signals;
pub mod spawn;
pub mod tee;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod tree;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "tree_group.rs"]
pub mod tree;
pub mod tree_types;

#[cfg(any(target_os = "linux", target_os = "android"))]
use leasehold::host::RUN_ID_SHORTEST;
#[cfg(any(target_os = "linux", target_os = "android"))]
use leasehold::liveness::proc;

/// Whether that process lives and is an ancestor of this one. The wrapper of a run is the ancestor of all processes of its
/// job, until it dies. False where processes cannot be looked at.
pub fn is_above_us(pid: i32) -> bool {
    let parent = |of: i32| parent(of).filter(|above| *above > 0);
    let us = rustix::process::getpid().as_raw_pid();
    std::iter::successors(parent(us), |above| parent(*above)).any(|above| above == pid)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn parent(of: i32) -> Option<i32> {
    proc::stat(of).ok().map(|found| found.parent)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn parent(_: i32) -> Option<i32> {
    None
}

/// The processes that are left on this machine of a run whose wrapper has died. Empty where processes cannot be looked at.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn orphans(wrapper: u32, run_id: &str) -> Vec<tree_types::Survivor> {
    let is_there = i32::try_from(wrapper).is_ok_and(|pid| proc::stat(pid).is_ok_and(|stat| !stat.dead()));
    if is_there || run_id.len() < RUN_ID_SHORTEST {
        return Vec::new();
    }
    let (all, _) = proc::all().unwrap_or_default();
    let left =
        all.iter().filter(|process| !process.dead() && proc::carries(process, run_id) == proc::Carries::Yes);
    left.map(|process| tree_types::Survivor { pid: process.pid, command: proc::command(process.pid) })
        .collect()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn orphans(_wrapper: u32, _run_id: &str) -> Vec<tree_types::Survivor> {
    Vec::new()
}

/// The processes on this machine that were started with all of these in their environment. Empty where processes cannot
/// be looked at.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn started_with(entries: &[String]) -> Vec<tree_types::Survivor> {
    let (all, _) = proc::all().unwrap_or_default();
    let found = all.iter().filter(|process| !process.dead() && proc::started_with(process, entries));
    found
        .map(|process| tree_types::Survivor { pid: process.pid, command: proc::command(process.pid) })
        .collect()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn started_with(_entries: &[String]) -> Vec<tree_types::Survivor> {
    Vec::new()
}
