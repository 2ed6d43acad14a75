//! Targets as the command line sees them: sealed before the job starts, written inside a run, refused (76)
//! to whoever was overtaken; and the watching that changes nothing.

use std::fs;

use crate::world::{Running, World, binary, kill, until};
use rustix::process::Signal;

/// A script that knows how to call us.
fn job(text: &str) -> String {
    text.replace("LEASEHOLD", binary().to_str().unwrap())
}

fn read(world: &World, name: &str) -> String {
    fs::read_to_string(world.path(name)).unwrap_or_default()
}

#[test]
fn a_run_writes_what_it_has_sealed() {
    let world = World::new();
    let script = job("echo one | LEASEHOLD write file:today && echo two | LEASEHOLD --json write file:today");
    let ended = world.run(&["run", "site", "--fence", "file:today", "sh", "-c", &script]).is(0, "");
    let said = ended.json();
    assert_eq!((said["outcome"].as_str(), said["seq"].as_u64()), (Some("accepted"), Some(2)));
    assert_eq!(read(&world, "today"), "two\n");
    let listed = world.run(&["--json", "fence", "ls"]).json();
    assert_eq!((listed["class"].as_str(), listed["lease"].as_str()), (Some("atomic"), Some("site")));
    assert_eq!((listed["token"].as_u64(), listed["seq"].as_u64()), (Some(1), Some(2)));
}

#[test]
fn a_file_and_a_tree_at_once() {
    let world = World::new();
    fs::create_dir(world.path("new")).unwrap();
    world.write("new/page", "tree");
    let script = job(
        "LEASEHOLD write tree:site --from new && LEASEHOLD write file:page --from new/page && cat site/page",
    );
    let fences = ["--fence", "tree:{lease}", "--fence", "file:page"];
    let all = [&["run", "site"][..], &fences, &["sh", "-c", &script]].concat();
    assert_eq!(world.run(&all).is(0, "").out, "tree");
    assert_eq!(read(&world, "page"), "tree");
}

/// Frozen after its last check of anything, overtaken by a run that seals and writes nothing, thawed.
#[test]
fn a_frozen_run_is_refused_by_what_it_writes() {
    for (target, write) in [
        ("file:page", "echo stale | LEASEHOLD write file:page"),
        ("tree:site", "LEASEHOLD write tree:site --from stale"),
        ("gate:./mail", "LEASEHOLD gate ./mail -- touch sent"),
    ] {
        let world = World::new();
        fs::create_dir(world.path("stale")).unwrap();
        world.write("stale/page", "stale");
        // It is woken before its wrapper, which would end it: the fence must do this alone.
        let script = job(&format!("echo $$; read go; {write}; echo $? >code"));
        let run = ["run", "site", "--ttl", "2s", "--fence", target, "sh", "-c", &script];
        let mut zombie: Running = world.start(&run);
        let pid: u32 = zombie.line().parse().unwrap();
        zombie.signal(Signal::STOP);
        kill(pid, Signal::STOP);
        let next = ["run", "site", "--ttl", "2s", "--wait", "50s", "--fence", target, "true"];
        world.run(&next).is(0, "");
        kill(pid, Signal::CONT);
        zombie.type_in("go\n");
        crate::world::until("the stale write has ended", || {
            Some(()).filter(|()| world.path("code").exists())
        });
        crate::world::until("its code is there", || Some(()).filter(|()| !read(&world, "code").is_empty()));
        assert_eq!(read(&world, "code"), "76\n", "{target}");
        zombie.signal(Signal::CONT);
        let refused = if target == "gate:./mail" { "targets.stale_start" } else { "targets.stale_write" };
        zombie.ended().is(75, "run.lost").is(75, refused).names(&["token 1 is older than 2"]);
        assert!(!world.path("page").exists() && !world.path("site").exists(), "{target}: it landed");
        assert!(!world.path("sent").exists(), "{target}: it was run");
    }
}

