//! Items of work: a key, a slot, a cooldown. Done once whatever happens in between, and what nobody can know
//! is left to a person.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::world::places::{fresh, places};
use crate::world::{Ended, PATIENCE, Running, World, binary, kill, messages, until};
use leasehold::clock::boot_time;
use leasehold_testkit::proxy::Fault;
use rustix::process::Signal;

/// How often the job was executed.
fn executed(world: &World) -> usize {
    fs::read_to_string(world.path("done")).map_or(0, |text| text.lines().count())
}

const JOB: [&str; 4] = ["--", "sh", "-c", "echo \"$LEASEHOLD_KEY $LEASEHOLD_ATTEMPT\" >> done"];

fn once(world: &World, flags: &[&str]) -> Ended {
    world.run(&[&["once", "invoice 7"], flags, &JOB].concat())
}

#[test]
fn a_key_is_done_once() {
    let world = World::new();
    once(&world, &[]).is(0, "");
    once(&world, &[]).is(0, "").names(&["skipped invoice 7: done by "]);
    let told = once(&world, &["-E", "9", "--report", "report"]).is(9, "").names(&["done by"]);
    assert!(told.out.is_empty());
    let report: serde_json::Value = serde_json::from_slice(&fs::read(world.path("report")).unwrap()).unwrap();
    assert_eq!((&report["outcome"], &report["reason"]), (&"skipped".into(), &"done".into()));
    assert_eq!(fs::read_to_string(world.path("done")).unwrap(), "invoice 7 1\n");
    // Under whichever lease.
    world.run(&[&["run", "site", "--key", "invoice 7"][..], &JOB].concat()).is(0, "").names(&["done by"]);
    // No token was spent on it.
    assert!(world.run(&["--json", "status", "site"]).is(64, "").names(&["unknown_name"]).out.is_empty());
}

#[test]
fn what_fails_is_tried_again_and_then_waits_for_a_person() {
    let world = World::new();
    let fails =
        |flags: &[&str]| world.run(&[&["once", "k"], flags, &["--", "sh", "-c", "exit 3"][..]].concat());
    for _ in 0..2 {
        fails(&["--attempts", "2"]).is(3, "");
    }
    fails(&["--attempts", "2"]).is(79, "items.quarantined").names(&["failed 2 times", "leasehold retry k"]);
    fails(&["--attempts", "3"]).is(3, "");
    fails(&[]).is(79, "items.quarantined").names(&["failed 3 times"]);
    world.run(&["retry", "k"]).is(0, "retry.again");
    world.run(&["once", "k", "--", "true"]).is(0, "");
    world.run(&["retry", "k"]).is(0, "retry.left").names(&["it is done"]);
    world.run(&["retry", "other"]).is(64, "retry.no_record");
    world.run(&["run", "lease", "true"]).is(0, "");
    world.run(&["retry", "lease"]).is(64, "retry.not_an_item").names(&["leasehold history lease"]);
}

/// A wrapper that is killed in the middle of its job.
fn killed_half_way(world: &World, flags: &[&str]) {
    let mut run =
        world.start(&[&["once", "k"], flags, &["--", "sh", "-c", "echo here; exec sleep 60"][..]].concat());
    assert_eq!(run.line(), "here");
    kill(run.pid(), Signal::KILL);
    run.ended();
    until("the lease is free", || (world.run(&["run", "k.once", "true"]).err.is_empty()).then_some(()));
}

#[test]
fn what_never_reported_is_not_run_again_unless_asked() {
    let world = World::new();
    killed_half_way(&world, &[]);
    let again = ["once", "k", "--", "touch", "again"];
    world.run(&again).is(79, "items.unknown").names(&["leasehold retry k"]);
    assert!(!world.path("again").exists());
    let history = world.run(&["--json", "why", "k"]).is(0, "").first();
    assert_eq!((&history["outcome"], &history["attempt"]), (&"unknown".into(), &1.into()));
    // Longer ago than the other side remembers.
    let retry = |keeps: &str| {
        world.run(&["once", "k", "--if-unknown", "retry", "--provider-keeps", keeps, "--", "touch", "again"])
    };
    retry("1ms").is(79, "items.unknown");
    assert!(!world.path("again").exists());
    retry("1h").is(0, "");
    assert!(world.path("again").exists());
    let history = world.run(&["--json", "history", "k", "--only", "ok"]).is(0, "").first();
    assert_eq!((&history["item"], &history["attempt"]), (&"k".into(), &2.into()));
}

