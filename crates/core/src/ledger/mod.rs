//! Work that is done once: the record of an item, and whether a run may start it.
//!
//! An item is a key, or one slot of a job. It has one record ([`Entry`]), and every change of it is a
//! compare-and-set on that record, so a run that was overtaken cannot finish an item. A run holds its lease
//! before it opens an item, and writes `started` before the command is executed. If a record says `started`
//! and that run does not hold its lease any more, the outcome of the run is unknown.

pub mod catch_up;
mod clock_skew;
mod item;
pub mod job_record;
mod next_run;
pub mod other_stores;
mod outcome;
mod record;
mod skip_reason;
mod slot_key;
mod transitions;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use item::{ItemOpened, ItemRecorded};
pub use next_run::{NextRun, next_run, shown_state};
pub use outcome::{ItemState, classify};
pub use record::{BadEntry, ENTRY_MAX};
pub use skip_reason::SettleReason;
pub use slot_key::{key_if_unknown, never_executed, slot_after_key, slot_follows, slot_without_key};
pub use transitions::{Amended, Amending, ItemCall, ItemNext, Opened, Opening};

use crate::additions::Additions;
use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::name::Name;
use crate::record::{Holder, LeaseRecord};
use crate::rules::{LeaseStanding, Rules, Standard, View};
use crate::store::Stored;

/// Longest key, in bytes.
pub const KEY_MAX: usize = 255;
/// Longest name of a step, in bytes.
pub const STEP_NAME_MAX: usize = 128;

/// Steps leave this much of a record free, in bytes, so that the ending always has room.
const ENDING_ROOM: usize = 1024;

/// One item of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Subject {
    /// A key, named by the user; one for the whole store.
    Key(String),
    /// A slot of a job.
    Slot {
        /// The job.
        job: Name,
        /// When it is due, in seconds since 1970. Slots are ordered by it.
        at: i64,
        /// Its name.
        id: String,
    },
    /// The last run of a job that was ok, for its cooldown.
    Latest(Name),
}

/// The run that started an item, and its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemClaim {
    /// The lease it held.
    pub lease: Name,
    /// The epoch of that lease's record.
    pub epoch: Epoch,
    /// Its token.
    pub token: Token,
    /// Its grant. While this grant holds the lease, the run is at work on the item.
    pub grant: Grant,
    /// The run.
    pub holder: Holder,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ending {
    /// The command's exit code, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// How long it ran.
    pub took_ms: u64,
    /// When it ended, by its machine's clock; for people.
    pub at: String,
    /// Why it was settled without a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<SettleReason>,
    /// For people: the last lines that the command printed, if it failed; the cause, if it was skipped; or
    /// the person who said that it was done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl Ending {
    /// The reason and its details, for people.
    pub fn told(&self) -> String {
        match self.reason {
            Some(reason) => format!("{}: {}", reason.word(), self.said),
            None => self.said.clone(),
        }
    }
}

/// A step that is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRecord {
    /// Its name within the item.
    pub name: String,
    /// The token of the run that did it.
    pub token: Token,
    /// Its output, if that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// The record of one item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The item itself, so that a record copied under another key is noticed.
    pub subject: Subject,
    /// The name of the job.
    pub job: Name,
    /// Its state.
    pub state: ItemState,
    /// How many runs have started it.
    pub attempt: u32,
    /// How many runs failed since a person last asked for it to be tried again.
    pub failures: u32,
    /// How many runs in a row ended with an unknown outcome, since a step was done or a person asked for it
    /// to be tried again.
    pub silences: u32,
    /// The run that started it last.
    pub claim: ItemClaim,
    /// The time from its first start to this write, by the store's clock, if known.
    pub since_first: Option<Duration>,
    /// How the last run ended.
    pub ending: Option<Ending>,
    /// The steps that are done, by any run.
    pub steps: Vec<StepRecord>,
    /// Additions of later versions, kept unread.
    pub more: Additions,
    /// The write that stored this.
    pub write: WriteId,
}

/// The addition to the entry of a key that is done for a time only.
const COMES_AGAIN: &str = "comes_again";

impl Entry {
    /// Whether it is a key that is done for a time only: its lease will be used again, and fences may remember it.
    pub fn comes_again(&self) -> bool {
        self.more.contains_key(COMES_AGAIN)
    }
}

/// What to do about an item if the outcome of its last run is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IfUnknown {
    /// Leave it to a person.
    Refuse,
    /// Run it again.
    Retry,
    /// Run it again if a step of it is done: its command can go on after that step.
    RetryWithSteps,
    /// Run it again until this long after its first start, while the provider still knows the key.
    RetryWithin(Duration),
}

