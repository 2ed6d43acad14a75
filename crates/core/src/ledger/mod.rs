//! Work done once: what is kept of an item of work, and whether it may be begun.
//!
//! An item is a key, or one slot of a job. It has one record ([`Entry`]), and every change of it is a
//! compare-and-set on that record: whoever was overtaken cannot finish what is no longer theirs. A run holds
//! its lease before it begins an item, and writes `started` before the command is executed. So a record
//! that says `started` while that lease is with nobody, or somebody else, tells of a run that never reported.

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

/// Steps leave this much of a record free, in bytes: how a run ended counts for more than what it printed.
const ENDING_ROOM: usize = 1024;

/// One item of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Subject {
    /// Whatever the user calls it; one for the whole store.
    Key(String),
    /// A slot of a job.
    Slot {
        /// Whose.
        job: Name,
        /// When it is due, in seconds since 1970: slots are ordered by it.
        at: i64,
        /// What it is called.
        id: String,
    },
    /// The last good run of a job, for the time in which it is not to be run again.
    Latest(Name),
}

/// Which run is, or was, at it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemClaim {
    /// The lease it held.
    pub lease: Name,
    /// Which life of that lease's record.
    pub epoch: Epoch,
    /// Its token.
    pub token: Token,
    /// The acquisition: the claim lives while this holds the lease.
    pub grant: Grant,
    /// The run that made it.
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
    /// When it ended, by that machine's clock; for people.
    pub at: String,
    /// Why it was settled without a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<SettleReason>,
    /// The last lines of what it printed, if it failed; what was in its way; or who said that it was done. For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl Ending {
    /// The reason and what is said about it, for people.
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
    /// What it is called within its item.
    pub name: String,
    /// The token of the run that did it.
    pub token: Token,
    /// What it printed, if that was to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// All that is kept of one item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The item itself, so that a record copied under another key is noticed.
    pub subject: Subject,
    /// What the work is called.
    pub job: Name,
    /// How far it has come.
    pub state: ItemState,
    /// How often it was begun.
    pub attempt: u32,
    /// How often it failed since somebody last asked for it to be tried again.
    pub failures: u32,
    /// How many runs of it never reported since it last got on, or somebody asked for it to be tried again.
    pub silences: u32,
    /// The run that is, or was last, at it.
    pub claim: ItemClaim,
    /// By the store's clock, between the first beginning and this write; nothing if nobody can tell.
    pub since_first: Option<Duration>,
    /// How the last run ended.
    pub ending: Option<Ending>,
    /// Steps that are done, whichever run did them.
    pub steps: Vec<StepRecord>,
    /// Additions of later versions, carried along unread.
    pub more: Additions,
    /// The write that stored this.
    pub write: WriteId,
}

/// What to do about an item that a run began and never reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IfUnknown {
    /// Leave it to a person.
    Refuse,
    /// Run it again, whatever happened.
    Retry,
    /// Run it again if it had come as far as one step: it is written to be gone on with.
    RetryWithSteps,
    /// Run it again while whoever is on the other side still knows the key: this long after the first time.
    RetryWithin(Duration),
}

/// After so many runs in a row that never reported, or as many as it may fail if that is more, a person has to look:
/// what hangs, or takes its machine down, must not do so for ever.
pub const SILENCES: u32 = 10;

/// What is done about a slot whose run never reported: again if the job says so, or is written to be gone on with.
pub fn unknown_slot(retry: bool) -> IfUnknown {
    if retry { IfUnknown::Retry } else { IfUnknown::RetryWithSteps }
}

/// What a run wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRequest {
    /// The item.
    pub subject: Subject,
    /// What the work is called.
    pub job: Name,
    /// The run.
    pub claim: ItemClaim,
    /// What to do about one that never reported.
    pub if_unknown: IfUnknown,
    /// How often it may fail before a person has to look.
    pub attempts: u32,
    /// Forget that it was done after this long.
    pub keep: Option<Duration>,
}

/// Whether an item may be begun.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemVerdict {
    /// Write this; if it is written, the command may be executed.
    Begin(Entry),
    /// First find out whether this lease is still held by this grant.
    AskLease(Name, Grant),
    /// It is done.
    Done,
    /// It was decided that it is not to be run.
    Skipped,
    /// Another run is at it.
    InProgress,
    /// A run began it and never said how it ended. Write this, for people to see.
    Unknown(Entry, RetryDoubt),
    /// It failed too often.
    Quarantined,
}

/// Why an item that never reported is not run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryDoubt {
    /// Nobody said that it may be.
    NotAsked,
    /// It is too long ago for the other side to know the key.
    TooLate {
        /// By the store's clock.
        since_first: Duration,
    },
    /// It may be too long ago: the store cannot tell.
    NoClock,
    /// It was begun again and again, and never reported.
    TooOften {
        /// So often in a row.
        silences: u32,
    },
}

/// An entry as found, and how long it has been there by the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct FoundEntry<'a> {
    /// What is stored.
    pub entry: &'a Entry,
    /// Nothing if nobody can tell.
    pub age: Option<Duration>,
}

/// Whether `ask` may begin its item. `alive`: whether the run that is at it still holds its lease, if that
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
            ItemVerdict::Begin(Entry { more: entry.more.clone(), ..first(ask, write) })
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

