//! The run log in stores on servers: what a record costs there.

use std::time::Duration;

use leasehold::clock;
use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord};
use leasehold::host;
use leasehold::run_log::{LogWriter, SWEEP_EVERY, Scope, Window, newest};
use leasehold::stores::{BatchWrite, Cas, Store};
use pollster::block_on;

/// A record of a run of this job that ended so many minutes ago. Its write looks for no old records.
pub(crate) fn record(job: &str, minutes: u64) -> LogRecord {
    let (at, job) = (clock::wall() - Duration::from_secs(60 * minutes), Name::new(job).unwrap());
    let id = LogId::of(u128::from(minutes * SWEEP_EVERY + 1));
    let holder = host::holder("run-0000000000000000", &job);
    LogRecord { exit: Some(0), ..LogRecord::new(at, LogEvent::Ok, job, id, holder) }
}

/// Gives a lease back and logs that; how many calls `count` has seen since it was asked last.
pub(crate) fn released(store: &mut dyn Store, mut count: impl FnMut() -> u64) -> u64 {
    let write = |body: &[u8], expected| {
        let write = WriteId(leasehold::random::seed());
        BatchWrite { key: "leases/logged".into(), expected, write, body: body.into() }
    };
    let held = write(b"held", None);
    let Cas::Written { version, .. } = block_on(store.cas(&held.key, None, held.write, &held.body)) else {
        panic!("the lease is not free")
    };
    let (log, record) = (LogWriter::without_state(), record("logged", 1));
    let before = count();
    let answer = log.write_with(store, &write(b"free", Some(version.clone())), &record);
    let calls = count() - before;
    assert!(matches!(answer, Cas::Written { .. }), "{answer:?}");
    let found = |store: &mut dyn Store| {
        newest(store, Scope::Job(&record.job), Window::last(Duration::from_secs(600)), 9, |_| true).unwrap().0
    };
    assert_eq!(found(store).len(), 1);
    // A release that is refused logs nothing.
    let late = LogRecord { id: LogId::of(2 * u128::from(SWEEP_EVERY) + 1), ..record.clone() };
    assert_eq!(log.write_with(store, &write(b"late", Some(version)), &late), Cas::Conflict);
    assert_eq!(found(store).len(), 1);
    calls
}
