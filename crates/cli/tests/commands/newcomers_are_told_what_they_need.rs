//! What a first afternoon with the tool stumbles over: shell idioms, full disks, pauses, wrong places.

use std::fs::File;
use std::time::Duration;

use crate::world::{World, lives, pause, until};
use rustix::process::Signal;

#[test]
fn eval_fails_as_acquire_does() {
    let world = World::new();
    let idiom = "eval \"$(leasehold acquire db --eval)\" || exit; echo $LEASEHOLD_LEASE $LEASEHOLD_TOKEN";
    assert_eq!(world.sh(idiom).is(0, "").out, "db 1\n");
    let busy = world.sh(idiom).is(11, "held by");
    assert_eq!(busy.out, "");
    assert_eq!(world.run(&["acquire", "db", "--eval"]).out, "(exit 11)\n");
    // Also when the arguments make no sense, or the store does not.
    for bad in ["--ttl 5", "--json", "--nope", "--store mysql://x"] {
        let line = format!("eval \"$(leasehold acquire db --eval {bad})\" || exit; echo on");
        let ended = world.sh(&line);
        assert!([64, 78].contains(&ended.code) && ended.out.is_empty(), "{bad}: {ended:#?}");
    }
    let plain = world.sh("T=$(leasehold acquire db) || exit 0; echo on").is(0, "held by");
    assert_eq!(plain.out, "");
}

#[test]
fn a_token_that_cannot_be_printed_is_given_back() {
    let world = World::new();
    for args in [
        &["acquire", "db"][..],
        &["acquire", "db", "--eval"],
        &["--json", "acquire", "db"],
        &["break", "--take", "db"],
    ] {
        let mut command = world.command(args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let ended: crate::world::Ended = command.output().unwrap().into();
        ended.is(78, "by_hand.token_unprinted").is(78, "by_hand.given_back");
        assert_eq!(world.status(&[], "db")["state"], "free");
    }
    for args in [&["status"][..], &["help"], &["help", "exit-codes"], &["--help"], &["man"]] {
        let mut command = world.command(args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        assert!(!command.output().unwrap().status.success(), "{args:?}");
    }
    world.run(&["run", "db", "true"]).quiet();
}

#[test]
fn the_limit_is_named_with_its_lease_and_reported() {
    let world = World::new();
    let args = ["run", "site", "--max-run", "300ms", "--report", "r.json", "sleep", "60"];
    world.run(&args).is(143, "run.stop_max_run").names(&["300ms"]);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(world.path("r.json")).unwrap()).unwrap();
    assert_eq!((&report["outcome"], &report["reason"]), (&"killed".into(), &"max-run".into()));
}

#[test]
fn what_kept_it_from_running_is_in_the_report() {
    let world = World::new();
    for (args, code, reason) in [
        (&["run", "site", "nope"][..], 127, "command"),
        (&["run", "Site", "true"], 64, "usage"),
        (&["run", "site", "--store", "mysql://x", "true"], 78, "bad_url"),
        (&["run", "site", "--store", "dir:such", "true"], 69, "no_store"),
        (&["run", "site", "--store", "dir:/no/such", "true"], 78, "store_unusable"),
        (&["run", "site", "--store", "sqlite:/no/such", "true"], 78, "store_unusable"),
        (&["run", "site", "--fence", "file:/no/such", "true"], 78, "unfit"),
    ] {
        let args = [&args[..2], &["--report", "r.json"], &args[2..]].concat();
        world.run(&args).is(code, "");
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(world.path("r.json")).unwrap()).unwrap();
        assert_eq!((&report["outcome"], &report["reason"]), (&"failed".into(), &reason.into()), "{report}");
        assert_eq!(report["exit"], code);
        std::fs::remove_file(world.path("r.json")).unwrap();
    }
    // One that cannot be written any more costs the job nothing.
    let job = "mkdir d/x && rm d/r.json; mkdir d/r.json; exit 7";
    std::fs::create_dir(world.path("d")).unwrap();
    world.run(&["run", "site", "--report", "d/r.json", "sh", "-c", job]).is(7, "report.file_lost");
}

