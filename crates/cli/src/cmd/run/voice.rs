//! What a run says, while it runs and at its end.

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::name::Name;
use leasehold::core::session::{Busy, Event, NotStarted, Outcome, Release, Signal, StopReason};
use leasehold::core::time::BootTime;
use leasehold_run::runner::run::{Listener, RunResult, RunSpec};
use leasehold_run::runner::signals::signal_number;
use leasehold_run::runner::tree_types::Survivor;

use crate::cmd::{SlowStoreNotice, held_by, names, target_args};
use crate::config::{Chosen, scope};
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;
use crate::report;

/// Says what happens while it runs.
pub struct Voice<'a> {
    out: &'a Out,
    /// For what is said while the job runs.
    live: Out,
    spec: &'a RunSpec,
    shown: &'a str,
    scope: &'static str,
    /// The last renewal failed, which was told.
    failing: bool,
    /// Until the first event.
    silence: Option<SlowStoreNotice>,
    /// Which of the leases it is.
    lease: &'a Name,
    /// When the store last confirmed that the lease is ours.
    confirmed: Option<BootTime>,
    /// We found the lease run out when we came to: nobody kept it, and nobody stopped the job in time.
    paused: bool,
    /// The job did not end by itself.
    stopped: bool,
}

impl<'a> Voice<'a> {
    pub fn new(
        out: &'a Out,
        spec: &'a RunSpec,
        chosen: &'a Chosen,
        silence: Option<SlowStoreNotice>,
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
        }
    }
}

impl Listener for Voice<'_> {
    fn event(&mut self, event: &Event) {
        self.silence = None;
        self.note(event);
        let (out, timing) = (&self.live, &self.spec.timing);
        match event {
            Event::Granted(granted) => out.chat(&format!(
                "{} token {}, lease {}, renew every {} ({}){}",
                granted.lease,
                granted.token,
                HumanDuration(timing.ttl),
                HumanDuration(timing.heartbeat),
                self.shown,
                self.scope
            )),
            Event::Waiting(busy) => {
                let patience = HumanDuration(self.spec.wait);
                out.chat(&format!("waiting up to {patience} for {}: {}", busy.lease, held_by(busy)));
            }
            Event::Unheard { message } => {
                let message = message.trim_end_matches('.');
                out.warn(&format!("while waiting, the store could not be asked: {message}. Asking on"));
            }
            Event::Heard => out.note("the store answers again; still waiting"),
            Event::Renewed => {
                if std::mem::take(&mut self.failing) {
                    out.note("the lease is renewed again");
                }
                out.detail("renewed");
            }
            Event::RenewFailed { message, left } => {
                let message = message.trim_end_matches('.');
                let line = format!(
                    "a renewal failed: {message}. The job goes on; unless a renewal succeeds it is stopped in {}",
                    HumanDuration(*left)
                );
                // Once, however often it is tried again.
                match std::mem::replace(&mut self.failing, true) {
                    false => out.warn(&line),
                    true => out.detail(&line),
                }
            }
            Event::Napped => out.warn(
                "this machine slept past the lease; the job is frozen while we ask whether it is still ours",
            ),
            Event::Resumed => out.warn("the lease is still ours; the job goes on with the same token"),
            // Their names were said already.
            Event::Stopping(StopReason::Survivors) => {}
            Event::Stopping(why) => out.warn(&self.stopping(why)),
            Event::StopUnconfirmed => out.warn(
                "killed, but not gone: something is stuck in the kernel. The lease is kept until it is",
            ),
            // Told when the run has ended, beside its outcome.
            Event::ItemOpened(_) | Event::ItemRecorded(_) => {}
            Event::EpochChanged => out.warn(
                "the lease's record was created anew since this machine last saw it; fences that remember \
                 the old one will refuse this run",
            ),
            Event::Survivors => {}
        }
    }

    fn untouchable(&mut self, processes: &[Survivor]) {
        let them = if processes.len() == 1 { "it" } else { "them" };
        self.live.warn(&format!(
            "{} should be gone, and we may not end {them}: another user's. {} is kept until then",
            names(processes),
            self.lease
        ));
    }

    fn survivors(&mut self, survivors: &[Survivor]) {
        let them = if survivors.len() == 1 { "it" } else { "them" };
        // A part of the work may be lost with them.
        self.live.warn(&format!(
            "the command ended and left {} behind; ending {them} before the lease is given back. To have {them} finish, \
             let the command wait for {them}",
            names(survivors),
        ));
    }
}

