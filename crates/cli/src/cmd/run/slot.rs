//! `leasehold run-slot`: the run of a slot that a scheduler describes.

use std::ffi::OsStr;

use leasehold::core::ledger::{Amended, IfUnknown, Subject, unknown_slot};
use leasehold::core::name::Name;
use leasehold::core::timing::TimingWishes;
use leasehold::ledger::Item;
use leasehold::run_fences::Fences;
use leasehold_run::handoff::{
    self, Description, NotBegun, ReceiveError, RunOutcome, SlotOutcome, SlotRecord, VERSION,
};
use leasehold_run::runner::run::{RunResult, RunSpec};

use super::{ReportOptions, carry_out, find, on_store};
use crate::args::{Color, Everywhere, ReportArgs};
use crate::cmd::{self, target_args, timing, within};
use crate::exit::Failed;
use crate::messages::run as say;
use crate::out::Out;

/// Receives the description, runs the slot, and sends the outcome back.
pub fn slot() -> Result<u8, Failed> {
    let (described, reply) = handoff::receive().map_err(|error| match error {
        ReceiveError::NoScheduler => say::no_scheduler(error),
        ReceiveError::Unreadable(_) => say::unreadable_slot(error),
        ReceiveError::System(_) => say::unreceived_slot(error),
    })?;
    let flags = Everywhere {
        store: Some(described.store.clone()),
        config: None,
        json: false,
        quiet: !described.verbose,
        verbose: described.verbose,
        color: Color::Auto,
    };
    let asked = ReportOptions {
        lease: described.leases.first().map_or("", |first| first.lease.as_str()),
        job: Some(described.job.as_str()),
        skip_exit: 0,
        reports: &ReportArgs::default(),
        new_here: described.new_here,
        notify: described.notify.clone(),
    };
    let mut started = None;
    let result =
        carry_out(&asked, prepare(&flags, &described), &Out::new(&flags), |ran| started = recorded(ran));
    let slot = started.unwrap_or_else(|| SlotOutcome::NotBegun(not_begun(&result)));
    reply.send(&RunOutcome { version: VERSION, run_id: described.run_id, slot });
    result
}

/// The record of a slot that the run started.
fn recorded(ran: &RunResult) -> Option<SlotOutcome> {
    let opened = ran.told.opened.as_ref().filter(|opened| opened.item.is_begun())?;
    let recorded = ran.told.recorded.as_ref().or(opened.recorded.as_ref());
    Some(SlotOutcome::Begun(match recorded.and_then(|recorded| recorded.item.as_ref()) {
        Some(Amended::Done(entry, _)) => Some(SlotRecord::from(entry)),
        _ => None,
    }))
}

/// Why the run did not start its slot.
fn not_begun(result: &Result<u8, Failed>) -> NotBegun {
    result.as_ref().map_or_else(|failed| failed.kind.not_begun(), |_| NotBegun::Skipped)
}

/// Checks everything that can be wrong before a lease is asked for.
fn prepare(
    flags: &Everywhere,
    described: &Description,
) -> Result<(RunSpec, Fences, cmd::OpenedStore), Failed> {
    let leases: Vec<Name> = described.leases.iter().map(|each| each.lease.clone()).collect();
    let (Some(lease), Some(command)) = (leases.first(), described.command.first()) else {
        return Err(say::empty_slot());
    };
    // PATH of the command, not of this process.
    let own = described.env.get("PATH").map(Into::into);
    let path = own.or_else(|| std::env::var_os("PATH"));
    let program = find(OsStr::new(command), path.as_deref(), lease, || None)?;
    let fences = target_args::fences_of(&leases, |lease, gates| {
        let of_lease = described.leases.iter().filter(|each| each.lease == *lease);
        of_lease.flat_map(|each| &each.targets).map(|url| target_args::opened(url, flags, gates)).collect()
    })?;
    let item = |subject, if_unknown| Item { subject, if_unknown, attempts: described.attempts, keep: None };
    let slot = Subject::Slot { job: described.job.clone(), at: described.at, id: described.slot.clone() };
    let key = described.key.clone().map(Subject::Key);
    let if_unknown = if described.retry { IfUnknown::Retry } else { IfUnknown::Refuse };
    let wishes = TimingWishes { ttl: described.ttl, heartbeat: described.heartbeat, grace: described.grace };
    let prepared = on_store(flags, fences, &leases.clone(), |store| {
        let (timing, job, run_id) = (timing(wishes, store)?, described.job.clone(), described.run_id.clone());
        let args = described.command[1..].iter().map(Into::into).collect();
        Ok(RunSpec {
            env: described.env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            item: Some(item(slot, unknown_slot(described.retry))),
            key: key.map(|key| item(key, if_unknown)),
            tail: true,
            wait: described.wait,
            within: within(),
            max_run: described.max_run,
            ..RunSpec::new(leases, job, run_id, timing, program, args)
        })
    });
    // The scheduler says who is told, not the directory of the job.
    prepared.map(|(spec, fences, opened)| {
        let alerts = described.notify.alerts.clone();
        (spec, fences, cmd::OpenedStore { alerts, ..opened })
    })
}
