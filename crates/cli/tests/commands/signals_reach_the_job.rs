//! What is sent to the wrapper reaches the whole process group of the job, once; at a terminal the job
//! stays in the foreground and Ctrl-C is not doubled.

use crate::world::{Running, World, binary, lives};
use rustix::process::Signal;

/// Says which signals it and its child got; ends with a line on its input.
const LISTENER: &str = r#"
import os, signal, sys, threading
wanted = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
who = 'child' if os.fork() == 0 else 'parent'
count = 0
def until_told():
    if sys.stdin.readline():
        os.write(1, ('%d signals\n' % count).encode())
        os._exit(5)
if who == 'parent':
    threading.Thread(target=until_told).start()
os.write(1, b'ready\n')
while True:
    number = signal.sigwait(wanted)
    count += 1
    os.write(1, ('%s %s\n' % (who, signal.Signals(number).name)).encode())
"#;

fn start(world: &World, args: &[&str]) -> Running {
    let mut command = world.hearing(binary());
    command.args(args);
    Running::new(command)
}

/// It says that it went well, and its work is not recorded as done: nobody who goes by the code may take it for that.
#[test]
fn a_job_that_ends_well_when_it_is_stopped_did_not_do_its_work() {
    let world = World::new();
    let graceful = "trap 'exit 0' TERM; echo; while :; do tail -f /dev/null & wait; done";
    let args = ["once", "key", "--max-run", "300ms", "--grace", "20s", "sh", "-c", graceful];
    world.run(&args).is(143, "run.stop_max_run").is(143, "items.ended_unknown");
    world.run(&["once", "key", "true"]).is(79, "items.unknown");
}

/// Whoever presses Ctrl-C is told what it means for the key, also with --quiet; not where the next run tries again.
#[test]
fn work_that_was_stopped_half_way_is_told() {
    let world = World::new();
    for (more, told) in [(&[][..], true), (&["--if-unknown", "retry"], false)] {
        let key = format!("key-{told}");
        let args = [&["-q", "once", &key], more, &["sh", "-c", "echo; exec tail -f /dev/null"]].concat();
        let mut run = start(&world, &args);
        run.line();
        run.signal(Signal::TERM);
        let ended = run.ended().is(143, "");
        assert_eq!(ended.err.contains(&format!("leasehold retry {key} ")), told, "{ended:#?}");
    }
}

#[test]
fn off_a_terminal_the_whole_group_gets_each_of_them() {
    let world = World::new();
    let script = world.write("listener.py", LISTENER);
    let mut run = start(&world, &["run", "site", "python3", script.to_str().unwrap()]);
    assert_eq!((run.line(), run.line()), ("ready".into(), "ready".into()));
    let signals = [
        (Signal::TERM, "SIGTERM"),
        (Signal::HUP, "SIGHUP"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::INT, "SIGINT"),
    ];
    for (signal, name) in signals {
        run.signal(signal);
        let mut got = [run.line(), run.line()];
        got.sort();
        assert_eq!(got, [format!("child {name}"), format!("parent {name}")]);
    }
    run.type_in("end\n");
    assert_eq!(run.line(), "6 signals", "each of them once");
    // The child outlives the parent and is ended with it.
    run.ended().is(5, "run.left_behind");
}

#[test]
fn a_second_interrupt_kills() {
    let world = World::new();
    let script = world.write("listener.py", LISTENER);
    let mut run = start(&world, &["run", "site", "python3", script.to_str().unwrap()]);
    assert_eq!((run.line(), run.line()), ("ready".into(), "ready".into()));
    run.signal(Signal::INT);
    assert!(run.line().ends_with("SIGINT") && run.line().ends_with("SIGINT"));
    run.signal(Signal::INT);
    run.said("run.stop_interrupted");
    let ended = run.ended();
    assert_eq!((ended.code, ended.out.as_str()), (137, ""), "at once, without another word: {ended:#?}");
    assert_eq!(world.status(&[], "site")["state"], "free");
}

