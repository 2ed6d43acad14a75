//! Beginning an item and changing it afterwards, call by call: whoever has a store makes the calls.
//!
//! A write whose answer was lost is recognised by its id when the record is read back.

use alloc::format;
use alloc::vec::Vec;

use super::{Alive, Ask, BadEntry, Doubt, Entry, Found, State, Subject, Verdict, begin};
use crate::ids::{Grant, Ids, WriteId};
use crate::name::Name;
use crate::store::{Cas, Failure, FailureKind, Stored, Version};

/// How often a lost race, or a lost answer, is run again.
const TRIES: u32 = 8;

/// A call to the store.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
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
pub enum Next<T> {
    /// Call the store and answer.
    Call(Call),
    /// Finished.
    Done(T),
}

/// What came of beginning an item.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
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
    Unknown(Entry, Doubt),
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

/// Beginning one item.
#[derive(Clone, Debug)]
pub struct Opening {
    ask: Ask,
    ids: Ids,
    found: Option<(Entry, Stored)>,
    offered: Option<Entry>,
    /// What is told once the record says so: the item is left alone.
    noting: Option<Doubt>,
    silent: bool,
    sent: Vec<WriteId>,
    tries: u32,
    /// What is begun if its slot turns out not to be settled.
    unless_settled: Option<Pending>,
    /// What is told once our record is taken back.
    taking_back: Option<Opened>,
}

/// What waits for whether a slot is settled.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug)]
enum Pending {
    /// A record that we have created.
    Created(Entry, Version),
    /// What is to follow the record that is there.
    Offer(Entry),
    /// What has followed it.
    Followed(Entry, Version),
}

impl Opening {
    /// `seed` must be random. The first call is [`Call::Read`].
    pub fn new(ask: Ask, seed: u128) -> Self {
        Self {
            ask,
            ids: Ids::new(seed),
            found: None,
            offered: None,
            noting: None,
            silent: false,
            sent: Vec::new(),
            tries: 0,
            unless_settled: None,
            taking_back: None,
        }
    }

    /// Whether the item was begun again after a run that never reported.
    pub fn after_silence(&self) -> bool {
        self.silent
    }

    /// The record was read.
    pub fn on_read(&mut self, result: Result<Option<Stored>, Failure>) -> Next<Opened> {
        let stored = match result {
            Ok(stored) => stored,
            Err(failure) => return self.failed(failure),
        };
        self.found = match stored.map(|stored| (Entry::decode_of(&self.ask.subject, &stored.body), stored)) {
            Some((Ok(entry), stored)) if self.sent.contains(&entry.write) => {
                return self.landed(entry, stored.version);
            }
            Some((Ok(entry), stored)) => Some((entry, stored)),
            Some((Err(bad), _)) => return Next::Done(Opened::Bad(bad)),
            None => None,
        };
        self.decide(None)
    }

    /// It was found out whether the lease is still with the grant.
    pub fn on_lease(&mut self, alive: Result<Alive, Failure>) -> Next<Opened> {
        match alive {
            Ok(alive) => self.decide(Some(alive)),
            Err(failure) => self.failed(failure),
        }
    }

    /// The replacement was answered.
    pub fn on_cas(&mut self, result: Cas) -> Next<Opened> {
        // Put back or not: nothing was executed.
        if let Some(opened) = self.taking_back.take() {
            return Next::Done(opened);
        }
        match (result, self.offered.take()) {
            (Cas::Written { version, .. }, Some(entry)) => self.landed(entry, version),
            (Cas::Unknown(failure), _) if failure.kind != FailureKind::Unreachable => self.failed(failure),
            _ if self.tries >= TRIES => self.failed(busy()),
            _ => Next::Call(Call::Read),
        }
    }

    /// It was found out whether the slot is settled.
    pub fn on_settled(&mut self, settled: Result<bool, Failure>) -> Next<Opened> {
        match (self.unless_settled.take(), settled) {
            (Some(Pending::Offer(_)), Ok(true)) => Next::Done(Opened::Settled),
            (Some(Pending::Offer(entry)), Ok(false)) => self.offer(entry),
            (Some(Pending::Created(entry, version) | Pending::Followed(entry, version)), Ok(false)) => {
                Next::Done(Opened::Begun(entry, version))
            }
            // Nothing was executed, so what may be one account too many is taken back.
            (Some(Pending::Created(_, version)), over) => {
                self.taking_back = Some(taken_back(over));
                Next::Call(Call::Remove(version))
            }
            (Some(Pending::Followed(_, version)), over) => self.put_back(version, taken_back(over)),
            (Some(Pending::Offer(_)) | None, Err(failure)) => self.failed(failure),
            (None, Ok(_)) => self.failed(busy()),
        }
    }

