//! `leasehold pause JOB` and `leasehold resume JOB`.

use std::time::Duration;

use leasehold::clock;
use leasehold::clock_offset;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold_run::job_records::{self, Terms};
use leasehold_run::jobs::{self, Job};

use super::times::{local_second, local_text};
use super::{daemon, name, open, run_log, store_failed};
use crate::args::{Everywhere, PauseArgs};
use crate::exit::{self, Failed};
use crate::messages::pause as say;
use crate::out::Out;

/// What to do with the job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Pause,
    Resume,
}

/// Pauses or resumes it.
pub fn run(flags: &Everywhere, args: &PauseArgs, verb: Verb, out: &Out) -> Result<u8, Failed> {
    let job = name(&args.job)?;
    let mut opened = open(flags, &[])?;
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let now = i64::try_from(clock::wall().as_millis()).unwrap_or(i64::MAX);
    let ahead = clock_offset::clock_ahead(store).map_err(failed)?.unwrap_or(0);
    let now = (now - ahead).div_euclid(1000);
    let before = job_records::read(store, &job).map_err(failed)?;
    let wrong = before.and_then(|job_record| job_record.ahead(now, Duration::ZERO));
    let job_record = match verb {
        Verb::Pause => job_records::pause(store, &job),
        Verb::Resume => job_records::resume(store, &job, terms(flags, &job, out).as_ref(), now),
    };
    let job_record = job_record.map_err(failed)?;
    let Some(job_record) = job_record else { return Err(say::not_loaded(job, &chosen.shown)) };
    if let Some(upto) = job_record.ahead(now, Duration::ZERO).filter(|_| verb == Verb::Resume) {
        return Err(say::not_set_back(job, local_second(upto), job_record.schedule));
    }
    let back = wrong.map(|upto| say::set_back(local_second(now), local_second(upto))).unwrap_or_default();
    let event = match verb {
        Verb::Pause => LogEvent::Pause,
        Verb::Resume => LogEvent::Resume,
    };
    run_log::by_person(&mut opened, event, &job, |log| log);
    match job_record.paused.filter(|paused| paused.until.is_none()) {
        Some(paused) => out.note(&say::paused(job, paused.by, local_text(&paused.at))),
        None => out.note(&say::resumed(job, back)),
    }
    Ok(exit::OK)
}

/// What the leasehold.toml here says of its slots, if it has the job.
fn terms(flags: &Everywhere, job: &Name, out: &Out) -> Option<Terms> {
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_else(|bad| {
        out.warn(&bad.to_string());
        Vec::new()
    });
    jobs.iter().find(|known| known.name == *job).map(Job::terms)
}
