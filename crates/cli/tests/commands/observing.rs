//! `run --observe`: what it notes of runs that are at it at once, and of work that is done.

use std::fs;

use crate::world::{Running, World};
use serde_json::Value;

const OBSERVE: [&str; 5] = ["run", "pub", "--observe", "--fence", "file:page"];

fn observe(world: &World, job: &str) -> crate::world::Ended {
    world.run(&[&OBSERVE[..], &["sh", "-c", job]].concat())
}

/// One that is up, and goes on with its job when its input ends.
fn begin(world: &World, job: &str) -> Running {
    let mut run = world.start(&[&OBSERVE[..], &["sh", "-c", &format!("echo up; read go; {job}")]].concat());
    assert_eq!(run.line(), "up");
    run
}

/// What each run has seen, in a word each; the first to end first.
fn seen(world: &World) -> Vec<Vec<String>> {
    let notes = world.run(&["--json", "fence", "observed"]).is(0, "").out;
    let words = |note: Value| {
        let seen = note["seen"].as_array().unwrap().iter();
        seen.map(|seen| seen["what"].as_str().unwrap().to_owned()).collect()
    };
    notes.lines().map(|line| words(serde_json::from_str(line).unwrap())).collect()
}

fn page(world: &World) -> String {
    fs::read_to_string(world.path("page")).unwrap()
}

/// The run that began first ends last, and overwrites what the newer one left.
#[test]
fn newer_work_that_was_overwritten_is_told() {
    let world = World::new();
    let first = begin(&world, "echo stale >page");
    observe(&world, "echo fresh >page").is(0, "observe.overlap");
    first.ended().is(0, "observe.overwrote").is(0, "observe.ran_beside");
    assert_eq!(page(&world), "stale\n");
    // The control: one after the other. Two that write nothing, and two that do.
    for job in ["true", "true", "echo three >page", "echo four >page"] {
        observe(&world, job).quiet();
    }
    let none: [&str; 0] = [];
    assert_eq!(seen(&world)[..2], [vec!["overlap"], vec!["overlap", "overwritten"]]);
    assert!(seen(&world)[2..].iter().all(|seen| *seen == none), "{:?}", seen(&world));
    let shown = world.run(&["fence", "observed"]).is(0, "").out;
    assert_eq!((shown.matches("no overlap seen").count(), shown.matches("alone").count()), (4, 0), "{shown}");
}

/// Each hears of the other, whichever ends first, and nothing is called overwritten that was not.
#[test]
fn an_overlap_is_told_from_both_sides() {
    let world = World::new();
    let first = begin(&world, "true");
    observe(&world, "echo fresh >page").is(0, "");
    first.ended().is(0, "observe.ran_beside").lacks("observe.overwrote").lacks("observe.overwritten");
    assert_eq!(seen(&world), [["overlap"], ["overlap"]]);
    // The older one ends first, and the newer one has the last word.
    let first = begin(&world, "echo older >page");
    let second = begin(&world, "echo newer >page");
    first.ended().is(0, "observe.ran_beside").lacks("observe.overwrote").lacks("observe.overwritten");
    second.ended().is(0, "observe.overlap").lacks("observe.overwrote").lacks("observe.overwritten");
    assert_eq!(page(&world), "newer\n");
    // It has not: what it wrote is not there any more.
    let first = begin(&world, "echo older again >page");
    let mut second = world.start(
        &[&OBSERVE[..], &["sh", "-c", "echo up; read go; echo newest >page; echo wrote; read go; true"]]
            .concat(),
    );
    assert_eq!(second.line(), "up");
    second.type_in("go\n");
    assert_eq!(second.line(), "wrote");
    first.ended().is(0, "observe.ran_beside");
    second.ended().is(0, "observe.overwritten");
    assert_eq!(page(&world), "older again\n");
    // The third had found what the newer one had left without a lease.
    let expected =
        [vec!["overlap"], vec!["overlap"], vec!["changed", "overlap"], vec!["overlap", "overwritten"]];
    assert_eq!(seen(&world)[2..], expected);
    // Another lease, or one of the same name on another store, is nobody's overlap.
    let first = begin(&world, "true");
    world.run(&["run", "other", "--observe", "true"]).quiet();
    world.run(&["--store", &world.store("sqlite"), "run", "pub", "--observe", "true"]).quiet();
    first.ended().quiet();
}

