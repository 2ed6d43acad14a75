//! The run log in a store: written after the fact, read in order of time, swept when it is old.
//!
//! Nothing waits for a record and nothing depends on it. A record that the store does not take within a second
//! is kept on this machine ([`unlogged`]), and the next run here hands it in.

mod once;
mod read;
pub mod unlogged;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::forgotten::ONCE;
use leasehold_core::name::Name;
use leasehold_core::run_log::{LOG_PREFIX, LogRecord, day_of, day_prefix, job_prefix, older_than};
use leasehold_core::store::Landed;
use leasehold_core::time::BootTime;
use pollster::block_on;

pub use read::{LogEntry, Scope, Window, each, in_order, newest};

use self::unlogged::Unlogged;
use crate::clock;
use crate::seen_tokens::SeenTokens;
use crate::stores::{BatchWrite, Cas, Failure, Listed, Store, Stored};

/// How long a store may take for a record, and for all that is handed in and swept after it.
pub const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// One of so many writes looks for records that are too old, and removes at most [`SWEPT`] of them. Of the runs of keys, one
/// of so many looks for leases of keys that are done.
pub const SWEEP_EVERY: u64 = 16;
const SWEPT: usize = 100;
/// One of so many writes counts the records of its job, and removes those that are too many. One of so many looks at some
/// notes of this machine.
const COUNT_EVERY: u64 = 256;
const PAGE: usize = 1000;

/// How long the run log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Records older than this are removed, by the store's clock. None: never.
    pub age: Option<Duration>,
    /// The most records of one job. None: any number.
    pub per_job: Option<usize>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: Some(Duration::from_secs(90 * 86_400)), per_job: Some(10_000) }
    }
}

/// Writes records of the run log.
#[derive(Clone, Debug)]
pub struct LogWriter {
    unlogged: Unlogged,
    retention: Retention,
    /// What this machine remembers of leases on the store.
    notes: Option<SeenTokens>,
    /// Records that another thread is writing. Shared by all copies.
    begun: Arc<Mutex<Vec<LogRecord>>>,
}

impl LogWriter {
    /// A writer that keeps what the store does not take.
    pub fn new(unlogged: Unlogged, retention: Retention) -> Self {
        Self { unlogged, retention, notes: None, begun: Arc::default() }
    }

    /// The same, for a machine with these notes: those of leases that are swept go too.
    #[must_use]
    pub fn with_notes(self, notes: SeenTokens) -> Self {
        Self { notes: Some(notes), ..self }
    }

    /// A writer that keeps nothing; for programs without a state directory.
    pub fn without_state() -> Self {
        Self::new(Unlogged::none(), Retention::default())
    }

    /// How long records are kept.
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// Keeps a record on this machine: there is no store to write it into now.
    pub fn keep(&self, record: &LogRecord) {
        self.unlogged.keep(record);
    }

    /// Notes that a record will be written by another thread.
    pub fn begin(&self, record: &LogRecord) {
        self.begun().push(record.clone());
    }

    /// Keeps on this machine what another thread has not written yet. To write a record twice does no harm.
    pub fn give_up(&self) {
        self.begun().drain(..).for_each(|record| self.unlogged.keep(&record));
    }

    fn begun(&self) -> MutexGuard<'_, Vec<LogRecord>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one record, or keeps it on this machine.
    pub fn write(&self, store: &mut dyn Store, record: &LogRecord) {
        self.write_or_keep(store, record);
        self.begun().retain(|begun| begun.id != record.id);
    }

    fn write_or_keep(&self, store: &mut dyn Store, record: &LogRecord) {
        let limit = store.limit_calls(LOG_PATIENCE);
        match write(store, record) {
            Ok(()) => self.after(store, record),
            Err(_) => self.unlogged.keep(record),
        }
        store.limit_calls(limit);
    }

    /// Makes the last write of a lease, and with it the record: in one step where the store has such a step. Otherwise the
    /// record is written afterwards, if the first write was made.
    pub fn write_with(&self, store: &mut dyn Store, first: &BatchWrite, record: &LogRecord) -> Cas {
        if let Some(answer) = block_on(store.cas_with(first, &creation(record))) {
            match &answer {
                Cas::Written { .. } => self.after(store, record),
                // The disk is full, for both: the lease alone may have room.
                Cas::Unknown(failure) if failure.landed == Landed::No => {
                    let alone =
                        block_on(store.cas(&first.key, first.expected.as_ref(), first.write, &first.body));
                    if let Cas::Written { .. } = alone {
                        self.unlogged.keep(record);
                    }
                    return alone;
                }
                Cas::Unknown(_) | Cas::Conflict => {}
            }
            return answer;
        }
        let answer = block_on(store.cas(&first.key, first.expected.as_ref(), first.write, &first.body));
        if let Cas::Written { .. } = answer {
            self.write(store, record);
        }
        answer
    }