/// What a signal that we passed on has ended may have come any way: `killed`. One that says itself how it ended is
/// taken at its word.
#[test]
fn a_command_that_dies_of_a_signal_is_recorded_as_killed() {
    let asleep = "echo here; exec sleep 60";
    let shell = "trap got=1 TERM HUP; echo here; while [ -z \"$got\" ]; do sleep 0.1; done; exit 143";
    let of_its_own = "trap 'exit 3' TERM; echo here; while :; do sleep 0.1; done";
    let unharmed = "trap 'exit 0' TERM; echo here; while :; do sleep 0.1; done";
    for (signal, script, code, outcome) in [
        (Signal::TERM, asleep, 143, "killed"),
        (Signal::INT, asleep, 130, "killed"),
        (Signal::HUP, asleep, 129, "killed"),
        (Signal::QUIT, asleep, 131, "killed"),
        (Signal::USR1, asleep, 138, "failed"),
        (Signal::TERM, shell, 143, "killed"),
        (Signal::HUP, shell, 143, "failed"),
        (Signal::TERM, of_its_own, 3, "failed"),
        (Signal::TERM, unharmed, 0, "ok"),
        // Nobody asked it to: it had no time to say anything.
        (Signal::USR1, "trap 'kill -KILL $$' USR1; echo here; while :; do sleep 0.1; done", 137, "killed"),
    ] {
        let world = World::new();
        let mut run = start(&world, &["once", "k", "--report", "report", "--", "sh", "-c", script]);
        assert_eq!(run.line(), "here");
        run.signal(signal);
        assert_eq!(run.ended().code, code, "{signal:?} {script}");
        let history = world.run(&["--json", "history", "k"]).first();
        assert_eq!(
            (&history["outcome"], &history["exit"]),
            (&outcome.into(), &code.into()),
            "{signal:?} {script}"
        );
        let report = std::fs::read_to_string(world.path("report")).unwrap();
        assert!(report.contains(&format!(r#""outcome":"{outcome}""#)), "{signal:?} {script}: {report}");
        if outcome == "killed" {
            world.run(&["once", "k", "--", "touch", "again"]).is(79, "items.unknown");
            world.run(&["once", "k", "--if-unknown", "retry", "--", "touch", "again"]).is(0, "");
        }
    }
}

#[test]
fn interrupted_while_waiting_nothing_is_run() {
    let world = World::new();
    world.run(&["acquire", "site"]).token();
    let mut waiting = start(&world, &["-v", "run", "site", "--wait", "50s", "touch", "ran"]);
    waiting.said("run.waiting");
    waiting.signal(Signal::TERM);
    waiting.ended().is(143, "interrupted before anything was run");
    assert!(!world.path("ran").exists());
    assert_eq!(world.status(&[], "site")["token"], 1);
}

/// The binary at a terminal of its own; what is typed goes through the terminal.
fn at_a_terminal(world: &World, args: &str) -> Running {
    let line = format!("exec {} {args}", binary().display());
    let mut command = world.hearing("script");
    command.args(["--quiet", "--return", "--flush", "--echo", "never", "--command", &line, "/dev/null"]);
    Running::new(command)
}

const AT_A_TERMINAL: &str = r#"
import os, signal, sys
count = 0
def got(number, frame):
    global count
    count += 1
    os.write(1, b'got it\n')
signal.signal(signal.SIGINT, got)
os.write(1, ('foreground %s\n' % (os.getpgrp() == os.tcgetpgrp(0))).encode())
os.write(1, ('read %s\n' % sys.stdin.readline().strip()).encode())
sys.stdin.readline()
os.write(1, ('%d interrupts\n' % count).encode())
"#;

#[test]
fn at_a_terminal_the_job_stays_in_the_foreground_and_ctrl_c_arrives_once() {
    let world = World::new();
    let script = world.write("job.py", AT_A_TERMINAL);
    let mut run = at_a_terminal(&world, &format!("run site python3 {}", script.display()));
    assert!(run.line().contains("site: token 1, TTL 90s"), "somebody is watching, so it is told");
    assert_eq!(run.line(), "foreground True");
    run.type_in("hello\n");
    assert_eq!(run.line(), "read hello");
    run.type_in("\x03");
    assert_eq!(run.line(), "got it");
    run.type_in("end\n");
    assert_eq!(run.line(), "1 interrupts");
    assert!(run.line().contains("site done in"));
    assert_eq!(run.ended().code, 0);
}

#[test]
fn a_run_that_was_interrupted_is_not_called_done() {
    let world = World::new();
    let mut run = world.hearing(crate::world::binary());
    run.args(["-v", "run", "site", "sh", "-c", "echo up; exec tail -f /dev/null"]);
    let mut run = Running::new(run);
    assert_eq!(run.line(), "up");
    run.signal(Signal::INT);
    run.ended().is(130, "run.stopped").names(&["(exit 130), released"]).lacks("done");
    world
        .run(&["-v", "run", "site", "sh", "-c", "exit 3"])
        .is(3, "run.failed")
        .names(&["(exit 3), released"])
        .lacks("done");
    world.run(&["-v", "run", "site", "true"]).is(0, "run.done");
}

#[test]
fn at_a_terminal_ctrl_c_ends_an_ordinary_command() {
    let world = World::new();
    let mut run = at_a_terminal(&world, "-q run site sh -c 'echo $$; exec tail -f /dev/null'");
    let job = run.line().parse().unwrap();
    run.type_in("\x03");
    assert_eq!(run.ended().code, 130);
    assert!(!lives(job));
    assert_eq!(world.status(&[], "site")["state"], "free");
}
