//! Work done once, against a store: the calls that [`leasehold_core::ledger`] asks for.

pub mod job;

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::ids::{Grant, WriteId};
use leasehold_core::ledger::{
    Alive, Amended, Amending, Ask, Call, Claim, Ending, Entry, Found, IfUnknown, Next, Opened, Opening,
    Reason, Seen, State, Step, StepStands, Subject, Verdict, begin, finish, key_if_unknown, slot_without_key,
    step_done, step_stands,
};
use leasehold_core::name::Name;
use leasehold_core::session::{Granted, Input, lease_key};
use leasehold_core::store::{Failure, Version};
use leasehold_core::time::BootTime;
use pollster::block_on;
use sha2::{Digest, Sha256};

use crate::elsewhere::Elsewhere;
use crate::stores::Store;
use crate::update::{Answer, Between, Patience, Then, drive, nothing};
use crate::{clock, host, random};

/// Records of keys, of slots, and of the last good run of a job begin with these.
pub const PREFIXES: [&str; 3] = ["keys/", "slots/", "latest/"];
/// Longest name of a record after its prefix; what is longer ends in a digest.
const NAME_MAX: usize = 200;
/// A slot whose key is not to be run says so for so long: the lease is not renewed meanwhile.
const HELD_OFF_PATIENCE: Duration = Duration::from_secs(1);

/// What a run is to do once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which.
    pub subject: Subject,
    /// What to do about a run that began it and never reported.
    pub if_unknown: IfUnknown,
    /// How often it may fail before a person has to look.
    pub attempts: u32,
    /// Forget that it was done after this long, by the store's clock.
    pub keep: Option<Duration>,
}

impl Item {
    /// What is asked about it by a run of this job, under this claim.
    pub fn ask(&self, job: &Name, claim: Claim) -> Ask {
        Ask {
            subject: self.subject.clone(),
            job: job.clone(),
            claim,
            if_unknown: self.if_unknown,
            attempts: self.attempts,
            keep: self.keep,
        }
    }
}

/// Where the record of an item is kept.
pub fn key_of(subject: &Subject) -> String {
    let [keys, _, latest] = PREFIXES;
    match subject {
        Subject::Key(key) => format!("{keys}{}", plain(key)),
        Subject::Slot { job, at, .. } => format!("{}{at:012}", slots_of(job)),
        Subject::Latest(job) => format!("{latest}{}", plain(job.as_str())),
    }
}

/// What the records of a job's slots begin with. No job's name has the sign in it, so one job's slots are apart from
/// another's, and in order.
pub fn slots_of(job: &Name) -> String {
    format!("{}{}@", PREFIXES[1], plain(job.as_str()))
}

