//! How a job of leasehold.toml stands: for `plan` and `why`.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::history::UNSEALED;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::{DropReason, DroppedRange, JobRecord, stuck};
use leasehold::core::ledger::{Entry, ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::lease_key;
use leasehold::stores::{Failure, Store};
use leasehold_run::job_records::{self, ON_TIME};
use leasehold_run::jobs::{IfBusy, Job};

use super::past_runs::PastRun;
use super::{OpenedStore, history, item_args, store_failed};
use crate::exit::Failed;

/// Records that are looked at lie at most this far, in seconds, before what is settled.
const LOOK_BACK: i64 = 30 * 86_400;

/// What did not end well, as `history --only` takes it.
const BAD_WORDS: &str = "failed,unknown,lost,killed";

/// The same.
fn is_bad(state: ItemState) -> bool {
    matches!(state, ItemState::Failed | ItemState::Unknown | ItemState::Lost | ItemState::Killed)
}

/// What is known of a job.
pub struct KnownJob {
    /// Its record; nothing if no machine has seen it.
    pub agenda: Option<JobRecord>,
    /// The slot that a run is at, or else the newest that has a record; and what came of it.
    pub last: Option<(Entry, ItemState)>,
    pub standing: JobStatus,
}

/// How it stands.
pub enum JobStatus {
    /// No scheduler has seen it.
    Unseen,
    Paused {
        by: String,
        at: String,
    },
    /// Another machine has loaded this schedule since.
    Elsewhere(String),
    /// It is settled up to this second, which is far ahead: a clock was wrong.
    Ahead(i64),
    /// So many slots in a row found its lease held; and by whom, if it is a run of its own.
    Stuck(usize, Option<String>),
    /// The run that was begun by somebody goes on for so long, though it was to be ended after that long.
    Overrun(String, Duration, Duration),
    /// A run is at it.
    Running(String),
    /// Its newest slot ended so, and that is not well.
    Ended(ItemState),
    /// Slots are due, and this run, its last, could not seal its targets; for how long it is overdue, if it is.
    Unsealed(Box<PastRun>, Option<(Duration, u64)>),
    /// So many slots are due that nobody has begun, the oldest for so long.
    Overdue(Duration, u64),
    /// The newest went well, and so many before it did not.
    Waiting(usize),
    Fine,
}

impl JobStatus {
    /// The run that could not seal its targets, if that is how it stands.
    pub fn unsealed(&self) -> Option<&PastRun> {
        match self {
            Self::Unsealed(run, _) => Some(run),
            _ => None,
        }
    }

    /// In a few words.
    pub fn in_words(&self, job: &Name) -> String {
        match self {
            Self::Unseen => "no daemon and no tick has seen it yet".into(),
            Self::Paused { by, at } => format!("paused by {by} at {at}"),
            Self::Elsewhere(schedule) => format!("another schedule is in force: {schedule}"),
            Self::Ahead(upto) => ahead(job, *upto),
            Self::Stuck(slots, by) => {
                let by = by.as_ref().map(|by| format!(" by its own run, begun by {by}")).unwrap_or_default();
                format!("stuck: {slots} slots in a row found its lease held{by}")
            }
            Self::Overrun(by, so_far, limit) => format!(
                "stuck: its run, begun by {by}, goes on for {} and was to be ended after {}: its wrapper is frozen, or \
                 what it started cannot be ended",
                HumanDuration(*so_far),
                HumanDuration(*limit)
            ),
            Self::Running(by) => format!("running, begun by {by}"),
            Self::Ended(state) => format!("last slot {}: leasehold why {job}", state.word()),
            Self::Unsealed(run, late) => {
                let PastRun { lease, token, .. } = &**run;
                let lease = if lease == job { String::new() } else { format!("{lease}, ") };
                let late =
                    late.map_or("not run".into(), |(late, _)| format!("overdue for {}", HumanDuration(late)));
                let ago = run.ago();
                format!(
                    "{late}: its targets could not be sealed {ago} ({lease}token {token}): leasehold why {job}"
                )
            }
            Self::Overdue(late, 1) => {
                format!("overdue for {}: does a daemon run, or a tick?", HumanDuration(*late))
            }
            Self::Overdue(late, slots) => {
                format!("overdue for {}, {slots} slots: does a daemon run, or a tick?", HumanDuration(*late))
            }
            Self::Waiting(1) => format!("1 slot waits for you: leasehold history {job} --only {BAD_WORDS}"),
            Self::Waiting(slots) => {
                format!("{slots} slots wait for you: leasehold history {job} --only {BAD_WORDS}")
            }
            Self::Fine => "ok".into(),
        }
    }
}

/// Looks. Without the job itself, only what is recorded of it can be told.
pub fn stood(
    opened: &mut OpenedStore,
    name: &Name,
    job: Option<&Job>,
    now: Timestamp,
) -> Result<KnownJob, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let agenda = job_records::read(store, name).map_err(failed)?;
    let from = agenda.as_ref().map_or(0, |agenda| agenda.settled.min(now.as_second()) - LOOK_BACK);
    let (entries, _) = job_records::recorded(store, name, from, i64::MAX).map_err(failed)?;
    let entries: Vec<Entry> = entries.into_iter().map(|(entry, _)| entry).collect();
    let entries = job_records::told(entries, agenda.as_slice());
    let mut states = Vec::new();
    for entry in &entries {
        states.push(history::state(store, entry).map_err(failed)?);
    }
    let recorded: Vec<(&Entry, ItemState)> = entries.iter().zip(states).collect();
    // A run may be at one although newer ones gave way to it.
    let running = recorded.iter().rev().find(|(_, state)| *state == ItemState::Started);
    let last = running.or(recorded.last()).map(|(entry, state)| ((*entry).clone(), *state));
    let mut standing = standing(job, agenda.as_ref(), &recorded, now);
    // Only where it matters: this asks the store once more for each lease.
    let may_be = matches!(
        standing,
        JobStatus::Overdue(..) | JobStatus::Ended(_) | JobStatus::Waiting(_) | JobStatus::Fine
    );
    if let (true, Some(job), Some(agenda)) = (may_be, job, agenda.as_ref())
        && let Some(late) = unbegun(job, agenda, &recorded, now)
        && let Some(run) = unsealed(store, job, &entries).map_err(failed)?
    {
        standing = JobStatus::Unsealed(Box::new(run), overdue(job, late));
    }
    Ok(KnownJob { agenda, last, standing })
}

