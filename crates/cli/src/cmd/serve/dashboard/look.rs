//! What the page Now shows: the leases, the jobs, and the run log of the last day.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::clock;
use leasehold::core::ledger::job_record::{JobRecord, ScheduleKey};
use leasehold::core::ledger::{Entry, ItemClaim, Subject};
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogLine};
use leasehold::core::session::{LEASE_PREFIX, lease_key};
use leasehold::core::time::BootTime;
use leasehold::ledger::key_of;
use leasehold::run_log::{LogEntry, Scope, Window, each};
use leasehold::stores::{Clock, Failure, Store, StoreFacts, Stored};
use leasehold_run::job_records::{self, ON_TIME};
use leasehold_run::schedule::{Cron, Every, Gap, Overlap, Policy, Schedule};
use pollster::block_on;

use crate::cmd::needs::{self, ItemStanding, LOOKED_UP, NeedKind, NewestRuns, item_of};
use crate::cmd::status::{self, LeaseRow, LeaseState};

/// The most leases that are read.
pub const LEASES: usize = 500;
/// How far back Now looks.
const RECENT: Duration = Duration::from_secs(86_400);
/// How far back a server looks once for items that wait for a person. From then on it remembers them.
const WAITING: Duration = Duration::from_secs(7 * 86_400);
/// Records of one job that are shown beside its lease.
pub const STRIP: usize = 8;
/// The most records that are told in words.
const NOTABLE: usize = 60;
/// The most items that are remembered because they wait for a person.
const REMEMBERED: usize = 50;
/// Reading the log takes no more than this part of the time.
const LOG_SHARE: u32 = 10;
/// So many jobs have a strip.
const JOBS: usize = 500;
/// So many jobs have their lease read although it is not among the first.
const BESIDE: usize = 100;
const PAGE: usize = 1_000;

/// What was found.
#[derive(Debug)]
pub struct Look {
    /// When, by this machine's clock.
    pub at: Duration,
    /// Held leases first.
    pub leases: Vec<LeaseRow>,
    /// There are more leases than were read.
    pub more_leases: bool,
    /// Every job that is known to the store, the next to be due first.
    pub jobs: Vec<JobNow>,
    /// Records of jobs that cannot be read.
    pub bad_jobs: usize,
    /// The run log of the last day.
    pub recent: Arc<Recent>,
    /// What needs a person.
    pub needs: Vec<Matter>,
    /// What is good to know.
    pub notes: Vec<Matter>,
    /// Differs where anything shown differs, apart from the time that has passed.
    pub mark: u64,
    /// The store's list has no bodies: each look costs a call for each lease.
    pub costly: bool,
}

/// A job with a schedule.
#[derive(Clone, Debug)]
pub struct JobNow {
    /// Its name.
    pub name: Name,
    /// Its schedule, as it was written.
    pub schedule: String,
    /// When it is due next, if its schedule can be read.
    pub next: Option<Timestamp>,
    /// The time from that slot to the one after it.
    pub interval: Option<Duration>,
    /// Its standing.
    pub standing: Standing,
}

/// The standing of a job, as far as one look at its record shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A person paused it.
    Paused {
        /// On this machine.
        by: String,
        /// At this time.
        at: String,
    },
    /// This run has a lease for it.
    Running(String),
    /// A run of another job has its lease.
    Held(String),
    /// A slot has been due for so long and was not started; so many are.
    Overdue(Duration, u64),
    /// Nothing is wrong.
    Fine,
}

impl Standing {
    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Paused { .. } => "paused",
            Self::Running(_) => "running",
            Self::Held(_) => "held",
            Self::Overdue(..) => "overdue",
            Self::Fine => "fine",
        }
    }
}

/// The run log of the last day.
#[derive(Debug, Default)]
pub struct Recent {
    /// How many records of each event; of slots that were dropped, how many slots.
    pub counts: BTreeMap<LogEvent, u64>,
    /// The newest records of each job, the newest first.
    pub strips: HashMap<Name, Vec<LogLine>>,
    /// Records that stand out, the newest first.
    pub notable: Vec<LogEntry>,
    /// How often each event that stands out is there, of each job.
    often: HashMap<(Name, LogEvent), u64>,
    newest: NewestRuns,
    /// Items that wait for a person.
    pub waiting: Vec<Waiting>,
    /// Items of expired leases that have no record.
    absent: Vec<Subject>,
    /// Jobs whose newest run ended badly, and whose item is in order all the same.
    settled: HashSet<Name>,
    /// Differs where a record was added.
    pub mark: u64,
}