/// The lease under which a key is worked on that has no other: named after it, as far as that is a name.
pub fn lease_of(key: &str) -> Name {
    let digest = || Name::new(&format!("key-{}.once", digest(key)));
    let named = Name::new(&format!("{key}.once")).or_else(|_| digest());
    named.unwrap_or_else(|e| unreachable!("hexadecimal digits are a name: {e}"))
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A text as part of a key that every store takes: no two become one, and it begins as the text does.
pub(crate) fn plain(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut after_word = false;
    for byte in text.bytes() {
        let word = matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        // Between words only: nothing that could be taken for a path.
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
    let digest = digest(text);
    name.truncate(NAME_MAX / 2);
    let kept = name.trim_end_matches(['.', '/']).len();
    name.truncate(kept);
    format!("{name}={digest}")
}

/// Looks whether there is anything to do at all, before a lease is asked for: an item that is done, is not to be
/// run or waits for a person needs no token.
pub fn peek(store: &mut dyn Store, item: &Item) -> Result<Option<Opened>, Failure> {
    let Some(stored) = block_on(store.read(&key_of(&item.subject)))? else { return Ok(None) };
    let entry = match Entry::decode_of(&item.subject, &stored.body) {
        Ok(entry) => entry,
        Err(bad) => return Ok(Some(Opened::Bad(bad))),
    };
    // Whether a run is at it is seen under the lease.
    let ask = item.ask(&entry.job, Claim::nobody(&entry.claim, random::seed()));
    let found = Found { entry: &entry, age: stored.age };
    Ok(match begin(Some(found), &ask, None, WriteId(random::seed())) {
        Verdict::Done => Some(Opened::Done(entry)),
        Verdict::Skipped => Some(Opened::Skipped(entry)),
        Verdict::Quarantined => Some(Opened::Quarantined(entry)),
        // What is recorded as silent already; whether one that says `started` is, is seen under the lease.
        Verdict::Unknown(seen, doubt) if seen == entry => Some(Opened::Unknown(seen, doubt)),
        _ => None,
    })
}

/// What is recorded of an item; nothing if there is nothing that can be read.
pub fn entry(store: &mut dyn Store, subject: &Subject) -> Result<Option<Entry>, Failure> {
    let stored = block_on(store.read(&key_of(subject)))?;
    Ok(stored.and_then(|stored| Entry::decode_of(subject, &stored.body).ok()))
}

/// Begins an item, or says why not; and whether it was begun again after a run that never reported.
pub fn open(store: &mut dyn Store, ask: Ask) -> (Opened, bool) {
    let key = key_of(&ask.subject);
    let mut opening = Opening::new(ask, random::seed());
    let opened = drive(store, &key, Then::Read, None, |store, answer| {
        let mut next = match answer {
            Answer::Read(read) => opening.on_read(read),
            Answer::Cas(cas) => opening.on_cas(cas),
        };
        loop {
            next = match next {
                Next::Call(Call::ReadLease(lease, grant)) => opening.on_lease(alive(store, &lease, grant)),
                Next::Call(Call::ReadSettled(job, at)) => {
                    opening.on_settled(job::is_settled(store, &job, at))
                }
                Next::Call(Call::Remove(version)) => {
                    block_on(store.remove(&key, &version));
                    opening.on_removed()
                }
                Next::Call(Call::Read) => return Then::Read,
                Next::Call(Call::Cas { expected, entry }) => return cas(expected, &entry),
                Next::Done(opened) => return Then::Done(opened),
            };
        }
    });
    let opened = opened.unwrap_or_else(|failure| Opened::Failed { failure, sent: true });
    (opened, opening.after_silence())
}

/// Changes an item that is ours.
pub fn amend(store: &mut dyn Store, amending: Amending) -> Amended {
    amended(store, amending, None)
}

/// Changes an item for the run that is at it: while the store does not answer it is tried again until then, with
/// pauses that grow. At least once.
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
        Next::Call(Call::Cas { expected, entry }) => cas(expected, &entry),
        Next::Call(_) => Then::Read,
        Next::Done(amended) => Then::Done(amended),
    };
    let (key, first) = (key_of(amending.subject()), then(Next::Call(amending.start())));
    let amended = drive(store, &key, first, patience, |_, answer| {
        then(match answer {
            Answer::Read(read) => amending.on_read(read),
            Answer::Cas(cas) => amending.on_cas(cas),
        })
    });
    amended.unwrap_or_else(Amended::Failed)
}

fn cas<T>(expected: Option<Version>, entry: &Entry) -> Then<T> {
    Then::Cas { expected, write: entry.write, body: entry.encode() }
}

/// Whether a lease is still with a grant.
pub fn alive(store: &mut dyn Store, lease: &Name, grant: Grant) -> Result<Alive, Failure> {
    Ok(leasehold_core::ledger::alive(grant, &seen(store, lease)?))
}

/// A lease as it is now.
pub fn seen(store: &mut dyn Store, lease: &Name) -> Result<Seen, Failure> {
    let stored = block_on(store.read(&lease_key(lease)))?;
    let facts = store.facts();
    Ok(Seen::of(lease, stored.as_ref(), facts.resolution, &facts.instance))
}

/// The item of one run, between the thread that owns the job and the one that calls the store.
#[derive(Clone, Debug)]
pub struct Book {
    item: Item,
    /// With a slot: what is done once together with it.
    key: Option<Item>,
    job: Name,
    /// Where this machine notes what it begins and ends.
    seen: Option<Elsewhere>,
    page: Arc<(Mutex<Page>, Condvar)>,
}

/// What came of it so far.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Of beginning it.
    pub opened: Option<Opened>,
    /// Of recording how it ended.
    pub closed: Option<Amended>,
    /// The same of the key of a slot.
    pub key_opened: Option<Opened>,
    /// The same of the key of a slot.
    pub key_closed: Option<Amended>,
    /// Steps that are done, and of which nobody knows whether the record says so.
    pub unrecorded: Vec<Step>,
    /// What is not run because of another store, and which.
    pub other_store: Option<(Subject, String)>,
    /// What this machine could not note, and why.
    pub unnoted: Vec<(Subject, String)>,
}

