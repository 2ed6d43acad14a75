//! `check`: everything that needs a person is in it, and nothing else.

use std::fs;
use std::time::Duration;

use leasehold::core::ids::Token;
use leasehold::core::run_log::{LogEvent, LogRecord, RefusedWrite};
use serde_json::Value;

use crate::schedules::kit::{RARE, Site, job};
use crate::what_the_log_adds_up_to::{MINUTE, record, tells, with};
use crate::world::places::places;
use crate::world::{Ended, World, until};

/// The findings, "KIND JOB" each; in the order in which they are told.
fn findings(ended: &Ended) -> Vec<String> {
    let object = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
    let word = |finding: &Value, field: &str| finding[field].as_str().unwrap_or("-").to_owned();
    let all = ended.out.lines().map(object);
    all.map(|found| format!("{} {}", word(&found, "kind"), word(&found, "job"))).collect()
}

fn check(world: &World, more: &[&str]) -> Ended {
    world.run(&[&["--json", "check"], more].concat())
}

/// As people read it; it must say each of these messages.
#[track_caller]
fn told(world: &World, args: &[&str], messages: &[&str]) {
    let ended = world.run(&[&["check"], args].concat());
    let code = i32::from(!messages.contains(&"check.nothing"));
    messages.iter().for_each(|message| tells(&ended, code, message));
}

#[test]
fn nothing_needs_anybody_after_runs_that_went_well_and_skips() {
    let world = World::new();
    told(&world, &[], &["check.nothing"]);
    world.run(&["run", "site", "true"]).is(0, "");
    world.run(&["once", "key", "true"]).is(0, "");
    world.run(&["once", "key", "true"]).is(0, "");
    world.run(&["acquire", "site"]).token();
    world.run(&["run", "site", "true"]).is(0, "run.skipped");
    check(&world, &[]).is(0, "");
    // Negative control.
    world.run(&["run", "other", "false"]).is(1, "");
    assert_eq!(findings(&check(&world, &[]).is(1, "")), ["failed other"]);
    told(&world, &[], &["check.last_run"]);
    check(&world, &["site"]).is(0, "");
    check(&world, &["key"]).is(0, "");
    world.run(&["check", "sitee"]).is(64, "history.unknown_name").names(&["Did you mean site?"]);
    assert_eq!(findings(&check(&world, &["other"]).is(1, "")), ["failed other"]);
    // A run that goes well ends it.
    world.run(&["run", "other", "true"]).is(0, "");
    assert_eq!(findings(&check(&world, &[]).is(0, "")), [""; 0]);
}

#[test]
fn keys_that_failed_too_often_or_never_reported_are_told() {
    let world = World::new();
    world.run(&["once", "twice", "false"]).is(1, "");
    told(&world, &["twice"], &["check.item_ended"]);
    for _ in 0..3 {
        world.run(&["once", "often", "false"]).is(1, "");
    }
    world.run(&["once", "gone", "--ttl", "2s", "--", "sh", "-c", "kill -9 $PPID"]).is(137, "");
    let all = until("the lease of the dead run ends", || {
        let found = findings(&check(&world, &[]));
        (found.len() == 3).then_some(found)
    });
    assert_eq!(all, ["unknown gone.once", "quarantined often.once", "failed twice.once"]);
    told(&world, &[], &["check.quarantined", "check.item_unknown"]);
    world.run(&["retry", "--done", "gone"]).is(0, "");
    world.run(&["retry", "often"]).is(0, "");
    for key in ["often", "twice"] {
        world.run(&["once", key, "true"]).is(0, "");
    }
    check(&world, &[]).is(0, "");
}

/// Also where the lease has another name than the key, and where a run takes over after the decision.
#[test]
fn a_decision_about_a_key_ends_what_is_told_of_its_run() {
    for decision in [&["retry", "--done", "k"][..], &["retry", "k"]] {
        let world = World::new();
        let run = |command: &[&str]| {
            world.run(&[&["run", "site", "--key", "k", "--ttl", "1s", "--"], command].concat())
        };
        run(&["sh", "-c", "kill -9 $PPID"]).is(137, "");
        // The control: until somebody decides, it is told.
        until("it is told", || (findings(&check(&world, &[])) == ["unknown site"]).then_some(()));
        world.run(decision).is(0, "");
        assert_eq!(findings(&check(&world, &[]).is(0, "")), [""; 0], "{decision:?}");
        run(&["true"]).is(0, "");
        assert_eq!(findings(&check(&world, &[]).is(0, "")), [""; 0], "{decision:?}");
    }
}

