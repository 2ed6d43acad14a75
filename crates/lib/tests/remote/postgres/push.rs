//! Waiters are told at once where that works, and told to poll where it does not.

use std::thread;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::stores::{RemarkLevel, Store};
use leasehold_testkit::proxy::{Fault, Proxy};

use super::own::Server;
use super::{Raw, cas, corner, count, get, in_corner, server, to_examine, wait, written};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_waiter_is_told_at_once() {
    let (url, corner) = (server("POSTGRES"), corner());
    let mut holder = in_corner(&url, &corner);
    let mut version = written(cas(&mut holder, "x", None, b"0"));
    let mut waiter = in_corner(&url, &corner);
    assert_eq!(get(&mut waiter, "x").version, version);
    assert!(waiter.facts().pushes);
    let mut took = Vec::new();
    let raw = Raw::connect(&url);
    for i in 0..u32::try_from(count(20, 200)).unwrap() {
        let seen = version.clone();
        let (told, now) = thread::scope(|scope| {
            let waiting = scope.spawn(|| (wait(waiter.wait_change("x", Some(&seen), LONG)), boot_time()));
            // Before, while or after the waiter subscribes: it must be told in each case.
            raw.pause(f64::from(i % 7) / 1000.0);
            version = written(cas(&mut holder, "x", Some(&version), b"next"));
            let now = boot_time();
            let (told, at) = waiting.join().unwrap();
            (told, at.since(now))
        });
        assert!(told);
        took.push(now);
        assert_eq!(get(&mut waiter, "x").version, version);
    }
    took.sort_unstable();
    assert!(took[took.len() - 1] < LONG / 2, "{took:?}");
    println!("told after: median {:?}, most {:?}", took[took.len() / 2], took[took.len() - 1]);
}

/// A write of many tells those who wait for one of them.
#[test]
fn a_write_of_many_tells_too() {
    let (url, corner) = (server("POSTGRES"), corner());
    let (mut holder, mut waiter) = (in_corner(&url, &corner), in_corner(&url, &corner));
    let seen = written(cas(&mut holder, "x", None, b"0"));
    let told = thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(waiter.wait_change("x", Some(&seen), LONG)));
        Raw::connect(&url).pause(0.2);
        let began = boot_time();
        let writes = [super::new_write("x".into(), Some(seen.clone()), b"1")];
        written(wait(holder.cas_many(&writes)).remove(0));
        waiting.join().unwrap() && boot_time().since(began) < LONG / 2
    });
    assert!(told);
}

/// The writer may be behind a pooler where the waiter is not.
#[test]
fn a_writer_behind_a_pooler_tells_too() {
    let corner = corner();
    let mut holder = in_corner(&server("PGBOUNCER"), &corner);
    let mut waiter = in_corner(&server("POSTGRES"), &corner);
    let seen = written(cas(&mut holder, "x", None, b"0"));
    let told = thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(waiter.wait_change("x", Some(&seen), LONG)));
        Raw::connect(&server("POSTGRES")).pause(0.2);
        let began = boot_time();
        written(cas(&mut holder, "x", Some(&seen), b"1"));
        waiting.join().unwrap() && boot_time().since(began) < LONG / 2
    });
    assert!(told);
}

/// Nothing happens: the wait ends when it should, and the connection is as good as before.
#[test]
fn a_wait_in_vain_costs_nothing() {
    let (url, corner) = (server("POSTGRES"), corner());
    let mut store = in_corner(&url, &corner);
    let version = written(cas(&mut store, "x", None, b"0"));
    written(cas(&mut store, "y", None, b"0"));
    let began = boot_time();
    let some = Duration::from_millis(300);
    assert!(!wait(store.wait_change("x", Some(&version), some)));
    let took = boot_time().since(began);
    assert!(took >= some - Duration::from_millis(50) && took < LONG / 2, "{took:?}");
    // Another version than the one named, or none: at once.
    assert!(wait(store.wait_change("x", None, LONG)));
    assert!(wait(store.wait_change("absent", Some(&version), LONG)));
    assert!(boot_time().since(began) < LONG / 2);
    assert_eq!(get(&mut store, "x").version, version);
    assert!(store.facts().pushes);
}

