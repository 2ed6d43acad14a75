//! `leasehold run NAME -- CMD`

mod hints;
mod observe;
mod progress;
mod slot;
mod watch;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::time::Duration;

use leasehold::backends::gate::Gates;
use leasehold::core::name::Name;
use leasehold::core::session::{NotStarted, Outcome};
use leasehold::core::timing::TimingWishes;
use leasehold::host;
use leasehold::messages::Explanation;
use leasehold::other_stores::OtherStores;
use leasehold::run_fences::Fences;
use leasehold::stores::Store;
use leasehold_run::duration;
use leasehold_run::notify::Notify;
use leasehold_run::placeholders::Moment;
use leasehold_run::runner::lookup::{Program, lookup};
use leasehold_run::runner::run::{self, RunResult, RunSpec};
pub use observe::diary;
use progress::Progress;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
pub use slot::slot;

use super::{
    LeasePurpose, OpenedStore, SlowStoreNotice, fence, item_args, not_started, other_stores, target_args,
    warn_unremembered,
};
use crate::args::{Everywhere, ReportArgs, RunArgs};
use crate::config::{self, Chosen};
use crate::exit::{FailKind, Failed};
use crate::messages::{notify as notify_say, run as say};
use crate::notify::Told;
use crate::out::Out;
use crate::report;

/// Runs the command. The exit code is that of the command, or one of Leasehold's.
pub fn run(flags: &Everywhere, args: &RunArgs, out: &Out) -> Result<u8, Failed> {
    if args.observe && args.manner.ping.is_some() {
        return Err(notify_say::not_observed());
    }
    if args.observe {
        return observe::run(flags, args, out);
    }
    report::check(&args.manner.reports)?;
    if let Some(why) = args.manner.ping.as_ref().and_then(|url| url.read().err()) {
        return Err(notify_say::bad_ping(why));
    }
    let asked = ReportOptions {
        lease: &args.name,
        job: args.manner.job.as_deref(),
        skip_exit: args.manner.skip_exit,
        reports: &args.manner.reports,
        new_here: args.doing.new_here.said,
        notify: Notify { ping: args.manner.ping.clone(), alerts: None },
    };
    carry_out(&asked, prepare(flags, args), out, |_| ())
}

/// How a run is reported.
pub struct ReportOptions<'a> {
    /// The lease.
    pub lease: &'a str,
    /// The name of the job, if it is not that of the lease.
    pub job: Option<&'a str>,
    /// The exit code of a skip.
    pub skip_exit: u8,
    /// Where reports go.
    pub reports: &'a ReportArgs,
    /// Items that this machine saw done on another store may be done again on this one.
    pub new_here: bool,
    /// Who is told about the run.
    pub notify: Notify,
}

