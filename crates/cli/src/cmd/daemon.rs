//! `leasehold daemon` and `leasehold tick`: the schedules of leasehold.toml.

mod messages;
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
use messages::{Messages, clock_failed};
use rustix::process::Signal;
use watch::Watch;

use super::{OpenedStore, enrol, open_tested, other_stores, store_failed};
use crate::args::{Everywhere, NewHereArgs};
use crate::config::Chosen;
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// A file that the store could not be told of is read again after this long.
const READ_AGAIN_MS: Millis = 10_000;

/// The configuration that jobs are read from.
pub fn path(flags: &Everywhere) -> PathBuf {
    flags.config.clone().unwrap_or_else(|| "leasehold.toml".into())
}

/// Stays up and starts what is due.
pub fn daemon(flags: &Everywhere, new_here: &NewHereArgs, out: &Out) -> Result<u8, Failed> {
    let path = path(flags);
    // A reader that stands still must not keep jobs from being started.
    let out = &out.hurried();
    let mut signals = hearing()?;
    let (timer, set) = (Timer::new().map_err(system)?, ClockSet::new().map_err(system)?);
    // Before the file is read: a change right after is seen.
    let mut watch = Watch::new(&path);
    let (mut scheduler, chosen) = begin(flags, &path, new_here, SchedulerMode::Stays, out)?;
    // The file has to be read once more, at this time.
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
                        out.note("nothing more is started; waiting for what runs (once more to end it)");
                    }
                }
                other => scheduler.signal(other),
            }
        }
        scheduler.reap();
        if reload && !scheduler.draining {
            let again = scheduler.now() + READ_AGAIN_MS;
            let told = unread.is_some();
            unread = reloaded(&mut scheduler, &chosen, flags, &path, told, out).then_some(again);
        }
    }
}

/// Does what is due, and ends.
pub fn tick(flags: &Everywhere, new_here: &NewHereArgs, out: &Out) -> Result<u8, Failed> {
    let mut signals = hearing()?;
    let timer = Timer::new().map_err(system)?;
    let (mut scheduler, _) = begin(flags, &path(flags), new_here, SchedulerMode::Once, out)?;
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
    let deaf = || system(std::io::Error::other("it was started with SIGCHLD or SIGTERM blocked"));
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

fn begin<'a>(
    flags: &Everywhere,
    path: &Path,
    new_here: &NewHereArgs,
    mode: SchedulerMode,
    out: &'a Out,
) -> Result<(Scheduler<'a>, Chosen), Failed> {
    let jobs = jobs::load(path)?;
    let opened = open_tested(flags, &leases(&jobs))?;
    other_stores::told_by_file(&opened)?;
    enrol(&opened, &leases(&jobs))?;
    timed(&jobs, opened.store.as_ref())?;
    let number = jobs.len();
    let OpenedStore { chosen, store, .. } = opened;
    let starter = Starter {
        program: std::env::current_exe().map_err(system)?,
        store: chosen.url.clone(),
        store_shown: chosen.shown.clone(),
        new_here: new_here.said,
        verbose: out.verbose,
    };
    let mut messages = Messages::new(out, chosen.clone());
    let scheduler = Scheduler::new(store, starter, mode, move |event| messages.tell(event));
    let mut scheduler = scheduler.map_err(|error| clock_failed(&error, &chosen))?;
    scheduler.take(jobs).map_err(|error| not_taken(&error, &chosen))?;
    if mode == SchedulerMode::Stays {
        let jobs = if number == 1 { "job" } else { "jobs" };
        let how = if out.chatty() { "; TERM or Ctrl-C lets what runs end, and ends" } else { "" };
        out.note(&format!("{number} {jobs} on {}{how}", chosen.shown));
    }
    Ok((scheduler, chosen))
}

/// Jobs that the store could not be told of, as a failure.
fn not_taken(error: &TakeError, chosen: &Chosen) -> Failed {
    match error {
        TakeError::Clock => {
            let why = "this machine's clock was set, or is wrong, and has to agree with the store's first";
            Failed::new(FailKind::Clock, "clock", why)
        }
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

/// Takes the file as it is now; if that will not do, what was there before stays in force. True: the store did not
/// answer, or may have taken half of it, so it has to be tried again.
fn reloaded(
    scheduler: &mut Scheduler<'_>,
    chosen: &Chosen,
    flags: &Everywhere,
    path: &Path,
    told: bool,
    out: &Out,
) -> bool {
    let checked = jobs::load(path).map_err(Failed::from).and_then(|jobs| {
        let opened = super::open(flags, &leases(&jobs))?;
        other_stores::told_by_file(&opened)?;
        enrol(&opened, &leases(&jobs))?;
        if opened.chosen.url != chosen.url {
            out.warn(&format!(
                "the file names another store now, {}: that is for the next start. Until then this daemon stays on {}",
                opened.chosen.shown,
                chosen.shown
            ));
        }
        timed(&jobs, scheduler.store())?;
        Ok(jobs)
    });
    let taken = |jobs| scheduler.take(jobs).map_err(|error| not_taken(&error, chosen));
    match checked.and_then(taken) {
        Ok(()) => {
            out.note(&format!("read {} again", path.display()));
            false
        }
        Err(failed) => {
            let then = match failed.kind {
                FailKind::Clock => " until it does",
                FailKind::Unreachable => " until the store answers",
                _ => "",
            };
            let again = matches!(failed.kind, FailKind::Clock | FailKind::Unreachable);
            if !(again && told) {
                let kept = format!("The jobs stay as they were before that change{then}");
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

fn system(e: std::io::Error) -> Failed {
    Failed::new(FailKind::Unreachable, "system", format!("the system refused: {e}"))
}
