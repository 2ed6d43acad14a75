//! The lines about a run, while it runs and at its end.

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::ItemState;
use leasehold::core::name::Name;
use leasehold::core::session::{Busy, Event, NotStarted, Outcome, Release, Signal, StopReason};
use leasehold::core::time::BootTime;
use leasehold_run::runner::run::{Listener, RunResult, RunSpec};
use leasehold_run::runner::signals::signal_number;
use leasehold_run::runner::tree_types::Survivor;

use crate::cmd::plan::LONG_TTL;
use crate::cmd::{SlowStoreNotice, held_by, names, target_args};
use crate::config::{Chosen, scope};
use crate::exit::{self, FailKind, Failed};
use crate::messages::{plan, run as say};
use crate::notify::ping::Starter;
use crate::out::Out;

/// What is said about one run.
pub struct Progress<'a> {
    out: &'a Out,
    /// For lines while the job runs.
    live: Out,
    spec: &'a RunSpec,
    shown: &'a str,
    scope: String,
    /// The last renewal failed, and a line said so.
    failing: bool,
    /// Dropped at the first event.
    silence: Option<SlowStoreNotice>,
    /// The one of the leases that this run holds, or asks for.
    lease: &'a Name,
    /// When the store last confirmed that this run holds the lease.
    confirmed: Option<BootTime>,
    /// This process was paused until the lease had expired, so the job was not stopped in time.
    paused: bool,
    /// The job was stopped.
    stopped: bool,
    /// Tells elsewhere that the run begins.
    starter: Option<Starter>,
}

impl<'a> Progress<'a> {
    pub fn new(
        out: &'a Out,
        spec: &'a RunSpec,
        chosen: &'a Chosen,
        silence: Option<SlowStoreNotice>,
        starter: Option<Starter>,
    ) -> Self {
        Self {
            out,
            live: out.hurried(),
            spec,
            shown: &chosen.shown,
            scope: scope(chosen),
            failing: false,
            silence,
            lease: &spec.leases[0],
            confirmed: None,
            paused: false,
            stopped: false,
            starter,
        }
    }
}

impl Listener for Progress<'_> {
    fn event(&mut self, event: &Event) {
        self.silence = None;
        self.note(event);
        let (out, timing) = (&self.live, &self.spec.timing);
        match event {
            Event::Granted(granted) => {
                let (ttl, heartbeat) = (HumanDuration(timing.ttl), HumanDuration(timing.heartbeat));
                if timing.ttl >= LONG_TTL {
                    out.chat(&plan::long_ttl(&self.spec.job, &ttl));
                }
                out.chat(&say::took(&granted.lease, granted.token, ttl, heartbeat, self.shown, &self.scope));
            }
            Event::Waiting(busy) => {
                out.chat(&say::waiting(HumanDuration(self.spec.wait), &busy.lease, held_by(busy)));
            }
            Event::Unanswered { message } => out.warn(&say::waiting_unanswered(message)),
            Event::AnsweredAgain => out.note(&say::waiting_answered()),
            Event::Renewed => {
                if std::mem::take(&mut self.failing) {
                    out.note(&say::renewed_again());
                }
                out.detail(&say::renewed());
            }
            Event::RenewFailed { message, left } => {
                let line = say::renewal_failed(HumanDuration(*left), message);
                // Only the first of several failures in a row.
                match std::mem::replace(&mut self.failing, true) {
                    false => out.warn(&line),
                    true => out.detail(&line),
                }
            }
            Event::Napped => out.warn(&say::slept(self.lease)),
            Event::Resumed => out.warn(&say::still_held(self.lease)),
            // A line has named them already.
            Event::Stopping(StopReason::Survivors) => {}
            Event::Stopping(why) => out.warn(&self.stopping(why)),
            Event::StopUnconfirmed => out.warn(&say::stop_stuck(self.lease)),
            // Reported at the end of the run, with its outcome.
            Event::ItemOpened(_) | Event::ItemRecorded(_) => {}
            Event::EpochChanged => out.warn(&say::recreated(self.lease)),
            Event::Survivors => {}
        }
    }

    fn untouchable(&mut self, processes: &[Survivor]) {
        self.live.warn(&say::another_users(names(processes), self.lease));
    }

    fn survivors(&mut self, survivors: &[Survivor]) {
        // Part of the work may be lost with them.
        self.live.warn(&say::left_behind(names(survivors)));
    }
}

