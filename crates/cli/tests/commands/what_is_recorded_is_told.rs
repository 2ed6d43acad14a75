//! A command that has ended has ended: what its run says of it is what was recorded.

use std::time::Duration;

use crate::world::{Ended, World, until};
use leasehold::clock::boot_time;
use rusqlite::Connection;
use serde_json::Value;

const TTL: Duration = Duration::from_secs(2);
const JOB: [&str; 4] = ["--", "sh", "-c", "echo here; read go; exit $go"];

/// Runs the job with a key while, until its lease has run out, the store can be read and not written. It ends at once with
/// this code, or has to be stopped. What the run says of it, and the record.
fn recorded_late(world: &World, code: Option<i32>) -> (serde_json::Value, serde_json::Value) {
    let store = format!("sqlite:{}", world.at("store.db"));
    world.run(&["--store", &store, "run", "warm", "true"]).is(0, "");
    let locked = Connection::open(world.path("store.db")).unwrap();
    let args = ["--store", &store, "run", "site", "--ttl", "2s", "--key", "k", "--report", "report"];
    let mut run = world.start(&[&args[..], &JOB].concat());
    assert_eq!(run.line(), "here");
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let end = boot_time().plus(TTL);
    if let Some(code) = code {
        run.type_in(&format!("{code}\n"));
    }
    until("a whole TTL", || (boot_time() >= end).then_some(()));
    locked.execute_batch("ROLLBACK").unwrap();
    let ended = run.ended();
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(world.path("report")).unwrap()).unwrap();
    assert_eq!(report["exit"], ended.code, "{ended:#?}");
    assert_eq!(ended.err.contains("lost site"), code.is_none(), "{ended:#?}");
    (report, world.run(&["--store", &store, "--json", "why", "k"]).is(0, "").first())
}

#[test]
fn a_record_that_takes_longer_than_the_lease_changes_nothing_of_what_it_records() {
    for (code, word) in [(0, "ok"), (3, "failed")] {
        let (told, kept) = recorded_late(&World::new(), Some(code));
        assert_eq!((&kept["outcome"], &kept["exit"]), (&word.into(), &code.into()), "{kept}");
        assert_eq!((&told["outcome"], &told["exit"]), (&word.into(), &code.into()), "{told}");
    }
}

/// The control: what still runs when its lease cannot be kept is stopped, and that is lost.
#[test]
fn what_is_stopped_for_its_lease_is_recorded_and_told_as_lost() {
    let (told, kept) = recorded_late(&World::new(), None);
    assert_eq!(
        (&kept["outcome"], &told["outcome"], &told["exit"]),
        (&"lost".into(), &"lost".into(), &75.into())
    );
}

/// The run that was killed did not say it: for money one needs to know who did.
#[test]
fn who_said_that_it_was_done_is_told() {
    let world = World::new();
    world.run(&["once", "done", "--", "true"]).is(0, "");
    world.run(&["once", "k", "--attempts", "1", "--", "false"]).is(1, "");
    let mut retry = world.command(&["retry", "--done", "k"]);
    Ended::from(retry.env("USER", "mary").output().unwrap()).is(0, "retry.done");
    let row = |key: &str| world.run(&["--json", "history", key]).is(0, "").first();
    assert_eq!((&row("k")["outcome"], &row("k")["reason"]), (&"ok".into(), &"by-hand".into()));
    let said = row("k")["said"].as_str().unwrap().to_owned();
    assert!(said.starts_with(&format!("by-hand: mary@{}/", leasehold::host::name())), "{said}");
    // The run that failed is told as well, and why has the item itself.
    let tries = world.run(&["--json", "history", "k"]).objects();
    assert_eq!(tries.iter().map(|row| &row["outcome"]).collect::<Vec<_>>(), ["ok", "failed"]);
    assert_eq!(world.run(&["--json", "why", "k"]).first()["said"], said);
    world.run(&["once", "k", "--", "touch", "again"]).is(0, "").names(&["skipped k: done by hand (mary@"]);
    let why = world.run(&["why", "k"]).is(0, "").out;
    assert!(why.contains("k: ok, by hand (mary@"), "{why}");
    assert!(!world.path("again").exists());
    // The control: what was done by a run.
    assert_eq!((&row("done")["reason"], &row("done")["said"]), (&Value::Null, &Value::Null));
    world.run(&["once", "done", "--", "true"]).is(0, "").names(&["skipped done: done by"]).lacks("by hand");
}

/// Once it waits for a person, it is not said that the next run tries again.
#[test]
fn why_tells_what_waits_for_a_person() {
    let world = World::new();
    let why = || world.run(&["why", "k"]).quiet().out;
    for left in [2, 1, 0] {
        world.run(&["once", "k", "--", "false"]).is(1, "");
        assert_eq!(why().contains("leasehold retry k"), left == 0, "{}", why());
        assert_eq!(why().contains("tries again"), left > 0, "{}", why());
    }
    world.run(&["once", "k", "--", "true"]).is(79, "items.quarantined");
}

/// A skip has one record, with its reason and who had the lease; and it is no record of the item.
#[test]
fn a_skip_of_a_run_is_told_with_its_reason() {
    let world = World::new();
    let mut holder = world.start(&["run", "site", "sh", "-c", "echo up; exec cat"]);
    assert_eq!(holder.line(), "up");
    let flags = [&[][..], &["--slot", "2026-11-16T05:45Z"], &["--key", "k"]];
    for flags in flags {
        let skipped = world.run(&[&["run", "site"], flags, &["--", "touch", "ran"]].concat());
        skipped.is(0, "").names(&["skipped "]);
    }
    let skipped = world.run(&["--json", "history", "--only", "skipped"]).quiet().objects();
    let kinds: Vec<_> = skipped.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["key", "slot", "skip"]);
    let held_by = format!("{}/{}", leasehold::host::name(), holder.pid());
    for row in &skipped {
        assert_eq!((&row["reason"], &row["token"]), (&"overlap".into(), &1.into()), "{row}");
        assert_eq!(row["held_by"], *held_by, "{row}");
    }
    let table = world.run(&["history", "--only", "skipped"]).quiet().out;
    assert_eq!(table.matches(&format!("held by {held_by}")).count(), 3, "{table}");
    holder.ended().quiet();
    // They may still be run.
    world.run(&["run", "site", "--key", "k", "--", "true"]).quiet();
    // The control: a slot whose key is done.
    world.run(&["run", "site", "--slot", "2026-11-16T05:45Z", "--key", "k", "--", "touch", "ran"]).is(0, "");
    assert_eq!(world.run(&["--json", "history", "--only", "skipped"]).quiet().first()["reason"], "done");
    assert!(!world.path("ran").exists());
    // What is said of it is true.
    let help = world.run(&["history", "--help"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("each skip with its reason"), "{help}");
}
