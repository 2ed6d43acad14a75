//! The calls that change one record: [`leasehold_core::update`] decides, and this module makes them.

use std::time::Duration;

use leasehold_core::ids::WriteId;
use leasehold_core::one_shot;
use leasehold_core::session::Op;
use leasehold_core::store::{Cas, Failure, FailureKind, Stored, Version};
use leasehold_core::time::BootTime;
use leasehold_core::update::{Record, UpdateNext, UpdateOutcome};
use pollster::block_on;

use crate::clock;
use crate::stores::Store;

/// Called between two tries. It must take this long.
pub type Between<'a> = &'a mut dyn FnMut(&mut dyn Store, Duration);

/// Only sleeps. For the store thread, and for threads that nobody waits for.
pub fn nothing(_: &mut dyn Store, pause: Duration) {
    std::thread::park_timeout(pause);
}

/// The pause after a call that got no answer, or that another writer won. It grows each time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) const FIRST: Self = Self(Duration::from_millis(50));
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LONGEST);
        pause
    }
}

/// A record to read and change: a key of a store, or the fence of a target.
pub(crate) trait RecordPlace {
    /// The content of a write.
    type Body;
    /// The result of a read.
    type Found;
    /// The result of a compare-and-set.
    type Swapped;

    /// Reads it.
    fn read(&mut self) -> Self::Found;

    /// Changes it if its version is `expected`; nothing: no record.
    fn cas(&mut self, expected: Option<&Version>, write: WriteId, body: Self::Body) -> Self::Swapped;

    /// Why to pause before the next call; nothing: no pause.
    fn unsettled(&self, answer: &StoreAnswer<Self::Found, Self::Swapped>) -> Option<Failure>;

    /// Pauses at most this long; an error if no time is left.
    fn pause(&mut self, at_most: Duration, unsettled: Failure) -> Result<(), Failure>;
}

/// A record in a store.
struct Keyed<'a, 'b> {
    store: &'a mut dyn Store,
    key: &'a str,
    patience: Option<Patience<'b>>,
}

impl RecordPlace for Keyed<'_, '_> {
    type Body = Option<Vec<u8>>;
    type Found = Result<Option<Stored>, Failure>;
    type Swapped = Cas;

    fn read(&mut self) -> Self::Found {
        block_on(self.store.read(self.key))
    }

    fn cas(&mut self, expected: Option<&Version>, write: WriteId, body: Self::Body) -> Cas {
        match body {
            Some(body) => block_on(self.store.cas(self.key, expected, write, &body)),
            None => Cas::Unknown(too_large()),
        }
    }

    fn unsettled(&self, answer: &StoreAnswer) -> Option<Failure> {
        match answer {
            StoreAnswer::Read(Err(failure)) | StoreAnswer::Cas(Cas::Unknown(failure)) => {
                Some(failure.clone())
            }
            StoreAnswer::Read(Ok(_)) | StoreAnswer::Cas(_) => None,
        }
    }

    fn pause(&mut self, at_most: Duration, unsettled: Failure) -> Result<(), Failure> {
        let Some(patience) = &mut self.patience else { return Ok(()) };
        let left = patience.until.since(clock::boot_time());
        if left.is_zero() {
            return Err(unsettled);
        }
        (patience.between)(self.store, at_most.min(left));
        Ok(())
    }
}

/// How long to try again while a store does not answer.
pub struct Patience<'a> {
    /// Until when.
    pub until: BootTime,
    /// Called between two tries.
    pub between: Between<'a>,
}

/// The next call, or the end.
pub enum NextCall<T, B = Option<Vec<u8>>> {
    /// Read the record.
    Read,
    /// Compare and set it.
    Cas {
        /// What must be there; nothing: no record.
        expected: Option<Version>,
        /// This attempt.
        write: WriteId,
        /// The content; for a store nothing, if it is too large for a record.
        body: B,
    },
    /// Finished.
    Done(T),
}

impl<R: Record, S, B> NextCall<UpdateOutcome<R, S>, B> {
    /// The next call of a change.
    pub fn of(next: UpdateNext<R, S>, encode: impl FnOnce(&R) -> B) -> Self {
        match next {
            UpdateNext::Read => Self::Read,
            UpdateNext::Cas { expected, record } => {
                Self::Cas { expected, write: record.write(), body: encode(&record) }
            }
            UpdateNext::Done(done) => Self::Done(done),
        }
    }
}

impl From<one_shot::OneShotNext> for NextCall<one_shot::OneShotOutcome> {
    fn from(next: one_shot::OneShotNext) -> Self {
        match next {
            // A change by hand asks for no forgotten-record: it changes what there is.
            one_shot::OneShotNext::Ask(Op::Read | Op::Forgotten) => Self::Read,
            one_shot::OneShotNext::Ask(Op::Cas { expected, write, body, log: _ }) => {
                Self::Cas { expected, write, body: Some(body) }
            }
            one_shot::OneShotNext::Done(outcome) => Self::Done(outcome),
        }
    }
}

/// The answer to a call.
pub enum StoreAnswer<F = Result<Option<Stored>, Failure>, S = Cas> {
    /// To a read.
    Read(F),
    /// To a compare-and-set.
    Cas(S),
}

/// Makes the calls, and gives each answer to `decide`, which decides on the next. `Err`: the patience ended before the
/// store answered.
pub fn drive<T>(
    store: &mut dyn Store,
    key: &str,
    first: NextCall<T>,
    patience: Option<Patience<'_>>,
    mut decide: impl FnMut(&mut dyn Store, StoreAnswer) -> NextCall<T>,
) -> Result<T, Failure> {
    let mut place = Keyed { store, key, patience };
    drive_at(&mut place, first, |place, answer| decide(place.store, answer))
}

/// [`drive`] for any record.
pub(crate) fn drive_at<P: RecordPlace, T>(
    place: &mut P,
    first: NextCall<T, P::Body>,
    mut decide: impl FnMut(&mut P, StoreAnswer<P::Found, P::Swapped>) -> NextCall<T, P::Body>,
) -> Result<T, Failure> {
    let (mut then, mut backoff) = (first, Backoff::FIRST);
    loop {
        let answer = match then {
            NextCall::Done(done) => return Ok(done),
            NextCall::Read => StoreAnswer::Read(place.read()),
            NextCall::Cas { expected, write, body } => {
                StoreAnswer::Cas(place.cas(expected.as_ref(), write, body))
            }
        };
        let unsettled = place.unsettled(&answer);
        then = decide(place, answer);
        if let (Some(unsettled), false) = (unsettled, matches!(then, NextCall::Done(_))) {
            place.pause(backoff.next(), unsettled)?;
        }
    }
}

fn too_large() -> Failure {
    let message = "the record of this item is too large; keep less output of its steps";
    Failure::not_written(FailureKind::Unusable, message)
}
