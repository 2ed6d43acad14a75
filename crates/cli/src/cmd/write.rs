//! `leasehold write TARGET`: replaces a target, if no newer run has fenced it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use leasehold::core::fence::Bearer;
use leasehold::targets::{Content, Target, TargetError, Written};
use leasehold_run::runner::exec;
use leasehold_run::runner::lookup::lookup;
use serde_json::json;

use super::run_log;
use super::target_args::{self, TargetReason};
use crate::args::WriteArgs;
use crate::exit::{self, FailKind, Failed};
use crate::messages::write as say;
use crate::out::Out;

/// Writes it as part of the run that we are in.
pub fn run(args: &WriteArgs, out: &Out) -> Result<u8, Failed> {
    let bearer = target_args::enclosing("write")?;
    let mut target = target_args::with_content(&args.target)?;
    let written = match (&args.from, &args.command[..]) {
        (Some(path), _) => from_path(target.as_mut(), &bearer, path),
        (None, []) => from_input(target.as_mut(), &bearer),
        (None, command) => from_command(target.as_mut(), &bearer, command),
    };
    print_outcome(target.shown(), &bearer, &written, out);
    let written = written.map_err(|unwritten| unwritten.failed)?;
    if let Some(refused) = &written.let_in {
        out.warn(&say::would_be_refused(target_args::would_be_refused(refused)));
    } else if written.repeat {
        out.chat(&say::repeated(target.shown(), written.seq));
    } else {
        out.chat(&say::wrote(target.shown(), bearer.token, written.seq));
    }
    Ok(exit::OK)
}

/// A write that was not done, and its outcome as `history` names it.
struct Unwritten {
    outcome: &'static str,
    failed: Failed,
}

impl Unwritten {
    /// The target was not asked.
    fn before(failed: Failed) -> Self {
        Self { outcome: "failed", failed }
    }
}

fn checked(answer: Result<Written, TargetError>) -> Result<Written, Unwritten> {
    answer.inspect_err(run_log::if_refused).map_err(|error| Unwritten {
        outcome: TargetReason::of(&error).outcome(),
        failed: target_args::failed(&error),
    })
}

fn from_path(target: &mut dyn Target, bearer: &Bearer, path: &Path) -> Result<Written, Unwritten> {
    if path.is_dir() {
        return checked(target.write(bearer, None, Content::Directory(path)));
    }
    let mut file = File::open(path).map_err(|e| Unwritten::before(say::unreadable(path.display(), e)))?;
    checked(target.write(bearer, None, Content::Stream(&mut file)))
}

/// Empty input is an error: it comes from a command that failed, or from a forgotten redirection.
fn from_input(target: &mut dyn Target, bearer: &Bearer) -> Result<Written, Unwritten> {
    let mut input = Stdin { stdin: io::stdin().lock(), started: false, empty: false };
    let answer = target.write(bearer, None, Content::Stream(&mut input));
    if !input.empty {
        return checked(answer);
    }
    Err(Unwritten::before(say::empty(target.shown())))
}

/// Standard input; reading it fails if it is empty.
struct Stdin {
    stdin: io::StdinLock<'static>,
    started: bool,
    empty: bool,
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stdin.read(buffer)?;
        self.started |= count > 0;
        if !self.started && !buffer.is_empty() {
            self.empty = true;
            return Err(io::ErrorKind::Other.into());
        }
        Ok(count)
    }
}

/// Writes what the command prints, if it succeeds.
fn from_command(
    target: &mut dyn Target,
    bearer: &Bearer,
    command: &[OsString],
) -> Result<Written, Unwritten> {
    let mut producer = Producer::start(command).map_err(Unwritten::before)?;
    let answer = target.write(bearer, None, Content::Stream(&mut producer));
    match producer.failed(target.shown()) {
        Some(failed) => Err(Unwritten::before(failed)),
        None => checked(answer),
    }
}

/// A command whose output is read. A target gets the end of the output only if the command succeeded, and an error
/// otherwise: a target that has not read everything puts nothing in place.
struct Producer {
    child: Child,
    stdout: ChildStdout,
    name: String,
    ended: Option<ExitStatus>,
}

impl Producer {
    fn start(command: &[OsString]) -> Result<Self, Failed> {
        let system = |e: io::Error| Failed::new(FailKind::Command(126), "command", say::no_command(e));
        let program = lookup(&command[0], std::env::var_os("PATH").as_deref())
            .map_err(|e| Failed::new(FailKind::Command(e.exit_code()), "command", say::no_command(e)))?;
        let piped = |command: &mut Command| {
            command.stdout(Stdio::piped());
        };
        let mut child = exec::start(&program, &command[1..], piped).map_err(system)?;
        let Some(stdout) = child.stdout.take() else {
            return Err(system(io::Error::other(say::no_output())));
        };
        let name = command[0].to_string_lossy().into_owned();
        Ok(Self { child, stdout, name, ended: None })
    }

    /// A failure with its exit code, if it did not succeed.
    fn failed(&self, target: &str) -> Option<Failed> {
        let status = self.ended.filter(|status| !status.success())?;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => say::exited(code),
            (None, signal) => say::signalled(signal.unwrap_or_default()),
        };
        let told = say::command_failed(&self.name, how, target);
        Some(Failed::new(FailKind::Command(exec::code(status)), "command", told))
    }
}

impl Read for Producer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stdout.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            self.ended = Some(status);
            if !status.success() {
                return Err(io::ErrorKind::Other.into());
            }
        }
        Ok(count)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The target stopped reading.
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The outcome in the words of `history`, with --json.
fn print_outcome(shown: &str, bearer: &Bearer, result: &Result<Written, Unwritten>, out: &Out) {
    if !out.json {
        return;
    }
    let mut value = json!({
        "v": 1,
        "target": shown,
        "lease": bearer.lease.as_str(),
        "token": bearer.token.get(),
    });
    match result {
        Ok(written) => {
            value["outcome"] = "accepted".into();
            value["seq"] = written.seq.into();
            if let Some(refused) = &written.let_in {
                value["would_refuse"] = refused.reason.word().into();
            }
        }
        Err(unwritten) => {
            value["outcome"] = unwritten.outcome.into();
            value["reason"] = unwritten.failed.word.into();
        }
    }
    out.object(&value);
}
