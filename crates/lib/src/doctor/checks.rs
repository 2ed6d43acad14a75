//! The checks, in their order.

use std::thread;
use std::time::Duration;

use super::measure::Ages;
use super::messages as say;
use super::{Depth, Progress, Promise, Visit, measure, paths, unusable};
use crate::clock::boot_time;
use crate::stores::conformance::{self as suite, BrokenRule, Effort, Harness};
use crate::stores::{Cas, Failure, FailureKind, RemarkLevel};
use leasehold_core::human_duration::HumanDuration;

/// One check of the doctor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Compare,
    Races,
    Reach,
    Caution,
    Crowd,
    Create,
    Stale,
    Late,
    Recreated,
    Versions,
    Reads,
    Updates,
    Durability,
    Age,
    Latency,
    Clock,
    Push,
    Ttl,
    Paths,
    /// A remark of the store about itself, under this word.
    Remark(&'static str),
}

impl Check {
    /// The word that is shown.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Races => "races",
            Self::Reach => "reach",
            Self::Caution => "caution",
            Self::Crowd => "crowd",
            Self::Create => "create",
            Self::Stale => "stale",
            Self::Late => "late",
            Self::Recreated => "recreated",
            Self::Versions => "versions",
            Self::Reads => "reads",
            Self::Updates => "updates",
            Self::Durability => "durability",
            Self::Age => "age",
            Self::Latency => "latency",
            Self::Clock => "clock",
            Self::Push => "push",
            Self::Ttl => "ttl",
            Self::Paths => "paths",
            Self::Remark(word) => word,
        }
    }

    /// The promise that a store breaks if it fails this check.
    pub(super) fn promise(self) -> Promise {
        match self {
            Self::Age => Promise::P3,
            _ => Promise::P1,
        }
    }
}

/// After this long only the necessary checks are made.
pub(super) const ENOUGH: Duration = Duration::from_secs(10);

/// Writers in a race.
pub(super) const WRITERS: usize = 32;
/// Most handles that one rule opens at once.
const HANDLES: usize = 3;

/// A check, the function that makes it, and the line to show if the store passes.
type Rule = (Check, suite::Check, fn() -> String);

/// Rules that one caller at a time can check.
const RULES: &[Rule] = &[
    (Check::Create, suite::create_if_absent, say::create),
    (Check::Stale, suite::stale_holder, say::stale),
    (Check::Late, suite::late_landing_write, say::late),
    (Check::Recreated, suite::recreated_record, say::recreated),
    (Check::Versions, suite::equal_bodies_differ_in_version, say::versions),
    (Check::Reads, suite::read_your_writes, say::reads),
];

/// Makes the checks of this depth. The error is that of a call that failed: no further check is made then.
pub(super) fn all(visit: &mut Visit<'_>) -> Result<(), Failure> {
    if visit.depth == Depth::Probe {
        visit.begin(Check::Compare);
        // Nothing is written to a store that does not answer, so nothing is left there.
        pollster::block_on(visit.scratch.handle("probe").read("record"))?;
        let done = suite::compares_and_sets(&harness(visit, "probe"));
        visit.diagnosis.facts = Some(visit.scratch.handle("probe").facts());
        judged(visit, Check::Compare, done, say::compares())?;
        short_race(visit)?;
        remarks(visit);
        return Ok(());
    }
    let mut ages = reach(visit)?;
    paths::compare(visit)?;
    if visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        return Ok(());
    }
    let writers = crowd(visit)?;
    rules(visit, writers, &mut ages)?;
    races(visit, writers, &mut ages)?;
    if visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        // The speed of a refused store is of no use.
        return Ok(());
    }
    let worst = measure::latency(visit, &mut ages)?;
    measure::push(visit)?;
    ages.judge(visit)?;
    remarks(visit);
    measure::ttl(visit, worst);
    Ok(())
}

