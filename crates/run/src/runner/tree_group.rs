//! The job's process group, on systems without subreaper and `/proc`. Untested. A process that leaves the group is not
//! found, so a lease may be released while such a process lives.

use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpid,
};

use super::spawn::{self, CommandSpec, SpawnError};
pub use super::tree_types::{ProcessExit, Reaped, Survivor, Sweep};

/// The processes of one run.
#[derive(Debug)]
pub struct ProcessTree {
    main: Option<Pid>,
    main_reaped: bool,
    foreground: bool,
}

impl ProcessTree {
    /// Only prepares: there is no subreaper here.
    pub fn become_subreaper(_run_id: &str) -> io::Result<Self> {
        Ok(Self { main: None, main_reaped: false, foreground: false })
    }

    /// A process group can be signalled without a look at its processes.
    pub(super) fn can_see() -> bool {
        true
    }

    /// Processes outside the group are not found here.
    pub(super) fn await_strays(&mut self) {}

    /// Starts the job.
    pub fn start(&mut self, job: &CommandSpec<'_>) -> Result<Pid, SpawnError> {
        let pid = spawn::spawn(job)?;
        self.main = Some(pid);
        self.main_reaped = false;
        self.foreground = job.foreground;
        Ok(pid)
    }

    /// Takes the exit of the job, if it has ended. Never blocks.
    pub fn reap(&mut self) -> io::Result<Reaped> {
        let mut found = Reaped::default();
        let Some(main) = self.main else {
            found.empty = true;
            return Ok(found);
        };
        if !self.main_reaped
            && let Some((_, status)) = waitpid(Some(main), WaitOptions::NOHANG)?
        {
            self.main_reaped = true;
            found.main = ProcessExit::of(status);
        }
        found.empty =
            self.main_reaped && (self.foreground || test_kill_process_group(main) == Err(Errno::SRCH));
        Ok(found)
    }

    /// Passes a signal on to the job's process group; in the foreground to the job alone.
    pub fn signal_group(&mut self, signal: Signal) -> io::Result<()> {
        let Some(main) = self.main else {
            return Ok(());
        };
        let sent = match (self.foreground, self.main_reaped) {
            (true, true) => Ok(()),
            (true, false) => kill_process(main, signal),
            (false, _) => kill_process_group(main, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn sweep(&mut self, signal: Signal) -> io::Result<Sweep> {
        self.signal_group(signal)?;
        Ok(Sweep { refused: Vec::new(), settled: true })
    }

    /// TERM to the group.
    pub fn terminate(&mut self) -> io::Result<Sweep> {
        self.sweep(Signal::TERM)
    }

    /// KILL to the group.
    pub fn kill(&mut self) -> io::Result<Sweep> {
        self.sweep(Signal::KILL)
    }

    /// Stops the group until [`ProcessTree::thaw`].
    pub fn freeze(&mut self) -> io::Result<Sweep> {
        self.sweep(Signal::STOP)
    }

    /// Wakes the group.
    pub fn thaw(&mut self) -> io::Result<()> {
        self.signal_group(Signal::CONT)
    }

    /// Unknown here.
    pub fn survivors(&self) -> io::Result<Vec<Survivor>> {
        Ok(Vec::new())
    }
}
