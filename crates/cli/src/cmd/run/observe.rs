//! `run --observe`: the command runs as it would without Leasehold, which only takes notes.
//!
//! Only invalid arguments keep the command from running; nothing stops it or changes what it does. A busy lease, a key or
//! slot that is done, a store that is down or missing, and a target that would refuse are noted, nothing more. A run that
//! gets the lease writes what every run writes: the lease, and the record of its key or slot.

pub mod diary;

use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::backends::gate::{self, Gates};
use leasehold::backends::memory::MemoryStore;
use leasehold::core::fence::Bearer;
use leasehold::core::ledger::{Ending, ItemRecorded, ItemState, Opened, classify};
use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::core::session::{JobExit, NEAR_PATIENCE};
use leasehold::host;
use leasehold::lease::{Acquired, Lease, Leases};
use leasehold::ledger::{Item, ItemRecorder};
use leasehold::messages::Explanation;
use leasehold::other_stores::OtherStores;
use leasehold::seen_tokens::SeenTokens;
use leasehold::state::{StateDir, append_private};
use leasehold::stores::{Failure, OpenError, Store};
use leasehold::targets::Target;
use leasehold_run::placeholders::Moment;
use leasehold_run::runner::run::RunSpec;
use leasehold_run::runner::{environment, exec};
use leasehold_run::step_server::{StepResponder, StepServer};
use serde_json::{Value, json};

use self::diary::Beside;
use super::watch::{self, Observation, Observed};
use crate::args::{Everywhere, RunArgs};
use crate::cmd::{held_by, item_args, other_stores, run_log, target_args};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, FailKind, Failed};
use crate::messages::observe as say;
use crate::out::Out;
use crate::report::{self, Report};

/// The end of a command that the system does not execute, as in a shell.
const NOT_EXECUTED: JobExit = JobExit::Failed(126);

/// The reason in the run log of a run that another one ran beside.
const OVERLAPPED: &str = "overlapped";

