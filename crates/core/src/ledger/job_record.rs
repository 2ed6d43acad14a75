//! The record of a scheduled job: which of its slots are settled, and why some were never run.
//!
//! Each job has one record in the store ([`JobRecord`]), changed by compare-and-set like all others.
//! Schedulers look again and again at the slots after [`JobRecord::settled`]. Every slot before it is
//! accounted for: it has its own record, it lies in a range that was dropped, or it is listed in
//! [`JobRecord::open`] if it is not over. The record of a slot is removed only after the slot is accounted
//! for.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::catch_up::{Calendar, Counted};
pub use super::skip_reason::DropReason;
use super::{
    Alive, BadEntry, Ending, Entry, FoundEntry, ItemClaim, ItemRequest, ItemState, ItemVerdict, LeaseSeen,
    SettleReason, Subject, begin,
};
use crate::additions::Additions;
use crate::codec;
use crate::ids::{Epoch, Grant, WriteId};
use crate::name::Name;
use crate::record::{Holder, LeaseRecord};
use crate::rules::LeaseStanding;
use crate::update::Record;

/// The format that this version writes. It also reads format 1.
const FORMAT: u64 = 2;
/// The most ranges of dropped slots that are kept. The oldest are forgotten first.
pub const RANGES_MAX: usize = 250;
/// The most slots within such ranges that have a record. With more, the oldest ranges are forgotten.
const BESIDE_MAX: usize = 500;
/// The most slots that are listed as open.
pub const OPEN_MAX: usize = 100;
/// A job is stuck after this many slots in a row that were skipped because of the lease.
pub const STUCK: usize = 3;
/// Longest record, in bytes.
const BODY_MAX: usize = 60 * 1024;

/// The record of a job in this store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    leasehold_job: u64,
    /// The job itself, so that a record copied under another key is noticed.
    pub job: Name,
    /// The schedule as it was written; for people.
    pub schedule: String,
    /// The schedule, to compare. Format 1 has only the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ScheduleKey>,
    /// The second at which the schedule came into force. Slots before it followed another schedule.
    #[serde(default)]
    pub since: i64,
    /// Every slot that is due at or before this second is settled, except those in `open`.
    pub settled: i64,
    /// Slots at or before that second that are not over: a run is at work on them, or they will be run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<i64>,
    /// The pause of the job, which may be over; its slots are not accounted for yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// Ranges of slots that were not run, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<DroppedRange>,
    /// Slots between the first and the last of a range that were not dropped: they have their own records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<i64>,
    /// Additions of later versions, kept unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    pub more: Additions,
    /// The write that stored this.
    pub write: WriteId,
}

/// A schedule, to compare: equal values are one schedule, even if they were written differently.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ScheduleKey {
    /// An interval.
    Every {
        /// The time between two slots.
        seconds: i64,
        /// How far the slots are moved from the multiples of that, counted from 1970.
        offset: i64,
    },
    /// Times by the wall clock of a zone.
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

/// The schedule of a job in a machine's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSchedule {
    /// The schedule, to compare.
    pub key: ScheduleKey,
    /// The text as it was written; for people.
    pub written: String,
}

/// Who paused a job, and when; for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paused {
    /// The machine on which it was paused.
    pub by: String,
    /// When, by its clock.
    pub at: String,
    /// The second at which it was resumed. Slots before it are not accounted for yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
}

/// An account of all slots up to a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Up to and including this second.
    pub upto: i64,
    /// Slots that were not run, the oldest first.
    pub dropped: Vec<DroppedRange>,
    /// Slots that are not over.
    pub open: Vec<i64>,
}

