//! `leasehold break NAME`: stop the holder and leave the lease free; with `--take`, hold it.

use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::Alive;
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShotOutcome, OneShotVerb, describe};
use leasehold::core::record::{Hold, LeaseRecord};
use leasehold::core::session::{Granted, Within, lease_key};
use leasehold::core::timing::TimingWishes;
use leasehold::ledger::alive;
use leasehold::liveness::{self, Probe};
use leasehold::manual::{self, AcquireRequest};
use leasehold::poll::{self, Timer};
use leasehold::stores::Store;
use leasehold_run::runner::signals::Signals;
use serde_json::json;

use super::manual::{ManualClaim, holds, left, not_acquired, print, released, signals, system, take};
use super::{OpenedStore, bad_record, held_by, store_failed, unconfirmed};
use crate::args::{BreakArgs, Everywhere};
use crate::config::Chosen;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Nobody takes the request back.
const STANDS: &str = "The request stands: it stops at its next renewal";
/// Nobody has seen the old job stop.
const MAY_RUN: &str = "Its old job may still be running: only a fence at the target protects you from it";
/// Whether somebody has it by now is not looked up: it may change at any time.
const NEXT: &str = "whoever waits for it has it, or the next who asks";
/// Between two looks at the lease.
const PAUSE: Duration = Duration::from_millis(200);

/// What came of the request.
enum RevokeAnswer {
    /// The holder does not have it any more.
    Stopped,
    /// The holder did not answer before its lease ended.
    RanOut,
    /// The holder has it still.
    Holds,
}

/// Asks and waits; with `--now` waits for nobody.
pub fn run(flags: &Everywhere, args: &BreakArgs, out: &Out) -> Result<u8, Failed> {
    let lease = super::name(&args.name)?;
    let mut opened = super::open_tested(flags, std::slice::from_ref(&lease))?;
    refuse_unknown(&lease, &mut opened)?;
    // Before anybody is asked: what was asked is to be told.
    let mut signals = signals()?;
    let asked = if args.now { None } else { ask_holder(&lease, &mut opened, out)? };
    if args.take || args.now {
        return take_it(&lease, args, asked.as_ref(), opened, signals, out);
    }
    let Some((record, hold)) = asked else {
        tell(&lease, "free", None, &format!("{lease} is free"), out);
        return Ok(exit::OK);
    };
    let answer = answer(&lease, &record, &hold, args.wait, &mut opened, &mut signals)?;
    let holder = format!("{}/{} (token {})", record.holder.host, record.holder.pid, record.token);
    let (word, text, code) = match answer {
        RevokeAnswer::Stopped => {
            ("freed", format!("{holder} has stopped and gave {lease} back: {NEXT}"), exit::OK)
        }
        RevokeAnswer::RanOut => {
            let text =
                format!("{holder} did not answer, and its lease of {lease} has ended: {NEXT}. {MAY_RUN}");
            ("expired", text, exit::OK)
        }
        RevokeAnswer::Holds => ("held", format!("{lease} is still held by {holder}. {STANDS}"), exit::BUSY),
    };
    tell(&lease, word, Some(&record), &text, out);
    Ok(code)
}

fn tell(lease: &Name, word: &str, record: Option<&LeaseRecord>, text: &str, out: &Out) {
    if out.json {
        let holder = record.map(|record| format!("{}/{}", record.holder.host, record.holder.pid));
        let token = record.map(|record| record.token.get());
        out.object(&json!({
            "v": 1, "lease": lease.as_str(), "outcome": word, "holder": holder, "token": token,
        }));
    }
    out.note(text);
}

/// Waits until the holder has given the lease back, or does not have it any more.
fn answer(
    lease: &Name,
    record: &LeaseRecord,
    hold: &Hold,
    at_most: Option<Duration>,
    opened: &mut OpenedStore,
    signals: &mut Signals,
) -> Result<RevokeAnswer, Failed> {
    let timer = Timer::new().map_err(|e| system(&e))?;
    let end = clock::boot_time().plus(at_most.unwrap_or_else(|| at_the_latest(hold, opened.store.as_ref())));
    loop {
        let lives = alive(opened.store.as_mut(), lease, hold.grant);
        let lives = lives.map_err(|failure| {
            store_failed(&failure, &opened.chosen).meaning(format!("The holder was asked to stop. {STANDS}"))
        })?;
        if lives == Alive::No {
            let ran_out = holds(lease, hold.grant, opened)?;
            return Ok(if ran_out { RevokeAnswer::RanOut } else { RevokeAnswer::Stopped });
        }
        // Nothing of its run is left on this machine: the next run here gets the lease.
        let lock = hold.lock.as_deref().zip(opened.store.facts().lock_dir);
        let probed = lock.map(|(lock, dir)| liveness::probe(&dir, hold.grant, &record.holder.run, lock));
        if probed == Some(Probe::Gone) {
            return Ok(RevokeAnswer::Stopped);
        }
        let now = clock::boot_time();
        if now >= end {
            // A store without a clock tells no more than that nobody has renewed it for all of its time.
            let silent = lives == Alive::Perhaps && at_most.is_none();
            return Ok(if silent { RevokeAnswer::RanOut } else { RevokeAnswer::Holds });
        }
        let waited = timer.arm(now.plus(PAUSE).min(end));
        waited.and_then(|()| poll::wait(&[timer.as_fd(), signals.as_fd()])).map_err(|e| system(&e))?;
        timer.take();
        if let Some(signal) = signals.pending().forward.first() {
            let code = u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX);
            let message = format!("interrupted. The holder was asked to stop. {STANDS}");
            return Err(Failed::new(FailKind::Interrupted(code), "interrupted", message));
        }
    }
}

