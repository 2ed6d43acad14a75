//! `leasehold gate RESOURCE -- CMD`: a command that starts only while our token is current there.

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
use super::{by_kind, manual, target_args};
use crate::args::{Everywhere, GateArgs};
use crate::config;
use crate::exit::{FailKind, Failed};
use crate::out::Out;

/// A command may start.
#[derive(Default)]
struct GateEntry {
    /// Before this, on the boot-time clock.
    by: Option<Duration>,
    /// Only because the gate watches.
    let_in: Option<Refused>,
    /// A lock that the command keeps.
    inside: Option<CriticalSection>,
}

/// Runs it; the exit code is its own, or 76.
pub fn run(flags: &Everywhere, args: &GateArgs, out: &Out) -> Result<u8, Failed> {
    let bearer = target_args::enclosing("gate")?;
    let program = lookup(&args.command[0], std::env::var_os("PATH").as_deref()).map_err(|e| {
        Failed::new(FailKind::Command(e.exit_code()), "command", format!("{e}. Nothing was run."))
    })?;
    let given = gate::given(&args.resource).unwrap_or(&args.resource);
    let shown = gate::url(given);
    let refused =
        |e: std::io::Error| Failed::new(FailKind::Command(126), "command", format!("{e}. Nothing was run."));
    let entry = match gate::named(&shown) {
        None => by_path(given, &bearer)?,
        Some(name) => by_name(flags, &super::name(name)?, &bearer)?,
    };
    if let Some(refused) = &entry.let_in {
        out.warn(&format!("this command {}", target_args::let_in(refused)));
    }
    // What outlives the command stays inside: the next start waits for it.
    entry.inside.as_ref().map_or(Ok(()), CriticalSection::inherited).map_err(refused)?;
    // Last of all: we, or the run that answered, may have been paused since it was asked.
    if entry.by.is_some_and(|by| clock::boot_time().0 >= by) {
        return Err(late(&shown));
    }
    let mut child = exec::start(&program, &args.command[1..], |_| {}).map_err(refused)?;
    child.wait().map(exec::code).map_err(refused)
}

/// The lease may be another run's by now.
fn late(target: &str) -> Failed {
    let why = "the lease of this run may have ended while the gate was asked";
    Failed::new(
        FailKind::Refused,
        RefusalReason::Stale.word(),
        format!("start refused: {why} ({target}). The command was not started. Run the job again"),
    )
}

/// The whole path of a gate that is a lock file.
pub fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or(path.into(), |path| path.display().to_string())
}

fn by_path(path: &str, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let gate = GateTarget::open(absolute(path));
    let entered = gate.and_then(|mut gate| gate.enter(bearer));
    let (inside, entered) = entered.map_err(|error| target_args::failed(&error))?;
    Ok(GateEntry { let_in: entered.let_in, inside: Some(inside), by: None })
}

/// Inside a run the run asks the store, for its job has no credentials for it. By hand there is nobody but us.
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
    let refused = |refused| Err(target_args::failed(&TargetError::Refused(Box::new(refused))));
    let Some(socket) = std::env::var_os(SOCKET) else { return refused(not_named()) };
    let asked = UnixStream::connect(socket).and_then(|stream| {
        step_server::send(&stream, &StepRequest::Enter { gate: name.clone(), grant: bearer.grant })?;
        // However long it is paused: it alone knows whether the lease is still its own.
        step_server::receive(&mut BufReader::new(&stream))
    });
    match asked.map_err(|e| unheard(&target, NOT_RUN, &e))? {
        StepAnswer::Entered { by, let_in } => Ok(GateEntry { by, let_in, inside: None }),
        StepAnswer::Barred { refused: why } => refused(why),
        StepAnswer::Unentered { failure } => Err(unentered(&target, &failure)),
        StepAnswer::Late => Err(late(&target)),
        StepAnswer::BadFence { fence, why } => {
            Err(target_args::failed(&TargetError::BadFence { target, fence, why }))
        }
        _ => refused(not_named()),
    }
}

/// With a lease that was taken by hand: the gate is sealed for it on the way.
fn enter_by_hand(flags: &Everywhere, name: &Name, bearer: &Bearer) -> Result<GateEntry, Failed> {
    let target = gate::url(name.as_str());
    let mut opened = super::open(flags, std::slice::from_ref(&bearer.lease))?;
    // On another store this token would seal out those who hold the lease there.
    if !manual::holds(&bearer.lease, bearer.grant, &mut opened)? {
        let (lease, token, store) = (&bearer.lease, bearer.token, &opened.chosen.shown);
        return Err(Failed::new(
            FailKind::Refused,
            RefusalReason::Stale.word(),
            format!(
                "start refused: {lease} is not held with your token {token} on {store} ({target}). The command was \
                 not started. See who has it: leasehold status {lease}"
            ),
        ));
    }
    match Gates::new(config::opener(&opened.chosen)).gate(name).enter_by_hand(bearer) {
        Ok(entered) => Ok(GateEntry { let_in: entered.let_in, ..GateEntry::default() }),
        Err(TargetError::Remote { failure, .. }) => Err(unentered(&target, &failure)),
        Err(error) => Err(target_args::failed(&error)),
    }
}

/// The store did not say that the command may start.
fn unentered(target: &str, failure: &Failure) -> Failed {
    let message = failure.message.trim_end_matches('.');
    by_kind(failure.kind, format!("the store could not be asked about {target}: {message}. {NOT_RUN}"))
}

/// The gates in the store that is in use.
pub fn gates(flags: &Everywhere) -> Result<Gates, Failed> {
    let chosen = config::choose(flags, &config::state_dir()?)?;
    Ok(Gates::new(config::opener(&chosen)))
}