impl Progress<'_> {
    /// Keeps what later messages need.
    fn note(&mut self, event: &Event) {
        let now = clock::boot_time();
        let begins = match event {
            Event::Granted(_) => self.spec.item.is_none(),
            Event::ItemOpened(opened) => opened.is_to_start(),
            _ => false,
        };
        if begins && let Some(starter) = &self.starter {
            starter.start(&self.spec.run_id);
        }
        match event {
            Event::Granted(granted) => {
                let same = |lease: &&Name| **lease == granted.lease;
                self.lease = self.spec.leases.iter().find(same).unwrap_or(self.lease);
                self.confirmed = Some(now);
            }
            Event::Renewed | Event::Resumed => self.confirmed = Some(now),
            Event::Stopping(StopReason::Survivors) => {}
            Event::Stopping(why) => {
                self.stopped = true;
                self.paused = *why == StopReason::Deadline
                    && self.confirmed.is_some_and(|at| now >= at.plus(self.spec.timing.ttl));
            }
            _ => {}
        }
    }

    /// The last line and the exit code.
    pub fn ended(
        &self,
        ran: &RunResult,
        skip_exit: u8,
        refusal: impl Fn(&NotStarted) -> Failed,
    ) -> Result<u8, Failed> {
        for refused in &ran.fences.let_in {
            self.out.warn(&say::would_be_refused(target_args::would_be_refused(refused)));
        }
        for sentence in &ran.fences.went_round {
            self.out.warn(sentence);
        }
        match &ran.outcome {
            Outcome::Busy(busy) => self.skipped(busy, skip_exit),
            Outcome::NotStarted(why) => Err(refusal(why)),
            Outcome::Lost { why, status } => Err(self.lost(why, *status, ran)),
            Outcome::Finished { status, state, release, stopped } => {
                let code = match (*status, stopped) {
                    // It ended with 0 because it was stopped: its work may not be done.
                    (0, Some(StopReason::Interrupted)) => 128 + signal_number(Signal::Int),
                    (0, Some(StopReason::MaxRun)) => 128 + signal_number(Signal::Term),
                    (status, _) => u8::try_from(status).unwrap_or(u8::MAX),
                };
                if let Some(error) = &ran.spawn_error {
                    return Err(Failed::new(FailKind::Command(code), "command", say::not_executed(error)));
                }
                self.finished(ran, *state, code, *release);
                Ok(code)
            }
            // Only for leases taken by hand.
            Outcome::Granted(_) => Ok(exit::OK),
        }
    }

    fn skipped(&self, busy: &Busy, skip_exit: u8) -> Result<u8, Failed> {
        if self.spec.within.holds(busy) {
            return Err(say::nested(&busy.lease, busy.token, busy.holder.pid));
        }
        let RunSpec { leases, job, wait, .. } = self.spec;
        let waited = if wait.is_zero() { String::new() } else { say::after_waiting(HumanDuration(*wait)) };
        let which = match &leases[..] {
            [only] if only == job => String::new(),
            [only] => format!("{only} is "),
            all => {
                let all: Vec<&str> = all.iter().map(Name::as_str).collect();
                say::all_held(all.join(", "), &busy.lease)
            }
        };
        self.out.note(&say::skipped(job, waited, which, held_by(busy), &self.scope));
        Ok(skip_exit)
    }

    fn finished(&self, ran: &RunResult, state: ItemState, code: u8, release: Release) {
        let Some(granted) = &ran.told.granted else { return };
        let end = match release {
            Release::Done => say::released(),
            Release::AlreadyGone => say::already_released(),
            Release::Unconfirmed => say::not_released(),
        };
        let (lease, took) = (&granted.lease, HumanDuration(ran.lasted));
        let line = match state {
            ItemState::Ok => say::done(lease, took, code, end),
            ItemState::Killed => say::stopped(lease, took, code, end),
            _ => say::failed(lease, took, code, end),
        };
        match release {
            Release::Unconfirmed => self.out.note(&line),
            _ => self.out.chat(&line),
        }
    }

    fn stopping(&self, why: &StopReason) -> String {
        let lease = self.lease;
        let how = say::stop_how(HumanDuration(self.spec.timing.grace));
        match why {
            StopReason::Deadline if self.paused => say::stop_expired(lease),
            StopReason::Deadline => say::stop_unrenewed(lease, how),
            StopReason::Taken { token, holder } => say::stop_taken(holder, lease, token),
            StopReason::Gone => say::stop_gone(lease),
            StopReason::Revoked => say::stop_asked(lease, how),
            StopReason::StoreClock => say::stop_store_clock(lease, how),
            StopReason::MaxRun => {
                say::stop_max_run(lease, HumanDuration(self.spec.max_run.unwrap_or_default()), how)
            }
            StopReason::Survivors => say::stop_rest(),
            StopReason::Interrupted => say::stop_interrupted(),
        }
    }

    fn lost(&self, why: &StopReason, status: Option<i32>, ran: &RunResult) -> Failed {
        let token = ran.told.granted.as_ref().map(|g| format!(" (token {})", g.token)).unwrap_or_default();
        let how = match why {
            StopReason::Deadline if self.paused => say::lost_expired(),
            StopReason::Deadline => say::lost_unrenewed(),
            StopReason::Taken { token, holder } => say::lost_taken(holder, token),
            StopReason::Gone => say::lost_gone(),
            StopReason::Revoked => say::lost_asked(),
            StopReason::StoreClock => say::lost_store_clock(),
            StopReason::MaxRun | StopReason::Survivors | StopReason::Interrupted => say::lost_given_up(),
        };
        let error = ran.spawn_error.as_ref().or(ran.gave_up.as_ref());
        let how = error.map_or(how.clone(), |error| format!("{how}: {error}"));
        let (took, gave_up) = (HumanDuration(ran.lasted), ran.gave_up.is_some());
        let mut job = match status {
            None => say::lost_not_started(),
            Some(_) if ran.spawn_error.is_some() => say::lost_not_executed(),
            // While we were paused it may have ended before it could be stopped.
            Some(status) if gave_up || self.stopped && !(self.paused && status <= 128) => {
                say::lost_stopped(took)
            }
            Some(status) => say::lost_ended(took, status),
        };
        if gave_up {
            job.push_str(&say::lost_kept());
        }
        say::lost(self.lease, token, how, job)
    }
}
