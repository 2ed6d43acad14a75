//! Redis: the suite every store must pass, one winner each race, and what is particular to it.

mod costs;
mod examined;
mod faults;
mod pushed;
pub mod restarts;
pub(crate) mod server;
mod trouble;

use std::thread;
use std::time::Duration;

use leasehold::backends::{Holders, open_to_examine};
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::conformance::{Harness, suite};
use leasehold::stores::{BatchWrite, Cas, Examine, Store, open};
use leasehold_testkit::race::{Meeting, Raced};
use pollster::block_on;

/// The address of the server that `scripts/servers` started.
fn shared() -> String {
    leasehold_testkit::server("REDIS")
}

/// A corner of that server that nobody else uses.
fn corner() -> String {
    format!("{}/?prefix=t{:032x}", shared(), random::seed())
}

fn store(url: &str) -> Box<dyn Store> {
    let mut store = open(url).unwrap_or_else(|e| panic!("{e}"));
    store.limit_calls(Duration::from_secs(20));
    store
}

fn to_examine(url: &str) -> Box<dyn Examine> {
    let mut store = open_to_examine(url, Holders::Here).unwrap_or_else(|e| panic!("{e}"));
    store.limit_calls(Duration::from_secs(20));
    store
}

fn write_id() -> WriteId {
    WriteId(random::seed())
}

/// A command for the server itself, by the client library alone.
fn admin<T: ::redis::FromRedisValue>(url: &str, words: &[&str]) -> T {
    let mut connection = ::redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut command = ::redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query(&mut connection).unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

#[test]
fn the_whole_suite() {
    suite(&|| {
        let url = corner();
        Harness::new(move || store(&url))
    });
}

const WRITERS: usize = 32;

/// How many of the writers won each round. Each tells, round after round, whether it won.
fn winners(rounds: usize, writer: impl Fn() -> Box<dyn FnMut(&Meeting) -> bool> + Sync) -> Vec<usize> {
    let barrier = Meeting::new(WRITERS);
    let run = || {
        let mut attempt = writer();
        (0..rounds).map(|_| attempt(&barrier)).collect::<Vec<bool>>()
    };
    let all: Vec<Vec<bool>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    (0..rounds).map(|round| all.iter().filter(|won| won[round]).count()).collect()
}

#[test]
fn one_winner_each_race() {
    let url = corner();
    let rounds = leasehold_testkit::count(200, 5000);
    let raced = Raced::begin("redis", WRITERS, rounds);
    let won = winners(rounds, || {
        let mut store = store(&url);
        Box::new(move |barrier| {
            let found = block_on(store.read("leases/raced")).unwrap().map(|stored| stored.version);
            barrier.wait();
            let write = write_id();
            let got =
                block_on(store.cas("leases/raced", found.as_ref(), write, write.to_string().as_bytes()));
            barrier.wait();
            assert!(!matches!(got, Cas::Unknown(_)), "{got:?}");
            matches!(got, Cas::Written { .. })
        })
    });
    let wrong: Vec<_> = won.iter().enumerate().filter(|(_, winners)| **winners != 1).collect();
    assert!(wrong.is_empty(), "rounds with another number of winners than one: {wrong:?}");
    println!("{raced}");
}

/// Control: writers that check first and write after are seen to win together.
#[test]
fn a_check_before_the_write_is_seen_to_fail() {
    let (url, key) = (shared(), format!("control:{:x}", random::seed()));
    let won = winners(50, || {
        let mut connection = ::redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let key = key.clone();
        Box::new(move |barrier| {
            let before: Option<String> = ::redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
            barrier.wait();
            let now: Option<String> = ::redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
            let won = now == before;
            if won {
                let mine = write_id().to_string();
                let _: () = ::redis::cmd("SET").arg(&key).arg(mine).query(&mut connection).unwrap();
            }
            barrier.wait();
            won
        })
    });
    assert!(won.iter().any(|winners| *winners > 1), "the race is too slow to show anything: {won:?}");
}

#[test]
fn many_writes_are_each_by_itself() {
    let url = corner();
    let mut store = store(&url);
    let write = |key: &str| BatchWrite {
        key: key.into(),
        expected: None,
        write: write_id(),
        body: key.as_bytes().to_vec(),
    };
    let first = [write("a"), write("b"), write("c")];
    let got = block_on(store.cas_many(&first));
    assert!(got.iter().all(|got| matches!(got, Cas::Written { .. })), "{got:?}");
    // One on the right version, one on nothing, one on another's version, one new.
    let version = |got: &Cas| match got {
        Cas::Written { version, .. } => Some(version.clone()),
        _ => None,
    };
    let second = [
        BatchWrite { expected: version(&got[0]), ..write("a") },
        write("b"),
        BatchWrite { expected: version(&got[0]), ..write("c") },
        write("d"),
    ];
    let got = block_on(store.cas_many(&second));
    let written: Vec<bool> = got.iter().map(|got| matches!(got, Cas::Written { .. })).collect();
    assert_eq!(written, [true, false, false, true], "{got:?}");
    assert_eq!(got[1..3], [Cas::Conflict, Cas::Conflict]);
    assert_eq!(block_on(store.cas_many(&[])), []);
    let listed = block_on(store.list("", "", 10)).unwrap();
    let keys: Vec<&str> = listed.iter().map(|l| l.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c", "d"]);
}

/// More than one page, and names whose records are gone.
#[test]
fn a_long_list_is_whole_and_shows_nothing_that_is_gone() {
    let url = corner();
    let mut store = store(&url);
    let writes: Vec<BatchWrite> = (0..1203)
        .map(|n| BatchWrite {
            key: format!("runs/{n:05}"),
            expected: None,
            write: write_id(),
            body: b"x".to_vec(),
        })
        .collect();
    let got = block_on(store.cas_many(&writes));
    assert!(got.iter().all(|got| matches!(got, Cas::Written { .. })));
    let prefix = url.split_once("prefix=").unwrap().1;
    for gone in ["00000", "00499", "00500", "01202"] {
        let _: () = admin(&shared(), &["DEL", &format!("leasehold:{{{prefix}}}/runs/{gone}")]);
    }
    let listed = block_on(store.list("runs/", "", usize::MAX)).unwrap();
    assert_eq!(listed.len(), 1199);
    assert!(listed.is_sorted_by(|a, b| a.key < b.key));
    assert!(listed.iter().all(|l| l.stored.is_some()));
    let some = block_on(store.list("runs/", "runs/00498", 2)).unwrap();
    let some: Vec<&str> = some.iter().map(|l| l.key.as_str()).collect();
    assert_eq!(some, ["runs/00501", "runs/00502"]);
    // Gone is absent, as if it had never been.
    assert_eq!(block_on(store.read("runs/00000")).unwrap(), None);
}

#[test]
fn databases_and_prefixes_are_stores_of_their_own() {
    let seed = format!("t{:x}", random::seed());
    let base = shared();
    let urls = [
        format!("{base}/0?prefix={seed}"),
        format!("{base}/1?prefix={seed}"),
        format!("{base}/0?prefix={seed}/b"),
    ];
    for url in &urls {
        let mut store = store(url);
        assert_eq!(block_on(store.read("k")).unwrap(), None, "{url}");
        let got = block_on(store.cas("k", None, write_id(), url.as_bytes()));
        assert!(matches!(got, Cas::Written { .. }), "{got:?}");
    }
    for url in &urls {
        assert_eq!(block_on(store(url).read("k")).unwrap().unwrap().body, url.as_bytes());
    }
}
