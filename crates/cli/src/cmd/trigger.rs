//! `leasehold trigger JOB [SLOT]`: a slot of a job of leasehold.toml, now, because a person wants it.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use jiff::Timestamp;
use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::ledger::{Alive, Amended, Amending, Entry, ItemState, Subject, retry};
use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::ledger::{alive, amend, key_of};
use leasehold::poll::{self, Timer};
use leasehold::random;
use leasehold_run::handoff::{NotBegun, SlotOutcome};
use leasehold_run::job_records;
use leasehold_run::jobs::{self, Job};
use leasehold_run::runner::signals::Signals;
use leasehold_run::schedule::Slot;
use leasehold_run::scheduler::{EndedRun, StartError, Starter};
use pollster::block_on;
use serde_json::json;

use super::{OpenedStore, daemon, item_args, open_tested, other_stores, remember_store, run_log, times};
use super::{store_failed, timing};
use crate::args::{Everywhere, TriggerArgs};
use crate::exit::{self, Failed};
use crate::messages::{plan, run::system, trigger as say};
use crate::out::Out;

/// Runs it.
pub fn run(flags: &Everywhere, args: &TriggerArgs, out: &Out) -> Result<u8, Failed> {
    let jobs = jobs::load(&daemon::path(flags))?;
    let Some(job) = jobs.iter().find(|job| job.name.as_str() == args.job) else {
        let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        return Err(plan::unknown_job(format!("{:?}", args.job), known.join(", ")));
    };
    let slot = slot(job, args.slot.as_deref(), super::now())?;
    let mut opened = open_tested(flags, &job.leases)?;
    other_stores::told_by_file(&opened)?;
    remember_store(&opened, &job.leases)?;
    timing(job.wishes, opened.store.as_ref())?;
    let subject = job.terms().subject(&slot);
    let name = item_args::shown_with_time(&subject);
    if let Some(by) = made_ready(&mut opened, job, &slot, &subject)? {
        out.note(&say::done(&name, by));
        return Ok(exit::OK);
    }
    let lease = job.leases.first().cloned();
    let wish = |log| LogRecord { item: Some(subject.clone()), lease, reason: Some("trigger".into()), ..log };
    run_log::by_person(&mut opened, LogEvent::Retry, &job.name, wish);
    let starter = Starter {
        program: std::env::current_exe().map_err(system)?,
        store: opened.chosen.url.clone(),
        store_shown: opened.chosen.shown.clone(),
        new_here: false,
        verbose: out.verbose,
        alerts: opened.alerts.clone(),
    };
    out.chat(&say::started(&name));
    let ended = followed(&starter, job, &slot)?;
    let code = code(ended.status);
    let skipped = ended.outcome == Some(SlotOutcome::NotBegun(NotBegun::Skipped));
    if skipped {
        out.note(&match recorded(&mut opened, &subject)? {
            Some(entry) if entry.state == ItemState::Ok => say::done(&name, item_args::by_whom(&entry)),
            _ => say::not_run(&name, &job.name),
        });
    }
    if out.json {
        out.object(&json!({
            "v": 1, "job": job.name.as_str(), "slot": slot.due().to_string(), "exit": code,
            "run_id": ended.run_id, "skipped": skipped,
        }));
    }
    Ok(code)
}

/// The slot that is meant.
fn slot(job: &Job, text: Option<&str>, now: Timestamp) -> Result<Slot, Failed> {
    let Some(text) = text else {
        return job.schedule.prev_at_or_before(now).ok_or_else(|| say::not_due(&job.name, &job.name));
    };
    let zone = job.schedule.zone().cloned().unwrap_or_else(times::here);
    let shown = times::typed(text, now, &zone).and_then(|shown| shown.to_zoned(zone).ok());
    let text = shown.map_or_else(|| text.to_owned(), |zoned| zoned.timestamp().to_string());
    let bad = |why: leasehold_run::schedule::SlotError| say::bad_slot(format!("{text:?}"), &job.name, why);
    let slot = job.schedule.parse_slot_id(&text).map_err(bad)?;
    if slot.due() > now {
        return Err(say::not_due(times::slot(&slot.id(), slot.due()), &job.name));
    }
    Ok(slot)
}

