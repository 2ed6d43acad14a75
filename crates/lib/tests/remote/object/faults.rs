//! Sessions through a proxy that loses answers and lets writes land late.

use leasehold_testkit::faults::StoreBench;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::{count, server};

use super::{GcsDouble, Spot, alone, fresh_prefix};

fn hold_through_faults(name: &'static str, endpoint: &str, spot: fn(&str) -> Spot) {
    let _alone = alone();
    let prefix = fresh_prefix();
    let beside = spot(endpoint);
    // Not as HTTP, which would also send releases twice: the second of two is refused with a 412 that
    // nothing can tell from any other, and the session takes a lease that went on in between for lost.
    let plain = Proxy::tcp(endpoint);
    let through = spot(&plain.url(endpoint));
    let dropped = count(500, 2_000);
    let bench = StoreBench::new(name, &plain, || through.open(&prefix), || beside.open(&prefix));
    bench.dropped(dropped).assert_clean(dropped);

    let whole = Proxy::http(endpoint);
    let through = spot(&whole.url(endpoint));
    let late = count(200, 1_000);
    let bench = StoreBench::new(name, &whole, || through.open(&prefix), || beside.open(&prefix));
    bench.late(late).assert_clean(late);
    bench.round_trips().assert_fewest();
}

#[test]
fn s3() {
    hold_through_faults("s3", &server("S3"), Spot::s3);
}

#[test]
fn azure() {
    hold_through_faults("azure", &server("AZURE"), Spot::azure);
}

#[test]
fn google_protocol() {
    let double = GcsDouble::start();
    hold_through_faults("google", &double.endpoint(), Spot::google_at);
}
