//! A machine's wall clock that is off: slots are due by the store's, and nobody schedules by one that is far off.

use std::path::PathBuf;

use super::kit::{RARE, drained, job, second};
use crate::world::places::{Place, fresh, places};
use crate::world::{Ended, Running, World};

fn library() -> PathBuf {
    let dirs = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = dirs.map(|dir| dir.join("faketime/libfaketime.so.1")).find(|path| path.exists());
    found.expect("SKIPPED: there is no libfaketime here; install the package faketime")
}

/// A command whose wall clock is this many seconds ahead.
fn moved(world: &World, place: &Place, ahead: i64, args: &[&str]) -> Ended {
    // Not the shipped binary: it is linked statically, and no library can be put before it.
    let mut command = world.program(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["--store", &place.url()]).args(args);
    if ahead != 0 {
        command.env("LD_PRELOAD", library()).env("FAKETIME", format!("{ahead:+}s"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    }
    command.output().unwrap().into()
}

fn settled(place: &Place, name: &str) -> Option<i64> {
    let mut store = leasehold::stores::open(&place.url()).unwrap_or_else(|e| panic!("{e}"));
    let name = leasehold::core::name::Name::new(name).unwrap();
    leasehold::agenda::read(store.as_mut(), &name).unwrap().map(|agenda| agenda.settled)
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
                let ended = moved(&world, &place, ahead, &[command]).is(78, "this machine's clock is ");
                assert!(ended.err.contains(way) && ended.err.contains("Nothing was started"), "{ended:#?}");
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
            assert!((first - super::kit::now()).abs() < 30, "{}: {first} by a moved clock", place.name);
            let line = crate::world::until("a slot is due", || {
                moved(&world, &place, ahead, &["tick"]).is(0, "");
                super::kit::lines(&world.path("runs")).first().cloned()
            });
            let (slot, seen) = line.split_once(' ').unwrap();
            assert_eq!(
                second(slot),
                first.div_euclid(10) * 10 + 10,
                "{}: the first one after it",
                place.name
            );
            // The control: the moved clock is seen.
            let off = seen.parse::<i64>().unwrap() - super::kit::now();
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
        daemon.said("; TERM or Ctrl-C");
        world.write("leasehold.toml", &text("1100ms"));
        daemon.said("less 1s for the store's clock is too short");
        daemon.said("The jobs stay as they were before that change");
        let said = drained(daemon).err;
        assert!(said.contains(&format!("{name}: ")) && !said.contains("Nothing was run"), "{said}");
        // The control: a start refuses it.
        world.run(&["--store", &place.url(), "tick"]).is(64, "less 1s for the store's clock is too short");
    }
}
