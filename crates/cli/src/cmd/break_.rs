//! `leasehold break NAME`: stop the holder and leave the lease free; with `--take`, hold it.

use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShotOutcome, OneShotVerb, describe, has_ended, latest_end};
use leasehold::core::record::{Hold, LeaseRecord};
use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::core::session::{Granted, Within, lease_key};
use leasehold::core::timing::TimingWishes;
use leasehold::ledger::alive;
use leasehold::liveness::{self, Probe};
use leasehold::manual::{self, AcquireRequest};
use leasehold::poll::{self, Timer};
use leasehold_run::runner::signals::Signals;
use serde_json::json;

use super::manual::{ManualClaim, holds, left, not_acquired, print, released, signals, take};
use super::{OpenedStore, bad_record, held_by, run_log, store_failed, unconfirmed};
use crate::args::{BreakArgs, Everywhere};
use crate::config::Chosen;
use crate::exit::{self, FailKind, Failed};
use crate::messages::{break_lease as say, run::system};
use crate::out::Out;

/// Between two looks at the lease.
const PAUSE: Duration = Duration::from_millis(200);

/// The outcome of the request to stop.
enum RevokeAnswer {
    /// The holder stopped.
    Stopped,
    /// The holder did not answer, and its lease expired.
    Expired,
    /// The holder still has the lease.
    Holds,
}

/// Asks the holder to stop, and waits for it; with `--now` it does neither.
pub fn run(flags: &Everywhere, args: &BreakArgs, out: &Out) -> Result<u8, Failed> {
    let lease = super::name(&args.name)?;
    let mut opened = super::open_tested(flags, std::slice::from_ref(&lease))?;
    refuse_unknown(&lease, &mut opened)?;
    // Before the holder is asked: then a signal must not end us without a word about it.
    let mut signals = signals()?;
    let asked = if args.now { None } else { ask_holder(&lease, &mut opened, out)? };
    if args.take || args.now {
        return take_it(flags, &lease, args, asked.as_ref(), opened, signals, out);
    }
    let Some((record, hold)) = asked else {
        tell(&lease, "free", None, &say::free(&lease), out);
        return Ok(exit::OK);
    };
    let answer = answer(&lease, &record, &hold, args.wait, &mut opened, &mut signals)?;
    let (holder, token) = (&record.holder, record.token);
    let (word, text, code) = match answer {
        RevokeAnswer::Stopped => ("freed", say::stopped(&lease, holder, token), exit::OK),
        RevokeAnswer::Expired => ("expired", say::expired(&lease, holder, token, say::old_job()), exit::OK),
        RevokeAnswer::Holds => ("held", say::still_held(&lease, holder, token, say::request()), exit::BUSY),
    };
    tell(&lease, word, Some(&record), &text, out);
    Ok(code)
}

fn tell(lease: &Name, word: &str, record: Option<&LeaseRecord>, text: &str, out: &Out) {
    if out.json {
        let holder = record.map(|record| record.holder.to_string());
        let token = record.map(|record| record.token.get());
        out.object(&json!({
            "v": 1, "lease": lease.as_str(), "outcome": word, "holder": holder, "token": token,
        }));
    }
    out.note(text);
}

/// Waits until the holder has stopped or lost the lease; at most for the given time, or until the lease must have ended.
fn answer(
    lease: &Name,
    record: &LeaseRecord,
    hold: &Hold,
    at_most: Option<Duration>,
    opened: &mut OpenedStore,
    signals: &mut Signals,
) -> Result<RevokeAnswer, Failed> {
    let timer = Timer::new().map_err(system)?;
    let patience = at_most.unwrap_or_else(|| latest_end(hold.ttl, opened.store.facts().resolution));
    let end = clock::boot_time().plus(patience);
    loop {
        let alive = alive(opened.store.as_mut(), lease, hold.grant);
        let alive =
            alive.map_err(|failure| store_failed(&failure, &opened.chosen).meaning(say::holder_asked()))?;
        if has_ended(alive, false) {
            // A holder that stops releases the record. If the record still names the holder, its lease expired.
            let expired = holds(lease, hold.grant, opened)?;
            return Ok(if expired { RevokeAnswer::Expired } else { RevokeAnswer::Stopped });
        }
        // No process of its run is left on this machine: the next run here gets the lease.
        let lock = hold.lock.as_deref().zip(opened.store.facts().lock_dir);
        let probed = lock.map(|(lock, dir)| liveness::probe(&dir, hold.grant, &record.holder.run, lock));
        if probed == Some(Probe::Gone) {
            return Ok(RevokeAnswer::Stopped);
        }
        let now = clock::boot_time();
        if now >= end {
            let expired = has_ended(alive, at_most.is_none());
            return Ok(if expired { RevokeAnswer::Expired } else { RevokeAnswer::Holds });
        }
        let waited = timer.arm(now.plus(PAUSE).min(end));
        waited.and_then(|()| poll::wait(&[timer.as_fd(), signals.as_fd()])).map_err(system)?;
        timer.take();
        if let Some(signal) = signals.pending().forward.first() {
            let code = u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX);
            let told = say::interrupted(say::holder_asked());
            return Err(Failed::new(FailKind::Interrupted(code), "interrupted", told));
        }
    }
}

