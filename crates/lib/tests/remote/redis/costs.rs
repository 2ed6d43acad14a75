//! How often the server is asked, counted by the server.

use std::time::Duration;

use leasehold::core::run_log::LogId;
use leasehold::run_log::SWEEP_EVERY;
use leasehold::stores::{BatchWrite, Cas};
use leasehold::{Acquired, Leases, stores};
use leasehold_testkit::proxy::Proxy;
use pollster::block_on;

use super::server::{Monitor, Server};
use super::{store, write_id};

const TTL: Duration = Duration::from_secs(60);

fn leases(server: &Server) -> Leases {
    let url = server.url();
    Leases::on(move || stores::open(&url))
}

fn dirty(server: &Server) -> (String, Option<u64>) {
    let info: String = server.admin(&["INFO", "persistence"]);
    let changes = info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap();
    let log = std::fs::read_dir(server.file("appendonlydir")).ok();
    let size = log.map(|files| files.map(|file| file.unwrap().metadata().unwrap().len()).sum());
    (changes.to_owned(), size)
}

#[test]
fn every_verb_is_one_command() {
    let server = Server::start(&["--appendonly", "yes"]);
    let mut monitor = Monitor::of(&server);
    let mut store = store(&server.url());
    let mut asked = |what: &str| {
        let asked = monitor.asked();
        println!("{what}: {asked:?}");
        asked
    };
    assert_eq!(asked("opening"), [""; 0], "nothing is reached before the first call");
    block_on(store.read("leases/a")).unwrap();
    assert_eq!(asked("the first read"), ["INFO", "INFO", "EVAL"]);
    let first = write_id();
    assert!(matches!(block_on(store.cas("leases/a", None, first, b"1")), Cas::Written { .. }));
    assert_eq!(asked("a write"), ["EVAL"]);
    assert_eq!(block_on(store.cas("leases/a", None, write_id(), b"2")), Cas::Conflict);
    assert_eq!(asked("a refused write"), ["EVAL"]);
    block_on(store.read("leases/a")).unwrap();
    assert_eq!(asked("a read"), ["EVAL"]);
    assert_eq!(block_on(store.list("", "", 100)).unwrap().len(), 1);
    assert_eq!(asked("a list"), ["EVAL"]);
}

#[test]
fn a_lease_costs_what_it_must() {
    let server = Server::start(&["--appendonly", "yes"]);
    let leases = leases(&server);
    let mut monitor = Monitor::of(&server);
    // Each session has a connection of its own, so each says INFO twice, together with its first read.
    let cold = ["INFO", "INFO", "EVAL"];
    let take = || block_on(leases.lease("site").ttl(TTL).acquire()).unwrap().lease().expect("free");
    let mut held = take();
    assert_eq!(monitor.asked(), [&cold[..], &["EVAL"]].concat(), "acquire: a read and a write");
    // One release in so many looks for old records of the run log.
    while LogId::of(held.granted().grant.0).number().is_multiple_of(SWEEP_EVERY) {
        block_on(held.release());
        held = take();
    }

    let before = dirty(&server);
    assert!(before.1.is_some_and(|size| size > 0), "control: the grant is in the log, {before:?}");
    monitor.asked();
    let busy = block_on(leases.lease("site").ttl(TTL).acquire()).unwrap();
    assert!(matches!(busy, Acquired::Busy(_)));
    let commands = monitor.commands();
    assert_eq!(dirty(&server), before, "finding it held writes nothing");
    monitor.asked();
    let asked: Vec<&str> = commands.iter().filter(|(_, script)| !script).map(|(w, _)| w.as_str()).collect();
    assert_eq!(asked, cold, "held: one read");
    let inside: Vec<&str> = commands.iter().filter(|(_, script)| *script).map(|(w, _)| w.as_str()).collect();
    assert_eq!(inside, ["HMGET", "TIME"]);

    block_on(held.release());
    assert_eq!(monitor.asked(), ["EVAL"], "release: one write, with its record in the run log");
    assert_ne!(dirty(&server), before, "control: a release is seen");
}

