//! The store calls of items: [`leasehold_core::ledger`] decides, and this module makes the calls.

pub mod job;

use std::io;
use std::time::Duration;

use leasehold_core::ids::{Grant, WriteId};
use leasehold_core::ledger::{
    Alive, Amended, Amending, Ending, Entry, FoundEntry, IfUnknown, ItemCall, ItemClaim, ItemNext,
    ItemOpened, ItemRecorded, ItemRequest, ItemState, LeaseSeen, Opened, Opening, StepRecord, StepStands,
    Subject, begin, finish, key_if_unknown, never_executed, slot_after_key, slot_follows, step_done,
    step_stands,
};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;
use leasehold_core::session::{Granted, lease_key};
use leasehold_core::store::{Failure, Version};
use leasehold_core::time::BootTime;
use pollster::block_on;

use crate::other_stores::OtherStores;
use crate::stores::Store;
use crate::text::short_digest;
use crate::update::{Between, NextCall, Patience, StoreAnswer, drive, nothing};
use crate::{clock, host, random};

/// Prefixes of the records of keys, of slots, and of the last good run of a job.
pub const PREFIXES: [&str; 3] = ["keys/", "slots/", "latest/"];
/// Longest name of a record after its prefix. A longer one is cut off and ends in a digest.
const NAME_MAX: usize = 200;
/// How long to try to record a slot that is not run because of its key. The lease is not renewed meanwhile.
const HELD_OFF_PATIENCE: Duration = Duration::from_secs(1);

/// An item that a run is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key or slot.
    pub subject: Subject,
    /// What to do about a run that started it and never reported.
    pub if_unknown: IfUnknown,
    /// How often it may fail before a person has to decide.
    pub attempts: u32,
    /// How long it stays done, by the store's clock; nothing: always.
    pub keep: Option<Duration>,
}

impl Item {
    /// The request of a run of this job, under this claim.
    pub fn ask(&self, job: &Name, claim: ItemClaim) -> ItemRequest {
        ItemRequest {
            subject: self.subject.clone(),
            job: job.clone(),
            claim,
            if_unknown: self.if_unknown,
            attempts: self.attempts,
            keep: self.keep,
        }
    }
}

/// The store's key of the record of an item.
pub fn key_of(subject: &Subject) -> String {
    let [keys, _, latest] = PREFIXES;
    match subject {
        Subject::Key(key) => format!("{keys}{}", plain(key)),
        Subject::Slot { job, at, .. } => format!("{}{at:012}", slots_of(job)),
        Subject::Latest(job) => format!("{latest}{}", plain(job.as_str())),
    }
}

/// The prefix of the records of a job's slots. Names of jobs contain no `@`, so the slots of two jobs never mix, and the
/// slots of one job are listed in order.
pub fn slots_of(job: &Name) -> String {
    format!("{}{}@", PREFIXES[1], plain(job.as_str()))
}

/// The lease of a key for which the user named none: the key with `.once`, or a digest if that is not a name.
pub fn lease_of(key: &str) -> Name {
    let digest = || Name::new(&format!("key-{}.once", short_digest(key)));
    let named = Name::new(&format!("{key}.once")).or_else(|_| digest());
    named.unwrap_or_else(|e| unreachable!("hexadecimal digits are a name: {e}"))
}

/// A text as part of a key that every store takes: no two become one, and it begins as the text does.
pub(crate) fn plain(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut after_word = false;
    for byte in text.bytes() {
        let word = matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        // Dots and slashes only between words, so that no part is `..` or empty.
        if word || (after_word && matches!(byte, b'.' | b'/')) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("={byte:02x}"));
        }
        after_word = word;
    }
    if name.len() <= NAME_MAX && after_word {
        return name;
    }
    let digest = short_digest(text);
    name.truncate(NAME_MAX / 2);
    let kept = name.trim_end_matches(['.', '/']).len();
    name.truncate(kept);
    format!("{name}={digest}")
}

