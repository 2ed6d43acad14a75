//! A job that is due again and again: which of its slots are settled, and why some were never run.
//!
//! There is one record of it in the store ([`JobRecord`]), changed by compare-and-set like all others. What lies after
//! [`JobRecord::settled`] is looked at again and again. What lies before is accounted for: by a record of its own, by
//! the range it was dropped in, or in [`JobRecord::open`] if it is not over yet. Records are removed only where they
//! are accounted for.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::catch_up::{Calendar, Counted};
pub use super::skip_reason::DropReason;
use super::{
    Alive, BadEntry, Ending, Entry, FoundEntry, ItemClaim, ItemRequest, ItemState, ItemVerdict, LeaseSeen,
    SettleReason, Subject, begin,
};
use crate::additions::{self, Additions};
use crate::ids::{Epoch, Grant, WriteId};
use crate::name::Name;
use crate::record::{Holder, LeaseRecord};
use crate::rules::LeaseStanding;
use crate::update::Record;

/// The format this version writes. It reads format 1 as well.
const FORMAT: u64 = 2;
/// Ranges of dropped slots that are remembered; the oldest are forgotten first.
pub const RANGES_MAX: usize = 250;
/// Slots in such ranges that have a record all the same; with more, the oldest ranges are forgotten.
const BESIDE_MAX: usize = 500;
/// Slots that may be open at a time beside those that are due.
pub const OPEN_MAX: usize = 100;
/// So many slots that gave way in a row are no accident.
pub const STUCK: usize = 3;
/// Longest record.
const BODY_MAX: usize = 60 * 1024;

/// What is known of a job in this store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    leasehold_job: u64,
    /// The job itself, so that a record copied under another key is noticed.
    pub job: Name,
    /// When it is due, as it was written; for people.
    pub schedule: String,
    /// When it is due, to compare. Format 1 has the text alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ScheduleKey>,
    /// It came into force at this second: what lies before was due at other times.
    #[serde(default)]
    pub since: i64,
    /// Every slot that is due at or before this second is settled, but for those in `open`.
    pub settled: i64,
    /// Slots at or before that second that are not over: a run is at them, or they are to be run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<i64>,
    /// Nothing of it is to be run for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// Slots that were not run, the newest range last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<DroppedRange>,
    /// Slots between the first and the last of a range that were not dropped: they have a record of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<i64>,
    /// Additions of later versions, carried along unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    pub more: Additions,
    /// The write that stored this.
    pub write: WriteId,
}

/// When a job is due, as machines compare it: however it is written, equal values are one schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ScheduleKey {
    /// By an interval.
    Every {
        /// Between two slots.
        seconds: i64,
        /// How far the slots are moved from the multiples of that, counted from 1970.
        offset: i64,
    },
    /// By the wall clock of a zone.
    Cron {
        /// The times: equal times are spelled equally.
        times: String,
        /// The zone.
        zone: String,
        /// A time that the wall clock skips is not due.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        gap_skip: bool,
        /// A time that the wall clock shows twice is due in the last pass.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        overlap_last: bool,
    },
}

/// The schedule that a machine has for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSchedule {
    /// To compare.
    pub key: ScheduleKey,
    /// As it was written; for people.
    pub written: String,
}

/// Who paused a job, and when; for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paused {
    /// The machine it was said on.
    pub by: String,
    /// When, by its clock.
    pub at: String,
    /// It goes on with what is due after this second; what is due before is still to be accounted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
}

/// What becomes of all slots up to a time that have not been accounted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Up to and with this second.
    pub upto: i64,
    /// Not run, the oldest first.
    pub dropped: Vec<DroppedRange>,
    /// Not over.
    pub open: Vec<i64>,
}

/// Slots that were not run, however many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DroppedRange {
    /// When the oldest was due, in seconds since 1970.
    pub first: i64,
    /// When the newest was.
    pub last: i64,
    /// How many of them have no record of their own.
    pub count: u64,
    /// Why.
    pub why: DropReason,
    /// A run may have begun one of them just before they were settled: the count is not yet certain.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub counting: bool,
}

