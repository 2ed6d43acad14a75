//! Our own protocol, on the Durable Object worker on workerd. `leasehold serve` is tested with the
//! command line, which starts it.

mod kept;
mod kit;
mod proxied;
mod replay;
mod rewrites;
mod worker;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What asks much of one server goes one after the other: timeouts are part of what is tested.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