#[test]
fn a_person_may_say_that_it_was_done() {
    let world = World::new();
    killed_half_way(&world, &[]);
    world.run(&["once", "k", "--", "touch", "again"]).is(79, "");
    world.run(&["retry", "--done", "k"]).is(0, "retry.done");
    world.run(&["once", "k", "--", "touch", "again"]).is(0, "").names(&["skipped k: done by"]);
    assert!(!world.path("again").exists());
}

#[test]
fn a_run_at_work_is_left_alone() {
    let world = World::new();
    let mut run = world.start(&["once", "k", "--", "sh", "-c", "echo here; read line"]);
    assert_eq!(run.line(), "here");
    world.run(&["once", "k", "--", "touch", "again"]).is(0, "").names(&["held by"]);
    world
        .run(&["run", "other", "--key", "k", "--", "touch", "again"])
        .is(0, "")
        .names(&["skipped k: in progress"]);
    world.run(&["retry", "k"]).is(0, "retry.left");
    assert_eq!(world.run(&["--json", "history", "k", "--only", "started"]).json()["outcome"], "started");
    run.close_stdin();
    run.ended();
    assert!(!world.path("again").exists());
}

#[test]
fn a_lost_lease_leaves_the_item_to_a_person() {
    let world = World::new();
    let mut run = world.start(&["once", "k", "--ttl", "3s", "--", "sh", "-c", "echo here; exec sleep 60"]);
    assert_eq!(run.line(), "here");
    world.run(&["break", "k.once", "--now"]).is(0, "");
    run.ended().is(75, "run.lost").is(75, "items.ended_unknown");
    until("the lease that was taken is over", || {
        let ended = world.run(&["once", "k", "--", "touch", "again"]);
        (ended.code == 79).then(|| ended.is(79, "items.unknown"))
    });
    assert!(!world.path("again").exists());
}

#[test]
fn slots_and_cooldowns_keep_the_second_run_off() {
    let world = World::new();
    let job = ["--", "sh", "-c", "echo \"$LEASEHOLD_SLOT\" >> done"];
    let run = |flags: &[&str]| world.run(&[&["run", "site"], flags, &job].concat());
    run(&["--slot", "2026-11-16T14:45+09:00"]).is(0, "");
    run(&["--slot", "2026-11-16T05:45:00Z"]).is(0, "").names(&["skipped site@2026-11-16T05:45:00Z: done by"]);
    run(&["--slot", "2026-11-16T06:30Z"]).is(0, "");
    assert_eq!(executed(&world), 2);
    run(&["--slot", "2026-11-16T06:30Z", "--job", "other"]).is(0, "");
    assert_eq!(executed(&world), 3);
    world.run(&["run", "site", "--cooldown", "1h", "--", "false"]).is(1, "");
    run(&["--cooldown", "1h"]).is(0, "");
    run(&["--cooldown", "1h"]).is(0, "").names(&["within the cooldown of 1h"]);
    assert_eq!(executed(&world), 4);
    run(&["--cooldown", "1ms"]).is(0, "");
    assert_eq!(executed(&world), 5);
}

#[test]
fn a_key_and_a_target_can_be_named_after_the_slot() {
    let world = World::new();
    let job = ["--", "sh", "-c", "echo \"$LEASEHOLD_KEY\" >> done"];
    let run = |flags: &[&str]| world.run(&[&["run", "site"], flags, &job].concat());
    let slot = ["--slot", "2026-11-16T14:45+09:00", "--key", "{job}@{slot}"];
    run(&slot).is(0, "");
    run(&slot).is(0, "").names(&["skipped site@2026-11-16T05:45:00Z: done by"]);
    assert_eq!(fs::read_to_string(world.path("done")).unwrap(), "site@2026-11-16T05:45:00Z\n");
    let fence = format!("file:{}/{{slot}}.json", world.path("").display());
    world
        .run(&["run", "a", "-v", "--slot", "2026-11-16T05:45Z", "--fence", &fence, "true"])
        .is(0, "")
        .names(&["2026-11-16T05:45:00Z.json"]);
}

