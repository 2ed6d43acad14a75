//! What is looked at, in order.

use std::thread;
use std::time::Duration;

use super::measure::Ages;
use super::{Depth, Progress, Visit, measure, paths, unusable};
use crate::clock::boot_time;
use crate::stores::conformance::{self as suite, BrokenRule, Check, Effort, Harness};
use crate::stores::{Cas, Failure, FailureKind, RemarkLevel};
use leasehold_core::human_duration::HumanDuration;

/// The examination whose result says most about a store that lies.
pub(super) const RACES: &str = "races";

/// After this long no more is tried than must be.
pub(super) const ENOUGH: Duration = Duration::from_secs(10);

/// How many write at once.
pub(super) const WRITERS: usize = 32;
/// How many handles a rule opens at once, at most.
const HANDLES: usize = 3;

/// What it is about, and one sentence for when it holds.
type Rule = (&'static str, Check, &'static str);

/// Those that one caller at a time can check.
const RULES: &[Rule] = &[
    ("create", suite::create_if_absent, "a record is created only where there is none"),
    ("stale", suite::stale_holder, "an update on a replaced version is refused"),
    ("late", suite::late_landing_write, "a write that lands late changes nothing"),
    (
        "recreated",
        suite::recreated_record,
        "a removed and re-created record takes no write meant for its predecessor",
    ),
    ("versions", suite::equal_bodies_differ_in_version, "equal bodies get different versions"),
    ("reads", suite::read_your_writes, "what was acknowledged is read back at once, by every handle"),
];

/// The promise that does not hold where this is unsafe.
pub(super) fn promise(about: &str) -> &'static str {
    match about {
        "age" => "P3",
        _ => "P1",
    }
}

/// Everything that this visit is for. An error is a call that failed: then nothing more can be told.
pub(super) fn all(visit: &mut Visit<'_>) -> Result<(), Failure> {
    if visit.depth == Depth::Probe {
        visit.begin("compare");
        // A store that does not answer is not written to: nothing of it would be left to sweep up.
        pollster::block_on(visit.corner.handle("probe").read("record"))?;
        let done = suite::compares_and_sets(&harness(visit, "probe"));
        visit.diagnosis.facts = Some(visit.corner.handle("probe").facts());
        judged(visit, "compare", done, "it compares and sets")?;
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
        // How fast it lies is of no use to anyone.
        return Ok(());
    }
    let worst = measure::latency(visit, &mut ages)?;
    measure::push(visit)?;
    ages.judge(visit)?;
    remarks(visit);
    measure::ttl(visit, worst);
    Ok(())
}

/// Finds a store that looks first and writes later, which one caller alone cannot.
fn short_race(visit: &mut Visit<'_>) -> Result<(), Failure> {
    let (writers, refused) = visit.corner.crowd(8, Duration::from_secs(1));
    if visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        return Ok(());
    }
    visit.begin(RACES);
    if writers < 2 {
        let why = refused.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
        visit.found(RACES, RemarkLevel::Weak, format!("not raced, for too few connections were let in{why}"));
        return Ok(());
    }
    let until = Some(boot_time().plus(Duration::from_millis(1_500)));
    let effort = Effort { writers, rounds: 16, until, ..Effort::default() };
    let done = suite::racing_creates(&harness(visit, "race-c").trying(effort));
    judged(visit, RACES, done, "one winner each time")
}

fn harness(visit: &Visit<'_>, part: &'static str) -> Harness {
    let corner = visit.corner.clone();
    Harness::new(move || corner.handle(part))
}

/// Tells what a check came to; gives back a failure, after which nothing more can be told.
fn judged(
    visit: &mut Visit<'_>,
    about: &'static str,
    done: Result<(), BrokenRule>,
    good: &str,
) -> Result<(), Failure> {
    match done {
        Ok(()) => visit.found(about, RemarkLevel::Good, good),
        Err(BrokenRule { failure: Some(failure), .. }) => return Err(failure),
        Err(BrokenRule { text, many_winners, .. }) => {
            visit.found_in_race(about, RemarkLevel::Unsafe, text, many_winners);
        }
    }
    Ok(())
}

/// The first calls: is it there, and may we?
fn reach(visit: &mut Visit<'_>) -> Result<Ages, Failure> {
    visit.begin("reach");
    let begun = boot_time();
    let mut handle = visit.corner.handle("age");
    pollster::block_on(handle.read("record"))?;
    let first = boot_time().since(begun);
    let facts = handle.facts();
    if facts.instance.is_empty() {
        return Err(unusable("The store answered and says nothing of which store it is.".into()));
    }
    let ages = Ages::begin(handle)?;
    visit.diagnosis.facts = Some(facts.clone());
    let far = if ages.far() { ": far away, so it is asked for less" } else { "" };
    let line = format!("answers and may be written; first answer after {}{far}", text(first));
    visit.found("reach", RemarkLevel::Good, line);
    if let Some(caution) = facts.caution {
        visit.found("caution", RemarkLevel::Weak, caution);
    }
    Ok(ages)
}