/// An item that no run starts again before a person has decided.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The item.
    pub subject: Subject,
    /// The job.
    pub job: Name,
    /// The run that started it last.
    pub claim: ItemClaim,
    /// It failed as often as it may; otherwise its outcome is not known.
    pub too_often: bool,
    /// When that was found last.
    pub at: Duration,
}

/// Something that is told in words.
#[derive(Clone, Debug)]
pub enum Matter {
    /// Records of one job and one event, the newest of them, and how many there are.
    Records {
        /// The newest.
        newest: Box<LogEntry>,
        /// Its event.
        event: LogEvent,
        /// How many.
        count: u64,
        /// A later run of the job was ok.
        ok_since: bool,
    },
    /// An item waits for a person.
    Decision(Box<Waiting>),
    /// A slot has been due for so long; so many are.
    Overdue(Name, Duration, u64),
    /// A job is paused by somebody, since then.
    Paused(Name, String, String),
    /// The record of a lease cannot be used, and why.
    BadLease(String, String),
    /// The holder of this lease never reported.
    NeverReported(Box<LeaseRow>),
}

/// Looks at the store again and again. The log is read only as often as it costs little.
#[derive(Debug)]
pub struct Looker {
    /// Holders may be on other machines, because this server writes for them.
    elsewhere: bool,
    recent: Option<(Arc<Recent>, BootTime)>,
}

impl Looker {
    /// Whose holders may be elsewhere, or are not.
    pub fn new(elsewhere: bool) -> Self {
        Self { elsewhere, recent: None }
    }

    /// One look.
    pub fn look(&mut self, store: &mut dyn Store) -> Result<Look, Failure> {
        let now = clock::wall();
        let mut marks = DefaultHasher::new();
        let (job_records, bad_jobs) = job_records::read_all(store)?;
        let mut found = leases(store)?;
        let more_leases = found.more;
        if more_leases {
            for job in job_records.iter().take(BESIDE).map(|record| &record.job) {
                let key = lease_key(job);
                if let Some(stored) = (!found.rows.iter().any(|(known, _)| *known == key))
                    .then(|| block_on(store.read(&key)))
                    .transpose()?
                    .flatten()
                {
                    found.rows.push((key, stored));
                }
            }
        }
        let facts = store.facts();
        let (mut leases, mut expired) = (Vec::new(), Vec::new());
        for (key, stored) in &found.rows {
            (key, &stored.version.0).hash(&mut marks);
            let row =
                lease_row(key.strip_prefix(LEASE_PREFIX).unwrap_or(key), stored, &facts, self.elsewhere);
            // A lease that expires changes by itself.
            row.state.word().hash(&mut marks);
            let scheduled =
                || job_records.iter().any(|record| row.job.as_deref() == Some(record.job.as_str()));
            if row.state == LeaseState::Expired && needs::never_reported(stored.age, RECENT) && !scheduled() {
                expired.push(row.clone());
            }
            leases.push(row);
        }
        leases.sort_by(|a, b| (!a.state.is_held(), &a.lease).cmp(&(!b.state.is_held(), &b.lease)));
        let recent = self.recent(store, &expired)?;
        recent.mark.hash(&mut marks);
        let at = timestamp(now);
        let mut jobs: Vec<JobNow> =
            job_records.iter().map(|record| job_now(record, &leases, &recent, at)).collect();
        jobs.sort_by(|a, b| (a.next.is_none(), a.next, &a.name).cmp(&(b.next.is_none(), b.next, &b.name)));
        job_records.iter().for_each(|record| record.write.0.hash(&mut marks));
        jobs.iter().for_each(|job| (&job.name, job.next, job.standing.word()).hash(&mut marks));
        let (needs, notes) = matters(&recent, &jobs, &leases, &expired);
        Ok(Look {
            at: now,
            leases,
            more_leases,
            jobs,
            bad_jobs: bad_jobs.len(),
            recent,
            needs,
            notes,
            mark: marks.finish(),
            costly: found.costly,
        })
    }

    fn recent(&mut self, store: &mut dyn Store, expired: &[LeaseRow]) -> Result<Arc<Recent>, Failure> {
        let begun = clock::boot_time();
        if let Some((recent, again)) = &self.recent
            && begun < *again
        {
            return Ok(Arc::clone(recent));
        }
        let before = self.recent.as_ref().map(|(recent, _)| recent.waiting.as_slice());
        let recent = Arc::new(read_recent(store, before, expired)?);
        let took = clock::boot_time().since(begun);
        self.recent = Some((Arc::clone(&recent), begun.plus(took * LOG_SHARE)));
        Ok(recent)
    }
}

