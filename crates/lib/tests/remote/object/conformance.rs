//! The suite that every store must pass, and one that lies and does not.

use leasehold::stores::conformance::{CHECKS, suite};
use leasehold_testkit::server;

use super::{GcsDouble, Spot};

#[test]
fn s3() {
    let spot = Spot::s3(&server("S3"));
    suite(&|| spot.harness());
}

#[test]
fn azure() {
    let spot = Spot::azure(&server("AZURE"));
    suite(&|| spot.harness());
}

/// For the protocol only: the server is a double of our own.
#[test]
fn google_protocol() {
    let double = GcsDouble::start();
    let spot = Spot::google(&double);
    suite(&|| spot.harness());
}

/// s3rver answers 200 to every put, whatever the condition. A suite that lets it pass shows nothing.
#[test]
fn a_server_that_ignores_conditions_is_found_out() {
    let spot = Spot::s3(&server("S3RVER"));
    for check in
        ["stale_holder", "late_landing_write", "create_if_absent", "recreated_record", "racing_updates"]
    {
        let (_, run) = CHECKS.iter().find(|(name, _)| *name == check).unwrap();
        assert!(run(&spot.harness()).is_err(), "{check} let a liar pass");
    }
}
