//! Server processes killed with -9 between the steps.

use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::fence::FenceMode;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::sql::carrier;
use leasehold::targets::{Target, TargetError};
use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{Raw, bearer, target_at};
use crate::own::Server;

const WRITE: &str = "UPDATE t SET what = 'stale' WHERE id = 1";

/// Ends one process of our own server as a crash would; it starts all the others again by itself.
fn crash(pid: &str) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Again until it works: the server starts all its processes anew, and may not have begun to.
fn eventually<T>(what: &str, mut work: impl FnMut() -> Option<T>) -> T {
    let end = boot_time().plus(Duration::from_secs(60));
    while boot_time() < end {
        if let Some(answer) = work() {
            return answer;
        }
        std::thread::yield_now();
    }
    panic!("in vain: {what}");
}

fn back(url: &str) -> Raw {
    eventually("the server comes back", || Raw::try_connect(url))
}

#[test]
fn a_killed_server_process_lets_nothing_through() {
    let server = Server::start(&[]);
    let url = format!("{}?sslmode=disable", server.url());
    Raw::connect(&url).sql("CREATE TABLE t (id int PRIMARY KEY, what text); INSERT INTO t VALUES (1, 'old')");
    let mut target = target_at(&url, "public.t").with_patience(Duration::from_secs(5));
    target.install(Others::Refuse, true).unwrap();
    target.seal(&bearer(33), FenceMode::Enforce).unwrap();
    // The zombie's process, after the check and before the commit.
    let zombie = Raw::connect(&url);
    zombie.sql(&format!("SET application_name = '{}'; BEGIN; {WRITE}", carrier(&bearer(33))));
    crash(&zombie.one("SELECT pg_backend_pid()"));
    assert!(zombie.attempt("COMMIT").is_err());
    drop(back(&url));
    eventually("sealed", || target.seal(&bearer(34), FenceMode::Enforce).ok());
    let zombie = back(&url);
    zombie.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
    assert_eq!(zombie.attempt(WRITE).unwrap_err().0, "LH001");
    // The sealer's process, while it waits under the lock: the seal is tried again, and stands.
    let holder = back(&url);
    holder.sql(&format!("SET application_name = '{}'; BEGIN; {WRITE}", carrier(&bearer(34))));
    let mut later = target_at(&url, "public.t").with_patience(Duration::from_secs(5));
    let sealing = std::thread::spawn(move || later.seal(&bearer(35), FenceMode::Enforce));
    let waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let watch = Raw::connect(&url);
    watch.until(&format!("SELECT count(*) FROM ({waiting}) w"), "1");
    crash(&watch.one(waiting));
    match sealing.join().unwrap() {
        Ok(_) => {}
        // The server was still recovering: nothing is known of the seal, and doing it again is safe.
        Err(TargetError::Remote { .. } | TargetError::Lost { .. } | TargetError::InDoubt { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    eventually("sealed again", || target.seal(&bearer(35), FenceMode::Enforce).ok());
    let after = back(&url);
    assert_eq!(after.one("SELECT what FROM t"), "old", "the open transaction died with the server");
    assert_eq!(target.show().unwrap().unwrap().fence.token, bearer(35).token);
}
