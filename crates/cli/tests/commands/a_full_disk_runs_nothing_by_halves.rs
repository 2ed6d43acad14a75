//! The state directory is on a disk that is full, or becomes so: a job is run whole or not at all, its
//! exit code is its own, and no token is ever granted twice.

use std::fs;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::world::{World, lives, until};

/// A disk of its own, in memory.
struct Disk<'a> {
    world: &'a World,
}

impl<'a> Disk<'a> {
    fn new(world: &'a World, kilobytes: u32) -> Self {
        assert!(rustix::process::geteuid().is_root(), "SKIPPED: only root can mount a disk; run it as root");
        fs::create_dir_all(world.state()).unwrap();
        let size = format!("size={kilobytes}k,mode=700");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(world.state()).status();
        assert!(mount.unwrap().success(), "SKIPPED: a tmpfs cannot be mounted here");
        Self { world }
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let filler = self.world.state().join("filler");
        assert!(fs::write(filler, vec![b'x'; 64 * 1024 * 1024]).is_err(), "the disk has no end");
    }

    fn make_room(&self) {
        fs::remove_file(self.world.state().join("filler")).unwrap();
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.world.state()).status();
    }
}

/// Runs a job that notes its token elsewhere; the tokens so far, after checking all that must hold.
fn ran(world: &World) -> (bool, Vec<u64>) {
    let tokens = || -> Vec<u64> {
        let text = fs::read_to_string(world.path("tokens")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let before = tokens().len();
    let ended = world.run(&["run", "site", "sh", "-c", "echo $LEASEHOLD_TOKEN >> tokens; exit 7"]);
    let all = tokens();
    let ran = all.len() > before;
    if ended.err.contains("did not confirm the release") {
        fs::write(world.path("unreleased"), "").unwrap();
    }
    match ended.code {
        7 => assert!(ran, "{ended:#?}"),
        69 | 77 | 78 => assert!(!ran && ended.err.contains("Nothing was run"), "{ended:#?}"),
        // The run before it had no room for the record of its end, and said so: its lease ends by itself.
        0 => {
            assert!(!ran && world.path("unreleased").exists(), "{ended:#?}");
            ended.is(0, "run.skipped");
        }
        _ => panic!("{ended:#?}"),
    }
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    (ran, all)
}

#[test]
fn however_small_the_disk() {
    let mut outcomes = Vec::new();
    for kilobytes in [16, 32, 48, 56, 64, 72, 80, 88, 96, 128, 1024] {
        let world = World::new();
        let disk = Disk::new(&world, kilobytes);
        for _ in 0..10 {
            outcomes.push(ran(&world).0);
            // Twice is enough to see that it stays so: each time it waits for room.
            if outcomes.ends_with(&[false, false]) {
                break;
            }
        }
        drop(disk);
    }
    assert!(!outcomes[0] && *outcomes.last().unwrap(), "the sizes span both: {outcomes:?}");
}

#[test]
fn a_disk_that_fills_up_during_the_job_costs_no_token() {
    let world = World::new();
    let disk = Disk::new(&world, 512);
    assert_eq!(ran(&world), (true, vec![1]));
    let mut held =
        world.start(&["run", "--ttl", "4s", "site", "sh", "-c", "echo $LEASEHOLD_TOKEN; exec cat"]);
    assert_eq!(held.line(), "2");
    disk.fill();
    let ended = held.ended();
    // Released or not, the job's own end is told; or that it was stopped when nothing could be renewed.
    assert!([0, 75].contains(&ended.code), "{ended:#?}");
    let full = world.run(&["acquire", "other"]);
    assert!([0, 69, 77, 78].contains(&full.code), "{full:#?}");
    disk.make_room();
    let next = world.run(&["acquire", "site", "--wait", "50s"]).token();
    assert!(next > 2, "token {next} was granted before");
}

/// The store is elsewhere and has room; only what this machine remembers has none.
#[test]
fn what_cannot_be_remembered_is_refused_the_first_time_and_told_later() {
    let world = World::new();
    let disk = Disk::new(&world, 512);
    let store = world.store("dir");
    let run = |lease: &str| world.run(&["--store", &store, "run", lease, "sh", "-c", "echo ran; exit 7"]);
    assert_eq!(run("site").is(7, "").err, "", "the control");
    disk.fill();
    // Never seen here: nothing is spent.
    let first = run("other").is(78, "store.not_noted");
    assert!(first.out.is_empty() && first.err.contains("XDG_STATE_HOME"), "{first:#?}");
    assert_eq!(world.run(&["--store", &store, "--json", "status", "other"]).out, "");
    world.run(&["--store", &store, "acquire", "other"]).is(78, "store.not_noted");
    // Seen before: it runs, and it is said what no longer holds.
    let again = run("site").is(7, "store.not_remembered");
    assert_eq!((again.out.as_str(), again.err.lines().count()), ("ran\n", 1), "{again:#?}");
    // A grant that cannot be kept is given back.
    world.run(&["--store", &store, "acquire", "site"]).is(78, "by_hand.unkept");
    assert_eq!(world.status(&["--store", &store], "site")["state"], "free");
    disk.make_room();
    assert_eq!(run("site").is(7, "").err, "");
    // What is remembered does its work: no store is set, and the record is gone.
    world.run(&["run", "site", "true"]).is(0, "config.ran_elsewhere");
    fs::remove_dir_all(world.path("store")).unwrap();
    world.store("dir");
    run("site").is(79, "store.vanished");
}

/// What is begun and cannot be finished is not said to be nothing.
#[test]
fn a_store_that_cannot_be_made_is_said_to_be_there_by_halves() {
    let world = World::new();
    let disk = Disk::new(&world, 256);
    let store = world.state().join("leases");
    let make = || world.run(&["use", &format!("dir:{}", store.display())]);
    disk.fill();
    let failed = make();
    assert!(store.is_dir(), "the disk has no room for a directory: this shows nothing");
    failed.is(69, "use_store.partly_made");
    // The same again makes nothing more, and says so.
    make().is(69, "use_store.unsaved").lacks("use_store.partly_made");
    disk.make_room();
    make().is(0, "use_store.created");
}

#[test]
fn what_could_not_be_released_can_be_released_later() {
    let world = World::new();
    let disk = Disk::new(&world, 512);
    let token = world.run(&["acquire", "site", "--ttl", "1h"]).token().to_string();
    disk.fill();
    let mut tries = Vec::new();
    for _ in 0..3 {
        tries.push(world.run(&["release", "site", "--token", &token]).code);
    }
    assert!(tries.iter().all(|code| [0, 69].contains(code)), "{tries:?}");
    disk.make_room();
    world.run(&["release", "site", "--token", &token]).is(0, "");
    let next = world.run(&["acquire", "site"]).token();
    assert_eq!(next.to_string(), "2");
}

#[test]
fn a_disk_that_stays_full_stops_the_job_in_time_and_is_told_once() {
    let world = World::new();
    let disk = Disk::new(&world, 256);
    let job = "echo $LEASEHOLD_TOKEN; exec tail -f /dev/null";
    let mut held = world.start(&["run", "--ttl", "4s", "site", "sh", "-c", job]);
    assert_eq!(held.line(), "1");
    disk.fill();
    let ended = held.ended().is(75, "run.renewal_failed");
    assert_eq!(ended.err.matches("a renewal failed").count(), 1, "{ended:#?}");
    assert!(ended.err.lines().count() <= 3, "{ended:#?}");
    disk.make_room();
    assert_eq!(world.run(&["acquire", "site", "--wait", "50s"]).token(), 2);
}

/// A limit on the size of files is a full disk as well: nobody is ended in the middle of a write.
#[test]
fn a_limit_on_the_size_of_files_ends_nobody() {
    let world = World::new();
    for kilobytes in [0, 1, 16] {
        let ended = world.sh(&format!("ulimit -f {kilobytes}; leasehold run site touch ran"));
        assert!([69, 77, 78].contains(&ended.code), "{ended:#?}");
        assert!(ended.err.contains("Nothing was run") && !world.path("ran").exists(), "{ended:#?}");
    }
    let line = "setsid sleep 60 & echo $!; wait";
    let mut held = world.start(&["run", "--ttl", "4s", "site", "sh", "-c", line]);
    let job: u32 = held.line().parse().unwrap();
    let wrapper = Pid::from_raw(i32::try_from(held.pid()).unwrap());
    prlimit(wrapper, Resource::Fsize, Rlimit { current: Some(1), maximum: Some(1) }).unwrap();
    held.ended().is(75, "run.renewal_failed");
    until("the job is dead", || (!lives(job)).then_some(()));
    // The job itself is ended by its own limit, as ever.
    world.run(&["run", "other", "bash", "-c", "ulimit -f 0; echo much >file"]).is(153, "");
}

#[test]
fn a_report_into_a_pipe_that_nobody_reads_is_not_waited_for() {
    let world = World::new();
    assert!(Command::new("mkfifo").arg(world.path("pipe")).status().unwrap().success());
    world.run(&["run", "--report", &world.at("pipe"), "site", "true"]).is(0, "report.file_lost");
    let read =
        world.sh("exec 3<>pipe; leasehold run --report pipe site true; read -r line <&3; echo \"$line\"");
    assert!(read.out.contains("\"outcome\""), "the control: {read:?}");
}
