//! The standing of a job of leasehold.toml: for `plan` and `why`.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::{DropReason, DroppedRange, JobRecord, stuck};
use leasehold::core::ledger::{Entry, ItemState, Subject};
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{Scope, Window, newest};
use leasehold::stores::{Failure, Store};
use leasehold_run::job_records::{self, ON_TIME};
use leasehold_run::jobs::{IfBusy, Job};

use super::history::{self, ItemRow, Line};
use super::times::local_second;
use super::{OpenedStore, item_args, store_failed, times};
use crate::exit::Failed;
use crate::messages::plan as say;

/// Records are read from this many seconds before the time up to which the job is settled.
const LOOK_BACK: i64 = 30 * 86_400;

/// The outcomes that a person may have to look at, for `history --only`.
const BAD_WORDS: &str = "failed,unknown,lost,killed";

/// Whether it is one of them.
fn is_bad(state: ItemState) -> bool {
    matches!(state, ItemState::Failed | ItemState::Unknown | ItemState::Lost | ItemState::Killed)
}

/// What is known of a job.
pub struct KnownJob {
    /// Its record; nothing if no machine has loaded it.
    pub job_record: Option<JobRecord>,
    /// The slot that is running, or else the newest that has a record; and its outcome.
    pub last: Option<(Entry, ItemState)>,
    pub standing: JobStatus,
    /// Its slots of the last time, the oldest first.
    pub rows: Vec<ItemRow>,
}

/// The standing of a job.
pub enum JobStatus {
    /// No scheduler has loaded it.
    Unseen,
    Paused {
        by: String,
        at: String,
    },
    /// Another machine has loaded this schedule since.
    Elsewhere(String),
    /// It is settled up to this second, which is far ahead: a clock was wrong.
    Ahead(i64),
    /// How many slots in a row found its lease held; and by whom, if a run of the job holds it.
    Stuck(usize, Option<String>),
    /// The holder of a run that should have been ended, how long the run has taken, and its limit.
    Overrun(String, Duration, Duration),
    /// This holder runs it now.
    Running(String),
    /// Its newest slot has this outcome, which is bad.
    Ended(ItemState),
    /// Slots are due, and its last run could not fence its targets; for how long it is overdue, if it is.
    NotFenced(Box<Line>, Option<(Duration, u64)>),
    /// How long the oldest slot that was not started has been due, and how many such slots there are.
    Overdue(Duration, u64),
    /// The newest slot went well; how many before it have a bad outcome.
    Waiting(usize),
    Fine,
}

impl JobStatus {
    /// The run that could not fence its targets, if that is the standing.
    pub fn not_fenced(&self) -> Option<&Line> {
        match self {
            Self::NotFenced(run, _) => Some(run),
            _ => None,
        }
    }

    /// In a few words.
    pub fn in_words(&self, job: &Name) -> String {
        match self {
            Self::Unseen => say::unseen(),
            Self::Paused { by, at } => say::paused(by, times::local_text(at)),
            Self::Elsewhere(schedule) => say::elsewhere(schedule),
            Self::Ahead(upto) => say::ahead(local_second(*upto), job),
            Self::Stuck(slots, by) => {
                say::stuck(slots, by.as_ref().map(say::stuck_on_itself).unwrap_or_default())
            }
            Self::Overrun(by, so_far, limit) => {
                say::overrun(by, HumanDuration(*so_far), HumanDuration(*limit))
            }
            Self::Running(by) => say::running(by),
            Self::Ended(state) => say::last_slot(state.word(), job),
            Self::NotFenced(run, late) => {
                let (lease, token) = (&run.lease, run.token.unwrap_or(0));
                let lease = if lease == job { String::new() } else { format!("{lease}, ") };
                let late = late.map_or_else(say::not_run, |(late, _)| say::late(HumanDuration(late)));
                say::not_fenced(late, run.ago(), lease, token, job)
            }
            Self::Overdue(late, slots) => {
                let slots = if *slots == 1 { String::new() } else { say::overdue_slots(slots) };
                say::overdue(HumanDuration(*late), slots)
            }
            Self::Waiting(1) => say::one_waits(job, BAD_WORDS),
            Self::Waiting(slots) => say::some_wait(slots, job, BAD_WORDS),
            Self::Fine => say::fine(),
        }
    }
}

/// Reads the records of a job. Without the job itself, its schedule is not known.
pub fn stood(
    opened: &mut OpenedStore,
    name: &Name,
    job: Option<&Job>,
    now: Timestamp,
) -> Result<KnownJob, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let job_record = job_records::read(store, name).map_err(failed)?;
    let from =
        job_record.as_ref().map_or(0, |job_record| job_record.settled.min(now.as_second()) - LOOK_BACK);
    let (entries, _) = job_records::recorded(store, name, from, i64::MAX).map_err(failed)?;
    let entries: Vec<Entry> = entries.into_iter().map(|(entry, _)| entry).collect();
    let entries = job_records::told(entries, job_record.as_slice());
    let mut rows = Vec::new();
    for entry in entries {
        rows.push(ItemRow { state: history::state(store, &entry).map_err(failed)?, entry });
    }
    let recorded: Vec<(&Entry, ItemState)> = rows.iter().map(|row| (&row.entry, row.state)).collect();
    // Newer slots may have been skipped because of the one that is running.
    let running = recorded.iter().rev().find(|(_, state)| *state == ItemState::Started);
    let last = running.or(recorded.last()).map(|(entry, state)| ((*entry).clone(), *state));
    let mut standing = standing(job, job_record.as_ref(), &recorded, now);
    // This asks the store once more for each lease.
    let may_be = matches!(
        standing,
        JobStatus::Overdue(..) | JobStatus::Ended(_) | JobStatus::Waiting(_) | JobStatus::Fine
    );
    if let (true, Some(job), Some(job_record)) = (may_be, job, job_record.as_ref())
        && let Some(late) = not_started(job, job_record, &recorded, now)
        && let Some(run) = not_fenced(store, job, &rows).map_err(failed)?
    {
        standing = JobStatus::NotFenced(Box::new(run), overdue(job, late));
    }
    Ok(KnownJob { job_record, last, standing, rows })
}

