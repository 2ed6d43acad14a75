//! Simulates schedulers, runs, an operator and a sweeper on one store. A seed decides the order of their calls. Calls fail,
//! writes land late, and actors are frozen or killed between any two calls.
//!
//! The shipped code looks at the jobs, decides which slot to try next and when, takes leases, and records. The loop of a
//! scheduler, the run of a command, the store, the clock and the order are the simulation's. A check of every write finds
//! what must never happen; an audit of every slot finds what must be so in the end.
//!
//! `LEASEHOLD_SEED=n` replays one schedule with its calls (`LEASEHOLD_FLAW=name` a broken variant), and
//! `LEASEHOLD_LONG=1` runs a hundred times as many.

mod audit;
mod flaws;
mod plan;
mod runs;
mod schedulers;
mod store;
mod turns;
mod watch;

use std::io::Write as _;
use std::sync::Arc;

use flaws::{FLAWS, Flaw};
use turns::{Call, Role, Stage};
use watch::Counts;

const SCHEDULES: u64 = 2_000;
const LONG: u64 = 200_000;
/// A broken variant must be caught within so many.
const FLAW_SCHEDULES: u64 = 1_000;
/// Rounds of looks without failures, after which all must be settled.
const ROUNDS: usize = 12;

struct Played {
    broken: Option<String>,
    trace: Vec<Call>,
    counts: Counts,
    cast: Vec<Role>,
    plan: plan::Plan,
}

fn play(seed: u64, flaw: Flaw, tracing: bool) -> Played {
    let stage = Stage::new(seed, flaw);
    {
        let mut state = stage.lock();
        state.tracing = tracing;
        for _ in 0..state.plan.daemons {
            stage.spawn(&mut state, Role::Daemon, None, schedulers::daemon);
        }
        stage.spawn(&mut state, Role::Tick, None, schedulers::tick);
        stage.spawn(&mut state, Role::Operator, None, schedulers::operator);
        stage.spawn(&mut state, Role::Sweeper, None, schedulers::sweeper);
    }
    stage.play();
    stage.lock().calm = true;
    stage.spawn(&mut stage.lock(), Role::Operator, None, schedulers::settle);
    stage.play();
    // By a clock that is a second ahead.
    let upto = stage.lock().clock.cast_signed() + 1;
    let quiet = stage.lock().watch.broken.is_some() || settles(&stage, upto);
    let mut state = stage.lock();
    if !quiet {
        state.watch.wrong("it never comes to rest".into());
    }
    let broken = (0..state.plan.jobs.len()).find_map(|n| audit::audit(&state, n, upto));
    broken.into_iter().for_each(|what| state.watch.wrong(what));
    let cast = state.cast();
    let trace = std::mem::take(&mut state.trace);
    Played {
        broken: state.watch.broken.take(),
        trace,
        counts: state.watch.counts,
        cast,
        plan: state.plan.clone(),
    }
}

/// Two schedulers look in turns until nothing that is due by then is left to do.
fn settles(stage: &Arc<Stage>, upto: i64) -> bool {
    for _ in 0..ROUNDS {
        {
            let mut state = stage.lock();
            state.as_of = Some(upto.unsigned_abs());
            stage.spawn(&mut state, Role::Tick, None, schedulers::tick);
            stage.spawn(&mut state, Role::Tick, None, schedulers::tick);
        }
        stage.play();
        stage.spawn(&mut stage.lock(), Role::Tick, None, move |me| audit::last_look(me, upto));
        stage.play();
        if stage.lock().quiet {
            return true;
        }
        // The leases of dead runs have expired by then.
        stage.pass(&mut stage.lock(), 13);
    }
    false
}

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// The calls of a schedule, what is wrong with it, and how to replay it.
fn tell(seed: u64, flaw: Flaw) -> String {
    let played = play(seed, flaw, true);
    let which = if flaw == Flaw::None { String::new() } else { format!(" LEASEHOLD_FLAW={flaw:?}") };
    let calls = played.trace.iter().map(|Call { actor, verb, key, clock, said }| {
        let role = played.cast.get(*actor).map_or_else(String::new, |role| format!("{role:?}"));
        format!("{clock} {actor:3} {role:20} {verb} {key}: {said}\n")
    });
    let calls: String = calls.collect();
    let what = played.broken.as_deref().unwrap_or("nothing is wrong");
    format!(
        "{calls}{:?}\n{what}\nLEASEHOLD_SEED={seed}{which} cargo test -p leasehold-run --test schedulers_in_turns",
        played.plan
    )
}

fn replayed() -> bool {
    let Some(seed) = std::env::var("LEASEHOLD_SEED").ok().and_then(|text| text.parse().ok()) else {
        return false;
    };
    let name = std::env::var("LEASEHOLD_FLAW").unwrap_or_default();
    let flaw = FLAWS.into_iter().find(|flaw| format!("{flaw:?}") == name).unwrap_or(Flaw::None);
    let played = play(seed, flaw, false);
    report(&tell(seed, flaw));
    assert!(played.broken.is_none() || flaw != Flaw::None, "{:?}", played.broken);
    true
}

#[test]
fn every_slot_comes_to_one_end() {
    if replayed() {
        return;
    }
    let schedules = if std::env::var_os("LEASEHOLD_LONG").is_some() { LONG } else { SCHEDULES };
    let (mut all, mut calls) = (Counts::default(), 0);
    for seed in 0..schedules {
        let played = play(seed, Flaw::None, false);
        assert!(played.broken.is_none(), "{}", tell(seed, Flaw::None));
        calls += played.trace.len();
        all = all.plus(&played.counts);
    }
    report(&format!("schedulers: {schedules} schedules, {calls} calls; {all:?}"));
}

#[test]
fn one_seed_is_one_schedule() {
    if std::env::var_os("LEASEHOLD_SEED").is_some() {
        return;
    }
    for seed in 0..50 {
        let calls = || -> Vec<(usize, &str, String)> {
            let trace = play(seed, Flaw::None, false).trace;
            trace.into_iter().map(|call| (call.actor, call.verb, call.key)).collect()
        };
        assert_eq!(calls(), calls(), "seed {seed}");
    }
}

#[test]
fn broken_variants_are_caught() {
    if std::env::var_os("LEASEHOLD_SEED").is_some() {
        return;
    }
    for flaw in FLAWS {
        let caught = (0..FLAW_SCHEDULES).find_map(|seed| Some((seed, play(seed, flaw, false).broken?)));
        let (seed, what) = caught.unwrap_or_else(|| panic!("{flaw:?} was not caught"));
        report(&format!("schedulers: caught {flaw:?} after {}: {what}", seed + 1));
    }
}
