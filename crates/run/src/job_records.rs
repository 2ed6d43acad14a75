//! The records of jobs in a store: what is due of a job now, and what is done about the rest.
//!
//! The decisions are [`leasehold_core::ledger::job_record`]'s and the times are [`crate::schedule`]'s; here are the calls.

mod due_now;

use std::collections::BTreeMap;
use std::time::Duration;

pub use due_now::due_now;
use jiff::Timestamp;
use leasehold::ledger::job::decoded;
pub use leasehold::ledger::job::{PREFIX, agenda_key, read};
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
use leasehold_core::store::{Cas, Failure, Stored};
use leasehold_core::update::{FoundRecord, Update, UpdateDecision, UpdateNext, UpdateOutcome};
use pollster::block_on;

use crate::schedule::{Schedule, Slot};

/// How a job's slots are gone about.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The job.
    pub job: Name,
    /// When it is due.
    pub schedule: Schedule,
    /// The same as machines compare it, and as it was written.
    pub named: JobSchedule,
    /// The leases that would do.
    pub leases: Vec<Name>,
    /// A slot gives way to whatever holds its lease; otherwise it stays open.
    pub skips: bool,
    /// How many of the newest slots are run if they were missed.
    pub catch_up: usize,
    /// None that was due longer ago than this.
    pub max_age: Option<Duration>,
    /// A slot whose run never reported, or was stopped, is run again.
    pub retry: bool,
    /// How often a slot may fail.
    pub attempts: u32,
    /// How long the records of slots are kept.
    pub keep: Duration,
    /// Slots may be looked at this much later than they are due.
    pub stagger: Duration,
}

impl Terms {
    /// A slot of this job, as the ledger calls it.
    pub fn subject(&self, slot: &Slot) -> Subject {
        Subject::Slot { job: self.job.clone(), at: slot.number(), id: slot.due().to_string() }
    }

    /// The slot that is due at a second; of another schedule, if it is none of this one's.
    fn slot(&self, at: i64) -> Option<Slot> {
        let ours = self.schedule.prev_at_or_before(instant(at)).filter(|slot| slot.number() == at);
        ours.or_else(|| Slot::due_at(at))
    }

    fn catch_up(&self) -> CatchUp {
        CatchUp { most: self.catch_up, max_age: self.max_age }
    }

    /// What a scheduler asks about a slot that has a record, at a second.
    pub fn ask(&self, entry: &Entry, now: i64) -> ItemRequest {
        let if_unknown = unknown_slot(self.retry);
        let item = Item { subject: entry.subject.clone(), if_unknown, attempts: self.attempts, keep: None };
        let ask = item.ask(&entry.job, ItemClaim::nobody(&entry.claim, random::seed()));
        asked_by_itself(ask, self.max_age, due_at(entry), now)
    }
}

/// What this process has done about a job just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Nothing.
    Nothing,
    /// Started a run of this slot, which has ended.
    This(i64),
    /// Started a run of this slot, which goes on: whatever else is due finds the lease taken by it.
    Running(i64),
}

impl Tried {
    fn has(self, at: i64) -> bool {
        matches!(self, Self::Running(_)) || self == Self::This(at)
    }
}

/// What was found, and what is to be done.
#[derive(Clone, Debug, Default)]
pub struct DueNow {
    /// Start a run of one of these slots, of the first if nothing speaks against it.
    pub start: Vec<SlotToStart>,
    /// Something is not settled yet: look again.
    pub unsettled: bool,
    /// What people should hear of.
    pub notes: Vec<JobNote>,
}

/// A slot that may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotToStart {
    /// Which.
    pub slot: Slot,
    /// It was due some time ago, and is made up for.
    pub late: bool,
    /// It was begun before: it has a record.
    pub again: bool,
    /// Its lease looks free; otherwise only a run can tell.
    pub free: bool,
}

