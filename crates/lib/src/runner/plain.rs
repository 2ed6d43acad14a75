//! A command as a shell would run it: in our own group, with our own descriptors, and not watched over.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::lookup::Program;
use super::poll;
use super::signals::Signals;

/// Runs it to its end, passing on the signals we get; its exit code, as a shell would say it.
pub fn run(
    program: &Program,
    args: &[OsString],
    env: Vec<(OsString, OsString)>,
    foreground: bool,
) -> io::Result<u8> {
    // Before the child, so that none is missed.
    let mut signals = Signals::install()?;
    let mut command = Command::new(&program.path);
    super::hide_store(&mut command);
    let mut child = command.args(args).env_remove(super::JOB_ENV).envs(env).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
        }
        poll::wait(&[signals.as_fd()])?;
        for signal in signals.pending().forward {
            // A terminal sends its own INT and QUIT to the whole foreground group.
            let by_terminal = foreground && [Signal::INT, Signal::QUIT].contains(&signal);
            if let (Some(pid), false) = (pid, by_terminal) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}
