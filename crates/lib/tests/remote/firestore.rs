//! Firestore: always against the double of `firestore_double.rs`, and against Google's own emulator
//! where `LEASEHOLD_TEST_FIRESTORE` says that one runs.

use leasehold::random;
use leasehold::stores::conformance::{Harness, findings, suite};
use leasehold::stores::{Store, open};

use crate::firestore_double::{Double, Flaw};

/// The emulator's address, if there is one.
fn emulator() -> Option<String> {
    let found = std::env::var("LEASEHOLD_TEST_FIRESTORE").ok().filter(|host| !host.is_empty());
    match &found {
        Some(host) => println!("run against Google's Firestore emulator at {host}"),
        None => println!("SKIPPED: no LEASEHOLD_TEST_FIRESTORE, so only the double of the API was used"),
    }
    found.map(|host| format!("http://{host}"))
}

/// A collection that nobody else uses.
fn fresh_url(endpoint: &str) -> String {
    format!("firestore://demo-leasehold/t{:032x}?endpoint={endpoint}", random::seed())
}

fn store(url: &str) -> Box<dyn Store> {
    open(url).unwrap_or_else(|e| panic!("{url}: {e}"))
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
        let found = findings(&|| harness(&double.endpoint()));
        let wrong: Vec<&str> = found.iter().filter(|(_, f)| f.is_err()).map(|(name, _)| *name).collect();
        assert!(wrong.contains(&by), "{flaw:?} was caught by {wrong:?} only");
    }
}
