//! `leasehold run NAME -- CMD`

mod hints;
mod observe;
mod voice;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;

use leasehold::core::name::Name;
use leasehold::core::session::{NotStarted, Outcome};
use leasehold::core::stop::Wishes;
use leasehold::elsewhere::Elsewhere;
use leasehold::fences::Fences;
use leasehold::host;
use leasehold::runner::JOB_ENV;
use leasehold::runner::lookup::{Program, lookup};
use leasehold::runner::run::{self, Spec};
use leasehold::stores::Store;
pub use observe::diary;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use serde::{Deserialize, Serialize};
use voice::Voice;

use super::{Aim, Opened, Silence, elsewhere, fence, forgetful, items, not_started, targets};
use crate::args::{Everywhere, Run};
use crate::config;
use crate::exit::{Failed, Kind};
use crate::out::Out;
use crate::{duration, report};

/// Runs it; the exit code is the command's own, or one of ours.
pub fn run(flags: &Everywhere, args: &Run, out: &Out) -> Result<u8, Failed> {
    if args.observe {
        return observe::run(flags, args, out);
    }
    report::check(&args.manner)?;
    // What keeps it from being run belongs into the report too.
    let early = |failed: Failed| {
        report::write(&args.manner, out, || report::early(args, &failed));
        failed
    };
    let (mut spec, fences, mut opened) = prepare(flags, args).map_err(early)?;
    if let Some(nothing) = nothing_to_do(args, &spec, &mut opened, out) {
        return nothing;
    }
    elsewhere::refuse(&mut spec, &mut opened, args.doing.new_here.said).map_err(early)?;
    // Now: it did not run on a store that refused it.
    super::enrol(&opened, &spec.leases).map_err(early)?;
    let Opened { chosen, store, memory, state } = opened;
    if let Some(caution) = store.facts().caution {
        out.chat(&caution);
    }
    let shared = !store.facts().this_machine_only;
    let silence = shared.then(|| Silence::begin(out, &chosen));
    for (target, class, caution) in fences.classes() {
        targets::tell_class(target, class, shared, out);
        if let Some(caution) = caution {
            out.note(caution);
        }
    }
    let mut voice = Voice::new(out, &spec, &chosen, silence);
    let terminal = spec.foreground.then(terminal).flatten();
    let ran = run::run(&spec, store, memory.clone(), fences, &mut voice)
        .map_err(|e| Failed::new(Kind::Unreachable, "system", format!("the system refused: {e}")))
        .map_err(early)?;
    if let Some(before) = terminal.filter(|_| was_killed(&ran.outcome)) {
        restore(&before);
    }
    if let Some(why) = &ran.unwritten {
        out.warn(&format!("not all that the command printed could be passed on: {why}"));
    }
    fence::remember(&state, &ran.fences.sealed);
    forgetful(&memory, &chosen, out);
    if let (Some(item), Some(page)) = (&spec.item, &ran.page) {
        items::check_recorded(page, item.if_unknown, out);
        page.unnoted.iter().for_each(|(subject, why)| elsewhere::warn_unnoted(subject, why, out));
        if let Some((subject, other)) = &page.other_store {
            let failed = elsewhere::refusal(subject, other, &chosen);
            report::write(&args.manner, out, || report::early(args, &failed));
            return Err(failed);
        }
        let not_sealed = matches!(ran.outcome, Outcome::NotStarted(NotStarted::Seal { .. }));
        if let Some(opened) = page.held_off().filter(|_| not_sealed) {
            // It is the key, where there is one that was asked for.
            let item = spec.key.as_ref().filter(|_| page.key_opened.is_some()).unwrap_or(item);
            let told = items::not_run(opened, item, args.manner.skip_exit, &chosen, out);
            report::write(&args.manner, out, || report::item(&spec, opened, &told));
            return told;
        }
    }
    let refusal = |why: &NotStarted| match (why, &ran.fences.failed) {
        (NotStarted::Seal { release, .. }, Some(error)) => targets::not_sealed(error, *release),
        _ => not_started(why, &chosen, &spec.leases[0], Aim::Run),
    };
    let told = voice.ended(&ran, args.manner.skip_exit, refusal);
    report::write(&args.manner, out, || report::record(&spec, &ran, &told));
    told
}

/// Whether there is nothing to do, as far as can be seen without a lease.
fn nothing_to_do(args: &Run, spec: &Spec, opened: &mut Opened, out: &Out) -> Option<Result<u8, Failed>> {
    let item = spec.item.as_ref()?;
    // One that fails is asked again, under the lease, by somebody who can wait.
    let found = leasehold::ledger::peek(opened.store.as_mut(), item).ok()??;
    // What others do for this machine is kept there too.
    if let Err(failed) = super::enrol(opened, &spec.leases) {
        report::write(&args.manner, out, || report::early(args, &failed));
        return Some(Err(failed));
    }
    if let Some(Err(e)) = spec.seen.as_ref().map(|seen| seen.note_opened(&item.subject, item.keep, &found)) {
        elsewhere::warn_unnoted(&item.subject, &e, out);
    }
    let told = items::not_run(&found, item, args.manner.skip_exit, &opened.chosen, out);
    report::write(&args.manner, out, || report::item(spec, &found, &told));
    Some(told)
}

