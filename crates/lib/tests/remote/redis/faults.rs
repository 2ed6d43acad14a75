//! Answers that are lost, and writes that land late.

use leasehold_testkit::count;
use leasehold_testkit::faults::StoreBench;
use leasehold_testkit::proxy::Proxy;

use super::{corner, shared, store};

fn through_the_proxy(suite: impl FnOnce(&StoreBench<'_>)) {
    let url = corner();
    let proxy = Proxy::tcp(&shared());
    let through = proxy.url(&url);
    suite(&StoreBench::new("redis", &proxy, || store(&through), || store(&url)));
}

#[test]
fn lost_answers_cost_nothing() {
    let faults = count(500, 5000);
    through_the_proxy(|bench| bench.dropped(faults).assert_clean(faults));
}

#[test]
fn late_writes_change_nothing() {
    let faults = count(200, 2000);
    through_the_proxy(|bench| bench.late(faults).assert_clean(faults));
}

#[test]
fn round_trips_are_the_fewest() {
    through_the_proxy(|bench| bench.round_trips().assert_fewest());
}
