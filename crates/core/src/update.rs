//! Changing one record: read, decide, compare and set, and in doubt read back.
//!
//! This is the one place that deals with a write whose answer was lost. Every attempt has a write id of its own; when
//! the record is read back, an attempt that landed is known by it. The caller makes the calls, and decides.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Ids, WriteId};
use crate::store::{Cas, Failure, FailureKind, Landed, Stored, Version};

/// How often a write is tried.
pub const TRIES: u32 = 8;

/// What can be changed like this: the record has the id of the attempt that wrote it.
pub trait Record: Clone {
    /// The attempt that wrote it.
    fn write(&self) -> WriteId;
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoundRecord<R, B> {
    /// What it says; or what is wrong with it, which the caller has to judge.
    pub record: Result<R, B>,
    /// Its version.
    pub version: Version,
    /// Its age by the store's clock, if the store tells.
    pub age: Option<Duration>,
}

impl<R, B> FoundRecord<R, B> {
    /// What is stored, decoded.
    pub fn of(stored: Stored, decode: impl FnOnce(&[u8]) -> Result<R, B>) -> Self {
        Self { record: decode(&stored.body), version: stored.version, age: stored.age }
    }
}

/// What the caller wants, after it was told what is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateDecision<R, S> {
    /// This is to be there. It carries the write id that the caller was given.
    Write(R),
    /// Nothing is to be written.
    Stop(S),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateNext<R, S> {
    /// Read the record, and tell.
    Read,
    /// Compare and set, and tell.
    Cas {
        /// What must be there; nothing: no record.
        expected: Option<Version>,
        /// What is to be there.
        record: R,
    },
    /// Finished.
    Done(UpdateOutcome<R, S>),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateOutcome<R, S> {
    /// The record is there.
    Landed {
        /// As it now is.
        record: R,
        /// Its version.
        version: Version,
        /// The store did not say so: it was found there.
        read_back: bool,
    },
    /// The caller wanted nothing written.
    Stopped(S),
    /// The store did not answer, or others were faster each time.
    Failed {
        /// Why.
        failure: Failure,
        /// Something that was sent may still land.
        open: bool,
    },
}

/// One change of one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Update<R> {
    ids: Ids,
    /// Every attempt.
    sent: Vec<WriteId>,
    /// The attempt under way, and what it would replace.
    offered: Option<(Option<Version>, R)>,
    /// What attempts would replace of which nobody said that they came to nothing.
    open: Vec<Option<Version>>,
    /// Why nothing more is sent.
    trouble: Option<Failure>,
    tries: u32,
    /// Calls without an answer are repeated for as long as the caller makes them.
    outlasts_silence: bool,
}

impl<R: Record> Update<R> {
    /// A change; `seed` must be random. The first call is a read, or an [`Update::offer`].
    pub fn new(seed: u128) -> Self {
        let (sent, open) = (Vec::new(), Vec::new());
        let ids = Ids::new(seed);
        Self { ids, sent, offered: None, open, trouble: None, tries: 0, outlasts_silence: false }
    }

    /// The same for a caller that itself says how long a store may be silent: only lost races are counted.
    pub fn outlasting_silence(seed: u128) -> Self {
        Self { outlasts_silence: true, ..Self::new(seed) }
    }

    /// A write id for the next attempt.
    pub fn fresh(&mut self) -> WriteId {
        WriteId(self.ids.fresh())
    }

    /// The record was read: the caller decides, unless an attempt has landed.
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

    /// The first half of [`Update::on_read`], for a caller that has to ask elsewhere before it decides: what was
    /// found, or what to do next whatever the caller thinks.
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
        // A version does not come again; but a record that is removed is absent again.
        self.open.retain(|replaces| replaces.as_ref().is_none_or(|version| *version == found.version));
        match found.record {
            Ok(record) if self.sent.contains(&record.write()) => {
                Err(UpdateNext::Done(UpdateOutcome::Landed {
                    record,
                    version: found.version,
                    read_back: true,
                }))
            }
            _ => Ok(Some(found)),
        }
    }

    /// Sends this, unless there is a reason to send no more.
    pub fn offer<S>(&mut self, expected: Option<Version>, record: R) -> UpdateNext<R, S> {
        if let Some(failure) = self.trouble.take() {
            return self.failed(failure);
        }
        self.sent.push(record.write());
        self.offered = Some((expected.clone(), record.clone()));
        UpdateNext::Cas { expected, record }
    }

    /// The attempt was answered. Whatever was said of it but that it is there, a look decides.
    pub fn on_cas<S>(&mut self, result: Cas) -> UpdateNext<R, S> {
        let offered = self.offered.take();
        let silent = matches!(result, Cas::Unknown(_));
        self.tries += u32::from(!(silent && self.outlasts_silence));
        let last = self.tries >= TRIES;
        match (result, offered) {
            (Cas::Written { version, .. }, Some((_, record))) => {
                return UpdateNext::Done(UpdateOutcome::Landed { record, version, read_back: false });
            }
            (Cas::Unknown(failure), offered) => {
                let may_land = offered.filter(|_| failure.landed == Landed::Maybe);
                self.open.extend(may_land.map(|(replaces, _)| replaces));
                self.trouble = (last || failure.kind != FailureKind::Unreachable).then_some(failure);
            }
            _ => self.trouble = last.then(busy),
        }
        UpdateNext::Read
    }

    /// Whether something that was sent may still land.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn failed<S>(&self, failure: Failure) -> UpdateNext<R, S> {
        UpdateNext::Done(UpdateOutcome::Failed { failure, open: self.is_open() })
    }
}

/// Others were faster each time.
pub(crate) fn busy() -> Failure {
    let message = format!("the record changed {TRIES} times while we tried");
    Failure::new(FailureKind::Unreachable, message)
}

#[cfg(test)]
mod tests;
