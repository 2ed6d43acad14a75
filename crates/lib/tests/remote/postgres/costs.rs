//! What each call costs, counted on the wire and in the server.

use std::collections::BTreeMap;

use leasehold::stores::{Cas, Version};

use super::own::Server;
use super::wire::Wire;
use super::{Raw, cas, corner, get, new_write, opened, read, wait, written};

/// The server and a way to it that counts.
fn counted(server: &Server) -> (Wire, Box<dyn leasehold::stores::Store>) {
    let wire = Wire::to(server.port);
    let url = format!("postgres://lease@127.0.0.1:{}/postgres", wire.port);
    (wire, opened(&url))
}

#[test]
fn one_round_trip_each_and_no_names() {
    let server = Server::start(&[]);
    let (wire, mut store) = counted(&server);
    // The first read: the table is missing, is made, and the read goes on.
    assert_eq!(read(&mut store, "x"), Ok(None));
    assert_eq!(wire.round_trips(), 3);
    let (wire, mut store) = counted(&server);
    let store = &mut store;
    assert_eq!(read(store, "x"), Ok(None));
    assert_eq!(wire.round_trips(), 1, "a cold read");
    let first = written(cas(store, "x", None, b"1"));
    assert_eq!(wire.round_trips(), 1, "a create");
    let second = written(cas(store, "x", Some(&first), b"2"));
    assert_eq!(wire.round_trips(), 1, "an update");
    assert_eq!(cas(store, "x", Some(&first), b"3"), Cas::Conflict);
    assert_eq!(cas(store, "x", None, b"3"), Cas::Conflict);
    assert_eq!(wire.round_trips(), 2, "two conflicts");
    get(store, "x");
    assert_eq!(wire.round_trips(), 1, "a read");
    wait(store.list("", "", 10)).unwrap();
    assert_eq!(wire.round_trips(), 1, "a list");
    written(wait(store.remove("x", &second)));
    assert_eq!(wire.round_trips(), 1, "a removal");
}

#[test]
fn a_release_takes_its_record_along() {
    let server = Server::start(&["autovacuum=off"]);
    let (wire, mut store) = counted(&server);
    assert_eq!(read(&mut store, "x"), Ok(None));
    let mut all = 0;
    let calls = crate::logged::released(store.as_mut(), || {
        all += u64::try_from(wire.round_trips()).unwrap();
        all
    });
    assert_eq!(calls, 1, "one round trip for both");
}

#[test]
fn finding_it_held_writes_nothing() {
    let server = Server::start(&["autovacuum=off"]);
    let mut store = opened(&server.url());
    let version = written(cas(&mut store, "x", None, b"held"));
    let raw = Raw::connect(&server.url());
    raw.sql("CHECKPOINT");
    let wal = || raw.number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
    get(&mut store, "x");
    let before = wal();
    for _ in 0..50 {
        get(&mut store, "x");
        assert_eq!(cas(&mut store, "x", None, b"no"), Cas::Conflict);
        assert_eq!(cas(&mut store, "x", Some(&Version("stale".into())), b"no"), Cas::Conflict);
    }
    assert_eq!(wal() - before, 0, "bytes of WAL");
    // Control: a write is seen by this measure.
    let before = wal();
    written(cas(&mut store, "x", Some(&version), b"held on"));
    assert!(wal() > before);
}

