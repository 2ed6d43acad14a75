//! A lost lease ends the whole tree, in time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::io::{PipeReader, PipeWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use leasehold::clock::boot_time;
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::common::{Home, LEASE, Stalls, Started, alone, fresh_run_id, rounds};
use crate::round::{KINDS, Kind, WAYS, Way, come_up, play, survivors};

/// Rounds at one time: they mostly wait.
const AT_ONCE: usize = 5;

/// The promise holds while a process that wakes up runs within the kill margin, which is about
/// 200 ms here. A round that ends late while the machine kept even this test waiting for this long
/// is out of bounds: it is played again.
const STALL: Duration = Duration::from_millis(50);

#[test]
fn a_lost_lease_ends_every_process_before_the_next_grant() {
    let _alone = alone();
    let plan: Vec<(Way, Kind)> = WAYS.iter().flat_map(|w| KINDS.map(|k| (*w, k))).collect();
    let count = plan.len() * rounds(8, 80);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let least: Mutex<BTreeMap<String, (usize, f64)>> = Mutex::default();
    let out_of_bounds = AtomicUsize::new(0);
    let stalls = Stalls::watch();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let (way, kind) = plan[number % plan.len()];
                    loop {
                        let begun = boot_time();
                        match play(way, kind) {
                            Ok(figures) if figures.spare_ms > 0.0 => {
                                let mut least = least.lock().unwrap();
                                let entry = least.entry(format!("{way:?}")).or_insert((0, f64::MAX));
                                *entry = (entry.0 + 1, entry.1.min(figures.spare_ms));
                            }
                            Ok(_) if stalls.longest_since(begun) >= STALL => {
                                out_of_bounds.fetch_add(1, Ordering::Relaxed);
                                continue;
                            }
                            Ok(late) => failed.lock().unwrap().push(format!("{way:?} {kind:?}: {late:?}")),
                            Err(why) => failed.lock().unwrap().push(format!("{way:?} {kind:?}: {why}")),
                        }
                        break;
                    }
                }
            });
        }
    });
    let repeated = out_of_bounds.into_inner();
    println!("{repeated} rounds were late while the machine stood still and were played again");
    assert!(repeated <= count / 10, "this machine is too busy to measure on");
    for (way, (count, spare)) in least.into_inner().unwrap() {
        println!("{way}: {count} rounds, all dead at least {spare:.0} ms before they had to be");
    }
    let failed = failed.into_inner().unwrap();
    println!("{count} rounds, {} failed", failed.len());
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

/// What the same checker says of a wrapper that knows only the process it started.
fn left_by_flock(kind: Kind) -> Vec<String> {
    let home = Home::new();
    let run_id = fresh_run_id();
    let (job, count) = kind.command();
    let mut command = home.command("flock");
    command.arg("lock").args(job).env("LEASEHOLD_RUN_ID", &run_id);
    let mut started = come_up(command, &home, count).unwrap();
    let main = started.up.iter().find(|s| ["plain", "main", "deaf"].contains(&s.name.as_str())).unwrap();
    main.signal(Signal::KILL);
    started.end().unwrap();
    survivors(&started.up, &run_id)
}

#[test]
fn the_checker_sees_what_a_lesser_wrapper_leaves() {
    let _alone = alone();
    for kind in KINDS {
        let left = left_by_flock(kind);
        assert_eq!(left.is_empty(), kind == Kind::Plain, "{kind:?}: {left:?}");
    }
}

/// A pipe that takes nothing more because nobody reads it.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_of_stderr_that_stands_still_does_not_keep_the_job_alive() {
    let _alone = alone();
    let home = Home::new();
    let (reader, writer) = full_pipe();
    let script = "echo up job $$; exec sleep 1000";
    let command = home.leasehold(&["run", LEASE, "--ttl", "1500ms", "-v", "--", "sh", "-c", script]);
    let mut run = Started::with_stderr(command, writer.into(), PathBuf::new());
    run.one_up().unwrap();
    let broken = home.leasehold(&["break", LEASE, "--now", "--take", "-q"]).output().unwrap();
    assert!(broken.status.success(), "{broken:?}");
    assert!(run.up[0].ends_within(Duration::from_secs(15)), "the job lives on");
    drop(reader);
    assert_eq!(run.end().unwrap().code(), Some(75));
}
