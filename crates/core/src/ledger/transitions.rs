//! Beginning an item and changing it afterwards, call by call: whoever has a store makes the calls.
//!
//! What becomes of a write whose answer was lost is [`crate::update`]'s.

use core::time::Duration;

use super::{
    Alive, BadEntry, Entry, FoundEntry, ItemRequest, ItemState, ItemVerdict, RetryDoubt, Subject, begin,
};
use crate::ids::{Grant, WriteId};
use crate::name::Name;
use crate::store::{Cas, Failure, Stored, Version};
use crate::update::{self, Record, Update, UpdateDecision, UpdateOutcome};

impl Record for Entry {
    fn write(&self) -> WriteId {
        self.write
    }
}

/// A call to the store.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemCall {
    /// Read the item's record.
    Read,
    /// Is this lease still with this grant?
    ReadLease(Name, Grant),
    /// Replace the item's record.
    Cas {
        /// What must be there; nothing: no record.
        expected: Option<Version>,
        /// What is to be there.
        entry: Entry,
    },
    /// Is this slot of this job settled?
    ReadSettled(Name, i64),
    /// Remove the item's record, which is ours.
    Remove(Version),
}

/// What to do next.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemNext<T> {
    /// Call the store and answer.
    Call(ItemCall),
    /// Finished.
    Done(T),
}

/// What came of beginning an item.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Opened {
    /// It is ours: the command may be executed.
    Begun(Entry, Version),
    /// It is done.
    Done(Entry),
    /// It is not to be run.
    Skipped(Entry),
    /// Another run is at it.
    InProgress(Entry),
    /// A run began it and never said how it ended.
    Unknown(Entry, RetryDoubt),
    /// It failed too often.
    Quarantined(Entry),
    /// It was settled without a record, or its record was removed since: nothing is left of it but that.
    Settled,
    /// The record must not be acted on.
    Bad(BadEntry),
    /// The store did not answer. `sent`: the record may say that we began.
    Failed {
        /// What it said.
        failure: Failure,
        /// Whether anything was written that may still take effect.
        sent: bool,
    },
}

impl Opened {
    /// Whether the item is ours to run.
    pub fn is_begun(&self) -> bool {
        matches!(self, Self::Begun(..))
    }

    /// What the record says, as far as that was read.
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Begun(entry, _)
            | Self::Done(entry)
            | Self::Skipped(entry)
            | Self::InProgress(entry)
            | Self::Unknown(entry, _)
            | Self::Quarantined(entry) => Some(entry),
            Self::Settled | Self::Bad(_) | Self::Failed { .. } => None,
        }
    }
}

/// Beginning one item.
#[derive(Clone, Debug)]
pub struct Opening {
    ask: ItemRequest,
    update: Update<Entry>,
    found: Option<ReadEntry>,
    /// What is told once the record says so: the item is left alone.
    noting: Option<RetryDoubt>,
    silent: bool,
    /// What is begun if its slot turns out not to be settled.
    unless_settled: Option<PendingSettlement>,
    /// What is told once our record is taken back.
    taking_back: Option<Opened>,
}

/// The record as it was read.
#[derive(Clone, Debug)]
struct ReadEntry {
    entry: Entry,
    version: Version,
    age: Option<Duration>,
}

/// What waits for whether a slot is settled.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug)]
enum PendingSettlement {
    /// A record that we have created.
    Created(Entry, Version),
    /// What is to follow the record that is there.
    Offer(Entry),
    /// What has followed it.
    Followed(Entry, Version),
}

impl Opening {
    /// `seed` must be random. The first call is [`ItemCall::Read`].
    pub fn new(ask: ItemRequest, seed: u128) -> Self {
        Self {
            ask,
            update: Update::new(seed),
            found: None,
            noting: None,
            silent: false,
            unless_settled: None,
            taking_back: None,
        }
    }

    /// Whether the item was begun again after a run that never reported.
    pub fn after_silence(&self) -> bool {
        self.silent
    }

