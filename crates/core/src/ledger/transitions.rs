//! Opening an item and changing it afterwards, call by call. The caller makes the calls to its store.
//!
//! [`crate::update`] handles writes whose answer was lost.

use core::time::Duration;

use super::{
    Alive, BadEntry, Entry, FoundEntry, ItemRequest, ItemVerdict, RetryDoubt, SettleReason, Subject, begin,
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
    /// Find out whether this grant still holds this lease.
    ReadLease(Name, Grant),
    /// Replace the item's record.
    Cas {
        /// The version that must be there; none: no record.
        expected: Option<Version>,
        /// The new record.
        entry: Entry,
    },
    /// Find out whether this slot of this job is settled.
    ReadSettled(Name, i64),
    /// Remove the item's record, which is ours.
    Remove(Version),
}

/// The next call, or the result.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemNext<T> {
    /// Call the store and answer.
    Call(ItemCall),
    /// Finished.
    Done(T),
}

/// The result of opening an item.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Opened {
    /// Our run has started it: the command may be executed.
    Begun(Entry, Version),
    /// It is done.
    Done(Entry),
    /// It was skipped before, and is not run.
    Skipped(Entry),
    /// Another run is at work on it.
    InProgress(Entry),
    /// The outcome of its last run is unknown.
    Unknown(Entry, RetryDoubt),
    /// It failed too often.
    Quarantined(Entry),
    /// It is settled and has no record: it was dropped, or its record was removed since.
    Settled,
    /// The record must not be acted on.
    Bad(BadEntry),
    /// The store did not answer.
    Failed {
        /// The failure.
        failure: Failure,
        /// Whether the record may say that our run has started the item.
        sent: bool,
    },
}

impl ItemVerdict {
    /// The result for a run that asked about this entry, if nothing is to be written or asked first.
    pub fn held_off(self, found: Entry) -> Option<Opened> {
        match self {
            Self::Done => Some(Opened::Done(found)),
            Self::Skipped => Some(Opened::Skipped(found)),
            Self::InProgress => Some(Opened::InProgress(found)),
            Self::Quarantined => Some(Opened::Quarantined(found)),
            Self::Unknown(seen, doubt) if seen == found => Some(Opened::Unknown(found, doubt)),
            Self::Begin(_) | Self::AskLease(..) | Self::Unknown(..) => None,
        }
    }
}

impl Opened {
    /// Whether our run has started the item.
    pub fn is_begun(&self) -> bool {
        matches!(self, Self::Begun(..))
    }

    /// Why its command is not executed, in a word; none if it is, or if the store is why.
    pub fn skip_word(&self) -> Option<&'static str> {
        Some(match self {
            Self::Done(Entry { subject: Subject::Latest(_), .. }) => "cooldown",
            Self::Done(_) => SettleReason::Done.word(),
            Self::Skipped(_) => SettleReason::Skipped.word(),
            Self::InProgress(_) => SettleReason::InProgress.word(),
            Self::Settled => "settled",
            Self::Unknown(..) => "never-reported",
            Self::Quarantined(_) => "quarantined",
            Self::Begun(..) | Self::Bad(_) | Self::Failed { .. } => return None,
        })
    }

    /// The record, if one was read.
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

/// The opening of one item.
#[derive(Clone, Debug)]
pub struct Opening {
    ask: ItemRequest,
    update: Update<Entry>,
    found: Option<ReadEntry>,
    silent: bool,
    doing: Doing,
}

/// What an opening is doing.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug)]
enum Doing {
    /// Reading the record, or writing that our run has started the item.
    Starting,
    /// Writing that the outcome is unknown; then this doubt is reported.
    Noting(RetryDoubt),
    /// Waiting for the answer whether the slot is settled; if it is not, the start goes on.
    AwaitingSettled(PendingSettlement),
    /// Taking our record back; then this is reported, whether or not that succeeded: nothing was executed.
    TakingBack(Opened),
}

/// The record as it was read.
#[derive(Clone, Debug)]
struct ReadEntry {
    entry: Entry,
    version: Version,
    age: Option<Duration>,
}

/// A start that waits for the answer whether its slot is settled.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug)]
enum PendingSettlement {
    /// We have created this record.
    Created(Entry, Version),
    /// This is to replace the record that is there.
    Offer(Entry),
    /// This has replaced it.
    Followed(Entry, Version),
}

impl Opening {
    /// `seed` must be random. The first call is [`ItemCall::Read`].
    pub fn new(ask: ItemRequest, seed: u128) -> Self {
        Self { ask, update: Update::new(seed), found: None, silent: false, doing: Doing::Starting }
    }

    /// Whether the item is run again although the outcome of its last run is unknown.
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

    /// [`ItemCall::ReadLease`] was answered.
    pub fn on_lease(&mut self, alive: Result<Alive, Failure>) -> ItemNext<Opened> {
        match alive {
            Ok(alive) => self.decide(Some(alive)),
            Err(failure) => self.failed(failure),
        }
    }

