//! What `history`, `why`, `retry` and `status` tell of the jobs of leasehold.toml: every slot has an account.

use std::fs;
use std::time::Duration;

use crate::world::{World, kill, messages};
use leasehold::core::ledger::job_record::JobSchedule;
use leasehold::core::name::Name;
use leasehold_run::job_records::{self, Terms};
use leasehold_run::schedule::{Every, Schedule};
use rustix::process::Signal;
use serde_json::Value;

const DAY: i64 = 86_400;

/// A job that is due every midnight, of a world with a store of its own. Whether it fails is said by a file.
fn nightly(world: &World, more: &str) -> String {
    let store = world.store("sqlite");
    let job = "run = [\"sh\", \"-c\", \"test ! -e broken && echo $LEASEHOLD_SLOT >> done\"]";
    world.write(
        "leasehold.toml",
        &format!("store = {store:?}\n[[job]]\nname = \"nightly\"\nevery = \"1d\"\n{job}\n{more}\n"),
    );
    store
}

fn now() -> i64 {
    leasehold::clock::wall().as_secs().cast_signed()
}

/// The name of the midnight so many days ago; today's is 0.
fn midnight(days_ago: i64) -> String {
    leasehold::host::utc((now().div_euclid(DAY) - days_ago).unsigned_abs() * 86_400)
}

/// As if a machine had loaded the job so many days ago and gone away.
fn seen(store: &str, days_ago: i64) {
    let mut store = leasehold::stores::open(store).unwrap();
    let job = Name::new("nightly").unwrap();
    let every = Every::new(Duration::from_secs(86_400), Duration::ZERO).unwrap();
    let terms = Terms {
        leases: vec![job.clone()],
        job,
        schedule: Schedule::every(every),
        named: JobSchedule { key: Schedule::every(every).key(), written: every.to_string() },
        skips: true,
        catch_up: 1,
        max_age: None,
        retry: false,
        attempts: 1,
        keep: Duration::from_secs(90 * 86_400),
        stagger: Duration::ZERO,
    };
    // Past midnight, so that the one of that day lies before.
    job_records::register(store.as_mut(), &[&terms], (now().div_euclid(DAY) - days_ago) * DAY + 60).unwrap();
}

/// Whether a line of what was printed is this message.
fn tells(text: &str, message: &str) -> bool {
    assert!(messages::is_name(message), "{message}");
    messages::says(text, message)
}

