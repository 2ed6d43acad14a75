//! Somebody holds the lease: the run is skipped, waits, or takes another one; it never gets in twice.

use crate::world::{Running, World, kill, until};
use leasehold::clock::boot_time;
use rustix::process::Signal;
use std::time::Duration;

const HOLD: &str = "echo $LEASEHOLD_TOKEN; exec cat";

fn holder(world: &World) -> Running {
    let mut holder = world.start(&["run", "site", "sh", "-c", HOLD]);
    holder.line();
    holder
}

#[test]
fn it_is_skipped_with_one_line() {
    let world = World::new();
    let holder = holder(&world);
    let ended = world
        .run(&["run", "site", "--job", "publish", "touch", "ran"])
        .is(0, "run.skipped")
        .names(&["publish: site is held by "]);
    assert_eq!(ended.err.lines().count(), 1, "{ended:#?}");
    assert!(ended.err.contains(&format!("/{} (token 1)", holder.pid())), "{ended:#?}");
    assert!(ended.err.ends_with("(this machine only)\n"), "{ended:#?}");
    assert_eq!(world.run(&["run", "site", "-E", "75", "touch", "ran"]).code, 75);
    world.run(&["-q", "run", "site", "touch", "ran"]).quiet();
    let json = world.run(&["--json", "run", "site", "-E", "9", "touch", "ran"]);
    let said = json.json();
    assert_eq!((json.code, said["outcome"].as_str()), (9, Some("skipped")));
    assert_eq!((said["reason"].as_str(), said["exit"].as_i64()), (Some("overlap"), Some(9)));
    assert!(!world.path("ran").exists());
    holder.ended().quiet();
    world.run(&["run", "site", "touch", "ran"]).quiet();
    assert!(world.path("ran").exists(), "the control: free, it runs");
}

#[test]
fn a_skip_leaves_the_report_of_a_run() {
    let world = World::new();
    let outcomes = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(world.path(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| line["outcome"].as_str().unwrap().to_owned()).collect()
    };
    let run = |job: &[&str]| {
        world.run(&[&["run", "site", "--report", "r.json", "--report-append", "r.jsonl"], job].concat())
    };
    run(&["sh", "-c", "exit 3"]).is(3, "");
    let held = holder(&world);
    run(&["true"]).is(0, "").names(&["skipped site"]);
    assert_eq!(outcomes("r.json"), ["failed"]);
    // Where there is none yet, as in a file that `mktemp` made, it is told.
    for (name, empty) in [("new.json", false), ("empty.json", true)] {
        if empty {
            world.write(name, "");
        }
        world.run(&["run", "site", "--report", name, "true"]).is(0, "").names(&["skipped site"]);
        assert_eq!(outcomes(name), ["skipped"]);
    }
    held.ended().quiet();
    run(&["true"]).quiet();
    assert_eq!(outcomes("r.json"), ["ok"]);
    assert_eq!(outcomes("r.jsonl"), ["failed", "skipped", "ok"]);
    // However many at once.
    let all: Vec<Running> =
        (0..16).map(|_| world.start(&["once", "k", "--report-append", "many", "true"])).collect();
    all.into_iter().for_each(|one| assert_eq!(one.ended().code, 0));
    let many = outcomes("many");
    assert_eq!((many.len(), many.iter().filter(|outcome| *outcome == "ok").count()), (16, 1), "{many:?}");
    // A line that a full disk cut off spoils none after it.
    world.write("cut", "{\"half");
    world.run(&["run", "site", "--report-append", "cut", "true"]).quiet();
    let cut = std::fs::read_to_string(world.path("cut")).unwrap();
    let last = cut.strip_prefix("{\"half\n").expect("on a line of its own");
    assert_eq!(serde_json::from_str::<serde_json::Value>(last).unwrap()["outcome"], "ok");
    world
        .run(&["run", "site", "--report-append", "no/such/place", "touch", "ran"])
        .is(78, "report.unwritable");
    assert!(!world.path("ran").exists());
}

/// Its wrapper was killed, so nobody stops what is left, and nobody would look for it.
#[test]
fn what_is_left_of_a_killed_run_is_named() {
    let world = World::new();
    let mut holder =
        world.start(&["run", "site", "sh", "-c", "tail -f /dev/null >/dev/null 2>&1 & echo $!; wait"]);
    let left: u32 = holder.line().parse().unwrap();
    world.run(&["run", "site", "true"]).is(0, "run.skipped").lacks("run.held_by_orphans");
    holder.signal(Signal::KILL);
    assert_eq!(holder.ended().code, 137);
    let named = format!("{left} (tail -f /dev/null)");
    world.run(&["run", "site", "true"]).is(0, "run.held_by_orphans").names(&[&named]);
    world.run(&["acquire", "site"]).is(11, "run.held_by_orphans").names(&[&named]);
    kill(left, Signal::KILL);
    // A dead process is seen until its parent has asked for it.
    until("a free lease", || world.run(&["run", "site", "true"]).err.is_empty().then_some(()));
    // One that is held by hand has no wrapper.
    world.run(&["acquire", "site"]).is(0, "");
    world.run(&["run", "site", "true"]).is(0, "run.skipped").lacks("run.held_by_orphans");
}

#[test]
fn waiting_gets_it_after_the_release() {
    let world = World::new();
    let mut first = holder(&world);
    let mut waiting = world.start(&["-v", "run", "site", "--wait", "55s", "sh", "-c", HOLD]);
    waiting.said("run.waiting");
    first.close_stdin();
    first.ended().quiet();
    assert_eq!(waiting.line(), "2");
    waiting.ended().is(0, "run.took").names(&["site: token 2"]);
}

#[test]
fn waiting_ends_with_a_skip() {
    let world = World::new();
    let _holder = holder(&world);
    let begun = boot_time();
    let ended = world
        .run(&["run", "site", "--wait", "700ms", "-E", "75", "touch", "ran"])
        .is(75, "")
        .names(&["skipped site"]);
    assert!(boot_time().since(begun) >= Duration::from_millis(700));
    assert_eq!(ended.err.lines().count(), 1, "{ended:#?}");
    assert_eq!(world.run(&["acquire", "site", "--wait", "100ms"]).code, 11);
    assert!(!world.path("ran").exists());
}

#[test]
fn another_lease_is_taken_if_one_is_named() {
    let world = World::new();
    let _holder = holder(&world);
    let show = ["sh", "-c", "echo $LEASEHOLD_LEASE $LEASEHOLD_JOB $LEASEHOLD_TOKEN"];
    let ended = world.run(&[&["run", "site", "--or", "b,c"], &show[..]].concat()).quiet();
    assert_eq!(ended.out, "b site 1\n");
    world.run(&["acquire", "b"]).token();
    let ended = world.run(&[&["run", "site", "--or", "b,c"], &show[..]].concat()).quiet();
    assert_eq!(ended.out, "c site 1\n");
    world.run(&["acquire", "c"]).token();
    world
        .run(&[&["run", "site", "--or", "b,c"], &show[..]].concat())
        .is(0, "run.all_held")
        .names(&["site, b, c"]);
    assert_eq!(world.status(&[], "site")["token"], 1);
}

#[test]
fn the_same_identity_does_not_get_in_twice() {
    let world = World::new();
    let args = ["run", "--run-id", "same", "-E", "75", "site", "sh", "-c", HOLD];
    let mut first = world.start(&args);
    assert_eq!(first.line(), "1");
    world.run(&args).is(75, "").names(&["skipped site"]);
    first.ended().quiet();
    assert_eq!(world.run(&args).quiet().out, "2\n", "the control: afterwards it does");
}
