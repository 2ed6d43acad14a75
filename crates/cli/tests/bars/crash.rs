//! After a crash the next run starts at once, but never beside what the crashed one left behind.

use std::fs::File;
use std::time::Duration;

use leasehold::clock::boot_time;
use rustix::process::Signal;

use crate::common::{Home, LEASE, Seen, Started, alone, fresh_run_id, python, record, rounds, sqlite_url};
use crate::round::come_up;

/// What the next run may take to start, counted from the end of the crashed tree.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Where a round keeps its leases.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Embedded,
    Directory,
}

impl Kept {
    fn url(self, home: &Home) -> String {
        match self {
            Self::Embedded => sqlite_url(home),
            Self::Directory => {
                let url = format!("dir:{}", home.0.join("leases").display());
                // A run does not make a store.
                leasehold::stores::open(&url).unwrap_or_else(|e| panic!("{e}"));
                url
            }
        }
    }

    fn run(self, home: &Home, flags: &[&str], job: &[&str], ups: usize) -> Started {
        let mut command = home.leasehold(&["run", LEASE]);
        if let Self::Directory = self {
            command.args(["--store", &self.url(home)]);
        }
        command.args(flags).arg("--").args(job);
        come_up(command, home, ups).unwrap()
    }

    /// The next run: whether it ran, and how long after the call its job was up.
    fn next(self, home: &Home) -> (bool, Duration) {
        let before = boot_time();
        let mut next = self.run(home, &["-E", "11"], &["echo", "next"], 0);
        let line = next.line();
        let status = next.end().unwrap();
        match (line, status.code()) {
            (Ok((_, at)), Some(0)) => (true, at.since(before)),
            (Err(_), Some(11)) => (false, Duration::ZERO),
            other => panic!("{other:?}: {}", next.said()),
        }
    }
}

fn kill_wrapper(run: &mut Started) {
    run.wrapper.signal(Signal::KILL);
    run.end().unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn after_a_crash_the_next_run_starts_at_once_whatever_the_ttl() {
    let _alone = alone();
    for kept in [Kept::Embedded, Kept::Directory] {
        let home = Home::new();
        let mut times = Vec::new();
        for _ in 0..rounds(11, 101) {
            let job = ["sh", "-c", "echo up job $$; exec sleep 1000"];
            let mut run = kept.run(&home, &["--ttl", "60s"], &job, 1);
            kill_wrapper(&mut run);
            assert!(run.up[0].ends_within(Duration::from_secs(10)), "the job outlives its wrapper");
            let (ran, after) = kept.next(&home);
            assert!(ran, "not recovered");
            times.push(after);
        }
        let (best, worst) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        let median = median(times);
        println!("{kept:?}: killed to next run: best {best:.1?}, median {median:.1?}, worst {worst:.1?}");
        assert!(median <= AT_ONCE, "{kept:?}: {median:?}");
    }
}

/// What the crashed job leaves behind, and what it lets go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Plain,
    Setsid,
    Python,
    Bare,
}

const LEFT: [Left; 4] = [Left::Plain, Left::Setsid, Left::Python, Left::Bare];

impl Left {
    fn job(self) -> Vec<&'static str> {
        let shell = |script| vec!["sh", "-c", script];
        match self {
            Self::Plain => shell("sh -c 'echo up left $$; exec sleep 1000' & wait"),
            Self::Setsid => shell("setsid sh -c 'echo up left $$; exec sleep 1000' & wait"),
            Self::Python => vec![
                python(),
                "-ISc",
                "import subprocess\n\
                 job = ['sh', '-c', 'echo up left $$; exec sleep 1000']\n\
                 subprocess.Popen(job, start_new_session=True).wait()",
            ],
            // No environment, no session, and the descriptor of the lock closed.
            Self::Bare => {
                vec![
                    "bash",
                    "-c",
                    "exec 100>&-; env -i setsid sh -c 'echo up left $$; exec sleep 1000' & wait",
                ]
            }
        }
    }

    /// A crashed run, and what is left of it.
    fn crash(self, kept: Kept, home: &Home, ttl: &str) -> Started {
        let mut run = kept.run(home, &["--ttl", ttl, "--run-id", &fresh_run_id()], &self.job(), 1);
        let main = Seen::now("main", child_of(run.wrapper.pid));
        kill_wrapper(&mut run);
        assert!(main.ends_within(Duration::from_secs(10)), "the job outlives its wrapper");
        assert!(run.up[0].alive(), "nothing is left, so nothing is tested");
        run
    }
}

/// The only child of a process.
fn child_of(pid: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap_or_else(|_| panic!("children: {children}"))
}

/// Asks the lock of the record's holder, and nothing else.
fn lock_is_free(kept: Kept, home: &Home) -> bool {
    let url = kept.url(home);
    let grant = record(&url).0.hold.unwrap().grant;
    let locks = leasehold::stores::open(&url).unwrap().facts().lock_dir.unwrap();
    let file = File::open(locks.join(format!("{grant}.lock"))).unwrap();
    file.try_lock_shared().is_ok()
}

#[test]
fn while_anything_of_the_crashed_run_lives_its_lease_is_kept() {
    let _alone = alone();
    for kept in [Kept::Embedded, Kept::Directory] {
        for left in LEFT {
            let home = Home::new();
            let run = left.crash(kept, &home, "60s");
            // The control: by the lock alone two of these would be let in twice.
            let lied = matches!(left, Left::Python | Left::Bare);
            assert_eq!(lock_is_free(kept, &home), lied, "{left:?}: what the lock alone says");
            assert!(!kept.next(&home).0, "{kept:?}: taken although {left:?} lives");
            assert!(run.up[0].alive());
            run.up[0].signal(Signal::KILL);
            assert!(run.up[0].ends_within(Duration::from_secs(10)));
            assert!(kept.next(&home).0, "{kept:?}: not taken although {left:?} is gone");
        }
    }
}

#[test]
fn what_lives_on_is_overtaken_when_the_ttl_ends_and_not_before() {
    let _alone = alone();
    const TTL: Duration = Duration::from_secs(2);
    for kept in [Kept::Embedded, Kept::Directory] {
        for left in LEFT {
            let home = Home::new();
            let run = left.crash(kept, &home, "2s");
            let (old, written) = record(&kept.url(&home));
            let script = ["sh", "-c", "echo up next $$; exec sleep 1000"];
            let next = kept.run(&home, &["--wait", "60s", "--ttl", "60s"], &script, 1);
            let (new, granted) = record(&kept.url(&home));
            assert!(run.up[0].alive() && next.up[0].alive());
            assert!(new.token > old.token, "{new:?}");
            assert!(
                granted >= written.plus(TTL),
                "{kept:?}, {left:?}: {:?} early",
                written.plus(TTL).since(granted)
            );
        }
    }
}