/// Finds a store that compares first and writes later, which one caller alone cannot find.
fn short_race(visit: &mut Visit<'_>) -> Result<(), Failure> {
    let (writers, refused) = visit.scratch.crowd(8, Duration::from_secs(1));
    if visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        return Ok(());
    }
    visit.begin(Check::Races);
    if writers < 2 {
        let why = refused.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
        visit.found(Check::Races, RemarkLevel::Weak, say::not_raced(why));
        return Ok(());
    }
    let until = Some(boot_time().plus(Duration::from_millis(1_500)));
    let effort = Effort { writers, rounds: 16, until, ..Effort::default() };
    let done = suite::racing_creates(&harness(visit, "race-c").trying(effort));
    judged(visit, Check::Races, done, say::one_winner())
}

fn harness(visit: &Visit<'_>, part: &'static str) -> Harness {
    let scratch = visit.scratch.clone();
    Harness::new(move || scratch.handle(part))
}

/// Reports the result of a check. A call that failed is no result, and is given back.
fn judged(
    visit: &mut Visit<'_>,
    check: Check,
    done: Result<(), BrokenRule>,
    good: String,
) -> Result<(), Failure> {
    match done {
        Ok(()) => visit.found(check, RemarkLevel::Good, good),
        Err(BrokenRule { failure: Some(failure), .. }) => return Err(failure),
        Err(BrokenRule { text, many_winners, .. }) => {
            visit.found_in_race(check, RemarkLevel::Unsafe, text, many_winners);
        }
    }
    Ok(())
}

/// The first calls: whether the store is there, and may be written.
fn reach(visit: &mut Visit<'_>) -> Result<Ages, Failure> {
    visit.begin(Check::Reach);
    let started = boot_time();
    let mut handle = visit.scratch.handle("age");
    pollster::block_on(handle.read("record"))?;
    let first = boot_time().since(started);
    let facts = handle.facts();
    if facts.instance.is_empty() {
        return Err(unusable(say::nameless()));
    }
    let ages = Ages::begin(handle)?;
    visit.diagnosis.facts = Some(facts.clone());
    let far = if ages.far() { say::far() } else { String::new() };
    visit.found(Check::Reach, RemarkLevel::Good, say::reached(text(first), far));
    if let Some(caution) = facts.caution {
        visit.found(Check::Caution, RemarkLevel::Weak, caution);
    }
    Ok(ages)
}

/// Checks the rules, as many at once as the store accepts connections: one after the other takes long on a far store.
fn rules(visit: &mut Visit<'_>, connections: usize, ages: &mut Ages) -> Result<(), Failure> {
    RULES.chunks((connections / HANDLES).max(1)).try_for_each(|wave| side_by_side(visit, wave, ages))
}

/// Checks some rules at once, each on a thread of its own and under its own keys. The result of one stands even if
/// another failed.
fn side_by_side(visit: &mut Visit<'_>, wave: &[Rule], ages: &mut Ages) -> Result<(), Failure> {
    let few_steps = ages.far() || !ages.facts.spacing.is_zero();
    let begin = |(check, rule, _): &Rule| {
        let (mut harness, rule) = (harness(visit, check.word()), *rule);
        if few_steps {
            harness.effort.steps = 2;
        }
        thread::spawn(move || {
            let started = boot_time();
            (rule(&harness), boot_time().since(started))
        })
    };
    let started: Vec<_> = wave.iter().map(begin).collect();
    let mut all = Ok(());
    for ((check, _, good), checking) in wave.iter().zip(started) {
        (visit.tell)(Progress::Begun(check.word()));
        let checked = match checking.join() {
            Ok((done, took)) => {
                // It started with all the others.
                visit.since = boot_time().minus(took);
                judged(visit, *check, done, good())
            }
            Err(_) => Err(unusable(say::panicked(check.word()))),
        };
        all = all.and(checked);
    }
    all.and_then(|()| ages.sample())
}

