//! `leasehold pause JOB` and `leasehold resume JOB`.

use leasehold::agenda;

use super::{name, open, store_failed};
use crate::args::{Everywhere, Pause};
use crate::exit::{self, Failed};
use crate::out::Out;

/// Pauses it, or lets it go on.
pub fn run(flags: &Everywhere, args: &Pause, paused: bool, out: &Out) -> Result<u8, Failed> {
    let job = name(&args.job)?;
    let mut opened = open(flags, &[])?;
    let agenda =
        agenda::pause(opened.store.as_mut(), &job, paused).map_err(|f| store_failed(&f, &opened.chosen))?;
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
