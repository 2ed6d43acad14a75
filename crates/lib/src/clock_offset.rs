//! The difference between this machine's wall clock and the store's. Slots are due by the store's clock.

use std::time::Duration;

use leasehold_core::ids::WriteId;
use leasehold_core::store::{Cas, Failure, FailureKind};
use pollster::block_on;
use serde_json::json;

use crate::clock::{boot_time, wall};
use crate::stores::Store;
use crate::{host, random};

/// How many times to try.
const TRIES: usize = 20;
/// A store's time above this is counted from 1970.
const UNIX: Duration = Duration::from_secs(1_000_000_000);

/// The record that is written to learn the store's time. There is one for all machines, because new machines may come
/// each minute. It is of a kind that every bearer of a server may write, also one that is limited to some names.
const KEY: &str = "probe/clock";

/// How far this machine's clock is ahead, in milliseconds; nothing if the store does not tell the time.
pub fn clock_ahead(store: &mut dyn Store) -> Result<Option<i64>, Failure> {
    let host = host::name();
    // Another machine may write it at the same time.
    for _ in 0..TRIES {
        let version = block_on(store.read(KEY))?.map(|stored| stored.version);
        let body = json!({"leasehold_clock": 1, "host": host, "at": host::utc(wall().as_secs())}).to_string();
        let (before, sent) = (wall(), boot_time());
        let written = block_on(store.cas(KEY, version.as_ref(), WriteId(random::seed()), body.as_bytes()));
        let took = boot_time().since(sent);
        match written {
            Cas::Written { store_time, .. } => {
                return Ok(store_time.and_then(|at| ahead_of(at, before + took / 2)));
            }
            Cas::Conflict => {}
            Cas::Unknown(failure) => return Err(failure),
        }
    }
    // A clock that could not be compared is not trusted.
    let message = format!("the record {KEY} changed {TRIES} times while we asked for the store's time");
    Err(Failure::new(FailureKind::Unreachable, message))
}

/// How far `ours` is ahead of a store's time, in milliseconds; nothing if that is not counted from 1970.
pub(crate) fn ahead_of(store_time: Duration, ours: Duration) -> Option<i64> {
    let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
    (store_time > UNIX).then(|| millis(ours) - millis(store_time))
}