/// A lease as its record says.
pub fn lease_row(lease: &str, stored: &Stored, facts: &StoreFacts, elsewhere: bool) -> LeaseRow {
    // The longest age says that this machine was rebooted, and so its own holders ended. Others went on.
    let rebooted = facts.clock == Clock::BootTime && stored.age == Some(Duration::MAX);
    match elsewhere && rebooted {
        true => status::row(lease, &Stored { age: None, ..stored.clone() }, facts),
        false => status::row(lease, stored, facts),
    }
}

/// A time of the wall clock.
pub fn timestamp(at: Duration) -> Timestamp {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    Timestamp::new(seconds, at.subsec_nanos().cast_signed()).unwrap_or(Timestamp::MAX)
}

struct Leases {
    rows: Vec<(String, Stored)>,
    more: bool,
    costly: bool,
}

/// The first leases by name.
fn leases(store: &mut dyn Store) -> Result<Leases, Failure> {
    let mut listed = block_on(store.list(LEASE_PREFIX, "", LEASES + 1))?;
    let more = listed.len() > LEASES;
    listed.truncate(LEASES);
    let (mut rows, mut costly) = (Vec::with_capacity(listed.len()), false);
    for found in listed {
        let stored = match found.stored {
            Some(stored) => Some(stored),
            None => {
                costly = true;
                block_on(store.read(&found.key))?
            }
        };
        rows.extend(stored.map(|stored| (found.key, stored)));
    }
    Ok(Leases { rows, more, costly })
}

/// What the log has of the last day; and the items that wait, of which some may be known.
fn read_recent(
    store: &mut dyn Store,
    known: Option<&[Waiting]>,
    expired: &[LeaseRow],
) -> Result<Recent, Failure> {
    let mut recent = Recent::default();
    let mut marks = DefaultHasher::new();
    let mut waiting: Vec<LogEntry> = Vec::new();
    let mut told: HashSet<LogId> = HashSet::new();
    let mut unknown: Vec<LogId> = Vec::new();
    let window = Window::last(if known.is_some() { RECENT } else { WAITING });
    let day = Window::last(RECENT).since;
    each(store, Scope::All, window, PAGE, |entry| {
        let line = &entry.line;
        needs::keep_waiting(&mut waiting, &entry);
        if line.at < day {
            return true;
        }
        (line.at, line.id.number(), &line.word).hash(&mut marks);
        let strips = &mut recent.strips;
        if (strips.len() < JOBS || strips.contains_key(&line.job))
            && strips.get(&line.job).is_none_or(|strip| strip.len() < STRIP)
        {
            strips.entry(line.job.clone()).or_default().push(line.clone());
        }
        let Some(event) = line.event() else { return true };
        let dropped = entry.record.as_ref().and_then(|record| record.count);
        let count = dropped.filter(|_| event == LogEvent::Dropped).unwrap_or(1);
        *recent.counts.entry(event).or_default() += count;
        if event == LogEvent::Unknown {
            unknown.push(line.id);
        } else if event.is_run() {
            told.insert(line.id);
        }
        recent.newest.see(line);
        if stands_out(event) {
            *recent.often.entry((line.job.clone(), event)).or_default() += count;
            recent.notable.push(entry);
            if recent.notable.len() > NOTABLE * 20 {
                newest_first(&mut recent.notable);
                recent.notable.truncate(NOTABLE);
            }
        }
        true
    })?;
    // Another run took over from a run that told its end later.
    let late =
        |entry: &LogEntry| entry.line.event() == Some(LogEvent::Unknown) && told.contains(&entry.line.id);
    recent.notable.retain(|entry| !late(entry));
    let late = unknown.iter().filter(|id| told.contains(*id)).count() as u64;
    recent.counts.entry(LogEvent::Unknown).and_modify(|count| *count -= late);
    newest_first(&mut recent.notable);
    recent.notable.truncate(NOTABLE);
    let told_by_body = recent.notable.iter_mut().filter(|entry| entry.record.is_none());
    told_by_body.take(LOOKED_UP).try_for_each(|entry| entry.fill(store))?;
    waiting.iter_mut().try_for_each(|entry| entry.fill(store))?;
    let newest = |entry: &&LogEntry| {
        recent.newest.need(&entry.line).is_some() && entry.line.event() != Some(LogEvent::Refused)
    };
    let items = recent.notable.iter().filter(newest).filter_map(|entry| match item(entry)? {
        subject @ (Subject::Key(_) | Subject::Slot { .. }) => Some((&entry.line.job, subject)),
        Subject::Latest(_) => None,
    });
    for (job, subject) in items.take(LOOKED_UP) {
        if let ItemStanding::Fine = needs::item(store, subject, false)? {
            job.hash(&mut marks);
            recent.settled.insert(job.clone());
        }
    }
    let found = waiting
        .iter()
        .filter_map(|entry| Some((item_of(entry)?, needs::is_too_often(&entry.line), entry.line.at)));
    let of_leases = expired.iter().filter_map(|row| Some((expired_item(row)?, false, clock::wall())));
    let known = known.unwrap_or_default().iter();
    let known = known.map(|known| (known.subject.clone(), known.too_often, known.at));
    for (subject, too_often, at) in found.chain(known).chain(of_leases.take(LOOKED_UP)) {
        if recent.waiting.len() == REMEMBERED || recent.waiting.iter().any(|item| item.subject == subject) {
            continue;
        }
        let (entry, too_often) = match needs::item(store, &subject, too_often)? {
            ItemStanding::Unknown(entry) => (entry, false),
            ItemStanding::Quarantined(entry) => (entry, true),
            ItemStanding::Absent => {
                key_of(&subject).hash(&mut marks);
                recent.absent.push(subject);
                continue;
            }
            ItemStanding::Fine | ItemStanding::Ended(_) | ItemStanding::Damaged(_) => continue,
        };
        let Entry { job, claim, .. } = *entry;
        (key_of(&subject), claim.token.get()).hash(&mut marks);
        recent.waiting.push(Waiting { subject, job, claim, too_often, at });
    }
    recent.mark = marks.finish();
    Ok(recent)
}