impl Voice<'_> {
    /// Keeps what later messages need.
    fn note(&mut self, event: &Event) {
        let now = clock::boot_time();
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
            self.out.warn(&format!("this run {}", target_args::let_in(refused)));
        }
        for sentence in &ran.fences.went_round {
            self.out.warn(sentence);
        }
        match &ran.outcome {
            Outcome::Busy(busy) => self.skipped(busy, skip_exit),
            Outcome::NotStarted(why) => Err(refusal(why)),
            Outcome::Lost { why, status } => {
                Err(Failed::new(FailKind::Lost, "lost", self.lost(why, *status, ran)))
            }
            Outcome::Finished { status, release, stopped, .. } => {
                let code = match (*status, stopped) {
                    // It ended well when it was told to end: that is not to be taken for its work being done.
                    (0, Some(StopReason::Interrupted)) => 128 + signal_number(Signal::Int),
                    (0, Some(StopReason::MaxRun)) => 128 + signal_number(Signal::Term),
                    (status, _) => u8::try_from(status).unwrap_or(u8::MAX),
                };
                if let Some(error) = &ran.spawn_error {
                    return Err(Failed::new(
                        FailKind::Command(code),
                        "command",
                        format!("{error}. The lease was given back."),
                    ));
                }
                self.finished(ran, code, *release);
                Ok(code)
            }
            // Only by hand.
            Outcome::Granted(_) => Ok(exit::OK),
        }
    }

    fn skipped(&self, busy: &Busy, skip_exit: u8) -> Result<u8, Failed> {
        if self.spec.within.holds(busy) {
            let (lease, token, pid) = (&busy.lease, busy.token, busy.holder.pid);
            return Err(Failed::usage(format!(
                "{lease} is held by this very run (token {token}, pid {pid}): \"leasehold run {lease}\" is \
                 nested inside itself. The inner call would wait for its parent. Nothing was run. Use \
                 another name, or just run the command: it is under that lease already."
            )));
        }
        let RunSpec { leases, job, wait, .. } = self.spec;
        let waited =
            if wait.is_zero() { String::new() } else { format!(" after waiting {}", HumanDuration(*wait)) };
        let which = match &leases[..] {
            [only] if only == job => String::new(),
            [only] => format!("{only} is "),
            all => {
                let all: Vec<&str> = all.iter().map(Name::as_str).collect();
                format!("{} are all busy; {} is ", all.join(", "), busy.lease)
            }
        };
        self.out.note(&format!("skipped {job}{waited}: {which}{}{}", held_by(busy), self.scope));
        Ok(skip_exit)
    }

    fn finished(&self, ran: &RunResult, code: u8, release: Release) {
        let Some(granted) = &ran.granted else { return };
        let end = match release {
            Release::Done => "released",
            Release::AlreadyGone => "already released",
            Release::Unconfirmed => "not confirmed as released: it will expire",
        };
        let how = match report::outcome(ran) {
            "ok" => "done in",
            "killed" => "stopped after",
            _ => "failed after",
        };
        let line = format!("{} {how} {} (exit {code}), {end}", granted.lease, HumanDuration(ran.lasted));
        match release {
            Release::Unconfirmed => self.out.note(&line),
            _ => self.out.chat(&line),
        }
    }

    fn stopping(&self, why: &StopReason) -> String {
        let (lease, spec) = (self.lease, self.spec);
        let politely = format!("(TERM, then KILL after {})", HumanDuration(spec.timing.grace));
        match why {
            StopReason::Deadline if self.paused => format!(
                "{lease}'s lease ran out while this job was paused; another run may have started. What is left of the job is stopped"
            ),
            StopReason::Deadline => format!(
                "no renewal of {lease} was confirmed in time; stopping the job {politely} before anyone else \
             can hold the lease"
            ),
            StopReason::Taken { token, holder } => {
                format!("{}/{} holds {lease} now (token {token}); killing the job", holder.host, holder.pid)
            }
            StopReason::Gone => format!("{lease} is not ours any more; killing the job"),
            StopReason::Revoked => format!("somebody asked for {lease} back; stopping the job {politely}"),
            StopReason::StoreClock => {
                format!("the store's clock ran ahead, so {lease} may end early; stopping the job {politely}")
            }
            StopReason::MaxRun => {
                let limit =
                    spec.max_run.map(|limit| format!(" than {}", HumanDuration(limit))).unwrap_or_default();
                format!(
                    "{lease} ran longer{limit} (--max-run; \"none\" for no limit); stopping it {politely}"
                )
            }
            StopReason::Survivors => "ending what is left of the job".into(),
            StopReason::Interrupted => "interrupted twice; killing the job".into(),
        }
    }

    fn lost(&self, why: &StopReason, status: Option<i32>, ran: &RunResult) -> String {
        let lease = self.lease;
        let token = ran.granted.as_ref().map(|g| format!(" (token {})", g.token)).unwrap_or_default();
        let how = match why {
            StopReason::Deadline if self.paused => "it ran out while this job was paused".into(),
            StopReason::Deadline => "no renewal was confirmed in time".into(),
            StopReason::Taken { token, holder } => {
                format!("{}/{} took it over (token {token})", holder.host, holder.pid)
            }
            StopReason::Gone => "its record was freed or replaced by someone else".into(),
            StopReason::Revoked => "somebody asked for it back".into(),
            StopReason::StoreClock => "the store's clock ran ahead".into(),
            StopReason::MaxRun | StopReason::Survivors | StopReason::Interrupted => "it was given up".into(),
        };
        let how =
            [Some(how), ran.spawn_error.clone()].into_iter().flatten().collect::<Vec<String>>().join(": ");
        let (lasted, gave_up) = (HumanDuration(ran.lasted), *why == StopReason::Interrupted);
        let job = match status {
            None => "The job was not started.".into(),
            Some(_) if ran.spawn_error.is_some() && !gave_up => "The job was not executed.".into(),
            // While we were paused it may have ended before it could be stopped.
            Some(status) if gave_up || self.stopped && !(self.paused && status <= 128) => {
                format!("The job was stopped after {lasted} and may have done part of its work.")
            }
            Some(status) => format!(
                "The job ended after {lasted} (exit {status}), but nobody can say that it was alone until then."
            ),
        };
        // Nobody was left to give it back.
        let left = if gave_up { " The lease was not given back: it ends by itself." } else { "" };
        format!("lost {lease}{token}: {how}. {job}{left} The next run starts afresh with a larger token.")
    }
}
