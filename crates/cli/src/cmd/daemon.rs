//! `leasehold daemon` and `leasehold tick`: the schedules of leasehold.toml.

mod progress;
mod watch;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::clock;
use leasehold::core::name::Name;
use leasehold::poll::{self, ClockSet, Timer};
use leasehold::stores::Store;
use leasehold_run::jobs::{self, Job};
use leasehold_run::runner::signals::Signals;
use leasehold_run::scheduler::{Millis, Scheduler, SchedulerMode, Starter, TakeError};
use progress::{Progress, clock_failed};
use rustix::process::Signal;
use watch::Watch;

use super::{OpenedStore, open_tested, other_stores, remember_store, store_failed};
use crate::args::{Everywhere, NewHereArgs};
use crate::config::Chosen;
use crate::exit::{self, FailKind, Failed};
use crate::messages::daemon as say;
use crate::messages::run::system;
use crate::out::Out;

/// The file is read again after this long if the store did not answer, or the clock was wrong.
const READ_AGAIN_MS: Millis = 10_000;

/// The configuration that jobs are read from.
pub fn path(flags: &Everywhere) -> PathBuf {
    flags.config.clone().unwrap_or_else(|| "leasehold.toml".into())
}

/// Stays up and starts the slots that are due.
pub fn daemon(flags: &Everywhere, new_here: &NewHereArgs, out: &Out) -> Result<u8, Failed> {
    let path = path(flags);
    // A reader of stderr that does not read must not stop jobs from being started.
    let out = &out.hurried();
    let mut signals = hearing()?;
    let (timer, set) = (Timer::new().map_err(system)?, ClockSet::new().map_err(system)?);
    // Before the file is read: a change right after is seen.
    let mut watch = Watch::new(&path);
    let (mut scheduler, chosen) = start(flags, &path, new_here, SchedulerMode::Stays, out)?;
    // When the file is read once more.
    let mut unread: Option<Millis> = None;
    loop {
        let next = scheduler.step();
        if scheduler.draining && !scheduler.busy() {
            return Ok(exit::OK);
        }
        arm(&timer, next.into_iter().chain(unread).min(), scheduler.now())?;
        let mut fds = vec![signals.as_fd(), timer.as_fd()];
        fds.extend(set.descriptor());
        fds.extend(watch.descriptor());
        poll::wait(&fds).map_err(system)?;
        timer.take();
        if set.take() {
            scheduler.clock_was_set();
        }
        let mut reload = watch.changed() || unread.is_some_and(|at| at <= scheduler.now());
        for signal in signals.pending().forward {
            match signal {
                Signal::HUP => reload = true,
                Signal::TERM | Signal::INT if !scheduler.draining => {
                    scheduler.draining = true;
                    if scheduler.busy() {
                        out.note(&say::draining());
                    }
                }
                other => scheduler.signal(other),
            }
        }
        scheduler.reap();
        if reload && !scheduler.draining {
            let again = scheduler.now() + READ_AGAIN_MS;
            let warned = unread.is_some();
            unread = reloaded(&mut scheduler, &chosen, flags, &path, warned, out).then_some(again);
        }
    }
}

/// Runs the slots that are due, and ends.
pub fn tick(flags: &Everywhere, new_here: &NewHereArgs, out: &Out) -> Result<u8, Failed> {
    let mut signals = hearing()?;
    let timer = Timer::new().map_err(system)?;
    let (mut scheduler, _) = start(flags, &path(flags), new_here, SchedulerMode::Once, out)?;
    loop {
        let next = scheduler.step();
        if next.is_none() && !scheduler.busy() {
            return Ok(if scheduler.failed { 1 } else { exit::OK });
        }
        arm(&timer, next, scheduler.now())?;
        poll::wait(&[signals.as_fd(), timer.as_fd()]).map_err(system)?;
        timer.take();
        for signal in signals.pending().forward {
            scheduler.draining |= matches!(signal, Signal::TERM | Signal::INT);
            scheduler.signal(signal);
        }
        scheduler.reap();
    }
}

fn hearing() -> Result<Signals, Failed> {
    let signals = Signals::install().map_err(system)?;
    let deaf = || system(say::signals_blocked());
    if signals.deaf() { Err(deaf()) } else { Ok(signals) }
}