/// The job's newest run, if that could not seal its targets.
fn unsealed(store: &mut dyn Store, job: &Job, entries: &[Entry]) -> Result<Option<PastRun>, Failure> {
    let mut newest: Option<PastRun> = None;
    for lease in &job.leases {
        let Some(stored) = pollster::block_on(store.read(&lease_key(lease)))? else { continue };
        let Ok(record) = LeaseRecord::decode(lease, &stored.body) else { continue };
        let runs = record.past.iter().rev().filter_map(|line| PastRun::of(&record, line));
        let last = runs.into_iter().find(|run| run.is_of(&job.name));
        newest = newest.into_iter().chain(last).max_by(|a, b| a.when.cmp(&b.when));
    }
    Ok(newest.filter(|run| run.word == UNSEALED && !entries.iter().any(|entry| run.is_before(entry))))
}

fn standing(
    job: Option<&Job>,
    agenda: Option<&JobRecord>,
    recorded: &[(&Entry, ItemState)],
    now: Timestamp,
) -> JobStatus {
    let Some(agenda) = agenda else { return JobStatus::Unseen };
    if let Some(paused) = agenda.paused.clone().filter(|paused| paused.until.is_none()) {
        return JobStatus::Paused { by: paused.by, at: paused.at };
    }
    if job.is_some_and(|job| !agenda.goes_by(&job.named())) {
        return JobStatus::Elsewhere(agenda.schedule.clone());
    }
    if let Some(upto) = agenda.ahead(now.as_second(), Duration::ZERO) {
        return JobStatus::Ahead(upto);
    }
    let running = recorded.iter().rev().find(|(_, state)| *state == ItemState::Started);
    let by = running.map(|(entry, _)| item_args::by_whom(entry));
    if let Some(overrun) = job.zip(running).and_then(|(job, (entry, _))| overrun(job, entry, now)) {
        return overrun;
    }
    if let Some(waved_off) = stuck(recorded.iter().rev().map(|(entry, _)| *entry)) {
        return JobStatus::Stuck(waved_off, by);
    }
    if let Some(by) = by {
        return JobStatus::Running(by);
    }
    if let Some((late, slots)) = job.and_then(|job| overdue(job, unbegun(job, agenda, recorded, now)?)) {
        return JobStatus::Overdue(late, slots);
    }
    if let Some((_, state)) = recorded.last().filter(|(_, state)| is_bad(*state)) {
        return JobStatus::Ended(*state);
    }
    // What is open is looked at again without anybody.
    let waits = |entry: &Entry| at(entry).is_none_or(|at| !agenda.open.contains(&at));
    match recorded.iter().filter(|(entry, state)| is_bad(*state) && waits(entry)).count() {
        0 => JobStatus::Fine,
        slots => JobStatus::Waiting(slots),
    }
}

