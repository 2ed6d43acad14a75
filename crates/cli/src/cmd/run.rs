//! `leasehold run NAME -- CMD`

use std::io::IsTerminal;
use std::time::Duration;

use leasehold::core::name::Name;
use leasehold::core::session::{Busy, Event, NotStarted, Outcome, Release, StopReason};
use leasehold::core::stop::{Text, Wishes};
use leasehold::host::{self, Enclosing};
use leasehold::runner::RUN_CHAIN;
use leasehold::runner::lookup::{Program, lookup};
use leasehold::runner::outcome::Survivor;
use leasehold::runner::run::{self, Listener, Ran, Spec};

use super::{Opened, held_by, not_started};
use crate::args::{Everywhere, Run};
use crate::config::scope;
use crate::exit::{self, Failed};
use crate::out::Out;
use crate::{duration, report};

/// Runs it; the exit code is the command's own, or one of ours.
pub fn run(flags: &Everywhere, args: &Run, out: &Out) -> Result<u8, Failed> {
    let leases = leases(args)?;
    let job = args.job.as_deref().map_or_else(|| Ok(leases[0].clone()), super::name)?;
    let max_run = duration::parse_or_none(&args.max_run)
        .map_err(|e| Failed::usage(format!("--max-run: {e} (or none). Nothing was run.")))?;
    // Before anything is spent: a typo must not cost a token or block another machine.
    let program = find(args, &leases[0])?;
    report::check(args.report.as_deref())?;
    let opened = super::open(flags, &leases)?;
    let timing = &args.timing;
    let wishes = Wishes { ttl: Some(timing.ttl), heartbeat: timing.heartbeat, grace: timing.grace };
    let spec = Spec {
        timing: super::timing(wishes, opened.store.as_ref())?,
        leases,
        job,
        run_id: run_id(args)?,
        wait: patience(args),
        max_run,
        program,
        args: args.command[1..].to_vec(),
        foreground: std::io::stdin().is_terminal(),
    };
    let Opened { chosen, store, memory, .. } = opened;
    if let Some(caution) = store.facts().caution {
        out.chat(&caution);
    }
    let mut voice = Voice {
        out,
        live: out.hurried(),
        spec: &spec,
        shown: &chosen.shown,
        scope: scope(&chosen),
        failing: false,
    };
    let ran = run::run(&spec, store, memory.clone(), &mut voice)
        .map_err(|e| Failed::new(exit::UNREACHABLE, "system", format!("the system refused: {e}")))?;
    let refusal = |why: &NotStarted| not_started(why, &chosen, &memory, &spec.leases[0]);
    let told = voice.ended(&ran, args.skip_exit, refusal);
    report::write(args.report.as_deref(), out, &spec, &ran, &told)?;
    told
}

fn leases(args: &Run) -> Result<Vec<Name>, Failed> {
    let mut leases = vec![super::name(&args.name)?];
    for other in &args.or {
        let other = super::name(other)?;
        if leases.contains(&other) {
            return Err(Failed::usage(format!("{other} is named twice. Nothing was run.")));
        }
        leases.push(other);
    }
    Ok(leases)
}

/// A run nested in the one that holds its only lease would wait for its own parent.
fn patience(args: &Run) -> Duration {
    let nested = std::env::var("LEASEHOLD_LEASE").is_ok_and(|outer| outer == args.name);
    args.wait.filter(|_| !nested || !args.or.is_empty()).unwrap_or_default()
}

fn find(args: &Run, lease: &Name) -> Result<Program, Failed> {
    lookup(&args.command[0], std::env::var_os("PATH").as_deref()).map_err(|e| {
        let message = format!("{e}. Nothing was acquired: {lease} is free to run elsewhere.");
        Failed::new(e.exit_code(), "command", message)
    })
}

/// Long or odd run ids would not survive an environment or a look through `/proc`.
fn run_id(args: &Run) -> Result<String, Failed> {
    let Some(id) = &args.run_id else { return Ok(host::fresh_run_id(None)) };
    let good = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    if id.is_empty() || id.len() > 100 || !id.chars().all(good) {
        return Err(Failed::usage(format!(
            "{id:?} is not a run id: use up to 100 letters, digits and . _ : / @ -. Nothing was run."
        )));
    }
    Ok(host::fresh_run_id(Some(id)))
}

/// Says what happens while it runs.
struct Voice<'a> {
    out: &'a Out,
    /// For what is said while the job runs.
    live: Out,
    spec: &'a Spec,
    shown: &'a str,
    scope: &'static str,
    /// The last renewal failed, which was told.
    failing: bool,
}