impl Record for JobRecord {
    fn write(&self) -> WriteId {
        self.write
    }
}

impl JobRecord {
    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        // Texts and numbers: there is nothing that could fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the body stored for `job`.
    pub fn decode(job: &Name, body: &[u8]) -> Result<Self, BadEntry> {
        let agenda = Self::decode_any(body)?;
        if agenda.job == *job { Ok(agenda) } else { Err(BadEntry::Other) }
    }

    /// Reads a body, whichever job it says it is of.
    pub fn decode_any(body: &[u8]) -> Result<Self, BadEntry> {
        #[derive(Deserialize)]
        struct Format {
            leasehold_job: u64,
        }
        let damaged = |why: String| BadEntry::Damaged(why);
        if body.len() > BODY_MAX {
            return Err(damaged(format!("{} bytes long", body.len())));
        }
        let format: Format = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        if format.leasehold_job > FORMAT {
            return Err(BadEntry::Newer(format.leasehold_job));
        }
        let agenda: Self = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        let orderly = |range: &DroppedRange| range.first <= range.last && range.last <= agenda.settled;
        let comparable = agenda.leasehold_job == 1 || agenda.key.is_some();
        if !additions::fits(agenda.leasehold_job, &agenda.more) {
            return Err(damaged(additions::UNFIT.into()));
        }
        if agenda.leasehold_job < 1 || !comparable || !agenda.dropped.iter().all(orderly) {
            return Err(damaged("its parts contradict each other".into()));
        }
        Ok(agenda)
    }

    /// Whether this is the schedule that a machine has for the job. Of format 1 only the texts can be compared.
    pub fn goes_by(&self, schedule: &JobSchedule) -> bool {
        self.key.as_ref().map_or_else(|| self.schedule == schedule.written, |key| *key == schedule.key)
    }

    /// Whether nothing more is done about a slot.
    pub fn is_settled(&self, at: i64) -> bool {
        at <= self.settled && !self.open.contains(&at)
    }

