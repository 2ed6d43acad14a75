//! The calls that changing one record takes: [`leasehold_core::update`] says which.

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

/// What is done between two tries: something that takes this long.
pub type Between<'a> = &'a mut dyn FnMut(&mut dyn Store, Duration);

/// Nothing is, which only the keeper may do, or somebody whom nobody waits for.
pub fn nothing(_: &mut dyn Store, pause: Duration) {
    std::thread::park_timeout(pause);
}

/// How long a place is left alone that did not answer, or where others were faster: longer each time.
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

/// Where one record is read and changed: a key of a store, or the fence of a target.
pub(crate) trait RecordPlace {
    /// What is to be there.
    type Body;
    /// What a read came to.
    type Found;
    /// What a compare-and-set came to.
    type Swapped;

    /// Reads it.
    fn read(&mut self) -> Self::Found;

    /// Changes it, if this is what is there; nothing: no record.
    fn cas(&mut self, expected: Option<&Version>, write: WriteId, body: Self::Body) -> Self::Swapped;

    /// Why the next call had better come a little later; nothing: it may come at once.
    fn unsettled(&self, answer: &StoreAnswer<Self::Found, Self::Swapped>) -> Option<Failure>;

    /// Lets some time pass, this long at most; an error if there is none left.
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

/// How long a store may be silent.
pub struct Patience<'a> {
    /// It is called again until then.
    pub until: BootTime,
    /// What is done before.
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
        /// What is to be there; of a store nothing, if it is too large for a record.
        body: B,
    },
    /// Finished.
    Done(T),
}

impl<R: Record, S, B> NextCall<UpdateOutcome<R, S>, B> {
    /// What follows in a change.
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
            one_shot::OneShotNext::Ask(Op::Read) => Self::Read,
            one_shot::OneShotNext::Ask(Op::Cas { expected, write, body }) => {
                Self::Cas { expected, write, body: Some(body) }
            }
            one_shot::OneShotNext::Done(outcome) => Self::Done(outcome),
        }
    }
}

/// What was said to a call.
pub enum StoreAnswer<F = Result<Option<Stored>, Failure>, S = Cas> {
    /// To a read.
    Read(F),
    /// To a compare-and-set.
    Cas(S),
}

/// Makes the calls, and tells each answer to whoever decides on the next. `Err`: the store stayed silent for longer
/// than there was patience for, if it was limited.
pub fn drive<T>(
    store: &mut dyn Store,
    key: &str,
    first: NextCall<T>,
    patience: Option<Patience<'_>>,
    mut told: impl FnMut(&mut dyn Store, StoreAnswer) -> NextCall<T>,
) -> Result<T, Failure> {
    let mut place = Keyed { store, key, patience };
    drive_at(&mut place, first, |place, answer| told(place.store, answer))
}

/// The same anywhere.
pub(crate) fn drive_at<P: RecordPlace, T>(
    place: &mut P,
    first: NextCall<T, P::Body>,
    mut told: impl FnMut(&mut P, StoreAnswer<P::Found, P::Swapped>) -> NextCall<T, P::Body>,
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
        then = told(place, answer);
        if let (Some(unsettled), false) = (unsettled, matches!(then, NextCall::Done(_))) {
            place.pause(backoff.next(), unsettled)?;
        }
    }
}

fn too_large() -> Failure {
    let message = "the record of this item has grown too large; keep less output of its steps";
    Failure::not_written(FailureKind::Unusable, message)
}
