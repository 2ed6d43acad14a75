//! Removed records: a mark that reads as absent, and is taken away where the server can do it safely.

use std::time::Duration;

use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Store, Version};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server;

use super::{GcsDouble, Maker, Spot, fresh_prefix};

const KEY: &str = "runs/nightly/0001";

fn write(store: &mut dyn Store, body: &[u8]) -> Version {
    match pollster::block_on(store.cas(KEY, None, WriteId(leasehold::random::seed()), body)) {
        Cas::Written { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

fn removed(store: &mut dyn Store, version: &Version) {
    assert!(matches!(pollster::block_on(store.remove(KEY, version)), Cas::Written { .. }));
    assert_eq!(pollster::block_on(store.read(KEY)), Ok(None));
    assert_eq!(pollster::block_on(store.list("", "", 9)), Ok(vec![]));
}

/// A create over a mark takes a second look and a second put; over nothing it is one request.
#[test]
fn nothing_is_left_behind() {
    let double = GcsDouble::start();
    let endpoints: [(Maker, String); 3] =
        [(Spot::s3, server("S3")), (Spot::azure, server("AZURE")), (Spot::google_at, double.endpoint())];
    for (spot, endpoint) in endpoints {
        let proxy = Proxy::http(&endpoint);
        let mut store = spot(&proxy.url(&endpoint)).open(&fresh_prefix());
        for _ in 0..2 {
            let before = proxy.requests();
            let version = write(store.as_mut(), b"run");
            assert_eq!(proxy.requests() - before, 1, "{endpoint}: a mark was left behind");
            removed(store.as_mut(), &version);
        }
        assert_eq!(store.traces(), [""; 0], "{endpoint}");
    }
}

/// Where DELETE is forbidden, or its condition is not looked at, the mark stays and means the same.
#[test]
fn a_mark_that_stays_is_absent() {
    let s3 = server("S3");
    let proxy = Proxy::http(&s3);
    let prefix = fresh_prefix();
    let mut store = Spot::s3(&proxy.url(&s3)).open(&prefix);
    let mut other = Spot::s3(&s3).open(&prefix);
    let strike = proxy.arm_on(b"DELETE ", Fault::answer(403, false));
    let version = write(store.as_mut(), b"run");
    removed(store.as_mut(), &version);
    assert!(strike.struck());
    assert_eq!(store.traces(), [KEY], "and it is known that it stays");
    let before = proxy.requests();
    let again = write(store.as_mut(), b"run");
    assert_eq!(proxy.requests() - before, 3, "refused, looked, put");
    assert_ne!(again, version);
    assert_eq!(pollster::block_on(other.read(KEY)).unwrap().unwrap().version, again);
    // It has seen that it may not, and asks no more.
    let before = proxy.requests();
    assert!(matches!(pollster::block_on(store.remove(KEY, &again)), Cas::Written { .. }));
    assert_eq!(proxy.requests() - before, 1);
    assert_eq!(pollster::block_on(other.read(KEY)), Ok(None));
    assert_eq!(pollster::block_on(other.remove(KEY, &again)), Cas::Conflict);
    write(other.as_mut(), b"by another");
}

/// Whether a server heeds the condition of a DELETE is tried on an object of our own. s3rver does not: tried
/// on the record's name, it would take with it whatever was put there meanwhile.
#[test]
fn a_server_that_deletes_whatever_the_condition_loses_no_record() {
    let server = server("S3RVER");
    let (proxy, prefix) = (Proxy::http(&server), fresh_prefix());
    let spot = |endpoint: &str| {
        let vars = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name.into(), "S3RVER".into()));
        Spot { vars: vars.into(), ..Spot::s3(endpoint) }
    };
    let mut store = spot(&proxy.url(&server)).open(&prefix);
    let mut beside = spot(&server).open(&prefix);
    let version = write(store.as_mut(), b"run");
    store.limit_calls(Duration::from_secs(2));
    let strike = proxy.arm_on(b"DELETE ", Fault::Hold { hang_up: true });
    pollster::block_on(store.remove(KEY, &version));
    let late = strike.held().expect("a DELETE was tried");
    // Meanwhile somebody makes the record anew.
    let anew = write(beside.as_mut(), b"by another");
    late.deliver().unwrap();
    let found = pollster::block_on(beside.read(KEY)).unwrap();
    assert_eq!(found.map(|stored| stored.version), Some(anew), "the record went with the trial");
    // Control: it does delete, whatever the condition. So no other mark is: it puts the mark, then an object
    // of its own, and deletes that twice.
    let mut third = spot(&proxy.url(&server)).open(&fresh_prefix());
    let version = write(third.as_mut(), b"run");
    let before = proxy.requests();
    assert!(matches!(pollster::block_on(third.remove(KEY, &version)), Cas::Written { .. }));
    assert_eq!(proxy.requests() - before, 4);
}
