//! What the page of a job shows: how long its runs take, how they end, and what that says about its TTL.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use leasehold::core::ledger::job_record::JobRecord;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogLine};
use leasehold::core::session::lease_key;
use leasehold::core::timing::DEFAULT_TTL;
use leasehold::run_log::{Scope, Window, each};
use leasehold::stores::{Failure, Store};
use leasehold_run::job_records;
use pollster::block_on;

use super::look::{lease_row, schedule};
use crate::cmd::status::LeaseRow;

/// The most records that are read.
const RECORDS: usize = 10_000;
/// The most that are shown one by one.
pub const LAST: usize = 20;
/// With fewer runs no advice is given.
pub const ENOUGH: usize = 10;
/// A longer TTL blocks others for long after a crash.
const LONG_TTL: Duration = Duration::from_secs(600);

/// What is known of a job.
#[derive(Debug)]
pub struct JobFacts {
    /// Its name.
    pub name: Name,
    /// Its record, if it has a schedule.
    pub record: Option<JobRecord>,
    /// When it is due next.
    pub next: Option<jiff::Timestamp>,
    /// The time between two slots.
    pub interval: Option<Duration>,
    /// The lease of its name, if there is one.
    pub lease: Option<LeaseRow>,
    /// How often each event is in the window; of slots that were dropped, how many slots.
    pub counts: BTreeMap<LogEvent, u64>,
    /// How many were skipped, by reason.
    pub skips: BTreeMap<String, u64>,
    /// How long runs took that were ok: in order, the shortest first.
    pub ok: Vec<Duration>,
    /// How long others took, and how they ended.
    pub others: Vec<(Duration, LogEvent)>,
    /// The newest records, the newest first.
    pub last: Vec<LogLine>,
    /// When the oldest record in the window was written.
    pub oldest: Option<Duration>,
    /// There are more records than were read.
    pub cut: bool,
    /// Differs where anything shown differs.
    pub read: usize,
}

/// What to do about the TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// There are only so many runs.
    TooFew(usize),
    /// Keep it: runs renew it.
    Keep(Duration),
    /// It blocks others for long: the default will do.
    Shorter(Duration),
    /// Nothing renews it while it is held by hand: the longest hold that went well, and a TTL that covers it.
    ByHand(Duration, Duration),
}

impl Advice {
    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::TooFew(_) => "too_few",
            Self::Keep(_) => "keep",
            Self::Shorter(_) => "shorter",
            Self::ByHand(..) => "by_hand",
        }
    }

    /// The TTL that it recommends.
    pub fn ttl(self) -> Option<Duration> {
        match self {
            Self::TooFew(_) => None,
            Self::Keep(ttl) | Self::ByHand(_, ttl) => Some(ttl),
            Self::Shorter(_) => Some(DEFAULT_TTL),
        }
    }
}

/// Reads what the store has about a job. None if it has nothing.
pub fn read(
    store: &mut dyn Store,
    name: &Name,
    window: Window,
    elsewhere: bool,
) -> Result<Option<JobFacts>, Failure> {
    let record = job_records::read(store, name)?;
    let lease = block_on(store.read(&lease_key(name)))?;
    let lease = lease.map(|stored| lease_row(name.as_str(), &stored, &store.facts(), elsewhere));
    let schedule = record.as_ref().and_then(schedule);
    let now = crate::cmd::now();
    let slots: Vec<_> = schedule.iter().flat_map(|s| s.after(now).take(2)).map(|slot| slot.due()).collect();
    let interval = match slots[..] {
        [a, b] => u64::try_from(b.as_second() - a.as_second()).ok().map(Duration::from_secs),
        _ => None,
    };
    let mut facts = JobFacts {
        name: name.clone(),
        record,
        next: slots.first().copied(),
        interval,
        lease,
        counts: BTreeMap::new(),
        skips: BTreeMap::new(),
        ok: Vec::new(),
        others: Vec::new(),
        last: Vec::new(),
        oldest: None,
        cut: false,
        read: 0,
    };
    let (mut told, mut unknown) = (HashSet::new(), Vec::new());
    each(store, Scope::Job(name), window, RECORDS, |entry| {
        if facts.read == RECORDS {
            facts.cut = true;
            return false;
        }
        facts.read += 1;
        facts.oldest = Some(entry.line.at);
        let dropped = entry.record.as_ref().and_then(|record| record.count);
        match entry.line.event() {
            Some(LogEvent::Unknown) => unknown.push(entry.line.id),
            Some(event) if event.is_run() => drop(told.insert(entry.line.id)),
            _ => {}
        }
        facts.take(entry.line, dropped);
        true
    })?;
    // Another run took over from a run that told its end later: that is one run.
    let late = unknown.iter().filter(|id| told.contains(*id)).count() as u64;
    facts.counts.entry(LogEvent::Unknown).and_modify(|count| *count -= late);
    facts.ok.sort_unstable();
    let known = facts.record.is_some() || facts.lease.is_some() || facts.read > 0;
    Ok(known.then_some(facts))
}

