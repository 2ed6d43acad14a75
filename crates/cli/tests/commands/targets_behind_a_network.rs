//! Buckets, Redis and Firestore as targets, from the command line: sealed, written, read, refused; and no
//! password in anything that people see.

use std::fs;

use crate::world::{Ended, World, binary, kill};
use leasehold_testkit::server;
use rustix::process::Signal;

/// The password of one of the servers.
const CANARY: &str = "correct-horse";

struct There {
    target: String,
    variables: Vec<(&'static str, String)>,
}

fn there() -> Vec<There> {
    let key = format!("{:032x}", leasehold::random::seed());
    let mut all = vec![
        There {
            target: format!("s3://leases/{key}/today.json?endpoint={}&region=us-east-1", server("S3")),
            variables: vec![("AWS_ACCESS_KEY_ID", "test".into()), ("AWS_SECRET_ACCESS_KEY", CANARY.into())],
        },
        There { target: format!("{}/#today-{key}", server("REDIS_AUTH")), variables: vec![] },
    ];
    // Google's emulator is not on every machine; the library's tests have a double.
    if let Ok(host) = std::env::var("LEASEHOLD_TEST_FIRESTORE") {
        let target = format!("firestore://demo-leasehold/t{key}/today");
        all.push(There { target, variables: vec![("FIRESTORE_EMULATOR_HOST", host)] });
    }
    all
}

impl There {
    fn world(&self) -> World {
        let mut world = World::new();
        world.variables = self.variables.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        world
    }

    fn job(&self, text: &str) -> String {
        text.replace("LEASEHOLD", binary().to_str().unwrap()).replace("TARGET", &format!("'{}'", self.target))
    }
}

#[track_caller]
fn keeps_the_secret(ended: Ended) -> Ended {
    assert!(!format!("{ended:?}").contains(CANARY), "the secret is in {ended:#?}");
    ended
}

#[test]
fn written_inside_a_run_and_read_by_anybody() {
    for there in there() {
        let world = there.world();
        let run = |args: &[&str]| keeps_the_secret(world.run(args));
        let target = there.target.as_str();
        run(&["read", target]).is(78, "").names(&["Run the job that writes it"]);
        let script =
            there.job("echo one | LEASEHOLD write TARGET && echo two | LEASEHOLD --json write TARGET");
        let said = run(&["run", "site", "--fence", target, "sh", "-c", &script]).is(0, "").json();
        assert_eq!((said["outcome"].as_str(), said["seq"].as_u64()), (Some("accepted"), Some(2)));
        assert_eq!(run(&["read", target]).is(0, "").out, "two\n");
        run(&["read", target, "--to", "copy"]).is(0, "");
        assert_eq!(fs::read_to_string(world.path("copy")).unwrap(), "two\n");
        run(&["read", target, "--to", "nowhere/copy"]).is(64, "read.not_copied").names(&["nowhere/copy"]);
        let listed = run(&["--json", "fence", "ls", target]).json();
        assert_eq!((listed["class"].as_str(), listed["token"].as_u64()), (Some("atomic"), Some(1)));
        run(&["run", "other", "--fence", target, "touch", "ran"]).is(78, "targets.other_lease");
        assert!(!world.path("ran").exists());
        // Another user's embedded store is another store: the way out is named, and what was written stays.
        let moved = there.world();
        let seal = || keeps_the_secret(moved.run(&["run", "site", "--fence", target, "true"]));
        seal().is(79, "targets.other_history");
        run(&["fence", "reset", target]).is(0, "fence.reset").names(&["lease site, token 1"]);
        assert_eq!(run(&["--json", "fence", "ls", target]).json()["token"].as_u64(), None);
        assert_eq!(run(&["read", target]).is(0, "").out, "two\n");
        seal().is(0, "");
        assert_eq!(run(&["read", target]).is(0, "").out, "two\n");
    }
}

/// Frozen, overtaken by a run that seals and writes nothing, thawed.
#[test]
fn a_frozen_run_is_refused() {
    for there in there() {
        let world = there.world();
        let target = there.target.as_str();
        let script = there.job(
            "echo $$; read go; echo stale | LEASEHOLD write TARGET; echo $? >code.new; mv code.new code",
        );
        let run = ["run", "site", "--ttl", "2s", "--fence", target, "sh", "-c", &script];
        let mut zombie = world.start(&run);
        let pid: u32 = zombie.line().parse().unwrap();
        zombie.signal(Signal::STOP);
        kill(pid, Signal::STOP);
        world.run(&["run", "site", "--ttl", "2s", "--wait", "50s", "--fence", target, "true"]).is(0, "");
        // Before its wrapper, which would end it: the fence must do this alone.
        kill(pid, Signal::CONT);
        zombie.type_in("go\n");
        crate::world::until("the stale write has ended", || {
            Some(()).filter(|()| world.path("code").exists())
        });
        assert_eq!(fs::read_to_string(world.path("code")).unwrap(), "76\n", "{}", world.path("").display());
        zombie.signal(Signal::CONT);
        keeps_the_secret(zombie.ended())
            .is(75, "run.lost")
            .is(75, "targets.stale_write")
            .names(&["token 1 is older than 2"]);
        keeps_the_secret(world.run(&["read", target])).is(78, "Run the job that writes it");
    }
}

#[test]
fn bad_input_reaches_nothing() {
    let world = World::new();
    for (target, code, said) in [
        ("s3://", 78, "s3://BUCKET"),
        ("s3://b", 78, "names no object"),
        ("s3://b/x/", 78, "names no object"),
        ("s3://b/x.leasehold/1", 78, "Leasehold keeps"),
        ("redis://127.0.0.1:1", 78, "names no key"),
        ("redis://:correct-horse@127.0.0.1:1#k", 69, "cannot be reached"),
        ("firestore://demo/site", 78, "names no document"),
    ] {
        let ended = keeps_the_secret(world.run(&["run", "site", "--fence", target, "touch", "ran"]));
        ended.is(code, said);
        assert!(!world.path("ran").exists(), "{target}");
    }
    world.run(&["read", "file:none"]).is(78, "").names(&["is not there"]);
    world.write("page", "text");
    assert_eq!(world.run(&["read", "file:page"]).is(0, "").out, "text");
}
