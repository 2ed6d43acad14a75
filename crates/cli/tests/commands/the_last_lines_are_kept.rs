//! `--tail`: what a job prints passes through us as it is, and the last lines are in history if it fails.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::world::{Ended, World, binary, lives, state, until};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use serde_json::Value;

fn once(world: &World, flags: &[&str], script: &str) -> Ended {
    world.run(&[&["once", "k"], flags, &["--", "sh", "-c", script]].concat())
}

fn item(world: &World) -> Value {
    world.run(&["--json", "why", "k"]).is(0, "").first()
}

#[test]
fn only_if_asked_for_and_only_if_it_fails() {
    let world = World::new();
    const FAILS: &str = "echo out; echo err >&2; exit 3";
    let plain = once(&world, &[], FAILS);
    assert_eq!((plain.code, plain.out.as_str(), plain.err.as_str()), (3, "out\n", "err\n"));
    assert_eq!(item(&world)["said"], Value::Null);
    let kept = once(&world, &["--tail"], FAILS);
    assert_eq!((kept.code, kept.out.as_str(), kept.err.as_str()), (3, "out\n", "err\n"));
    let said = item(&world)["said"].clone();
    // Between two streams there is no order.
    assert!(said == "out\nerr" || said == "err\nout", "{said}");
    let good = world.run(&["--json", "once", "k", "--tail", "--", "echo", "fine"]).is(0, "");
    let (first, last) = good.out.split_once('\n').unwrap();
    assert_eq!(
        (first, serde_json::from_str::<Value>(last).unwrap()["outcome"].clone()),
        ("fine", "ok".into())
    );
    assert_eq!(item(&world)["said"], Value::Null);
}

#[test]
fn with_a_slot_and_with_a_cooldown() {
    let world = World::new();
    let slot = ["--slot", "2026-11-16T05:45Z", "--key", "k"];
    for flags in [&slot[..], &["--cooldown", "1h"]] {
        let command = [&["run", "site", "--tail"], flags, &["--", "sh", "-c", "echo no; exit 1"]].concat();
        world.run(&command).is(1, "");
    }
    // By the records of their items, and by the run log.
    for (name, most) in [("k", 1), ("site", 2)] {
        for command in ["why", "history"] {
            let all = world.run(&["--json", command, name]).is(0, "").out;
            assert_eq!(all.matches("\"said\":\"no\"").count(), most, "{command}: {all}");
        }
    }
}

/// As it was printed, whatever it is.
#[test]
fn every_byte_passes() {
    let world = World::new();
    let (mut out, mut err) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for bytes in [&mut out, &mut err] {
        File::open("/dev/urandom").unwrap().read_exact(bytes).unwrap();
    }
    fs::write(world.path("a"), &out).unwrap();
    fs::write(world.path("b"), &err).unwrap();
    for (key, flag) in [("with", &["--tail"][..]), ("without", &[])] {
        let script = "cat b >&2 & cat a; wait; exit 5";
        let command = [&["once", key], flag, &["--", "sh", "-c", script]].concat();
        let ended = world.command(&command).output().unwrap();
        assert_eq!(crate::world::code(ended.status), 5);
        assert!(ended.stdout == out && ended.stderr == err, "{key}: not what was printed");
    }
    // Nothing of it does anything to whoever reads it.
    let said = world.run(&["--json", "history", "with"]).json()["said"].as_str().unwrap().to_owned();
    assert!(
        said.len() <= 2048 && said.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'),
        "{said:?}"
    );
    let why = world.run(&["why", "with"]).is(0, "").out;
    assert!(!why.contains('\u{1b}'), "{why:?}");
}

/// A line is there when it is printed, not when there are many.
#[test]
fn nothing_is_held_back() {
    let world = World::new();
    let mut run =
        world.start(&["once", "k", "--tail", "--", "sh", "-c", "echo here; echo there >&2; read go"]);
    assert_eq!(run.line(), "here");
    run.said("there");
    run.close_stdin();
    run.ended();
}

#[test]
fn the_last_lines_of_many() {
    let world = World::new();
    let ended = once(&world, &["--tail"], "seq 100000; exec >&-; echo 'no way: ä' >&2; exit 1");
    assert_eq!(ended.code, 1);
    assert_eq!(ended.out.lines().count(), 100_000);
    let said = item(&world)["said"].as_str().unwrap().to_owned();
    assert!(said.len() <= 2048 && said.contains("\n99999\n100000") && said.contains("no way: ä"), "{said}");
    let why = world.run(&["why", "k"]).is(0, "").out;
    assert!(
        why.contains("failed, by ") && why.contains("\n    100000\n") && why.contains("\n    no way: ä\n"),
        "{why}"
    );
}

