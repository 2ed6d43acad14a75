//! Firestore: always against the double of `firestore_double.rs`, and against Google's own emulator
//! where `LEASEHOLD_TEST_FIRESTORE` says that one runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::backends::{Holders, open_to_examine};
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::conformance::{CHECKS, Harness, suite};
use leasehold::stores::{BatchWrite, Cas, Clock, FailureKind, RemarkLevel, Store, Stored, Version, open};
use leasehold_testkit::race::{Meeting, Raced};
use pollster::block_on;
use serde_json::{Value, json};

use crate::firestore_double::{Double, Flaw};

pub(crate) const KEY: &str = "leases/site";

/// The emulator's address, if there is one.
fn emulator() -> Option<String> {
    let found = std::env::var("LEASEHOLD_TEST_FIRESTORE").ok().filter(|host| !host.is_empty());
    match &found {
        Some(host) => println!("run against Google's Firestore emulator at {host}"),
        None => println!("no Firestore emulator here: only the double of the API was used"),
    }
    found.map(|host| format!("http://{host}"))
}

/// Does the same with the double and with the emulator, where it runs.
pub(crate) fn on_each(test: impl Fn(&str)) {
    let double = Double::new(Flaw::None);
    test(&double.endpoint());
    if let Some(endpoint) = emulator() {
        test(&endpoint);
    }
}

/// Does what takes long with the emulator, or with the double where there is none.
pub(crate) fn on_the_best(test: impl Fn(&str)) {
    match emulator() {
        Some(endpoint) => test(&endpoint),
        None => {
            let double = Double::new(Flaw::None);
            test(&double.endpoint());
        }
    }
}

/// A collection that nobody else uses.
pub(crate) fn fresh_url(endpoint: &str) -> String {
    format!("firestore://demo-leasehold/t{:032x}?endpoint={endpoint}", random::seed())
}

pub(crate) fn store(url: &str) -> Box<dyn Store> {
    open(url).unwrap_or_else(|e| panic!("{url}: {e}"))
}

pub(crate) fn fresh() -> WriteId {
    WriteId(random::seed())
}

pub(crate) fn cas(store: &mut Box<dyn Store>, key: &str, expected: Option<&Version>, body: &[u8]) -> Cas {
    block_on(store.cas(key, expected, fresh(), body))
}