/// As many at once as the store lets in: one rule after the other takes long where the store is far.
fn rules(visit: &mut Visit<'_>, let_in: usize, ages: &mut Ages) -> Result<(), Failure> {
    RULES.chunks((let_in / HANDLES).max(1)).try_for_each(|wave| side_by_side(visit, wave, ages))
}

/// Each rule has keys of its own, so none meets another. What one found stands, whatever failed another.
fn side_by_side(visit: &mut Visit<'_>, wave: &[Rule], ages: &mut Ages) -> Result<(), Failure> {
    let few_steps = ages.far() || !ages.facts.spacing.is_zero();
    let begin = |(about, check, _): &Rule| {
        let (mut harness, check) = (harness(visit, about), *check);
        if few_steps {
            harness.effort.steps = 2;
        }
        thread::spawn(move || {
            let begun = boot_time();
            (check(&harness), boot_time().since(begun))
        })
    };
    let begun: Vec<_> = wave.iter().map(begin).collect();
    let mut all = Ok(());
    for ((about, _, good), checking) in wave.iter().zip(begun) {
        (visit.tell)(Progress::Begun(about));
        let checked = match checking.join() {
            Ok((done, took)) => {
                // It was begun with all the others.
                visit.since = boot_time().minus(took);
                judged(visit, about, done, good)
            }
            Err(_) => Err(unusable(format!("the doctor's check of {about:?} panicked"))),
        };
        all = all.and(checked);
    }
    all.and_then(|()| ages.sample())
}

/// How many handles the store lets in at once; those are kept for the races.
fn crowd(visit: &mut Visit<'_>) -> Result<usize, Failure> {
    visit.begin("crowd");
    let (let_in, refused) = visit.corner.crowd(WRITERS, Duration::from_secs(3));
    // Fewer than wished only because opening them takes so long is no fault of the store's.
    let Some(why) = refused else { return Ok(let_in) };
    if let_in < 2 {
        return Err(why);
    }
    let text =
        format!("only {let_in} of {WRITERS} connections were let in, so that many race: {}", why.message);
    visit.found("crowd", RemarkLevel::Weak, text);
    Ok(let_in)
}

fn races(visit: &mut Visit<'_>, writers: usize, ages: &mut Ages) -> Result<(), Failure> {
    let (rounds, patience) = match visit.depth {
        Depth::Full if !ages.far() => (20, Duration::from_secs(2)),
        Depth::Full => (20, Duration::from_secs(1)),
        Depth::Probe | Depth::Quick => (6, Duration::from_secs(1)),
    };
    // All in all it must not take long, however slow the store is: then there are fewer rounds.
    let patience = patience.min(visit.begun.plus(ENOUGH).since(boot_time()) / 2);
    visit.begin(RACES);
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
    // A store that lets two create is not asked for more; one that failed cannot be.
    let raced = created.and_then(|created| {
        let updated = suite::race_to_update(&harness(visit, "race-u").trying(updates))?;
        Ok((created, updated))
    });
    let good = match &raced {
        Ok((created, updated)) => format!(
            "{writers} writers raced {created} times to create and {updated} times to update: one winner each time"
        ),
        Err(_) => String::new(),
    };
    judged(visit, RACES, raced.map(drop), &good)?;
    if spaced || visit.diagnosis.verdict() == RemarkLevel::Unsafe {
        return Ok(());
    }
    ages.sample()?;
    visit.begin("updates");
    let few = writers.min(8);
    let done = suite::no_lost_update(&harness(visit, "lines").trying(effort(0, few, 3)));
    judged(visit, "updates", done, &format!("{few} writers added lines to one record and none was lost"))?;
    ages.sample()
}

/// What the store says of itself.
fn remarks(visit: &mut Visit<'_>) {
    visit.begin("durability");
    let mut handle = visit.corner.handle("remarks");
    match pollster::block_on(handle.examine()) {
        Ok(remarks) if remarks.is_empty() => {
            let durability = visit.diagnosis.facts.as_ref().map_or("", |facts| facts.durability);
            visit.found("durability", RemarkLevel::Good, durability);
        }
        Ok(remarks) => {
            for remark in remarks {
                visit.found(remark.about, remark.verdict, remark.text);
            }
        }
        Err(failure) => {
            let text = format!("The store could not be asked about its settings: {}", failure.message);
            visit.found("durability", RemarkLevel::Weak, text);
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

/// A write that nothing opposes; gives the answer as it came.
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
        Cas::Conflict => {
            Err(Failure::new(FailureKind::Unusable, "The store refused a write that nothing opposed."))
        }
    }
}
