//! Waiters are told; they need not ask again and again.

use std::thread;
use std::time::Duration;

use leasehold::Leases;
use leasehold::clock::boot_time;
use leasehold::stores::{self, Cas, Version};
use pollster::block_on;

use super::server::{Monitor, Server};
use super::{corner, store, write_id};

const LONG: Duration = Duration::from_secs(30);

fn put(url: &str, key: &str, expected: Option<&Version>) -> Version {
    match block_on(store(url).cas(key, expected, write_id(), b"x")) {
        Cas::Written { version, .. } => version,
        got => panic!("{got:?}"),
    }
}

#[test]
fn a_change_ends_the_wait() {
    let url = corner();
    let first = put(&url, "leases/a", None);
    let mut waiter = store(&url);
    assert!(waiter.facts().pushes);
    // Changed before anybody listened: seen at once.
    let began = boot_time();
    assert!(block_on(waiter.wait_change("leases/a", None, LONG)));
    assert!(boot_time().since(began) < LONG / 2);
    // Unchanged: the wait lasts as long as it may, and is no change.
    assert!(!block_on(waiter.wait_change("leases/a", Some(&first), Duration::from_millis(200))));
    // Changed while nobody was waiting, after the subscription: heard of all the same.
    let second = put(&url, "leases/a", Some(&first));
    assert!(block_on(waiter.wait_change("leases/a", Some(&first), LONG)));
    // Changed in the middle of the wait; a neighbour's change does not end it.
    let writer = thread::spawn({
        let (url, second) = (url.clone(), second.clone());
        move || {
            put(&url, "leases/b", None);
            put(&url, "leases/a", Some(&second))
        }
    });
    let began = boot_time();
    assert!(block_on(waiter.wait_change("leases/a", Some(&second), LONG)));
    assert!(boot_time().since(began) < LONG / 2);
    let third = writer.join().unwrap();
    assert_eq!(block_on(waiter.read("leases/a")).unwrap().unwrap().version, third);
    assert!(!block_on(waiter.wait_change("leases/a", Some(&third), Duration::from_millis(200))));
    // A removal is a change too, and another key may be waited for.
    block_on(store(&url).remove("leases/a", &third));
    assert!(block_on(waiter.wait_change("leases/a", Some(&third), LONG)));
    assert!(block_on(waiter.wait_change("leases/b", None, LONG)));
}

/// A release is heard of long before the waiter would ask again, and the waiter asks little meanwhile.
#[test]
fn a_waiter_is_handed_the_lease() {
    let server = Server::start(&["--save", ""]);
    let url = server.url();
    let leases = Leases::on(move || stores::open(&url));
    let ask = |wait| leases.lease("site").ttl(Duration::from_secs(60)).wait(wait).acquire();
    let mut took = Vec::new();
    for _ in 0..5 {
        let held = block_on(ask(Duration::ZERO)).unwrap().lease().expect("free");
        let mut monitor = Monitor::of(&server);
        let waiting = thread::spawn({
            let ask = ask(LONG);
            move || (block_on(ask).unwrap().lease().expect("handed over"), boot_time())
        });
        // It listens once it has subscribed and looked again.
        let mut said = Vec::new();
        while !said.ends_with(&["SUBSCRIBE".to_owned(), "EVAL".to_owned()]) {
            said.extend(monitor.asked().into_iter().filter(|word| word != "ECHO"));
            assert!(said.len() < 20, "{said:?}");
        }
        let released = boot_time();
        block_on(held.release());
        let (next, got) = waiting.join().unwrap();
        took.push(got.since(released));
        block_on(next.release());
    }
    took.sort_unstable();
    println!("release to next grant: {took:?}");
    // Far below the second or more after which it would have asked again.
    assert!(took[took.len() / 2] < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_user_who_may_not_subscribe_polls() {
    let server = Server::start(&["--save", ""]);
    let _: () = server.admin(&["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "-subscribe"]);
    let url = format!("redis://mute:pw@127.0.0.1:{}", server.port);
    let mut store = store(&url);
    let version = put(&url, "k", None);
    assert!(!block_on(store.wait_change("k", Some(&version), LONG)));
    assert!(!store.facts().pushes, "from now on it is polled");
    // Channels are not allowed to it either, so nothing is published; the write is not the worse for it.
    let next = put(&url, "k", Some(&version));
    assert_eq!(block_on(store.read("k")).unwrap().unwrap().version, next);
}

#[test]
fn a_server_that_goes_away_ends_the_wait() {
    let mut server = Server::start(&["--save", ""]);
    let url = server.url();
    let version = put(&url, "k", None);
    let mut waiter = store(&url);
    // On a busy machine the waiter may need several waits before it listens.
    let end = boot_time().plus(LONG);
    while server.admin::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).trim().is_empty() {
        assert!(boot_time() < end, "the waiter never listened");
        assert!(!block_on(waiter.wait_change("k", Some(&version), Duration::from_millis(50))));
    }
    server.kill();
    let began = boot_time();
    assert!(block_on(waiter.wait_change("k", Some(&version), LONG)), "it may have changed");
    assert!(!block_on(waiter.wait_change("k", Some(&version), LONG)), "nobody to ask");
    assert!(boot_time().since(began) < LONG / 2);
    assert!(waiter.facts().pushes, "a server that is down has not refused anything");
    server.again();
    assert!(block_on(waiter.wait_change("k", Some(&version), LONG)), "it forgot the key");
}

/// Who has waited and then holds has one connection, as if it had not waited.
#[test]
fn a_holder_does_not_listen() {
    let server = Server::start(&["--save", ""]);
    let mut store = store(&server.url());
    let end = boot_time().plus(LONG);
    let listening = |many: usize| {
        let clients: String = server.admin(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        assert!(boot_time() < end, "{clients}");
        clients.lines().filter(|line| !line.is_empty()).count() == many
    };
    assert!(!block_on(store.wait_change("k", None, Duration::from_millis(100))));
    assert!(listening(1), "control: a waiter listens");
    assert!(matches!(block_on(store.cas("k", None, write_id(), b"x")), Cas::Written { .. }));
    // The connection closes in the background of the next calls.
    while !listening(0) {
        block_on(store.read("k")).unwrap();
    }
}
