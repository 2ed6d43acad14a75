//! `leasehold write TARGET`: a file, a tree or an object, fenced.

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

use super::target_args;
use crate::args::WriteArgs;
use crate::exit::{self, FailKind, Failed};
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
    told(target.shown(), &bearer, &written, out);
    let written = written.map_err(|unwritten| unwritten.failed)?;
    if let Some(refused) = &written.let_in {
        out.warn(&format!("this write {}", target_args::let_in(refused)));
    } else if written.repeat {
        out.chat(&format!("{} had this write already (number {})", target.shown(), written.seq));
    } else {
        out.chat(&format!("wrote {} (token {}, write {})", target.shown(), bearer.token, written.seq));
    }
    Ok(exit::OK)
}

/// What was not written, and what that is called in history.
struct Unwritten {
    outcome: &'static str,
    failed: Failed,
}

impl Unwritten {
    /// It never came to the target.
    fn before(failed: Failed) -> Self {
        Self { outcome: "failed", failed }
    }
}

fn taken(answer: Result<Written, TargetError>) -> Result<Written, Unwritten> {
    answer.map_err(|error| Unwritten {
        outcome: target_args::outcome(&error).0,
        failed: target_args::failed(&error),
    })
}

fn from_path(target: &mut dyn Target, bearer: &Bearer, path: &Path) -> Result<Written, Unwritten> {
    if path.is_dir() {
        return taken(target.write(bearer, None, Content::Directory(path)));
    }
    let mut file = File::open(path).map_err(|e| {
        let message = format!("cannot read {}: {e}. Nothing was written", path.display());
        Unwritten::before(Failed::new(FailKind::Usage, "from", message))
    })?;
    taken(target.write(bearer, None, Content::Stream(&mut file)))
}

/// Nothing at all is what a command leaves that failed, and a standard input that was forgotten: not a content.
fn from_input(target: &mut dyn Target, bearer: &Bearer) -> Result<Written, Unwritten> {
    let mut input = Stdin { stdin: io::stdin().lock(), came: false, empty: false };
    let answer = target.write(bearer, None, Content::Stream(&mut input));
    if !input.empty {
        return taken(answer);
    }
    let message = format!(
        "standard input was empty, so nothing was written to {shown}. What a command prints is written only if it ends well \
         by: leasehold write {shown} -- CMD. To empty it on purpose: leasehold write {shown} --from /dev/null",
        shown = target.shown()
    );
    Err(Unwritten::before(Failed::new(FailKind::Usage, "empty", message)))
}

/// Standard input, of which an end without a beginning is an error.
struct Stdin {
    stdin: io::StdinLock<'static>,
    came: bool,
    empty: bool,
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stdin.read(buffer)?;
        self.came |= count > 0;
        if !self.came && !buffer.is_empty() {
            self.empty = true;
            return Err(io::Error::other("nothing came"));
        }
        Ok(count)
    }
}

/// What the command prints, if it ends well.
fn from_command(
    target: &mut dyn Target,
    bearer: &Bearer,
    command: &[OsString],
) -> Result<Written, Unwritten> {
    let mut producer = Producer::start(command).map_err(Unwritten::before)?;
    let answer = target.write(bearer, None, Content::Stream(&mut producer));
    match producer.failed(target.shown()) {
        Some(failed) => Err(Unwritten::before(failed)),
        None => taken(answer),
    }
}

/// A command whose output is read. To a target the end of it comes only after the command has ended well;
/// otherwise an error does, and a target that has not read all puts nothing in place.
struct Producer {
    child: Child,
    stdout: ChildStdout,
    name: String,
    ended: Option<ExitStatus>,
}

impl Producer {
    fn start(command: &[OsString]) -> Result<Self, Failed> {
        let system = |e: io::Error| {
            Failed::new(FailKind::Command(126), "command", format!("{e}. Nothing was written."))
        };
        let program = lookup(&command[0], std::env::var_os("PATH").as_deref()).map_err(|e| {
            Failed::new(FailKind::Command(e.exit_code()), "command", format!("{e}. Nothing was written."))
        })?;
        let piped = |command: &mut Command| {
            command.stdout(Stdio::piped());
        };
        let mut child = exec::start(&program, &command[1..], piped).map_err(system)?;
        let Some(stdout) = child.stdout.take() else {
            return Err(system(io::Error::other("its output cannot be read")));
        };
        let name = command[0].to_string_lossy().into_owned();
        Ok(Self { child, stdout, name, ended: None })
    }

    /// If it did not end well: its own exit code.
    fn failed(&self, target: &str) -> Option<Failed> {
        let status = self.ended.filter(|status| !status.success())?;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with {code}"),
            (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
        };
        let message = format!(
            "{} {how}, so nothing was written to {target}: what it had printed until then may be half of it",
            self.name
        );
        Some(Failed::new(FailKind::Command(exec::code(status)), "command", message))
    }
}

impl Read for Producer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stdout.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            self.ended = Some(status);
            if !status.success() {
                return Err(io::Error::other(format!("{} did not end well ({status})", self.name)));
            }
        }
        Ok(count)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The target wanted no more of it.
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The outcome in the words of history, for whoever asked for JSON.
fn told(shown: &str, bearer: &Bearer, result: &Result<Written, Unwritten>, out: &Out) {
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
