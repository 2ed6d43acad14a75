//! `leasehold demo`: what a lease is for and what it is not enough for, with real processes.
//!
//! On the left real `leasehold run`s on a store of their own; on the right the same job without.
//! Everything told is taken from what the processes did; the demo fails if it went otherwise.

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
use crate::out::Out;

const NINE: &str = "the figures of 09:00";
const TEN: &str = "the figures of 10:00";

/// Tells the story and checks it.
pub fn run(out: &Out) -> Result<u8, Failed> {
    let screen = Screen::new(!out.json && !out.quiet);
    let mut facts = Facts::default();
    let told = tell(screen, &mut facts);
    if let Err(DemoError::Different(what)) = &told {
        facts.differences.push(what.clone());
    }
    if out.json && !matches!(told, Err(DemoError::Signal(_) | DemoError::System(_))) {
        out.object(&facts.object());
    }
    match told {
        Err(DemoError::Signal(number)) => {
            let code = u8::try_from(128 + number).unwrap_or(u8::MAX);
            Err(Failed::new(
                FailKind::Interrupted(code),
                "interrupted",
                "interrupted; nothing of the demo is left",
            ))
        }
        Err(DemoError::System(e)) => {
            let message = format!("the system refused: {e}. Nothing of the demo is left");
            Err(Failed::new(FailKind::Unreachable, "system", message))
        }
        _ if facts.differences.is_empty() => {
            farewell(screen, facts.elapsed);
            Ok(exit::OK)
        }
        _ => Err(Failed::new(
            FailKind::NeedsYou,
            "demo_differs",
            format!(
                "the demo went otherwise than it should: {}. On a machine under heavy load try it again; if \
                 it stays so, please report it",
                facts.differences.join("; ")
            ),
        )),
    }
}

/// What really happened.
#[derive(Debug, Default)]
struct Facts {
    first_token: u64,
    second_token: u64,
    waved_off: Value,
    waited: Duration,
    refusal: ToldRefusal,
    wrapper_exit: i32,
    wrapper_outcome: Value,
    with: Option<String>,
    before: Option<String>,
    without: Option<String>,
    elapsed: Duration,
    differences: Vec<String>,
}

/// What the woken job was told.
#[derive(Debug, Default)]
struct ToldRefusal {
    token: u64,
    sealed: u64,
    reason: String,
    exit: i32,
    message: String,
}

