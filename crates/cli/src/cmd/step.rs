//! `leasehold step NAME -- CMD`: inside a run with a key or a slot, a part of it that is not done twice.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use leasehold::core::ledger::STEP_NAME_MAX;
use leasehold::host::Enclosing;
use leasehold_run::runner::exec;
use leasehold_run::runner::lookup::{Program, lookup};
use leasehold_run::step_server::{self, OUTPUT_MAX, SOCKET, StepAnswer, StepRequest};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use super::manual;
use crate::args::StepArgs;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Does it, unless it is done.
pub fn run(args: &StepArgs, out: &Out) -> Result<u8, Failed> {
    let name = &args.name;
    let (Some(socket), Some(run)) =
        (std::env::var_os(SOCKET), Enclosing::from_env(|name| std::env::var(name).ok()))
    else {
        return Err(no_item(name));
    };
    let program = lookup(&args.command[0], std::env::var_os("PATH").as_deref()).map_err(|e| {
        Failed::new(FailKind::Command(e.exit_code()), "command", format!("{e}. Nothing was run."))
    })?;
    let of = format!("step {name}");
    let early = |e| unheard(&of, NOT_RUN, &e);
    let stream = UnixStream::connect(socket).map_err(early)?;
    let mut lines = BufReader::new(&stream);
    // A script may have taken another lease since (`acquire --eval`): the run says who it is in a variable of its own.
    let grant = manual::supervisor().map_or(run.grant, |(_, grant)| grant);
    step_server::send(&stream, &StepRequest::Begin { step: name.clone(), grant }).map_err(early)?;
    match step_server::receive(&mut lines).map_err(early)? {
        StepAnswer::Begin => {}
        StepAnswer::Done { token, output } => {
            // A reader that went away has seen enough.
            let lost =
                if args.keep_output && output.is_none() { "; what it printed was not kept" } else { "" };
            let _ = output.map(|output| std::io::stdout().write_all(output.as_bytes()));
            out.note(&format!("skipped step {name}: done under token {token}{lost}"));
            return Ok(exit::OK);
        }
        StepAnswer::Busy => {
            let why = "another process of this run is at it. Nothing was run";
            return Err(Failed::usage(format!("step {name}: {why}")));
        }
        StepAnswer::Full => {
            let why = "the record of this item is full: it could not be recorded as done. Nothing was run. Keep less of \
                       what its steps print, or make several items of it";
            return Err(Failed::new(FailKind::Config, "full", format!("step {name}: {why}")));
        }
        StepAnswer::BadName => {
            let (bytes, most) = (name.len(), STEP_NAME_MAX);
            let why = format!("a step has a name of 1 to {most} bytes and this one has {bytes}");
            return Err(Failed::usage(format!("step {name:?}: {why}. {NOT_RUN}")));
        }
        StepAnswer::NoItem => return Err(no_item(name)),
        other => return Err(refused(name, NOT_RUN, other)),
    }
    let _held = inherited(&stream).map_err(early)?;
    let (code, printed) = execute(args, &program)?;
    if code != 0 {
        given_up(&stream);
        return Ok(code);
    }
    let output = printed.and_then(|printed| kept(printed, name, out));
    let late = |e| unheard(&of, NOT_RECORDED, &e);
    step_server::send(&stream, &StepRequest::Done { output }).map_err(late)?;
    match step_server::receive(&mut lines).map_err(late)? {
        StepAnswer::Recorded { left_out } => {
            if left_out {
                let why = "the record of its item is nearly full";
                out.warn(&format!("step {name} is recorded as done, but not what it printed: {why}"));
            }
            Ok(exit::OK)
        }
        other => Err(refused(name, NOT_RECORDED, other)),
    }
}

fn no_item(name: &str) -> Failed {
    Failed::usage(format!(
        "there is no item to do the step {name} of. Nothing was run. `leasehold step` works inside a run with a \
         key or a slot: leasehold once KEY -- sh -c 'leasehold step {name} -- …'"
    ))
}

