//! A slot and a key at once: each is done once, the slot says why its key was not begun with it.

use std::fs;

use crate::world::places::{fresh, places};
use crate::world::{Ended, World, binary, kill, until};
use leasehold_testkit::proxy::Fault;
use rustix::process::Signal;
use serde_json::{Value, json};

const FIRST: &str = "2026-11-16T05:45:00Z";
const SECOND: &str = "2026-11-16T06:30:00Z";

const JOB: [&str; 4] = ["--", "sh", "-c", "echo \"$LEASEHOLD_SLOT ${LEASEHOLD_KEY-none}\" >> done"];

fn run(world: &World, slot: &str, flags: &[&str]) -> Ended {
    world.run(&[&["run", "site", "--slot", slot], flags, &JOB].concat())
}

/// What the job wrote down, each time it was executed.
fn done(world: &World) -> String {
    fs::read_to_string(world.path("done")).unwrap_or_default()
}

fn item(world: &World, name: &str) -> Value {
    let name = if name.contains('T') { format!("site@{name}") } else { name.to_owned() };
    world.run(&["--json", "why", &name]).is(0, "").first()
}

fn outcomes(world: &World) -> [Value; 2] {
    [FIRST, "k"].map(|name| item(world, name)["outcome"].clone())
}

#[test]
fn both_are_done_once() {
    let world = World::new();
    run(&world, FIRST, &["--key", "k"]).quiet();
    assert_eq!(done(&world), format!("{FIRST} k\n"));
    assert_eq!(outcomes(&world), ["ok", "ok"]);
    run(&world, FIRST, &["--key", "k"]).is(0, "").names(&["skipped site@2026-11-16T05:45:00Z: done by "]);
    // The slot alone, and the key alone.
    run(&world, FIRST, &["--key", "other"]).is(0, "").names(&["skipped site@"]);
    run(&world, FIRST, &[]).is(0, "").names(&["skipped site@"]);
    world.run(&["once", "k", "--", "touch", "never"]).is(0, "").names(&["skipped k: done by "]);
    assert_eq!(done(&world).lines().count(), 1);
    // With neither of them in the way, it runs: a slot alone has no key, whatever it was started from.
    let nested = format!("{} run site --slot {SECOND} {}", binary().display(), quoted(&JOB));
    world.run(&["once", "outer", "--", "sh", "-c", &nested]).is(0, "");
    assert_eq!(done(&world), format!("{FIRST} k\n{SECOND} none\n"));
}

fn quoted(args: &[&str]) -> String {
    args.iter().map(|arg| format!("'{arg}' ")).collect()
}

#[test]
fn a_key_that_is_done_leaves_the_slot_skipped() {
    let world = World::new();
    world.run(&["once", "k", "--", "true"]).is(0, "");
    let ended = run(&world, FIRST, &["--key", "k", "-E", "9", "--report", "report"]);
    ended.is(9, "").names(&["skipped k: done by "]);
    let report: Value = serde_json::from_slice(&fs::read(world.path("report")).unwrap()).unwrap();
    assert_eq!((&report["outcome"], &report["reason"]), (&"skipped".into(), &"done".into()));
    let slot = item(&world, FIRST);
    assert_eq!(slot["outcome"], "skipped", "{slot}");
    assert!(slot["said"].as_str().unwrap().starts_with("done: k, by "), "{slot}");
    // It is over: also without the key.
    run(&world, FIRST, &[]).is(0, "").names(&["(done: k, by "]);
    assert_eq!(done(&world), "");
    // Another key is another matter.
    run(&world, SECOND, &["--key", "l"]).quiet();
    assert_eq!(done(&world), format!("{SECOND} l\n"));
}

#[test]
fn a_key_at_work_elsewhere_leaves_the_slot_skipped() {
    let world = World::new();
    let mut other = world.start(&["once", "k", "--", "sh", "-c", "echo here; read line"]);
    assert_eq!(other.line(), "here");
    run(&world, FIRST, &["--key", "k"]).is(0, "").names(&["skipped k: in progress"]);
    let slot = item(&world, FIRST);
    assert_eq!(slot["outcome"], "skipped");
    assert!(slot["said"].as_str().unwrap().starts_with("in-progress: k, by "), "{slot}");
    assert_eq!(item(&world, "k")["outcome"], "started");
    other.close_stdin();
    other.ended();
    assert_eq!(done(&world), "");
}