    /// The record says again what it said before we went on with it.
    fn put_back(&mut self, expected: Version, opened: Opened) -> Next<Opened> {
        let Some((before, _)) = &self.found else { return Next::Done(opened) };
        let entry = Entry { write: WriteId(self.ids.fresh()), ..before.clone() };
        self.taking_back = Some(opened);
        Next::Call(Call::Cas { expected: Some(expected), entry })
    }

    /// The record was removed, or not: nothing was executed, and nobody looks at it again.
    pub fn on_removed(&mut self) -> Next<Opened> {
        Next::Done(self.taking_back.take().unwrap_or(Opened::Settled))
    }

    fn landed(&mut self, entry: Entry, version: Version) -> Next<Opened> {
        if let Some(doubt) = self.noting {
            return Next::Done(Opened::Unknown(entry, doubt));
        }
        match &entry.subject {
            // There was no record: nobody came so far, or it was removed because its slot is settled. Whoever removes
            // records has said so before. Or there was one, and the slot was settled while we went on with it: were
            // we to die now, nobody would look at it again.
            Subject::Slot { job, at, .. } => {
                let call = Call::ReadSettled(job.clone(), *at);
                let pending = if self.found.is_none() { Pending::Created } else { Pending::Followed };
                self.unless_settled = Some(pending(entry, version));
                Next::Call(call)
            }
            Subject::Key(_) | Subject::Latest(_) => Next::Done(Opened::Begun(entry, version)),
        }
    }

    fn decide(&mut self, alive: Option<Alive>) -> Next<Opened> {
        let write = WriteId(self.ids.fresh());
        let found = self.found.as_ref().map(|(entry, stored)| Found { entry, age: stored.age });
        let verdict = begin(found, &self.ask, alive, write);
        let entry = self.found.as_ref().map(|(entry, _)| entry.clone());
        match (verdict, entry) {
            (Verdict::Begin(entry), _) => {
                self.noting = None;
                let others =
                    |found: &Entry| found.state.is_silent() && found.claim.grant != self.ask.claim.grant;
                self.silent = self.found.as_ref().is_some_and(|(found, _)| others(found));
                match &self.ask.subject {
                    // The record may have been created after its slot was settled: by a write that landed late.
                    Subject::Slot { job, at, .. } if self.found.is_some() => {
                        self.unless_settled = Some(Pending::Offer(entry));
                        Next::Call(Call::ReadSettled(job.clone(), *at))
                    }
                    _ => self.offer(entry),
                }
            }
            (Verdict::AskLease(lease, grant), _) => Next::Call(Call::ReadLease(lease, grant)),
            (Verdict::Unknown(entry, doubt), Some(found)) if entry == found => {
                Next::Done(Opened::Unknown(entry, doubt))
            }
            (Verdict::Unknown(entry, doubt), _) => {
                self.noting = Some(doubt);
                self.offer(entry)
            }
            (Verdict::Done, Some(found)) => Next::Done(Opened::Done(found)),
            (Verdict::Skipped, Some(found)) => Next::Done(Opened::Skipped(found)),
            (Verdict::InProgress, Some(found)) => Next::Done(Opened::InProgress(found)),
            (Verdict::Quarantined, Some(found)) => Next::Done(Opened::Quarantined(found)),
            // Without a record there is nothing but to begin.
            (_, None) => self.failed(busy()),
        }
    }

    fn offer(&mut self, entry: Entry) -> Next<Opened> {
        self.tries += 1;
        self.sent.push(entry.write);
        self.offered = Some(entry.clone());
        let expected = self.found.as_ref().map(|(_, stored)| stored.version.clone());
        Next::Call(Call::Cas { expected, entry })
    }

    fn failed(&self, failure: Failure) -> Next<Opened> {
        Next::Done(Opened::Failed { failure, sent: !self.sent.is_empty() })
    }
}

