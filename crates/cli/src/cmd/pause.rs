//! `leasehold pause JOB` and `leasehold resume JOB`.

use leasehold::agenda::{self, Tried};
use leasehold::clock;

use super::{daemon, name, open, store_failed};
use crate::args::{Everywhere, Pause};
use crate::exit::{self, Failed};
use crate::jobs;
use crate::out::Out;
use crate::scheduler::terms;

/// Pauses it, or lets it go on.
pub fn run(flags: &Everywhere, args: &Pause, paused: bool, out: &Out) -> Result<u8, Failed> {
    let job = name(&args.job)?;
    let mut opened = open(flags, &[])?;
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let now = i64::try_from(clock::wall().as_millis()).unwrap_or(i64::MAX);
    let ahead = agenda::clock_ahead(store).map_err(failed)?.unwrap_or(0);
    let now = (now - ahead).div_euclid(1000);
    if !paused {
        // What was due meanwhile is dropped with its count, where the file says what that was.
        let jobs = jobs::load_elsewhere(&daemon::path(flags)).unwrap_or_default();
        let is_paused = agenda::read(store, &job).map_err(failed)?.is_some_and(|a| a.paused.is_some());
        if let Some(job) = jobs.iter().find(|known| is_paused && known.name == job) {
            agenda::look(store, &terms(job), now, Tried::All).map_err(failed)?;
        }
    }
    let agenda = agenda::pause(store, &job, paused, now).map_err(failed)?;
    let Some(agenda) = agenda else {
        return Err(Failed::usage(format!(
            "no machine has loaded a job {job} on {}: pause works on the jobs of a leasehold.toml, from the first \
             `leasehold daemon` or `leasehold tick` on. See: leasehold plan",
            opened.chosen.shown
        )));
    };
    match agenda.paused {
        Some(paused) => out.note(&format!(
            "{job} is paused (by {} at {}): its slots are dropped until `leasehold resume {job}`; what runs goes on",
            paused.by, paused.at
        )),
        None => out.note(&format!("{job} goes on with what is due from now on")),
    }
    Ok(exit::OK)
}
