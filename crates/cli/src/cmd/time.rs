//! Times by this machine's wall clock, for people.

use std::time::Duration;

use leasehold::clock;

/// Now.
pub fn now() -> jiff::Timestamp {
    let wall = clock::wall();
    let seconds = i64::try_from(wall.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::new(seconds, wall.subsec_nanos().cast_signed()).unwrap_or(jiff::Timestamp::MAX)
}

/// How long ago a holder says it took its lease. The time comes from the clock of the holder's machine.
pub fn held_for(since: &str) -> Option<Duration> {
    let since: jiff::Timestamp = since.parse().ok()?;
    let since = Duration::from_secs(u64::try_from(since.as_second()).ok()?);
    clock::wall().checked_sub(since).map(|d| Duration::from_secs(d.as_secs()))
}