/// Runs it; the exit code is the command's own.
pub fn run(flags: &Everywhere, args: &RunArgs, out: &Out) -> Result<u8, Failed> {
    if args.doing.tail {
        return Err(say::tail());
    }
    // The limits of a store in memory: a run that only observes depends on no store.
    let limits = MemoryStore::new().map_err(no_limits)?;
    let order = super::Order::read(args)?;
    let when = item_args::moment(flags, args, &order.job)?;
    let mut spec = order.spec(args, &limits, &when)?;
    let mut notes = Observations { seen: Vec::new(), held_by: None, out: *out };
    let state = notes.found(config::state_dir());
    let chosen = state.as_ref().and_then(|state| notes.found(config::choose(flags, state)));
    let chosen = chosen.as_ref();
    spec.store = chosen.map(|chosen| chosen.shown.clone());
    let elsewhere = state
        .as_ref()
        .zip(chosen)
        .map(|(state, chosen)| OtherStores::new(state, &chosen.shown).passing_all());
    spec.seen = elsewhere;
    let spec = &spec;
    let path = state.as_ref().map(StateDir::observed);
    let start = diary::line(spec, chosen, diary::STARTED);
    // If this fails, so does the note at the end, which is reported.
    path.iter().for_each(|path| drop(note(path, &start)));
    let lease = state.as_ref().zip(chosen).and_then(|(state, chosen)| notes.ask(state, chosen, spec));
    let mut item = chosen.and_then(|chosen| notes.item(chosen, spec, lease.as_ref()));
    let bearer = lease.as_ref().map(|lease| Bearer::from(lease.granted()));
    let (fenced, gates) = notes.targets(flags, args, spec, &when);
    let watched = notes.told(watch::before(fenced, bearer.clone()));
    let started = leasehold::clock::boot_time();
    // The job gets the run's identity, so fences that enforce accept its writes, and fences that observe count them.
    let has = |name: &str| spec.variable(name);
    let led = |bearer| {
        watched.iter().flat_map(|watched| watched.target.environment(bearer, &has)).collect::<Vec<_>>()
    };
    let targets = bearer.iter().flat_map(led).collect();
    let responder =
        bearer.clone().zip(gates).map(|(run, gates)| StepResponder::new(run).with_gates(gates, gate::ALL));
    let steps = responder.zip(state.as_ref()).and_then(|(responder, state)| notes.listen(responder, state));
    let socket = steps.as_ref().map(StepServer::path);
    let env = environment::variables(spec, bearer.as_ref(), None, socket, targets);
    let ran = exec::run(&spec.program, &spec.args, &env, spec.foreground);
    let (exit, asked) = ran.as_ref().map_or((NOT_EXECUTED, &[][..]), |ran| (ran.exit, &ran.asked));
    let outcome = classify(exit, None, asked);
    let code = u8::try_from(exit.status()).unwrap_or(u8::MAX);
    let lasted = leasehold::clock::boot_time().since(started);
    let left = notes.told(watch::after(watched, bearer));
    if let Some((recorder, store)) = &mut item {
        let recorded = close(recorder, store.as_mut(), outcome, exit, lasted);
        recorded.unnoted.iter().for_each(|(subject, why)| other_stores::warn_unnoted(subject, why, out));
    }
    if let Some(lease) = lease {
        notes.release(lease);
    }
    let mut overwrote = false;
    if let Some(path) = &path {
        let beside = Beside::read(path, &start);
        overwrote = beside.overwrote_newer(&left);
        let seen = beside.seen(&left, notes.held_by.as_deref());
        notes.told(((), seen));
    }
    if let Some(chosen) = chosen.filter(|_| spec.history) {
        let overlapped = notes.seen.iter().any(|seen| seen.0 == Observed::Overlap);
        let reason = if overwrote {
            "overwrote-newer"
        } else if overlapped {
            OVERLAPPED
        } else {
            "alone"
        };
        let log = run_log::record(LogEvent::Observed, &spec.job);
        let log = LogRecord {
            reason: Some(reason.into()),
            lease: Some(spec.leases[0].clone()),
            exit: Some(code.into()),
            took: Some(lasted),
            item: spec.item.as_ref().map(|item| item.subject.clone()),
            holder: host::holder(&spec.run_id, &spec.job),
            ..log
        };
        run_log::on(flags, chosen, &log);
    }
    let mut record = diary::line(spec, chosen, outcome.word());
    record["exit"] = code.into();
    record["duration_s"] = lasted.as_secs_f64().into();
    let seen = notes.seen.iter().map(|(what, text)| json!({"what": what.word(), "text": text}));
    record["seen"] = seen.collect();
    record["wrote"] = diary::wrote(&left).into();
    if let Some(Err(e)) = path.map(|path| note(&path, &record)) {
        out.warn(&say::not_noted(e));
    }
    report::write(&args.manner.reports, out, || Report { outcome, object: record });
    match ran {
        Ok(_) => Ok(code),
        Err(e) => Err(Failed::new(FailKind::Command(code), "command", say::not_executed(e))),
    }
}

fn no_limits(failure: Failure) -> Failed {
    Failed::new(FailKind::Config, "system", Explanation::of(failure.message))
}

fn note(path: &Path, line: &Value) -> io::Result<()> {
    append_private(path, format!("{line}\n").as_bytes())
}

/// Records how its key or slot ended.
fn close(
    recorder: &mut ItemRecorder,
    store: &mut dyn Store,
    outcome: ItemState,
    exit: JobExit,
    lasted: Duration,
) -> ItemRecorded {
    let took_ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
    let (exit, at) = (Some(exit.status()), item_args::now());
    let ending = Ending { exit, took_ms, at, reason: None, said: String::new() };
    recorder.record(store, outcome, ending, leasehold::clock::boot_time().plus(NEAR_PATIENCE))
}

/// What the run observed.
struct Observations {
    seen: Vec<Observation>,
    /// The id of the run that held the lease when this one started.
    held_by: Option<String>,
    out: Out,
}

impl Observations {
    fn add(&mut self, what: Observed, text: String) {
        self.out.note(&say::observed(&text));
        self.seen.push((what, text));
    }

    /// Something that the lease needs; if it is missing, the run goes on without a lease.
    fn found<T>(&mut self, found: Result<T, Failed>) -> Option<T> {
        found.map_err(|failed| self.without_lease(&failed.of_a_look().told.to_string())).ok()
    }

    fn without_lease(&mut self, why: &str) {
        self.add(Observed::Store, say::without_lease(why));
    }