    /// Whether nothing of it is to be run now.
    pub fn is_paused(&self) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.until.is_none())
    }

    /// The same with an account of more slots. Where too many are open, the first of them are listed; the others stay as
    /// their records say, and are not begun again by themselves.
    pub fn with_account(&self, account: &Account, write: WriteId) -> Self {
        let mut next = self.listing_some(&account.open, write);
        next.settled = next.settled.max(account.upto);
        next.dropped.extend(&account.dropped);
        next.dropped.sort_by_key(|range| range.first);
        // A record that was there is gone: it is told by the range now.
        next.beside.retain(|at| !account.dropped.iter().any(|range| range.spans(*at)));
        next.forget_oldest();
        next
    }

    /// Forgets the oldest ranges where there are too many.
    fn forget_oldest(&mut self) {
        while self.dropped.len() > RANGES_MAX || (self.beside.len() > BESIDE_MAX && !self.dropped.is_empty())
        {
            self.dropped.remove(0);
            self.beside.retain(|at| self.dropped.iter().any(|range| range.spans(*at)));
        }
    }

    /// The same with what turned out about a range. Nothing if the range is not there any more.
    pub fn with_count(
        &self,
        calendar: &dyn Calendar,
        range: &DroppedRange,
        counted: &Counted,
        write: WriteId,
    ) -> Option<Self> {
        let at = self.dropped.iter().position(|known| known == range)?;
        let mut next = self.listing_some(&counted.open, write);
        match counted.count {
            0 => drop(next.dropped.remove(at)),
            count => (next.dropped[at].count, next.dropped[at].counting) = (count, false),
        }
        // It may lie within another.
        let spanned = |slot: &&i64| !self.beside.contains(slot) && next.range_of(**slot).is_some();
        let beside: Vec<i64> = counted.recorded.iter().filter(spanned).copied().collect();
        next.beside.extend(beside);
        next.beside.sort_unstable();
        if counted.count > 0 {
            // The later pair first: `at` still says where the range is.
            next.join(at + 1, calendar);
            next.join(at, calendar);
        }
        next.forget_oldest();
        Some(next)
    }

    /// Makes one range of two whose counts are certain, if no slot lies between them.
    fn join(&mut self, later: usize, calendar: &dyn Calendar) {
        let (Some(first), Some(second)) = (later.checked_sub(1), self.dropped.get(later).copied()) else {
            return;
        };
        let first = &mut self.dropped[first];
        let certain = !first.counting && !second.counting && first.why == second.why;
        let in_a_row = first.last > self.since && calendar.next(first.last) == Some(second.first);
        if certain && in_a_row {
            (first.last, first.count) = (second.last, first.count.saturating_add(second.count));
            self.dropped.remove(later);
        }
    }

    /// The same with a pause that begins, and when; nothing if it is paused.
    pub fn pausing(&self, by: String, at: String, write: WriteId) -> Option<Self> {
        let paused = Some(Paused { by, at, until: None });
        (!self.is_paused()).then(|| Self { paused, write, ..self.clone() })
    }

    /// The same going on with what is due after `now`; nothing if it is not paused.
    pub fn resuming(&self, now: i64, write: WriteId) -> Option<Self> {
        let since = self.paused.clone().filter(|_| self.is_paused())?;
        Some(Self { paused: Some(Paused { until: Some(now), ..since }), write, ..self.clone() })
    }

    /// The same after a pause, with what became of the slots that were due in it.
    pub fn without_pause(&self, account: Option<&Account>, write: WriteId) -> Self {
        let accounted = account.map_or_else(|| self.clone(), |account| self.with_account(account, write));
        Self { paused: None, write, ..accounted }
    }

    /// The same with these slots to be looked at although they are not due now. Nothing if too many are open already.
    pub fn listing(&self, slots: &[i64], write: WriteId) -> Option<Self> {
        let mut next = Self { write, ..self.clone() };
        next.open.extend(slots.iter().filter(|at| !self.open.contains(at)));
        next.open.sort_unstable();
        (next.open.len() <= OPEN_MAX).then_some(next)
    }

    /// The same with as many of these as there is room for, the first ones.
    fn listing_some(&self, slots: &[i64], write: WriteId) -> Self {
        let mut next = Self { write, ..self.clone() };
        let fresh = slots.iter().filter(|at| !self.open.contains(at));
        next.open.extend(fresh.take(OPEN_MAX.saturating_sub(self.open.len())));
        next.open.sort_unstable();
        next
    }

    /// The same without those that are over.
    pub fn without_open(&self, over: &[i64], write: WriteId) -> Self {
        let open = self.open.iter().copied().filter(|at| !over.contains(at)).collect();
        Self { open, write, ..self.clone() }
    }

    /// Whether the record of a slot may be removed: it says how the slot ended, and nobody looks at it again.
    pub fn may_forget(&self, at: i64, state: ItemState) -> bool {
        let counting = self.range_of(at).is_some_and(|range| range.counting);
        let ended = !matches!(state, ItemState::Started | ItemState::Planned);
        self.is_void(at) || self.is_settled(at) && !counting && ended
    }

    /// Whether a record of this slot means nothing: it was made after the slot was dropped, by somebody who died before
    /// it was taken back. Nothing was executed for it, for whoever makes a record asks afterwards whether it is settled.
    pub fn is_void(&self, at: i64) -> bool {
        let mut ranges = self.dropped.iter().filter(|range| range.spans(at)).peekable();
        let dropped = ranges.peek().is_some() && ranges.all(|range| !range.counting);
        dropped && self.is_settled(at) && !self.beside.contains(&at)
    }

    /// The range that a slot was dropped in.
    pub fn range_of(&self, at: i64) -> Option<&DroppedRange> {
        self.dropped.iter().find(|range| range.spans(at))
    }

    /// Whether a slot was dropped, and is not to be tried again.
    pub fn is_dropped(&self, at: i64) -> bool {
        self.is_settled(at) && self.range_of(at).is_some()
    }

    /// Lists those of these slots that were started while they were being settled: no scheduler would look at them. One
    /// that was dropped is not listed: its run takes its record back. `None` if there is nothing to list.
    pub fn listing_latecomers(&self, slots: &[i64], write: WriteId) -> Option<Self> {
        let late = |at: &i64| self.is_settled(*at) && !self.is_dropped(*at);
        let late: Vec<i64> = slots.iter().copied().filter(late).collect();
        if late.is_empty() { None } else { self.listing(&late, write) }
    }
}