fn newest_first(entries: &mut [LogEntry]) {
    entries.sort_by(|a, b| b.line.at.cmp(&a.line.at).then_with(|| a.key.cmp(&b.key)));
}

/// The item of the run that held a lease.
fn expired_item(row: &LeaseRow) -> Option<Subject> {
    needs::item_of_lease(&row.lease, row.job.as_deref()?, row.slot.as_deref())
}

/// The item of a record.
pub fn item(entry: &LogEntry) -> Option<&Subject> {
    entry.record.as_ref()?.item.as_ref()
}

fn stands_out(event: LogEvent) -> bool {
    use LogEvent::{Dropped, Failed, Killed, Lost, Refused, Unknown, Unsealed};
    matches!(event, Failed | Lost | Killed | Unknown | Unsealed | Refused | Dropped)
}

fn job_now(record: &JobRecord, leases: &[LeaseRow], recent: &Recent, now: Timestamp) -> JobNow {
    let schedule = schedule(record);
    let (next, interval) = next_slots(schedule.as_ref(), now);
    JobNow {
        name: record.job.clone(),
        schedule: record.schedule.clone(),
        next,
        interval,
        standing: standing(record, schedule.as_ref(), leases, recent, now),
    }
}

/// When a job is due next, and the time from then to the slot after it.
pub fn next_slots(schedule: Option<&Schedule>, now: Timestamp) -> (Option<Timestamp>, Option<Duration>) {
    let mut after = schedule.map(|schedule| schedule.after(now));
    let mut next = || after.as_mut()?.next().map(|slot| slot.due());
    let (next, then) = (next(), next());
    let interval = next
        .zip(then)
        .and_then(|(next, then)| u64::try_from(then.as_second() - next.as_second()).ok())
        .map(Duration::from_secs);
    (next, interval)
}

/// The schedule of a job, from what its record says of it. None if that does not give the same schedule.
pub fn schedule(record: &JobRecord) -> Option<Schedule> {
    let key = record.key.as_ref()?;
    let schedule = match key {
        ScheduleKey::Every { seconds, offset } => {
            let time = |seconds: &i64| u64::try_from(*seconds).ok().map(Duration::from_secs);
            Schedule::every(Every::new(time(seconds)?, time(offset)?).ok()?)
        }
        ScheduleKey::Cron { zone, gap_skip, overlap_last, .. } => {
            // `cron 0 7 * * * in Asia/Tokyo`
            let fields = record.schedule.strip_prefix("cron ")?.split_once(" in ")?.0;
            let policy = Policy {
                gap: if *gap_skip { Gap::Skip } else { Gap::default() },
                overlap: if *overlap_last { Overlap::Last } else { Overlap::default() },
            };
            Schedule::cron(Cron::parse(fields).ok()?, TimeZone::get(zone).ok()?, policy)
        }
    };
    (schedule.key() == *key).then_some(schedule)
}