#[test]
fn bad_input_runs_nothing() {
    let world = World::new();
    let long = "x".repeat(300);
    for (flags, said) in [
        (&["run", "a", "--slot", "yesterday"][..], "items.bad_slot"),
        (&["run", "a", "--slot", "2026-11-16T05:45"], "items.bad_slot"),
        (&["run", "a", "--slot", "2026-11-16T05:59:60Z"], "items.bad_slot"),
        (&["run", "a", "--slot", "now/0s"], "items.bad_slot"),
        (&["run", "a", "--keep", "1d"], "items.no_item"),
        (&["run", "a", "--attempts", "3"], "items.no_item"),
        (&["run", "a", "--cooldown", "1h", "--attempts", "3"], "items.no_item"),
        (&["run", "a", "--tail", "--observe"], "observe.tail"),
        (&["run", "a", "--key", "k", "--provider-keeps", "1h"], "items.lone_provider_keeps"),
        (&["run", "a", "--key", "{dat}"], "did you mean {date}?"),
        (&["run", "a", "--key", "{slot}"], "{slot} needs --slot"),
        (&["run", "a", "--fence", "file:{slot}"], "{slot} needs --slot"),
        (&["run", "a", "--key", &long], "items.bad_key"),
        (&["once", &long], "items.bad_key"),
        (&["once", ""], "items.bad_key"),
        (&["once", "{job}"], "once.not_in_a_key"),
        (&["once", "k", "--attempts", "0"], "--attempts"),
        (&["history", "--only", "okay"], "history.bad_outcome"),
    ] {
        let command: &[&str] = if flags[0] == "history" { &[] } else { &["--", "touch", "never"] };
        world.run(&[flags, command].concat()).is(64, said);
    }
    assert!(!world.path("never").exists());
    world.run(&["history"]).is(0, "");
}

/// A crontab has no line for every 45 minutes: `*/45` is due at :00 and :45, and now/45m would name other slots.
#[test]
fn only_slots_that_a_crontab_can_have_are_advised() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    for text in [World::new().run(&["run", "--help"]).out, readme] {
        assert!(text.contains("now/15m") && !text.contains("now/45m"), "{text}");
    }
}

/// A script that knows how to call us.
fn job(text: &str) -> String {
    text.replace("LEASEHOLD ", &format!("{} ", binary().display()))
}

#[test]
fn steps_that_are_done_are_not_done_again() {
    let world = World::new();
    let script = job("LEASEHOLD step pick --keep-output -- sh -c 'echo pick >> done; echo seven'\n\
         LEASEHOLD step charge -- sh -c 'echo \"$LEASEHOLD_KEY $LEASEHOLD_STEP\" >> done' && LEASEHOLD step mail -- test -e go");
    let once = || world.run(&["once", "order", "--", "sh", "-c", &script]);
    assert_eq!(once().is(1, "").out, "seven\n");
    assert_eq!(fs::read_to_string(world.path("done")).unwrap(), "pick\norder/charge charge\n");
    let history = world.run(&["--json", "history", "order"]).json();
    assert_eq!(history["steps"], serde_json::json!(["pick", "charge"]));
    world.write("go", "");
    let second = once().is(0, "step.skipped").names(&["step pick: already done", "token 1", "step charge"]);
    assert_eq!(second.out, "seven\n");
    assert_eq!(executed(&world), 2);
    assert_eq!(fs::read_dir(world.state().join("sockets")).unwrap().count(), 0);
}

#[test]
fn steps_of_a_run_that_was_overtaken_are_refused() {
    let world = World::new();
    let script = job("echo here; read go; LEASEHOLD step charge -- touch charged; echo $? > code");
    let mut first = world.start(&["once", "k", "--ttl", "1h", "--", "sh", "-c", &script]);
    assert_eq!(first.line(), "here");
    world.run(&["break", "k.once", "--now"]).is(0, "");
    until("a second run has gone over it", || {
        world.run(&["once", "k", "--if-unknown", "retry", "--", "true"]);
        world.run(&["--json", "history", "k"]).out.contains("\"attempt\":2").then_some(())
    });
    first.type_in("go\n");
    until("the step was refused", || {
        fs::read_to_string(world.path("code")).ok().filter(|text| !text.is_empty())
    });
    assert_eq!(fs::read_to_string(world.path("code")).unwrap(), "76\n");
    first.ended();
}

