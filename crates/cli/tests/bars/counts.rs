//! Fast, by counting: what does not depend on how busy the machine is.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Home, LEASE, Started, alone, binary};

/// Runs it under strace; the lines about these calls, in all its processes and threads.
fn traced(home: &Home, calls: &str, args: &[&str]) -> Vec<String> {
    let log = home.0.join("strace");
    let mut command = home.command("strace");
    command.args(["-f", "-y", "-qq", "-e", "signal=none", "-e"]).arg(format!("trace={calls}"));
    command.arg("-o").arg(&log).arg(binary()).args(args);
    let status = command.stderr(Stdio::null()).status().expect("strace runs");
    // 11: `acquire` found it held.
    assert!(status.success() || status.code() == Some(11), "{status}");
    let text = std::fs::read_to_string(&log).unwrap();
    // "PID call(...": a call that was interrupted by another thread's has a second line.
    text.lines().filter(|l| l.contains('(') && !l.contains("resumed>")).map(str::to_owned).collect()
}

const SYNC: &str = "fsync,fdatasync,sync_file_range,syncfs,sync,msync";

fn plain_run(home: &Home) -> Vec<String> {
    traced(home, SYNC, &["run", LEASE, "--", "true"])
}

#[test]
fn a_run_syncs_twice() {
    let _alone = alone();
    let home = Home::new();
    let first = plain_run(&home).len();
    const RUNS: usize = 100;
    let counts: Vec<usize> = (0..RUNS).map(|_| plain_run(&home).len()).collect();
    let (least, total) = (*counts.iter().min().unwrap(), counts.iter().sum::<usize>());
    let twice = counts.iter().filter(|n| **n == 2).count();
    println!(
        "fsyncs: {first} in the first run, which makes the database; then {least} in {twice} of {RUNS} runs, \
         {:.2} on average with checkpoints",
        total as f64 / RUNS as f64
    );
    assert_eq!(least, 2, "one for the grant, one for the release");
    assert!(twice >= RUNS * 8 / 10 && total <= RUNS * 5 / 2, "{counts:?}");
    // The control: a run whose renewals are due does sync more.
    let slow = ["run", LEASE, "--ttl", "600ms", "--", "sleep", "0.5"];
    let renewing = traced(&home, SYNC, &slow).len();
    assert!(renewing > 2, "{renewing}");
}

/// The lines that wrote to the database or its log, whatever the call.
fn written(lines: &[String], database: &Path) -> Vec<String> {
    let name = database.to_str().unwrap();
    let files = [format!("<{name}>"), format!("<{name}-wal>")];
    lines.iter().filter(|l| files.iter().any(|f| l.contains(f.as_str()))).cloned().collect()
}

const WRITES: &str = "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,fsync,fdatasync,msync";

#[test]
fn finding_it_held_writes_and_syncs_nothing() {
    let _alone = alone();
    let home = Home::new();
    let script = "echo up job $$; exec sleep 1000";
    let mut holder = Started::new(home.leasehold(&["run", LEASE, "--", "sh", "-c", script]), &home);
    holder.one_up().unwrap();
    for held in [&["run", LEASE, "--no-history", "--", "true"][..], &["-q", "acquire", LEASE]] {
        let lines = traced(&home, WRITES, held);
        let syncs: Vec<&String> = lines.iter().filter(|l| l.contains("sync(")).collect();
        assert!(syncs.is_empty(), "{held:?}: {syncs:?}");
        let touched = written(&lines, &home.database());
        assert!(touched.is_empty(), "{held:?}: {touched:?}");
    }
    // A skip is one record of the run log.
    let lines = traced(&home, WRITES, &["run", LEASE, "--", "true"]);
    let syncs: Vec<&String> = lines.iter().filter(|l| l.contains("sync(")).collect();
    assert_eq!(syncs.len(), 1, "{syncs:?}");
    // The control: the same look at a run that finds it free sees its writes.
    let lines = traced(&home, WRITES, &["run", "other", "--", "true"]);
    assert!(!written(&lines, &home.database()).is_empty(), "{lines:?}");
}

fn figure(pid: i32, file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_wrapper_is_small() {
    let _alone = alone();
    let home = Home::new();
    let script = "echo up job $$; exec sleep 1000";
    // A short heartbeat, so that the measure is taken after a renewal.
    let flags = ["run", LEASE, "--ttl", "2s", "--heartbeat", "50ms", "-v", "--", "sh", "-c", script];
    let mut holder = Started::new(home.leasehold(&flags), &home);
    holder.one_up().unwrap();
    let until = leasehold::clock::boot_time().plus(crate::common::PATIENCE);
    while !holder.said().lines().any(|line| line.ends_with(": renewed")) {
        let now = leasehold::clock::boot_time();
        assert!(now < until, "{}", holder.said());
        crate::common::until(now.plus(std::time::Duration::from_millis(20)));
    }
    let pid = holder.wrapper.pid;
    // Its own: pages of the program are shared by all wrappers, and the kernel maps as many around each as it likes.
    let own = figure(pid, "smaps_rollup", "Private_Dirty:");
    let (all, threads) = (figure(pid, "status", "VmRSS:"), figure(pid, "status", "Threads:"));
    println!("while wrapping sleep: {own} kB of its own, {all} kB with the program, {threads} threads");
    // Debug builds are larger; the bar is for what users get.
    let optimised = !cfg!(debug_assertions) || std::env::var_os("LEASEHOLD_BIN").is_some();
    assert!(own <= if optimised { 400 } else { 4_096 }, "{own} kB");
    assert!(threads <= 2, "{threads} threads");
}
