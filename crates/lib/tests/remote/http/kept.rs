//! What the worker acknowledged outlives it.

use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::{Cas, Store};
use pollster::block_on;

use super::kit::{PLAIN, Workerd};
use crate::common::Scratch;

#[test]
fn a_record_survives_kill_9() {
    let scratch = Scratch::new();
    let mut workerd = Workerd::start(&scratch);
    let mut version = None;
    let mut instance = None;
    for round in 0..5_u8 {
        let mut store: Box<dyn Store> = workerd.store(PLAIN);
        let stale = version.clone();
        for step in 0..3_u8 {
            let cas =
                block_on(store.cas("runs/kept", version.as_ref(), WriteId(random::seed()), &[round, step]));
            let Cas::Written { version: written, .. } = cas else { panic!("{cas:?}") };
            version = Some(written);
        }
        workerd.kill();
        workerd = Workerd::start(&scratch);
        let mut store = workerd.store(PLAIN);
        let found = block_on(store.read("runs/kept")).unwrap().unwrap();
        assert_eq!((found.body, Some(found.version)), (vec![round, 2], version.clone()));
        assert!(found.age.is_some());
        // The same store as before: no instance is told that was not there.
        assert_eq!(*instance.get_or_insert(store.facts().instance), store.facts().instance);
        let lost = block_on(store.cas("runs/kept", stale.as_ref(), WriteId(random::seed()), b"stale"));
        assert_eq!(lost, Cas::Conflict);
    }
    // Another disk is another store.
    let other = Scratch::new();
    let elsewhere = Workerd::start(&other);
    let mut store = elsewhere.store(PLAIN);
    assert_eq!(block_on(store.read("runs/kept")), Ok(None));
    assert_ne!(instance, Some(store.facts().instance));
}
