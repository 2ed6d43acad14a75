//! The outcomes of a run: their words, and how a job that ended is classified.
//!
//! The run log has more words, for events that are not outcomes: [`crate::run_log::LogEvent`].

use serde::{Deserialize, Serialize};

use crate::session::{JobExit, Signal, StopReason};

/// The exit status that a shell gives for a job that died of KILL.
const KILLED: i32 = 128 + 9;

/// The state of an item: the outcome of its last run, or that it has none yet. People see these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemState {
    /// It may be started: a person asked for it to be tried again, or its command was not executed.
    Planned,
    /// A run has started it. If that run has lost its lease, the outcome is unknown.
    Started,
    /// It is done.
    Ok,
    /// The command failed.
    Failed,
    /// It was skipped, and is not run.
    Skipped,
    /// The lease was lost, and the command was stopped.
    Lost,
    /// The command was stopped for another reason.
    Killed,
    /// A run started it, and its outcome is unknown.
    Unknown,
}

impl ItemState {
    /// Whether it is unknown what the run has done.
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Started | Self::Lost | Self::Killed | Self::Unknown)
    }

    /// Whether its run may still close it.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Started | Self::Unknown)
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Started => "started",
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Unknown => "unknown",
        }
    }
}

/// The outcome of a job that ended. `stopped`: why its run ended it, if it did. `asked`: the signals that
/// asked it to end and were passed on to it.
pub fn classify(exit: JobExit, stopped: Option<&StopReason>, asked: &[Signal]) -> ItemState {
    match (stopped, exit) {
        (Some(why), _) if why.is_loss() => ItemState::Lost,
        (Some(StopReason::MaxRun | StopReason::Interrupted), _) => ItemState::Killed,
        (_, exit) if exit.status() == 0 => ItemState::Ok,
        (_, exit) if interrupted(exit, asked) => ItemState::Killed,
        _ => ItemState::Failed,
    }
}

/// Whether a signal ended the job after it was asked to end, or its exit status is the one that a shell gives
/// for that. A job that exits with another code has chosen that code. KILL counts also if nobody asked: a job
/// cannot catch it, whether a person sends it or the kernel.
fn interrupted(exit: JobExit, asked: &[Signal]) -> bool {
    let of = |signal: &Signal| signal.ending_number().is_some_and(|n| exit.status() == 128 + i32::from(n));
    let by_signal = matches!(exit, JobExit::Signal(_));
    exit.status() == KILLED || !asked.is_empty() && (by_signal || asked.iter().any(of))
}
