//! What the run log has about one name.

use std::time::Duration;

use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{LogEntry, Scope, Window, in_order};
use leasehold::stores::{Failure, Store};

use super::super::history::{Asked, ItemRow, Line};
use super::MOST;

/// So many records are looked through for the last run and the last items.
const NEWEST: usize = 50;
/// What is recorded within this time after the one that was asked about was done for it.
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// The records of one name.
pub struct Log<'a> {
    name: &'a str,
    /// The job of this name, and the one that had the lease of this name last.
    pub jobs: Vec<Name>,
    /// The newest, the newest first.
    pub lines: Vec<Line>,
    /// There are older ones.
    pub more: bool,
}

impl<'a> Log<'a> {
    /// Reads the newest records of a job, and of the job that had the lease of this name last.
    pub fn of(store: &mut dyn Store, name: &'a str, asked: &Asked) -> Result<Self, Failure> {
        let mut jobs: Vec<Name> = Name::new(name).into_iter().collect();
        jobs.extend(asked.lease.iter().filter_map(|record| Name::new(&record.holder.job).ok()));
        jobs.extend(asked.rows.iter().map(|row| row.entry.job.clone()));
        jobs.sort();
        jobs.dedup();
        let mut log = Self { name, jobs, lines: Vec::new(), more: false };
        let mut entries = Vec::new();
        log.each(store, Window::all(), NEWEST + 1, |entry| {
            entries.push(entry);
            entries.len() <= NEWEST
        })?;
        log.more = entries.len() > NEWEST;
        entries.truncate(NEWEST);
        log.lines = entries.into_iter().map(|entry| Line::of(entry, &asked.rows)).collect();
        Ok(log)
    }

    /// Visits its records in a window, with their bodies, until `visit` gives false.
    fn each(
        &self,
        store: &mut dyn Store,
        window: Window,
        first: usize,
        mut visit: impl FnMut(LogEntry) -> bool,
    ) -> Result<(), Failure> {
        let scopes: Vec<Scope<'_>> = self.jobs.iter().map(Scope::Job).collect();
        in_order(
            store,
            &scopes,
            window,
            first,
            |_| true,
            |store, mut entry| {
                entry.fill(store)?;
                Ok(!self.is_about(&entry) || visit(entry))
            },
        )
    }

    fn is_about(&self, entry: &LogEntry) -> bool {
        let Some(record) = &entry.record else { return true };
        let key = matches!(&record.item, Some(Subject::Key(key)) if key == self.name);
        let lease = record.lease.as_ref().is_some_and(|lease| lease.as_str() == self.name);
        entry.line.job.as_str() == self.name || lease || key
    }

    /// The newest items; or none if one slot was asked about.
    pub fn items(&self, second: Option<i64>) -> impl Iterator<Item = Subject> {
        let mut found: Vec<Subject> = Vec::new();
        let items = self.lines.iter().filter_map(|line| line.subject.clone());
        for subject in items.filter(|subject| second.is_none() && !matches!(subject, Subject::Latest(_))) {
            if found.len() <= MOST && !found.contains(&subject) {
                found.push(subject);
            }
        }
        found.into_iter()
    }

    /// The last run, if none of these items was run since; and the skips and refused writes after it, the newest of each.
    pub fn last(&self, rows: &[ItemRow]) -> Vec<Line> {
        let told = |line: &Line| rows.iter().any(|row| Some(row.id()) == line.id || line.is_before(row));
        let last = self.lines.iter().position(is_run);
        let (newer, run) = match last {
            Some(at) => (&self.lines[..at], Some(&self.lines[at])),
            None => (&self.lines[..], None),
        };
        // That an item was skipped is told with the item.
        let skip = newer.iter().find(|line| line.event == Some(LogEvent::Skipped) && line.subject.is_none());
        // The refusals of a run are handed in before its end.
        let its = |line: &&Line| run.is_none_or(|run| line.run_id == run.run_id || line.at > run.at);
        let refusal = self.lines.iter().filter(its).find(|line| line.event == Some(LogEvent::Refused));
        let run = run.filter(|run| !told(run));
        [skip, refusal, run].into_iter().flatten().cloned().collect()
    }

    /// The last record before a second, and those within a minute after it, or else the first one after it; in order.
    pub fn around(&self, store: &mut dyn Store, at: i64) -> Result<Vec<Line>, Failure> {
        let at = Duration::from_secs(u64::try_from(at).unwrap_or(0));
        let mut found = Vec::new();
        let ends = |entry: &LogEntry| {
            let event = entry.line.event();
            event.is_some_and(|event| is_end(event) || event == LogEvent::Refused)
        };
        let before = Window { since: Duration::ZERO, until: at.saturating_sub(Duration::from_millis(1)) };
        self.each(store, before, 1, |entry| {
            let wanted = ends(&entry);
            if wanted {
                found.push(Line::of(entry, &[]));
            }
            !wanted
        })?;
        let next = Window { since: at, until: at + MINUTE };
        let rest = [next, Window { until: at + DAY, ..next }, Window { until: Window::all().until, ..next }];
        for (window, most) in rest.into_iter().zip([MOST, 1, 1]) {
            // The newest come first: the last ones are wanted.
            let mut after = std::collections::VecDeque::new();
            self.each(store, window, NEWEST, |entry| {
                if ends(&entry) {
                    after.push_front(Line::of(entry, &[]));
                    after.truncate(most);
                }
                true
            })?;
            if !after.is_empty() {
                found.extend(after);
                break;
            }
        }
        Ok(found)
    }
}

fn is_run(line: &Line) -> bool {
    line.event.is_some_and(|event| is_end(event) && event != LogEvent::Skipped)
}

/// Whether it is how a run ended, or that it did not start.
fn is_end(event: LogEvent) -> bool {
    event.is_run() || matches!(event, LogEvent::Released | LogEvent::Unsealed | LogEvent::Skipped)
}