/// How many connections the store accepts at once; they are kept for the races.
fn crowd(visit: &mut Visit<'_>) -> Result<usize, Failure> {
    visit.begin(Check::Crowd);
    let (accepted, refused) = visit.scratch.crowd(WRITERS, Duration::from_secs(3));
    // If only the time ran out, the store is not at fault.
    let Some(why) = refused else { return Ok(accepted) };
    if accepted < 2 {
        return Err(why);
    }
    visit.found(Check::Crowd, RemarkLevel::Weak, say::few_connections(accepted, WRITERS, why.message));
    Ok(accepted)
}

fn races(visit: &mut Visit<'_>, writers: usize, ages: &mut Ages) -> Result<(), Failure> {
    let (rounds, patience) = match visit.depth {
        Depth::Full if !ages.far() => (20, Duration::from_secs(2)),
        Depth::Full => (20, Duration::from_secs(1)),
        Depth::Probe | Depth::Quick => (6, Duration::from_secs(1)),
    };
    // A slow store gets fewer rounds, not more time.
    let patience = patience.min(visit.started.plus(ENOUGH).since(boot_time()) / 2);
    visit.begin(Check::Races);
    let effort = |rounds: usize, writers: usize, lines: usize| Effort {
        writers,
        rounds,
        lines,
        until: Some(boot_time().plus(patience)),
        ..Effort::default()
    };
    let spaced = !ages.facts.spacing.is_zero();
    let created = suite::race_to_create(&harness(visit, "race-c").trying(effort(rounds, writers, 0)));
    let updates = effort(if spaced { 2 } else { rounds }, writers, 0);
    // No second race if the first failed or found fault.
    let raced = created.and_then(|created| {
        let updated = suite::race_to_update(&harness(visit, "race-u").trying(updates))?;
        Ok((created, updated))
    });
    let good = raced
        .as_ref()
        .map_or_else(|_| String::new(), |(created, updated)| say::races(writers, created, updated));
    judged(visit, Check::Races, raced.map(drop), good)?;
    if spaced || visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        return Ok(());
    }
    ages.sample()?;
    visit.begin(Check::Updates);
    let few = writers.min(8);
    let done = suite::no_lost_update(&harness(visit, "lines").trying(effort(0, few, 3)));
    judged(visit, Check::Updates, done, say::updates(few))?;
    ages.sample()
}

/// The remarks of the store about itself.
fn remarks(visit: &mut Visit<'_>) {
    visit.begin(Check::Durability);
    let mut handle = visit.scratch.handle("remarks");
    match pollster::block_on(handle.examine()) {
        Ok(remarks) if remarks.is_empty() => {
            let durability = visit.diagnosis.facts.as_ref().map_or("", |facts| facts.durability);
            visit.found(Check::Durability, RemarkLevel::Good, durability);
        }
        Ok(remarks) => {
            for remark in remarks {
                visit.found(Check::Remark(remark.about), remark.verdict, remark.text);
            }
        }
        Err(failure) => {
            visit.found(Check::Durability, RemarkLevel::Weak, say::no_settings(failure.message));
        }
    }
}

/// A short time as people read it.
pub(super) fn text(time: Duration) -> String {
    match time.as_micros() {
        0..10 => "under 0.01ms".into(),
        micros @ 10..1_000 => format!("0.{:02}ms", micros / 10),
        micros @ 1_000..10_000 => format!("{}.{}ms", micros / 1_000, micros % 1_000 / 100),
        _ => HumanDuration(time).to_string(),
    }
}

/// Makes a write while nobody else writes; gives its version and the store's time.
pub(super) fn write(
    handle: &mut dyn crate::stores::Store,
    key: &str,
    expected: Option<&crate::stores::Version>,
) -> Result<(crate::stores::Version, Option<Duration>), Failure> {
    let write = leasehold_core::ids::WriteId(crate::random::seed());
    let body = write.to_string();
    match pollster::block_on(handle.cas(key, expected, write, body.as_bytes())) {
        Cas::Written { version, store_time } => Ok((version, store_time)),
        Cas::Unknown(failure) => Err(failure),
        Cas::Conflict => Err(Failure::new(FailureKind::Unusable, say::refused_write())),
    }
}