pub const NOT_RUN: &str = "Nothing was run";
const NOT_RECORDED: &str = "It is done, and that is not recorded";

/// The run does not answer.
pub fn unheard(of: &str, what: &str, e: &std::io::Error) -> Failed {
    match e.kind() {
        ErrorKind::NotFound
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => superseded(of, "the run it belongs to is over", what),
        _ => {
            let message = format!("{of}: the run could not be asked: {e}. {what}");
            Failed::new(FailKind::Unreachable, "supervisor", message)
        }
    }
}

fn refused(name: &str, what: &str, answer: StepAnswer) -> Failed {
    match answer {
        StepAnswer::Failed { message } => {
            let message = message.trim_end_matches('.');
            let what = format!(
                "step {name} is done, but that could not be recorded: {message}. It is recorded with the run's next \
                 step or its end; if that fails too, a retry does it again"
            );
            Failed::new(FailKind::Unreachable, "not_recorded", what)
        }
        _ => superseded(&format!("step {name}"), "a later run has gone over this item", what),
    }
}

fn superseded(of: &str, why: &str, what: &str) -> Failed {
    let message = format!("{of} refused: {why}. {what}");
    Failed::new(FailKind::Refused, "refused", message)
}

/// Keep clear of the low numbers that scripts redirect by hand (`exec 3>…`, `flock 9`).
const CONNECTION_FD: i32 = 100;

/// The command gets the connection: if we are killed, the run sees that somebody is still at the step.
fn inherited(stream: &UnixStream) -> std::io::Result<Option<OwnedFd>> {
    let high = fcntl_dupfd_cloexec(stream, CONNECTION_FD).ok();
    // Few descriptors allowed: then the number it has.
    fcntl_setfd(high.as_ref().map_or(stream.as_fd(), AsFd::as_fd), FdFlags::empty())?;
    Ok(high)
}

/// The command has ended, and the step is not done: that is so whoever else holds the connection. When the run has
/// let go of it, the step can be begun again.
fn given_up(mut stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0]));
}

/// Its exit code, and what it printed if that is to be kept.
fn execute(args: &StepArgs, program: &Program) -> Result<(u8, Option<Vec<u8>>), Failed> {
    let failed = |e: std::io::Error| {
        Failed::new(FailKind::Command(126), "command", format!("{e}. The step was not done."))
    };
    let prepare = |command: &mut Command| {
        command.env("LEASEHOLD_STEP", &args.name);
        // Each step has a key of its own for the other side.
        if let Ok(key) = std::env::var("LEASEHOLD_KEY") {
            command.env("LEASEHOLD_KEY", format!("{key}/{}", args.name));
        }
        if args.keep_output {
            command.stdout(Stdio::piped());
        }
    };
    let mut child = exec::start(program, &args.command[1..], prepare).map_err(failed)?;
    let printed = child.stdout.take().map(passed_on).transpose().map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    Ok((exec::code(status), printed))
}

/// As text, if it can be kept. That it is done counts for more: it is recorded all the same.
fn kept(printed: Vec<u8>, name: &str, out: &Out) -> Option<String> {
    let text = String::from_utf8(printed).ok().filter(|text| text.len() <= OUTPUT_MAX);
    if text.is_none() {
        let why = format!("it is more than {OUTPUT_MAX} bytes, or no text");
        out.warn(&format!("step {name} is done, but what it printed is not kept: {why}"));
    }
    text
}

/// Everything that is read, which is printed as it comes.
fn passed_on(mut from: std::process::ChildStdout) -> std::io::Result<Vec<u8>> {
    let (mut all, mut part, mut stdout) = (Vec::new(), [0; 4096], std::io::stdout());
    loop {
        match from.read(&mut part)? {
            0 => return Ok(all),
            n => {
                let _ = stdout.write_all(&part[..n]).and_then(|()| stdout.flush());
                // One more than is kept tells that it is too much.
                all.extend(part[..n].iter().take((OUTPUT_MAX + 1).saturating_sub(all.len())));
            }
        }
    }
}