#[test]
fn a_pause_past_the_lease_is_not_called_in_time() {
    let world = World::new();
    let mut run = world.start(&["run", "site", "--ttl", "1s", "sh", "-c", "echo up; exec sleep 60"]);
    assert_eq!(run.line(), "up");
    run.signal(Signal::STOP);
    pause(Duration::from_millis(2500));
    run.signal(Signal::CONT);
    run.ended().is(75, "run.stop_expired").lacks("run.stop_unrenewed");
}

/// It ended by itself while nobody looked: there was nothing to stop.
#[test]
fn a_job_that_has_ended_is_not_said_to_be_stopped() {
    let world = World::new();
    let mut run = world.start(&["run", "site", "--ttl", "1s", "sh", "-c", "echo $$; read end; exit 3"]);
    let job = run.line().parse().unwrap();
    run.signal(Signal::STOP);
    run.close_stdin();
    until("the end of the job", || (!lives(job)).then_some(()));
    pause(Duration::from_millis(2500));
    run.signal(Signal::CONT);
    run.ended().is(75, "run.lost_ended").lacks("run.lost_stopped").lacks("topping the job");
}

#[test]
fn messages_name_the_lease_that_was_granted() {
    let world = World::new();
    let mut first = world.start(&["run", "a", "sh", "-c", "echo up; exec sleep 60"]);
    assert_eq!(first.line(), "up");
    let args = ["run", "a", "--or", "b", "--max-run", "200ms", "sleep", "60"];
    world.run(&args).is(143, "run.stop_max_run").names(&["200ms"]);
    let mut second = world.start(&["run", "b", "sh", "-c", "echo up; exec sleep 60"]);
    assert_eq!(second.line(), "up");
    world
        .run(&["run", "a", "--or", "b", "true"])
        .is(0, "run.all_held")
        .names(&["skipped a: a, b", " is held by "]);
    world
        .run(&["run", "a", "--wait", "100ms", "true"])
        .is(0, "run.skipped")
        .names(&["skipped a after waiting 100ms"]);
    world.run(&["run", "a", "--job", "nightly", "true"]).is(0, "").names(&["skipped nightly: a is held by "]);
}

#[test]
fn use_makes_a_store_and_says_where_it_does_not_count() {
    let world = World::new();
    let url = format!("dir:{}", world.at("leases"));
    world.run(&["use", &url]).is(0, "use_store.created");
    world.run(&["use", &url]).is(0, "use_store.works").lacks("use_store.not_used");
    world.run(&["run", "site", "true"]).quiet();
    assert!(world.run(&["-v", "status"]).out.starts_with(&format!("store: {url}\nLEASE")));
    let mut command = world.command(&["use", &url]);
    command.env("LEASEHOLD_STORE", "sqlite:x");
    crate::world::Ended::from(command.output().unwrap())
        .is(0, "use_store.not_used")
        .names(&["LEASEHOLD_STORE"]);
    world.write("leasehold.toml", "store = \"sqlite:x\"\n");
    world.run(&["use", &url]).is(0, "use_store.not_used").names(&["./leasehold.toml"]);
    world.write("leasehold.toml", "nonsense");
    world.run(&["use", &url]).is(0, "use_store.not_used").names(&["./leasehold.toml"]);
    // The way back.
    std::fs::remove_file(world.path("leasehold.toml")).unwrap();
    world.run(&["use", "sqlite:"]).is(0, "use_store.before").names(&["state/leasehold/"]);
    // A store that is none leaves the configuration as it is.
    world.unchanged(|| world.run(&["use", "dir:/proc/none"])).is(78, "use_store.unsaved");
    // A configuration that cannot be read is not replaced.
    let config = world.path(".config/leasehold/config.toml");
    std::fs::write(&config, b"# \xff\n").unwrap();
    world.unchanged(|| world.run(&["use", &url])).is(78, "use_store.not_readable");
}