/// Two crontabs, one after the other: the second would have been skipped.
#[test]
fn what_is_done_already_is_told_and_run() {
    let slot = ["--slot", "2026-11-16T05:45Z"];
    let (key, both) = (["--key", "k"], ["--slot", "2026-11-16T05:45Z", "--key", "k"]);
    for flags in [&slot[..], &key, &both] {
        let world = World::new();
        let run = |observe: &[&str]| {
            let job = "echo \"$LEASEHOLD_SLOT,$LEASEHOLD_KEY\" >>ran";
            world.run(&[&["run", "site"], observe, flags, &["--", "sh", "-c", job]].concat())
        };
        run(&["--observe"]).quiet();
        run(&["--observe"]).is(0, "observe.would_skip").names(&["done by "]);
        assert_eq!(seen(&world), [&[][..], &["skipped"]], "{flags:?}");
        let ran = fs::read_to_string(world.path("ran")).unwrap();
        let has = |name: &str| flags.contains(&name);
        let line = match (has("--slot"), has("--key")) {
            (true, true) => "2026-11-16T05:45:00Z,k\n",
            (true, false) => "2026-11-16T05:45:00Z,\n",
            _ => ",k\n",
        };
        assert_eq!(ran, line.repeat(2));
        // What it did is done, for a run as well.
        run(&[]).is(0, "").names(&["skipped "]).is(0, "").names(&["done by "]);
        assert_eq!(fs::read_to_string(world.path("ran")).unwrap(), ran);
    }
}

/// Both record the same of a job that dies of KILL: it may have done anything.
#[test]
fn a_killed_job_is_recorded_as_by_a_run() {
    let world = World::new();
    let killed = |key: &str, observe: &[&str]| {
        let job = ["--key", key, "--", "sh", "-c", "kill -9 $$"];
        world.run(&[&["run", "site"], observe, &job].concat()).is(137, "");
        world.run(&["--json", "why", key]).is(0, "").first()["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!((killed("a", &["--observe"]), killed("b", &[])), ("killed".into(), "killed".into()));
    let note = world.run(&["--json", "fence", "observed"]).is(0, "").json();
    assert_eq!((&note["outcome"], &note["exit"]), (&"killed".into(), &137.into()));
}

/// However it stands, the job is run: without a lease, after a failure, where a person would be asked.
#[test]
fn whatever_the_record_says_it_is_run() {
    let world = World::new();
    let run = |observe: &[&str], job: &str| {
        world.run(
            &[&["run", "site", "--key", "k", "--attempts", "1"], observe, &["--", "sh", "-c", job]].concat(),
        )
    };
    run(&["--observe"], "exit 3").is(3, "");
    assert_eq!(world.run(&["--json", "why", "k"]).quiet().first()["outcome"], "failed");
    run(&["--observe"], "touch ran").is(0, "observe.would_not_run").names(&["(quarantined, 79)"]);
    assert!(world.path("ran").exists());
    run(&[], "touch again").is(79, "");
    // Somebody has the lease: nothing is recorded, and what is known is told.
    world.run(&["retry", "--done", "k"]).is(0, "");
    let mut holder = world.start(&["run", "site", "sh", "-c", "echo up; exec cat"]);
    assert_eq!(holder.line(), "up");
    run(&["--observe"], "touch beside")
        .is(0, "observe.overlap")
        .is(0, "observe.would_skip")
        .names(&["done by hand"]);
    assert!(world.path("beside").exists() && !world.path("again").exists());
    holder.ended().quiet();
    world.run(&["run", "site", "--observe", "--slot", "noon", "true"]).is(64, "items.bad_slot");
}