impl Page {
    /// What keeps the command from being executed.
    pub fn held_off(&self) -> Option<&Opened> {
        let all = [&self.opened, &self.key_opened];
        all.into_iter().flatten().find(|opened| !matches!(opened, Opened::Begun(..)))
    }

    /// Whether it was begun, or nobody has heard yet.
    pub fn may_be_ours(&self) -> bool {
        matches!(self.opened, None | Some(Opened::Begun(..)))
    }

    /// The entry that is ours with every step that is done, and where it goes on from.
    fn whole(&self) -> Option<(Entry, Version)> {
        let Some(Opened::Begun(entry, version)) = &self.opened else { return None };
        let add =
            |entry: Entry, step: &Step| step_done(&entry, &step.name, step.output.clone()).unwrap_or(entry);
        Some((self.unrecorded.iter().fold(entry.clone(), add), version.clone()))
    }
}

impl Book {
    /// For a run that is to do this once, and with a slot perhaps a key.
    pub fn new(item: Item, key: Option<Item>, job: Name) -> Self {
        Self { item, key, job, seen: None, page: Arc::default() }
    }

    /// What is begun and ended is noted there too.
    pub fn noted_in(self, seen: Option<Elsewhere>) -> Self {
        Self { seen, ..self }
    }

    /// What came of it so far.
    pub fn page(&self) -> Page {
        self.page.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut Page)) {
        change(&mut self.page.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.page.1.notify_all();
    }

    /// Waits, at most that long, until it is recorded how it ended, or that it was not begun at all.
    pub fn wait_closed(&self, at_most: Duration) {
        let page = self.page.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |page: &mut Page| page.closed.is_none() && page.may_be_ours();
        drop(self.page.1.wait_timeout_while(page, at_most, open));
    }

    /// The entry, once it is ours.
    pub fn entry(&self) -> Option<Entry> {
        match self.page().opened {
            Some(Opened::Begun(entry, _)) => Some(entry),
            _ => None,
        }
    }

    /// How a step of it stands, once it is ours.
    pub fn step_stands(&self, name: &str) -> Option<StepStands> {
        let page = self.page();
        page.whole().map(|(entry, _)| step_stands(&entry, &page.unrecorded, name))
    }

    /// Begins the item under this grant; what the session hears of it.
    pub fn open(
        &self,
        store: &mut dyn Store,
        granted: &Granted,
        holder: &leasehold_core::record::Holder,
    ) -> Input {
        let claim = Claim {
            lease: granted.lease.clone(),
            epoch: granted.epoch,
            token: granted.token,
            grant: granted.grant,
            holder: holder.clone(),
        };
        let (opened, silent) = open(store, self.item.ask(&self.job, claim.clone()));
        let begun = matches!(opened, Opened::Begun(..));
        self.note(|page| page.opened = Some(opened));
        let begun = begun && self.key.as_ref().is_none_or(|key| self.open_key(store, key, claim, silent));
        self.note_opened(begun);
        // Looked at after the note was made: of two runs on two stores, one sees the other.
        let other = self.other_store();
        let begun = begun && other.is_none();
        self.note(|page| page.other_store = other);
        Input::Sealed(if begun { Ok(()) } else { Err("this item is not to be run now".into()) })
    }

    /// Begins the key of a slot that is begun. If it is not to be, the slot says so and is over.
    fn open_key(&self, store: &mut dyn Store, item: &Item, claim: Claim, silent: bool) -> bool {
        let if_unknown = key_if_unknown(item.if_unknown, silent);
        let (opened, _) = open(store, Ask { if_unknown, ..item.ask(&self.job, claim) });
        let Subject::Key(key) = &item.subject else { unreachable!("beside a slot there is only a key") };
        let held_off = slot_without_key(key, &opened);
        let unheard = matches!(opened, Opened::Failed { .. });
        self.note(|page| page.key_opened = Some(opened));
        let Some((state, reason, said)) = held_off else { return true };
        // A store that does not answer would keep the run from ending: the slot is left for later.
        if unheard {
            return false;
        }
        let at = host::utc(clock::wall().as_secs());
        let until = clock::boot_time().plus(HELD_OFF_PATIENCE);
        self.close(store, state, &Ending { exit: None, took_ms: 0, at, reason, said }, until);
        false
    }

    /// Notes on this machine what came of opening. A slot that was begun is not, if its command is not to start.
    fn note_opened(&self, to_start: bool) {
        let page = self.page();
        let items = [(Some(&self.item), &page.opened), (self.key.as_ref(), &page.key_opened)];
        for (item, opened) in items {
            if let (Some(item), Some(opened)) = (item, opened)
                && (to_start || !matches!(opened, Opened::Begun(..)))
            {
                self.seen(item, |seen, item| seen.note_opened(&item.subject, item.keep, opened));
            }
        }
    }

    /// An item of this run, and another store on which this machine saw it begun or done meanwhile.
    fn other_store(&self) -> Option<(Subject, String)> {
        let seen = self.seen.as_ref()?;
        [Some(&self.item), self.key.as_ref()].into_iter().flatten().find_map(|item| {
            let other = seen.others(&item.subject, item.keep).into_iter().next()?;
            Some((item.subject.clone(), other))
        })
    }

    /// Notes something of an item on this machine.
    fn seen(&self, item: &Item, note: impl FnOnce(&Elsewhere, &Item) -> io::Result<()>) {
        if let Some(Err(e)) = self.seen.as_ref().map(|seen| note(seen, item)) {
            self.note(|page| page.unnoted.push((item.subject.clone(), e.to_string())));
        }
    }

    /// Leaves it, if it was begun, to the next run: its command is never executed.
    pub fn take_back(&self, store: &mut dyn Store, ending: Ending, until: BootTime) {
        let (state, reason, said) = self.never_executed();
        self.close(store, state, &Ending { reason, said, ..ending }, until);
    }

    /// How it is left if its command is never executed: to the next run, unless it was its key that failed.
    fn never_executed(&self) -> (State, Option<Reason>, String) {
        let (page, key) = (self.page(), self.key.as_ref().map(|key| &key.subject));
        let held_off = match (key, &page.key_opened) {
            (Some(Subject::Key(key)), Some(opened)) => slot_without_key(key, opened),
            _ => None,
        };
        let next = || (State::Planned, None, "the run ended before its command was begun".into());
        held_off.unwrap_or_else(next)
    }

    /// Records that a step is done. If nobody knows whether it is recorded, the next write says so again.
    pub fn step(
        &self,
        store: &mut dyn Store,
        name: &str,
        output: Option<String>,
        until: BootTime,
        between: Between<'_>,
    ) -> Amended {
        let page = self.page();
        let Some((entry, version)) = page.whole() else { return Amended::Superseded(None) };
        let next = match step_done(&entry, name, output) {
            Some(next) => next,
            None if page.unrecorded.is_empty() => return Amended::Done(entry, version),
            None => entry,
        };
        let steps = next.steps.clone();
        let amended = amend_until(store, Amending::by_run(version, next, random::seed()), until, between);
        self.note(|page| match (&amended, &page.opened) {
            (Amended::Done(entry, version), _) => {
                page.opened = Some(Opened::Begun(entry.clone(), version.clone()));
                page.unrecorded.clear();
            }
            (Amended::Failed(_), Some(Opened::Begun(known, _))) => {
                page.unrecorded = steps.into_iter().filter(|step| !known.steps.contains(step)).collect();
            }
            _ => {}
        });
        amended
    }

    /// Records how it ended: the key first, for whoever finds only one of them closed finds the slot open.
    pub fn close(&self, store: &mut dyn Store, state: State, ending: &Ending, until: BootTime) {
        let page = self.page();
        let (Some((entry, version)), None) = (page.whole(), page.closed) else { return };
        let mut finished = |item: &Item, entry: &Entry, version| {
            let finished = finish(entry, state, ending.clone());
            let amending = Amending::by_run(version, finished, random::seed());
            let closed = amend_until(store, amending, until, &mut nothing);
            if let Amended::Done(entry, _) = &closed {
                self.seen(item, |seen, item| seen.note(entry, item.keep));
            }
            closed
        };
        if let (Some(Opened::Begun(entry, version)), Some(key)) = (page.key_opened, &self.key) {
            let closed = finished(key, &entry, version);
            let failed = matches!(closed, Amended::Failed(_)).then(|| closed.clone());
            self.note(|page| page.key_closed = Some(closed));
            if failed.is_some() {
                return self.note(|page| page.closed = failed);
            }
        }
        let closed = finished(&self.item, &entry, version);
        self.note(|page| page.closed = Some(closed));
    }
}

#[cfg(test)]
mod tests;
