//! What the larger races share.

use std::fmt;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::time::BootTime;

use crate::proxy::lock;

/// How long the others may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the writers of a race meet: a barrier that does not wait for ever. Of one that panicked the others
/// hear nothing, and with a plain barrier the test would stand still in place of failing.
#[derive(Debug)]
pub struct Meeting {
    size: usize,
    patience: Duration,
    /// How many are there, and how often all were.
    state: Mutex<(usize, u64)>,
    changed: Condvar,
}

impl Meeting {
    /// Of so many.
    pub fn new(size: usize) -> Self {
        Self { size, patience: PATIENCE, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until all are there.
    ///
    /// # Panics
    ///
    /// If one does not come.
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
        assert!(!alone, "one of {} did not come: look for what it said above", self.size);
    }
}

/// What a race came to, in a line for the log.
#[derive(Clone, Copy, Debug)]
pub struct Raced {
    store: &'static str,
    writers: usize,
    rounds: usize,
    began: BootTime,
}

impl Raced {
    /// It begins.
    pub fn begin(store: &'static str, writers: usize, rounds: usize) -> Self {
        Self { store, writers, rounds, began: boot_time() }
    }

    /// Says now and then how far it is: some servers take their time.
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
    fn all_go_on_together_and_nobody_waits_for_ever() {
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
