//! The records of jobs in a store: which slots are due now, and which are dropped, skipped or still open.
//!
//! [`leasehold_core::ledger::job_record`] decides and [`crate::schedule`] knows the times. This module calls the store.

mod due_now;

use std::collections::BTreeMap;
use std::time::Duration;

pub use due_now::due_now;
use jiff::Timestamp;
use leasehold::ledger::job::decoded;
pub use leasehold::ledger::job::{PREFIX, job_record_key, read};
use leasehold::ledger::{Item, key_of, slots_of};
use leasehold::stores::{BatchWrite, Store, each_stored};
use leasehold::update::{NextCall, StoreAnswer, drive};
use leasehold::{clock, host, random};
use leasehold_core::ids::WriteId;
pub use leasehold_core::ledger::catch_up::ON_TIME;
use leasehold_core::ledger::catch_up::{Calendar, CatchUp, SlotGap, asked_by_itself, listed_first};
use leasehold_core::ledger::job_record::{DroppedRange, JobRecord, JobSchedule, seen};
use leasehold_core::ledger::{BadEntry, Entry, ItemClaim, ItemRequest, Subject, unknown_slot};
use leasehold_core::name::Name;
use leasehold_core::run_log::{LogEvent, LogId, LogRecord};
use leasehold_core::store::{Cas, Failure, Stored};
use leasehold_core::update::{FoundRecord, Update, UpdateDecision, UpdateNext, UpdateOutcome};
use pollster::block_on;

use crate::schedule::{Schedule, Slot};

/// What a scheduler needs to know of a job.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job.
    pub job: Name,
    /// When it is due.
    pub schedule: Schedule,
    /// The schedule as machines compare it, and as text.
    pub named: JobSchedule,
    /// The leases that a run may take.
    pub leases: Vec<Name>,
    /// A slot is skipped if its lease is held; otherwise it stays open.
    pub skips: bool,
    /// How many of the newest missed slots are run.
    pub catch_up: usize,
    /// A missed slot that is older is dropped.
    pub max_age: Option<Duration>,
    /// A slot that was stopped, or whose outcome is unknown, is run again.
    pub retry: bool,
    /// How often a slot may fail.
    pub attempts: u32,
    /// How long the records of slots are kept.
    pub keep: Duration,
    /// Slots may start this much later than they are due.
    pub stagger: Duration,
}

impl Terms {
    /// The item of a slot.
    pub fn subject(&self, slot: &Slot) -> Subject {
        Subject::Slot { job: self.job.clone(), at: slot.number(), id: slot.due().to_string() }
    }

    /// The slot that is due at a second. It may belong to an earlier schedule of the job.
    fn slot(&self, at: i64) -> Option<Slot> {
        let ours = self.schedule.prev_at_or_before(instant(at)).filter(|slot| slot.number() == at);
        ours.or_else(|| Slot::due_at(at))
    }

    /// The slot that [`Terms::subject`] has named like this.
    fn slot_called(&self, id: &str) -> Option<Slot> {
        let due: Timestamp = id.parse().ok()?;
        self.slot(due.as_second()).filter(|slot| slot.due() == due)
    }

    fn catch_up(&self) -> CatchUp {
        CatchUp { most: self.catch_up, max_age: self.max_age }
    }

    /// The request of a scheduler for a slot that has a record, at a second.
    pub fn ask(&self, entry: &Entry, now: i64) -> ItemRequest {
        let if_unknown = unknown_slot(self.retry);
        let item = Item { subject: entry.subject.clone(), if_unknown, attempts: self.attempts, keep: None };
        let ask = item.ask(&entry.job, ItemClaim::nobody(&entry.claim, random::seed()));
        asked_by_itself(ask, self.max_age, due_at(entry), now)
    }
}

/// The slot of a job that this process tried last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Nothing.
    Nothing,
    /// A run of this slot has ended.
    This(i64),
    /// A run of this slot goes on. Other slots of the job find the lease held by it.
    Running(i64),
}

impl Tried {
    fn has(self, at: i64) -> bool {
        matches!(self, Self::Running(_)) || self == Self::This(at)
    }
}

/// The result of a look at a job.
#[derive(Clone, Debug, Default)]
pub struct DueNow {
    /// Slots of which one may be started, the oldest first.
    pub start: Vec<SlotToStart>,
    /// Something is not settled yet, so look again soon.
    pub unsettled: bool,
    /// Notes for people.
    pub notes: Vec<JobNote>,
}

/// A slot that may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotToStart {
    /// The slot.
    pub slot: Slot,
    /// It was missed when it was due.
    pub late: bool,
    /// It has a record: a run of it was started before.
    pub again: bool,
    /// Its lease looks free. If not, a run may still get it.
    pub free: bool,
}

