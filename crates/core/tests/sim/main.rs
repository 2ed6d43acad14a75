//! The production session under simulated faults: seeded schedules in virtual time. The checks judge what
//! really happened in the store, at the target and in the process trees.
//!
//! `LEASEHOLD_SEED=n` replays one schedule with its trace (`LEASEHOLD_MUTANT=name` under a mutant),
//! `LEASEHOLD_SCHEDULES=n` sets how many run, `LEASEHOLD_BASE=n` where seeds start, and
//! `LEASEHOLD_LONG=1` runs ten million.

mod checks;
mod clock;
mod driver;
mod faults;
mod forgets;
mod items;
mod jobs;
mod legality;
mod mutants;
mod plagues;
mod store;
mod trace;
mod world;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::rules::{Rules, Standard};

use faults::{KINDS, Met};
use mutants::{MUTANTS, Mutant, broken};
use world::World;

const DEFAULT: u64 = 300_000;
const LONG: u64 = 10_000_000;
/// A mutant must be caught within this many schedules.
const MUTANT_SCHEDULES: u64 = 50_000;
const BASE: u64 = 1_000_000;
const THREADS: u64 = 2;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Writes to stdout directly, so that the numbers are shown on success too.
fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

struct Ran {
    violation: Option<String>,
    trace: String,
    met: Met,
    virtual_nanos: u64,
}

fn run_with<R: Rules>(seed: u64, mutant: Mutant, rules: fn(Mutant, i64) -> R, tracing: bool) -> Ran {
    let mut world = World::new(seed, mutant, rules, tracing);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run()));
    if panicked.is_err() {
        world.violation.get_or_insert("panicked".into());
    }
    Ran { violation: world.violation, trace: world.trace, met: world.met, virtual_nanos: world.now }
}

fn run(seed: u64, mutant: Mutant, tracing: bool) -> Ran {
    match mutant {
        Mutant::None => run_with(seed, mutant, |_, _| Standard, tracing),
        _ => run_with(seed, mutant, broken, tracing),
    }
}

fn replay_line(seed: u64, mutant: Mutant) -> String {
    let name = match mutant {
        Mutant::None => String::new(),
        other => format!(" LEASEHOLD_MUTANT={other:?}"),
    };
    format!("LEASEHOLD_SEED={seed}{name} cargo test -p leasehold-core --test sim")
}

/// The lowest seed in `from..to` that breaks a promise, and the faults that were met before it.
fn search(from: u64, to: u64, mutant: Mutant) -> (Option<(u64, String)>, Met, u64) {
    let next = AtomicU64::new(from);
    let stop = AtomicU64::new(to);
    let found: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let totals = Mutex::new((Met::new(), 0u64));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let (mut met, mut nanos) = (Met::new(), 0u64);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let ran = run(seed, mutant, false);
                    met.merge(&ran.met);
                    nanos += ran.virtual_nanos;
                    if let Some(what) = ran.violation {
                        stop.fetch_min(seed, Ordering::Relaxed);
                        let mut found = found.lock().unwrap();
                        if found.as_ref().is_none_or(|(best, _)| seed < *best) {
                            *found = Some((seed, what));
                        }
                    }
                }
                let mut totals = totals.lock().unwrap();
                totals.0.merge(&met);
                totals.1 += nanos;
            });
        }
    });
    let (met, nanos) = totals.into_inner().unwrap();
    (found.into_inner().unwrap(), met, nanos)
}

/// With `LEASEHOLD_SEED` only the replay runs.
fn replaying() -> bool {
    variable("LEASEHOLD_SEED").is_some()
}

#[test]
fn replay() {
    let Some(seed) = variable("LEASEHOLD_SEED") else { return };
    let mutant = std::env::var("LEASEHOLD_MUTANT").ok().filter(|name| !name.is_empty());
    let mutant = mutant.map_or(Mutant::None, |name| Mutant::by_name(&name).expect("no such mutant"));
    let ran = run(seed, mutant, true);
    report(&ran.trace);
    match ran.violation {
        Some(what) => panic!("seed {seed}: {what}"),
        None => report(&format!("seed {seed}: no violation")),
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    if replaying() {
        return;
    }
    let long = std::env::var_os("LEASEHOLD_LONG").is_some();
    let count = variable("LEASEHOLD_SCHEDULES").unwrap_or(if long { LONG } else { DEFAULT });
    let base = variable("LEASEHOLD_BASE").unwrap_or(BASE);
    #[allow(clippy::disallowed_methods)] // for the report only
    let began = std::time::Instant::now();
    let (found, met, nanos) = search(base, base + count, Mutant::None);
    let took = began.elapsed().as_secs_f64();
    if let Some((seed, what)) = found {
        panic!("{what}\n{}", replay_line(seed, Mutant::None));
    }
    let missed: Vec<_> = KINDS.iter().filter(|k| met.0[**k as usize] == 0).collect();
    report(&format!(
        "sim: {count} schedules in {took:.1} s ({:.0}/s), {:.0} simulated hours, {} of {} fault kinds (not {missed:?}), 0 violations",
        count as f64 / took,
        nanos as f64 / 3.6e12,
        KINDS.len() - missed.len(),
        KINDS.len(),
    ));
    if count >= 10_000 {
        assert!(missed.len() * 20 <= KINDS.len(), "fault kinds never met: {missed:?}");
    }
}

#[test]
fn every_mutant_is_caught() {
    if replaying() {
        return;
    }
    let base = variable("LEASEHOLD_BASE").unwrap_or(BASE);
    let mut blind = Vec::new();
    for (mutant, does) in MUTANTS {
        match search(base, base + MUTANT_SCHEDULES, *mutant).0 {
            Some((seed, what)) => {
                let tried = seed - base + 1;
                report(&format!("sim: caught {mutant:?} ({does}) after {tried}, seed {seed}: {what}"));
            }
            None => blind.push(format!("{mutant:?} ({does})")),
        }
    }
    assert!(blind.is_empty(), "nobody caught: {blind:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    if replaying() {
        return;
    }
    for seed in 0..200 {
        let (first, second) = (run(seed, Mutant::None, true), run(seed, Mutant::None, true));
        assert!(first.trace.len() > 200, "the schedule has events");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}