#[test]
fn a_dead_holder_is_told_until_the_next_run() {
    let world = World::new();
    world.run(&["acquire", "site", "--ttl", "1s"]).token();
    until("it is told", || (findings(&check(&world, &[])) == ["unknown site"]).then_some(()));
    told(&world, &[], &["check.never_reported"]);
    world.run(&["run", "site", "true"]).is(0, "");
    check(&world, &[]).is(0, "");
}

#[test]
fn refused_writes_and_records_that_are_not_in_the_log_are_told() {
    let world = World::new();
    let refused = |ago: Duration| LogRecord {
        reason: Some("stale".into()),
        target: Some(RefusedWrite { target: "postgres://me:correct-horse@db/x#t".into(), fence: None }),
        ..record("site", LogEvent::Refused, ago, MINUTE)
    };
    let url = with(&world, "sqlite", &[refused(MINUTE), refused(60 * 48 * MINUTE)]);
    let args = ["--store", &url];
    let found = check(&world, &args).is(1, "");
    assert_eq!(findings(&found), ["refused site"]);
    assert!(!found.out.contains("correct-horse"), "{found:#?}");
    told(&world, &args, &["check.refused", "refusals.newer_run"]);
    check(&world, &[&args[..], &["--since", "10s"]].concat()).is(0, "");
    let unlogged = world.state().join("unlogged");
    fs::create_dir_all(&unlogged).unwrap();
    fs::write(unlogged.join("0-0-ok.json"), "{}").unwrap();
    fs::write(unlogged.join("dropped"), "3").unwrap();
    let recent = [&args[..], &["--since", "10s"]].concat();
    assert_eq!(
        findings(&check(&world, &recent).is(1, "")),
        ["unlogged -", "unlogged -"].map(|x| x.replace('-', ""))
    );
    told(&world, &recent, &["check.waiting", "check.not_kept"]);
}

/// Only a stale write is told as one that came after a newer run.
#[test]
fn a_refused_write_is_told_with_its_reason() {
    let reasons = [
        ("stale", "refusals.newer_run", "why.fence_has"),
        ("not-sealed", "refusals.not_named", "refusals.not_named"),
        ("other-lease", "refusals.other_lease", "refusals.other_lease"),
        ("epoch", "refusals.other_reason", "refusals.other_reason"),
    ];
    for (reason, checked, explained) in reasons {
        let world = World::new();
        let refused = |n: u32| LogRecord {
            reason: Some(reason.into()),
            token: Token::new(2),
            target: Some(RefusedWrite { target: "file:out".into(), fence: Token::new(3) }),
            ..record("site", LogEvent::Refused, n * MINUTE, MINUTE)
        };
        let url = with(&world, "sqlite", &[refused(3), refused(20)]);
        let on = |args: &[&str]| world.run(&[&["--store", &url], args].concat());
        tells(&on(&["check"]), 1, "check.several_refused");
        for (command, message) in [("check", checked), ("why", explained)] {
            let ended = on(&[command, "site"]);
            tells(&ended, i32::from(command == "check"), message);
            let late = ended.out.contains("newer") || ended.out.contains("already");
            assert_eq!(late, reason == "stale", "{ended:#?}");
        }
        let picture = on(&["history", "--timeline", "--since", "1h"]);
        let note = if reason == "stale" { "it_was_refused" } else { "it_was_refused_because" };
        assert_eq!(picture.out.contains("2 < 3"), reason == "stale", "{picture:#?}");
        // Its lines are broken.
        let words: Vec<&str> = picture.out.split_whitespace().collect();
        let out = words.join(" ");
        tells(&Ended { out, ..picture }, 0, &format!("timeline.{note}"));
    }
}

