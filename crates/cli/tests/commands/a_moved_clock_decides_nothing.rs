//! One contender's wall clock is an hour off. Nobody is let in twice, no lease ends early and none
//! stays for ever. The control shows that the moved clock is really seen by the process.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::world::places::{everywhere, fresh};
use crate::world::{Ended, Running, World, pause, until};
use leasehold::clock::{boot_time, wall};

const HOUR: i64 = 3600;

const JOB: &str = "echo $LEASEHOLD_TOKEN; exec cat";

/// A world in which every command can be given a moved clock.
struct Moved {
    world: World,
    store: String,
    library: PathBuf,
    offset: i64,
    /// The lease; the servers are shared.
    site: String,
    /// A TTL that is short for this store.
    short: Duration,
    /// Whether the store is behind a network.
    server: bool,
}

fn library() -> PathBuf {
    let dirs = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = dirs.map(|dir| dir.join("faketime/libfaketime.so.1")).find(|path| path.exists());
    found.expect("SKIPPED: there is no libfaketime here; install the package faketime")
}

impl Moved {
    fn new(scheme: &str, offset: i64) -> Self {
        let world = World::new();
        let store = world.store(scheme);
        let (site, short) = ("site".into(), Duration::from_secs(1));
        Self { world, store, library: library(), offset, site, short, server: false }
    }

    fn command(&self, moved: bool, args: &[&str]) -> Command {
        // Not the shipped binary: it is linked statically, and no library can be put before it.
        let mut command = self.world.program(env!("CARGO_BIN_EXE_leasehold"));
        let site = |arg: &&str| if *arg == "site" { self.site.clone() } else { (*arg).to_owned() };
        command.args(["--store", &self.store]).args(args.iter().map(site));
        if moved {
            // Only the wall clock: the clocks that count from boot are not a client's to move.
            command.env("LD_PRELOAD", &self.library).env("FAKETIME", format!("{:+}s", self.offset));
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    fn run(&self, moved: bool, args: &[&str]) -> Ended {
        self.command(moved, args).output().unwrap().into()
    }

    /// A TTL of about that long, and no shorter than the store allows.
    fn seconds(&self, about: u64) -> String {
        format!("{}s", self.short.max(Duration::from_secs(about)).as_secs())
    }

    fn release(&self, token: u64) {
        self.run(false, &["release", "site", "--token", &token.to_string()]).is(0, "released");
    }

    /// The control: the process and its job see the moved clock.
    fn is_seen(&self) {
        let job = self.run(true, &["run", "site", "date", "+%s"]).quiet();
        let off = job.out.trim().parse::<i64>().unwrap() - i64::try_from(wall().as_secs()).unwrap();
        assert!((off - self.offset).abs() < 600, "the job's clock is {off} s off");
        // What others are told about how long it has been held comes from the holder's own wall clock.
        let token = self.run(true, &["acquire", "site"]).token();
        let held = self.world.status(&["--store", &self.store], &self.site)["held_s"].as_f64();
        match self.offset > 0 {
            true => assert_eq!(held, None, "since an hour from now"),
            false => assert!(held.unwrap() > 3000.0, "{held:?}"),
        }
        self.release(token);
    }

    /// Held by one, asked for by the other: busy, with all of its time left.
    fn nobody_gets_in_twice(&self) {
        for moved in [false, true] {
            let token = self.run(moved, &["acquire", "site", "--ttl", "10m"]).token();
            let other = self.run(!moved, &["--json", "acquire", "site"]).is(11, "held by").json();
            let left = other["expires_in_s"].as_f64().unwrap();
            // A coarse clock adds its seconds.
            assert!((300.0..=604.0).contains(&left), "{other}");
            self.run(!moved, &["run", "site", "-E", "75", "true"]).is(75, "skipped");
            self.release(token);
        }
    }

    /// A short lease that nobody renews ends when it should: not before, and not never. The store's own clock
    /// counts: embedded stores use the boot-time clock, and a server uses the wall clock of this machine, which
    /// somebody may set while the test runs.
    fn expiry_comes_when_due(&self) {
        let clock = || if self.server { wall() } else { boot_time().0 };
        for moved in [false, true] {
            let (begun, token) = until("a short lease", || {
                let begun = clock();
                let taken = self.run(moved, &["acquire", "site", "--ttl", &self.seconds(1)]);
                // On a busy machine the answer may come too late for so short a lease.
                if taken.code == 0 {
                    Some((begun, taken.token()))
                } else {
                    assert_ne!(taken.code, 78);
                    None
                }
            });
            let next = self.run(!moved, &["acquire", "site", "--wait", "50s"]).token();
            let lasted = clock().saturating_sub(begun);
            assert!(lasted >= self.short, "taken over after {lasted:?}");
            assert_eq!(next, token + 1);
            self.release(next);
        }
    }

    /// A holder that renews keeps a short lease for much longer than its TTL.
    fn renewals_count(&self) {
        for moved in [false, true] {
            let args = ["run", "site", "--ttl", &self.seconds(4), "sh", "-c", JOB];
            let mut holder = Running::new(self.command(moved, &args));
            let token: u64 = holder.line().parse().unwrap();
            let end = boot_time().plus(self.short.max(Duration::from_secs(4)) + Duration::from_secs(3));
            until("longer than its TTL", || {
                let other = self.run(!moved, &["--json", "acquire", "site"]).is(11, "held by").json();
                assert_eq!(other["token"], token);
                pause(self.short / 5);
                (boot_time() >= end).then_some(())
            });
            let ended = holder.ended();
            assert_eq!(ended.code, 0, "{ended:#?}");
        }
    }

    fn all(&self) {
        self.is_seen();
        self.nobody_gets_in_twice();
        self.expiry_comes_when_due();
        self.renewals_count();
    }
}

#[test]
fn sqlite_with_a_clock_ahead() {
    Moved::new("sqlite", HOUR).all();
}

#[test]
fn sqlite_with_a_clock_behind() {
    Moved::new("sqlite", -HOUR).all();
}

#[test]
fn a_directory_with_a_clock_ahead() {
    Moved::new("dir", HOUR).all();
}

#[test]
fn a_directory_with_a_clock_behind() {
    Moved::new("dir", -HOUR).all();
}

/// Both directions at once: the servers wait, not the processor.
#[test]
fn every_store_behind_a_network() {
    std::thread::scope(|scope| {
        for offset in [HOUR, -HOUR] {
            scope.spawn(move || {
                everywhere(|place| {
                    let (world, store, site) = (place.world(), place.url(), fresh("moved"));
                    let (library, short) = (library(), place.short);
                    Moved { world, store, library, offset, site, short, server: true }.all();
                });
            });
        }
    });
}

/// What these tests would see if a client's clock decided: the same record, judged by the wall clock.
#[test]
fn a_clock_that_decided_would_be_caught() {
    let moved = Moved::new("sqlite", HOUR);
    let token = moved.run(false, &["acquire", "site", "--ttl", "10m"]).token();
    let now = moved.run(true, &["run", "other", "date", "+%s"]).quiet().out;
    let ends = wall().as_secs() + 600;
    assert!(now.trim().parse::<u64>().unwrap() > ends, "by that clock the lease is long over");
    moved.run(true, &["acquire", "site"]).is(11, &format!("token {token}"));
}
