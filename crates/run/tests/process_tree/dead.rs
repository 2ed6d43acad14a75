//! After `kill` nothing of the job lives, however it tried to get away.

use crate::driver::{Driven, Seen, eventually};

crate::tests!(
    a_session_of_its_own,
    a_daemon_that_forked_twice,
    a_python_subprocess,
    one_that_ignores_term,
    one_that_is_stopped,
    one_that_changed_its_group,
    one_that_keeps_forking,
    one_that_hops_from_process_to_process,
    a_leader_that_ended_before_its_threads,
    killing_only_the_main_process_is_seen_to_fail,
    killing_only_the_group_is_seen_to_fail,
    terminate_reaches_everyone_once,
    freeze_and_thaw,
    children_we_already_had_are_left_alone,
    children_we_already_had_hide_no_orphan,
    fifty_rounds_of_everything,
);

pub(crate) const SETSID: &str = "setsid sh -c 'echo up setsid $$; exec sleep 1000' &";
const PLAIN: &str = "sh -c 'echo up plain $$; exec sleep 1000' &";
const DAEMON: &str = r#"setsid sh -c 'sh -c "echo up daemon \$\$; exec sleep 1000" & exit' &"#;
const STUBBORN: &str = r#"sh -c 'trap "" TERM INT HUP; echo up stubborn $$; while :; do sleep 1000; done' &"#;
const STOPPED: &str = "sh -c 'echo up stopped $$; kill -STOP $$; sleep 1000' &";
const PYTHON: &str = r#"python3 -c '
import os, subprocess, time
os.setpgid(0, 0)
print("up group", os.getpid(), flush=True)
subprocess.Popen(["sh", "-c", "echo up python $$; exec sleep 1000"], start_new_session=True)
time.sleep(1000)' &"#;
const FORKER: &str = "sh -c 'echo up forker $$; i=0;
    while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; wait' &";
const HOPPER: &str = r#"python3 -c '
import os, time
print("up hopper", os.getpid(), flush=True)
for i in range(400):
    if os.fork(): os._exit(0)
    if i % 2: os.setsid() if os.getsid(0) != os.getpid() else None
    if i == 50: os.write(1, b"hop\n")
time.sleep(1000)' &"#;

fn all_dead(script: &str, names: &[&str]) -> u128 {
    let mut run = Driven::shell(None, &format!("{script}\nwait; sleep 1000"));
    for name in names {
        run.up(name);
    }
    let took = run.kill_all();
    assert_eq!(run.survivors(), [""; 0]);
    took
}

fn a_session_of_its_own() {
    let mut times: Vec<u128> = (0..20).map(|_| all_dead(SETSID, &["setsid"])).collect();
    times.sort_unstable();
    println!("kill() to empty tree of 3: median {} µs, worst {} µs", times[10], times[19]);
}

fn a_daemon_that_forked_twice() {
    all_dead(DAEMON, &["daemon"]);
}

fn a_python_subprocess() {
    all_dead(PYTHON, &["python"]);
}

fn one_that_ignores_term() {
    let mut run = Driven::shell(None, &format!("{STUBBORN} wait"));
    let stubborn = run.up("stubborn");
    run.ask("terminate");
    // The shell in front dies of TERM; that is the event after which the other must still live.
    run.expect("main ");
    assert!(stubborn.alive());
    let named = run.survivors();
    assert!(named[0].contains("trap"), "{named:?}");
    run.kill_all();
}

fn one_that_is_stopped() {
    all_dead(STOPPED, &["stopped"]);
    // TERM alone would wait for somebody to continue it.
    let mut run = Driven::shell(None, &format!("{STOPPED} exec sleep 1000"));
    let stopped = run.up("stopped");
    run.ask("terminate");
    run.expect("tree empty ");
    assert!(!stopped.alive());
}

fn one_that_changed_its_group() {
    all_dead(PYTHON, &["group"]);
}

fn one_that_keeps_forking() {
    all_dead(FORKER, &["forker"]);
}

fn one_that_hops_from_process_to_process() {
    let mut run = Driven::shell(None, &format!("{HOPPER} exec sleep 1000"));
    // No process of a given number stays; half-way is a word, not a pid.
    run.expect("up hopper ");
    run.expect("hop");
    run.kill_all();
    assert_eq!(run.survivors(), [""; 0]);
}

pub(crate) const HEADLESS: &str = r#"python3 -c '
import ctypes, os, threading, time
def live():
    while open("/proc/%d/stat" % os.getpid()).read().split(") ")[1][0] != "Z": time.sleep(0.001)
    print("up headless", os.getpid(), flush=True)
    time.sleep(1000)
