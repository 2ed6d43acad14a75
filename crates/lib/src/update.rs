//! The calls that changing one record takes: [`leasehold_core::update`] says which.

use std::time::Duration;

use leasehold_core::errand;
use leasehold_core::ids::WriteId;
use leasehold_core::session::Op;
use leasehold_core::store::{Cas, Failure, FailureKind, Stored, Version};
use leasehold_core::time::BootTime;
use leasehold_core::update::{Done, Next, Record};
use pollster::block_on;

use crate::clock;
use crate::stores::Store;

/// What is done between two tries: something that takes this long.
pub type Between<'a> = &'a mut dyn FnMut(&mut dyn Store, Duration);

/// Nothing is, which only the keeper may do, or somebody whom nobody waits for.
pub fn nothing(_: &mut dyn Store, pause: Duration) {
    std::thread::park_timeout(pause);
}

/// How long a store is left alone that did not answer: longer each time.
#[derive(Clone, Copy, Debug)]
struct Backoff(Duration);

impl Backoff {
    const FIRST: Self = Self(Duration::from_millis(50));
    const LONGEST: Duration = Duration::from_secs(1);

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LONGEST);
        pause
    }
}

/// How long a store may be silent.
pub struct Patience<'a> {
    /// It is called again until then.
    pub until: BootTime,
    /// What is done before.
    pub between: Between<'a>,
}

/// The next call, or the end.
pub enum Then<T> {
    /// Read the record.
    Read,
    /// Compare and set it.
    Cas {
        /// What must be there; nothing: no record.
        expected: Option<Version>,
        /// This attempt.
        write: WriteId,
        /// What is to be there; nothing: it is too large for a record.
        body: Option<Vec<u8>>,
    },
    /// Finished.
    Done(T),
}

impl<R: Record, S> Then<Done<R, S>> {
    /// What follows in a change.
    pub fn of(next: Next<R, S>, encode: impl FnOnce(&R) -> Option<Vec<u8>>) -> Self {
        match next {
            Next::Read => Self::Read,
            Next::Cas { expected, record } => {
                Self::Cas { expected, write: record.write(), body: encode(&record) }
            }
            Next::Done(done) => Self::Done(done),
        }
    }
}

impl From<errand::Next> for Then<errand::ErrandOutcome> {
    fn from(next: errand::Next) -> Self {
        match next {
            errand::Next::Ask(Op::Read) => Self::Read,
            errand::Next::Ask(Op::Cas { expected, write, body }) => {
                Self::Cas { expected, write, body: Some(body) }
            }
            errand::Next::Done(outcome) => Self::Done(outcome),
        }
    }
}

/// What the store said to a call.
pub enum Answer {
    /// To a read.
    Read(Result<Option<Stored>, Failure>),
    /// To a compare-and-set.
    Cas(Cas),
}

/// Makes the calls, and tells each answer to whoever decides on the next. `Err`: the store stayed silent for longer
/// than there was patience for, if it was limited.
pub fn drive<T>(
    store: &mut dyn Store,
    key: &str,
    first: Then<T>,
    mut patience: Option<Patience<'_>>,
    mut told: impl FnMut(&mut dyn Store, Answer) -> Then<T>,
) -> Result<T, Failure> {
    let (mut then, mut backoff) = (first, Backoff::FIRST);
    loop {
        let answer = match then {
            Then::Done(done) => return Ok(done),
            Then::Read => Answer::Read(block_on(store.read(key))),
            Then::Cas { expected, write, body: Some(body) } => {
                Answer::Cas(block_on(store.cas(key, expected.as_ref(), write, &body)))
            }
            Then::Cas { body: None, .. } => Answer::Cas(Cas::Unknown(too_large())),
        };
        let silent = match &answer {
            Answer::Read(Err(failure)) | Answer::Cas(Cas::Unknown(failure)) => Some(failure.clone()),
            Answer::Read(Ok(_)) | Answer::Cas(_) => None,
        };
        then = told(store, answer);
        if let (Some(failure), Some(patience), false) = (silent, &mut patience, matches!(then, Then::Done(_)))
        {
            let left = patience.until.since(clock::boot_time());
            if left.is_zero() {
                return Err(failure);
            }
            (patience.between)(store, backoff.next().min(left));
        }
    }
}

fn too_large() -> Failure {
    let message = "the record of this item has grown too large; keep less output of its steps";
    Failure::not_written(FailureKind::Unusable, message)
}