/// A range of slots that were not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DroppedRange {
    /// When the oldest was due, in seconds since 1970.
    pub first: i64,
    /// When the newest was.
    pub last: i64,
    /// How many of them have no record.
    pub count: u64,
    /// Why.
    pub why: DropReason,
    /// A run may have started one of them just before they were settled: the count is not certain yet.
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
        // Only texts and numbers: encoding cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes the record that is stored for `job`.
    pub fn decode(job: &Name, body: &[u8]) -> Result<Self, BadEntry> {
        let job_record = Self::decode_any(body)?;
        if job_record.job == *job { Ok(job_record) } else { Err(BadEntry::Other) }
    }

    /// Decodes the record of any job.
    pub fn decode_any(body: &[u8]) -> Result<Self, BadEntry> {
        let job_record = codec::decode(
            body,
            (BODY_MAX, FORMAT),
            |record: &Self| (record.leasehold_job, &record.more),
            BadEntry::Newer,
            BadEntry::Damaged,
        )?;
        let orderly = |range: &DroppedRange| range.first <= range.last && range.last <= job_record.settled;
        let comparable = job_record.leasehold_job == 1 || job_record.key.is_some();
        if !comparable || !job_record.dropped.iter().all(orderly) {
            return Err(BadEntry::Damaged("its parts contradict each other".into()));
        }
        Ok(job_record)
    }

    /// Whether the record has this schedule. In format 1 only the texts can be compared.
    pub fn goes_by(&self, schedule: &JobSchedule) -> bool {
        self.key.as_ref().map_or_else(|| self.schedule == schedule.written, |key| *key == schedule.key)
    }

    /// Whether a slot is settled: no scheduler starts it any more.
    pub fn is_settled(&self, at: i64) -> bool {
        at <= self.settled && !self.open.contains(&at)
    }

    /// Whether the job is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.until.is_none())
    }

    /// The record with an account of more slots. If too many are open, only the first of them are listed. The
    /// others keep their records, and no scheduler starts them again.
    pub fn with_account(&self, account: &Account, write: WriteId) -> Self {
        let mut next = self.listing_some(&account.open, write);
        next.settled = next.settled.max(account.upto);
        next.dropped.extend(&account.dropped);
        next.dropped.sort_by_key(|range| range.first);
        // A slot whose record is gone now counts in its range.
        next.beside.retain(|at| !account.dropped.iter().any(|range| range.spans(*at)));
        next.forget_oldest();
        next
    }

    /// Forgets the oldest ranges if there are too many.
    fn forget_oldest(&mut self) {
        while self.dropped.len() > RANGES_MAX || (self.beside.len() > BESIDE_MAX && !self.dropped.is_empty())
        {
            self.dropped.remove(0);
            self.beside.retain(|at| self.dropped.iter().any(|range| range.spans(*at)));
        }
    }

    /// The record with the count of a range; none if the range is not there any more.
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
        // A recorded slot may lie within another range.
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

    /// Joins two ranges whose counts are certain, if no slot lies between them.
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

    /// The record paused now; none if it is paused already.
    pub fn pausing(&self, by: String, at: String, write: WriteId) -> Option<Self> {
        let paused = Some(Paused { by, at, until: None });
        (!self.is_paused()).then(|| Self { paused, write, ..self.clone() })
    }

    /// The record resumed with the slots after `now`; none if it is not paused.
    pub fn resuming(&self, now: i64, write: WriteId) -> Option<Self> {
        let since = self.paused.clone().filter(|_| self.is_paused())?;
        Some(Self { paused: Some(Paused { until: Some(now), ..since }), write, ..self.clone() })
    }

    /// The record after a pause, with an account of the slots that were due in it.
    pub fn without_pause(&self, account: Option<&Account>, write: WriteId) -> Self {
        let accounted = account.map_or_else(|| self.clone(), |account| self.with_account(account, write));
        Self { paused: None, write, ..accounted }
    }

    /// The record with these slots listed as open; none if that are too many.
    pub fn listing(&self, slots: &[i64], write: WriteId) -> Option<Self> {
        let mut next = Self { write, ..self.clone() };
        next.open.extend(slots.iter().filter(|at| !self.open.contains(at)));
        next.open.sort_unstable();
        (next.open.len() <= OPEN_MAX).then_some(next)
    }

    /// The record with the first of these slots listed, as many as there is room for.
    fn listing_some(&self, slots: &[i64], write: WriteId) -> Self {
        let mut next = Self { write, ..self.clone() };
        let fresh = slots.iter().filter(|at| !self.open.contains(at));
        next.open.extend(fresh.take(OPEN_MAX.saturating_sub(self.open.len())));
        next.open.sort_unstable();
        next
    }

    /// The record without the open slots that are over.
    pub fn without_open(&self, over: &[i64], write: WriteId) -> Self {
        let open = self.open.iter().copied().filter(|at| !over.contains(at)).collect();
        Self { open, write, ..self.clone() }
    }

    /// Whether the record of a slot may be removed: the slot has ended, and no scheduler looks at it again.
    pub fn may_forget(&self, at: i64, state: ItemState) -> bool {
        let counting = self.range_of(at).is_some_and(|range| range.counting);
        let ended = !matches!(state, ItemState::Started | ItemState::Planned);
        self.is_void(at) || self.is_settled(at) && !counting && ended
    }

    /// Whether a record of this slot means nothing: a run made it after the slot was dropped, and died before
    /// it took the record back. Nothing was executed, because a run asks whether the slot is settled before
    /// it executes a command.
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

    /// Lists the slots among these that were started while they were being settled; otherwise no scheduler
    /// would look at them. One that was dropped is not listed: its run takes its record back. `None` if there
    /// is nothing to list.
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