#[test]
fn a_key_that_waits_for_a_person_fails_the_slot() {
    let world = World::new();
    world.run(&["once", "k", "--attempts", "1", "--", "false"]).is(1, "");
    run(&world, FIRST, &["--key", "k", "--attempts", "1"]).is(79, "items.quarantined");
    let slot = item(&world, FIRST);
    assert_eq!((&slot["outcome"], &slot["failures"]), (&"failed".into(), &1.into()));
    assert_eq!(slot["said"], "k failed once and waits for a person");
    // Both were tried again, and each is done.
    world.run(&["retry", "k"]).is(0, "");
    run(&world, FIRST, &["--key", "k"]).quiet();
    assert_eq!(outcomes(&world), ["ok", "ok"]);
    assert_eq!(done(&world).lines().count(), 1);
}

/// A wrapper that is killed in the middle of its job.
fn killed_half_way(world: &World) {
    let command = "echo \"$LEASEHOLD_SLOT $LEASEHOLD_KEY\" >> done; echo here; exec sleep 60";
    let mut run = world.start(&["run", "site", "--slot", FIRST, "--key", "k", "--", "sh", "-c", command]);
    assert_eq!(run.line(), "here");
    kill(run.pid(), Signal::KILL);
    run.ended();
    until("the lease is free", || world.run(&["run", "site", "true"]).err.is_empty().then_some(()));
}

#[test]
fn after_silence_the_slot_decides() {
    let world = World::new();
    killed_half_way(&world);
    run(&world, FIRST, &["--key", "k"]).is(79, "items.unknown").names(&["site@2026-11-16T05:45:00Z"]);
    assert_eq!(done(&world).lines().count(), 1);
    run(&world, FIRST, &["--key", "k", "--if-unknown", "retry"]).quiet();
    assert_eq!(done(&world), format!("{FIRST} k\n").repeat(2));
    assert_eq!(outcomes(&world), ["ok", "ok"]);
    assert_eq!([item(&world, FIRST), item(&world, "k")].map(|item| item["attempt"].clone()), [2, 2]);
    run(&world, FIRST, &["--key", "k", "--if-unknown", "retry"]).is(0, "").names(&["skipped site@"]);
}

#[test]
fn a_new_slot_does_not_speak_for_a_silent_key() {
    let world = World::new();
    killed_half_way(&world);
    run(&world, SECOND, &["--key", "k"]).is(79, "items.unknown");
    let slot = item(&world, SECOND);
    assert_eq!(slot["outcome"], "failed");
    assert!(slot["said"].as_str().unwrap().starts_with("k never reported: it was begun by "), "{slot}");
    assert_eq!(done(&world).lines().count(), 1);
    // The control: whoever says so does.
    run(&world, SECOND, &["--key", "k", "--if-unknown", "retry"]).quiet();
    assert_eq!(done(&world), format!("{FIRST} k\n{SECOND} k\n"));
}

#[test]
fn steps_are_the_slots_and_have_keys_of_their_own() {
    let world = World::new();
    let leasehold = binary().display().to_string();
    let step = "sh -c 'echo \"$LEASEHOLD_KEY\" >> done'";
    let script = format!("{leasehold} step one -- {step} && {leasehold} step two -- test -e go");
    let run = || world.run(&["run", "site", "--slot", FIRST, "--key", "k", "--", "sh", "-c", &script]);
    run().is(1, "");
    assert_eq!(outcomes(&world), ["failed", "failed"]);
    world.write("go", "");
    run().is(0, "step.skipped").names(&["step one: done under token 1"]);
    assert_eq!(done(&world), "k/one\n");
    assert_eq!(item(&world, FIRST)["steps"], json!(["one", "two"]));
    assert_eq!(item(&world, "k")["steps"], json!([]));
}

/// Where a step is done the slot is gone on with, without being asked for; and so is its key.
#[test]
fn after_a_step_the_key_is_gone_on_with_as_well() {
    let world = World::new();
    let leasehold = binary().display().to_string();
    let step = "sh -c 'echo \"$LEASEHOLD_KEY\" >> done'";
    let script = format!("{leasehold} step one -- {step}; test -e go || {{ echo here; exec sleep 60; }}");
    let command = ["run", "site", "--slot", FIRST, "--key", "k", "--", "sh", "-c", &script];
    let mut first = world.start(&command);
    assert_eq!(first.line(), "here");
    kill(first.pid(), Signal::KILL);
    first.ended();
    until("the lease is free", || world.run(&["run", "site", "true"]).err.is_empty().then_some(()));
    world.write("go", "");
    // The control: the key by itself says nothing of steps.
    world.run(&["once", "k", "--", "touch", "never"]).is(79, "items.unknown");
    world.run(&command).is(0, "step.skipped").names(&["step one"]);
    assert_eq!(outcomes(&world), ["ok", "ok"]);
    assert_eq!(done(&world), "k/one\n");
    assert!(!world.path("never").exists());
}

