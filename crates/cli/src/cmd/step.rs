//! `leasehold step NAME -- CMD`: a part of a run with a key or a slot, which is not done twice.

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
use crate::messages::step as say;
use crate::messages::step::NOT_RECORDED;
pub use crate::messages::step::NOT_RUN;
use crate::out::Out;

/// Runs the step, unless it is done.
pub fn run(args: &StepArgs, out: &Out) -> Result<u8, Failed> {
    let name = &args.name;
    let (Some(socket), Some(run)) =
        (std::env::var_os(SOCKET), Enclosing::from_env(|name| std::env::var(name).ok()))
    else {
        return Err(say::no_item(name));
    };
    let program = lookup(&args.command[0], std::env::var_os("PATH").as_deref())
        .map_err(|e| Failed::new(FailKind::Command(e.exit_code()), "command", say::no_command(&e)))?;
    let of = say::the_step(name);
    let early = |e| unheard(&of, NOT_RUN, &e);
    let stream = UnixStream::connect(socket).map_err(early)?;
    let mut lines = BufReader::new(&stream);
    // A script may have taken another lease since (`acquire --eval`): the grant of the run is in another variable.
    let grant = manual::supervisor().map_or(run.grant, |(_, grant)| grant);
    step_server::send(&stream, &StepRequest::Begin { step: name.clone(), grant }).map_err(early)?;
    match step_server::receive(&mut lines).map_err(early)? {
        StepAnswer::Begin => {}
        StepAnswer::Done { token, output } => {
            // A reader that went away needs no more.
            let lost = if args.keep_output && output.is_none() { say::no_output() } else { String::new() };
            let _ = output.map(|output| std::io::stdout().write_all(output.as_bytes()));
            out.note(&say::skipped(name, token, lost));
            return Ok(exit::OK);
        }
        StepAnswer::Busy => return Err(say::busy(name)),
        StepAnswer::Full => return Err(say::full(name)),
        StepAnswer::BadName => {
            return Err(say::bad_name(format!("{name:?}"), STEP_NAME_MAX, name.len()));
        }
        StepAnswer::NoItem => return Err(say::no_item(name)),
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
                out.warn(&say::no_room_for_output(name));
            }
            Ok(exit::OK)
        }
        other => Err(refused(name, NOT_RECORDED, other)),
    }
}

/// The run does not answer; `means`: what that means for the command.
pub fn unheard(what: &str, means: &str, e: &std::io::Error) -> Failed {
    match e.kind() {
        ErrorKind::NotFound
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => say::over(what, means),
        _ => say::no_answer(what, e, means),
    }
}

fn refused(name: &str, means: &str, answer: StepAnswer) -> Failed {
    match answer {
        StepAnswer::Failed { message } => say::not_recorded(name, message.trim_end_matches('.')),
        _ => say::overtaken(name, means),
    }
}

/// Scripts redirect low numbers by hand (`exec 3>…`, `flock 9`).
const CONNECTION_FD: i32 = 100;

/// The command inherits the connection: if we are killed, the run sees that the step still runs.
fn inherited(stream: &UnixStream) -> std::io::Result<Option<OwnedFd>> {
    let high = fcntl_dupfd_cloexec(stream, CONNECTION_FD).ok();
    // Few descriptors are allowed: the connection keeps its number.
    fcntl_setfd(high.as_ref().map_or(stream.as_fd(), AsFd::as_fd), FdFlags::empty())?;
    Ok(high)
}

/// The command failed. Processes that it left behind may hold the connection too, so the run is told at once; when it
/// has closed its end, the step can start again.
fn given_up(mut stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0]));
}

/// Its exit code, and what it printed if that is to be kept.
fn execute(args: &StepArgs, program: &Program) -> Result<(u8, Option<Vec<u8>>), Failed> {
    let failed = |e: std::io::Error| Failed::new(FailKind::Command(126), "command", say::not_executed(&e));
    let prepare = |command: &mut Command| {
        command.env("LEASEHOLD_STEP", &args.name);
        // The other side tells steps apart by their keys.
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

/// As text, if it can be kept. The step is recorded as done in any case.
fn kept(printed: Vec<u8>, name: &str, out: &Out) -> Option<String> {
    let text = String::from_utf8(printed).ok().filter(|text| text.len() <= OUTPUT_MAX);
    if text.is_none() {
        out.warn(&say::output_not_kept(name, OUTPUT_MAX));
    }
    text
}

/// Prints what the command prints as it comes, and gives it back.
fn passed_on(mut from: std::process::ChildStdout) -> std::io::Result<Vec<u8>> {
    let (mut all, mut part, mut stdout) = (Vec::new(), [0; 4096], std::io::stdout());
    loop {
        match from.read(&mut part)? {
            0 => return Ok(all),
            n => {
                let _ = stdout.write_all(&part[..n]).and_then(|()| stdout.flush());
                // One byte more than is kept shows that it is too much.
                all.extend(part[..n].iter().take((OUTPUT_MAX + 1).saturating_sub(all.len())));
            }
        }
    }
}
