//! `leasehold demo`: shows with real processes what a lease prevents, and what only a fence prevents.
//!
//! The left column shows real `leasehold run`s on a store of the demo, the right column the same job without Leasehold.
//! All values come from the processes; the demo fails if they did not do what they should.

pub mod actor;
mod columns;
mod fixture;
pub mod git;

use std::time::Duration;

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use serde_json::{Value, json};

use self::actor::{READY, REFUSED, WRITTEN};
use self::columns::{Screen, bad, good, plain, quoted};
use self::fixture::{ARTEFACT, Actor, DemoError, Fixture, LEASE, Side, TTL};
use crate::exit::{self, FailKind, Failed};
use crate::messages::demo as say;
use crate::out::Out;

const NINE: &str = "the figures of 09:00";
const TEN: &str = "the figures of 10:00";

/// Shows the demo and checks it.
pub fn run(out: &Out) -> Result<u8, Failed> {
    let screen = Screen::new(!out.json && !out.quiet);
    let mut facts = Facts::default();
    let shown = show(screen, &mut facts);
    if let Err(DemoError::Different(what)) = &shown {
        facts.differences.push(what.clone());
    }
    if out.json && !matches!(shown, Err(DemoError::Signal(_) | DemoError::System(_))) {
        out.object(&facts.object());
    }
    match shown {
        Err(DemoError::Signal(number)) => Err(interrupted(number)),
        Err(DemoError::System(e)) => Err(say::system(e)),
        _ if facts.differences.is_empty() => {
            next_steps(screen, facts.elapsed);
            Ok(exit::OK)
        }
        _ => Err(say::differs(facts.differences.join("; "))),
    }
}

fn interrupted(signal: i32) -> Failed {
    let code = u8::try_from(128 + signal).unwrap_or(u8::MAX);
    Failed::new(FailKind::Interrupted(code), "interrupted", say::interrupted())
}

/// What happened.
#[derive(Debug, Default)]
struct Facts {
    first_token: u64,
    second_token: u64,
    skipped: Value,
    waited: Duration,
    refusal: Refusal,
    wrapper_exit: i32,
    wrapper_outcome: Value,
    with: Option<String>,
    before: Option<String>,
    without: Option<String>,
    elapsed: Duration,
    differences: Vec<String>,
}

/// How the job that woke up was refused.
#[derive(Debug, Default)]
struct Refusal {
    token: u64,
    sealed: u64,
    reason: String,
    exit: i32,
    message: String,
}

impl Facts {
    fn check(&mut self, holds: bool, difference: impl FnOnce() -> String) {
        if !holds {
            self.differences.push(difference());
        }
    }

    fn object(&self) -> Value {
        let refusal = &self.refusal;
        json!({
            "v": 1,
            "ok": self.differences.is_empty(),
            "seconds": self.elapsed.as_secs_f64(),
            "with": {
                "lease": LEASE, "first_token": self.first_token, "second_token": self.second_token,
                "waved_off": self.skipped, "waited_s": self.waited.as_secs_f64(),
                "refusal": {
                    "token": refusal.token, "sealed": refusal.sealed, "reason": refusal.reason,
                    "exit": refusal.exit, "message": refusal.message,
                },
                "wrapper": {"exit": self.wrapper_exit, "outcome": self.wrapper_outcome},
                "artefact": self.with,
            },
            "without": {"artefact_before": self.before, "artefact": self.without},
            "differences": self.differences,
        })
    }
}

/// What stays between two steps. Dropped in this order: the processes, then their directory.
struct Scene {
    frozen: Actor,
    bare: Actor,
    fixture: Fixture,
}

fn show(screen: Screen, facts: &mut Facts) -> Result<(), DemoError> {
    screen.say(&plain(say::about(LEASE, TTL, ARTEFACT)));
    screen.titles();
    let mut scene = race(screen, facts)?;
    freeze(screen, facts, &mut scene)?;
    take_over(screen, facts, &mut scene)?;
    wake(screen, facts, &mut scene)?;
    compare(screen, facts, &scene);
    facts.elapsed = scene.fixture.elapsed();
    Ok(())
}

/// Two machines start the same job at the same moment.
fn race(screen: Screen, facts: &mut Facts) -> Result<Scene, DemoError> {
    screen.heading(&say::race());
    let mut fixture = Fixture::new()?;
    let mut one = fixture.start(Side::With, "run 1", NINE, false)?;
    let mut two = fixture.start(Side::With, "run 2", NINE, false)?;
    let mut bare = fixture.start(Side::Without, "bare run 1", NINE, false)?;
    let mut other = fixture.start(Side::Without, "bare run 2", NINE, false)?;
    let (first, mut holder, mut skipped) = match fixture.next_line(&mut [&mut one, &mut two])? {
        (0, Some(line)) => (line, one, two),
        (1, Some(line)) => (line, two, one),
        // Skipped before the holder's job has printed anything.
        (0, None) => (fixture.expect(&mut two, READY)?, two, one),
        _ => (fixture.expect(&mut one, READY)?, one, two),
    };
    facts.first_token = holder.ready(&first)?;
    let code = fixture.end(&mut skipped)?;
    let report = skipped.report();
    let (outcome, reason) = (report["outcome"].clone(), report["reason"].clone());
    facts.check(code == 0 && outcome == "skipped", || say::not_skipped(code, &outcome, skipped.printed()));
    facts.skipped = json!({"exit": code, "outcome": outcome, "reason": reason});
    let line = fixture.expect(&mut bare, READY)?;
    bare.ready(&line)?;
    let line = fixture.expect(&mut other, READY)?;
    other.ready(&line)?;
    other.go()?;
    fixture.expect(&mut other, WRITTEN)?;
    fixture.end(&mut other)?;
    screen.step(
        &[
            good(say::one_runs(facts.first_token, holder.pid())),
            plain(say::other_skipped(code)),
            quoted(skipped.printed()),
        ],
        &[bad(say::both_run()), plain(say::about_to_repeat(other.pid(), NINE, bare.pid()))],
    );
    Ok(Scene { frozen: holder, bare, fixture })
}