#[test]
fn a_step_needs_an_item() {
    let world = World::new();
    world.run(&["step", "charge", "--", "touch", "never"]).is(64, "step.no_item");
    let script = job("LEASEHOLD step charge -- touch never");
    world.run(&["run", "site", "--", "sh", "-c", &script]).is(64, "step.no_item");
    world
        .run(&["once", "k", "--", "sh", "-c", &job("LEASEHOLD step x -- no-such-thing")])
        .is(127, "")
        .names(&["no-such-thing"]);
    let twice = job("LEASEHOLD step x -- sh -c 'LEASEHOLD step x -- touch never'");
    world.run(&["once", "k", "--", "sh", "-c", &twice]).is(64, "step.busy");
    assert!(!world.path("never").exists());
}

#[test]
fn a_step_that_printed_too_much_is_done_all_the_same() {
    let world = World::new();
    let script = job(
        "LEASEHOLD step y --keep-output -- sh -c 'echo >> done; head -c 9000 /dev/zero' | wc -c; test -e go",
    );
    let once = || world.run(&["once", "l", "--", "bash", "-o", "pipefail", "-c", &script]);
    assert_eq!(once().is(1, "step.output_not_kept").out.trim(), "9000");
    world.write("go", "");
    assert_eq!(
        once().is(0, "step.skipped").names(&["step y: already done", "token 1", "was not kept"]).out.trim(),
        "0"
    );
    assert_eq!(executed(&world), 1);
}

/// As many steps as a record holds: those that find no room are not run, and how it ended is recorded.
#[test]
fn steps_never_crowd_out_the_ending() {
    let world = World::new();
    let script = job("echo here > all; for n in 1 2 3 4 5 6 7 8 9; do \
         LEASEHOLD step $n --keep-output -- sh -c 'echo >> done; head -c 8000 /dev/zero | tr \"\\0\" x' > /dev/null || exit 9; done");
    let ended = world.run(&["once", "l", "--", "sh", "-c", &script]).is(0, "step.no_room_for_output");
    assert_eq!(ended.err.matches("nearly full").count(), 2, "{ended:#?}");
    let history = world.run(&["--json", "history", "l"]).json();
    assert_eq!((&history["outcome"], executed(&world)), (&"ok".into(), 9), "{history}");
    assert_eq!(history["steps"].as_array().map(Vec::len), Some(9), "{history}");
}

/// A run that dies at each of its system calls that write: the next ones converge. The other side charges
/// each key once, so it is charged once; what was recorded as done is not even asked for again.
#[test]
fn killed_at_every_write() {
    let mut kills = 0;
    for call in ["fsync", "pwrite64"] {
        for nth in 1.. {
            let world = World::new();
            let charge = world.script(
                "charge",
                "#!/bin/sh\necho \"$LEASEHOLD_STEP\" >> done\n\
                 grep -qx \"$LEASEHOLD_KEY\" charged 2>/dev/null || echo \"$LEASEHOLD_KEY\" >> charged\n",
            );
            let steps = job(&format!("LEASEHOLD step one -- {charge} && LEASEHOLD step two -- {charge}"));
            // The store is made first: how that dies is another test.
            world.run(&["run", "first", "true"]).is(0, "");
            let command = [
                "once",
                "order",
                "--if-unknown",
                "retry",
                "--provider-keeps",
                "1d",
                "--",
                "sh",
                "-c",
                &steps,
            ];
            let line = world.command(&command);
            let mut strace: Command = world.program("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
            strace.args(["-e", &format!("inject={call}:signal=KILL:when={nth}")]);
            strace.arg(line.get_program()).args(line.get_args());
            let ended = Ended::from(strace.output().unwrap());
            if ended.code == 0 {
                assert!(nth > 3, "{call}: only {nth}");
                break;
            }
            kills += 1;
            let done = |step: &str| {
                fs::read_to_string(world.path("done"))
                    .unwrap_or_default()
                    .lines()
                    .filter(|l| *l == step)
                    .count()
            };
            let recorded = world.run(&["--json", "history", "order"]).out;
            let recorded: Vec<_> = ["one", "two"]
                .into_iter()
                .filter(|step| recorded.contains(&format!("\"{step}\"")))
                .map(|step| (step, done(step)))
                .collect();
            until("it is done", || (world.run(&command).code == 0).then_some(()));
            world.run(&command).is(0, "").names(&["skipped order: done by"]);
            let charged = fs::read_to_string(world.path("charged")).unwrap();
            assert_eq!(charged, "order/one\norder/two\n", "{call} {nth}");
            for (step, times) in recorded {
                assert_eq!(done(step), times, "{call} {nth}: {step} was recorded, and done again");
            }
        }
    }
    println!("killed {kills} times, charged once each time");
}

/// Told to end between the record and the command: the record is taken back, for nothing was begun.
#[test]
fn what_was_never_executed_may_be_begun_by_the_next() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    let (world, key) = (place.world(), fresh("interrupted"));
    let (url, proxy) = (place.url(), place.proxy());
    let through = place.through(&proxy);
    world.run(&["--store", &through, "run", &fresh("first"), "true"]).is(0, "");
    let strike = proxy.arm_on(b"leasehold_item", Fault::Pause);
    let run = world.start(&["--store", &through, "once", &key, "--", "touch", "never"]);
    assert!(strike.wait(PATIENCE), "no item was written");
    run.signal(Signal::TERM);
    until("the wrapper has heard it", || pending(run.pid()).is_none().then_some(()));
    strike.release();
    run.ended().is(143, "interrupted before anything was run");
    let history = world.run(&["--store", &url, "--json", "why", &key]).first();
    assert_eq!(history["outcome"], "planned", "{history}");
    world.run(&["--store", &url, "once", &key, "--", "touch", "now"]).is(0, "");
    assert!(world.path("now").exists() && !world.path("never").exists());
}