impl Listener for Voice<'_> {
    fn event(&mut self, event: &Event) {
        let (out, timing) = (&self.live, &self.spec.timing);
        match event {
            Event::Granted(granted) => out.chat(&format!(
                "{} token {}, lease {}, renew every {} ({}){}",
                granted.lease,
                granted.token,
                Text(timing.ttl),
                Text(timing.heartbeat),
                self.shown,
                self.scope
            )),
            Event::Waiting(busy) => {
                let patience = Text(self.spec.wait);
                out.chat(&format!("waiting up to {patience} for {}: {}", busy.lease, held_by(busy)));
            }
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
                    Text(*left)
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
            Event::Stopping(why) => out.warn(&stopping(why, self.spec)),
            Event::StopUnconfirmed => out.warn(
                "killed, but not gone: something is stuck in the kernel. The lease is kept until it is",
            ),
            Event::EpochChanged => out.warn(
                "the lease's record was created anew since this machine last saw it; fences that remember \
                 the old one will refuse this run",
            ),
            Event::Survivors => {}
        }
    }

    fn untouchable(&mut self, processes: &[Survivor]) {
        self.live.warn(&format!(
            "{} should be gone, and we may not end {}: another user's. The lease is kept until then",
            names(processes),
            if processes.len() == 1 { "it" } else { "them" }
        ));
    }

    fn survivors(&mut self, survivors: &[Survivor]) {
        let them = if survivors.len() == 1 { "it" } else { "them" };
        self.live.note(&format!(
            "the command ended and left {} behind; ending {them} before the lease is given back",
            names(survivors),
        ));
    }
}

fn names(processes: &[Survivor]) -> String {
    let names: Vec<String> = processes.iter().map(|s| format!("{} ({})", s.pid, s.command)).collect();
    names.join(", ")
}

impl Voice<'_> {
    /// The last line and the exit code.
    fn ended(&self, ran: &Ran, skip_exit: u8, refusal: impl Fn(&NotStarted) -> Failed) -> Result<u8, Failed> {
        match &ran.outcome {
            Outcome::Busy(busy) => self.skipped(busy, skip_exit),
            Outcome::NotStarted(why) => Err(refusal(why)),
            Outcome::Lost { why, .. } => {
                let lease = ran.granted.as_ref().map_or(&self.spec.leases[0], |g| &g.lease);
                Err(Failed::new(exit::LOST, "lost", lost(why, lease, ran)))
            }
            Outcome::Finished { status, release, .. } => {
                let code = u8::try_from(*status).unwrap_or(u8::MAX);
                if let Some(error) = &ran.spawn_error {
                    return Err(Failed::new(code, "command", format!("{error}. The lease was given back.")));
                }
                self.finished(ran, code, *release);
                Ok(code)
            }
            // Only by hand.
            Outcome::Granted(_) => Ok(exit::OK),
        }
    }

    fn skipped(&self, busy: &Busy, skip_exit: u8) -> Result<u8, Failed> {
        let outer_runs = std::env::var(RUN_CHAIN).unwrap_or_default();
        let by_hand = Enclosing::from_env(|name| std::env::var(name).ok());
        let nested = outer_runs.split(' ').any(|run| run == busy.holder.run);
        if nested || by_hand.is_some_and(|outer| outer.grant == busy.grant) {
            let (lease, token, pid) = (&busy.lease, busy.token, busy.holder.pid);
            return Err(Failed::usage(format!(
                "{lease} is held by this very run (token {token}, pid {pid}): \"leasehold run {lease}\" is \
                 nested inside itself. The inner call would wait for its parent. Nothing was run. Use \
                 another name, or just run the command; LEASEHOLD_TOKEN is already set."
            )));
        }
        self.out.note(&format!("skipped {}: {}{}", self.spec.job, held_by(busy), self.scope));
        Ok(skip_exit)
    }

    fn finished(&self, ran: &Ran, code: u8, release: Release) {
        let Some(granted) = &ran.granted else { return };
        let end = match release {
            Release::Done => "released",
            Release::AlreadyGone => "already released",
            Release::Unconfirmed => "not confirmed as released: it will expire",
        };
        let line = format!("{} done in {} (exit {code}), {end}", granted.lease, Text(ran.lasted));
        match release {
            Release::Unconfirmed => self.out.note(&line),
            _ => self.out.chat(&line),
        }
    }
}

fn stopping(why: &StopReason, spec: &Spec) -> String {
    let lease = &spec.leases[0];
    let politely = format!("(TERM, then KILL after {})", Text(spec.timing.grace));
    match why {
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
        StopReason::MaxRun => format!("the job ran longer than --max-run; stopping it {politely}"),
        StopReason::Survivors => "ending what is left of the job".into(),
        StopReason::Interrupted => "interrupted twice; killing the job".into(),
    }
}

fn lost(why: &StopReason, lease: &Name, ran: &Ran) -> String {
    let token = ran.granted.as_ref().map(|g| format!(" (token {})", g.token)).unwrap_or_default();
    let how = match why {
        StopReason::Deadline => "no renewal was confirmed in time".into(),
        StopReason::Taken { token, holder } => {
            format!("{}/{} took it over (token {token})", holder.host, holder.pid)
        }
        StopReason::Gone => "its record was freed or replaced by someone else".into(),
        StopReason::Revoked => "somebody asked for it back".into(),
        StopReason::StoreClock => "the store's clock ran ahead".into(),
        StopReason::MaxRun | StopReason::Survivors | StopReason::Interrupted => "it was stopped".into(),
    };
    let job = match ran.outcome {
        Outcome::Lost { status: None, .. } => "The job was not started.".into(),
        _ => format!("The job was stopped after {} and may have done part of its work.", Text(ran.lasted)),
    };
    format!("lost {lease}{token}: {how}. {job} The next run starts afresh with a larger token.")
}
