//! The suite that every store must pass.

use leasehold::stores::conformance::{CHECKS, Harness};
use std::time::Instant;

use super::{Spot, server};

fn suite(name: &str, make: &dyn Fn() -> Harness) {
    let mut wrong = Vec::new();
    for (check, run) in CHECKS {
        let begun = Instant::now();
        let found = run(&make());
        println!("{name} {check}: {:?}", begun.elapsed());
        wrong.extend(found.err().map(|e| format!("{check}: {e}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn s3() {
    let spot = Spot::s3(&server("S3"));
    suite("s3", &|| spot.harness());
}

#[test]
fn azure() {
    let spot = Spot::azure(&server("AZURE"));
    suite("azure", &|| spot.harness());
}