/// After this many runs in a row with an unknown outcome, or as many as it may fail if that is more, the item
/// waits for a person: a job that hangs, or takes its machine down, must not be started without end.
pub const SILENCES: u32 = 10;

/// What to do about a slot if the outcome of its run is unknown: run it again if the job says so, or if steps
/// are done.
pub fn unknown_slot(retry: bool) -> IfUnknown {
    if retry { IfUnknown::Retry } else { IfUnknown::RetryWithSteps }
}

/// A run's request to start an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRequest {
    /// The item.
    pub subject: Subject,
    /// The name of the job.
    pub job: Name,
    /// The run.
    pub claim: ItemClaim,
    /// What to do if the outcome of the last run is unknown.
    pub if_unknown: IfUnknown,
    /// How often it may fail before it waits for a person.
    pub attempts: u32,
    /// A record that says done is ignored after this time.
    pub keep: Option<Duration>,
}

/// Whether an item may be started.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemVerdict {
    /// Write this. Once it is written, the command may be executed.
    Begin(Entry),
    /// First find out whether this lease is still held by this grant.
    AskLease(Name, Grant),
    /// It is done.
    Done,
    /// It was skipped before, and is not run.
    Skipped,
    /// Another run is at work on it.
    InProgress,
    /// The outcome of its last run is unknown. Write this, so that people see it.
    Unknown(Entry, RetryDoubt),
    /// It failed too often.
    Quarantined,
}

/// Why an item with an unknown outcome is not run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryDoubt {
    /// Neither the command nor the job asks for that.
    NotAsked,
    /// It was started too long ago: the provider no longer knows the key.
    TooLate {
        /// By the store's clock.
        since_first: Duration,
    },
    /// It may have been started too long ago: the store has no clock.
    NoClock,
    /// Too many runs in a row ended with an unknown outcome.
    TooOften {
        /// How many.
        silences: u32,
    },
}

/// An entry as it was found.
#[derive(Clone, Copy, Debug)]
pub struct FoundEntry<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// How long it has been stored, by the store's clock, if known.
    pub age: Option<Duration>,
}

/// Whether `ask` may start its item. `alive`: whether the run that started it still holds its lease, if that
/// is known.
pub fn begin(
    found: Option<FoundEntry<'_>>,
    ask: &ItemRequest,
    alive: Option<Alive>,
    write: WriteId,
) -> ItemVerdict {
    let Some(found) = found else { return ItemVerdict::Begin(first(ask, write)) };
    let entry = found.entry;
    match entry.state {
        ItemState::Ok if outlived(found, ask.keep) => {
            ItemVerdict::Begin(Entry { more: noting_keep(&entry.more, ask), ..first(ask, write) })
        }
        ItemState::Ok => ItemVerdict::Done,
        ItemState::Skipped => ItemVerdict::Skipped,
        ItemState::Planned => ItemVerdict::Begin(again(found, ask, write)),
        ItemState::Failed if failed_too_often(entry.failures, ask.attempts) => ItemVerdict::Quarantined,
        ItemState::Failed => ItemVerdict::Begin(again(found, ask, write)),
        ItemState::Started => match stands(entry, &ask.claim, alive) {
            Stands::Ours => ItemVerdict::Begin(Entry { write, ..entry.clone() }),
            Stands::Ask => ItemVerdict::AskLease(entry.claim.lease.clone(), entry.claim.grant),
            Stands::Alive => ItemVerdict::InProgress,
            Stands::Gone => after_silence(found, ask, write),
        },
        ItemState::Lost | ItemState::Killed | ItemState::Unknown => after_silence(found, ask, write),
    }
}

/// Whether an item with this many failures waits for a person.
pub fn failed_too_often(failures: u32, attempts: u32) -> bool {
    failures >= attempts
}

/// Whether a run still holds its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// Yes.
    Yes,
    /// The record says so, but its age is unknown. Only a run that watches the lease for its TTL can tell.
    Perhaps,
    /// No: another run may have the lease.
    No,
}

/// A lease, as one look at the store finds it.
#[allow(clippy::large_enum_variant)] // there are few of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseSeen {
    /// It has no record.
    Absent,
    /// Its record cannot be read. Any run may hold it, so it never counts as free.
    Unreadable,
    /// The record and the state of the lease.
    Stands(LeaseRecord, LeaseStanding),
}

