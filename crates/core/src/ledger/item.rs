//! The item of one run, as its session sees it: opened before the command, recorded after it.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Amended, ItemState, Opened, Subject};
use crate::session::{JobExit, Signal, StopReason};

/// What a shell would say of a job that died of KILL.
const KILLED: i32 = 128 + 9;

/// What came of opening the item of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemOpened {
    /// Of the item.
    pub item: Opened,
    /// Of the key that is done together with a slot, if it was asked for.
    pub key: Option<Opened>,
    /// What this machine saw begun or done on another store, and on which.
    pub other_store: Option<(Subject, String)>,
    /// What this machine could not note, and why.
    pub unnoted: Vec<(Subject, String)>,
    /// What came of recording a slot whose key is not to be run.
    pub recorded: Option<ItemRecorded>,
}

impl ItemOpened {
    /// What keeps the command from being executed.
    pub fn held_off(&self) -> Option<&Opened> {
        [Some(&self.item), self.key.as_ref()].into_iter().flatten().find(|opened| !opened.is_begun())
    }

    /// Whether the command is to be executed.
    pub fn is_to_start(&self) -> bool {
        self.held_off().is_none() && self.other_store.is_none()
    }

    /// Whether the record says that this run is at the item.
    pub fn is_ours(&self) -> bool {
        self.item.is_begun() && self.recorded.is_none()
    }
}

/// What came of recording how the item of a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ItemRecorded {
    /// Of the item; nothing: it was not ours.
    pub item: Option<Amended>,
    /// Of the key of a slot.
    pub key: Option<Amended>,
    /// What this machine could not note, and why.
    pub unnoted: Vec<(Subject, String)>,
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