fn executed(world: &World, slot: &str) -> usize {
    let done = fs::read_to_string(world.path("done")).unwrap_or_default();
    done.lines().filter(|line| *line == slot).count()
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// By hand, for a slot that failed long ago.
fn failed_by_hand(world: &World, slot: &str) {
    world.run(&["run", "nightly", "--slot", slot, "--attempts", "1", "--", "false"]).is(1, "");
}

#[test]
fn history_has_the_slots_that_nobody_ran() {
    let world = World::new();
    let store = nightly(&world, "");
    seen(&store, 5);
    world.run(&["tick"]).is(0, "daemon.dropped").names(&["4 slots of nightly"]);
    let table = world.run(&["history"]).quiet().out;
    let row =
        table.lines().find(|line| line.contains("dropped (4 missed)")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.starts_with(&format!("{} … {} ", midnight(4), midnight(1))), "{table}");
    assert!(table.ends_with("\n1 ok, 4 dropped\n"), "{table}");
    let only = world.run(&["--json", "history", "--only", "dropped"]).quiet().json();
    let expected = serde_json::json!({
        "v": 1, "kind": "dropped", "job": "nightly", "outcome": "dropped", "reason": "missed", "count": 4,
        "first": midnight(4), "last": midnight(1), "time": midnight(1),
    });
    assert_eq!(only, expected);
    // The newest first.
    let all = objects(&world.run(&["--json", "history", "nightly"]).quiet().out);
    assert_eq!(all.iter().map(|row| &row["outcome"]).collect::<Vec<_>>(), ["ok", "dropped"]);
    world.run(&["--json", "history", "--only", "dropped", "other"]).is(64, "").names(&["unknown_name"]);
    // By when they were dropped, not by when they were due.
    world.run(&["--json", "history", "--only", "dropped", "--since", "1h"]).quiet().json();
    assert_eq!(world.run(&["--json", "history", "--only", "dropped", "--until", "1h"]).quiet().out, "");
    world.run(&["history", "--only", "droped"]).is(64, "").names(&["did you mean dropped?"]);
}

#[test]
fn why_tells_of_every_slot() {
    let world = World::new();
    let store = nightly(&world, "");
    let why = |time: &str| world.run(&["why", "nightly", time]).quiet().out;
    let missing = world.run(&["why", "nightly"]).quiet().out;
    assert!(tells(&missing, "why.not_loaded"), "{missing}");
    assert!(tells(&why(&midnight(1)), "why.not_loaded_then"));
    seen(&store, 5);
    assert!(tells(&why(&midnight(0)), "why.not_started"), "{}", why(&midnight(0)));
    assert!(tells(&why(&midnight(-1)), "why.due"), "{}", why(&midnight(-1)));
    world.run(&["tick"]).is(0, "");
    let dropped = why(&midnight(2));
    assert!(
        tells(&dropped, "why.dropped") && dropped.contains("4 slots") && dropped.contains("catch_up"),
        "{dropped}"
    );
    assert!(why(&midnight(0)).contains(": ok, by "), "{}", why(&midnight(0)));
    assert!(tells(&why(&midnight(9)), "why.forgotten"), "{}", why(&midnight(9)));
    let beside = why(&midnight(2).replace("T00:00:00Z", "T00:30Z"));
    assert!(beside.contains(&format!("the nearest are {} and {}", midnight(2), midnight(1))), "{beside}");
    // Without an offset it is a time on the wall here.
    let bare = why(&midnight(2).replace(":00Z", ""));
    assert!(tells(&bare, "why.taken_as") && bare.contains(&midnight(2)), "{bare}");
    let whole = world.run(&["why", "nightly"]).quiet().out;
    for part in ["nightly is due next at ", ": ok, by ", "4 slots from "] {
        assert!(whole.contains(part), "{part}: {whole}");
    }
    world.run(&["pause", "nightly"]).is(0, "pause.paused");
    let paused = world.run(&["why", "nightly"]).quiet().out;
    assert!(tells(&paused, "why.paused"), "{paused}");
    let json = objects(&world.run(&["--json", "why", "nightly"]).quiet().out);
    assert_eq!(
        json.iter().map(|row| row["kind"].as_str().unwrap()).collect::<Vec<_>>(),
        ["slot", "dropped", "job"]
    );
    assert!(json[2]["paused"]["since"].is_string(), "{json:#?}");
    // A file that is wrong is not passed over in silence; a job that no file here has still has its record.
    world.write("leasehold.toml", &format!("store = {store:?}\n[[job]]\nnaem = \"nightly\"\n"));
    world.run(&["why", "nightly"]).is(0, "did you mean");
    world.write("leasehold.toml", &format!("store = {store:?}\n"));
    assert!(tells(&why(&midnight(-1)), "why.not_started_nor_known"));
}

/// With a time zone a time needs no offset; and there are times that come twice.
#[test]
fn why_takes_the_time_on_the_wall() {
    let world = World::new();
    let store = world.store("sqlite");
    let job = "name = \"paper\"\ncron = \"30 6 * * MON-FRI\"\ntimezone = \"Europe/Berlin\"\nrun = [\"true\"]";
    world.write("leasehold.toml", &format!("store = {store:?}\n[[job]]\n{job}\n"));
    world.run(&["tick"]).is(0, "daemon.new_job");
    let why = |time: &str| world.run(&["why", "paper", time]).quiet().out;
    let monday = why("2099-11-16T06:30");
    assert!(tells(&monday, "why.due") && monday.contains("paper@2099-11-16T06:30+01:00 "), "{monday}");
    let sunday = why("2099-11-15T06:30");
    assert!(sunday.contains("2099-11-13T06:30+01:00 and 2099-11-16T06:30+01:00"), "{sunday}");
    world.run(&["why", "paper", "tomorrow"]).is(64, "why.no_time");
}

/// What is kept of how it ended stands below the sentence, and cannot move the cursor.
#[test]
fn why_shows_what_a_failed_run_said() {
    let world = World::new();
    world.run(&["once", "k\u{1b}[2J", "--attempts", "1", "--", "false"]).is(1, "");
    let slot =
        ["run", "a", "--slot", "2026-11-16T05:45Z", "--key", "k\u{1b}[2J", "--attempts", "1", "--", "true"];
    world.run(&slot).is(79, "items.quarantined");
    let why = world.run(&["why", "a", "2026-11-16T05:45Z"]).quiet().out;
    let said = why.lines().last().unwrap();
    assert_eq!(said, "    k\u{fffd}[2J failed once and waits for a person", "{why}");
    assert!(why.contains("a@2026-11-16T05:45:00Z: failed, by "), "{why}");
}

#[test]
fn a_settled_slot_is_tried_again_when_somebody_says_so() {
    let world = World::new();
    nightly(&world, "");
    let slot = midnight(3);
    failed_by_hand(&world, &slot);
    // All before now is settled, also that slot.
    world.run(&["tick"]).is(0, "daemon.new_job");
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 0, "nobody asked for it");
    let key = format!("nightly@{slot}");
    world.run(&["retry", &key]).is(0, "retry.again").names(&["`leasehold tick` runs it now"]);
    world.run(&["retry", &key]).is(0, "retry.left").names(&["`leasehold tick` runs it now"]);
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 1);
    world.run(&["tick"]).quiet();
    assert_eq!(
        fs::read_to_string(world.path("done")).unwrap(),
        format!("{slot}\n"),
        "once, and nothing else"
    );
    world.run(&["retry", &key]).is(0, "retry.left").names(&["it is done"]);
    let tries = world.run(&["--json", "history", "nightly"]).quiet().objects();
    let tries: Vec<_> = tries.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    assert_eq!(tries, ["ok", "retry", "failed"]);
    let row = world.run(&["--json", "history", "nightly"]).quiet().first();
    assert_eq!((&row["outcome"], &row["attempt"]), (&"ok".into(), &2.into()), "{row}");
    world.run(&["retry", &format!("nightly@{}", midnight(4))]).is(64, "retry.no_record");
}