/// The job's newest run, if that could not fence its targets.
fn not_fenced(store: &mut dyn Store, job: &Job, rows: &[ItemRow]) -> Result<Option<Line>, Failure> {
    let (last, _) = newest(store, Scope::Job(&job.name), Window::all(), 1, |entry| {
        entry.line.event().is_some_and(|event| event.is_run() || event == LogEvent::Unsealed)
    })?;
    let Some(mut last) = last.into_iter().find(|entry| entry.line.event() == Some(LogEvent::Unsealed)) else {
        return Ok(None);
    };
    last.fill(store)?;
    let run = Line::of(last, &[]);
    Ok(Some(run).filter(|run| !rows.iter().any(|row| run.is_before(row))))
}

fn standing(
    job: Option<&Job>,
    job_record: Option<&JobRecord>,
    recorded: &[(&Entry, ItemState)],
    now: Timestamp,
) -> JobStatus {
    let Some(job_record) = job_record else { return JobStatus::Unseen };
    if let Some(paused) = job_record.paused.clone().filter(|paused| paused.until.is_none()) {
        return JobStatus::Paused { by: paused.by, at: paused.at };
    }
    if job.is_some_and(|job| !job_record.goes_by(&job.named())) {
        return JobStatus::Elsewhere(job_record.schedule.clone());
    }
    if let Some(upto) = job_record.ahead(now.as_second(), Duration::ZERO) {
        return JobStatus::Ahead(upto);
    }
    let running = recorded.iter().rev().find(|(_, state)| *state == ItemState::Started);
    let by = running.map(|(entry, _)| item_args::by_whom(entry));
    if let Some(overrun) = job.zip(running).and_then(|(job, (entry, _))| overrun(job, entry, now)) {
        return overrun;
    }
    if let Some(skipped) = stuck(recorded.iter().rev().map(|(entry, _)| *entry)) {
        return JobStatus::Stuck(skipped, by);
    }
    if let Some(by) = by {
        return JobStatus::Running(by);
    }
    if let Some((late, slots)) =
        job.and_then(|job| overdue(job, not_started(job, job_record, recorded, now)?))
    {
        return JobStatus::Overdue(late, slots);
    }
    if let Some((_, state)) = recorded.last().filter(|(_, state)| is_bad(*state)) {
        return JobStatus::Ended(*state);
    }
    // A scheduler looks at open slots again by itself.
    let waits = |entry: &Entry| at(entry).is_none_or(|at| !job_record.open.contains(&at));
    match recorded.iter().filter(|(entry, state)| is_bad(*state) && waits(entry)).count() {
        0 => JobStatus::Fine,
        slots => JobStatus::Waiting(slots),
    }
}

/// A run that has taken longer than it may, and longer than it takes to end one.
fn overrun(job: &Job, entry: &Entry, now: Timestamp) -> Option<JobStatus> {
    let (limit, started) = (job.max_run?, entry.claim.holder.since.parse::<Timestamp>().ok()?);
    let so_far = Duration::from_secs(u64::try_from(now.as_second() - started.as_second()).ok()?);
    let grace = job.wishes.grace.unwrap_or_default() + ON_TIME;
    (so_far > limit + grace).then(|| JobStatus::Overrun(item_args::by_whom(entry), so_far, limit))
}

/// The due slots that were not started, recorded or dropped: since when the oldest is due, and how many they are.
fn not_started(
    job: &Job,
    job_record: &JobRecord,
    recorded: &[(&Entry, ItemState)],
    now: Timestamp,
) -> Option<(Duration, u64)> {
    let settled = Timestamp::from_second(job_record.settled).ok()?;
    let known: BTreeSet<i64> = recorded.iter().filter_map(|(entry, _)| at(entry)).collect();
    let due = job.schedule.after(settled).take_while(|slot| slot.due() <= now);
    let first = due.into_iter().find(|slot| !known.contains(&slot.number()))?;
    let before = Timestamp::from_second(first.number() - 1).ok()?;
    let slots = job.schedule.count(before, now).saturating_sub(known.range(first.number()..).count() as u64);
    Some((Duration::from_secs((now.as_second() - first.number()).unsigned_abs()), slots))
}

/// The same, if that is longer than usual.
fn overdue(job: &Job, (late, slots): (Duration, u64)) -> Option<(Duration, u64)> {
    // A run that waits for its lease has not started its slot yet.
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

/// Which slots were dropped, and why.
pub fn dropped(range: &DroppedRange) -> String {
    let (first, last) = (local_second(range.first), local_second(range.last));
    let which = match range.first == range.last {
        true => say::one_slot(first),
        false => say::slots(range.count, first, last),
    };
    say::dropped(which, because(range.why))
}

/// Why slots were dropped.
pub fn because(why: DropReason) -> String {
    match why {
        DropReason::Missed => say::missed(),
        DropReason::Paused => say::paused_then(),
    }
}