/// Reads an item before the run asks for a lease: one that is done, is not to be run, or waits for a person needs no lease.
pub fn peek(store: &mut dyn Store, item: &Item) -> Result<Option<Opened>, Failure> {
    let Some(stored) = block_on(store.read(&key_of(&item.subject)))? else { return Ok(None) };
    let entry = match Entry::decode_of(&item.subject, &stored.body) {
        Ok(entry) => entry,
        Err(bad) => return Ok(Some(Opened::Bad(bad))),
    };
    // Whether another run is doing it is checked later, under the lease.
    let ask = item.ask(&entry.job, ItemClaim::nobody(&entry.claim, random::seed()));
    let found = FoundEntry { entry: &entry, age: stored.age };
    // One that says `started` asks for its lease, and one that is unknown and does not say so is written first.
    let verdict = begin(Some(found), &ask, None, WriteId(random::seed()));
    Ok(verdict.held_off(entry))
}

/// The record of an item; nothing if there is none, or it is unreadable.
pub fn entry(store: &mut dyn Store, subject: &Subject) -> Result<Option<Entry>, Failure> {
    let stored = block_on(store.read(&key_of(subject)))?;
    Ok(stored.and_then(|stored| Entry::decode_of(subject, &stored.body).ok()))
}

/// Starts an item, or says why not; and whether it was started again after a run that never reported.
pub fn open(store: &mut dyn Store, ask: ItemRequest) -> (Opened, bool) {
    let key = key_of(&ask.subject);
    let mut opening = Opening::new(ask, random::seed());
    let opened = drive(store, &key, NextCall::Read, None, |store, answer| {
        let mut next = match answer {
            StoreAnswer::Read(read) => opening.on_read(read),
            StoreAnswer::Cas(cas) => opening.on_cas(cas),
        };
        loop {
            next = match next {
                ItemNext::Call(ItemCall::ReadLease(lease, grant)) => {
                    opening.on_lease(alive(store, &lease, grant))
                }
                ItemNext::Call(ItemCall::ReadSettled(job, at)) => {
                    opening.on_settled(job::is_settled(store, &job, at))
                }
                ItemNext::Call(ItemCall::Remove(version)) => {
                    block_on(store.remove(&key, &version));
                    opening.on_removed()
                }
                ItemNext::Call(ItemCall::Read) => return NextCall::Read,
                ItemNext::Call(ItemCall::Cas { expected, entry }) => return cas(expected, &entry),
                ItemNext::Done(opened) => return NextCall::Done(opened),
            };
        }
    });
    let opened = opened.unwrap_or_else(|failure| Opened::Failed { failure, sent: true });
    (opened, opening.after_silence())
}

/// Changes an item of this run.
pub fn amend(store: &mut dyn Store, amending: Amending) -> Amended {
    amended(store, amending, None)
}

/// Changes an item of this run. While the store does not answer, tries again until then, with growing pauses; at least
/// once.
pub fn amend_until(
    store: &mut dyn Store,
    amending: Amending,
    until: BootTime,
    between: Between<'_>,
) -> Amended {
    amended(store, amending, Some(Patience { until, between }))
}

fn amended(store: &mut dyn Store, mut amending: Amending, patience: Option<Patience<'_>>) -> Amended {
    let then = |next| match next {
        ItemNext::Call(ItemCall::Cas { expected, entry }) => cas(expected, &entry),
        ItemNext::Call(_) => NextCall::Read,
        ItemNext::Done(amended) => NextCall::Done(amended),
    };
    let (key, first) = (key_of(amending.subject()), then(ItemNext::Call(amending.start())));
    let amended = drive(store, &key, first, patience, |_, answer| {
        then(match answer {
            StoreAnswer::Read(read) => amending.on_read(read),
            StoreAnswer::Cas(cas) => amending.on_cas(cas),
        })
    });
    amended.unwrap_or_else(Amended::Failed)
}

fn cas<T>(expected: Option<Version>, entry: &Entry) -> NextCall<T> {
    NextCall::Cas { expected, write: entry.write, body: entry.encode() }
}

/// Whether a grant still holds a lease.
pub fn alive(store: &mut dyn Store, lease: &Name, grant: Grant) -> Result<Alive, Failure> {
    Ok(leasehold_core::ledger::alive(grant, &seen(store, lease)?))
}

