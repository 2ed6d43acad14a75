//! The outcomes of a run: their words, and which of them a job that ended gets.
//!
//! A lease's history has a few more words for runs without an item: [`crate::history`].

use serde::{Deserialize, Serialize};

use crate::session::{JobExit, Signal, StopReason};

/// What a shell would say of a job that died of KILL.
const KILLED: i32 = 128 + 9;

/// How far an item has come. The words that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemState {
    /// It may be begun: somebody asked for it to be tried again.
    Planned,
    /// A run is at it, or never said how it ended.
    Started,
    /// Done, for good.
    Ok,
    /// The command said that it failed.
    Failed,
    /// Not run, and not to be run.
    Skipped,
    /// The lease was lost and the command stopped.
    Lost,
    /// The command was stopped for another reason.
    Killed,
    /// A run began it and never said how it ended.
    Unknown,
}

impl ItemState {
    /// Whether this tells of a run of which nobody knows what it did.
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

/// How a job ended, in a word. `stopped`: why its run ended it, if it did. `asked`: the signals that asked it to end and
/// were passed on to it.
pub fn classify(exit: JobExit, stopped: Option<&StopReason>, asked: &[Signal]) -> ItemState {
    match (stopped, exit) {
        (Some(why), _) if why.is_loss() => ItemState::Lost,
        (Some(StopReason::MaxRun | StopReason::Interrupted), _) => ItemState::Killed,
        (_, exit) if exit.status() == 0 => ItemState::Ok,
        (_, exit) if interrupted(exit, asked) => ItemState::Killed,
        _ => ItemState::Failed,
    }
}

/// Whether it died after it was asked to end: of a signal, or as a shell says it of a command it ran. A job that has an
/// exit code of its own for that has said how it ended. KILL leaves no time to say anything, whether a person sends it
/// or a kernel that ran out of memory.
fn interrupted(exit: JobExit, asked: &[Signal]) -> bool {
    let of = |signal: &Signal| signal.ending_number().is_some_and(|n| exit.status() == 128 + i32::from(n));
    let by_signal = matches!(exit, JobExit::Signal(_));
    exit.status() == KILLED || !asked.is_empty() && (by_signal || asked.iter().any(of))
}
