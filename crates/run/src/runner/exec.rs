//! Runs a command as a shell would: in our own process group, with our own descriptors, and without watching its
//! descendants.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::environment::{self, Variable};
use super::lookup::Program;
use super::signals::{Signals, named};
use leasehold::clock::boot_time;
use leasehold::poll::{self, Timer};
use leasehold_core::session::{self, JobExit};

/// How often to look for the end of the child where SIGCHLD is blocked.
const LOOK: Duration = Duration::from_millis(100);

/// Starts it under the name that the user gave; `sh` executes a file without a `#!` line, as in a shell.
pub fn start(program: &Program, args: &[OsString], prepare: impl Fn(&mut Command)) -> io::Result<Child> {
    let mut command = Command::new(&program.path);
    prepare(command.arg0(&program.name).args(args));
    match command.spawn() {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOEXEC) => {
            let mut shell = Command::new("/bin/sh");
            prepare(shell.arg(&program.path).args(args));
            shell.spawn()
        }
        started => started,
    }
}

/// The exit code as in a shell.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// How a command ended.
#[derive(Debug)]
pub struct CommandEnd {
    /// Its exit.
    pub exit: JobExit,
    /// The signals that asked it to end and were passed on to it.
    pub asked: Vec<session::Signal>,
}

/// Runs it to its end and passes signals on.
pub fn run(
    program: &Program,
    args: &[OsString],
    env: &[Variable],
    foreground: bool,
) -> io::Result<CommandEnd> {
    // Before the child starts, so that no signal is missed.
    let mut signals = Signals::install()?;
    let look = signals.deaf().then(Timer::new).transpose()?;
    let mut child = start(program, args, |command| environment::apply(command, env))?;
    let mut asked = Vec::new();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    loop {
        if let Some(status) = child.try_wait()? {
            let exit = if status.signal().is_some() { JobExit::Signal } else { JobExit::Code };
            return Ok(CommandEnd { exit: exit(code(status).into()), asked });
        }
        match &look {
            None => drop(poll::wait(&[signals.as_fd()])?),
            Some(look) => {
                look.arm(boot_time().plus(LOOK))?;
                poll::wait(&[signals.as_fd(), look.as_fd()])?;
            }
        }
        for signal in signals.pending().forward {
            asked.extend(named(signal).filter(|signal| signal.ends()));
            // A terminal sends its own INT and QUIT to the whole foreground group.
            let by_terminal = foreground && [Signal::INT, Signal::QUIT].contains(&signal);
            if let (Some(pid), false) = (pid, by_terminal) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}