/// The state of a lease.
pub fn seen(store: &mut dyn Store, lease: &Name) -> Result<LeaseSeen, Failure> {
    let stored = block_on(store.read(&lease_key(lease)))?;
    let facts = store.facts();
    Ok(LeaseSeen::of(lease, stored.as_ref(), facts.resolution, &facts.instance))
}

/// Opens and records the item of one run. Kept by the thread that makes the run's store calls.
#[derive(Debug)]
pub struct ItemRecorder {
    item: Item,
    /// With a slot: the key that is done together with it.
    key: Option<Item>,
    job: Name,
    holder: Holder,
    /// This machine's notes of the items that it starts and ends.
    seen: Option<OtherStores>,
    /// The item, from its start until its end is recorded.
    ours: Option<BegunItem>,
}

/// An item that this run started.
#[derive(Debug)]
struct BegunItem {
    entry: Entry,
    version: Version,
    /// The result of opening the key of a slot.
    key: Option<Opened>,
    /// Steps that are done, and whose record is in doubt.
    unrecorded: Vec<StepRecord>,
}

impl BegunItem {
    /// The entry with every step that is done.
    fn whole(&self) -> Entry {
        let add = |entry: Entry, step: &StepRecord| {
            step_done(&entry, &step.name, step.output.clone()).unwrap_or(entry)
        };
        self.unrecorded.iter().fold(self.entry.clone(), add)
    }
}

impl ItemRecorder {
    /// For a run that does this item, and with a slot perhaps a key. `holder` is the run, as others see it.
    pub fn new(item: Item, key: Option<Item>, job: Name, holder: Holder) -> Self {
        Self { item, key, job, holder, seen: None, ours: None }
    }

    /// Notes the start and the end of the item on this machine too.
    #[must_use]
    pub fn noted_in(self, seen: Option<OtherStores>) -> Self {
        Self { seen, ..self }
    }

    /// The state of a step, once the item was started.
    pub fn step_stands(&self, name: &str) -> Option<StepStands> {
        self.ours.as_ref().map(|ours| step_stands(&ours.whole(), &ours.unrecorded, name))
    }

    /// Starts the item under this grant.
    pub fn open(&mut self, store: &mut dyn Store, granted: &Granted) -> ItemOpened {
        let claim = ItemClaim {
            lease: granted.lease.clone(),
            epoch: granted.epoch,
            token: granted.token,
            grant: granted.grant,
            holder: Holder { since: host::utc(clock::wall().as_secs()), ..self.holder.clone() },
        };
        let (item, silent) = open(store, self.item.ask(&self.job, claim.clone()));
        let (mut key, mut recorded) = (None, None);
        if let Opened::Begun(entry, version) = &item {
            if let Some(asked) = &self.key {
                let if_unknown = key_if_unknown(asked.if_unknown, silent);
                key = Some(open(store, ItemRequest { if_unknown, ..asked.ask(&self.job, claim) }).0);
            }
            let (entry, version) = (entry.clone(), version.clone());
            self.ours = Some(BegunItem { entry, version, key: key.clone(), unrecorded: Vec::new() });
            let to_record = self.opened_key().and_then(|(key, opened)| slot_after_key(key, opened));
            if let Some((state, reason, said)) = to_record {
                let at = host::utc(clock::wall().as_secs());
                let until = clock::boot_time().plus(HELD_OFF_PATIENCE);
                let ending = Ending { exit: None, took_ms: 0, at, reason, said };
                recorded = Some(self.close(store, state, &ending, until));
            }
        }
        let mut opened = ItemOpened { item, key, other_store: None, unnoted: Vec::new(), recorded };
        opened.unnoted = self.note_opened(&opened);
        // After the note was made, so that of two runs on two stores at least one sees the other.
        opened.other_store = self.other_store();
        opened
    }

    /// The key of the slot, and the result of opening it.
    fn opened_key(&self) -> Option<(&str, &Opened)> {
        let (ours, item) = (self.ours.as_ref()?, self.key.as_ref()?);
        let Subject::Key(key) = &item.subject else { unreachable!("beside a slot there is only a key") };
        Some((key, ours.key.as_ref()?))
    }