/// The connection breaks when the key is asked for: nothing is run, and the slot says so.
#[test]
fn a_store_that_does_not_answer_for_the_key_runs_nothing() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    let (world, url, proxy) = (place.world(), place.url(), place.proxy());
    let (job, key) = (fresh("slot"), fresh("key"));
    let run = |store: &str| {
        let command = ["--store", store, "run", &job, "--slot", FIRST, "--key", &key];
        world.run(&[&command[..], &["--ttl", "30s"], &JOB].concat())
    };
    let through = place.through(&proxy);
    world.run(&["--store", &through, "run", &fresh("first"), "true"]).is(0, "");
    let strike = proxy.arm_on(format!("keys/{key}").as_bytes(), Fault::Cut);
    let ended = run(&through);
    assert!(strike.struck(), "{ended:#?}");
    ended.is(69, "").names(&["Nothing was run"]);
    assert_eq!(done(&world), "");
    let history = world.run(&["--store", &url, "--json", "why", &job]).is(0, "").first();
    assert_eq!(history["outcome"], "failed");
    assert_eq!(history["said"], format!("{key}: the store did not answer"));
    run(&through).is(0, "");
    assert_eq!(done(&world), format!("{FIRST} {key}\n"));
}

/// The key's record cannot be closed: then the slot's is not either, and the next run finds both open.
#[test]
fn a_slot_stays_open_with_its_key() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    let (world, url, proxy) = (place.world(), place.url(), place.proxy());
    let (job, key) = (fresh("open"), fresh("key"));
    let through = place.through(&proxy);
    let command = ["--store", &through, "run", &job, "--slot", FIRST, "--key", &key, "--ttl", "6s"];
    let mut run = world.start(&[&command[..], &["--", "sh", "-c", "echo here; read go"]].concat());
    assert_eq!(run.line(), "here");
    let closing = format!(r#"{{"key":"{key}"}},"state":"ok""#);
    let strikes: Vec<_> = (0..500).map(|_| proxy.arm_on(closing.as_bytes(), Fault::Cut)).collect();
    run.type_in("go\n");
    run.ended()
        .is(0, "items.unrecorded_perhaps")
        .names(&[format!("outcome of {key} "), format!("outcome of {job}@")]);
    assert!(strikes[0].struck());
    let outcome = |name: &str| {
        let item = world.run(&["--store", &url, "--json", "why", name]).first();
        item["outcome"].as_str().unwrap().to_owned()
    };
    assert!(outcome(&format!("{job}@{FIRST}")) != "ok" && outcome(&key) != "ok");
}

/// A run that dies at each of its syncs: the next ones converge, and the other side, which knows keys, does it once.
#[test]
fn killed_at_every_sync() {
    let mut kills = 0;
    for nth in 1.. {
        let world = World::new();
        let charge = world.script(
            "charge",
            "#!/bin/sh\necho >> asked\ngrep -qx \"$LEASEHOLD_KEY\" done 2>/dev/null || echo \"$LEASEHOLD_KEY\" >> done\n",
        );
        // The store is made first: how that dies is another test.
        world.run(&["run", "first", "true"]).is(0, "");
        let command = ["run", "site", "--slot", FIRST, "--key", "k", "--if-unknown", "retry", "--", &charge];
        let line = world.command(&command);
        let mut strace = world.program("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync"]);
        strace.args(["-e", &format!("inject=fsync:signal=KILL:when={nth}")]);
        strace.arg(line.get_program()).args(line.get_args());
        if Ended::from(strace.output().unwrap()).code == 0 {
            break;
        }
        kills += 1;
        let asked = || fs::read_to_string(world.path("asked")).map_or(0, |text| text.lines().count());
        let before = asked();
        let key_is_done = world.run(&["--json", "why", "k"]).out.contains("\"ok\"");
        until("it is done", || {
            let ended = world.run(&command);
            (ended.code == 0 && !ended.err.contains("held by")).then_some(())
        });
        world.run(&command).is(0, "").names(&["skipped site@"]);
        assert_eq!(done(&world), "k\n", "{nth}");
        assert!(asked() <= before + 1, "{nth}: executed more than once more");
        // Its run died before it could say so of the slot as well.
        let slot = item(&world, FIRST)["outcome"].clone();
        assert!(slot == "ok" || key_is_done && slot == "skipped", "{nth}: {slot}");
        assert_eq!(item(&world, "k")["outcome"], "ok", "{nth}");
        assert!(!key_is_done || asked() == before, "{nth}: the key was done, and done again");
    }
    assert!(kills > 4, "only {kills}");
    println!("killed {kills} times");
}