/// A run that goes on for longer than it may, and longer than it takes to end one.
fn overrun(job: &Job, entry: &Entry, now: Timestamp) -> Option<JobStatus> {
    let (limit, begun) = (job.max_run?, entry.claim.holder.since.parse::<Timestamp>().ok()?);
    let so_far = Duration::from_secs(u64::try_from(now.as_second() - begun.as_second()).ok()?);
    let grace = job.wishes.grace.unwrap_or_default() + ON_TIME;
    (so_far > limit + grace).then(|| JobStatus::Overrun(item_args::by_whom(entry), so_far, limit))
}

/// For how long the oldest slot is due that nobody has begun, recorded or dropped, and how many are.
fn unbegun(
    job: &Job,
    agenda: &JobRecord,
    recorded: &[(&Entry, ItemState)],
    now: Timestamp,
) -> Option<(Duration, u64)> {
    let settled = Timestamp::from_second(agenda.settled).ok()?;
    let known: BTreeSet<i64> = recorded.iter().filter_map(|(entry, _)| at(entry)).collect();
    let due = job.schedule.after(settled).take_while(|slot| slot.due() <= now);
    let first = due.into_iter().find(|slot| !known.contains(&slot.number()))?;
    let before = Timestamp::from_second(first.number() - 1).ok()?;
    let slots = job.schedule.count(before, now).saturating_sub(known.range(first.number()..).count() as u64);
    Some((Duration::from_secs((now.as_second() - first.number()).unsigned_abs()), slots))
}

/// The same, if that is longer than it may be.
fn overdue(job: &Job, (late, slots): (Duration, u64)) -> Option<(Duration, u64)> {
    // A run that waits for its lease has begun nothing yet.
    let wait = if let IfBusy::Wait(wait) = job.busy { wait } else { Duration::ZERO };
    (late > ON_TIME + job.stagger + wait).then_some((late, slots))
}

fn at(entry: &Entry) -> Option<i64> {
    match entry.subject {
        Subject::Slot { at, .. } => Some(at),
        Subject::Key(_) | Subject::Latest(_) => None,
    }
}

/// Whether it is the record of the slot that is due then.
pub fn is_at(entry: &Entry, second: i64) -> bool {
    at(entry) == Some(second)
}

/// A second since 1970, for people.
pub fn time(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |at| at.to_string())
}

/// "settled up to 2030-…": what that means, and what to do.
pub fn ahead(job: &Name, upto: i64) -> String {
    format!(
        "settled up to {}, so nothing of it becomes due before: a clock was wrong when that was written, or this \
         machine's is behind. If this one is right (date -u), say: leasehold resume {job}",
        time(upto)
    )
}

/// Which slots were dropped, and why.
pub fn dropped(range: &DroppedRange) -> String {
    let which = match (range.first == range.last, range.count) {
        (true, _) => format!("the slot {}", time(range.first)),
        (false, count) => format!("{count} slots from {} to {}", time(range.first), time(range.last)),
    };
    format!("{which}: {}", because(range.why))
}

/// "dropped 525597 slots of minutely, from … to …: …"
pub fn dropped_of(job: &Name, range: &DroppedRange) -> String {
    let slots = if range.count == 1 { "slot" } else { "slots" };
    let (first, last) = (time(range.first), time(range.last));
    format!("dropped {} {slots} of {job}, from {first} to {last}: {}", range.count, because(range.why))
}

fn because(why: DropReason) -> &'static str {
    match why {
        DropReason::Missed => {
            "not begun in time (nobody tried, or what tried could not begin), and catch_up and catch_up_max_age, which say \
             what is run later, ask for no more"
        }
        DropReason::Paused => "the job was paused, and what is due in a pause is not caught up",
    }
}