/// The record to store when a machine loads a schedule; none if nothing has changed. A new job, or one with a
/// changed schedule, starts now. Of its earlier slots only those `not_over` are listed, as many as there is
/// room for.
pub fn seen(
    found: Option<&JobRecord>,
    job: &Name,
    wanted: &JobSchedule,
    now: i64,
    not_over: &[i64],
    write: WriteId,
) -> Option<JobRecord> {
    let Some(job_record) = found else {
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
    if job_record.goes_by(wanted) {
        let upgraded = || JobRecord { leasehold_job: FORMAT, schedule, key, write, ..job_record.clone() };
        return job_record.key.is_none().then(upgraded);
    }
    let since = job_record.settled.max(now);
    let listed = job_record.listing_some(not_over, write);
    Some(JobRecord { leasehold_job: FORMAT, schedule, key, since, settled: since, ..listed })
}

/// Whether a job is stuck, and for how many slots: its newest slots were all skipped because of the lease.
pub fn stuck<'a>(newest_first: impl Iterator<Item = &'a Entry>) -> Option<usize> {
    let gave_way = |entry: &&Entry| {
        entry.ending.as_ref().is_some_and(|ending| ending.reason == Some(SettleReason::Overlap))
    };
    let skipped = newest_first.take_while(gave_way).count();
    (skipped >= STUCK).then_some(skipped)
}

/// Who holds a lease that a slot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseForSlot {
    /// No run, as one look shows.
    Free,
    /// A run of the same slot.
    Ours,
    /// A run of the same slot, which may be dead: only a run that watches the lease can tell.
    OursPerhaps,
    /// Other work.
    Other,
    /// Unknown, because its record cannot be read.
    Unreadable,
}

/// Who holds a lease that a slot needs.
pub fn lease_for_slot(lease: &LeaseSeen, job: &Name, slot: &str) -> LeaseForSlot {
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

/// What a scheduler can do about the record of a slot. It holds no lease itself.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// A run of it may be started.
    Open,
    /// A run is at work on it.
    Taken,
    /// It is settled.
    Settled,
    /// The outcome of its run is unknown, and it is not run again: write this.
    Unknown(Entry),
    /// First find out whether this lease is still held by this grant.
    AskLease(Name, Grant),
}

/// What a scheduler can do about a slot that has a record. `ask`: the request of a run of it.
pub fn prospect(found: FoundEntry<'_>, ask: &ItemRequest, alive: Option<Alive>, write: WriteId) -> Prospect {
    match begin(Some(found), ask, alive, write) {
        ItemVerdict::Begin(_) => Prospect::Open,
        ItemVerdict::AskLease(lease, grant) => Prospect::AskLease(lease, grant),
        // Only a run can find out, because it watches the lease.
        ItemVerdict::InProgress if alive == Some(Alive::Perhaps) => Prospect::Open,
        ItemVerdict::InProgress => Prospect::Taken,
        ItemVerdict::Unknown(entry, _) if entry != *found.entry => Prospect::Unknown(entry),
        ItemVerdict::Done | ItemVerdict::Skipped | ItemVerdict::Quarantined | ItemVerdict::Unknown(..) => {
            Prospect::Settled
        }
    }
}

impl ItemClaim {
    /// A claim that holds no lease, for a scheduler: every run is another one.
    pub fn nobody(like: &ItemClaim, seed: u128) -> Self {
        Self { grant: Grant(seed), epoch: Epoch::first(seed), ..like.clone() }
    }
}

/// What a scheduler does about one slot that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Start a run of it: only a run can tell for certain whether the lease is free.
    Start,
    /// Leave it, and look again later.
    Wait,
    /// Record that it is not run, because its lease is held.
    Skip,
}

/// What to do about a slot of which a run may be started. `tried`: a run of it was started, and found no free
/// lease. `begun`: it has a record. `skips`: the job skips slots whose lease is held.
pub fn slot_action(ways: &[LeaseForSlot], tried: bool, begun: bool, skips: bool) -> SlotAction {
    if ways.contains(&LeaseForSlot::Ours) {
        return SlotAction::Wait;
    }
    if ways.contains(&LeaseForSlot::OursPerhaps) {
        return SlotAction::Start;
    }
    match tried && !ways.contains(&LeaseForSlot::Free) {
        false => SlotAction::Start,
        // A lease that cannot be read is no reason to skip: a person has to look first.
        true if skips && !begun && !ways.contains(&LeaseForSlot::Unreadable) => SlotAction::Skip,
        true => SlotAction::Wait,
    }
}

/// Whether a lease is held by a run of this job for a slot that was started before. Slots that are due are
/// not skipped because of such a run.
pub fn takes_turns(held: &LeaseRecord, job: &Name, its_slot: Option<&Entry>) -> bool {
    let first = |entry: &Entry| entry.state == ItemState::Started && entry.attempt <= 1;
    held.holder.job == job.as_str() && its_slot.is_some_and(|entry| !first(entry))
}

/// Whether a slot was skipped before any run had started it.
pub fn is_skipped_unstarted(entry: &Entry) -> bool {
    entry.state == ItemState::Skipped && entry.attempt == 0
}

/// The record of a slot that is skipped because another run holds this lease.
pub fn skipped_slot(
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
