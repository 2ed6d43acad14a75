//! Helpers of the larger races.

use std::fmt;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::time::BootTime;

use crate::proxy::lock;

/// How long a writer waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A barrier for the writers of a race that gives up after a while. If one of them panics, the others are not told;
/// with a plain barrier the test would hang and not fail.
#[derive(Debug)]
pub struct Meeting {
    size: usize,
    patience: Duration,
    /// How many wait now, and how often all have met.
    state: Mutex<(usize, u64)>,
    changed: Condvar,
}

impl Meeting {
    /// A barrier for this many.
    pub fn new(size: usize) -> Self {
        Self { size, patience: PATIENCE, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until all wait.
    ///
    /// # Panics
    ///
    /// If one of them does not come.
    pub fn wait(&self) {
        let mut state = lock(&self.state);
        state.0 += 1;
        if state.0 == self.size {
            *state = (0, state.1 + 1);
            self.changed.notify_all();
            return;
        }
        let times = state.1;
        let waited = self.changed.wait_timeout_while(state, self.patience, |state| state.1 == times);
        let alone = waited.map_or(true, |(_, waited)| waited.timed_out());
        assert!(!alone, "one of {} did not come: look for its message above", self.size);
    }
}

/// The result of a race, in a line for the log.
#[derive(Clone, Copy, Debug)]
pub struct Raced {
    store: &'static str,
    writers: usize,
    rounds: usize,
    began: BootTime,
}

impl Raced {
    /// Starts the clock.
    pub fn begin(store: &'static str, writers: usize, rounds: usize) -> Self {
        Self { store, writers, rounds, began: boot_time() }
    }

    /// Prints the progress now and then, because some servers are slow.
    pub fn reached(&self, round: usize) {
        if round > 0 && round.is_multiple_of(500) {
            println!("{}: round {round} after {:.1?}", self.store, boot_time().since(self.began));
        }
    }
}

impl fmt::Display for Raced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, writers, rounds, began } = self;
        let took = boot_time().since(*began);
        let rate = *rounds as f64 / took.as_secs_f64();
        write!(
            f,
            "{store}: {writers} writers, {rounds} rounds, one winner each; {took:.1?}, {rate:.0} rounds a second"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_go_on_together_and_none_waits_without_end() {
        let meeting = Meeting::new(3);
        let rounds = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..100 {
                        *lock(&rounds) += 1;
                        meeting.wait();
                        assert_eq!(*lock(&rounds), 3 * (round + 1));
                        meeting.wait();
                    }
                });
            }
        });
        let empty = Meeting { patience: Duration::from_millis(10), ..Meeting::new(2) };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| empty.wait())).is_err());
    }
}