/// What a write costs with somebody waiting for the key, and without.
#[test]
fn a_write_is_flushed_once_with_or_without_a_waiter() {
    let server = Server::start(&["autovacuum=off"]);
    let (mut holder, mut waiter) = (opened(&server.url()), opened(&server.url()));
    let mut version = written(cas(&mut holder, "x", None, b"0"));
    let raw = Raw::connect(&server.url());
    let mut syncs = BTreeMap::new();
    for waits in [false, true] {
        if waits {
            // Subscribed from here on: the version is another, so it returns at once.
            assert!(wait(waiter.wait_change("x", None, std::time::Duration::from_secs(5))));
        }
        let notes = raw.number("SELECT count(*) FROM pg_listening_channels()");
        assert_eq!(notes, 0);
        let before = flushed(&raw);
        for _ in 0..20 {
            version = written(cas(&mut holder, "x", Some(&version), b"renewed"));
        }
        drop(std::mem::replace(&mut holder, opened(&server.url())));
        syncs.insert(waits, flushed(&raw) - before);
    }
    let most = *syncs.values().max().unwrap();
    assert!(syncs[&false] >= 20, "writes were not flushed: {syncs:?}");
    assert!(most <= 20 + 6, "more than one flush for each write: {syncs:?}");
}

/// Flushes of WAL so far, once the statistics of ended sessions have arrived.
fn flushed(raw: &Raw) -> i64 {
    let mut last = -1;
    for _ in 0..200 {
        let now = raw.number("SELECT wal_sync FROM pg_stat_wal");
        if now == last {
            return now;
        }
        last = now;
        raw.pause(0.3);
    }
    panic!("flushes without end");
}

#[test]
fn ten_thousand_renewals_in_ten_statements() {
    let server = Server::start(&[]);
    let (wire, mut store) = counted(&server);
    read(&mut store, "x").unwrap();
    let raw = Raw::connect(&server.url());
    // Enough others for a plan that reads the whole table to look good, with and without statistics.
    raw.sql(
        "INSERT INTO leasehold.records SELECT 'other/' || i, 'v', '', now() FROM generate_series(1, 20000) i; \
         ANALYZE leasehold.records",
    );
    let corner = corner();
    let key = |i: usize| format!("{corner}{i}");
    let creates: Vec<_> = (0..10_000).map(|i| new_write(key(i), None, b"created")).collect();
    let scans = "SELECT seq_scan FROM pg_stat_all_tables WHERE relname = 'records'";
    wire.take();
    let first: Vec<Version> = wait(store.cas_many(&creates)).into_iter().map(written).collect();
    assert!(wire.round_trips() <= 10);
    drop(store);
    let scanned = settled(&raw, scans);
    let (wire, mut store) = counted(&server);
    let mut updates: Vec<_> =
        first.iter().enumerate().map(|(i, v)| new_write(key(i), Some(v.clone()), &[1; 500])).collect();
    // Some that must fail, and some that are new, among the others.
    for i in (0..10_000).step_by(10) {
        updates[i].expected = Some(Version("stale".into()));
        updates[i + 1].expected = None;
        updates[i + 2] = new_write(format!("{corner}new/{i}"), None, b"new");
        updates[i + 3] = new_write(format!("{corner}absent/{i}"), Some(Version("x".into())), b"absent");
    }
    wire.take();
    let answers = wait(store.cas_many(&updates));
    assert!(wire.round_trips() <= 10);
    drop(store);
    assert_eq!(settled(&raw, scans), scanned, "a statement read the whole table");
    for (i, (answer, update)) in answers.iter().zip(&updates).enumerate() {
        match (i % 10, answer) {
            (0 | 1 | 3, Cas::Conflict) => {}
            (2 | 4.., Cas::Written { version, store_time: Some(_) }) => {
                assert_eq!(version.0, update.write.to_string());
            }
            _ => panic!("{i}: {answer:?}"),
        }
    }
    let body = "SELECT count(*) FROM leasehold.records WHERE length(body) = 500";
    assert_eq!(raw.number(body), 6000);
    assert_eq!(raw.number("SELECT count(*) FROM leasehold.records"), 31_000);
}

/// A figure of the server's statistics once it stands still.
fn settled(raw: &Raw, sql: &str) -> i64 {
    let mut last = -1;
    for _ in 0..100 {
        let now = raw.number(sql);
        if now == last {
            return now;
        }
        last = now;
        raw.pause(1.1);
    }
    panic!("never stands still: {sql}");
}