    /// The record was read.
    pub fn on_read(&mut self, result: Result<Option<Stored>, Failure>) -> ItemNext<Opened> {
        let found = result.map(|stored| stored.map(|stored| decoded(&self.ask.subject, stored)));
        let found = match self.update.look(found) {
            Ok(found) => found,
            Err(next) => return self.next(next),
        };
        self.found = match found.map(|found| (found.record, found.version, found.age)) {
            Some((Ok(entry), version, age)) => Some(ReadEntry { entry, version, age }),
            Some((Err(bad), ..)) => return ItemNext::Done(Opened::Bad(bad)),
            None => None,
        };
        self.decide(None)
    }

    /// It was found out whether the lease is still with the grant.
    pub fn on_lease(&mut self, alive: Result<Alive, Failure>) -> ItemNext<Opened> {
        match alive {
            Ok(alive) => self.decide(Some(alive)),
            Err(failure) => self.failed(failure),
        }
    }

    /// The replacement was answered.
    pub fn on_cas(&mut self, result: Cas) -> ItemNext<Opened> {
        // Put back or not: nothing was executed.
        if let Some(opened) = self.taking_back.take() {
            return ItemNext::Done(opened);
        }
        let next = self.update.on_cas(result);
        self.next(next)
    }

    fn next(&mut self, next: update::UpdateNext<Entry, Opened>) -> ItemNext<Opened> {
        match next {
            update::UpdateNext::Read => ItemNext::Call(ItemCall::Read),
            update::UpdateNext::Cas { expected, record } => {
                ItemNext::Call(ItemCall::Cas { expected, entry: record })
            }
            update::UpdateNext::Done(UpdateOutcome::Landed { record, version }) => {
                self.landed(record, version)
            }
            update::UpdateNext::Done(UpdateOutcome::Stopped(opened)) => ItemNext::Done(opened),
            update::UpdateNext::Done(UpdateOutcome::Failed { failure, .. }) => self.failed(failure),
        }
    }

    /// It was found out whether the slot is settled.
    pub fn on_settled(&mut self, settled: Result<bool, Failure>) -> ItemNext<Opened> {
        match (self.unless_settled.take(), settled) {
            (Some(PendingSettlement::Offer(_)), Ok(true)) => ItemNext::Done(Opened::Settled),
            (Some(PendingSettlement::Offer(entry)), Ok(false)) => self.offer(entry),
            (
                Some(
                    PendingSettlement::Created(entry, version) | PendingSettlement::Followed(entry, version),
                ),
                Ok(false),
            ) => ItemNext::Done(Opened::Begun(entry, version)),
            // Nothing was executed, so what may be one account too many is taken back.
            (Some(PendingSettlement::Created(_, version)), over) => {
                self.taking_back = Some(taken_back(over));
                ItemNext::Call(ItemCall::Remove(version))
            }
            (Some(PendingSettlement::Followed(_, version)), over) => self.put_back(version, taken_back(over)),
            (Some(PendingSettlement::Offer(_)) | None, Err(failure)) => self.failed(failure),
            (None, Ok(_)) => self.failed(update::busy()),
        }
    }

    /// The record says again what it said before we went on with it.
    fn put_back(&mut self, expected: Version, opened: Opened) -> ItemNext<Opened> {
        let Some(before) = &self.found else { return ItemNext::Done(opened) };
        let entry = Entry { write: self.update.fresh(), ..before.entry.clone() };
        self.taking_back = Some(opened);
        ItemNext::Call(ItemCall::Cas { expected: Some(expected), entry })
    }

    /// The record was removed, or not: nothing was executed, and nobody looks at it again.
    pub fn on_removed(&mut self) -> ItemNext<Opened> {
        ItemNext::Done(self.taking_back.take().unwrap_or(Opened::Settled))
    }