#[test]
fn a_release_takes_its_record_along() {
    let server = Server::start(&["--save", ""]);
    let mut monitor = Monitor::of(&server);
    let mut store = store(&server.url());
    block_on(store.read("leases/a")).unwrap();
    let mut all = 0;
    let calls = crate::logged::released(store.as_mut(), || {
        all += u64::try_from(monitor.asked().len()).unwrap();
        all
    });
    assert_eq!(calls, 1, "one command for both");
}

#[test]
fn a_renewal_is_one_command() {
    let server = Server::start(&["--save", ""]);
    let mut monitor = Monitor::of(&server);
    let mut version = None;
    let mut store = store(&server.url());
    for _ in 0..20 {
        match block_on(store.cas("leases/a", version.as_ref(), write_id(), b"held")) {
            Cas::Written { version: written, .. } => version = Some(written),
            got => panic!("{got:?}"),
        }
    }
    let asked = monitor.asked();
    assert_eq!(asked[..2], ["INFO", "INFO"]);
    assert_eq!(asked[2..], ["EVAL"; 20]);
}

#[test]
fn ten_thousand_renewals_are_ten_commands() {
    let server = Server::start(&["--save", ""]);
    let mut store = store(&server.url());
    // The server also tells the monitor every byte, and the machine may be busy.
    store.limit_calls(Duration::from_secs(120));
    let body = vec![b'x'; 500];
    let mut writes: Vec<BatchWrite> = (0..10_000)
        .map(|n| BatchWrite {
            key: format!("leases/{n}"),
            expected: None,
            write: write_id(),
            body: body.clone(),
        })
        .collect();
    let mut monitor = Monitor::of(&server);
    for round in 0..2 {
        let got = block_on(store.cas_many(&writes));
        assert_eq!(got.len(), writes.len());
        for (write, got) in writes.iter_mut().zip(got) {
            let Cas::Written { version, .. } = got else { panic!("{got:?}") };
            (write.expected, write.write) = (Some(version), write_id());
        }
        let asked = monitor.asked();
        let evals = asked.iter().filter(|word| *word == "EVAL").count();
        assert_eq!(evals, 10, "{asked:?}");
        assert_eq!(asked.len(), if round == 0 { 12 } else { 10 });
    }
    // Control: one renewal that lost its lease does not hide among the others.
    writes[7777].expected = Some(stores::Version("stale".into()));
    let got = block_on(store.cas_many(&writes));
    let refused: Vec<usize> = (0..got.len()).filter(|n| got[*n] == Cas::Conflict).collect();
    assert_eq!(refused, [7777]);
}

/// A cold run: one connection, and nothing is asked before the first read.
#[test]
fn a_cold_run_has_no_round_trip_to_spare() {
    let server = Server::start(&["--save", ""]);
    let proxy = Proxy::tcp(&server.url());
    // One run in sixteen sweeps the run log, too: the least of five is a run that does not.
    let round = |url: String| {
        let one = || {
            let url = url.clone();
            let leases = Leases::on(move || stores::open(&url));
            let before = (proxy.requests(), proxy.connections());
            let held = block_on(leases.lease("site").ttl(TTL).acquire()).unwrap().lease().expect("free");
            block_on(held.release());
            (proxy.requests() - before.0, proxy.connections() - before.1)
        };
        (0..5).map(|_| one()).min().unwrap()
    };
    assert_eq!(round(proxy.url(&server.url())), (3, 1), "read, write, release");
    // A password is sent and confirmed before anything else: one more.
    let _: () = server.admin(&["ACL", "SETUSER", "ops", "on", ">pw", "~*", "&*", "+@all"]);
    assert_eq!(round(format!("redis://ops:pw@{}", proxy.address())), (4, 1));
}
