//! `leasehold pause JOB` and `leasehold resume JOB`.

use leasehold::agenda;
use leasehold::clock;

use super::{name, open, store_failed};
use crate::args::{Everywhere, Pause};
use crate::exit::{self, Failed};
use crate::out::Out;

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
    let agenda = agenda::pause(store, &job, paused, now).map_err(failed)?;
    let Some(agenda) = agenda else {
        return Err(Failed::usage(format!(
            "no machine has loaded a job {job} on {}: pause works on the jobs of a leasehold.toml, from the first \
             `leasehold daemon` or `leasehold tick` on. See: leasehold plan",
            opened.chosen.shown
        )));
    };
    match agenda.paused.filter(|paused| paused.until.is_none()) {
        Some(paused) => out.note(&format!(
            "{job} is paused (by {} at {}): its slots are dropped until `leasehold resume {job}`; what runs goes on",
            paused.by, paused.at
        )),
        None => out.note(&format!("{job} goes on with what is due from now on")),
    }
    Ok(exit::OK)
}