    /// Notes the result of opening on this machine. A started slot whose command is not to start is not noted.
    fn note_opened(&self, opened: &ItemOpened) -> Vec<(Subject, String)> {
        let to_start = opened.held_off().is_none();
        let items = [(Some(&self.item), Some(&opened.item)), (self.key.as_ref(), opened.key.as_ref())];
        let items = items.into_iter().filter_map(|(item, opened)| item.zip(opened));
        let noted = items.filter(|(_, opened)| to_start || !opened.is_begun());
        noted
            .filter_map(|(item, opened)| self.note(item, |s| s.note_opened(&item.subject, item.keep, opened)))
            .collect()
    }

    /// An item of this run, and another store on which this machine saw it started or done.
    fn other_store(&self) -> Option<(Subject, String)> {
        let seen = self.seen.as_ref()?;
        [Some(&self.item), self.key.as_ref()].into_iter().flatten().find_map(|item| {
            let other = seen.others(&item.subject, item.keep).into_iter().next()?;
            Some((item.subject.clone(), other))
        })
    }

    /// Makes a note of an item on this machine; gives the item and the reason if that failed.
    fn note(
        &self,
        item: &Item,
        note: impl FnOnce(&OtherStores) -> io::Result<()>,
    ) -> Option<(Subject, String)> {
        let failed = self.seen.as_ref().map(note)?.err()?;
        Some((item.subject.clone(), failed.to_string()))
    }

    /// Records the end of the item, if this run started it. [`ItemState::Planned`]: its command was never executed.
    pub fn record(
        &mut self,
        store: &mut dyn Store,
        state: ItemState,
        ending: Ending,
        until: BootTime,
    ) -> ItemRecorded {
        if state != ItemState::Planned {
            return self.close(store, state, &ending, until);
        }
        let (state, reason, said) = never_executed(self.opened_key());
        self.close(store, state, &Ending { reason, said, ..ending }, until)
    }

    /// Records the end of the key, and then of the item ([`slot_follows`]).
    fn close(
        &mut self,
        store: &mut dyn Store,
        state: ItemState,
        ending: &Ending,
        until: BootTime,
    ) -> ItemRecorded {
        let mut recorded = ItemRecorded::default();
        let Some(ours) = self.ours.take() else { return recorded };
        let mut finished = |item: &Item, entry: &Entry, version, unnoted: &mut Vec<_>| {
            let finished = finish(entry, state, ending.clone());
            let amending = Amending::by_run(version, finished, random::seed());
            let closed = amend_until(store, amending, until, &mut nothing);
            if let Amended::Done(entry, _) = &closed {
                unnoted.extend(self.note(item, |seen| seen.note(entry, item.keep)));
            }
            closed
        };
        let entry = ours.whole();
        if let (Some(Opened::Begun(entry, version)), Some(key)) = (ours.key, &self.key) {
            let closed = finished(key, &entry, version, &mut recorded.unnoted);
            recorded.key = Some(closed.clone());
            if !slot_follows(&closed) {
                recorded.item = Some(closed);
                return recorded;
            }
        }
        recorded.item = Some(finished(&self.item, &entry, ours.version, &mut recorded.unnoted));
        recorded
    }

    /// Records that a step is done. If the outcome of that write is unknown, the next write records it again.
    pub fn step(
        &mut self,
        store: &mut dyn Store,
        name: &str,
        output: Option<String>,
        until: BootTime,
        between: Between<'_>,
    ) -> Amended {
        let Some(ours) = &mut self.ours else { return Amended::Superseded(None) };
        let entry = ours.whole();
        let next = match step_done(&entry, name, output) {
            Some(next) => next,
            None if ours.unrecorded.is_empty() => return Amended::Done(entry, ours.version.clone()),
            None => entry,
        };
        let steps = next.steps.clone();
        let amending = Amending::by_run(ours.version.clone(), next, random::seed());
        let amended = amend_until(store, amending, until, between);
        match &amended {
            Amended::Done(entry, version) => {
                (ours.entry, ours.version) = (entry.clone(), version.clone());
                ours.unrecorded.clear();
            }
            Amended::Failed(_) => {
                let known = &ours.entry.steps;
                ours.unrecorded = steps.into_iter().filter(|step| !known.contains(step)).collect();
            }
            Amended::Superseded(_) => {}
        }
        amended
    }
}

#[cfg(test)]
mod tests;