/// A look that the store ended with a failure.
#[derive(Clone, Debug)]
pub struct LookFailed {
    /// The failure.
    pub failure: Failure,
    /// Notes on what was recorded before it.
    pub notes: Vec<JobNote>,
}

/// A note for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobNote {
    /// These slots were dropped.
    Dropped(DroppedRange),
    /// This slot was skipped.
    WavedOff(Entry),
    /// This slot was skipped, as were many before it in a row: something is wrong.
    Stuck(Subject),
    /// The run that started this slot never recorded how it ended.
    Silent(Entry),
    /// Another machine has changed the schedule of the job, and this machine's is not in force.
    Elsewhere(String),
    /// The record of the slot that is due at this second cannot be used, and why.
    Bad(i64, String),
    /// The job is settled up to this second, which is far ahead: a clock was wrong.
    Ahead(i64),
}

impl JobNote {
    /// The record of the run log about it; none if the log has no such records. A run that this process tried has
    /// logged its skip itself.
    pub fn logged(&self, job: &Name, tried: Tried) -> Option<LogRecord> {
        let new = |event| {
            let holder = host::holder(&host::fresh_run_id(None), job);
            LogRecord::new(clock::wall(), event, job.clone(), LogId::of(random::seed()), holder)
        };
        match self {
            Self::Dropped(range) => Some(LogRecord {
                reason: Some(range.why.word().into()),
                item: Some(Subject::Slot {
                    job: job.clone(),
                    at: range.last,
                    id: instant(range.last).to_string(),
                }),
                count: Some(range.count),
                // From the first to the last of them.
                took: u64::try_from(range.last - range.first).ok().map(Duration::from_secs),
                ..new(LogEvent::Dropped)
            }),
            Self::WavedOff(entry) if tried == Tried::This(due_at(entry)) => None,
            Self::WavedOff(entry) => Some(LogRecord {
                reason: entry.ending.as_ref()?.reason.map(|reason| reason.word().into()),
                lease: Some(entry.claim.lease.clone()),
                token: Some(entry.claim.token),
                item: Some(entry.subject.clone()),
                said: entry.claim.holder.to_string(),
                ..new(LogEvent::Skipped)
            }),
            Self::Stuck(_) | Self::Silent(_) | Self::Elsewhere(_) | Self::Bad(..) | Self::Ahead(_) => None,
        }
    }
}