#[test]
fn a_job_that_is_stopped_says_what_it_was_at() {
    let world = World::new();
    let command = ["once", "k", "--tail", "--max-run", "1s", "--", "sh", "-c", "echo begun; exec sleep 60"];
    assert_eq!(world.run(&command).code, 143);
    let item = item(&world);
    assert_eq!((&item["outcome"], &item["said"]), (&"killed".into(), &"begun".into()));
}

/// What the command left behind holds the pipe, and is ended as it would be without it.
#[test]
fn a_survivor_does_not_keep_the_run() {
    let world = World::new();
    let script = "setsid sleep 1000 & echo $! > pid; echo last; exit 4";
    once(&world, &["--tail"], script).is(4, "run.left_behind");
    let pid = fs::read_to_string(world.path("pid")).unwrap().trim().parse().unwrap();
    assert!(!lives(pid));
    assert_eq!(item(&world)["said"], "last");
}

/// A stranger holds it, who is no part of the job and lives on.
#[test]
fn a_stranger_does_not_keep_the_run() {
    let world = World::new();
    let script = "echo $$; read go; echo last; exit 4";
    let mut run = world.start(&["once", "k", "--tail", "--", "sh", "-c", script]);
    let pid = run.line();
    let mut stranger = OpenOptions::new().write(true).open(format!("/proc/{pid}/fd/1")).unwrap();
    stranger.write_all(b"hello\n").unwrap();
    assert_eq!(run.line(), "hello");
    run.close_stdin();
    run.ended().is(4, "");
    assert_eq!(item(&world)["said"], format!("{pid}\nhello\nlast"));
    assert!(stranger.write_all(b"too late\n").is_err());
}

const PRINTS: &str = "i=0; while [ $i -lt 30000 ]; do echo line; i=$((i+1)); done; touch finished; exit 6";

/// A reader that goes away: the job is not told, where without `--tail` the system ends it.
#[test]
fn a_reader_that_is_gone_does_not_end_the_job() {
    for (flag, finished, outcome) in [("--tail", true, 6), ("--quiet", false, 141)] {
        let world = World::new();
        let line = format!(
            "'{}' once k {flag} -- sh -c '{PRINTS}' | head -1; echo ${{PIPESTATUS[0]}}",
            binary().display()
        );
        let ended = Ended::from(world.program("bash").args(["-c", &line]).output().unwrap());
        assert_eq!(ended.out, format!("line\n{outcome}\n"), "{ended:#?}");
        assert_eq!(world.path("finished").exists(), finished, "{flag}");
    }
}

#[test]
fn a_full_disk_does_not_end_the_job() {
    let world = World::new();
    let mut command: Command = world.command(&["once", "k", "--tail", "--", "sh", "-c", PRINTS]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    Ended::from(command.output().unwrap()).is(6, "run.output_cut");
    assert!(world.path("finished").exists());
    assert!(item(&world)["said"].as_str().unwrap().ends_with("line\nline"));
}

fn is_full(pipe: &File) -> bool {
    let mut polled = [PollFd::new(pipe, PollFlags::OUT)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() == 0
}

/// A reader that stands still slows the job, as it would without us; it does not keep it from being ended, nor
/// the lease from being free. What was printed is there when it is read.
#[test]
fn a_reader_that_stands_still_keeps_nobody_from_the_lease() {
    let world = World::new();
    let script = "echo $$ >pid; while :; do echo line; done";
    let mut run = world.start(&["once", "k", "--tail", "--", "sh", "-c", script]);
    let job = until("it has begun", || fs::read_to_string(world.path("pid")).ok()?.trim().parse().ok());
    let ours = OpenOptions::new().write(true).open(format!("/proc/{}/fd/1", run.pid())).unwrap();
    until("neither of them can write", || (is_full(&ours) && state(job) == Some('S')).then_some(()));
    drop(ours);
    run.signal(Signal::TERM);
    let free = || world.run(&["--json", "status", "k.once"]).json()["state"] == "free";
    until("the lease is free", || free().then_some(()));
    assert_ne!(item(&world)["outcome"], "started");
    assert!(lives(run.pid()), "it has more to write than anybody read");
    assert!(item(&world)["said"].as_str().unwrap().contains("line\nline"), "{}", item(&world));
    let whole = std::iter::from_fn(|| run.line_or_end()).filter(|line| line == "line").count();
    run.ended().is(143, "");
    assert!(whole > 64 * 1024 / 5, "{whole} lines");
}
