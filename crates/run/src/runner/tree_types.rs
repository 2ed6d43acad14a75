//! The reports of a process tree.

use rustix::process::WaitStatus;

/// How the job's own process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// It exited with this code.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

impl ProcessExit {
    /// Reads a wait status; `None` for a child that has only stopped.
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        let small = |n: i32| u8::try_from(n & 0xff).unwrap_or(u8::MAX);
        let code = status.exit_status().map(|n| Self::Code(small(n)));
        code.or(status.terminating_signal().map(|n| Self::Signal(small(n))))
    }

    /// The exit code as in a shell.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}

/// The result of `ProcessTree::reap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// How the job's own process ended. Given once.
    pub main: Option<ProcessExit>,
    /// No process of the tree is left.
    pub empty: bool,
}

/// A process that should have ended, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its number.
    pub pid: i32,
    /// Its command line.
    pub command: String,
}

/// The result of a signal to the whole tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Processes that may not be signalled: they run as another user.
    pub refused: Vec<Survivor>,
    /// The last pass found no new process. If not, the tree forks faster than it can be stopped: try again.
    pub settled: bool,
}
