//! Steps of an item: what is said of one that was not run, and who is at one.

use std::fs;

use rustix::process::Signal;

use crate::world::{World, binary, kill};

#[test]
fn a_step_that_was_not_run_is_not_told_as_done() {
    let world = World::new();
    let step = |name: &str| {
        let script = format!("\"{}\" step '{name}' -- touch never", binary().display());
        world.run(&["once", "k", "--attempts", "9", "--", "sh", "-c", &script])
    };
    for (name, bytes) in [("", 0), (&"x".repeat(129)[..], 129)] {
        let ended = step(name).is(64, "step.bad_name").names(&["1 to 128 bytes"]);
        assert!(ended.err.contains(&format!("this one has {bytes}")), "{ended:#?}");
        assert!(!ended.err.contains("is done"), "{ended:#?}");
    }
    assert!(!world.path("never").exists());
    // Nobody is there to ask.
    let gone = "LEASEHOLD_SOCKET=/nowhere \"$0\" step x -- touch never";
    let ended = world.run(&["once", "l", "--", "sh", "-c", gone, &binary().display().to_string()]);
    ended.is(76, "step.over").names(&["Nothing was run"]);
    assert!(!world.path("never").exists());
    // The longest that there may be.
    step(&"x".repeat(128)).is(0, "");
    assert!(world.path("never").exists());
}

/// A lease that was taken by hand meanwhile is another matter.
#[test]
fn a_step_is_of_the_run_it_is_in() {
    let world = World::new();
    let script =
        r#"eval "$("$0" -q acquire other --eval)" && "$0" step a -- touch done && "$0" release other"#;
    world
        .run(&["once", "k", "--", "sh", "-c", script, &binary().display().to_string()])
        .is(0, "by_hand.released")
        .names(&["other"]);
    assert!(world.path("done").exists());
}

/// As a caller does that waits only so long: it kills the program that it started, and nothing else.
#[test]
fn a_step_whose_command_runs_on_is_not_begun_again() {
    let world = World::new();
    let script = "mkfifo go
        \"$0\" step charge -- sh -c 'echo first >> done; echo $PPID; read go < go' &
        wait $!
        \"$0\" step charge -- sh -c 'echo meanwhile >> done'; echo $?
        until \"$0\" step charge -- sh -c 'echo after >> done' 2> /dev/null; do :; done";
    let mut run = world.start(&["once", "k", "--", "sh", "-c", script, &binary().display().to_string()]);
    kill(run.line().parse().unwrap(), Signal::KILL);
    let again = run.line();
    let done = || fs::read_to_string(world.path("done")).unwrap();
    assert_eq!((&again[..], &done()[..]), ("64", "first\n"));
    // Its end leaves the step to others.
    fs::write(world.path("go"), "\n").unwrap();
    run.ended().is(0, "step.busy");
    assert_eq!(done(), "first\nafter\n");
}

/// What a command leaves in the background has its descriptors, and keeps nobody waiting.
#[test]
fn a_step_ends_with_its_command() {
    let world = World::new();
    let script = "mkfifo never
        \"$0\" step good -- sh -c 'cat never & exit 0'; echo good $?
        \"$0\" step good -- touch again; echo good $?
        for n in 1 2 3 4 5 6 7 8 9; do
            \"$0\" step bad -- sh -c 'cat never & exit 3'; echo bad $?
        done
        \"$0\" step bad -- true; echo bad $?; exit 0";
    let mut run = world.start(&["once", "k", "--", "sh", "-c", script, &binary().display().to_string()]);
    assert_eq!([run.line(), run.line()], ["good 0", "good 0"]);
    for _ in 0..9 {
        assert_eq!(run.line(), "bad 3");
    }
    assert_eq!(run.line(), "bad 0");
    run.ended().is(0, "step.skipped").names(&["step good: already done", "token 1"]);
    assert!(!world.path("again").exists());
}