impl JobFacts {
    fn take(&mut self, line: LogLine, dropped: Option<u64>) {
        if let Some(event) = line.event() {
            let count = dropped.filter(|_| event == LogEvent::Dropped).unwrap_or(1);
            *self.counts.entry(event).or_default() += count;
            match (event, line.took) {
                (LogEvent::Ok, Some(took)) => self.ok.push(took),
                (LogEvent::Skipped, _) => {
                    *self.skips.entry(line.reason.clone().unwrap_or_default()).or_default() += 1;
                }
                (event, Some(took)) if event.is_run() || event == LogEvent::Released => {
                    self.others.push((took, event));
                }
                _ => {}
            }
        }
        if self.last.len() < LAST {
            self.last.push(line);
        }
    }

    /// How many records are of this event.
    pub fn count(&self, event: LogEvent) -> u64 {
        self.counts.get(&event).copied().unwrap_or(0)
    }

    /// How many runs executed the command.
    pub fn runs(&self) -> u64 {
        self.counts.iter().filter(|(event, _)| event.is_run()).map(|(_, count)| count).sum()
    }

    /// The part of the runs that was skipped, in percent; none if there was no run.
    pub fn skip_rate(&self) -> Option<f64> {
        let skipped = self.count(LogEvent::Skipped);
        let all = self.runs() + skipped;
        // So many runs fit in there exactly.
        #[allow(clippy::cast_precision_loss)]
        (all > 0).then(|| skipped as f64 * 100.0 / all as f64)
    }

    /// The time within which this part of the ok runs was done, in percent.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.ok.len() * percent).div_ceil(100).max(1) - 1;
        self.ok.get(rank).copied()
    }

    /// The TTL, where a run holds the lease now; else that of runs that name none.
    pub fn ttl(&self) -> Duration {
        self.known_ttl().unwrap_or(DEFAULT_TTL)
    }

    /// The TTL of the run that holds the lease now.
    pub fn known_ttl(&self) -> Option<Duration> {
        self.lease.as_ref()?.ttl
    }

    /// How many ok runs took longer than the time between two slots.
    pub fn too_long(&self) -> usize {
        let Some(interval) = self.interval else { return 0 };
        self.ok.iter().filter(|took| **took > interval).count()
    }

    /// What to do about the TTL.
    pub fn advice(&self) -> Advice {
        let by_hand: Vec<Duration> = self.of(LogEvent::Released).collect();
        if self.ok.len() < ENOUGH && by_hand.len() < ENOUGH {
            return Advice::TooFew(self.ok.len() + by_hand.len());
        }
        if by_hand.len() > self.ok.len() {
            let worst = by_hand.into_iter().max().unwrap_or_default();
            return Advice::ByHand(worst, rounded(worst * 2));
        }
        match self.ttl() {
            ttl if ttl > LONG_TTL => Advice::Shorter(ttl),
            ttl => Advice::Keep(ttl),
        }
    }

    fn of(&self, event: LogEvent) -> impl Iterator<Item = Duration> {
        self.others.iter().filter(move |(_, of)| *of == event).map(|(took, _)| *took)
    }
}

/// As people write it: whole seconds, or whole minutes from ten minutes on.
fn rounded(time: Duration) -> Duration {
    let unit = if time.as_secs() >= 600 { 60 } else { 1 };
    Duration::from_secs(time.as_secs().max(1).div_ceil(unit) * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(ok: &[u64], by_hand: &[u64]) -> JobFacts {
        let times = |times: &[u64]| times.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        JobFacts {
            name: Name::new("site").unwrap(),
            record: None,
            next: None,
            interval: Some(Duration::from_secs(60)),
            lease: None,
            counts: [(LogEvent::Ok, ok.len() as u64), (LogEvent::Skipped, 1), (LogEvent::Refused, 5)].into(),
            skips: BTreeMap::new(),
            ok: times(ok),
            others: times(by_hand).into_iter().map(|took| (took, LogEvent::Released)).collect(),
            last: Vec::new(),
            oldest: None,
            cut: false,
            read: 0,
        }
    }

    #[test]
    fn numbers_are_those_of_the_runs() {
        let ten: Vec<u64> = (1..=10).map(|n| n * 10).collect();
        let job = facts(&ten, &[]);
        let seconds = |percent| job.percentile(percent).map(|time| time.as_secs());
        assert_eq!([seconds(50), seconds(95), seconds(100)], [Some(50), Some(100), Some(100)]);
        assert_eq!((job.runs(), job.too_long()), (10, 4));
        assert!((job.skip_rate().unwrap() - 100.0 / 11.0).abs() < 1e-9);
        assert_eq!(facts(&[], &[]).percentile(50), None);
    }

    #[test]
    fn advice_has_a_reason() {
        let ten = [30; 10];
        assert_eq!(facts(&ten[..9], &[]).advice(), Advice::TooFew(9));
        assert_eq!(facts(&ten, &[]).advice(), Advice::Keep(DEFAULT_TTL));
        let (worst, ttl) = (Duration::from_secs(301), Duration::from_secs(660));
        assert_eq!(facts(&[], &[301; 10]).advice(), Advice::ByHand(worst, ttl));
        let mut long = facts(&ten, &[]);
        let mut row = LeaseRow::bad("site".into(), String::new());
        row.ttl = Some(Duration::from_secs(4_800));
        long.lease = Some(row);
        assert_eq!(long.advice(), Advice::Shorter(Duration::from_secs(4_800)));
    }
}