/// Everything that can be wrong before a lease is asked for.
fn prepare(flags: &Everywhere, args: &Run) -> Result<(Spec, Fences, Opened), Failed> {
    let handed = Handed::read()?;
    let mut args = args.clone();
    args.manner.fence.extend(handed.fence.iter().cloned());
    args.key = args.key.or_else(|| handed.key.clone());
    let args = &args;
    // Before anything is spent: a typo must not cost a token or block another machine.
    let order = Order::read(args, handed)?;
    // Once: opening the store may take until the next slot, or past midnight.
    let when = items::moment(flags, args, &order.job)?;
    let (mut fences, gates) = targets::fences(&args.manner.fence, &order.leases, &order.job, &when, flags)?;
    let opened = super::open_tested(flags, &order.leases)?;
    let store = config::opener(&opened.chosen);
    fences.keep_in(move || store().ok());
    let mut spec = order.spec(args, opened.store.as_ref(), &when)?;
    spec.env.push((super::RUN_STORE.into(), opened.chosen.shown.clone().into()));
    spec.gates = gates;
    spec.seen = spec.item.is_some().then(|| Elsewhere::new(&opened.state, &opened.chosen.shown));
    if spec.item.is_some() || spec.gates.is_some() {
        spec.sockets = Some(opened.state.sockets().map_err(|e| Failed::config(e.to_string()))?);
    }
    elsewhere::told_by_file(&opened)?;
    Ok((spec, fences, opened))
}

/// What is asked for, as far as it can be told without a store.
struct Order {
    leases: Vec<Name>,
    job: Name,
    program: Program,
    env: Vec<(OsString, OsString)>,
    run_id: String,
}

impl Order {
    fn read(args: &Run, handed: Handed) -> Result<Self, Failed> {
        let leases = leases(args).map_err(|failed| hints::misplaced_name(failed, args))?;
        let job = args.manner.job.as_deref().map_or_else(|| Ok(leases[0].clone()), super::name)?;
        let env: Vec<_> = handed.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let run_id = handed.run.map_or_else(|| run_id(args), Ok)?;
        Ok(Self { program: find(args, &leases[0], &env)?, leases, job, env, run_id })
    }

    /// What to run, with timing that this store supports.
    fn spec(self, args: &Run, store: &dyn Store, when: &targets::Moment) -> Result<Spec, Failed> {
        let Self { leases, job, program, env, run_id } = self;
        let max_run = duration::parse_or_none(&args.manner.max_run)
            .map_err(|e| Failed::usage(format!("--max-run: {e} (or none). Nothing was run.")))?;
        let timing = &args.manner.timing;
        let (item, key) = items::item(args, &leases, &job, when)?;
        item.as_ref().map_or(Ok(()), |item| items::check_clock(item, &store.facts()))?;
        let wishes = Wishes { ttl: Some(timing.ttl), heartbeat: timing.heartbeat, grace: timing.grace };
        Ok(Spec {
            timing: super::timing(wishes, store)?,
            job,
            program,
            env,
            item,
            key,
            tail: args.doing.tail,
            history: !args.no_history,
            seen: None,
            sockets: None,
            gates: None,
            leases,
            run_id,
            wait: args.manner.wait.unwrap_or_default(),
            within: super::within(),
            max_run,
            args: args.command[1..].to_vec(),
            foreground: std::io::stdin().is_terminal(),
        })
    }
}

/// The terminal's settings, if it is ours to set.
fn terminal() -> Option<Termios> {
    tcgetattr(std::io::stdin()).ok()
}

/// A program that was killed had no chance to undo what it did to the terminal.
fn restore(before: &Termios) {
    let stdin = std::io::stdin();
    // In the background this would stop us.
    if tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp()) {
        let _ = tcsetattr(&stdin, OptionalActions::Now, before);
    }
}

fn was_killed(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Lost { status, .. } => status.is_some(),
        Outcome::Finished { status, stopped, .. } => stopped.is_some() || *status > 128,
        _ => false,
    }
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

/// What a scheduler hands to its run in [`JOB_ENV`]: all that may hold a secret, and the run's name.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handed {
    /// Variables of the command alone: the run finds the store and the state directory of its scheduler.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// As `--fence`.
    #[serde(default)]
    pub fence: Vec<String>,
    /// As `--key`.
    #[serde(default)]
    pub key: Option<String>,
    /// Its run id: the scheduler knows by it what this run has recorded.
    #[serde(default)]
    pub run: Option<String>,
}

impl Handed {
    fn read() -> Result<Self, Failed> {
        let Some(text) = std::env::var_os(JOB_ENV) else { return Ok(Self::default()) };
        text.to_str().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(|| {
            Failed::config(format!(
                "{JOB_ENV} is not as schedulers of this version set it. Nothing was run. Unset it, or restart the \
                 daemon that set it"
            ))
        })
    }
}

/// Along the path that the command itself has.
fn find(args: &Run, lease: &Name, env: &[(OsString, OsString)]) -> Result<Program, Failed> {
    let own = env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
    let path = own.or_else(|| std::env::var_os("PATH"));
    lookup(&args.command[0], path.as_deref()).map_err(|e| {
        let hint = (e.exit_code() == 127).then(|| hints::unknown_command(args)).flatten();
        let hint = hint.map(|hint| format!(" {hint}")).unwrap_or_default();
        let message = format!("{e}. Nothing was acquired: {lease} is free to run elsewhere.{hint}");
        Failed::new(Kind::Command(e.exit_code()), "command", message)
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
