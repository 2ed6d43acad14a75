//! The worker through a proxy that breaks things.

use leasehold::backends::http::open_as;
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::{Cas, FailureKind};
use leasehold_testkit::faults::StoreBench;
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server;
use pollster::block_on;

#[test]
fn dropped_writes() {
    let _alone = super::alone();
    let url = server("WORKERD");
    let proxy = Proxy::http(&url);
    let through = proxy.url(&url);
    let bench =
        StoreBench::new("http", &proxy, || open_as(&through, None).unwrap(), || open_as(&url, None).unwrap());
    bench.dropped(500).assert_clean(500);
}

#[test]
fn late_writes() {
    let _alone = super::alone();
    let url = server("WORKERD");
    let proxy = Proxy::http(&url);
    let through = proxy.url(&url);
    let bench =
        StoreBench::new("http", &proxy, || open_as(&through, None).unwrap(), || open_as(&url, None).unwrap());
    bench.late(200).assert_clean(200);
}

#[test]
fn the_fewest_round_trips() {
    let _alone = super::alone();
    let url = server("WORKERD");
    let proxy = Proxy::http(&url);
    let through = proxy.url(&url);
    let bench =
        StoreBench::new("http", &proxy, || open_as(&through, None).unwrap(), || open_as(&url, None).unwrap());
    bench.round_trips().assert_fewest();
}

/// What a proxy says in the store's place is never taken for the store's word.
#[test]
fn a_page_of_html_is_no_answer() {
    let url = server("WORKERD");
    let proxy = Proxy::http(&url);
    let mut store = open_as(&proxy.url(&url), None).unwrap();
    let key = format!("doctor/{:032x}", random::seed());
    let page = |status| Fault::Answer {
        status,
        after_landing: false,
        content_type: "text/html",
        body: "<!DOCTYPE html><html><body>Welcome!</body></html>",
    };
    let kinds = [
        (200, FailureKind::Unusable),
        (204, FailureKind::Unusable),
        (302, FailureKind::Unusable),
        (401, FailureKind::Denied),
        (403, FailureKind::Denied),
        (404, FailureKind::Unusable),
        (409, FailureKind::Unreachable),
        (412, FailureKind::Unusable),
        (429, FailureKind::Unreachable),
        (500, FailureKind::Unreachable),
        (503, FailureKind::Unreachable),
    ];
    for (status, kind) in kinds {
        proxy.arm(page(status));
        let failure = block_on(store.read(&key)).unwrap_err();
        assert_eq!(failure.kind, kind, "{status}: {}", failure.message);
        assert!(failure.message.ends_with('.'), "{}", failure.message);
        proxy.arm(page(status));
        match block_on(store.cas(&key, None, WriteId(random::seed()), b"x")) {
            Cas::Unknown(failure) => assert_eq!(failure.kind, kind, "{status}: {}", failure.message),
            other => panic!("{status}: {other:?}"),
        }
        proxy.arm(page(status));
        assert!(block_on(store.list("doctor/", "", 1)).is_err(), "{status}");
    }
    // Without the page the same store answers: nothing of it had landed.
    assert_eq!(block_on(store.read(&key)), Ok(None));
}

/// A write that a proxy sends twice was written, and is said to be.
#[test]
fn a_repeated_request_is_one_write() {
    let url = server("WORKERD");
    let proxy = Proxy::http(&url);
    let mut store = open_as(&proxy.url(&url), None).unwrap();
    let key = format!("doctor/{:032x}", random::seed());
    let mut version = None;
    for round in 0..5_u8 {
        let strike = proxy.arm(Fault::Duplicate);
        let write = WriteId(random::seed());
        match block_on(store.cas(&key, version.as_ref(), write, &[round])) {
            Cas::Written { version: written, .. } => version = Some(written),
            other => panic!("{other:?}"),
        }
        assert!(strike.struck());
    }
    // Even if it comes again after it was replaced; and it replaces nothing.
    let (first, second) = (WriteId(random::seed()), WriteId(random::seed()));
    let Cas::Written { version: one, .. } = block_on(store.cas(&key, version.as_ref(), first, b"1")) else {
        panic!()
    };
    let Cas::Written { version: two, .. } = block_on(store.cas(&key, Some(&one), second, b"2")) else {
        panic!()
    };
    let again = block_on(store.cas(&key, version.as_ref(), first, b"1"));
    assert!(matches!(&again, Cas::Written { version, .. } if *version == one), "{again:?}");
    assert_eq!(block_on(store.read(&key)).unwrap().unwrap().version, two);
    // Another attempt on that version is refused.
    assert_eq!(block_on(store.cas(&key, version.as_ref(), WriteId(random::seed()), b"3")), Cas::Conflict);
}