/// The holder is frozen between its last check and its write, for longer than the TTL.
fn freeze(screen: Screen, facts: &Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading(&say::freeze());
    scene.frozen.freeze()?;
    scene.bare.freeze()?;
    // Neither reads it before it wakes up; then it writes at once.
    scene.frozen.go()?;
    scene.bare.go()?;
    screen.step(
        &[plain(say::frozen_with(scene.frozen.pid(), facts.first_token))],
        &[plain(say::frozen(scene.bare.pid()))],
    );
    Ok(())
}

/// The next run starts while the first one is frozen.
fn take_over(screen: Screen, facts: &mut Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading(&say::take_over());
    let fixture = &mut scene.fixture;
    let mut bare = fixture.start(Side::Without, "bare run 3", TEN, false)?;
    let line = fixture.expect(&mut bare, READY)?;
    bare.ready(&line)?;
    bare.go()?;
    fixture.expect(&mut bare, WRITTEN)?;
    fixture.end(&mut bare)?;
    facts.before = fixture.artefact(Side::Without);
    let started = clock::boot_time();
    let mut next = fixture.start(Side::With, "run 3", TEN, true)?;
    let line = fixture.expect(&mut next, READY)?;
    facts.waited = clock::boot_time().since(started);
    facts.second_token = next.ready(&line)?;
    next.go()?;
    fixture.expect(&mut next, WRITTEN)?;
    let code = fixture.end(&mut next)?;
    let (first, second) = (facts.first_token, facts.second_token);
    facts.check(second == first + 1, || say::wrong_token(first, second));
    facts.check(code == 0, || say::take_over_failed(code, next.printed()));
    screen.step(
        &[plain(say::waits(HumanDuration(facts.waited))), good(say::fences_and_writes(second, TEN))],
        &[plain(say::writes(TEN))],
    );
    Ok(())
}

/// The frozen run wakes up and continues.
fn wake(screen: Screen, facts: &mut Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading(&say::wake());
    let Scene { frozen, bare, fixture } = scene;
    // The job before its `leasehold run`, which would see that the lease is lost and kill the job. That is right, but
    // here the fence must refuse the write by itself, as when a whole machine wakes up.
    frozen.thaw_job()?;
    let line = fixture.expect(frozen, REFUSED)?;
    let words: Vec<&str> = line.split(' ').collect();
    let [_, token, sealed, reason] = words[..] else { return Err(frozen.different(&line)) };
    let ended = fixture.expect(frozen, "exit ")?;
    frozen.job_ended();
    facts.refusal = Refusal {
        token: token.parse().unwrap_or(0),
        sealed: sealed.parse().unwrap_or(0),
        reason: reason.into(),
        exit: ended["exit ".len()..].parse().unwrap_or(-1),
        message: frozen.printed(),
    };
    frozen.thaw_wrapper()?;
    facts.wrapper_exit = fixture.end(frozen)?;
    facts.wrapper_outcome = frozen.report()["outcome"].clone();
    bare.thaw_wrapper()?;
    fixture.expect(bare, WRITTEN)?;
    let bare_exit = fixture.end(bare)?;
    let (first, second) = (facts.first_token, facts.second_token);
    let Refusal { token, sealed, exit, message, .. } = &facts.refusal;
    let refused = (*token, *sealed, *exit) == (first, second, i32::from(exit::REFUSED));
    let (exit, message, wrapper) = (*exit, message.clone(), facts.wrapper_exit);
    let lost = wrapper == i32::from(exit::LOST) && facts.wrapper_outcome == "lost";
    facts.check(lost, || say::not_lost(wrapper));
    facts.check(refused, || say::not_refused(line, exit, &message));
    facts.check(bare_exit == 0, || say::without_failed(bare_exit, bare.printed()));
    screen.step(
        &[good(say::refused(exit)), quoted(message), plain(say::lost(wrapper, LEASE))],
        &[bad(say::written(bare_exit)), plain(say::nobody_notices())],
    );
    Ok(())
}

/// Shows what is in the files.
fn compare(screen: Screen, facts: &mut Facts, scene: &Scene) {
    screen.heading(&say::compare(ARTEFACT));
    let content = |content: &Option<String>| content.clone().unwrap_or_else(say::nothing);
    facts.with = scene.fixture.artefact(Side::With);
    facts.without = scene.fixture.artefact(Side::Without);
    let [with, before, without] = [&facts.with, &facts.before, &facts.without].map(content);
    facts.check(with == TEN, || say::wrong_with(&with));
    facts.check(before == TEN, || say::wrong_before(before));
    facts.check(without == NINE, || say::wrong_without(&without));
    screen.step(&[good(with)], &[bad(without), plain(say::newer_gone())]);
}

fn next_steps(screen: Screen, elapsed: Duration) {
    screen.heading(&say::next());
    screen.command(&say::next_run(), &say::next_run_does());
    screen.command(&say::next_status(), &say::next_status_does());
    screen.command(&say::next_codes(), &say::next_codes_does());
    screen.gap();
    screen.say(&plain(say::took(HumanDuration(elapsed))));
}