impl LeaseSeen {
    /// Judges the record that was read under the key of a lease.
    pub fn of(lease: &Name, stored: Option<&Stored>, resolution: Duration, instance: &str) -> Self {
        let Some(stored) = stored else { return Self::Absent };
        let Ok(record) = LeaseRecord::decode(lease, &stored.body) else { return Self::Unreadable };
        let view = View::at_a_glance(&record, stored.age, resolution, instance);
        let standing = Standard.standing(&record, &view);
        Self::Stands(record, standing)
    }
}

/// Whether this grant still holds the lease.
pub fn alive(grant: Grant, lease: &LeaseSeen) -> Alive {
    match lease {
        LeaseSeen::Absent => Alive::No,
        LeaseSeen::Unreadable => Alive::Yes,
        LeaseSeen::Stands(record, _) if !record.held_by(grant) => Alive::No,
        LeaseSeen::Stands(_, LeaseStanding::Held { ends_in: Some(_) }) => Alive::Yes,
        LeaseSeen::Stands(_, LeaseStanding::Held { ends_in: None }) => Alive::Perhaps,
        LeaseSeen::Stands(_, LeaseStanding::Free | LeaseStanding::Expired) => Alive::No,
    }
}

/// The entry at the end of our run.
pub fn finish(ours: &Entry, state: ItemState, ending: Ending) -> Entry {
    let failures = ours.failures + u32::from(state == ItemState::Failed);
    let entry = Entry { state, failures, ending: Some(ending.clone()), ..ours.clone() };
    if entry.encode().is_some() {
        return entry;
    }
    // Too long: the output is left out, the outcome is kept.
    Entry { ending: Some(Ending { said: String::new(), ..ending }), ..entry }
}

/// The entry with one more step done; none if the step is there already. Its output is left out if it would
/// leave no room for the ending.
pub fn step_done(ours: &Entry, name: &str, output: Option<String>) -> Option<Entry> {
    if ours.steps.iter().any(|step| step.name == name) {
        return None;
    }
    let with = |output| {
        let mut entry = Entry { silences: 0, ..ours.clone() };
        entry.steps.push(StepRecord { name: name.into(), token: ours.claim.token, output });
        entry
    };
    let whole = with(output);
    Some(if has_room(&whole) { whole } else { with(None) })
}

/// The state of a step, for the run that is about to do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepStands {
    /// It is not done yet.
    Open,
    /// It is done, and recorded.
    Done(StepRecord),
    /// It is done, but its recording is in doubt.
    Unrecorded(StepRecord),
    /// It must not be done, because the record has no room for it.
    Full,
}

/// The state of one step. `whole` is our entry with every step that is done; `unrecorded` are the steps among
/// them whose recording is in doubt. Both must be taken at one moment: a step that is recorded in between
/// would seem to be open.
pub fn step_stands(whole: &Entry, unrecorded: &[StepRecord], name: &str) -> StepStands {
    let named = |step: &&StepRecord| step.name == name;
    match (unrecorded.iter().find(named), whole.steps.iter().find(named)) {
        (Some(step), _) => StepStands::Unrecorded(step.clone()),
        (None, Some(step)) => StepStands::Done(step.clone()),
        (None, None) if step_done(whole, name, None).is_none_or(|entry| has_room(&entry)) => StepStands::Open,
        (None, None) => StepStands::Full,
    }
}

/// Whether the record has room for an ending.
fn has_room(entry: &Entry) -> bool {
    entry.encode().is_some_and(|body| body.len() + ENDING_ROOM <= ENTRY_MAX)
}

/// The entry after a person asked for it to be tried again; none if it is done, or a run is at work on it.
pub fn retry(found: &Entry, alive: bool) -> Option<Entry> {
    match found.state {
        ItemState::Ok | ItemState::Planned => None,
        ItemState::Started if alive => None,
        _ => {
            // A slot that was skipped counts as attempted from now on.
            let attempt = found.attempt.max(1);
            // The reason becomes text for people: the item is open again.
            let ending = found.ending.clone().map(|end| Ending { said: end.told(), reason: None, ..end });
            Some(Entry {
                state: ItemState::Planned,
                failures: 0,
                silences: 0,
                attempt,
                ending,
                ..found.clone()
            })
        }
    }
}

/// The entry after a person said that the item is done; none if it is, or a run is at work on it.
pub fn settle(found: &Entry, alive: bool, ending: Ending) -> Option<Entry> {
    retry(found, alive)
        .or_else(|| (found.state == ItemState::Planned).then(|| found.clone()))
        // An item that was never started was done elsewhere: that is one attempt.
        .map(|entry| Entry {
            state: ItemState::Ok,
            attempt: entry.attempt.max(1),
            ending: Some(ending),
            ..entry
        })
}

