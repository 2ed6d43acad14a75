//! Every store passes the suite, and every way to break a store is caught by it.

use crate::common::Scratch;
use crate::sloppy::{Flaw, Records, Sloppy};
use leasehold::stores::conformance::{Harness, findings, suite};
use leasehold::stores::open;

fn by_url(scheme: &'static str) -> Harness {
    let scratch = Scratch::new();
    Harness::new(move || open(&format!("{scheme}:{}", scratch.join("store"))).expect(scheme))
}

#[test]
fn memory() {
    suite(&|| {
        let store = leasehold::backends::memory::MemoryStore::new().unwrap();
        Harness::new(move || Box::new(store.clone()))
    });
}

#[test]
fn sqlite() {
    suite(&|| by_url("sqlite"));
}

#[test]
fn dir() {
    suite(&|| by_url("dir"));
}

fn caught(flaw: Flaw) -> Vec<&'static str> {
    let found = findings(&|| {
        let records = Records::default();
        Harness::new(move || Box::new(Sloppy::new(flaw, &records)))
    });
    let failed = found.into_iter().filter(|(_, result)| result.is_err());
    failed.map(|(name, _)| name).collect()
}

#[test]
fn every_broken_store_is_caught() {
    assert_eq!(caught(Flaw::None), [""; 0], "the broken stores' own base is sound");
    for (flaw, checks) in [
        (Flaw::PlainPut, &["stale_holder", "late_landing_write", "create_if_absent", "racing_updates"][..]),
        (Flaw::RestartingCounter, &["recreated_record"]),
        (Flaw::ContentHash, &["equal_bodies_differ_in_version", "recreated_record"]),
        (Flaw::CheckThenWrite, &["racing_creates", "racing_updates", "no_lost_update"]),
        (Flaw::PlainRemove, &["remove_needs_the_version"]),
        (Flaw::FrozenAge, &["ages"]),
        (Flaw::StaleRead, &["read_your_writes"]),
    ] {
        let caught = caught(flaw);
        for check in checks {
            assert!(caught.contains(check), "{check} missed {flaw:?}; caught by {caught:?}");
        }
    }
}