    fn ask(&mut self, state: &StateDir, chosen: &Chosen, spec: &RunSpec) -> Option<Lease> {
        // A missing store is not made: a share that is not mounted would become a second store.
        self.found(config::open(chosen, Missing::Refuse))?;
        let opener = config::opener(chosen);
        let leases = Leases::on(move || opener().map_err(OpenError::Store))
            .remember_in(SeenTokens::new(state.clone(), chosen.shown.clone()));
        let lease = &spec.leases[0];
        let ask =
            leases.lease(lease.as_str()).ttl(spec.timing.ttl).job(spec.job.as_str()).run_id(&spec.run_id);
        // The end of this run is logged below.
        match pollster::block_on(ask.no_history().acquire()) {
            Ok(Acquired::Lease(lease)) => return Some(lease),
            Ok(Acquired::Busy(busy)) => {
                self.held_by = Some(busy.holder.run.clone());
                self.add(Observed::Overlap, say::overlap(lease, held_by(&busy)));
            }
            Err(error) => self.without_lease(&error.to_string()),
        }
        None
    }

    /// Starts the key or slot, as a run would. Notes what would keep a run from it.
    fn item(
        &mut self,
        chosen: &Chosen,
        spec: &RunSpec,
        lease: Option<&Lease>,
    ) -> Option<(ItemRecorder, Box<dyn Store>)> {
        let item = spec.item.as_ref()?;
        // A store that cannot be opened was noted with the lease.
        let mut store = config::open(chosen, Missing::Refuse).ok()?;
        // Both are read first: a slot whose key is done is not started.
        for item in spec.item.iter().chain(&spec.key) {
            if let Ok(Some(opened)) = leasehold::ledger::peek(store.as_mut(), item) {
                self.would_not_run(&opened, item, chosen);
                return None;
            }
        }
        let mut recorder = spec.recorder()?;
        let opened = recorder.open(store.as_mut(), lease?.granted());
        for (subject, why) in &opened.unnoted {
            other_stores::warn_unnoted(subject, why, &self.out);
        }
        let Some(held_off) = opened.held_off() else { return Some((recorder, store)) };
        let item = spec.key.as_ref().filter(|_| opened.key.is_some()).unwrap_or(item);
        self.would_not_run(held_off, item, chosen);
        None
    }

    fn would_not_run(&mut self, opened: &Opened, item: &Item, chosen: &Chosen) {
        let name = item_args::shown(&item.subject);
        match item_args::skip_reason(opened, item) {
            Some(why) => self.add(Observed::Skipped, say::would_skip(name, why)),
            None => {
                if let Err(Failed { kind, word, .. }) =
                    item_args::not_run(opened, item, exit::OK, chosen, &self.out)
                {
                    self.add(Observed::NotRun, say::would_not_run(name, word, kind.code()));
                }
            }
        }
    }

    fn targets(
        &mut self,
        flags: &Everywhere,
        args: &RunArgs,
        spec: &RunSpec,
        when: &Moment,
    ) -> (Vec<Box<dyn Target>>, Option<Gates>) {
        let mut gates = None;
        let opened =
            target_args::named(&args.manner.fence, &spec.leases[0], &spec.job, when, flags, &mut gates);
        let (good, bad): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        for failed in bad.into_iter().filter_map(Result::err) {
            self.add(Observed::Target, failed.of_a_look().told.to_string());
        }
        (good.into_iter().filter_map(Result::ok).collect(), gates)
    }

    /// The socket at which the job passes its gates.
    fn listen(&mut self, responder: StepResponder, state: &StateDir) -> Option<StepServer> {
        let listening = state.sockets().map_err(|e| e.to_string());
        let listening =
            listening.and_then(|dir| StepServer::listen(&dir, responder).map_err(|e| e.to_string()));
        listening.map_err(|why| self.add(Observed::Target, say::no_gates(why))).ok()
    }

    /// Notes what was seen, and passes the rest on.
    fn told<T>(&mut self, (found, seen): (T, Vec<Observation>)) -> T {
        seen.into_iter().for_each(|(what, text)| self.add(what, text));
        found
    }

    fn release(&mut self, lease: Lease) {
        if let Err(lost) = lease.check() {
            self.add(Observed::Lost, say::lost(lost));
        }
        let _ = pollster::block_on(lease.release());
    }
}
