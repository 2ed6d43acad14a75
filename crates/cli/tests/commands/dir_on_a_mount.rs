//! A `dir:` store behind a mount: what a network file system says in other words, and two paths to one directory.

use std::fs;
use std::process::Command;

use crate::world::{World, binary};

/// A directory that is mounted a second time.
struct Second(String);

impl Second {
    fn mount(of: &str, at: String) -> Self {
        fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["--bind", of, &at]).status().unwrap();
        assert!(mounted.success(), "this test needs to mount a directory: run it as root");
        Self(at)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Exit code, the verdict on the two paths, and every file of the stores that was left.
fn compared(world: &World, one: &str, other: &str) -> (i32, String) {
    let ended = world.run(&["--json", "doctor", one, "--also", other]);
    let exam = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let found = ended.out.lines().map(exam).find(|exam| exam["exam"] == "paths");
    let verdict = found.map_or_else(String::new, |exam| exam["verdict"].as_str().unwrap().to_owned());
    for store in [one, other] {
        let keys = format!("{}/keys", store.strip_prefix("dir:").unwrap());
        assert_eq!(fs::read_dir(keys).unwrap().count(), 0, "{store} is left as it was: {ended:#?}");
    }
    (ended.code, verdict)
}

#[test]
fn two_paths_to_one_directory_are_compared() {
    let world = World::new();
    let one = world.store("dir");
    let second = Second::mount(&world.at("store"), world.at("second"));
    let other = format!("dir:{}", second.0);
    assert_eq!(compared(&world, &one, &other), (0, "ok".into()));
    assert_eq!(compared(&world, &one, &one), (0, "ok".into()));
    // What a cache shows that is never asked again; and another store.
    world.sh("cp -a store copy").quiet();
    assert_eq!(compared(&world, &one, &format!("dir:{}", world.at("copy"))), (78, "unsafe".into()));
    let strange = format!("dir:{}", world.at("strange"));
    drop(leasehold::stores::open(&strange).unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(compared(&world, &one, &strange), (78, "unsafe".into()));
    world.run(&["doctor", &one, "--also", &format!("dir:{}", world.at("none"))]).is(69, "config.no_store");
}

/// A version was swept by somebody else after it was opened, which sshfs tells with the next call.
#[test]
fn a_version_that_is_gone_is_looked_for_again() {
    let world = World::new();
    let store = world.store("dir");
    world.run(&["--store", &store, "run", "site", "true"]).quiet();
    let newest = fs::read_dir(world.path("store/keys/leases%2fsite")).unwrap();
    let newest = newest.map(|entry| entry.unwrap().path()).max().unwrap();
    for call in ["fstat", "read"] {
        let status = |lost: &str| {
            let mut strace = world.program("strace");
            strace.args(["-f", "-qq", "-o", &world.at("log"), "-P", newest.to_str().unwrap()]);
            strace.args(["-e", &format!("inject={call}:error=ENOENT:{lost}"), "--"]).arg(binary());
            strace.args(["--json", "--store", &store, "status", "site"]);
            crate::world::Ended::from(strace.output().unwrap())
        };
        let ended = status("when=1").is(0, "");
        let log = fs::read_to_string(world.path("log")).unwrap();
        assert!(log.contains("(INJECTED)"), "{call} was never made: {log}");
        assert_eq!(ended.json()["state"], "free", "{ended:#?}");
        // One that is never there is told.
        status("when=1+").is(69, "");
    }
}
