//! `run --observe`: the command runs as it would without us, and we take notes.
//!
//! Only arguments that make no sense keep the command from running; nothing stops it or changes what it does. A busy
//! lease, a store that is down or not even found, and a target that would refuse are noted, and that is all.

use std::time::Duration;

use leasehold::core::fence::Bearer;
use leasehold::host;
use leasehold::lease::{Acquired, Lease, Leases};
use leasehold::memory::Memory;
use leasehold::runner::plain;
use leasehold::runner::run::{Spec, environment};
use leasehold::state::{StateDir, append_private};
use leasehold::stores::OpenError;
use leasehold::stores::memory::MemoryStore;
use leasehold::targets::Target;
use serde_json::{Value, json};

use super::watch::{self, Seen};
use crate::args::{Everywhere, Run};
use crate::cmd::{RUN_STORE, held_by, targets};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, Failed};
use crate::out::Out;

/// What a shell says of a command that the system does not execute.
const NOT_EXECUTED: u8 = 126;

/// Runs it; the exit code is the command's own.
pub fn run(flags: &Everywhere, args: &Run, out: &Out) -> Result<u8, Failed> {
    // No store is asked for advice: a run that only observes does not depend on one.
    let advice =
        MemoryStore::new().map_err(|failure| Failed::new(exit::CONFIG, "system", failure.message))?;
    let mut spec = super::Order::read(args)?.spec(args, &advice, &targets::Moment::today())?;
    let mut notes = Notes { seen: Vec::new(), out: *out };
    let state = notes.found(config::state_dir());
    let chosen = state.as_ref().and_then(|state| notes.found(config::choose(flags, state)));
    spec.env.extend(chosen.iter().map(|chosen| (RUN_STORE.into(), chosen.shown.clone().into())));
    let spec = &spec;
    let lease = state.as_ref().zip(chosen).and_then(|(state, chosen)| notes.ask(state, &chosen, spec));
    let bearer = lease.as_ref().map(|lease| Bearer::from(lease.granted()));
    let fenced = notes.targets(args, spec);
    let watched = notes.told(watch::before(fenced, bearer.clone()));
    let started = leasehold::clock::boot_time();
    let mut env = spec.env.clone();
    env.extend(bearer.iter().flat_map(|bearer| environment(bearer, spec)));
    // Where a fence is enforced already, and where it counts, the job is known for what it is.
    let has = |name: &str| spec.variable(name);
    let led = |bearer| {
        watched.iter().flat_map(|watched| watched.target.environment(bearer, &has)).collect::<Vec<_>>()
    };
    env.extend(bearer.iter().flat_map(led));
    let ran = plain::run(&spec.program, &spec.args, &env, spec.foreground);
    let code = *ran.as_ref().unwrap_or(&NOT_EXECUTED);
    let lasted = leasehold::clock::boot_time().since(started);
    notes.told(watch::after(watched, bearer));
    if let Some(lease) = lease {
        notes.give_back(lease);
    }
    let record = notes.record(spec, code, lasted);
    let line = format!("{record}\n");
    if let Some(Err(e)) = state.map(|state| append_private(&state.observed(), line.as_bytes())) {
        out.warn(&format!("what was seen could not be noted: {e}"));
    }
    crate::report::write(args.manner.report.as_deref(), out, || record);
    ran.map_err(|e| Failed::new(NOT_EXECUTED, "command", format!("cannot run the command: {e}")))
}

/// What was seen.
struct Notes {
    seen: Vec<Value>,
    out: Out,
}

impl Notes {
    fn add(&mut self, what: &str, text: String) {
        self.out.note(&format!("observed: {text}"));
        self.seen.push(json!({"what": what, "text": text}));
    }

    /// What the lease needs, if it is there.
    fn found<T>(&mut self, found: Result<T, Failed>) -> Option<T> {
        found.map_err(|failed| self.without_lease(&failed.of_a_look().message)).ok()
    }

    fn without_lease(&mut self, why: &str) {
        self.add("store", format!("no lease: {}; this run goes on without one", why.trim_end_matches('.')));
    }

    fn ask(&mut self, state: &StateDir, chosen: &Chosen, spec: &Spec) -> Option<Lease> {
        // What is not there is not made: a share that is not mounted would become a second store.
        self.found(config::open(chosen, Missing::Refuse))?;
        let opener = config::opener(chosen);
        let leases = Leases::on(move || opener().map_err(OpenError::Store))
            .remember_in(Memory::new(state.clone(), chosen.shown.clone()));
        let lease = &spec.leases[0];
        let ask = leases.lease(lease.as_str()).ttl(spec.timing.ttl).job(spec.job.as_str());
        let ask = if spec.history { ask } else { ask.no_history() };
        match pollster::block_on(ask.acquire()) {
            Ok(Acquired::Lease(lease)) => return Some(lease),
            Ok(Acquired::Busy(busy)) => {
                self.add("overlap", format!("{lease} is {}; this run goes on beside it", held_by(&busy)));
            }
            Err(error) => self.without_lease(&error.to_string()),
        }
        None
    }

    fn targets(&mut self, args: &Run, spec: &Spec) -> Vec<Box<dyn Target>> {
        let opened =
            targets::named(&args.manner.fence, &spec.leases[0], &spec.job, &targets::Moment::today());
        let (good, bad): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        for failed in bad.into_iter().filter_map(Result::err) {
            self.add("target", failed.message);
        }
        good.into_iter().filter_map(Result::ok).collect()
    }

    /// Notes what was seen on the way to something.
    fn told<T>(&mut self, (found, seen): (T, Vec<Seen>)) -> T {
        seen.into_iter().for_each(|(what, text)| self.add(what, text));
        found
    }

    fn give_back(&mut self, lease: Lease) {
        if let Err(lost) = lease.check() {
            self.add("lost", format!("{lost}; the job was not stopped, because this only observes"));
        }
        let _ = pollster::block_on(lease.release());
    }

    fn record(&self, spec: &Spec, code: u8, lasted: Duration) -> Value {
        json!({
            "v": 1,
            "time": host::utc(leasehold::clock::wall().as_secs()),
            "observed": true,
            "outcome": if code == 0 { "ok" } else { "failed" },
            "job": spec.job.as_str(),
            "lease": spec.leases[0].as_str(),
            "host": host::name(),
            "run_id": spec.run_id,
            "exit": code,
            "duration_s": lasted.as_secs_f64(),
            "seen": self.seen,
        })
    }
}
