//! Whole sessions on Firestore: through a proxy that loses answers and lets writes land late, and
//! counted call by call.

use leasehold::stores::{Cas, FailureKind};
use leasehold_testkit::count;
use leasehold_testkit::faults::{Liar, Lie, StoreBench, Violation};
use leasehold_testkit::proxy::{Fault, Proxy};

use crate::firestore::{KEY, cas, fresh_url, on_each, on_the_best, read, store, write};
use crate::firestore_double::{Double, Flaw};

/// A collection, as its URL is past the proxy and through it.
fn urls(endpoint: &str, proxy: &Proxy) -> (String, String) {
    let url = fresh_url(endpoint);
    let through = url.replace(endpoint, &format!("http://{}", proxy.address()));
    (url, through)
}

#[test]
fn dropped_and_late_writes_cost_no_lease() {
    on_the_best(|endpoint| {
        let proxy = Proxy::http(endpoint);
        let (url, through) = urls(endpoint, &proxy);
        let bench = StoreBench::new("firestore", &proxy, || store(&through), || store(&url));
        bench.dropped(count(500, 5_000)).assert_clean(count(500, 5_000));
        bench.late(count(200, 2_000)).assert_clean(count(200, 2_000));
    });
}

/// What a proxy answers in the server's place says nothing about the write; one sent twice lands once.
#[test]
fn what_a_proxy_does_to_a_write_is_unknown() {
    on_each(|endpoint| {
        let proxy = Proxy::http(endpoint);
        let (url, through) = urls(endpoint, &proxy);
        let (mut direct, mut store) = (store(&url), store(&through));
        let mut version = write(&mut direct, KEY, None, b"start");
        for round in 0..5 {
            for (status, lands) in [409, 412, 429, 500, 503].into_iter().flat_map(|s| [(s, true), (s, false)])
            {
                let body = format!("{round} {status} {lands}");
                proxy.arm_on(body.as_bytes(), Fault::answer(status, lands));
                let got = cas(&mut store, KEY, Some(&version), body.as_bytes());
                assert!(matches!(got, Cas::Unknown(_)), "{body}: {got:?}");
                let now = read(&mut direct, KEY).unwrap();
                assert_eq!((now.body == body.as_bytes(), now.version != version), (lands, lands));
                version = now.version;
            }
            let body = format!("{round} portal");
            proxy.arm_on(body.as_bytes(), Fault::html());
            let got = cas(&mut store, KEY, Some(&version), body.as_bytes());
            assert!(matches!(&got, Cas::Unknown(f) if f.kind == FailureKind::Unusable), "{got:?}");
            let body = format!("{round} twice");
            proxy.arm_on(body.as_bytes(), Fault::Duplicate);
            assert_eq!(cas(&mut store, KEY, Some(&version), body.as_bytes()), Cas::Conflict);
            let now = read(&mut store, KEY).unwrap();
            assert_eq!(now.body, body.as_bytes());
            version = now.version;
        }
    });
}

/// The suites are worth something only if they find a store that makes answers up.
#[test]
fn a_store_that_makes_answers_up_is_caught() {
    let double = Double::new(Flaw::None);
    let proxy = Proxy::tcp(&double.endpoint());
    let (url, through) = urls(&double.endpoint(), &proxy);
    for (lie, kinds) in [
        (Lie::Written, &[Violation::DoubleGrant, Violation::Deadline][..]),
        (Lie::Conflict, &[Violation::Answer]),
        (Lie::Retry, &[Violation::Answer]),
    ] {
        let liar = || Liar::of(store(&through), lie);
        let report = StoreBench::new("liar", &proxy, liar, || store(&url)).dropped(200);
        println!("{lie:?}: {report}");
        assert!(kinds.iter().all(|kind| report.count(*kind) > 0), "{lie:?}: {report}");
    }
}

/// Held 1, acquire 2, renew 1, release 1; and finding it held writes nothing.
#[test]
fn calls_are_as_few_as_promised() {
    on_each(|endpoint| {
        let proxy = Proxy::http(endpoint);
        let (url, through) = urls(endpoint, &proxy);
        let bench = StoreBench::new("firestore", &proxy, || store(&through), || store(&url));
        bench.round_trips().assert_fewest();
        assert!(proxy.connections() == 1, "{} connections where one would do", proxy.connections());
    });
    let double = Double::new(Flaw::None);
    let proxy = Proxy::http(&double.endpoint());
    let (url, through) = urls(&double.endpoint(), &proxy);
    StoreBench::new("firestore", &proxy, || store(&through), || store(&url)).round_trips().assert_fewest();
    // The last thing it does is to find the lease held.
    assert_eq!(double.calls().last().map(String::as_str), Some("batchGet"));
}