/// Whether an item that failed so often waits for a person.
pub fn failed_too_often(failures: u32, attempts: u32) -> bool {
    failures >= attempts
}

/// Whether a run still holds its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// It does.
    Yes,
    /// It does as far as can be seen: only who watches the lease for as long as it lasts can tell.
    Perhaps,
    /// It does not: others may have the lease.
    No,
}

/// A lease as one look at the store finds it.
#[allow(clippy::large_enum_variant)] // there are few of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseSeen {
    /// It has no record.
    Absent,
    /// Its record cannot be read. It may be with anybody, so it is never free.
    Unreadable,
    /// What its record means.
    Stands(LeaseRecord, LeaseStanding),
}

impl LeaseSeen {
    /// What was read under the key of a lease.
    pub fn of(lease: &Name, stored: Option<&Stored>, resolution: Duration, instance: &str) -> Self {
        let Some(stored) = stored else { return Self::Absent };
        let Ok(record) = LeaseRecord::decode(lease, &stored.body) else { return Self::Unreadable };
        let view = View::at_a_glance(&record, stored.age, resolution, instance);
        let standing = Standard.standing(&record, &view);
        Self::Stands(record, standing)
    }
}

/// Whether a lease still lets this grant work: held by it, and not run out.
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

/// Our entry as the run leaves it.
pub fn finish(ours: &Entry, state: ItemState, ending: Ending) -> Entry {
    let failures = ours.failures + u32::from(state == ItemState::Failed);
    let entry = Entry { state, failures, ending: Some(ending.clone()), ..ours.clone() };
    if entry.encode().is_some() {
        return entry;
    }
    // How it ended counts for more than what it printed.
    Entry { ending: Some(Ending { said: String::new(), ..ending }), ..entry }
}

/// The entry with one more step done. Nothing if it is there already. What it printed is left out where that would
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

/// How a step of an item stands for whoever is about to do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepStands {
    /// It is to be done.
    Open,
    /// It is done, and recorded.
    Done(StepRecord),
    /// It is done, and nobody knows whether the record says so.
    Unrecorded(StepRecord),
    /// It is not to be done: that it was could not be recorded.
    Full,
}

/// The same of one step, given our entry with every step that is done, and those of them of which nobody knows whether
/// they are recorded. Both as of one moment: between two looks a step may be recorded, and would seem to be open.
pub fn step_stands(whole: &Entry, unrecorded: &[StepRecord], name: &str) -> StepStands {
    let named = |step: &&StepRecord| step.name == name;
    match (unrecorded.iter().find(named), whole.steps.iter().find(named)) {
        (Some(step), _) => StepStands::Unrecorded(step.clone()),
        (None, Some(step)) => StepStands::Done(step.clone()),
        (None, None) if step_done(whole, name, None).is_none_or(|entry| has_room(&entry)) => StepStands::Open,
        (None, None) => StepStands::Full,
    }
}

/// Whether an ending fits in as well.
fn has_room(entry: &Entry) -> bool {
    entry.encode().is_some_and(|body| body.len() + ENDING_ROOM <= ENTRY_MAX)
}

/// The entry after a person said that it may be tried again; nothing where there is nothing to say:
/// it is done, or a run is at it.
pub fn retry(found: &Entry, alive: bool) -> Option<Entry> {
    match found.state {
        ItemState::Ok | ItemState::Planned => None,
        ItemState::Started if alive => None,
        // One that was waved off has been there all the same.
        _ => {
            let attempt = found.attempt.max(1);
            // Why it was settled is for people now: it is settled no longer.
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

/// The entry after a person said that it was done all the same; nothing where there is nothing to say.
pub fn settle(found: &Entry, alive: bool, ending: Ending) -> Option<Entry> {
    retry(found, alive)
        .or_else(|| (found.state == ItemState::Planned).then(|| found.clone()))
        // What was never begun was done elsewhere, once.
        .map(|entry| Entry {
            state: ItemState::Ok,
            attempt: entry.attempt.max(1),
            ending: Some(ending),
            ..entry
        })
}

/// How an item ended that a person said was done; `who` that was, for people.
pub fn done_by_hand(who: &str, at: String) -> Ending {
    Ending { exit: None, took_ms: 0, at, reason: Some(SettleReason::ByHand), said: who.into() }
}

impl Entry {
    /// Who said that it was done, if a person did.
    pub fn done_by_hand(&self) -> Option<&str> {
        self.ending.as_ref().filter(|e| e.reason == Some(SettleReason::ByHand)).map(|e| e.said.as_str())
    }
}

enum Stands {
    /// Our own earlier write, of which no answer came.
    Ours,
    Ask,
    Alive,
    Gone,
}

fn stands(entry: &Entry, claim: &ItemClaim, alive: Option<Alive>) -> Stands {
    if entry.claim.grant == claim.grant {
        return Stands::Ours;
    }
    // One lease is held by one at a time, the one with the highest token. If that is the other, we were overtaken
    // and may not know it yet.
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
        more: Additions::new(),
        write,
    }
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
    // What is told apart already stays as it was told.
    let entry = if found.entry.state == ItemState::Started { seen } else { found.entry.clone() };
    ItemVerdict::Unknown(entry, doubt)
}