/// A look that came to no end.
#[derive(Clone, Debug)]
pub struct LookFailed {
    /// Why.
    pub failure: Failure,
    /// What was written down before, and people should hear of.
    pub notes: Vec<JobNote>,
}

/// What people should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobNote {
    /// These slots are not run.
    Dropped(DroppedRange),
    /// This slot gave way.
    WavedOff(Entry),
    /// With this slot, as many in a row gave way as are no accident.
    Stuck(Subject),
    /// The run that began this slot never reported.
    Silent(Entry),
    /// Another machine has another schedule for the job: this one's is not in force.
    Elsewhere(String),
    /// The record of a slot is not to be acted on.
    Bad(String),
    /// The job is settled up to this second, which is far ahead: a clock was wrong.
    Ahead(i64),
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

/// What is under a key of ours, and is no record: where, and why.
pub type Unreadable = (String, String);

/// The records of all jobs, and what is no such record.
pub fn read_all(store: &mut dyn Store) -> Result<(Vec<JobRecord>, Vec<Unreadable>), Failure> {
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    each_stored(store, PREFIX, "", |key, stored| {
        match JobRecord::decode_any(&stored.body) {
            Ok(agenda) if agenda_key(&agenda.job) == key => found.push(agenda),
            Ok(_) => bad.push((key, BadEntry::Other.to_string())),
            Err(why) => bad.push((key, why.to_string())),
        }
        true
    })?;
    Ok((found, bad))
}

/// The record of a job after somebody wanted to change it.
struct Changed {
    agenda: Option<JobRecord>,
    /// It was changed, and by us.
    by_us: bool,
}

/// Changes the record of a job by a rule, which gives nothing if there is nothing to change.
fn change(
    store: &mut dyn Store,
    job: &Name,
    rule: impl Fn(Option<&JobRecord>, WriteId) -> Option<JobRecord>,
) -> Result<Changed, Failure> {
    go_on(store, job, Update::new(random::seed()), rule)
}

/// Goes on with a change whose record is to be read now.
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
    let done = drive(store, &agenda_key(job), NextCall::Read, None, |_, answer| {
        let next = match answer {
            StoreAnswer::Read(read) => {
                update.on_read(read.map(|s| s.map(|s| FoundRecord::of(s, |body| decoded(job, body)))), decide)
            }
            StoreAnswer::Cas(cas) => update.on_cas(cas),
        };
        NextCall::of(next, |agenda| Some(agenda.encode()))
    })?;
    match done {
        UpdateOutcome::Landed { record, .. } => Ok(Changed { agenda: Some(record), by_us: true }),
        UpdateOutcome::Stopped(found) => found.map(|agenda| Changed { agenda, by_us: false }),
        UpdateOutcome::Failed { failure, .. } => Err(failure),
    }
}

/// This machine has loaded these schedules: jobs that are new, or due at other times than before, have no past.
/// Gives those that were changed, with what they were before.
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
        let key = agenda_key(&terms.job);
        let stored = known.remove(&key);
        // What cannot be read is the trouble of one job: whoever looks at it will hear.
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
        // Somebody was faster, or nobody knows: then one by one.
        if update.on_cas::<()>(answer) == UpdateNext::Read {
            go_on(store, &terms.job, update, |found, write| {
                seen(found, &terms.job, &terms.named, now, not_over, write)
            })?;
        }
        list_latecomers(store, terms, before.as_ref(), now)?;
    }
    // One whose record was only written in a newer format is as it was.
    changed.retain(|(terms, found, _)| found.as_ref().is_none_or(|found| !found.goes_by(&terms.named)));
    let before = |found: Option<JobRecord>| found.map(|found| found.schedule);
    Ok(changed.into_iter().map(|(terms, found, _)| (terms.job.clone(), before(found))).collect())
}

