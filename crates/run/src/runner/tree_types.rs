//! What the tree reports.

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
    /// Reads a wait status; nothing for a child that has only stopped.
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        let small = |n: i32| u8::try_from(n & 0xff).unwrap_or(u8::MAX);
        let code = status.exit_status().map(|n| Self::Code(small(n)));
        code.or(status.terminating_signal().map(|n| Self::Signal(small(n))))
    }

    /// The exit code a shell would give.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}

/// What `Tree::reap` found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// The job's own process ended, and how. Said once.
    pub main: Option<ProcessExit>,
    /// Nothing of the tree is left.
    pub empty: bool,
}

/// A process that should be gone, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its number.
    pub pid: i32,
    /// Its command line.
    pub command: String,
}

/// What sending a signal to the whole tree came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Those we may not signal (they run as somebody else).
    pub refused: Vec<Survivor>,
    /// The last pass found nobody new. If not, the tree forks faster than we are: try again.
    pub settled: bool,
}