fn recorded(opened: &mut OpenedStore, subject: &Subject) -> Result<Option<Entry>, Failed> {
    let found = leasehold::ledger::entry(opened.store.as_mut(), subject);
    found.map_err(|failure| store_failed(&failure, &opened.chosen))
}

/// Sees to it that a run may start the slot, although it is over; or says who has done it.
fn made_ready(
    opened: &mut OpenedStore,
    job: &Job,
    slot: &Slot,
    subject: &Subject,
) -> Result<Option<String>, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let Some(job_record) = job_records::read(store, &job.name).map_err(failed)? else { return Ok(None) };
    let stored = block_on(store.read(&key_of(subject))).map_err(failed)?;
    // One that was made while the slot was being dropped means nothing.
    let stored = stored.filter(|_| !job_record.is_void(slot.number()));
    let found = stored.and_then(|s| Some((Entry::decode_of(subject, &s.body).ok()?, s.version)));
    let name = item_args::shown(subject);
    match found {
        Some((entry, _)) if entry.state == ItemState::Ok => return Ok(Some(item_args::by_whom(&entry))),
        // What was skipped or failed is run once more. If nobody knows how it ended, the run asks.
        Some((entry, version)) if matches!(entry.state, ItemState::Skipped | ItemState::Failed) => {
            let lives = alive(store, &entry.claim.lease, entry.claim.grant).map_err(failed)?;
            let next = retry(&entry, lives != Alive::No);
            if let Some(next) = next {
                match amend(store, Amending::new(version, next, random::seed())) {
                    Amended::Done(..) => {}
                    Amended::Superseded(_) => return Err(say::changed(&name, item_args::quoted(&name))),
                    Amended::Failed(failure) => return Err(failed(failure)),
                }
            }
        }
        Some(_) => {}
        // It was accounted for under this schedule, and its record may have been removed since.
        None if is_forgotten(&job_record, slot.number()) => {
            let now = super::now().as_second();
            let age = Duration::from_secs(u64::try_from(now - slot.number()).unwrap_or(0));
            if age >= job.keep {
                return Err(say::forgotten(name, HumanDuration(job.keep), &job.name));
            }
        }
        None => {}
    }
    if job_record.is_settled(slot.number()) {
        let listed = job_records::again(store, &job.name, slot.number()).map_err(failed)?;
        if listed.is_some_and(|job_record| job_record.is_settled(slot.number())) {
            return Err(say::too_many_open(&job.name));
        }
    }
    Ok(None)
}

/// Whether schedulers have accounted for a slot that has no record, and did not drop it.
fn is_forgotten(job_record: &JobRecord, at: i64) -> bool {
    at > job_record.since && job_record.is_settled(at) && !job_record.is_dropped(at)
}

/// Starts the run, passes signals on to it, and waits for its end.
fn followed(starter: &Starter, job: &Job, slot: &Slot) -> Result<EndedRun, Failed> {
    let mut signals = Signals::install().map_err(system)?;
    let timer = Timer::new().map_err(system)?;
    let mut running = starter.start(job, slot, false).map_err(|error| match error {
        StartError::Template(bad) => bad.into(),
        StartError::System(e) => system(e),
    })?;
    loop {
        if let Some(ended) = running.ended() {
            return Ok(ended);
        }
        // The end of a process is a signal, too. The timer is for those that cannot hear it.
        timer.arm(clock::boot_time().plus(Duration::from_secs(1))).map_err(system)?;
        poll::wait(&[signals.as_fd(), timer.as_fd()]).map_err(system)?;
        timer.take();
        for signal in signals.pending().forward {
            running.signal(signal);
        }
    }
}

/// As a shell would say it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