impl Facts {
    fn check(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.differences.push(otherwise());
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
                "waved_off": self.waved_off, "waited_s": self.waited.as_secs_f64(),
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

/// Both sides as they stand between two steps. Dropped in this order: processes, then their stage.
struct Scene {
    frozen: Actor,
    bare: Actor,
    stage: Fixture,
}

fn tell(screen: Screen, facts: &mut Facts) -> Result<(), DemoError> {
    screen.say(&plain(format!(
        "Real processes and a real lease of {TTL} on {LEASE:?}, in a directory that is removed at the end. Every \
         run publishes its figures to a file, {ARTEFACT}."
    )));
    screen.titles("with leasehold", "without");
    let mut scene = race(screen, facts)?;
    freeze(screen, facts, &mut scene)?;
    take_over(screen, facts, &mut scene)?;
    wake(screen, facts, &mut scene)?;
    compare(screen, facts, &scene);
    facts.elapsed = scene.stage.elapsed();
    Ok(())
}

/// Two machines start the same job at the same moment.
fn race(screen: Screen, facts: &mut Facts) -> Result<Scene, DemoError> {
    screen.heading("1. 09:00. Two machines start the same job at the same moment.");
    let mut stage = Fixture::set()?;
    let mut one = stage.start(Side::With, "run 1", NINE, false)?;
    let mut two = stage.start(Side::With, "run 2", NINE, false)?;
    let mut bare = stage.start(Side::Without, "bare run 1", NINE, false)?;
    let mut other = stage.start(Side::Without, "bare run 2", NINE, false)?;
    let (first, mut holder, mut waved_off) = match stage.next_line(&mut [&mut one, &mut two])? {
        (0, Some(line)) => (line, one, two),
        (1, Some(line)) => (line, two, one),
        // Waved off before the holder's job has spoken.
        (0, None) => (stage.expect(&mut two, READY)?, two, one),
        _ => (stage.expect(&mut one, READY)?, one, two),
    };
    facts.first_token = holder.ready(&first)?;
    let code = stage.end(&mut waved_off)?;
    let report = waved_off.report();
    let (outcome, reason) = (report["outcome"].clone(), report["reason"].clone());
    facts.check(code == 0 && outcome == "skipped", || {
        format!("the second run was not waved off: exit {code}, {outcome}; it said: {}", waved_off.said())
    });
    facts.waved_off = json!({"exit": code, "outcome": outcome, "reason": reason});
    let line = stage.expect(&mut bare, READY)?;
    bare.ready(&line)?;
    let line = stage.expect(&mut other, READY)?;
    other.ready(&line)?;
    other.go()?;
    stage.expect(&mut other, WRITTEN)?;
    stage.end(&mut other)?;
    screen.step(
        &[
            good(format!("One runs, with token {} (pid {}).", facts.first_token, holder.pid())),
            plain(format!("The other is waved off, exit {code}:")),
            quoted(waved_off.said()),
        ],
        &[
            bad("Both run."),
            plain(format!(
                "pid {} has published {NINE}, pid {} is about to do it again.",
                other.pid(),
                bare.pid()
            )),
        ],
    );
    Ok(Scene { frozen: holder, bare, stage })
}

/// The holder stops between its last check and its write, for longer than its lease.
fn freeze(screen: Screen, facts: &Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading("2. It is frozen just before it writes: a closed lid, a stalled VM; here SIGSTOP.");
    scene.frozen.freeze()?;
    scene.bare.freeze()?;
    // Neither can act on it before it wakes; then it does so at once.
    scene.frozen.go()?;
    scene.bare.go()?;
    screen.step(
        &[plain(format!(
            "pid {} and its job stand still. Nobody renews the lease; token {} is running out.",
            scene.frozen.pid(),
            facts.first_token
        ))],
        &[plain(format!("pid {} stands still.", scene.bare.pid()))],
    );
    Ok(())
}

/// The next run comes while the first one is frozen.
fn take_over(screen: Screen, facts: &mut Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading("3. 10:00. The next run comes.");
    let stage = &mut scene.stage;
    let mut bare = stage.start(Side::Without, "bare run 3", TEN, false)?;
    let line = stage.expect(&mut bare, READY)?;
    bare.ready(&line)?;
    bare.go()?;
    stage.expect(&mut bare, WRITTEN)?;
    stage.end(&mut bare)?;
    facts.before = stage.artefact(Side::Without);
    let began = clock::boot_time();
    let mut next = stage.start(Side::With, "run 3", TEN, true)?;
    let line = stage.expect(&mut next, READY)?;
    facts.waited = clock::boot_time().since(began);
    facts.second_token = next.ready(&line)?;
    next.go()?;
    stage.expect(&mut next, WRITTEN)?;
    let code = stage.end(&mut next)?;
    let (first, second) = (facts.first_token, facts.second_token);
    facts.check(second == first + 1, || format!("after token {first} came {second}"));
    facts.check(code == 0, || format!("the run that took over ended with exit {code}: {}", next.said()));
    screen.step(
        &[
            plain(format!("It waits {} until the silent lease has expired.", HumanDuration(facts.waited))),
            good(format!("It gets token {second}, seals the file with it and publishes {TEN}.")),
        ],
        &[plain(format!("It publishes {TEN}."))],
    );
    Ok(())
}

/// The frozen one wakes and goes on where it was.
fn wake(screen: Screen, facts: &mut Facts, scene: &mut Scene) -> Result<(), DemoError> {
    screen.heading("4. The first one wakes up and writes, knowing nothing of all this.");
    let Scene { frozen, bare, stage } = scene;
    // The job before its wrapper: the wrapper would see that the lease is lost and kill the job, which
    // is right, but here the fence must do it alone, as it must when a whole machine wakes up.
    frozen.thaw_job()?;
    let line = stage.expect(frozen, REFUSED)?;
    let words: Vec<&str> = line.split(' ').collect();
    let [_, token, sealed, reason] = words[..] else { return Err(frozen.different(&line)) };
    let ended = stage.expect(frozen, "exit ")?;
    frozen.job_over();
    facts.refusal = ToldRefusal {
        token: token.parse().unwrap_or(0),
        sealed: sealed.parse().unwrap_or(0),
        reason: reason.into(),
        exit: ended["exit ".len()..].parse().unwrap_or(-1),
        message: frozen.said(),
    };
    frozen.thaw_wrapper()?;
    facts.wrapper_exit = stage.end(frozen)?;
    facts.wrapper_outcome = frozen.report()["outcome"].clone();
    bare.thaw_wrapper()?;
    stage.expect(bare, WRITTEN)?;
    let bare_exit = stage.end(bare)?;
    let (first, second) = (facts.first_token, facts.second_token);
    let ToldRefusal { token, sealed, exit, message, .. } = &facts.refusal;
    let right = (*token, *sealed, *exit) == (first, second, i32::from(exit::REFUSED));
    let (exit, message, wrapper) = (*exit, message.clone(), facts.wrapper_exit);
    let lost = wrapper == i32::from(exit::LOST) && facts.wrapper_outcome == "lost";
    facts.check(lost, || format!("the wrapper did not notice the loss: exit {wrapper}"));
    facts.check(right, || {
        format!("the stale write was not refused as it should: {line}, exit {exit}: {message}")
    });
    facts.check(bare_exit == 0, || format!("the bare run ended with exit {bare_exit}: {}", bare.said()));
    screen.step(
        &[
            good(format!("Refused, exit {exit}:")),
            quoted(message),
            plain(format!("Its wrapper sees the loss too: exit {wrapper}, {LEASE} lost.")),
        ],
        &[bad(format!("Written, exit {bare_exit}.")), plain("Nobody notices.")],
    );
    Ok(())
}

/// What is in the files.
fn compare(screen: Screen, facts: &mut Facts, scene: &Scene) {
    screen.heading(&format!("What readers of {ARTEFACT} see now:"));
    facts.with = scene.stage.artefact(Side::With);
    facts.without = scene.stage.artefact(Side::Without);
    let (with, without) = (facts.with.clone(), facts.without.clone());
    let before = facts.before.clone();
    facts.check(with.as_deref() == Some(TEN), || format!("with leasehold the file holds {with:?}"));
    facts.check(before.as_deref() == Some(TEN), || format!("without, the file held {before:?}"));
    facts.check(without.as_deref() == Some(NINE), || format!("without leasehold the file holds {without:?}"));
    let show = |content: &Option<String>| content.clone().unwrap_or_else(|| "nothing".into());
    screen.step(&[good(show(&facts.with))], &[bad(show(&facts.without)), plain("The newer ones are gone.")]);
}

fn farewell(screen: Screen, elapsed: Duration) {
    screen.heading("Type next:");
    for (command, what) in [
        ("leasehold run NAME -- your-command", "hold NAME while it runs"),
        ("leasehold status", "who holds what"),
        ("leasehold help exit-codes", "75, 76 and the others"),
    ] {
        screen.command(command, what);
    }
    screen.gap();
    screen.say(&plain(format!(
        "(That took {}; every process and file of it is gone.)",
        HumanDuration(elapsed)
    )));
}