/// Runs what is prepared, and reports it. `left` gets the result of the run, if there is one.
fn carry_out(
    args: &ReportOptions<'_>,
    prepared: Result<(RunSpec, Fences, OpenedStore), Failed>,
    out: &Out,
    left: impl FnOnce(&RunResult),
) -> Result<u8, Failed> {
    let mut told = Told::new(args, out);
    // A run that could not start is reported too.
    let (mut spec, fences, mut opened) = prepared.map_err(|failed| told.early(None, failed))?;
    told.alert(opened.alerts.take());
    if let Some(nothing) = nothing_to_do(args, &told, &spec, &mut opened, out) {
        return nothing;
    }
    let early = |failed, chosen: &Chosen| told.early(Some(chosen), failed);
    other_stores::refuse(&mut spec, &mut opened, args.new_here)
        .map_err(|failed| early(failed, &opened.chosen))?;
    // Not earlier: a store that refused the lease does not keep it.
    super::remember_store(&opened, &spec.leases).map_err(|failed| early(failed, &opened.chosen))?;
    let OpenedStore { chosen, store, memory, state, .. } = opened;
    if let Some(caution) = store.facts().caution {
        out.chat(&caution);
    }
    let shared = !store.facts().this_machine_only;
    let silence = shared.then(|| SlowStoreNotice::begin(out, &chosen));
    for (target, class, caution) in fences.classes() {
        target_args::tell_class(target, class, shared, out);
        if let Some(caution) = caution {
            out.note(caution);
        }
    }
    let mut progress = Progress::new(out, &spec, &chosen, silence, told.starter());
    let terminal = spec.foreground.then(terminal).flatten();
    let ran = run::run(&spec, store, memory.clone(), fences, &mut progress).map_err(say::system);
    let ran = ran.map_err(|failed| early(failed, &chosen))?;
    let on = Some((&chosen, ran.lasted));
    left(&ran);
    if let Some(before) = terminal.filter(|_| was_killed(&ran.outcome)) {
        restore(&before);
    }
    if let Some(why) = &ran.unwritten {
        out.warn(&say::output_cut(why));
    }
    fence::remember(&state, &ran.fences.sealed);
    warn_unremembered(&memory, &chosen, out);
    if let (Some(item), Some(opened)) = (&spec.item, &ran.told.opened) {
        item_args::check_recorded(opened, ran.told.recorded.as_ref(), item.if_unknown, out);
        let recorded = ran.told.recorded.as_ref().or(opened.recorded.as_ref());
        let unnoted = opened.unnoted.iter().chain(recorded.iter().flat_map(|recorded| &recorded.unnoted));
        unnoted.for_each(|(subject, why)| other_stores::warn_unnoted(subject, why, out));
        if let Some((subject, other)) = &opened.other_store {
            let failed = other_stores::refusal(subject, other, &chosen);
            return Err(early(failed, &chosen));
        }
        let not_run = ran.outcome == Outcome::NotStarted(NotStarted::Item);
        if let Some(held_off) = opened.held_off().filter(|_| not_run) {
            // It is the key, where there is one that was asked for.
            let item = spec.key.as_ref().filter(|_| opened.key.is_some()).unwrap_or(item);
            let result = item_args::not_run(held_off, item, args.skip_exit, &chosen, out);
            told.end(on, || report::item(&spec, held_off, &result));
            return result;
        }
    }
    let refusal = |why: &NotStarted| match (why, &ran.fences.failed) {
        (NotStarted::Seal { release, .. }, Some(error)) => target_args::not_sealed(error, *release),
        _ => not_started(why, &chosen, &spec.leases[0], LeasePurpose::Run),
    };
    let result = progress.ended(&ran, args.skip_exit, refusal);
    told.end(on, || report::record(&spec, &ran, &result));
    result
}

/// Whether the item need not be run, as far as a look without the lease can say.
fn nothing_to_do(
    args: &ReportOptions<'_>,
    told: &Told<'_>,
    spec: &RunSpec,
    opened: &mut OpenedStore,
    out: &Out,
) -> Option<Result<u8, Failed>> {
    let item = spec.item.as_ref()?;
    // If the look fails, the item is read again under the lease, where there is time to wait.
    let found = leasehold::ledger::peek(opened.store.as_mut(), item).ok()??;
    // The machine also remembers the lease if another machine did the work.
    if let Err(failed) = super::remember_store(opened, &spec.leases) {
        return Some(Err(told.early(Some(&opened.chosen), failed)));
    }
    if let Some(Err(e)) = spec.seen.as_ref().map(|seen| seen.note_opened(&item.subject, item.keep, &found)) {
        other_stores::warn_unnoted(&item.subject, &e, out);
    }
    let result = item_args::not_run(&found, item, args.skip_exit, &opened.chosen, out);
    told.end(Some((&opened.chosen, Duration::ZERO)), || report::item(spec, &found, &result));
    if let Some(record) = spec.skipped(&found) {
        opened.log.write(opened.store.as_mut(), &record);
    }
    Some(result)
}

/// Checks everything that can be wrong before a lease is asked for.
fn prepare(flags: &Everywhere, args: &RunArgs) -> Result<(RunSpec, Fences, OpenedStore), Failed> {
    // First: a typo must not cost a token or block another machine.
    let order = Order::read(args)?;
    // Read once: opening the store may take until the next slot, or past midnight.
    let when = item_args::moment(flags, args, &order.job)?;
    let fences = target_args::fences(&args.manner.fence, &order.leases, &order.job, &when, flags)?;
    on_store(flags, fences, &order.leases.clone(), |store| order.spec(args, store, &when))
}