/// What is told of an item that is not begun because its slot is settled, or may be.
fn taken_back(settled: Result<bool, Failure>) -> Opened {
    match settled {
        Ok(_) => Opened::Settled,
        Err(failure) => Opened::Failed { failure, sent: true },
    }
}

fn busy() -> Failure {
    let message = format!("the record of this item changed {TRIES} times while we tried");
    Failure { kind: FailureKind::Unreachable, message }
}

/// What came of changing an item that is ours.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
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
    expected: Version,
    entry: Entry,
    ids: Ids,
    sent: Vec<WriteId>,
    tries: u32,
    /// The run that is at it, if it is the one that changes it.
    run: Option<Grant>,
}

impl Amending {
    /// From what stands at `expected` to `entry`; `seed` must be random. Whatever else is written meanwhile has
    /// gone over it.
    pub fn new(expected: Version, entry: Entry, seed: u128) -> Self {
        Self { expected, entry, ids: Ids::new(seed), sent: Vec::new(), tries: 0, run: None }
    }

    /// The same by the run that began it. What this run wrote before, without an answer, may be found instead of
    /// what was expected: then it is gone on from there. It is tried for as long as the store is called.
    pub fn by_run(expected: Version, entry: Entry, seed: u128) -> Self {
        let run = Some(entry.claim.grant);
        Self { run, ..Self::new(expected, entry, seed) }
    }

    /// The item.
    pub fn subject(&self) -> &Subject {
        &self.entry.subject
    }

    /// The first call.
    pub fn start(&mut self) -> Call {
        self.entry.write = WriteId(self.ids.fresh());
        self.sent.push(self.entry.write);
        Call::Cas { expected: Some(self.expected.clone()), entry: self.entry.clone() }
    }

    /// The replacement was answered.
    pub fn on_cas(&mut self, result: Cas) -> Next<Amended> {
        // Races with others end; how long a store may be silent is for the run to say.
        self.tries += u32::from(self.run.is_none() || result == Cas::Conflict);
        match result {
            Cas::Written { version, .. } => Next::Done(Amended::Done(self.entry.clone(), version)),
            Cas::Unknown(failure) if failure.kind != FailureKind::Unreachable => {
                Next::Done(Amended::Failed(failure))
            }
            Cas::Unknown(failure) if self.tries >= TRIES => Next::Done(Amended::Failed(failure)),
            Cas::Conflict if self.tries > TRIES => Next::Done(Amended::Failed(busy())),
            Cas::Conflict | Cas::Unknown(_) => Next::Call(Call::Read),
        }
    }

    /// The record was read back.
    pub fn on_read(&mut self, result: Result<Option<Stored>, Failure>) -> Next<Amended> {
        let stored = match result {
            Ok(Some(stored)) => stored,
            Ok(None) => return Next::Done(Amended::Superseded(None)),
            Err(failure) if self.tries >= TRIES => return Next::Done(Amended::Failed(failure)),
            Err(failure) if self.run.is_some() && failure.kind != FailureKind::Unreachable => {
                return Next::Done(Amended::Failed(failure));
            }
            Err(_) => {
                self.tries += u32::from(self.run.is_none());
                return Next::Call(Call::Read);
            }
        };
        if stored.version == self.expected {
            return Next::Call(self.start());
        }
        match Entry::decode_of(&self.entry.subject, &stored.body) {
            Ok(entry) if self.sent.contains(&entry.write) => Next::Done(Amended::Done(entry, stored.version)),
            Ok(entry) if entry.state == State::Started && self.run == Some(entry.claim.grant) => {
                self.go_on_from(entry, stored.version)
            }
            Ok(entry) => Next::Done(Amended::Superseded(Some(entry))),
            Err(_) => Next::Done(Amended::Superseded(None)),
        }
    }

    /// Only this run writes `started` with its grant: an earlier write of ours has landed.
    fn go_on_from(&mut self, found: Entry, version: Version) -> Next<Amended> {
        let ours = core::mem::take(&mut self.entry.steps);
        let fresh = ours.into_iter().filter(|step| !found.steps.iter().any(|there| there.name == step.name));
        self.entry.steps = found.steps.iter().cloned().chain(fresh).collect();
        if (Entry { write: found.write, ..self.entry.clone() }) == found {
            return Next::Done(Amended::Done(found, version));
        }
        self.expected = version;
        Next::Call(self.start())
    }
}