#[test]
fn bad_input_starts_nothing() {
    let world = World::new();
    let run = |target: &str| world.run(&["run", "site", "--fence", target, "touch", "ran"]);
    run("file:today").is(0, "");
    fs::remove_file(world.path("ran")).unwrap();
    run("page").is(78, "").names(&["is not a target"]);
    run("fiel:page").is(78, "").names(&["Did you mean file:?"]);
    run("file:").is(78, "").names(&["Nothing was run"]);
    for kind in ["file:", "tree:", "gate:./", "sqlite:"] {
        run(&format!("{kind}nowhere/page#rows")).is(78, "").names(&["does not exist"]);
    }
    run("file:{lese}").is(64, "").names(&["did you mean {lease}?"]);
    run("file:{date@Mars/Base}").is(64, "").names(&["Mars/Base"]);
    let other = ["run", "other", "--fence", "file:today", "touch", "ran"];
    world.run(&other).is(78, "targets.other_lease").names(&["run this one under site"]);
    for (text, why) in [("", "is empty"), ("{", "is not readable")] {
        let before = world.write(".today.leasehold-fence", text);
        run("file:today").is(79, "targets.bad_fence").names(&[why]);
        assert_eq!(fs::read_to_string(before).unwrap(), text);
    }
    assert!(!world.path("ran").exists());
    world.sh(&job("echo x | LEASEHOLD write file:today")).is(64, "fenced.outside_a_run");
    world
        .sh(&job("LEASEHOLD gate mail -- touch ran"))
        .is(64, "")
        .names(&["not part of a run", "Nothing was run"]);
    let never = job("echo x | LEASEHOLD write file:page");
    world.run(&["run", "free", "sh", "-c", &never]).is(76, "targets.never_named");
    world.run(&["fence", "enforce", "file:page"]).is(78, "").names(&["has no fence yet"]);
    assert!(!world.path("ran").exists() && !world.path("page").exists());
}

/// The store was restored from an older copy: its tokens are below what the fence has seen.
#[test]
fn a_rewound_store_is_noticed_by_the_fence() {
    let world = World::new();
    let run = ["run", "site", "--fence", "file:today", "touch", "ran"];
    world.run(&run).is(0, "");
    let fence = read(&world, ".today.leasehold-fence").replace("\"token\":1,", "\"token\":9,");
    world.write(".today.leasehold-fence", &fence);
    fs::remove_file(world.path("ran")).unwrap();
    world.run(&run).is(79, "fenced.store_rewound").names(&["token 9", "leasehold fence reset file:today"]);
    assert!(!world.path("ran").exists());
    // What it names is the way out.
    world.run(&["fence", "reset", "file:today"]).is(0, "fence.reset");
    world.run(&run).is(0, "");
}

#[test]
fn a_target_that_watches_lets_in_and_counts() {
    let world = World::new();
    let run = |fence: &[&str], text: &str| {
        let script = job(&format!("echo {text} | LEASEHOLD write file:page"));
        world.run(&[&["run", "site"], fence, &["sh", "-c", &script]].concat())
    };
    run(&["--fence", "file:page"], "one").is(0, "");
    run(&[], "two").is(76, "targets.not_named");
    world.run(&["fence", "observe", "file:page"]).is(0, "fence.observes");
    run(&[], "three").is(0, "write.would_be_refused").names(&["(not-sealed)"]);
    assert_eq!(read(&world, "page"), "three\n");
    assert_eq!(world.run(&["--json", "fence", "ls", "file:page"]).json()["let_in"].as_u64(), Some(1));
    world.run(&["fence", "enforce", "file:page"]).is(0, "fence.enforces");
    run(&[], "four").is(76, "targets.not_named");
}

#[test]
fn what_was_observed_is_enforced_by_the_next_run() {
    let world = World::new();
    world.run(&["run", "site", "--observe", "--fence", "file:page", "true"]).is(0, "");
    let keep = "env | grep ^LEASEHOLD >old";
    world
        .run(&["-v", "run", "site", "--fence", "file:page", "sh", "-c", keep])
        .is(0, "fenced.fences")
        .names(&["file:page (atomic)"]);
    let fresh = job("echo fresh | LEASEHOLD write file:page");
    world.run(&["run", "site", "--fence", "file:page", "sh", "-c", &fresh]).is(0, "");
    world
        .sh(&job("set -a; . ./old; echo stale | LEASEHOLD write file:page"))
        .is(76, "targets.stale_write")
        .names(&["is older than 3"]);
    assert_eq!(read(&world, "page"), "fresh\n");
}