#[test]
fn records_of_a_newer_version_and_damaged_ones_are_told() {
    let site = Site::new();
    fs::create_dir_all(site.world.path("a")).unwrap();
    site.run("a", &["run", "site", "true"]).is(0, "");
    site.run("a", &["run", "bad", "true"]).is(0, "");
    site.run("a", &["check"]).is(0, "");
    site.damage("leases/bad");
    let mut store = leasehold::stores::open(&site.store).unwrap_or_else(|e| panic!("{e}"));
    let mut key = None;
    leasehold::run_log::each(
        store.as_mut(),
        leasehold::run_log::Scope::All,
        leasehold::run_log::Window::last(MINUTE),
        10,
        |entry| {
            key = Some(entry.key);
            true
        },
    )
    .unwrap();
    site.edit(&key.unwrap(), |record| record["leasehold_log"] = 99.into());
    let found = site.run("a", &["--json", "check"]).is(1, "");
    assert_eq!(findings(&found), ["damaged bad", "newer "]);
    let told = site.run("a", &["check"]);
    for message in ["check.damaged", "check.newer"] {
        tells(&told, 1, message);
    }
    // As far as it can be counted it is.
    let stats = site.run("a", &["stats"]).is(0, "stats.newer");
    assert!(stats.out.contains("site"), "{stats:#?}");
}

#[test]
fn jobs_that_are_overdue_or_failed_are_told() {
    let site = Site::new();
    site.jobs("a", &job("site", RARE, "", "exit 1"));
    let check = || site.run("a", &["--json", "check"]);
    assert_eq!(findings(&check().is(1, "")), ["overdue site"]);
    let told = site.run("a", &["check"]);
    tells(&told, 1, "check.unseen");
    site.tick("a").is(0, "");
    check().is(0, "");
    site.make_due("site");
    assert_eq!(findings(&check().is(1, "")), ["overdue site"]);
    site.tick("a").is(1, "");
    assert_eq!(findings(&check().is(1, "")), ["failed site"]);
    let told = site.run("a", &["check"]);
    tells(&told, 1, "check.standing");
    // Elsewhere the file is not there, and the store knows the job.
    fs::create_dir_all(site.world.path("b")).unwrap();
    assert_eq!(findings(&site.run("b", &["--json", "check"]).is(1, "")), ["failed site"]);
}

/// Also where lists have no bodies, and where a machine is far from its store.
#[test]
fn every_store_tells_the_same() {
    for place in places() {
        let world = place.world();
        // Some of them are the same database.
        let name = format!("told-{}-{}", place.name.replace(' ', "-"), std::process::id());
        let url = place.url();
        let mail = world.at("mail");
        let alerts = format!("[alerts]\ncommand = [\"sh\", \"-c\", \"cat >> {mail}\"]\n");
        world.write("leasehold.toml", &alerts);
        let on = |args: &[&str]| world.run(&[&["--store", &url], args].concat());
        for _ in 0..2 {
            on(&["run", &name, "--ttl", "60s", "sh", "-c", "exit 3"]).is(3, "");
        }
        let found = on(&["--json", "check", &name]).is(1, "");
        assert_eq!(findings(&found), [format!("failed {name}")], "{}: {found:#?}", place.name);
        on(&["run", &name, "--ttl", "60s", "true"]).is(0, "");
        on(&["--json", "check", &name]).is(0, "");
        let stats = on(&["--json", "stats", &name]).is(0, "").json();
        assert_eq!((&stats["runs"], &stats["ok"]), (&3.into(), &1.into()), "{}: {stats}", place.name);
        let metrics = on(&["metrics"]).is(0, "").out;
        let sample = format!("leasehold_runs_total{{job=\"{name}\",outcome=\"failed\"}} 2\n");
        assert!(metrics.contains(&sample), "{}: {metrics}", place.name);
        let mail = std::fs::read_to_string(mail).unwrap();
        let kinds: Vec<Value> = mail.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = kinds.iter().map(|message| message["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["failed", "ok"], "{}", place.name);
    }
}