    /// The replacement was answered.
    pub fn on_cas(&mut self, result: Cas) -> ItemNext<Opened> {
        if let Doing::TakingBack(opened) = &self.doing {
            return ItemNext::Done(opened.clone());
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

    /// [`ItemCall::ReadSettled`] was answered.
    pub fn on_settled(&mut self, settled: Result<bool, Failure>) -> ItemNext<Opened> {
        use PendingSettlement::{Created, Followed, Offer};
        let Doing::AwaitingSettled(pending) = core::mem::replace(&mut self.doing, Doing::Starting) else {
            return self.failed(settled.err().unwrap_or_else(update::busy));
        };
        match (pending, settled) {
            (Offer(_), Ok(true)) => ItemNext::Done(Opened::Settled),
            (Offer(entry), Ok(false)) => self.offer(entry),
            (Offer(_), Err(failure)) => self.failed(failure),
            (Created(entry, version) | Followed(entry, version), Ok(false)) => {
                ItemNext::Done(Opened::Begun(entry, version))
            }
            // Nothing was executed. The slot may be counted elsewhere, so our record is taken back.
            (Created(_, version), over) => {
                self.doing = Doing::TakingBack(taken_back(over));
                ItemNext::Call(ItemCall::Remove(version))
            }
            (Followed(_, version), over) => self.put_back(version, taken_back(over)),
        }
    }

    /// Puts the record back that was there before we replaced it.
    fn put_back(&mut self, expected: Version, opened: Opened) -> ItemNext<Opened> {
        let Some(before) = &self.found else { return ItemNext::Done(opened) };
        let entry = Entry { write: self.update.fresh(), ..before.entry.clone() };
        self.doing = Doing::TakingBack(opened);
        ItemNext::Call(ItemCall::Cas { expected: Some(expected), entry })
    }

    /// [`ItemCall::Remove`] was answered.
    pub fn on_removed(&mut self) -> ItemNext<Opened> {
        match &self.doing {
            Doing::TakingBack(opened) => ItemNext::Done(opened.clone()),
            Doing::Starting | Doing::Noting(_) | Doing::AwaitingSettled(_) => ItemNext::Done(Opened::Settled),
        }
    }

    fn landed(&mut self, entry: Entry, version: Version) -> ItemNext<Opened> {
        if let Doing::Noting(doubt) = self.doing {
            return ItemNext::Done(Opened::Unknown(entry, doubt));
        }
        match &entry.subject {
            // The slot may be settled. If there was no record, it may have been removed for that reason; a
            // record is removed only after its slot is settled. If there was one, the slot may have been
            // settled while we replaced it: no scheduler would look at it again if this run died.
            Subject::Slot { job, at, .. } => {
                let call = ItemCall::ReadSettled(job.clone(), *at);
                let pending = if self.found.is_none() {
                    PendingSettlement::Created
                } else {
                    PendingSettlement::Followed
                };
                self.doing = Doing::AwaitingSettled(pending(entry, version));
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
                self.doing = Doing::Starting;
                let others =
                    |found: &Entry| found.state.is_silent() && found.claim.grant != self.ask.claim.grant;
                self.silent = self.found.as_ref().is_some_and(|found| others(&found.entry));
                match &self.ask.subject {
                    // A write that landed late may have created the record after its slot was settled.
                    Subject::Slot { job, at, .. } if self.found.is_some() => {
                        self.doing = Doing::AwaitingSettled(PendingSettlement::Offer(entry));
                        ItemNext::Call(ItemCall::ReadSettled(job.clone(), *at))
                    }
                    _ => self.offer(entry),
                }
            }
            (ItemVerdict::AskLease(lease, grant), _) => ItemNext::Call(ItemCall::ReadLease(lease, grant)),
            (ItemVerdict::Unknown(entry, doubt), found) if found.as_ref() != Some(&entry) => {
                self.doing = Doing::Noting(doubt);
                self.offer(entry)
            }
            // Without a record the rule always starts the item.
            (verdict, found) => match found.and_then(|found| verdict.held_off(found)) {
                Some(opened) => ItemNext::Done(opened),
                None => self.failed(update::busy()),
            },
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

/// The result for an item that is not started because its slot is settled, or may be.
fn taken_back(settled: Result<bool, Failure>) -> Opened {
    match settled {
        Ok(_) => Opened::Settled,
        Err(failure) => Opened::Failed { failure, sent: true },
    }
}

/// The result of changing an item that our run has started.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Amended {
    /// The record is changed.
    Done(Entry, Version),
    /// The record is not ours any more: another run has changed it, or it was removed.
    Superseded(Option<Entry>),
    /// The store did not answer: the record may be changed or not.
    Failed(Failure),
}

/// The change of one item that our run has started.
#[derive(Clone, Debug)]
pub struct Amending {
    change: AmendStep,
    update: Update<Entry>,
}

/// The version that is replaced, and the new record.
#[derive(Clone, Debug)]
struct AmendStep {
    expected: Version,
    entry: Entry,
    /// The grant of the run that started it, if this run makes the change.
    run: Option<Grant>,
}

impl Amending {
    /// Replaces the version `expected` by `entry`; `seed` must be random. If another write comes first, the
    /// change is superseded.
    pub fn new(expected: Version, entry: Entry, seed: u128) -> Self {
        Self { change: AmendStep { expected, entry, run: None }, update: Update::new(seed) }
    }

    /// The same by the run that started the item. An earlier write of this run, whose answer was lost, may be
    /// found instead of the version `expected`; then the change goes on from there. It is tried for as long
    /// as the caller makes the calls.
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

    /// Goes on from a newer version of our record. Either an earlier write of this run has landed: only this
    /// run writes `started` with its grant. Or another run took this one for dead after its lease had expired
    /// and wrote `unknown`, and no run has started the item since.
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
        update::UpdateNext::Done(UpdateOutcome::Landed { record, version }) => Amended::Done(record, version),
        update::UpdateNext::Done(UpdateOutcome::Stopped(amended)) => amended,
        update::UpdateNext::Done(UpdateOutcome::Failed { failure, .. }) => Amended::Failed(failure),
    })
}

fn decoded(subject: &Subject, stored: Stored) -> update::FoundRecord<Entry, BadEntry> {
    update::FoundRecord::of(stored, |body| Entry::decode_of(subject, body))
}