/// A little longer than the lease can last, for the look that finds it expired.
fn at_the_latest(hold: &Hold, store: &dyn Store) -> Duration {
    hold.ttl + Duration::from_secs(2) + store.facts().resolution * 2
}

/// Acquires the lease after the holder, or with `--now` in its place.
fn take_it(
    lease: &Name,
    args: &BreakArgs,
    asked: Option<&(LeaseRecord, Hold)>,
    opened: OpenedStore,
    signals: Signals,
    out: &Out,
) -> Result<u8, Failed> {
    let wishes = TimingWishes { ttl: Some(args.ttl), ..TimingWishes::default() };
    let timing = super::timing(wishes, opened.store.as_ref())?;
    super::enrol(&opened, std::slice::from_ref(lease))?;
    let latest = asked.map(|(_, hold)| at_the_latest(hold, opened.store.as_ref()));
    let wait = args.wait.or(latest).unwrap_or_default();
    // Its own run ends it while it waits, as it asked for.
    let within = Within::default();
    let ask =
        AcquireRequest { lease: lease.clone(), job: lease.clone(), timing, wait, force: args.now, within };
    let taken = take(&ask, opened, signals, out).map_err(|failed| {
        match asked.is_some() && matches!(failed.kind, FailKind::Interrupted(_)) {
            true => failed.meaning(format!("The holder was asked to stop. {STANDS}")),
            false => failed,
        }
    });
    match taken? {
        ManualClaim::Granted(granted, chosen) if args.take => yours(&granted, args.now, &chosen, out),
        ManualClaim::Granted(granted, chosen) => free_at_once(&granted, &chosen, out),
        ManualClaim::Busy(busy) => {
            if out.json {
                out.object(&not_acquired(&busy));
            }
            let stands = if asked.is_some() { format!(". {STANDS}") } else { String::new() };
            out.note(&format!("{lease} is still {}{stands}", held_by(&busy)));
            Ok(exit::BUSY)
        }
    }
}

fn yours(granted: &Granted, now: bool, chosen: &Chosen, out: &Out) -> Result<u8, Failed> {
    let Granted { lease, token, .. } = granted;
    print(granted, false, chosen, out)?;
    if now {
        out.warn(&format!("{lease} was taken at once. {MAY_RUN}"));
    }
    out.note(&format!(
        "{lease} is yours: nobody else can run {lease} until you release it (\"leasehold release {lease} \
         --token {token}\") or {} have passed",
        HumanDuration(left(granted))
    ));
    Ok(exit::OK)
}

/// With `--now` and without `--take`.
fn free_at_once(granted: &Granted, chosen: &Chosen, out: &Out) -> Result<u8, Failed> {
    let lease = &granted.lease;
    if !released(granted, chosen) {
        return Err(Failed::new(
            FailKind::Unreachable,
            "store_unreachable",
            format!(
                "{lease} was taken from its holder, and could not be given back: it is free in {}. {MAY_RUN}",
                HumanDuration(left(granted))
            ),
        ));
    }
    tell(
        lease,
        "freed",
        None,
        &format!("{lease} was taken from its holder and given back: {NEXT}. {MAY_RUN}"),
        out,
    );
    Ok(exit::OK)
}

/// A mistyped name must not become a lease.
fn refuse_unknown(lease: &Name, opened: &mut OpenedStore) -> Result<(), Failed> {
    let found = pollster::block_on(opened.store.read(&lease_key(lease)));
    match found.map_err(|failure| store_failed(&failure, &opened.chosen))? {
        Some(_) => Ok(()),
        None if opened.memory.recall(lease).seen.is_some() => Ok(()),
        None => Err(Failed::usage(format!(
            "no such lease: {lease} on {}. Nothing was changed. See: leasehold status",
            opened.chosen.shown
        ))),
    }
}

/// Asks the holder to stop; who that is, if there is one.
fn ask_holder(
    lease: &Name,
    opened: &mut OpenedStore,
    out: &Out,
) -> Result<Option<(LeaseRecord, Hold)>, Failed> {
    match manual::errand(OneShotVerb::Revoke, lease, opened.store.as_mut()) {
        OneShotOutcome::Done { record, .. } | OneShotOutcome::Revoked(record) => {
            let Some(hold) = record.hold.clone() else { return Ok(None) };
            let holder = &record.holder;
            out.note(&format!(
                "asked {}/{} (token {}) to stop; it has until its lease ends, at most {}",
                holder.host,
                holder.pid,
                record.token,
                HumanDuration(hold.ttl)
            ));
            Ok(Some((record, hold)))
        }
        OneShotOutcome::Idle(found) | OneShotOutcome::NotOurs(found) => {
            out.note(&format!("nobody to ask: {}", describe(&found)));
            Ok(None)
        }
        OneShotOutcome::Bad(bad) => Err(bad_record(lease, &bad, &opened.chosen.shown)),
        OneShotOutcome::Failed { failure, sent } => Err(unconfirmed(&failure, sent, lease, &opened.chosen)),
    }
}