    fn landed(&mut self, entry: Entry, version: Version) -> ItemNext<Opened> {
        if let Some(doubt) = self.noting {
            return ItemNext::Done(Opened::Unknown(entry, doubt));
        }
        match &entry.subject {
            // There was no record: nobody came so far, or it was removed because its slot is settled. Whoever removes
            // records has said so before. Or there was one, and the slot was settled while we went on with it: were
            // we to die now, nobody would look at it again.
            Subject::Slot { job, at, .. } => {
                let call = ItemCall::ReadSettled(job.clone(), *at);
                let pending = if self.found.is_none() {
                    PendingSettlement::Created
                } else {
                    PendingSettlement::Followed
                };
                self.unless_settled = Some(pending(entry, version));
                ItemNext::Call(call)
            }
            Subject::Key(_) | Subject::Latest(_) => ItemNext::Done(Opened::Begun(entry, version)),
        }
    }

    fn decide(&mut self, alive: Option<Alive>) -> ItemNext<Opened> {
        let write = self.update.fresh();
        let found = self.found.as_ref().map(|found| FoundEntry { entry: &found.entry, age: found.age });
        let verdict = begin(found, &self.ask, alive, write);
        let entry = self.found.as_ref().map(|found| found.entry.clone());
        match (verdict, entry) {
            (ItemVerdict::Begin(entry), _) => {
                self.noting = None;
                let others =
                    |found: &Entry| found.state.is_silent() && found.claim.grant != self.ask.claim.grant;
                self.silent = self.found.as_ref().is_some_and(|found| others(&found.entry));
                match &self.ask.subject {
                    // The record may have been created after its slot was settled: by a write that landed late.
                    Subject::Slot { job, at, .. } if self.found.is_some() => {
                        self.unless_settled = Some(PendingSettlement::Offer(entry));
                        ItemNext::Call(ItemCall::ReadSettled(job.clone(), *at))
                    }
                    _ => self.offer(entry),
                }
            }
            (ItemVerdict::AskLease(lease, grant), _) => ItemNext::Call(ItemCall::ReadLease(lease, grant)),
            (ItemVerdict::Unknown(entry, doubt), Some(found)) if entry == found => {
                ItemNext::Done(Opened::Unknown(entry, doubt))
            }
            (ItemVerdict::Unknown(entry, doubt), _) => {
                self.noting = Some(doubt);
                self.offer(entry)
            }
            (ItemVerdict::Done, Some(found)) => ItemNext::Done(Opened::Done(found)),
            (ItemVerdict::Skipped, Some(found)) => ItemNext::Done(Opened::Skipped(found)),
            (ItemVerdict::InProgress, Some(found)) => ItemNext::Done(Opened::InProgress(found)),
            (ItemVerdict::Quarantined, Some(found)) => ItemNext::Done(Opened::Quarantined(found)),
            // Without a record there is nothing but to begin.
            (_, None) => self.failed(update::busy()),
        }
    }

    fn offer(&mut self, entry: Entry) -> ItemNext<Opened> {
        let expected = self.found.as_ref().map(|found| found.version.clone());
        let next = self.update.offer(expected, entry);
        self.next(next)
    }

    fn failed(&self, failure: Failure) -> ItemNext<Opened> {
        ItemNext::Done(Opened::Failed { failure, sent: self.update.is_open() })
    }
}

/// What is told of an item that is not begun because its slot is settled, or may be.
fn taken_back(settled: Result<bool, Failure>) -> Opened {
    match settled {
        Ok(_) => Opened::Settled,
        Err(failure) => Opened::Failed { failure, sent: true },
    }
}

/// What came of changing an item that is ours.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Amended {
    /// It says so now.
    Done(Entry, Version),
    /// It is not ours any more: another run has gone over it, or it was removed.
    Superseded(Option<Entry>),
    /// The store did not answer: nobody knows whether it says so.
    Failed(Failure),
}

/// Changing one item that is ours.
#[derive(Clone, Debug)]
pub struct Amending {
    change: AmendStep,
    update: Update<Entry>,
}

/// What is to follow what.
#[derive(Clone, Debug)]
struct AmendStep {
    expected: Version,
    entry: Entry,
    /// The run that is at it, if it is the one that changes it.
    run: Option<Grant>,
}