    /// What follows a record that was written: records of this machine that were not are handed in, and old ones are
    /// swept. It ends after a second.
    pub fn after(&self, store: &mut dyn Store, record: &LogRecord) {
        let end = clock::boot_time().plus(LOG_PATIENCE);
        let limit = store.limit_calls(LOG_PATIENCE);
        self.unlogged.hand_in(store, end);
        // Best effort: what is left is removed after another write.
        let _ = self.sweep(store, record, end);
        store.limit_calls(limit);
    }

    fn sweep(&self, store: &mut dyn Store, record: &LogRecord, end: BootTime) -> Result<(), Failure> {
        let number = record.id.number();
        if let Some(age) = self.retention.age.filter(|_| number.is_multiple_of(SWEEP_EVERY)) {
            sweep_old(store, age, clock::wall(), end)?;
        }
        if let Some(most) = self.retention.per_job.filter(|_| number.is_multiple_of(COUNT_EVERY)) {
            sweep_job(store, &record.job, most, clock::wall(), end)?;
        }
        let (turn, random) = (number % SWEEP_EVERY, number / SWEEP_EVERY);
        let notes = self.notes.as_ref();
        if let Some(lease) = record.lease.as_ref().filter(|lease| lease.as_str().ends_with(ONCE))
            && turn == SWEEP_EVERY / 2
        {
            once::sweep(store, notes, lease, random, end)?;
        }
        if let Some(notes) = notes.filter(|_| number % COUNT_EVERY == COUNT_EVERY / 4) {
            once::sweep_notes(store, notes, random, end)?;
        }
        Ok(())
    }
}

/// A record, as a write that creates it.
pub fn creation(record: &LogRecord) -> BatchWrite {
    BatchWrite { key: record.key(), expected: None, write: record.write_id(), body: record.encode() }
}

/// Creates a record. One that is there already is the same.
pub fn write(store: &mut dyn Store, record: &LogRecord) -> Result<(), Failure> {
    let BatchWrite { key, expected, write, body } = creation(record);
    match block_on(store.cas(&key, expected.as_ref(), write, &body)) {
        Cas::Written { .. } | Cas::Conflict => Ok(()),
        Cas::Unknown(failure) => Err(failure),
    }
}

/// Removes records that the store has had for longer than this. The wall clock only says where to begin.
pub fn sweep_old(
    store: &mut dyn Store,
    age: Duration,
    wall: Duration,
    end: BootTime,
) -> Result<usize, Failure> {
    let last = day_of(wall.saturating_sub(age));
    let listed = block_on(store.list(LOG_PREFIX, &older_than(last), SWEPT))?;
    remove(store, listed, end, |stored| stored.age.is_some_and(|stored| stored >= age))
}

/// Removes the oldest records of a job, if there are more than this.
pub fn sweep_job(
    store: &mut dyn Store,
    job: &Name,
    most: usize,
    wall: Duration,
    end: BootTime,
) -> Result<usize, Failure> {
    let (mut seen, mut removed) = (0, 0);
    for day in days(wall) {
        let (prefix, mut after) = (job_prefix(day, job), String::new());
        loop {
            let listed = block_on(store.list(&prefix, &after, PAGE))?;
            let Some(last) = listed.last() else { break };
            after.clone_from(&last.key);
            let full = listed.len() == PAGE;
            let kept = most.saturating_sub(seen).min(listed.len());
            seen += listed.len();
            removed += remove(store, listed.into_iter().skip(kept).collect(), end, |_| true)?;
            if !full || clock::boot_time() >= end {
                break;
            }
        }
    }
    Ok(removed)
}

/// Removes those of the listed records that are to go.
fn remove(
    store: &mut dyn Store,
    listed: Vec<Listed>,
    end: BootTime,
    goes: impl Fn(&Stored) -> bool,
) -> Result<usize, Failure> {
    let mut removed = 0;
    for Listed { key, stored } in listed {
        if clock::boot_time() >= end {
            break;
        }
        let stored = match stored {
            Some(stored) => Some(stored),
            None => block_on(store.read(&key))?,
        };
        if let Some(stored) = stored.filter(&goes)
            && let Cas::Written { .. } = block_on(store.remove(&key, &stored.version))
        {
            removed += 1;
        }
    }
    Ok(removed)
}

/// The days that are searched, the newest first: a little ahead, for clocks that are, and back as far as anybody keeps
/// records by age.
fn days(wall: Duration) -> impl Iterator<Item = u64> {
    let today = day_of(wall);
    (today.saturating_sub(DAYS_BACK)..=today + 1).rev()
}

/// How far back a job's records are counted.
const DAYS_BACK: u64 = 400;

/// The prefix of what a scope has on a day.
fn prefix_of(scope: &Scope<'_>, day: u64) -> String {
    match scope {
        Scope::All => day_prefix(day),
        Scope::Job(job) => job_prefix(day, job),
        Scope::Prefix(prefix) => format!("{}{prefix}", day_prefix(day)),
    }
}