/// The ending of an item that a person, `who`, said is done.
pub fn done_by_hand(who: &str, at: String) -> Ending {
    Ending { exit: None, took_ms: 0, at, reason: Some(SettleReason::ByHand), said: who.into() }
}

impl Entry {
    /// The person who said that it is done, if one did.
    pub fn done_by_hand(&self) -> Option<&str> {
        self.ending.as_ref().filter(|e| e.reason == Some(SettleReason::ByHand)).map(|e| e.said.as_str())
    }
}

enum Stands {
    /// It is our own earlier write, whose answer was lost.
    Ours,
    Ask,
    Alive,
    Gone,
}

fn stands(entry: &Entry, claim: &ItemClaim, alive: Option<Alive>) -> Stands {
    if entry.claim.grant == claim.grant {
        return Stands::Ours;
    }
    // Of two runs under one lease, the one with the higher token holds it. If that is the other run, it has
    // overtaken us, and we may not know it yet.
    if entry.claim.lease == claim.lease && entry.claim.epoch == claim.epoch {
        return if entry.claim.token < claim.token { Stands::Gone } else { Stands::Alive };
    }
    match alive {
        None => Stands::Ask,
        Some(Alive::Yes | Alive::Perhaps) => Stands::Alive,
        Some(Alive::No) => Stands::Gone,
    }
}

fn first(ask: &ItemRequest, write: WriteId) -> Entry {
    Entry {
        subject: ask.subject.clone(),
        job: ask.job.clone(),
        state: ItemState::Started,
        attempt: 1,
        failures: 0,
        silences: 0,
        claim: ask.claim.clone(),
        since_first: Some(Duration::ZERO),
        ending: None,
        steps: Vec::new(),
        more: noting_keep(&Additions::new(), ask),
        write,
    }
}

/// The additions of an entry, with a note if its run says that a key is done for a time only.
fn noting_keep(more: &Additions, ask: &ItemRequest) -> Additions {
    let mut more = more.clone();
    if ask.keep.is_some() && matches!(ask.subject, Subject::Key(_)) {
        more.insert(COMES_AGAIN.into(), true.into());
    }
    more
}

fn again(found: FoundEntry<'_>, ask: &ItemRequest, write: WriteId) -> Entry {
    Entry {
        job: ask.job.clone(),
        state: ItemState::Started,
        attempt: found.entry.attempt.saturating_add(1),
        silences: found.entry.silences + u32::from(found.entry.state.is_silent()),
        claim: ask.claim.clone(),
        since_first: since_first(found),
        ending: None,
        more: noting_keep(&found.entry.more, ask),
        write,
        ..found.entry.clone()
    }
}

fn since_first(found: FoundEntry<'_>) -> Option<Duration> {
    Some(found.entry.since_first?.saturating_add(found.age?))
}

fn outlived(found: FoundEntry<'_>, keep: Option<Duration>) -> bool {
    keep.is_some_and(|keep| found.age.is_some_and(|age| age > keep))
}

fn after_silence(found: FoundEntry<'_>, ask: &ItemRequest, write: WriteId) -> ItemVerdict {
    let silences = found.entry.silences + 1;
    let doubt = match (ask.if_unknown, since_first(found)) {
        (again, _) if again != IfUnknown::Refuse && silences >= SILENCES.max(ask.attempts) => {
            Some(RetryDoubt::TooOften { silences })
        }
        (IfUnknown::Retry, _) => None,
        (IfUnknown::RetryWithSteps, _) if !found.entry.steps.is_empty() => None,
        (IfUnknown::RetryWithin(keeps), Some(since)) if since < keeps => None,
        (IfUnknown::RetryWithin(_), Some(since_first)) => Some(RetryDoubt::TooLate { since_first }),
        (IfUnknown::RetryWithin(_), None) => Some(RetryDoubt::NoClock),
        (IfUnknown::Refuse | IfUnknown::RetryWithSteps, _) => Some(RetryDoubt::NotAsked),
    };
    let Some(doubt) = doubt else { return ItemVerdict::Begin(again(found, ask, write)) };
    let seen =
        Entry { state: ItemState::Unknown, since_first: since_first(found), write, ..found.entry.clone() };
    // Lost and killed say more than unknown: they stay.
    let entry = if found.entry.state == ItemState::Started { seen } else { found.entry.clone() };
    ItemVerdict::Unknown(entry, doubt)
}