impl Amending {
    /// From what stands at `expected` to `entry`; `seed` must be random. Whatever else is written meanwhile has
    /// gone over it.
    pub fn new(expected: Version, entry: Entry, seed: u128) -> Self {
        Self { change: AmendStep { expected, entry, run: None }, update: Update::new(seed) }
    }

    /// The same by the run that began it. What this run wrote before, without an answer, may be found instead of
    /// what was expected: then it is gone on from there. It is tried for as long as the store is called.
    pub fn by_run(expected: Version, entry: Entry, seed: u128) -> Self {
        let run = Some(entry.claim.grant);
        Self { change: AmendStep { expected, entry, run }, update: Update::outlasting_silence(seed) }
    }

    /// The item.
    pub fn subject(&self) -> &Subject {
        &self.change.entry.subject
    }

    /// The first call.
    pub fn start(&mut self) -> ItemCall {
        let (write, expected) = (self.update.fresh(), self.change.expected.clone());
        let entry = Entry { write, ..self.change.entry.clone() };
        let _: update::UpdateNext<Entry, Amended> = self.update.offer(Some(expected.clone()), entry.clone());
        ItemCall::Cas { expected: Some(expected), entry }
    }

    /// The replacement was answered.
    pub fn on_cas(&mut self, result: Cas) -> ItemNext<Amended> {
        amended(self.update.on_cas(result))
    }

    /// The record was read back.
    pub fn on_read(&mut self, result: Result<Option<Stored>, Failure>) -> ItemNext<Amended> {
        let found = result.map(|stored| stored.map(|stored| decoded(&self.change.entry.subject, stored)));
        amended(self.update.on_read(found, |found, write| self.change.decide(found, write)))
    }
}

impl AmendStep {
    fn decide(
        &mut self,
        found: Option<update::FoundRecord<Entry, BadEntry>>,
        write: WriteId,
    ) -> UpdateDecision<Entry, Amended> {
        let Some(found) = found else { return UpdateDecision::Stop(Amended::Superseded(None)) };
        if found.version == self.expected {
            return UpdateDecision::Write(Entry { write, ..self.entry.clone() });
        }
        match found.record {
            Ok(entry) if entry.state.is_open() && self.run == Some(entry.claim.grant) => {
                self.go_on_from(entry, found.version, write)
            }
            entry => UpdateDecision::Stop(Amended::Superseded(entry.ok())),
        }
    }

    /// An earlier write of this run has landed: only this run writes `started` with its grant. Or another run took this
    /// one for dead after its lease had expired, and wrote `unknown`; nobody else has started the item since.
    fn go_on_from(
        &mut self,
        found: Entry,
        version: Version,
        write: WriteId,
    ) -> UpdateDecision<Entry, Amended> {
        let ours = core::mem::take(&mut self.entry.steps);
        let fresh = ours.into_iter().filter(|step| !found.steps.iter().any(|there| there.name == step.name));
        self.entry.steps = found.steps.iter().cloned().chain(fresh).collect();
        if (Entry { write: found.write, ..self.entry.clone() }) == found {
            return UpdateDecision::Stop(Amended::Done(found, version));
        }
        self.expected = version;
        UpdateDecision::Write(Entry { write, ..self.entry.clone() })
    }
}

fn amended(next: update::UpdateNext<Entry, Amended>) -> ItemNext<Amended> {
    ItemNext::Done(match next {
        update::UpdateNext::Read => return ItemNext::Call(ItemCall::Read),
        update::UpdateNext::Cas { expected, record } => {
            return ItemNext::Call(ItemCall::Cas { expected, entry: record });
        }
        update::UpdateNext::Done(UpdateOutcome::Landed { record, version }) => {
            Amended::Done(record, version)
        }
        update::UpdateNext::Done(UpdateOutcome::Stopped(amended)) => amended,
        update::UpdateNext::Done(UpdateOutcome::Failed { failure, .. }) => Amended::Failed(failure),
    })
}

fn decoded(subject: &Subject, stored: Stored) -> update::FoundRecord<Entry, BadEntry> {
    update::FoundRecord::of(stored, |body| Entry::decode_of(subject, body))
}
