//! Changing one record: read, decide, compare and set, and in doubt read back.
//!
//! Everything that changes a record uses this, except a running [`crate::session`], which has deadlines to
//! keep, and some targets. Every attempt has its own write id. If the answer to a write is lost, the record
//! is read back: the id in it tells whether the attempt landed. The caller makes the calls, and decides what
//! to write.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Ids, WriteId};
use crate::store::{Cas, Failure, FailureKind, Landed, Stored, Version};

/// How often a write is tried.
pub const TRIES: u32 = 8;

/// A record that can be changed like this: it has the id of the attempt that wrote it.
pub trait Record: Clone {
    /// The attempt that wrote it.
    fn write(&self) -> WriteId;
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoundRecord<R, B> {
    /// The record, or what is wrong with it; the caller decides what follows.
    pub record: Result<R, B>,
    /// Its version.
    pub version: Version,
    /// Its age by the store's clock, if known.
    pub age: Option<Duration>,
}

impl<R, B> FoundRecord<R, B> {
    /// Decodes a stored body.
    pub fn of(stored: Stored, decode: impl FnOnce(&[u8]) -> Result<R, B>) -> Self {
        Self { record: decode(&stored.body), version: stored.version, age: stored.age }
    }
}

/// The caller's decision about the record that was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateDecision<R, S> {
    /// Write this. It carries the write id that the caller was given.
    Write(R),
    /// Write nothing.
    Stop(S),
}

/// The call that the caller makes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateNext<R, S> {
    /// Read the record, and call [`Update::on_read`].
    Read,
    /// Compare and set, and call [`Update::on_cas`].
    Cas {
        /// The version that must be there; none: no record.
        expected: Option<Version>,
        /// The new record.
        record: R,
    },
    /// Finished.
    Done(UpdateOutcome<R, S>),
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateOutcome<R, S> {
    /// The record is stored.
    Landed {
        /// As it was written.
        record: R,
        /// Its version.
        version: Version,
    },
    /// The caller wanted nothing written.
    Stopped(S),
    /// The store did not answer, or others were faster each time.
    Failed {
        /// Why.
        failure: Failure,
        /// An attempt may still land.
        open: bool,
    },
}

/// One change of one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Update<R> {
    ids: Ids,
    /// The id of every attempt.
    sent: Vec<WriteId>,
    /// The attempt under way, and what it would replace.
    offered: Option<(Option<Version>, R)>,
    /// The versions that would be replaced by attempts that may still land.
    open: Vec<Option<Version>>,
    /// Why nothing more is sent.
    trouble: Option<Failure>,
    tries: u32,
    /// Calls without an answer are not counted: the caller decides how long it makes them.
    outlasts_silence: bool,
}

impl<R: Record> Update<R> {
    /// A change; `seed` must be random. The first call is a read, or an [`Update::offer`].
    pub fn new(seed: u128) -> Self {
        let (sent, open) = (Vec::new(), Vec::new());
        let ids = Ids::new(seed);
        Self { ids, sent, offered: None, open, trouble: None, tries: 0, outlasts_silence: false }
    }

    /// The same for a caller that limits the time itself: only lost races count towards the limit.
    pub fn outlasting_silence(seed: u128) -> Self {
        Self { outlasts_silence: true, ..Self::new(seed) }
    }

    /// A write id for the next attempt.
    pub fn fresh(&mut self) -> WriteId {
        WriteId(self.ids.fresh())
    }

    /// The record was read. The caller decides, unless an attempt has landed.
    pub fn on_read<B, S>(
        &mut self,
        result: Result<Option<FoundRecord<R, B>>, Failure>,
        decide: impl FnOnce(Option<FoundRecord<R, B>>, WriteId) -> UpdateDecision<R, S>,
    ) -> UpdateNext<R, S> {
        let found = match self.look(result) {
            Ok(found) => found,
            Err(next) => return next,
        };
        let expected = found.as_ref().map(|found| found.version.clone());
        match decide(found, self.fresh()) {
            UpdateDecision::Write(record) => self.offer(expected, record),
            UpdateDecision::Stop(stop) => UpdateNext::Done(UpdateOutcome::Stopped(stop)),
        }
    }

    /// The first half of [`Update::on_read`], for a caller that makes other calls before it decides. The
    /// result is the record that was found, or the next call if there is nothing to decide.
    #[allow(clippy::result_large_err)] // not an error, the other outcome
    pub fn look<B, S>(
        &mut self,
        result: Result<Option<FoundRecord<R, B>>, Failure>,
    ) -> Result<Option<FoundRecord<R, B>>, UpdateNext<R, S>> {
        let found = match result {
            Ok(found) => found,
            Err(failure) => {
                let again = self.outlasts_silence && failure.kind == FailureKind::Unreachable;
                return Err(match self.trouble.take() {
                    None if again => UpdateNext::Read,
                    trouble => self.failed(trouble.unwrap_or(failure)),
                });
            }
        };
        let Some(found) = found else { return Ok(None) };
        // A version never comes back. But a record that is removed is absent again, so an attempt to create
        // it may land.
        self.open.retain(|replaces| replaces.as_ref().is_none_or(|version| *version == found.version));
        match found.record {
            Ok(record) if self.sent.contains(&record.write()) => {
                Err(UpdateNext::Done(UpdateOutcome::Landed { record, version: found.version }))
            }
            _ => Ok(Some(found)),
        }
    }

    /// Sends this record, unless the last attempt failed for good.
    pub fn offer<S>(&mut self, expected: Option<Version>, record: R) -> UpdateNext<R, S> {
        if let Some(failure) = self.trouble.take() {
            return self.failed(failure);
        }
        self.sent.push(record.write());
        self.offered = Some((expected.clone(), record.clone()));
        UpdateNext::Cas { expected, record }
    }

    /// The attempt was answered. Unless it is confirmed, the record is read back.
    pub fn on_cas<S>(&mut self, result: Cas) -> UpdateNext<R, S> {
        let offered = self.offered.take();
        let silent = matches!(result, Cas::Unknown(_));
        self.tries += u32::from(!(silent && self.outlasts_silence));
        let last = self.tries >= TRIES;
        match (result, offered) {
            (Cas::Written { version, .. }, Some((_, record))) => {
                return UpdateNext::Done(UpdateOutcome::Landed { record, version });
            }
            (Cas::Unknown(failure), offered) => {
                let may_land = offered.filter(|_| failure.landed == Landed::Maybe);
                self.open.extend(may_land.map(|(replaces, _)| replaces));
                self.trouble = (last || failure.kind != FailureKind::Unreachable).then_some(failure);
            }
            (Cas::Conflict, _) | (Cas::Written { .. }, None) => self.trouble = last.then(busy),
        }
        UpdateNext::Read
    }

    /// Whether an attempt may still land.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn failed<S>(&self, failure: Failure) -> UpdateNext<R, S> {
        UpdateNext::Done(UpdateOutcome::Failed { failure, open: self.is_open() })
    }
}

/// The failure of a change that lost every race.
pub(crate) fn busy() -> Failure {
    let message = format!("other processes changed the record {TRIES} times meanwhile");
    Failure::new(FailureKind::Unreachable, message)
}

#[cfg(test)]
mod tests;
