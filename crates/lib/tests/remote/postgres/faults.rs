//! Answers that get lost and writes that land late, between a session and a real server.

use leasehold_testkit::count;
use leasehold_testkit::faults::StoreBench;
use leasehold_testkit::proxy::Proxy;

use super::{opened, server};

fn with_bench(run: impl FnOnce(&StoreBench<'_>)) {
    // Without TLS: the proxy must see which write it strikes.
    let url = format!("{}?sslmode=disable", server("POSTGRES"));
    let proxy = Proxy::tcp(&url);
    let through = proxy.url(&url);
    run(&StoreBench::new("postgres", &proxy, || opened(&through), || opened(&url)));
}

#[test]
fn dropped_answers() {
    let faults = count(500, 5000);
    with_bench(|bench| bench.dropped(faults).assert_clean(faults));
}

#[test]
fn late_writes() {
    let faults = count(200, 2000);
    with_bench(|bench| bench.late(faults).assert_clean(faults));
}

#[test]
fn fewest_round_trips() {
    with_bench(|bench| bench.round_trips().assert_fewest());
}