/// Opens the store and prepares a run on it.
fn on_store(
    flags: &Everywhere,
    (mut fences, gates): (Fences, Option<Gates>),
    leases: &[Name],
    spec: impl FnOnce(&dyn Store) -> Result<RunSpec, Failed>,
) -> Result<(RunSpec, Fences, OpenedStore), Failed> {
    let opened = super::open_tested(flags, leases)?;
    let store = config::opener(&opened.chosen);
    fences.keep_in(move || store().ok());
    let mut spec = spec(opened.store.as_ref())?;
    spec.store = Some(opened.chosen.shown.clone());
    spec.log = opened.log.clone();
    spec.gates = gates;
    spec.seen = spec.item.is_some().then(|| OtherStores::new(&opened.state, &opened.chosen.shown));
    if spec.item.is_some() || spec.gates.is_some() {
        spec.sockets = Some(opened.state.sockets().map_err(|e| Failed::config(Explanation::of(e)))?);
    }
    other_stores::told_by_file(&opened)?;
    Ok((spec, fences, opened))
}

/// What is asked for, as far as it is known without a store.
struct Order {
    leases: Vec<Name>,
    job: Name,
    program: Program,
    run_id: String,
}

impl Order {
    fn read(args: &RunArgs) -> Result<Self, Failed> {
        let leases = leases(args).map_err(|failed| hints::misplaced_name(failed, args))?;
        let job = args.manner.job.as_deref().map_or_else(|| Ok(leases[0].clone()), super::name)?;
        let run_id = run_id(args)?;
        let path = std::env::var_os("PATH");
        let hint = || hints::unknown_command(args);
        Ok(Self { program: find(&args.command[0], path.as_deref(), &leases[0], hint)?, leases, job, run_id })
    }

    /// The run, with timing that this store supports.
    fn spec(self, args: &RunArgs, store: &dyn Store, when: &Moment) -> Result<RunSpec, Failed> {
        let Self { leases, job, program, run_id } = self;
        let max_run = duration::parse_or_none(&args.manner.max_run).map_err(say::bad_max_run)?;
        let timing = &args.manner.timing;
        let (item, key) = item_args::item(args, &leases, &job, when)?;
        item.as_ref().map_or(Ok(()), |item| item_args::check_clock(item, &store.facts()))?;
        let wishes = TimingWishes { ttl: Some(timing.ttl), heartbeat: timing.heartbeat, grace: timing.grace };
        let (timing, rest) = (super::timing(wishes, store)?, args.command[1..].to_vec());
        Ok(RunSpec {
            item,
            key,
            tail: args.doing.tail,
            history: !args.no_history,
            wait: args.manner.wait.unwrap_or_default(),
            within: super::within(),
            max_run,
            foreground: std::io::stdin().is_terminal(),
            ..RunSpec::new(leases, job, run_id, timing, program, rest)
        })
    }
}

/// The terminal's settings, if stdin is one.
fn terminal() -> Option<Termios> {
    tcgetattr(std::io::stdin()).ok()
}

/// Resets the terminal: a program that was killed could not do so itself.
fn restore(before: &Termios) {
    let stdin = std::io::stdin();
    // A background process that sets the terminal is stopped.
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

fn leases(args: &RunArgs) -> Result<Vec<Name>, Failed> {
    let mut leases = vec![super::name(&args.name)?];
    for other in &args.or {
        let other = super::name(other)?;
        if leases.contains(&other) {
            return Err(say::named_twice(other));
        }
        leases.push(other);
    }
    Ok(leases)
}

/// Finds the program of a command on this PATH.
fn find(
    command: &OsStr,
    path: Option<&OsStr>,
    lease: &Name,
    hint: impl FnOnce() -> Option<String>,
) -> Result<Program, Failed> {
    lookup(command, path).map_err(|e| {
        let hint = if e.exit_code() == 127 { hint() } else { None };
        let why = say::no_command(&e, lease, hint.unwrap_or_default());
        Failed::new(FailKind::Command(e.exit_code()), "command", why)
    })
}

/// Run ids are passed in the environment and searched for in `/proc`, so they must be short and plain.
fn run_id(args: &RunArgs) -> Result<String, Failed> {
    let Some(id) = &args.run_id else { return Ok(host::fresh_run_id(None)) };
    let good = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    if id.is_empty() || id.len() > 100 || !id.chars().all(good) {
        return Err(say::bad_run_id(format!("{id:?}")));
    }
    Ok(host::fresh_run_id(Some(id)))
}