/// Acquires the lease after the holder, or with `--now` in its place.
fn take_it(
    flags: &Everywhere,
    lease: &Name,
    args: &BreakArgs,
    asked: Option<&(LeaseRecord, Hold)>,
    opened: OpenedStore,
    signals: Signals,
    out: &Out,
) -> Result<u8, Failed> {
    let wishes = TimingWishes { ttl: Some(args.ttl), ..TimingWishes::default() };
    let timing = super::timing(wishes, opened.store.as_ref())?;
    super::remember_store(&opened, std::slice::from_ref(lease))?;
    let resolution = opened.store.facts().resolution;
    let latest = asked.map(|(_, hold)| latest_end(hold.ttl, resolution));
    let wait = args.wait.or(latest).unwrap_or_default();
    // Broken from inside its own run: that run ends this wait, as it was asked to.
    let within = Within::default();
    let ask =
        AcquireRequest { lease: lease.clone(), job: lease.clone(), timing, wait, force: args.now, within };
    let taken = take(&ask, opened, signals, out).map_err(|failed| {
        match asked.is_some() && matches!(failed.kind, FailKind::Interrupted(_)) {
            true => failed.meaning(say::holder_asked()),
            false => failed,
        }
    });
    let taken = taken?;
    if let (true, ManualClaim::Granted(granted, chosen)) = (args.now, &taken) {
        let log = LogRecord {
            said: run_log::who(),
            lease: Some(lease.clone()),
            token: Some(granted.token),
            ..run_log::record(LogEvent::Break, lease)
        };
        run_log::on(flags, chosen, &log);
    }
    match taken {
        ManualClaim::Granted(granted, chosen) if args.take => yours(&granted, args.now, &chosen, out),
        ManualClaim::Granted(granted, chosen) => free_at_once(&granted, &chosen, out),
        ManualClaim::Busy(busy) => {
            if out.json {
                out.object(&not_acquired(&busy));
            }
            out.note(&match asked {
                Some(_) => say::still_and_asked(lease, held_by(&busy), say::request()),
                None => say::still(lease, held_by(&busy)),
            });
            Ok(exit::BUSY)
        }
    }
}

fn yours(granted: &Granted, now: bool, chosen: &Chosen, out: &Out) -> Result<u8, Failed> {
    let Granted { lease, token, .. } = granted;
    print(granted, false, chosen, out)?;
    if now {
        out.warn(&say::taken_at_once(lease, say::old_job()));
    }
    out.note(&say::yours(lease, token, HumanDuration(left(granted))));
    Ok(exit::OK)
}

/// With `--now` and without `--take`.
fn free_at_once(granted: &Granted, chosen: &Chosen, out: &Out) -> Result<u8, Failed> {
    let lease = &granted.lease;
    if !released(granted, chosen) {
        return Err(say::not_released(lease, HumanDuration(left(granted)), say::old_job()));
    }
    tell(lease, "freed", None, &say::released(lease, say::old_job()), out);
    Ok(exit::OK)
}

/// A mistyped name must not become a lease.
fn refuse_unknown(lease: &Name, opened: &mut OpenedStore) -> Result<(), Failed> {
    let found = pollster::block_on(opened.store.read(&lease_key(lease)));
    match found.map_err(|failure| store_failed(&failure, &opened.chosen))? {
        Some(_) => Ok(()),
        None if opened.memory.recall(lease).seen.is_some() => Ok(()),
        None => Err(say::unknown(lease, &opened.chosen.shown)),
    }
}

/// Asks the holder to stop, if there is one.
fn ask_holder(
    lease: &Name,
    opened: &mut OpenedStore,
    out: &Out,
) -> Result<Option<(LeaseRecord, Hold)>, Failed> {
    match manual::one_shot(OneShotVerb::Revoke, lease, opened.store.as_mut()) {
        OneShotOutcome::Done { record, .. } | OneShotOutcome::Revoked(record) => {
            let Some(hold) = record.hold.clone() else { return Ok(None) };
            out.note(&say::asked(&record.holder, record.token, HumanDuration(hold.ttl)));
            let job = Name::new(&record.holder.job).unwrap_or_else(|_| lease.clone());
            let token = Some(record.token);
            run_log::by_person(opened, LogEvent::Break, &job, |log| LogRecord {
                lease: Some(lease.clone()),
                token,
                ..log
            });
            Ok(Some((record, hold)))
        }
        OneShotOutcome::Idle(found) | OneShotOutcome::NotOurs(found) => {
            out.note(&say::nobody(describe(&found)));
            Ok(None)
        }
        OneShotOutcome::Bad(bad) => Err(bad_record(lease, &bad, &opened.chosen.shown)),
        OneShotOutcome::Failed { failure, sent } => Err(unconfirmed(&failure, sent, lease, &opened.chosen)),
    }
}