impl DroppedRange {
    fn spans(&self, at: i64) -> bool {
        (self.first..=self.last).contains(&at)
    }
}

/// What is to be stored when a machine loads a schedule: a job that nobody saw before, and one whose schedule was
/// changed, has no past but what is `not_over`, as far as there is room. Nothing if all is as it was.
pub fn seen(
    found: Option<&JobRecord>,
    job: &Name,
    wanted: &JobSchedule,
    now: i64,
    not_over: &[i64],
    write: WriteId,
) -> Option<JobRecord> {
    let Some(agenda) = found else {
        return Some(JobRecord {
            leasehold_job: FORMAT,
            job: job.clone(),
            schedule: wanted.written.clone(),
            key: Some(wanted.key.clone()),
            since: now,
            settled: now,
            open: Vec::new(),
            paused: None,
            dropped: Vec::new(),
            beside: Vec::new(),
            more: Additions::new(),
            write,
        });
    };
    let (schedule, key) = (wanted.written.clone(), Some(wanted.key.clone()));
    if agenda.goes_by(wanted) {
        let upgraded = || JobRecord { leasehold_job: FORMAT, schedule, key, write, ..agenda.clone() };
        return agenda.key.is_none().then(upgraded);
    }
    let since = agenda.settled.max(now);
    let listed = agenda.listing_some(not_over, write);
    Some(JobRecord { leasehold_job: FORMAT, schedule, key, since, settled: since, ..listed })
}

/// Whether a job is stuck: so many of its newest slots, the newest first, gave way one after the other.
pub fn stuck<'a>(newest_first: impl Iterator<Item = &'a Entry>) -> Option<usize> {
    let gave_way = |entry: &&Entry| {
        entry.ending.as_ref().is_some_and(|ending| ending.reason == Some(SettleReason::Overlap))
    };
    let waved_off = newest_first.take_while(gave_way).count();
    (waved_off >= STUCK).then_some(waved_off)
}

/// Who has a lease, as a slot sees it that wants to be run under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseForSlot {
    /// Nobody, as far as can be seen.
    Free,
    /// A run of this very slot.
    Ours,
    /// A run of this very slot, which may be dead: only a run that watches can tell.
    OursPerhaps,
    /// Other work.
    Other,
    /// Nobody can tell: its record cannot be read.
    Unreadable,
}

/// Who has it.
pub fn way(lease: &LeaseSeen, job: &Name, slot: &str) -> LeaseForSlot {
    let (record, standing) = match lease {
        LeaseSeen::Absent => return LeaseForSlot::Free,
        LeaseSeen::Unreadable => return LeaseForSlot::Unreadable,
        LeaseSeen::Stands(record, standing) => (record, standing),
    };
    let Holder { job: theirs, slot: at, .. } = &record.holder;
    let ours = theirs == job.as_str() && at.as_deref() == Some(slot);
    match standing {
        LeaseStanding::Free | LeaseStanding::Expired => LeaseForSlot::Free,
        LeaseStanding::Held { .. } if !ours => LeaseForSlot::Other,
        LeaseStanding::Held { ends_in: Some(_) } => LeaseForSlot::Ours,
        LeaseStanding::Held { ends_in: None } => LeaseForSlot::OursPerhaps,
    }
}

/// What can be said of a slot's record without holding a lease.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// It may be begun.
    Open,
    /// A run is at it.
    Taken,
    /// It is decided.
    Settled,
    /// The run that began it never reported, and it is not to be begun again: write this.
    Silent(Entry),
    /// First find out whether this lease is still held by this grant.
    AskLease(Name, Grant),
}

