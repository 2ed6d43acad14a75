//! What the page of a job shows: the sums and the advice of `leasehold stats`, and what stands beside them there.

use std::path::Path;
use std::time::Duration;

use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogLine};
use leasehold::core::run_stats::{RunStats, TtlAdvice};
use leasehold::core::session::lease_key;
use leasehold::core::timing::DEFAULT_TTL;
use leasehold::run_log::{Scope, Window};
use leasehold::stores::{Failure, Store};
use leasehold_run::job_records;
use pollster::block_on;

use super::look::{lease_row, next_slots, schedule};
use crate::cmd::stats::{added_up, ttls_in};
use crate::cmd::status::LeaseRow;

/// The most records that are read.
const RECORDS: usize = 10_000;
/// The most that are shown one by one.
pub const LAST: usize = 20;

/// What is known of a job.
#[derive(Debug)]
pub struct JobFacts {
    /// Its name.
    pub name: Name,
    /// Its record, if it has a schedule.
    pub record: Option<JobRecord>,
    /// When it is due next.
    pub next: Option<jiff::Timestamp>,
    /// The time between two slots; without a schedule, between two starts.
    pub interval: Option<Duration>,
    /// The lease of its name, if there is one.
    pub lease: Option<LeaseRow>,
    /// Its TTL, if that is known.
    pub ttl: Option<Duration>,
    /// As `leasehold stats` has them.
    pub sums: RunStats,
    /// How long runs and holds took, and how they ended.
    pub times: Vec<(Duration, LogEvent)>,
    /// The newest records, the newest first.
    pub last: Vec<LogLine>,
    /// When the oldest record in the window was written.
    pub oldest: Option<Duration>,
    /// There are more records than were read.
    pub cut: bool,
    /// How many records were read.
    pub read: usize,
}

/// Reads what the store has about a job, and what the leasehold.toml here says of it. None if the store has nothing.
pub fn read(
    store: &mut dyn Store,
    name: &Name,
    window: Window,
    elsewhere: bool,
    file: &Path,
) -> Result<Option<JobFacts>, Failure> {
    let record = job_records::read(store, name)?;
    let lease = block_on(store.read(&lease_key(name)))?;
    let lease = lease.map(|stored| lease_row(name.as_str(), &stored, &store.facts(), elsewhere));
    let (mut times, mut last, mut oldest, mut cut, mut read) = (Vec::new(), Vec::new(), None, false, 0);
    let mut sums = added_up(store, Scope::Job(name), window, |entry| {
        if read == RECORDS {
            cut = true;
            return false;
        }
        read += 1;
        let line = &entry.line;
        oldest = Some(line.at);
        let timed = line.event().filter(|event| event.is_run() || *event == LogEvent::Released);
        times.extend(line.took.zip(timed));
        if last.len() < LAST {
            last.push(line.clone());
        }
        true
    })?;
    if record.is_none() && lease.is_none() && read == 0 {
        return Ok(None);
    }
    let sums = sums.jobs.remove(name).unwrap_or_default();
    let (next, interval) = next_slots(record.as_ref().and_then(schedule).as_ref(), crate::cmd::now());
    let ttl = ttls_in(file).remove(name).or_else(|| lease.as_ref()?.ttl);
    let (name, interval) = (name.clone(), interval.or(sums.interval));
    Ok(Some(JobFacts { name, record, next, interval, lease, ttl, sums, times, last, oldest, cut, read }))
}

impl JobFacts {
    /// The TTL, if that is known; else that of runs that name none.
    pub fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }

    /// How many ok runs took longer than the interval.
    pub fn too_long(&self) -> usize {
        let Some(interval) = self.interval else { return 0 };
        self.times.iter().filter(|(took, event)| *event == LogEvent::Ok && *took > interval).count()
    }

    /// What to do about the TTL.
    pub fn advice(&self) -> TtlAdvice {
        self.sums.advice(self.ttl)
    }

    /// The same in words.
    pub fn advice_in_words(&self) -> String {
        crate::cmd::stats::sentence(&self.name, &self.sums, &self.advice())
    }
}