/// It failed again: it waits for a person again.
#[test]
fn one_try_is_one_try() {
    let world = World::new();
    nightly(&world, "");
    let (slot, key) = (midnight(3), format!("nightly@{}", midnight(3)));
    failed_by_hand(&world, &slot);
    world.run(&["tick"]).is(0, "daemon.new_job");
    world.write("broken", "");
    world.run(&["retry", &key]).is(0, "retry.again");
    world.run(&["tick"]).is(1, "daemon.ended_badly");
    fs::remove_file(world.path("broken")).unwrap();
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 0);
    let why = world.run(&["why", "nightly", &slot]).quiet().out;
    assert!(why.contains(&format!(": leasehold retry {key}")), "{why}");
}

/// Nothing was settled since, and there are newer ones that are wanted: it is run all the same.
#[test]
fn a_slot_that_is_not_the_newest_is_tried_again() {
    let world = World::new();
    let store = nightly(&world, "");
    seen(&store, 5);
    let slot = midnight(2);
    failed_by_hand(&world, &slot);
    world
        .run(&["retry", &format!("nightly@{slot}")])
        .is(0, "retry.again")
        .names(&["`leasehold tick` runs it now"]);
    world.run(&["tick"]).is(0, "");
    assert_eq!((executed(&world, &slot), executed(&world, &midnight(0))), (1, 1));
    world.run(&["tick"]).quiet();
    assert_eq!(fs::read_to_string(world.path("done")).unwrap().lines().count(), 2);
}

#[test]
fn a_slot_that_gave_way_says_so_and_may_be_tried_again() {
    let world = World::new();
    let store = nightly(&world, "");
    seen(&store, 1);
    let token = world.run(&["acquire", "nightly", "--ttl", "10m"]).token().to_string();
    world.run(&["tick"]).is(0, "").names(&["skipped nightly@"]);
    let slot = midnight(0);
    let row = world.run(&["--json", "history", "--only", "skipped"]).quiet().json();
    assert_eq!((&row["item"], &row["reason"]), (&slot.as_str().into(), &"overlap".into()), "{row}");
    let table = world.run(&["history"]).quiet().out;
    assert!(table.contains(" skipped (overlap) ") && table.ends_with("\n1 skipped\n"), "{table}");
    assert!(
        world
            .run(&["why", "nightly", &slot])
            .quiet()
            .out
            .contains("it is not run (overlap: nightly was held)")
    );
    world.run(&["release", "nightly", "--token", &token]).is(0, "");
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 0, "it gave way for good");
    world
        .run(&["retry", &format!("nightly@{slot}")])
        .is(0, "retry.again")
        .names(&["`leasehold tick` runs it now"]);
    world.run(&["tick"]).quiet();
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 1);
}

#[test]
fn retry_says_who_will_run_it() {
    let world = World::new();
    nightly(&world, "");
    let (slot, key) = (midnight(3), format!("nightly@{}", midnight(3)));
    failed_by_hand(&world, &slot);
    world.run(&["retry", &key]).is(0, "retry.again").names(&[&format!("nightly with --slot {slot} ")]);
    world.run(&["tick"]).is(0, "daemon.new_job");
    world.run(&["pause", "nightly"]).is(0, "");
    world.run(&["retry", &key]).is(0, "").names(&["after `leasehold resume nightly`"]);
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 0, "it is paused");
    world.run(&["resume", "nightly"]).is(0, "");
    world.run(&["tick"]).quiet();
    assert_eq!(executed(&world, &slot), 1);
}

#[test]
fn status_tells_which_slot_it_is_for() {
    let world = World::new();
    world.run(&["run", "idle", "true"]).quiet();
    assert!(!world.run(&["status"]).quiet().out.contains("SLOT"));
    let slot = "2026-11-16T05:45:00Z";
    let mut run = world.start(&["run", "site", "--slot", slot, "sh", "-c", "echo here; exec sleep 60"]);
    assert_eq!(run.line(), "here");
    let table = world.run(&["status"]).quiet().out;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = table.lines().map(words).collect();
    assert_eq!(rows[0].join(" "), "LEASE SLOT STATE TOKEN HOLDER HELD RENEWED ENDS IN");
    assert_eq!(
        (rows[1][..3].join(" "), rows[2][..3].join(" ")),
        (format!("site {slot} held"), "idle - free".into())
    );
    assert_eq!(world.status(&[], "site")["slot"], slot);
    assert_eq!(world.status(&[], "idle")["slot"], Value::Null);
    kill(run.pid(), Signal::TERM);
    run.ended();
}