#[test]
fn observing_changes_nothing_and_sees_what_happened() {
    let world = World::new();
    let observe = |more: &[&str]| world.run(&[&["run", "site", "--observe"], more].concat());
    observe(&["--fence", "file:page", "sh", "-c", "echo one >page; exit 3"]).is(3, "");
    observe(&["--fence", "file:page", "sh", "-c", "echo two >page"]).is(0, "");
    world.write("page", "somebody else's");
    observe(&["--fence", "file:page", "true"]).is(0, "observe.changed").names(&["run with token 2"]);
    // Busy, no store, a target that is none: it runs.
    let mut holder = world.start(&["run", "site", "sh", "-c", "echo; exec cat"]);
    holder.line();
    observe(&["echo", "beside"]).is(0, "observe.overlap").names(&["held by"]);
    holder.ended();
    let down = ["--store", "postgres://x@127.0.0.1:1/x", "run", "site", "--observe", "echo", "alone"];
    assert_eq!(world.run(&down).is(0, "observe.without_lease").out, "alone\n");
    // Nor does it need a store that is found, or a place of its own.
    let unknown = ["--store", "nowhere:x", "run", "site", "--observe", "echo", "alone"];
    assert_eq!(world.run(&unknown).is(0, "observe.without_lease").out, "alone\n");
    let unmounted = format!("dir:{}", world.at("unmounted"));
    let args =
        ["--store", &unmounted, "run", "site", "--observe", "--report", "no/such/place", "echo", "alone"];
    let ended = world.run(&args).is(0, "report.file_lost").names(&["is the share mounted?"]);
    assert_eq!((ended.out.as_str(), world.path("unmounted").exists()), ("alone\n", false));
    let mut homeless = world.command(&["run", "site", "--observe", "echo", "alone"]);
    let homeless = crate::world::Ended::from(homeless.env_remove("HOME").output().unwrap());
    assert_eq!(homeless.is(0, "observe.without_lease").names(&["Set HOME"]).out, "alone\n");
    // A target that takes connections and never answers holds nobody up for long.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("git:http://{}/r.git", silent.local_addr().unwrap());
    let ended = observe(&["--fence", &target, "echo", "on"]).is(0, "observe.no_answer").names(&["10s"]);
    assert_eq!(ended.out, "on\n");
    // A script without its first line, as a shell takes it; and nobody who is told when it ends.
    world.script("bare", "echo $0 $1");
    assert_eq!(observe(&["./bare", "x"]).is(0, "").out, "./bare x\n");
    let mut deaf = world.program("env");
    deaf.arg("--block-signal=CHLD").arg(crate::world::binary()).args([
        "run",
        "site",
        "--observe",
        "sh",
        "-c",
        "exit 4",
    ]);
    crate::world::Ended::from(deaf.output().unwrap()).is(4, "");
    observe(&["--fence", "file:nowhere/page", "echo"]).is(0, "").names(&["does not exist"]);
    let seen = world.run(&["fence", "observed"]).is(0, "").out;
    assert_eq!(seen.lines().count(), 11, "{seen}");
    assert!(seen.contains("exit 3  no overlap seen") && seen.contains("changed since"), "{seen}");
}

#[test]
fn a_stale_write_that_was_let_in_is_in_the_notes() {
    let world = World::new();
    let script = job("echo here; read go; echo stale | LEASEHOLD write file:page");
    let observe = ["run", "site", "--observe", "--fence", "file:page"];
    let mut first = world.start(&[&observe[..], &["sh", "-c", &script]].concat());
    assert_eq!(first.line(), "here");
    world.run(&["break", "site", "--now"]).is(0, "");
    until("the lease that was taken is over", || {
        let second = world.run(&[&observe[..], &["true"]].concat());
        (!second.err.contains("held by")).then_some(())
    });
    first.type_in("go\n");
    first.ended().is(0, "observe.accepted_write").names(&["file:page meanwhile accepted 1 write"]);
    assert_eq!(read(&world, "page"), "stale\n");
    let seen = world.run(&["fence", "observed"]).is(0, "").out;
    assert!(seen.contains("meanwhile accepted 1 write"), "{seen}");
}

