//! `leasehold pause JOB` and `leasehold resume JOB`.

use std::time::Duration;

use leasehold::clock;
use leasehold::clock_offset;
use leasehold::core::name::Name;
use leasehold_run::job_records::{self, Terms};
use leasehold_run::jobs::{self, Job};

use super::job_status::time;
use super::{daemon, name, open, store_failed};
use crate::args::{Everywhere, PauseArgs};
use crate::exit::{self, Failed};
use crate::out::Out;

/// Pauses it, or lets it go on.
pub fn run(flags: &Everywhere, args: &PauseArgs, paused: bool, out: &Out) -> Result<u8, Failed> {
    let job = name(&args.job)?;
    let mut opened = open(flags, &[])?;
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let now = i64::try_from(clock::wall().as_millis()).unwrap_or(i64::MAX);
    let ahead = clock_offset::clock_ahead(store).map_err(failed)?.unwrap_or(0);
    let now = (now - ahead).div_euclid(1000);
    let before = job_records::read(store, &job).map_err(failed)?;
    let wrong = before.and_then(|agenda| agenda.ahead(now, Duration::ZERO));
    let agenda = match paused {
        true => job_records::pause(store, &job),
        false => job_records::resume(store, &job, terms(flags, &job, out).as_ref(), now),
    };
    let agenda = agenda.map_err(failed)?;
    let Some(agenda) = agenda else {
        return Err(Failed::usage(format!(
            "no machine has loaded a job {job} on {}: pause and resume work on the jobs of a leasehold.toml, from the \
             first `leasehold daemon` or `leasehold tick` on. See: leasehold plan",
            opened.chosen.shown
        )));
    };
    if let Some(upto) = agenda.ahead(now, Duration::ZERO).filter(|_| !paused) {
        return Err(Failed::config(format!(
            "{job} is settled up to {}, by a clock that was wrong, and is left so: to set it back, its schedule must be \
             known ({}), and the leasehold.toml here has no such job. Say it where that file is, or with --config FILE; \
             if the file was changed since, after a `leasehold tick` there",
            time(upto),
            agenda.schedule
        )));
    }
    let back = wrong.map(|upto| {
        format!(
            " ({}, by this machine): it was settled up to {}, by a clock that was wrong",
            time(now),
            time(upto)
        )
    });
    let back = back.unwrap_or_default();
    match agenda.paused.filter(|paused| paused.until.is_none()) {
        Some(paused) => out.note(&format!(
            "{job} is paused (by {} at {}): its slots are dropped until `leasehold resume {job}`; what runs goes on",
            paused.by, paused.at
        )),
        None => out.note(&format!("{job} goes on with what is due from now on{back}")),
    }
    Ok(exit::OK)
}

/// How its slots are gone about, if the leasehold.toml here says so.
fn terms(flags: &Everywhere, job: &Name, out: &Out) -> Option<Terms> {
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_else(|bad| {
        out.warn(&bad.to_string());
        Vec::new()
    });
    jobs.iter().find(|known| known.name == *job).map(Job::terms)
}
