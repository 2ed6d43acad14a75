//! A store that lost what this machine has seen there: its own token is noted before the job works, so that nobody else
//! is granted it, and a person accepts the store with `adopt`.

use std::fs;
use std::path::Path;

use crate::world::{Running, World, until};
use rustix::process::Signal;

/// The files of a store, as a backup has them.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(path, to).unwrap();
        }
    }
}

/// A store in a directory of its own, and a backup of it; nothing in it, or a lease that ran.
fn store(world: &World, scheme: &str, ran: bool) -> String {
    fs::create_dir(world.path("it")).unwrap();
    let url = match scheme {
        "sqlite" => format!("sqlite:{}", world.at("it/a.db")),
        _ => format!("dir:{}", world.at("it/store")),
    };
    drop(leasehold::stores::open(&url).unwrap_or_else(|e| panic!("{e}")));
    if ran {
        world.run(&["--store", &url, "run", "site", "true"]).quiet();
    }
    copy(&world.path("it"), &world.path("backup"));
    url
}

/// The backup takes the place of the store, which its holder still has open.
fn put_back(world: &World) {
    fs::rename(world.path("it"), world.path("gone")).unwrap();
    copy(&world.path("backup"), &world.path("it"));
}

fn at_work(world: &World, store: &str) -> Running {
    let mut held =
        world.start(&["--store", store, "run", "site", "sh", "-c", "echo $LEASEHOLD_TOKEN; exec cat"]);
    held.line();
    held
}

/// Within its first second, long before it renews; and it makes no difference whether its wrapper still lives.
#[test]
fn the_token_of_a_job_that_has_just_started_is_not_granted_again() {
    for (scheme, ran, killed) in [
        ("sqlite", true, false),
        ("sqlite", true, true),
        ("sqlite", false, false),
        ("dir", true, false),
        ("dir", true, true),
        ("dir", false, true),
    ] {
        let world = World::new();
        let store = store(&world, scheme, ran);
        let held = at_work(&world, &store);
        if killed {
            held.signal(Signal::KILL);
        }
        put_back(&world);
        let second = world.run(&["--store", &store, "--json", "run", "site", "touch", "ran"]);
        let what = format!("{scheme}, ran before: {ran}, killed: {killed}: {second:#?}");
        let word = if ran { "store_rewound" } else { "record_vanished" };
        assert_eq!((second.code, second.json()["reason"].as_str()), (79, Some(word)), "{what}");
        assert!(!world.path("ran").exists(), "{what}");
        // The control: a home that remembers nothing is granted it.
        let mut stranger = world.command(&["--store", &store, "run", "site", "touch", "ran"]);
        fs::create_dir(world.path("home")).unwrap();
        let stranger = crate::world::Ended::from(stranger.env("HOME", world.path("home")).output().unwrap());
        assert_eq!((stranger.code, world.path("ran").exists()), (0, true), "{what}: {stranger:#?}");
    }
}

#[test]
fn a_person_accepts_what_the_store_has_once_no_job_is_left() {
    for ran in [true, false] {
        let world = World::new();
        let store = store(&world, "sqlite", ran);
        let leasehold = |args: &[&str]| world.run(&[&["--store", &store], args].concat());
        let held = at_work(&world, &store);
        put_back(&world);
        let refused = leasehold(&["run", "site", "true"]).is(79, "").names(&["leasehold adopt site"]);
        assert!(!refused.err.contains("rm "), "{refused:#?}");
        // Whoever is at work is not passed over.
        leasehold(&["adopt", "site"]).is(11, "adopt.still_runs");
        leasehold(&["run", "site", "true"]).is(79, "");
        held.ended();
        let adopted = until("its job is gone", || {
            let adopted = leasehold(&["--json", "adopt", "site"]);
            (adopted.code == 0).then_some(adopted)
        });
        let json = adopted.json();
        assert_eq!(json["adopted"], true, "{json}");
        assert_eq!(
            (json["token"].as_u64(), json["seen"].as_u64()),
            (ran.then_some(1), Some(1 + u64::from(ran)))
        );
        let next = leasehold(&["run", "site", "sh", "-c", "echo $LEASEHOLD_TOKEN"]).quiet();
        assert_eq!(next.token(), 1 + u64::from(ran));
        // Where nothing was lost nothing is forgotten.
        let again = leasehold(&["--json", "adopt", "site"]);
        assert_eq!((again.code, &again.json()["adopted"]), (0, &false.into()), "{again:#?}");
    }
}