fn arm(timer: &Timer, next: Option<Millis>, now: Millis) -> Result<(), Failed> {
    match next {
        Some(at) => {
            let wait = Duration::from_millis(u64::try_from(at - now).unwrap_or(0));
            timer.arm(clock::boot_time().plus(wait)).map_err(system)
        }
        None => timer.disarm().map_err(system),
    }
}

fn start<'a>(
    flags: &Everywhere,
    path: &Path,
    new_here: &NewHereArgs,
    mode: SchedulerMode,
    out: &'a Out,
) -> Result<(Scheduler<'a>, Chosen), Failed> {
    let jobs = jobs::load(path)?;
    let opened = open_tested(flags, &leases(&jobs))?;
    other_stores::told_by_file(&opened)?;
    remember_store(&opened, &leases(&jobs))?;
    timed(&jobs, opened.store.as_ref())?;
    let number = jobs.len();
    let OpenedStore { chosen, store, log, alerts, .. } = opened;
    let starter = Starter {
        program: std::env::current_exe().map_err(system)?,
        store: chosen.url.clone(),
        store_shown: chosen.shown.clone(),
        new_here: new_here.said,
        verbose: out.verbose,
        alerts,
    };
    let mut progress = Progress::new(out, chosen.clone());
    let scheduler = Scheduler::new(store, log, starter, mode, move |event| progress.tell(event));
    let mut scheduler = scheduler.map_err(|error| clock_failed(&error, &chosen))?;
    scheduler.take(jobs).map_err(|error| not_taken(&error, &chosen))?;
    if mode == SchedulerMode::Stays {
        let how = if out.chatty() { say::how_to_end() } else { String::new() };
        let shown = &chosen.shown;
        out.note(&if number == 1 { say::one_job(shown, how) } else { say::jobs(number, shown, how) });
    }
    Ok((scheduler, chosen))
}

/// Why the jobs could not be loaded, as a failure.
fn not_taken(error: &TakeError, chosen: &Chosen) -> Failed {
    match error {
        TakeError::Clock => say::clock_unsure(),
        TakeError::Store(failure) => store_failed(failure, chosen),
    }
}

/// Refuses timing that the store's clock does not allow.
fn timed(jobs: &[Job], store: &dyn Store) -> Result<(), Failed> {
    jobs.iter().try_for_each(|job| {
        let named = |failed: Failed| Failed { told: failed.told.of_one(&job.name), ..failed };
        super::timing(job.wishes, store).map(|_| ()).map_err(named)
    })
}

/// Loads the file as it is now; if it cannot be used, the jobs stay as they were. True: the store did not answer, or may
/// have recorded half of it, so it has to be tried again. `warned`: that it could not be loaded.
fn reloaded(
    scheduler: &mut Scheduler<'_>,
    chosen: &Chosen,
    flags: &Everywhere,
    path: &Path,
    warned: bool,
    out: &Out,
) -> bool {
    let checked = jobs::load(path).map_err(Failed::from).and_then(|jobs| {
        let opened = super::open(flags, &leases(&jobs))?;
        other_stores::told_by_file(&opened)?;
        remember_store(&opened, &leases(&jobs))?;
        if opened.chosen.url != chosen.url {
            out.warn(&say::other_store(&opened.chosen.shown, &chosen.shown));
        }
        timed(&jobs, scheduler.store())?;
        scheduler.alerts(opened.alerts);
        Ok(jobs)
    });
    let taken = |jobs| scheduler.take(jobs).map_err(|error| not_taken(&error, chosen));
    match checked.and_then(taken) {
        Ok(()) => {
            out.note(&say::read_again(path.display()));
            false
        }
        Err(failed) => {
            let (kept, again) = match failed.kind {
                FailKind::Clock => (say::jobs_stay_until_clocks_agree(), true),
                FailKind::Unreachable => (say::jobs_stay_until_answer(), true),
                _ => (say::jobs_stay(), false),
            };
            if !(again && warned) {
                out.warn(&failed.meaning(kept).told.to_string());
            }
            again
        }
    }
}

fn leases(jobs: &[Job]) -> Vec<Name> {
    let mut leases: Vec<Name> = jobs.iter().flat_map(|job| job.leases.clone()).collect();
    leases.sort();
    leases.dedup();
    leases
}
