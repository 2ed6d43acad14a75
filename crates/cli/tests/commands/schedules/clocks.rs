//! A machine's wall clock that is off: slots are due by the store's, and nobody schedules by one that is far off.

use std::path::PathBuf;

use super::kit::{NOTE, RARE, Site, drained, job, lines, named, now, second};
use crate::world::places::{Place, fresh, places};
use crate::world::{Ended, Running, World, until};

fn library() -> PathBuf {
    let dirs = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = dirs.map(|dir| dir.join("faketime/libfaketime.so.1")).find(|path| path.exists());
    found.expect("SKIPPED: there is no libfaketime here; install the package faketime")
}

/// A command whose wall clock is this many seconds ahead.
fn moved(world: &World, place: &Place, ahead: i64, args: &[&str]) -> Ended {
    moved_on(world, &place.url(), ahead, args)
}

fn moved_on(world: &World, store: &str, ahead: i64, args: &[&str]) -> Ended {
    // Not the shipped binary: it is linked statically, and no library can be put before it.
    let mut command = world.program(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["--store", store]).args(args);
    if ahead != 0 {
        command.env("LD_PRELOAD", library()).env("FAKETIME", format!("{ahead:+}s"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    }
    command.output().unwrap().into()
}

fn settled(place: &Place, name: &str) -> Option<i64> {
    let mut store = leasehold::stores::open(&place.url()).unwrap_or_else(|e| panic!("{e}"));
    let name = leasehold::core::name::Name::new(name).unwrap();
    leasehold_run::job_records::read(store.as_mut(), &name).unwrap().map(|agenda| agenda.settled)
}

/// Where the store tells the time.
fn with_clocks() -> Vec<Place> {
    places().into_iter().filter(|place| ["postgres", "redis"].contains(&place.name)).collect()
}

#[test]
fn a_clock_that_is_far_off_starts_nothing() {
    for place in with_clocks() {
        let (world, name) = (place.world(), fresh("rare"));
        world.write("leasehold.toml", &job(&name, RARE, "ttl = \"30s\"", "touch ran"));
        for (ahead, way) in [(600, "ahead of"), (-600, "behind")] {
            for command in ["daemon", "tick"] {
                let ended = moved(&world, &place, ahead, &[command]).is(78, "daemon.clock_off");
                assert!(ended.err.contains(way), "{ended:#?}");
            }
        }
        assert_eq!(settled(&place, &name), None, "{}", place.name);
        // The control: with a clock that is right.
        moved(&world, &place, 0, &["tick"]).is(0, "");
        assert!(settled(&place, &name).is_some(), "{}", place.name);
        assert!(!world.path("ran").exists());
    }
}

#[test]
fn slots_are_due_by_the_time_of_the_store() {
    for place in with_clocks() {
        for ahead in [120, -120] {
            let (world, name) = (place.world(), fresh("often"));
            let note = "echo $LEASEHOLD_SLOT $(date +%s) >> runs";
            world.write("leasehold.toml", &job(&name, "every = \"10s\"", "ttl = \"30s\"", note));
            moved(&world, &place, ahead, &["tick"]).is(0, "");
            let first = settled(&place, &name).unwrap();
            assert!((first - now()).abs() < 30, "{}: {first} by a moved clock", place.name);
            let line = until("a slot is due", || {
                moved(&world, &place, ahead, &["tick"]).is(0, "");
                lines(&world.path("runs")).first().cloned()
            });
            let (slot, seen) = line.split_once(' ').unwrap();
            assert_eq!(
                second(slot),
                first.div_euclid(10) * 10 + 10,
                "{}: the first one after it",
                place.name
            );
            // The control: the moved clock is seen.
            let off = seen.parse::<i64>().unwrap() - now();
            assert!((off - ahead).abs() < 60, "{}: the clock is {off} s off", place.name);
        }
    }
}

/// What may be too short depends on how far the store's clock may jump: a file that a start refuses is not taken later.
#[test]
fn a_changed_file_is_held_against_the_clock_of_the_store() {
    for place in with_clocks() {
        let (world, name) = (place.world(), fresh("rare"));
        let text = |ttl: &str| job(&name, RARE, &format!("ttl = \"{ttl}\""), "true");
        world.write("leasehold.toml", &text("30s"));
        let mut command = world.hearing(crate::world::binary());
        command.args(["--store", &place.url(), "-v", "daemon"]);
        let mut daemon = Running::new(command);
        daemon.said("TERM or Ctrl-C");
        world.write("leasehold.toml", &text("1100ms"));
        daemon.said("1s for the store's clock");
        daemon.said("daemon.jobs_stay");
        let said = drained(daemon).err;
        assert!(said.contains(&format!("{name}: ")) && !said.contains("Nothing was run"), "{said}");
        // The control: a start refuses it.
        world.run(&["--store", &place.url(), "tick"]).is(64, "").names(&["1s for the store's clock"]);
    }
}

/// On a store that does not tell the time, a tick by a clock that is four years ahead settles them all.
#[test]
fn what_a_clock_far_ahead_has_settled_is_told_and_set_back() {
    const HOUR: i64 = 3_600;
    const YEARS: i64 = 4 * 365 * 86_400;
    let site = Site::with(&job("hourly", "every = \"1h\"", "", NOTE));
    site.jobs(".", &job("hourly", "every = \"1h\"", "", NOTE));
    until("some time is left of this hour", || (now() % HOUR < HOUR - 60).then_some(()));
    let newest = now().div_euclid(HOUR) * HOUR;
    site.rewind("hourly", newest - 4 * HOUR);
    moved_on(&site.world, &site.store, YEARS, &["tick"]).is(0, "").names(&["dropped "]);
    let early = lines(&site.world.path("runs"));
    assert!(early.len() == 1 && second(&early[0]) > newest + YEARS - 2 * HOUR, "{early:?}");
    // All that look by a clock that is right say so, and what to type.
    site.tick("a").is(0, "daemon.ahead");
    for command in [&["plan"][..], &["why", "hourly"], &["why", "hourly", &named(newest)]] {
        let out = site.run("a", command).is(0, "").out;
        assert!(out.contains("leasehold resume hourly"), "{command:?}: {out}");
    }
    let mut daemon = site.daemon("a");
    daemon.said("daemon.ahead");
    drained(daemon);
    // Who does not know the schedule cannot tell what was dropped of it.
    let before = site.agenda("hourly").unwrap();
    site.jobs("b", "");
    site.run("b", &["resume", "hourly"]).is(78, "pause.not_set_back");
    assert_eq!(site.agenda("hourly").unwrap(), before);
    site.run("a", &["resume", "hourly"]).is(0, "pause.resumed").names(&["up to 20"]);
    assert!(site.run("a", &["plan"]).is(0, "").out.trim_end().ends_with("ok"));
    site.tick("a").quiet();
    let agenda = site.agenda("hourly").unwrap();
    assert!((newest..=now()).contains(&agenda.settled), "{agenda:?}");
    let said: Vec<_> = agenda.dropped.iter().map(|r| (r.first, r.last, r.count, r.counting)).collect();
    assert_eq!(said, [(newest - 3 * HOUR, newest, 4, false)], "what is still to come is not dropped");
    assert!(site.runs("a").is_empty(), "{:?}", site.runs("a"));
    // What becomes due is run; and what was run too early is not run again in its time.
    site.rewind("hourly", newest - 1);
    site.tick("a").quiet();
    assert_eq!(site.runs("a"), [named(newest)]);
    moved_on(&site.world, &site.store, YEARS, &["tick"]).is(0, "");
    assert_eq!(lines(&site.world.path("runs")), early);
}