fn instant(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

impl Calendar for Schedule {
    fn newest(&self, upto: i64) -> Option<i64> {
        self.prev_at_or_before(instant(upto)).map(|slot| slot.number())
    }

    fn next(&self, after: i64) -> Option<i64> {
        self.next_after(instant(after)).map(|slot| slot.number())
    }

    fn gap(&self, after: i64, upto: i64) -> Option<SlotGap> {
        let gap = self.missed(instant(after), instant(upto), 0, None).dropped?;
        Some(SlotGap { first: gap.first.number(), last: gap.last.number(), count: gap.count })
    }

    fn newest_of(&self, after: i64, upto: i64, most: usize, max_age: Option<Duration>) -> Vec<i64> {
        let missed = self.missed(instant(after), instant(upto), most, max_age);
        missed.run.iter().map(Slot::number).collect()
    }
}

/// A key of ours whose value is not a record of a job, and why.
pub type Unreadable = (String, String);

/// The records of all jobs, and the keys that hold no such record.
pub fn read_all(store: &mut dyn Store) -> Result<(Vec<JobRecord>, Vec<Unreadable>), Failure> {
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    each_stored(store, PREFIX, "", |key, stored| {
        match JobRecord::decode_any(&stored.body) {
            Ok(job_record) if job_record_key(&job_record.job) == key => found.push(job_record),
            Ok(_) => bad.push((key, BadEntry::Other.to_string())),
            Err(why) => bad.push((key, why.to_string())),
        }
        true
    })?;
    Ok((found, bad))
}

/// The record of a job after an attempt to change it.
struct Changed {
    job_record: Option<JobRecord>,
    /// This process changed it.
    by_us: bool,
}

/// Changes the record of a job by a rule. The rule gives `None` if there is nothing to change.
fn change(
    store: &mut dyn Store,
    job: &Name,
    rule: impl Fn(Option<&JobRecord>, WriteId) -> Option<JobRecord>,
) -> Result<Changed, Failure> {
    go_on(store, job, Update::new(random::seed()), rule)
}

/// Continues a change by reading the record.
fn go_on(
    store: &mut dyn Store,
    job: &Name,
    mut update: Update<JobRecord>,
    rule: impl Fn(Option<&JobRecord>, WriteId) -> Option<JobRecord>,
) -> Result<Changed, Failure> {
    let decide = |found: Option<FoundRecord<JobRecord, Failure>>, write| {
        let found = match found.map(|found| found.record).transpose() {
            Ok(found) => found,
            Err(bad) => return UpdateDecision::Stop(Err(bad)),
        };
        match rule(found.as_ref(), write) {
            Some(next) => UpdateDecision::Write(next),
            None => UpdateDecision::Stop(Ok(found)),
        }
    };
    let done = drive(store, &job_record_key(job), NextCall::Read, None, |_, answer| {
        let next = match answer {
            StoreAnswer::Read(read) => {
                update.on_read(read.map(|s| s.map(|s| FoundRecord::of(s, |body| decoded(job, body)))), decide)
            }
            StoreAnswer::Cas(cas) => update.on_cas(cas),
        };
        NextCall::of(next, |job_record| Some(job_record.encode()))
    })?;
    match done {
        UpdateOutcome::Landed { record, .. } => Ok(Changed { job_record: Some(record), by_us: true }),
        UpdateOutcome::Stopped(found) => found.map(|job_record| Changed { job_record, by_us: false }),
        UpdateOutcome::Failed { failure, .. } => Err(failure),
    }
}

/// Records the schedules that this machine has loaded. A job that is new, or whose schedule was changed, has no missed
/// slots. Gives the changed jobs with their schedules before.
pub fn register(
    store: &mut dyn Store,
    jobs: &[&Terms],
    now: i64,
) -> Result<Vec<(Name, Option<String>)>, Failure> {
    let mut known = BTreeMap::new();
    each_stored(store, PREFIX, "", |key, stored| {
        known.insert(key, stored);
        true
    })?;
    let (mut writes, mut updates, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for terms in jobs {
        let key = job_record_key(&terms.job);
        let stored = known.remove(&key);
        // A record that cannot be read concerns one job. Each look at that job reports it.
        let Ok(found) = stored.as_ref().map(|stored| decoded(&terms.job, &stored.body)).transpose() else {
            continue;
        };
        let not_over = not_over(store, terms, found.as_ref(), now)?;
        let mut update = Update::new(random::seed());
        let write = update.fresh();
        if let Some(next) = seen(found.as_ref(), &terms.job, &terms.named, now, &not_over, write)
            && let UpdateNext::<_, ()>::Cas { expected, record } =
                update.offer(stored.map(|stored| stored.version), next)
        {
            writes.push(BatchWrite { key, expected, write, body: record.encode() });
            changed.push((*terms, found, not_over));
            updates.push(update);
        }
    }
    let answers = block_on(store.cas_many(&writes));
    for ((answer, mut update), (terms, before, not_over)) in answers.into_iter().zip(updates).zip(&changed) {
        // Another process was faster, or the answer is unknown.
        if update.on_cas::<()>(answer) == UpdateNext::Read {
            go_on(store, &terms.job, update, |found, write| {
                seen(found, &terms.job, &terms.named, now, not_over, write)
            })?;
        }
        list_latecomers(store, terms, before.as_ref(), now)?;
    }
    // A record that was only written in a newer format is no change.
    changed.retain(|(terms, found, _)| found.as_ref().is_none_or(|found| !found.goes_by(&terms.named)));
    let before = |found: Option<JobRecord>| found.map(|found| found.schedule);
    Ok(changed.into_iter().map(|(terms, found, _)| (terms.job.clone(), before(found))).collect())
}

/// Slots of the old schedule that a run is working on, or that may be tried again.
fn not_over(
    store: &mut dyn Store,
    terms: &Terms,
    before: Option<&JobRecord>,
    now: i64,
) -> Result<Vec<i64>, Failure> {
    let Some(job_record) = before.filter(|job_record| !job_record.goes_by(&terms.named)) else {
        return Ok(Vec::new());
    };
    let (entries, _) = recorded(store, &terms.job, job_record.settled, now)?;
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for (entry, stored) in &entries {
        all.push((due_at(entry), due_now::stands(store, terms, now, entry, stored, &mut notes)?));
    }
    Ok(listed_first(all.into_iter()))
}

/// Lists slots that were started while the schedule was being changed. Otherwise no scheduler would look at them.
fn list_latecomers(
    store: &mut dyn Store,
    terms: &Terms,
    before: Option<&JobRecord>,
    now: i64,
) -> Result<(), Failure> {
    let late = not_over(store, terms, before, now)?;
    if late.is_empty() {
        return Ok(());
    }
    change(store, &terms.job, |found, write| found?.listing_latecomers(&late, write)).map(drop)
}

/// Pauses a job. Gives its record, or `None` if no machine has loaded the job.
pub fn pause(store: &mut dyn Store, job: &Name) -> Result<Option<JobRecord>, Failure> {
    let at = host::utc(clock::wall().as_secs());
    let changed = change(store, job, |found, write| found?.pausing(host::name(), at.clone(), write));
    Ok(changed?.job_record)
}

/// Lets a job go on with the slots that are due after `now`: after a pause, or if a wrong clock has settled it too far
/// ahead. The second needs the terms in force.
pub fn resume(
    store: &mut dyn Store,
    job: &Name,
    terms: Option<&Terms>,
    now: i64,
) -> Result<Option<JobRecord>, Failure> {
    let changed = change(store, job, |found, write| {
        let found = found?;
        let in_force = terms.filter(|terms| found.goes_by(&terms.named));
        found.going_on(in_force.map(|terms| &terms.schedule as &dyn Calendar), now, write)
    });
    Ok(changed?.job_record)
}

/// A record of a slot, as it is stored.
pub type StoredSlot = (Entry, Stored);

/// A record of a slot that cannot be used: when the slot is due, and what is wrong.
pub type BadSlot = (i64, String);

/// The records of the slots that are due after `after`, up to and including `upto`.
pub fn recorded(
    store: &mut dyn Store,
    job: &Name,
    after: i64,
    upto: i64,
) -> Result<(Vec<StoredSlot>, Vec<BadSlot>), Failure> {
    let prefix = slots_of(job);
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    each_stored(store, &prefix, &format!("{prefix}{:012}", after.max(0)), |key, stored| {
        // Not the time in the record, which may be wrong.
        let at = key[prefix.len()..].parse().unwrap_or(i64::MAX);
        if at > upto {
            return false;
        }
        match Entry::decode(&stored.body) {
            Ok(entry) if key_of(&entry.subject) == key => found.push((entry, stored)),
            Ok(_) => bad.push((at, format!("{key}: {}", BadEntry::Other))),
            Err(why) => bad.push((at, format!("{key}: {why}"))),
        }
        true
    })?;
    Ok((found, bad))
}

/// The entries that count. A dropped slot may have a record all the same, from a run that was killed before it could
/// remove it.
pub fn told(entries: Vec<Entry>, job_records: &[JobRecord]) -> Vec<Entry> {
    let by_job: BTreeMap<&Name, &JobRecord> =
        job_records.iter().map(|job_record| (&job_record.job, job_record)).collect();
    let means = |entry: &Entry| match &entry.subject {
        Subject::Slot { job, at, .. } => !by_job.get(job).is_some_and(|job_record| job_record.is_void(*at)),
        Subject::Key(_) | Subject::Latest(_) => true,
    };
    entries.into_iter().filter(means).collect()
}

/// When the slot of an entry is due.
fn due_at(entry: &Entry) -> i64 {
    match entry.subject {
        Subject::Slot { at, .. } => at,
        Subject::Key(_) | Subject::Latest(_) => i64::MIN,
    }
}

/// Removes records of settled slots that are older than `keep`; gives how many. The job's record says that they are
/// settled, so no run starts one of them again.
pub fn sweep(store: &mut dyn Store, terms: &Terms, now: i64) -> Result<usize, Failure> {
    let keep = i64::try_from(terms.keep.as_secs()).unwrap_or(i64::MAX);
    let (old, _) = recorded(store, &terms.job, 0, now.saturating_sub(keep))?;
    // Read after them: a slot that is to be tried again is listed by now, or its record has another version.
    let Some(job_record) = read(store, &terms.job)? else { return Ok(0) };
    let mut removed = 0;
    for (entry, stored) in old.iter().filter(|(entry, _)| job_record.may_forget(due_at(entry), entry.state)) {
        let gone = block_on(store.remove(&key_of(&entry.subject), &stored.version));
        removed += usize::from(matches!(gone, Cas::Written { .. }));
    }
    Ok(removed)
}

/// Lists a slot to be tried again, although it is settled or newer ones exist. Gives the job's record, or `None` if no
/// machine has loaded the job. If the record does not list the slot, too many are open already.
pub fn again(store: &mut dyn Store, job: &Name, at: i64) -> Result<Option<JobRecord>, Failure> {
    let unlisted = |job_record: &&JobRecord| !job_record.open.contains(&at);
    let listed = change(store, job, |found, write| found.filter(unlisted)?.listing(&[at], write));
    Ok(listed?.job_record)
}