/// The store is away when the command ends, and back while there is a lot left of the lease.
#[test]
fn how_it_ended_is_recorded_by_a_store_that_comes_back() {
    for place in places().into_iter().filter(|place| ["redis", "postgres"].contains(&place.name)) {
        let (world, job) = (place.world(), fresh("back"));
        let (url, proxy) = (place.url(), place.proxy());
        let through = place.through(&proxy);
        let once =
            ["--store", &through, "once", &job, "--ttl", "30s", "--", "sh", "-c", "echo here; read go"];
        let mut run = world.start(&once);
        assert_eq!(run.line(), "here");
        proxy.set_down(true);
        let back = boot_time().plus(Duration::from_millis(1500));
        run.type_in("go\n");
        until("a second and a half", || (boot_time() >= back).then_some(()));
        proxy.set_down(false);
        run.ended().is(0, "");
        let history = world.run(&["--store", &url, "--json", "why", &job]).first();
        assert_eq!(history["outcome"], "ok", "{}: {history}", place.name);
        assert_eq!(world.status(&["--store", &url], &format!("{job}.once"))["state"], "free");
    }
}

/// Steps that cannot be recorded do not cost the lease: it is renewed between them. They are recorded with the end.
#[test]
fn steps_that_cannot_be_recorded_leave_time_for_renewals() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    let (world, key, proxy) = (place.world(), fresh("starve"), place.proxy());
    let (url, through) = (place.url(), place.through(&proxy));
    // Together for longer than the lease.
    let steps =
        "for n in 1 2 3 4 5 6 7 8 9 10; do LEASEHOLD step $n -- true 2>> told; done; echo tried; read go";
    let script = job(&format!("echo here; read go; {steps}"));
    let mut run =
        world.start(&["--store", &through, "once", &key, "--ttl", "12s", "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "here");
    let strikes: Vec<_> = (0..500).map(|_| proxy.arm_on(b"leasehold_item", Fault::Cut)).collect();
    run.type_in("go\n");
    assert_eq!(run.line(), "tried");
    for strike in &strikes {
        proxy.disarm(strike);
    }
    let told = fs::read_to_string(world.path("told")).unwrap();
    assert_eq!(told.matches("is done, but that could not be recorded").count(), 10, "{told}");
    run.type_in("go\n");
    run.ended().is(0, "");
    let history = world.run(&["--store", &url, "--json", "why", &key]).first();
    assert_eq!(history["outcome"], "ok", "{history}");
    assert_eq!(history["steps"].as_array().map(Vec::len), Some(10), "{history}");
}

/// A step is recorded, and the run does not hear of it before the store goes away: the step is not done again, and how
/// the run ended is recorded all the same.
#[test]
fn a_run_does_not_take_itself_for_another() {
    let place = places().into_iter().find(|place| place.name == "redis").unwrap();
    for again in ["true", "LEASEHOLD step charge -- sh -c 'echo >> done'"] {
        let (world, key) = (place.world(), fresh("itself"));
        let (url, proxy) = (place.url(), place.proxy());
        let through = place.through(&proxy);
        let step = "LEASEHOLD step charge -- sh -c 'echo >> done'; echo \"tried $?\"; read go; ";
        let script = job(&format!("{step}{again}"));
        let strike = proxy.arm_on(b"charge", Fault::Hold { hang_up: false });
        let once = ["--store", &through, "once", &key, "--ttl", "30s", "--", "sh", "-c", &script];
        let mut run = world.start(&once);
        assert!(strike.wait(PATIENCE), "no step was written");
        let held = until("the write", || strike.held());
        held.deliver().unwrap();
        proxy.set_down(true);
        assert_eq!(run.line(), "tried 69");
        proxy.set_down(false);
        run.type_in("go\n");
        run.ended().is(0, "");
        let history = world.run(&["--store", &url, "--json", "why", &key]).first();
        assert_eq!(history["outcome"], "ok", "{history}");
        assert_eq!(history["steps"], serde_json::json!(["charge"]));
        assert_eq!(executed(&world), 1);
    }
}

/// Whether a TERM waits to be taken by that process.
pub fn pending(pid: u32) -> Option<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    (mask & (1 << (Signal::TERM.as_raw() - 1)) != 0).then_some(())
}