fn standing(
    record: &JobRecord,
    schedule: Option<&Schedule>,
    leases: &[LeaseRow],
    recent: &Recent,
    now: Timestamp,
) -> Standing {
    if let Some(paused) = record.paused.clone().filter(|paused| paused.until.is_none()) {
        return Standing::Paused { by: paused.by, at: paused.at };
    }
    let mut held = leases.iter().filter(|row| row.state.is_held());
    let holder = |row: &LeaseRow| row.holder.clone().unwrap_or_default();
    if let Some(row) = held.clone().find(|row| row.job.as_deref() == Some(record.job.as_str())) {
        return Standing::Running(holder(row));
    }
    if let Some(row) = held.find(|row| row.lease == record.job.as_str()) {
        return Standing::Held(holder(row));
    }
    let due = schedule.zip(Timestamp::from_second(record.settled).ok());
    let Some((schedule, settled)) = due else { return Standing::Fine };
    // A slot that has ended is settled by the next look of a scheduler.
    let told: HashSet<i64> =
        recent.strips.get(&record.job).into_iter().flatten().filter_map(|line| line.slot).collect();
    let first = schedule
        .after(settled)
        .take_while(|slot| slot.due() <= now)
        .take(STRIP + 1)
        .find(|slot| !told.contains(&slot.number()));
    let Some(first) = first else { return Standing::Fine };
    let late = Duration::from_secs(u64::try_from(now.as_second() - first.number()).unwrap_or(0));
    if late <= ON_TIME {
        return Standing::Fine;
    }
    let before = Timestamp::from_second(first.number() - 1).unwrap_or(settled);
    Standing::Overdue(late, schedule.count(before, now))
}

/// What needs a person, and what is good to know; each the newest first.
fn matters(
    recent: &Recent,
    jobs: &[JobNow],
    leases: &[LeaseRow],
    expired: &[LeaseRow],
) -> (Vec<Matter>, Vec<Matter>) {
    let (mut needs, mut notes) = (Vec::new(), Vec::new());
    needs.extend(recent.waiting.iter().cloned().map(Box::new).map(Matter::Decision));
    for row in leases {
        if let Some(problem) = &row.problem {
            needs.push(Matter::BadLease(row.lease.clone(), problem.clone()));
        }
    }
    // The record of an item says how that stands.
    let unrecorded = |row: &&LeaseRow| expired_item(row).is_none_or(|item| recent.absent.contains(&item));
    let undecided = |row: &&LeaseRow| row.run.is_none_or(|run| !recent.newest.is_decided(run));
    let never_reported = expired.iter().filter(unrecorded).filter(undecided);
    needs.extend(never_reported.cloned().map(Box::new).map(Matter::NeverReported));
    for job in jobs {
        match &job.standing {
            Standing::Overdue(late, slots) => needs.push(Matter::Overdue(job.name.clone(), *late, *slots)),
            Standing::Paused { by, at } => {
                notes.push(Matter::Paused(job.name.clone(), by.clone(), at.clone()));
            }
            _ => {}
        }
    }
    // Of each job and event one: the newest.
    let mut seen = HashSet::new();
    for entry in &recent.notable {
        let job = &entry.line.job;
        let Some(event) = entry.line.event().filter(|event| seen.insert((job, *event))) else { continue };
        let count = recent.often.get(&(job.clone(), event)).copied().unwrap_or(1);
        let told =
            |item: &Waiting| item.job == entry.line.job && item.too_often == (event == LogEvent::Failed);
        if matches!(event, LogEvent::Unknown | LogEvent::Failed) && recent.waiting.iter().any(told) {
            continue;
        }
        let ok_since = recent.newest.ok_since(&entry.line);
        let matter = Matter::Records { newest: Box::new(entry.clone()), event, count, ok_since };
        match recent.newest.need(&entry.line) {
            Some(NeedKind::Refused) => needs.push(matter),
            Some(_) if !recent.settled.contains(job) => needs.push(matter),
            _ => notes.push(matter),
        }
    }
    (needs, notes)
}