/// The slots of a job whose schedule is being changed that runs are at, or that are to be tried again.
fn not_over(
    store: &mut dyn Store,
    terms: &Terms,
    before: Option<&JobRecord>,
    now: i64,
) -> Result<Vec<i64>, Failure> {
    let Some(agenda) = before.filter(|agenda| !agenda.goes_by(&terms.named)) else {
        return Ok(Vec::new());
    };
    let (entries, _) = recorded(store, &terms.job, agenda.settled, now)?;
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for (entry, stored) in &entries {
        all.push((due_at(entry), due_now::stands(store, terms, now, entry, stored, &mut notes)?));
    }
    Ok(listed_first(all.into_iter()))
}

/// Lists the slots that were begun while the schedule of their job was being changed: nobody would look at them.
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

/// Pauses a job. Gives what its record says then; nothing if no machine has seen the job.
pub fn pause(store: &mut dyn Store, job: &Name) -> Result<Option<JobRecord>, Failure> {
    let at = host::utc(clock::wall().as_secs());
    let changed = change(store, job, |found, write| found?.pausing(host::name(), at.clone(), write));
    Ok(changed?.agenda)
}

/// Lets a job go on with what is due after `now`: after a pause, and if it was settled by a clock that was wrong. For the
/// latter the terms are needed that are in force.
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
    Ok(changed?.agenda)
}

/// A record of a slot, as it is stored.
pub type StoredSlot = (Entry, Stored);

/// A record of a slot that is not to be acted on: when the slot is due, and what is wrong.
pub type BadSlot = (i64, String);

/// The records of a job's slots that are due after one second, up to and with another.
pub fn recorded(
    store: &mut dyn Store,
    job: &Name,
    after: i64,
    upto: i64,
) -> Result<(Vec<StoredSlot>, Vec<BadSlot>), Failure> {
    let prefix = slots_of(job);
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    each_stored(store, &prefix, &format!("{prefix}{:012}", after.max(0)), |key, stored| {
        // By the key: what the record says may be wrong.
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

/// Of these entries, those that mean something: not the slots that were dropped, and have a record all the same, made by
/// somebody who died before it was taken back.
pub fn told(entries: Vec<Entry>, agendas: &[JobRecord]) -> Vec<Entry> {
    let by_job: BTreeMap<&Name, &JobRecord> = agendas.iter().map(|agenda| (&agenda.job, agenda)).collect();
    let means = |entry: &Entry| match &entry.subject {
        Subject::Slot { job, at, .. } => !by_job.get(job).is_some_and(|agenda| agenda.is_void(*at)),
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

/// Removes records of settled slots that are older than they are to be kept; gives how many. That they are settled is
/// written down already, so nobody begins one of them again.
pub fn sweep(store: &mut dyn Store, terms: &Terms, now: i64) -> Result<usize, Failure> {
    let keep = i64::try_from(terms.keep.as_secs()).unwrap_or(i64::MAX);
    let (old, _) = recorded(store, &terms.job, 0, now.saturating_sub(keep))?;
    // Read after them: one that somebody has just asked for is listed by now, or has another version.
    let Some(agenda) = read(store, &terms.job)? else { return Ok(0) };
    let mut removed = 0;
    for (entry, stored) in old.iter().filter(|(entry, _)| agenda.may_forget(due_at(entry), entry.state)) {
        let gone = block_on(store.remove(&key_of(&entry.subject), &stored.version));
        removed += usize::from(matches!(gone, Cas::Written { .. }));
    }
    Ok(removed)
}

/// A slot of the job may be run again: schedulers look at it once more, although it is settled or there are newer
/// ones. Gives what the job's record says now; nothing if no machine has seen the job. If it does not say so then,
/// too many are open already.
pub fn again(store: &mut dyn Store, job: &Name, at: i64) -> Result<Option<JobRecord>, Failure> {
    let unlisted = |agenda: &&JobRecord| !agenda.open.contains(&at);
    let listed = change(store, job, |found, write| found.filter(unlisted)?.listing(&[at], write));
    Ok(listed?.agenda)
}