/// Many at once, for one key, under one lease and under several; on every store.
#[test]
fn of_many_at_once_one_does_it() {
    const RACERS: usize = 8;
    // One store after the other: all racers of all stores at once are more than a small machine answers in time.
    for place in places() {
        let (world, url) = (place.world(), place.url());
        let wait = ["--ttl", "30s", "--wait", "20s"];
        let [lone, shared, a, b, c] = ["lone", "shared", "a", "b", "c"].map(fresh);
        let others = format!("{b},{c}");
        let leases = ["run", &a, "--or", &others, "--key", &shared];
        for command in [&["once", &lone][..], &leases] {
            let args = [&["--store", url.as_str()], command, &wait, &JOB].concat();
            let racers: Vec<Running> = (0..RACERS).map(|_| world.start(&args)).collect();
            for racer in racers {
                let ended = racer.ended();
                assert_eq!(ended.code, 0, "{}: {ended:#?}", place.name);
            }
        }
        assert_eq!(executed(&world), 2, "{}", place.name);
    }
}

#[test]
fn why_it_did_or_did_not_run() {
    let world = World::new();
    world.run(&["why", "site"]).is(64, "history.unknown_name");
    world.run(&["run", "site", "--slot", "2026-11-16T05:45Z", "--", "true"]).is(0, "");
    world.run(&["run", "site", "--slot", "2026-11-16T06:30Z", "--", "false"]).is(1, "");
    let said = world.run(&["why", "site"]).is(0, "").out;
    let first = said.lines().next().unwrap();
    assert!(messages::says(&said, "status.free") && first.contains("site is free (last token 2)"), "{said}");
    assert!(
        said.contains("site@2026-11-16T05:45:00Z: ok, by ") && said.contains("it is not run again"),
        "{said}"
    );
    let said = world.run(&["why", "site", "2026-11-16T15:30+09:00"]).is(0, "").out;
    assert!(
        said.contains("site@2026-11-16T06:30:00Z: failed, by ") && said.contains("tries again"),
        "{said}"
    );
    assert!(!said.contains("05:45"), "{said}");
    let said = world.run(&["why", "site", "2026-11-16T07:15Z"]).is(0, "").out;
    assert!(messages::says(&said, "why.no_such_slot") && said.contains("2026-11-16T07:15"), "{said}");
    let mut holder = world.start(&["once", "k", "--", "sh", "-c", "echo here; read go"]);
    assert_eq!(holder.line(), "here");
    let said = world.run(&["why", "k"]).is(0, "").out;
    assert!(said.contains("k: started, by ") && said.contains("working on it now"), "{said}");
    let said = world.run(&["why", "k.once"]).is(0, "").out;
    assert!(messages::says(&said, "status.held"), "{said}");
    holder.close_stdin();
    holder.ended();
}