/// A pipe cannot tell a producer that died from one that is done; a command that we run can be told.
#[test]
fn what_a_dead_producer_left_is_not_published() {
    let world = World::new();
    let run = |script: &str| {
        let script = job(script);
        world.run(&["run", "site", "--fence", "file:page", "--fence", "tree:site", "sh", "-c", &script])
    };
    run("LEASEHOLD write file:page -- echo whole").is(0, "");
    assert_eq!(read(&world, "page"), "whole\n");
    let said = "write.command_failed";
    for (producer, code) in
        [("printf half; kill -9 $$", 137), ("printf half; exit 3", 3), ("exit 76", 76), ("kill $$", 143)]
    {
        run(&format!("LEASEHOLD write file:page -- sh -c '{producer}'")).is(code, said);
        assert_eq!(read(&world, "page"), "whole\n", "{producer}");
    }
    let ended = run("LEASEHOLD --json write file:page -- false").is(1, said).json();
    assert_eq!((ended["outcome"].as_str(), ended["reason"].as_str()), (Some("failed"), Some("command")));
    run("LEASEHOLD write file:page -- nosuchcommand").is(127, "").names(&["Nothing was written"]);
    run("LEASEHOLD write file:page --from page -- echo x").is(64, "").names(&["--from"]);
    // What takes no stream lets go of the command, however long that would go on.
    run("LEASEHOLD write tree:site -- sleep 1000").is(64, "").names(&["--from"]);
    assert_eq!(read(&world, "page"), "whole\n");
    // And without a shell in between.
    let us = binary();
    let straight = ["run", "site", "--fence", "file:page", "--", us.to_str().unwrap()];
    world.run(&[&straight[..], &["write", "file:page", "--", "echo", "straight"]].concat()).is(0, "");
    assert_eq!(read(&world, "page"), "straight\n");
    // The control: a pipe.
    run("sh -c 'printf half; kill -9 $$' | LEASEHOLD write file:page").is(0, "");
    assert_eq!(read(&world, "page"), "half", "then the documentation can say more");
}

#[test]
fn a_gate_is_the_same_by_whichever_way_it_is_named() {
    let world = World::new();
    for (fence, gate) in
        [("gate:gg/x", "gg/x"), ("gate:gg/x", "gate:gg/x"), ("gate:./x", "./x"), ("gate:mail", "gate:mail")]
    {
        let script = job(&format!("LEASEHOLD gate {gate} -- touch sent"));
        world.run(&["run", "site", "--fence", fence, "sh", "-c", &script]).is(0, "");
        fs::remove_file(world.path("sent")).unwrap_or_else(|e| panic!("{fence} and {gate}: {e}"));
    }
    // What is remembered means the same elsewhere.
    let listed = world.run(&["--json", "fence", "ls"]).out;
    let shown = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let shown: Vec<String> = shown.map(|seen| seen["target"].as_str().unwrap().to_owned()).collect();
    assert_eq!(shown, [&format!("gate:{}", world.at("x")), "gate:gg/x", "gate:mail"]);
}

#[test]
fn no_token_of_a_url_is_shown() {
    let world = World::new();
    for url in [
        "git:https://s3cret@127.0.0.1:1/r",
        "git:https://s3cret:x-oauth-basic@127.0.0.1:1/r",
        "gti:https://s3cret@h/r",
    ] {
        for args in [&["fence", "ls", url][..], &["--json", "fence", "ls", url], &["fence", "enforce", url]] {
            let ended = world.run(args);
            assert!(!format!("{}{}", ended.out, ended.err).contains("s3cret"), "{ended:#?}");
        }
    }
}

/// An unreadable fence needs a person, and yet nothing was written: that is no unknown outcome.
#[test]
fn an_unreadable_fence_is_told_as_a_refusal() {
    let world = World::new();
    let script = job("echo '{' >.page.leasehold-fence; echo x | LEASEHOLD --json write file:page");
    let ended = world.run(&["run", "site", "--fence", "file:page", "sh", "-c", &script]);
    let said = ended.is(79, "targets.bad_fence").json();
    assert_eq!((said["outcome"].as_str(), said["reason"].as_str()), (Some("refused"), Some("bad_fence")));
    assert!(!world.path("page").exists());
}
