//! `leasehold gate RESOURCE -- CMD`: starts a command if our token is still the newest there.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::backends::file::CriticalSection;
use leasehold::backends::gate::{self, GateTarget, Gates};
use leasehold::clock;
use leasehold::core::fence::{Bearer, RefusalReason};
use leasehold::core::name::Name;
use leasehold::core::store::Failure;
use leasehold::targets::{Refused, RefusedAction, TargetError};
use leasehold_run::runner::exec;
use leasehold_run::runner::lookup::lookup;
use leasehold_run::step_server::{self, SOCKET, StepAnswer, StepRequest};

use super::step::{NOT_RUN, unheard};
use super::{by_kind, manual, run_log, target_args};
use crate::args::{Everywhere, GateArgs};
use crate::config;
use crate::exit::{FailKind, Failed};
use crate::messages::{fenced, gate as say};
use crate::out::Out;

/// A command may start.
#[derive(Default)]
struct GateEntry {
    /// The command must start before this time of the boot-time clock.
    by: Option<Duration>,
    /// The refusal, if the gate only observes.
    let_in: Option<Refused>,
    /// The lock, which the command inherits.
    inside: Option<CriticalSection>,
}

/// Runs it; the exit code is its own, or 76.
pub fn run(flags: &Everywhere, args: &GateArgs, out: &Out) -> Result<u8, Failed> {
    let bearer = target_args::enclosing("gate").map_err(|failed| failed.meaning(fenced::nothing_run()))?;
    let program = lookup(&args.command[0], std::env::var_os("PATH").as_deref())
        .map_err(|e| Failed::new(FailKind::Command(e.exit_code()), "command", say::no_command(e)))?;
    let refused = |e: std::io::Error| Failed::new(FailKind::Command(126), "command", say::no_command(e));
    let given = gate::given(&args.resource).unwrap_or(&args.resource);
    let shown = gate::url(given);
    let entry = match gate::named(&shown) {
        Some(name) => by_name(flags, &super::name(name)?, &bearer)?,
        None => by_path(given, &bearer)?,
    };
    if let Some(refused) = &entry.let_in {
        out.warn(&say::would_be_refused(target_args::would_be_refused(refused)));
    }
    // The lock is inherited: the next start waits for processes that outlive the command.
    entry.inside.as_ref().map_or(Ok(()), CriticalSection::inherited).map_err(refused)?;
    // Checked last: this process or the run may have been paused since the question.
    if entry.by.is_some_and(|by| clock::boot_time().0 >= by) {
        return Err(say::late(shown));
    }
    let mut child = exec::start(&program, &args.command[1..], |_| {}).map_err(refused)?;
    child.wait().map(exec::code).map_err(refused)
}

/// The failure of a gate. A refusal is logged.
fn refused(error: &TargetError) -> Failed {
    run_log::if_refused(error);
    target_args::failed(error)
}

fn by_path(path: &str, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let entered = GateTarget::open(path).and_then(|mut gate| gate.enter(bearer));
    let (inside, entered) = entered.map_err(|error| refused(&error))?;
    Ok(GateEntry { let_in: entered.let_in, inside: Some(inside), by: None })
}

/// Inside a run, the run asks the store: the job has no credentials. With a lease that was taken by hand, we ask it.
fn by_name(flags: &Everywhere, name: &Name, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let in_a_run = manual::supervisor().is_some_and(|(_, grant)| grant == bearer.grant);
    match in_a_run {
        true => ask(name, bearer),
        false => enter_by_hand(flags, name, bearer),
    }
}

/// Asks the run that we are in.
fn ask(name: &Name, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let target = gate::url(name.as_str());
    let not_named = || Refused {
        attempt: RefusedAction::Enter,
        reason: RefusalReason::NotSealed,
        target: target.clone(),
        lease: bearer.lease.clone(),
        token: bearer.token,
        fence: None,
    };
    let refused = |why| Err(refused(&TargetError::Refused(Box::new(why))));
    let Some(socket) = std::env::var_os(SOCKET) else { return refused(not_named()) };
    let asked = UnixStream::connect(socket).and_then(|stream| {
        step_server::send(&stream, &StepRequest::Enter { gate: name.clone(), grant: bearer.grant })?;
        // Without a limit, even if the run is paused: only the run knows whether it still has the lease.
        step_server::receive(&mut BufReader::new(&stream))
    });
    match asked.map_err(|e| unheard(&target, NOT_RUN, &e))? {
        StepAnswer::Entered { by, let_in } => Ok(GateEntry { by, let_in, inside: None }),
        StepAnswer::Barred { refused: why } => refused(why),
        StepAnswer::Unentered { failure } => Err(no_answer(&target, &failure)),
        StepAnswer::Late => Err(say::late(target)),
        StepAnswer::BadFence { fence, why } => {
            Err(target_args::failed(&TargetError::BadFence { target, fence, why }))
        }
        _ => refused(not_named()),
    }
}

/// With a lease that was taken by hand: fences the gate, too.
fn enter_by_hand(flags: &Everywhere, name: &Name, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let target = gate::url(name.as_str());
    let mut opened = super::open(flags, std::slice::from_ref(&bearer.lease))?;
    // On another store, fencing with this token would refuse the holder there.
    if !manual::holds(&bearer.lease, bearer.grant, &mut opened)? {
        let (lease, token, store) = (&bearer.lease, bearer.token, &opened.chosen.shown);
        return Err(say::not_held(lease, token, store, target));
    }
    match Gates::new(config::opener(&opened.chosen)).gate(name).enter_by_hand(bearer) {
        Ok(entered) => Ok(GateEntry { let_in: entered.let_in, ..GateEntry::default() }),
        Err(TargetError::Remote { failure, .. }) => Err(no_answer(&target, &failure)),
        Err(error) => Err(refused(&error)),
    }
}

fn no_answer(target: &str, failure: &Failure) -> Failed {
    by_kind(failure.kind, say::no_answer(target, failure.message.trim_end_matches('.')))
}

/// The gates of the store in use.
pub fn gates(flags: &Everywhere) -> Result<Gates, Failed> {
    let chosen = config::choose(flags, &config::state_dir()?)?;
    Ok(Gates::new(config::opener(&chosen)))
}