threading.Thread(target=live).start()
ctypes.CDLL(None).pthread_exit(None)' &"#;

fn a_leader_that_ended_before_its_threads() {
    all_dead(HEADLESS, &["headless"]);
}

fn killing_only_the_main_process_is_seen_to_fail() {
    let mut run = Driven::shell(None, &format!("{PLAIN}{SETSID}{DAEMON} wait"));
    let up = ["plain", "setsid", "daemon"].map(|name| run.up(name));
    run.ask("kill main only");
    run.expect("main 137");
    assert!(up.iter().all(|seen| seen.alive()));
    // The one between the job and the daemon may be about to end.
    let left = std::iter::repeat_with(|| run.survivors().len()).take(10_000).find(|left| *left <= 3);
    assert_eq!(left, Some(3));
    run.kill_all();
}

fn killing_only_the_group_is_seen_to_fail() {
    let mut run = Driven::shell(None, &format!("{PLAIN}{SETSID} wait"));
    let (plain, setsid) = (run.up("plain"), run.up("setsid"));
    run.ask("killpg only");
    run.expect("main 137");
    assert!(plain.ends());
    assert!(setsid.alive());
    let named = run.survivors();
    let expected = format!("survivor {} ", setsid.pid);
    assert!(
        named.len() == 1 && named[0].starts_with(&expected) && named[0].contains("sleep 1000"),
        "{named:?}"
    );
    run.kill_all();
}

fn terminate_reaches_everyone_once() {
    let script = "setsid sh -c 'n=0; hit() { n=$((n+1)); echo term $n; }; trap hit TERM;
        echo up counts $$; while :; do sleep 0.01; done' & wait";
    let mut run = Driven::shell(None, script);
    run.up("counts");
    run.ask("terminate");
    run.expect("term 1");
    run.expect("main 143");
    run.ask("terminate");
    run.expect("term 2");
    run.kill_all();
}

fn freeze_and_thaw() {
    let mut run = Driven::shell(None, &format!("{SETSID}{STOPPED}{PLAIN} wait"));
    let [setsid, stopped, plain] = ["setsid", "stopped", "plain"].map(|name| run.up(name));
    assert!(eventually(|| stopped.stopped()));
    run.ask("freeze");
    let main = Seen::now(run.main).unwrap();
    let all = [setsid, stopped, plain, main];
    assert!(eventually(|| all.iter().all(|s| s.stopped())));
    run.ask("thaw");
    let ours = [setsid, plain, main];
    assert!(eventually(|| !ours.iter().any(|s| s.stopped())));
    assert!(stopped.stopped(), "what the job stopped stays stopped");
    run.ask("freeze");
    run.kill_all();
}

fn children_we_already_had_are_left_alone() {
    beside_another_child(&format!("{SETSID} wait; sleep 1000"), "setsid");
}

fn children_we_already_had_hide_no_orphan() {
    // Without our environment, without a lock file, and its parent is gone: only the mark tells whose it is.
    let bare = r#"env -i setsid sh -c 'sh -c "echo up bare \$\$; exec sleep 1000" & exit'; sleep 1000"#;
    beside_another_child(bare, "bare");
}

/// Kills a job that has started `left`, in a supervisor that had a child before it.
fn beside_another_child(job: &str, left: &str) {
    // A shell that has children and then becomes us: `exec >(…)`, then `exec leasehold run …`.
    let run = crate::driver::new_run();
    let supervisor = crate::driver::supervisor("driven", &run, None);
    let mut shell = std::process::Command::new("sh");
    let script = r#"sleep 1000 & echo "up foreign $!"; exec "$0" "$@""#;
    shell.args(["-c", script]);
    shell.arg(supervisor.get_program());
    shell.args(["sh", "-c", job]);
    for (key, value) in supervisor.get_envs() {
        shell.env(key, value.unwrap());
    }
    let mut run = Driven::from(shell, run);
    let left = run.up(left);
    run.ask("kill");
    run.expect("tree empty ");
    let foreign = run.up("foreign");
    assert!(!left.alive() && foreign.alive());
    assert_eq!(run.survivors(), [""; 0]);
}

fn fifty_rounds_of_everything() {
    let script = [SETSID, DAEMON, STUBBORN, STOPPED, PYTHON, FORKER, PLAIN].concat();
    let names = ["setsid", "daemon", "stubborn", "stopped", "group", "python", "forker", "plain"];
    let mut times: Vec<u128> = (0..50).map(|_| all_dead(&script, &names)).collect();
    times.sort_unstable();
    let (median, worst) = (times[25], times[49]);
    println!("kill() to empty tree: median {median} µs, worst {worst} µs");
}
