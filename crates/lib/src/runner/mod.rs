//! The hands of `run`: start the job, see its whole process tree, stop it, wait for events.
//!
//! Nothing here decides anything; the session says what to do. Everything is made for one main
//! thread that owns the process: it is the subreaper, the only waiter, and the parent whose death
//! the kernel reports to the job.

pub mod evidence;
pub mod lock;
pub mod lookup;
pub mod outcome;
pub mod plain;
pub mod poll;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod proc;
pub mod run;
pub mod signals;
pub mod spawn;
pub mod tail;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod tree;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "tree_group.rs"]
pub mod tree;

/// The variable that marks every process of a run.
pub const RUN_ID: &str = "LEASEHOLD_RUN_ID";

/// Variables that are for the command alone, from whoever starts a run with some of its own: a JSON object of texts. It is
/// not passed on.
pub const JOB_ENV: &str = "LEASEHOLD_JOB_ENV";

/// A shorter run id could be somebody else's too; an empty one is everybody's.
pub const RUN_ID_SHORTEST: usize = 16;

/// The run ids of the enclosing runs, outermost first, then this one. A run inside a run replaces
/// [`RUN_ID`], and what is left of it must still be recognised as part of the outer run.
pub const RUN_CHAIN: &str = "LEASEHOLD_RUN_CHAIN";

/// The value of [`RUN_CHAIN`] for a run started from this environment.
pub fn run_chain(run_id: &str) -> String {
    let outer = std::env::var(RUN_CHAIN).or_else(|_| std::env::var(RUN_ID));
    match outer {
        Ok(outer) if !outer.is_empty() => format!("{outer} {run_id}"),
        _ => run_id.to_owned(),
    }
}