pub(crate) fn write(
    store: &mut Box<dyn Store>,
    key: &str,
    expected: Option<&Version>,
    body: &[u8],
) -> Version {
    match cas(store, key, expected, body) {
        Cas::Written { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn read(store: &mut Box<dyn Store>, key: &str) -> Option<Stored> {
    block_on(store.read(key)).unwrap_or_else(|e| panic!("{e:?}"))
}

fn harness(endpoint: &str) -> Harness {
    let url = fresh_url(endpoint);
    Harness::new(move || store(&url))
}

#[test]
fn the_double_passes_the_suite() {
    let double = Double::new(Flaw::None);
    suite(&|| harness(&double.endpoint()));
}

#[test]
fn the_emulator_passes_the_suite() {
    let Some(endpoint) = emulator() else { return };
    suite(&|| harness(&endpoint));
}

/// The suite is worth something only if it finds a server that lies.
#[test]
fn lying_doubles_are_found_out() {
    for (flaw, by) in [
        (Flaw::NoConditions, "stale_holder"),
        (Flaw::NoWriteField, "equal_bodies_differ_in_version"),
        (Flaw::CheckThenWrite, "racing_updates"),
    ] {
        let double = Double::new(flaw);
        let (_, check) = CHECKS.iter().find(|(name, _)| *name == by).unwrap();
        let found = check(&harness(&double.endpoint()));
        assert!(found.is_err(), "{flaw:?} was not caught by {by}");
    }
}

/// Of 32 writers off one version one is told that it won, in every round, and it is the one stored.
#[test]
fn one_writer_wins_each_round() {
    const WRITERS: usize = 32;
    let rounds = leasehold_testkit::count(200, 5_000);
    on_the_best(|endpoint| {
        let url = fresh_url(endpoint);
        let raced = Raced::begin("firestore", WRITERS, rounds);
        let mut reader = store(&url);
        let first = write(&mut reader, KEY, None, b"0");
        let (barrier, current) = (Meeting::new(WRITERS + 1), Mutex::new(first));
        let (winners, unsure) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let (mut undecided, mut faults) = (0, Vec::new());
        thread::scope(|scope| {
            for number in 0..WRITERS {
                let mut store = store(&url);
                let (barrier, current, winners, unsure) = (&barrier, &current, &winners, &unsure);
                scope.spawn(move || {
                    for round in 0..rounds {
                        barrier.wait();
                        let expected = current.lock().unwrap().clone();
                        let body = format!("{round} {number}");
                        match cas(&mut store, KEY, Some(&expected), body.as_bytes()) {
                            Cas::Written { .. } => winners.lock().unwrap().push(body),
                            Cas::Unknown(_) => drop(unsure.fetch_add(1, Ordering::SeqCst)),
                            Cas::Conflict => {}
                        }
                        barrier.wait();
                    }
                });
            }
            for round in 0..rounds {
                barrier.wait();
                barrier.wait();
                // The writers wait at the barrier until this round is judged; so no panic before the end.
                let won = std::mem::take(&mut *winners.lock().unwrap());
                let unsure = unsure.swap(0, Ordering::SeqCst);
                let now = block_on(reader.read(KEY));
                let Ok(Some(now)) = now else {
                    faults.push(format!("round {round}: {now:?}"));
                    continue;
                };
                match won.as_slice() {
                    [winner] if winner.as_bytes() == now.body => {}
                    // Nobody was told; then somebody must have been told nothing.
                    [] if unsure > 0 => undecided += 1,
                    won => faults.push(format!("round {round}: {won:?} won, {unsure} unsure, {now:?}")),
                }
                *current.lock().unwrap() = now.version;
            }
        });
        assert!(faults.is_empty(), "{faults:#?}");
        println!("{raced}; {undecided} rounds with no answer");
    });
}

/// One call of the API as it is, without the store.
fn raw(endpoint: &str, verb: &str, body: &Value) -> (u16, Value) {
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("{endpoint}/v1/projects/demo-leasehold/databases/(default)/documents:{verb}");
        let request = reqwest::Client::new().post(url).body(body.to_string());
        let request =
            request.header("content-type", "application/json").header("authorization", "Bearer owner");
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
    })
}

/// Why every write carries a fresh field: without it two writers off one version both win.
#[test]
fn a_write_that_changes_nothing_has_two_winners() {
    on_each(|endpoint| {
        let name =
            format!("projects/demo-leasehold/databases/(default)/documents/t{:032x}/x", random::seed());
        let commit = |condition: Value, fields: Value| {
            let write = json!({ "update": { "name": name, "fields": fields }, "currentDocument": condition });
            raw(endpoint, "commit", &json!({ "writes": [write] }))
        };
        let free = json!({ "body": { "stringValue": "free" } });
        let (_, created) = commit(json!({ "exists": false }), free.clone());
        let same = json!({ "updateTime": created["writeResults"][0]["updateTime"] });
        let winners = (0..2).filter(|_| commit(same.clone(), free.clone()).0 == 200).count();
        assert_eq!(winners, 2, "a write without the field is refused, so this shows nothing");
        let with =
            |write: &str| json!({ "body": { "stringValue": "free" }, "write": { "stringValue": write } });
        let winners =
            ["a", "b"].into_iter().filter(|write| commit(same.clone(), with(write)).0 == 200).count();
        assert_eq!(winners, 1);
    });
}

#[test]
fn many_writes_are_one_call_and_answered_each() {
    on_each(|endpoint| {
        let mut store = store(&fresh_url(endpoint));
        let there = write(&mut store, "k/1", None, b"1");
        let gone = Version("2020-01-01T00:00:00.000001Z".into());
        let w = |key: &str, expected: Option<&Version>| BatchWrite {
            key: key.into(),
            expected: expected.cloned(),
            write: fresh(),
            body: b"2".to_vec(),
        };
        let writes = [
            w("k/0", None),
            w("k/1", Some(&there)),
            w("k/1x", Some(&there)),
            w("k/2", Some(&gone)),
            w("k/3", None),
        ];
        let got = block_on(store.cas_many(&writes));
        let won: Vec<bool> = got.iter().map(|cas| matches!(cas, Cas::Written { .. })).collect();
        assert_eq!(won, [true, true, false, false, true], "{got:?}");
        assert_eq!((&got[2], &got[3]), (&Cas::Conflict, &Cas::Conflict));
        for (key, cas) in [("k/0", &got[0]), ("k/1", &got[1]), ("k/3", &got[4])] {
            let Cas::Written { version, store_time } = cas else { unreachable!() };
            assert_eq!(read(&mut store, key).unwrap().version, *version);
            assert!(store_time.is_some_and(|time| time > Duration::from_secs(1_700_000_000)));
        }
        let again = block_on(store.cas_many(&writes));
        assert!(again.iter().all(|cas| *cas == Cas::Conflict), "{again:?}");
        // More than one batch holds.
        let many: Vec<BatchWrite> = (0..450).map(|n| w(&format!("many/{n:03}"), None)).collect();
        let got = block_on(store.cas_many(&many));
        assert!(got.len() == 450 && got.iter().all(|cas| matches!(cas, Cas::Written { .. })));
        assert_eq!(block_on(store.list("many/", "", 1000)).unwrap().len(), 450);
    });
    let double = Double::new(Flaw::None);
    let mut store = store(&fresh_url(&double.endpoint()));
    let writes: Vec<BatchWrite> = (0..3)
        .map(|n| BatchWrite { key: format!("k/{n}"), expected: None, write: fresh(), body: vec![] })
        .collect();
    block_on(store.cas_many(&writes));
    assert_eq!(double.calls(), ["batchWrite"]);
}

/// Keys come in the order of their UTF-8 bytes, which is not that of UTF-16.
#[test]
fn keys_come_in_byte_order() {
    on_each(|endpoint| {
        let mut store = store(&fresh_url(endpoint));
        let mut keys =
            ["p/\u{ff5e}", "p/\u{1f512}", "p/z", "p/ä", "p/\u{10ffff}", "p/\u{10ffff}a", "p0", "p/", "p"];
        for key in keys {
            write(&mut store, key, None, key.as_bytes());
        }
        keys.sort_unstable();
        let mut list = |prefix: &str, after: &str, limit| -> Vec<String> {
            let found = block_on(store.list(prefix, after, limit)).unwrap();
            found.into_iter().map(|l| l.key).collect()
        };
        assert_eq!(list("", "", 99), keys);
        assert_eq!(list("p/", "", 99), keys[1..8]);
        assert_eq!(list("p/", "p/\u{ff5e}", 99), keys[5..8]);
        assert_eq!(list("p/\u{10ffff}", "", 99), keys[6..8]);
        assert_eq!(list("p", "p/z", 2), keys[3..5]);
    });
}

/// What something else wrote under our key is neither taken for a lease nor touched.
#[test]
fn what_others_wrote_is_left_alone() {
    on_each(|endpoint| {
        let url = fresh_url(endpoint);
        let collection = url.split(['/', '?']).nth(3).unwrap();
        let mut store = store(&url);
        let name =
            format!("projects/demo-leasehold/databases/(default)/documents/{collection}/leases%2Fsite");
        let fields = json!({ "owner": { "stringValue": "me" }, "fencing": { "integerValue": "3" } });
        let document = json!({ "update": { "name": name, "fields": fields } });
        let (status, _) = raw(endpoint, "commit", &json!({ "writes": [document] }));
        assert_eq!(status, 200);
        let found = block_on(store.read(KEY)).unwrap_err();
        assert_eq!(found.kind, FailureKind::Unusable);
        assert!(found.message.contains("written by something else"), "{}", found.message);
        assert_eq!(cas(&mut store, KEY, None, b"x"), Cas::Conflict);
        assert_eq!(block_on(store.list("", "", 9)).unwrap(), []);
    });
}

#[test]
fn it_says_what_it_is() {
    on_each(|endpoint| {
        let url = fresh_url(endpoint);
        let store = store(&format!("{url}&database=(default)"));
        let facts = store.facts();
        assert_eq!(facts.instance, "projects/demo-leasehold/databases/(default)");
        assert_eq!((facts.clock, facts.jump), (Clock::Server, Duration::from_secs(3)));
        assert!(!facts.pushes && !facts.this_machine_only && facts.caution.is_some());
        let url = format!("{url}&database=(default)");
        let mut store = open_to_examine(&url, Holders::Here).unwrap_or_else(|e| panic!("{e}"));
        let remarks = block_on(store.examine()).unwrap();
        assert!(
            remarks.iter().any(|r| r.verdict == RemarkLevel::Weak && r.text.contains("emulator")),
            "{remarks:?}"
        );
    });
}