/// The project says where its leases are: whoever does as a run of it advises makes that store, and moves no other job.
#[test]
fn use_leaves_the_configuration_alone_where_the_project_names_the_store() {
    let world = World::new();
    let others = format!("sqlite:{}", world.at("others.db"));
    world.run(&["use", &others]).is(0, "use_store.saved");
    let config = || std::fs::read_to_string(world.path(".config/leasehold/config.toml")).unwrap();
    let before = config();
    let file = world.write("leasehold.toml", "store = \"dir:st\"\n");
    let url = format!("dir:{}", world.at("st"));
    world.run(&["run", "site", "true"]).is(69, "config.no_store").names(&[&format!("leasehold use {url}")]);
    let used = world.run(&["use", &url]).is(0, "use_store.created").is(0, "use_store.named_by_project");
    used.names(&[file.to_str().unwrap()]).lacks("use_store.not_used").lacks("use_store.before");
    world.run(&["run", "site", "true"]).quiet();
    let used = world.run(&["--json", "use", "dir:st/"]).is(0, "");
    assert_eq!(used.json()["config"], file.display().to_string(), "{used:#?}");
    assert_eq!(config(), before);
    // The control: any other store is for the user, and does not count here.
    world
        .run(&["use", &format!("sqlite:{}", world.at("b.db"))])
        .is(0, "use_store.saved")
        .is(0, "use_store.not_used")
        .names(&["./leasehold.toml"]);
    assert_ne!(config(), before);
}

#[test]
fn status_says_what_is_at_work_first_and_what_is_gone() {
    let world = World::new();
    world.run(&["run", "a", "true"]).quiet();
    let token = world.run(&["acquire", "b", "--job", "nightly"]).token().to_string();
    let shown = world.run(&["status"]).out;
    let rows: Vec<&str> = shown.lines().collect();
    assert!(rows[0].starts_with("LEASE  JOB ") && rows[1].starts_with("b      nightly"), "{shown}");
    let renewed = world.run(&["--json", "renew", "b", "--token", &token]).json();
    assert_eq!((&renewed["token"], &renewed["expires_in_s"]), (&1.into(), &90.0.into()));
    world.run(&["break", "b", "--wait", "100ms"]).is(11, "break_lease.request");
    assert_eq!(world.status(&[], "b")["state"], "revoked");
    world.run(&["break", "a", "--take"]).is(0, "break_lease.yours").names(&["90s"]);
    for file in std::fs::read_dir(world.state()).unwrap().flatten() {
        if file.file_name().to_string_lossy().contains(".db") && file.path().is_file() {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    let gone = world.run(&["status", "a"]);
    assert!(gone.out.contains("this machine has seen token 2 there"), "{gone:#?}");
    assert_eq!(world.status(&[], "a")["state"], "bad");
}

#[test]
fn the_manual_has_every_command() {
    let world = World::new();
    let all = world.run(&["man"]).quiet().out;
    for part in ["leasehold\\-run", "max\\-run", "skip\\-exit", "leasehold\\-break", "\\-\\-now"] {
        assert!(all.contains(part), "{part}");
    }
    let one = world.run(&["man", "run"]).quiet().out;
    assert!(one.contains("max\\-run") && one.len() < all.len());
    world.run(&["man", "nope"]).is(64, "help.no_command");
}

#[test]
fn a_terminal_is_left_as_it_was_found() {
    let world = World::new();
    // In a terminal of its own: the job turns the echo off and is killed by its limit.
    let binary = crate::world::binary();
    let job = "stty -echo; exec sleep 60";
    let line = format!("{} run site --max-run 500ms sh -c '{job}'; stty -a", binary.display());
    let ended: crate::world::Ended = world
        .program("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .output()
        .unwrap()
        .into();
    assert!(ended.out.contains("ran longer than 500ms"), "{ended:#?}");
    assert!(ended.out.contains(" echo ") && !ended.out.contains("-echo "), "{ended:#?}");
}