#[test]
fn behind_a_pooler_waiters_poll() {
    let (url, corner) = (server("PGBOUNCER"), corner());
    let mut store = in_corner(&url, &corner);
    let version = written(cas(&mut store, "x", None, b"0"));
    assert!(!store.facts().pushes, "a pooler was taken for the server");
    // A handle that never read finds out by itself, although the pooler passes on what comes at once.
    let mut fresh = in_corner(&url, &corner);
    assert!(
        fresh.facts().pushes && wait(fresh.wait_change("x", Some(&version), LONG)) && !fresh.facts().pushes
    );
    // Asked all the same, it says "look for yourself" at once, and leaves no subscription behind.
    let began = boot_time();
    assert!(wait(store.wait_change("x", Some(&version), LONG)));
    assert!(boot_time().since(began) < LONG / 2);
    let remarks = wait(to_examine(&url).examine()).unwrap();
    assert!(remarks.iter().any(|r| r.about == "pooler" && r.verdict == RemarkLevel::Weak), "{remarks:?}");
}

/// A proxy that breaks off at LISTEN is given three chances, then waiters poll: without a pause they would
/// connect and be broken off for ever.
#[test]
fn behind_a_proxy_that_breaks_off_waiters_poll() {
    // Without TLS: the proxy must see what it strikes.
    let (url, corner) = (format!("{}?sslmode=disable", server("POSTGRES")), corner());
    let proxy = Proxy::tcp(&url);
    let mut store = in_corner(&proxy.url(&url), &corner);
    let version = written(cas(&mut store, "x", None, b"0"));
    let wait_once = |store: &mut Box<dyn Store>| {
        let (strike, before) = (proxy.arm_on(b"LISTEN ", Fault::Cut), proxy.connections());
        let began = boot_time();
        assert!(wait(store.wait_change("x", Some(&version), LONG)), "whoever is not told looks");
        assert!(boot_time().since(began) < LONG / 2);
        let struck = !proxy.disarm(&strike);
        (struck, store.facts().pushes, proxy.connections() - before)
    };
    // One that broke proves nothing, once or twice.
    assert_eq!(wait_once(&mut store), (true, true, 0));
    assert_eq!(wait_once(&mut store), (true, true, 1));
    assert_eq!(wait_once(&mut store), (true, false, 1));
    for _ in 0..5 {
        assert_eq!(wait_once(&mut store), (false, false, 0), "it still listens");
    }
    assert_eq!(get(&mut store, "x").version, version);
    // Control: without the breaks, the same way through the proxy, a waiter is told.
    let mut fresh = in_corner(&proxy.url(&url), &corner);
    assert!(!wait(fresh.wait_change("x", Some(&version), LONG / 40)) && fresh.facts().pushes);
}

/// A server that forgets at a power failure is called unsafe; one that only delays is made safe.
#[test]
fn the_doctor_is_told_what_is_unsafe() {
    for (setting, verdict) in
        [("fsync=off", RemarkLevel::Unsafe), ("synchronous_commit=off", RemarkLevel::Good)]
    {
        let server = Server::start(&[setting]);
        let remarks = wait(to_examine(&server.url()).examine()).unwrap();
        let said: Vec<_> = remarks.iter().filter(|r| r.about == "durability").map(|r| r.verdict).collect();
        assert_eq!(said, [verdict], "{setting}: {remarks:?}");
        let name = setting.split('=').next().unwrap();
        assert!(remarks.iter().any(|r| r.text.contains(name)), "{setting}: {remarks:?}");
    }
}

#[test]
fn the_doctor_is_told_what_matters() {
    let mut store = to_examine(&server("POSTGRES"));
    assert_eq!(wait(store.read(&corner())), Ok(None));
    let remarks = wait(store.examine()).unwrap();
    let about: Vec<&str> = remarks.iter().map(|r| r.about).collect();
    assert_eq!(about, ["server", "durability", "failover", "pooler"], "{remarks:?}");
    for remark in &remarks {
        assert!(remark.text.ends_with('.'), "{remark:?}");
    }
}
