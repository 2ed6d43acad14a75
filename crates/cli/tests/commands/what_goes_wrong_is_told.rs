//! Silent servers, full outputs, missing rights, an interrupted request: each is told, with what it means.

use std::fs::File;
use std::net::TcpListener;

use crate::world::{Ended, Running, World, binary};
use rustix::process::Signal;

/// It takes connections and never says a word.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn a_silent_store_is_named_while_it_is_waited_for() {
    let world = World::new();
    let (_listener, address) = silent();
    let url = format!("redis://{address}");
    let run = world.start(&["-v", "--store", &url, "run", "site", "true"]);
    let used = world.start(&["-v", "use", &url]);
    for ended in [run.ended(), used.ended()] {
        let ended = ended.is(69, "store.slow").names(&["redis://", "within 5s"]);
        assert!(!ended.err.contains("test record"), "nothing was written: {ended:#?}");
    }
    let mute = world.run(&["--store", &url, "run", "site", "true"]);
    assert!(!mute.is(69, "").err.contains("no answer yet"), "off a terminal nobody watches");
}

#[test]
fn a_store_that_cannot_be_examined_was_found_to_be_nothing() {
    let world = World::new();
    let ended =
        world.run(&["--json", "doctor", "redis://127.0.0.1:1"]).is(69, "").names(&["cannot be reached"]);
    let last: serde_json::Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["verdict"], &last["usable"]), (&"unknown".into(), &false.into()));
    let good = world.run(&["--json", "doctor", &world.store("dir")]).is(0, "");
    let last: serde_json::Value = serde_json::from_str(good.out.lines().last().unwrap()).unwrap();
    assert_ne!(last["verdict"], "unknown", "the control");
}

#[test]
fn an_object_that_cannot_be_written_is_told_and_the_code_is_the_jobs() {
    let world = World::new();
    let mut command = world.command(&["--json", "run", "site", "sh", "-c", "exit 7"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let ended: Ended = command.output().unwrap().into();
    ended.is(7, "report.object_lost");
    let fine = world.run(&["--json", "run", "site", "sh", "-c", "exit 7"]).is(7, "");
    assert_eq!(fine.err, "", "the control");
}

#[test]
fn a_request_to_stop_outlives_whoever_asked() {
    let world = World::new();
    let mut held = world.start(&["run", "site", "--ttl", "1h", "sh", "-c", "echo up; exec cat"]);
    assert_eq!(held.line(), "up");
    for (take, told) in [(&[][..], "break_lease.interrupted"), (&["--take"], "store.interrupted_take")] {
        let mut command = world.hearing(crate::world::binary());
        command.args(["break", "site"]).args(take);
        let mut asking = Running::new(command);
        asking.said("break_lease.asked");
        asking.signal(Signal::INT);
        asking.ended().is(130, told).names(&["The holder was asked to stop"]);
        assert_eq!(world.status(&[], "site")["state"], "revoked");
    }
    held.close_stdin();
    held.ended();
}

#[test]
fn a_place_for_state_that_may_not_be_written() {
    let world = World::new();
    let store = world.store("dir");
    // Not even root makes directories there.
    let at = |args: &[&str]| -> Ended {
        world.command(args).env("XDG_STATE_HOME", "/sys/kernel").output().unwrap().into()
    };
    let run = at(&["--store", &store, "run", "site", "true"]);
    run.is(77, "state.unusable").names(&["Nothing was run", "XDG_STATE_HOME"]);
    for looks in [&["--store", &store, "status"][..], &["doctor", &store]] {
        let looked = at(looks).is(77, "state.unusable").names(&["XDG_STATE_HOME"]);
        assert!(!looked.err.contains("Nothing was run"), "{looked:#?}");
    }
}

/// A store that wrote nothing and says so leaves no doubt.
#[test]
fn a_refusal_is_not_called_a_doubt() {
    let world = World::new();
    let small = world.path("small");
    std::fs::create_dir(&small).unwrap();
    assert!(rustix::process::geteuid().is_root(), "SKIPPED: only root can mount a disk; run it as root");
    let mount = |args: &[&str]| {
        let mut command = std::process::Command::new(args[0]);
        command.args(&args[1..]).arg(&small).status().unwrap().success()
    };
    assert!(mount(&["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none"]), "SKIPPED: no tmpfs");
    let store = format!("dir:{}", small.display());
    leasehold::stores::open(&store).unwrap_or_else(|e| panic!("{e}"));
    world.run(&["--store", &store, "run", "site", "true"]).quiet();
    let _ = std::fs::write(small.join("keys/filler"), vec![b'x'; 1024 * 1024]);
    let full = world.run(&["--store", &store, "run", "site", "--ttl", "6s", "true"]);
    let taken = world.run(&["--store", &store, "acquire", "site", "--ttl", "6s"]);
    assert!(mount(&["umount", "--lazy"]));
    for ended in [full.is(69, "store.cannot_run"), taken.is(69, "store.cannot_take")] {
        assert!(ended.err.contains("nothing was written"), "{ended:#?}");
        assert!(!ended.err.contains("may still land"), "{ended:#?}");
    }
}

/// A file system or a scanner that takes its time over an exec: the wrapper waits in it, and so cannot look at the clock.
#[test]
fn what_cannot_be_executed_in_time_is_not_executed() {
    let world = World::new();
    let late = |key: &[&str], delay: &str| {
        let mut strace = world.hearing("strace");
        strace.args(["-f", "-o", "calls", "-e", "trace=execve"]);
        strace.arg("-e").arg(format!("inject=execve:delay_enter={delay}:when=1")).arg(binary());
        strace.args(["run", "site", "--ttl", "2s"]).args(key).args(["--", "touch", "ran"]);
        let ended = Ended::from(strace.output().unwrap());
        let calls = std::fs::read_to_string(world.path("calls")).unwrap();
        // The wrapper, and what it executed.
        let executed = calls.lines().filter(|line| line.contains(" = 0")).count();
        (ended.code, executed, world.path("ran").exists())
    };
    // Control: the same, a little late.
    assert_eq!(late(&[], "100000"), (0, 2, true));
    std::fs::remove_file(world.path("ran")).unwrap();
    for key in [&[][..], &["--key", "k"]] {
        assert_eq!(late(key, "4000000"), (75, 1, false));
    }
}

/// The same where the time runs out before that: nothing was executed, and that is known.
#[test]
fn what_is_too_late_before_it_is_executed_is_left_to_the_next_run() {
    let world = World::new();
    let mut strace = world.hearing("strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", "trace=bind", "-e", "inject=bind:delay_enter=4000000"]);
    strace.arg(binary()).args(["run", "site", "--ttl", "2s", "--key", "k", "--", "touch", "ran"]);
    let ended = Ended::from(strace.output().unwrap());
    ended.is(75, "run.lost").names(&["was not executed"]);
    assert!(!world.path("ran").exists());
    // Not told as begun, and so not left to a person.
    world.run(&["run", "site", "--key", "k", "--", "touch", "ran"]).quiet();
    assert!(world.path("ran").exists());
}