/// What a scheduler may do about a slot that has a record. `ask` is what a run of it would ask.
pub fn prospect(found: FoundEntry<'_>, ask: &ItemRequest, alive: Option<Alive>, write: WriteId) -> Prospect {
    match begin(Some(found), ask, alive, write) {
        ItemVerdict::Begin(_) => Prospect::Open,
        ItemVerdict::AskLease(lease, grant) => Prospect::AskLease(lease, grant),
        // A run that watches finds out; a scheduler that only looks never would.
        ItemVerdict::InProgress if alive == Some(Alive::Perhaps) => Prospect::Open,
        ItemVerdict::InProgress => Prospect::Taken,
        ItemVerdict::Unknown(entry, _) if entry != *found.entry => Prospect::Silent(entry),
        ItemVerdict::Done | ItemVerdict::Skipped | ItemVerdict::Quarantined | ItemVerdict::Unknown(..) => {
            Prospect::Settled
        }
    }
}

impl ItemClaim {
    /// The claim of nobody: whoever is at an item is somebody else.
    pub fn nobody(like: &ItemClaim, seed: u128) -> Self {
        Self { grant: Grant(seed), epoch: Epoch::first(seed), ..like.clone() }
    }
}

/// What a scheduler does about one slot that is due and wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Start a run of it: only a run can tell for certain whether the lease is to be had.
    Start,
    /// Leave it, and look again.
    Wait,
    /// Record that it is not run because of what holds its lease.
    WaveOff,
}

/// Whether to start a run of a slot that may be begun. `tried`: a run of it was started, and found no free lease;
/// `begun`: it has a record; `skips`: it gives way to whatever holds its lease.
pub fn turn(ways: &[LeaseForSlot], tried: bool, begun: bool, skips: bool) -> SlotAction {
    if ways.contains(&LeaseForSlot::Ours) {
        return SlotAction::Wait;
    }
    if ways.contains(&LeaseForSlot::OursPerhaps) {
        return SlotAction::Start;
    }
    match tried && !ways.contains(&LeaseForSlot::Free) {
        false => SlotAction::Start,
        // To what nobody can read it does not give way: a person has to look first.
        true if skips && !begun && !ways.contains(&LeaseForSlot::Unreadable) => SlotAction::WaveOff,
        true => SlotAction::Wait,
    }
}

/// Whether a lease is held by a run of this job for a slot that was begun before, as its record says: such runs take turns
/// with what is due, which does not give way to them.
pub fn takes_turns(held: &LeaseRecord, job: &Name, its_slot: Option<&Entry>) -> bool {
    let first = |entry: &Entry| entry.state == ItemState::Started && entry.attempt <= 1;
    held.holder.job == job.as_str() && its_slot.is_some_and(|entry| !first(entry))
}

/// Whether a slot gave way before any run had begun it.
pub fn is_waved_off(entry: &Entry) -> bool {
    entry.state == ItemState::Skipped && entry.attempt == 0
}

/// The record of a slot that gave way to the run that holds this lease.
pub fn waved_off(
    subject: Subject,
    job: &Name,
    held: &LeaseRecord,
    at: String,
    write: WriteId,
) -> Option<Entry> {
    let hold = held.hold.as_ref()?;
    let claim = ItemClaim {
        lease: held.lease.clone(),
        epoch: held.epoch,
        token: held.token,
        grant: hold.grant,
        holder: held.holder.clone(),
    };
    let said = format!("{} was held", held.lease);
    Some(Entry {
        subject,
        job: job.clone(),
        state: ItemState::Skipped,
        attempt: 0,
        failures: 0,
        silences: 0,
        claim,
        since_first: None,
        ending: Some(Ending { exit: None, took_ms: 0, at, reason: Some(SettleReason::Overlap), said }),
        steps: Vec::new(),
        more: Additions::new(),
        write,
    })
}
