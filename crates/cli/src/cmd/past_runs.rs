//! How runs ended, for `history` and `why`.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::Token;
use leasehold::core::ledger::{Entry, ItemState};
use leasehold::core::name::Name;
use leasehold::core::record::{BadRecord, LeaseRecord};
use leasehold::core::run_log::{LogEvent, LogId};
use leasehold::core::session::LEASE_PREFIX;
use leasehold::host;
use leasehold::run_log::{LogEntry, Scope, Window, newest};
use leasehold::stores::each_stored;
use leasehold_run::job_records::Unreadable;
use serde_json::{Value, json};

use super::history::{ItemRow, when};
use super::{OpenedStore, store_failed, times};
use crate::exit::Failed;
use crate::messages::why as say;

/// How far back runs are shown.
pub const WINDOW: Duration = Duration::from_secs(90 * 86_400);

/// A run that has ended.
pub struct PastRun {
    pub lease: Name,
    pub token: u64,
    exit: Option<i32>,
    took: Option<Duration>,
    job: String,
    holder: String,
    /// How it ended, in a word.
    pub word: String,
    /// When it ended, or when another run found that it had, by the clock of the machine that recorded it.
    pub when: String,
}

/// The holds of the runs that started these items. A skipped item has the claim of the run that held the lease.
fn holds(rows: &[ItemRow]) -> HashSet<LogId> {
    let claims = rows.iter().filter(|row| row.entry.state != ItemState::Skipped).map(|row| &row.entry.claim);
    claims.map(|claim| LogId::of(claim.grant.0)).collect()
}

/// The past runs in the run log.
#[derive(Default)]
pub struct PastRuns {
    /// The oldest first.
    pub runs: Vec<PastRun>,
    /// Every lease that has a record.
    pub leases: Vec<Name>,
    /// Records that cannot be read, and why.
    pub unreadable: Vec<Unreadable>,
}

/// Reads them, without the runs that started one of these items.
pub fn runs(opened: &mut OpenedStore, rows: &[ItemRow]) -> Result<PastRuns, Failed> {
    let (mut all, told) = (PastRuns::default(), holds(rows));
    let found = each_stored(opened.store.as_mut(), LEASE_PREFIX, "", |key, stored| {
        let name = Name::new(key.strip_prefix(LEASE_PREFIX).unwrap_or(&key));
        let name = name.map_err(|e| BadRecord::Damaged(e.to_string()));
        match name.and_then(|name| LeaseRecord::decode(&name, &stored.body)) {
            Ok(record) => all.leases.push(record.lease),
            Err(bad) => all.unreadable.push((key, bad.to_string())),
        }
        true
    });
    found.map_err(|f| store_failed(&f, &opened.chosen))?;
    let (entries, _) = newest(opened.store.as_mut(), Scope::All, Window::last(WINDOW), usize::MAX, |entry| {
        let ended = entry
            .line
            .event()
            .is_some_and(|event| event.is_run() || matches!(event, LogEvent::Released | LogEvent::Unsealed));
        ended && !told.contains(&entry.line.id)
    })
    .map_err(|f| store_failed(&f, &opened.chosen))?;
    all.runs = entries.into_iter().rev().map(PastRun::of).collect();
    Ok(all)
}

impl PastRun {
    /// An entry of the run log.
    pub fn of(LogEntry { line, record, .. }: LogEntry) -> Self {
        let holder = record.as_ref().map_or_else(|| line.host.clone(), |record| record.holder.to_string());
        Self {
            lease: record.and_then(|record| record.lease).unwrap_or_else(|| line.job.clone()),
            token: line.token.map_or(0, Token::get),
            exit: line.exit,
            took: line.took,
            job: line.job.to_string(),
            holder,
            word: line.word,
            when: host::utc(line.at.as_secs()),
        }
    }

    /// Whether an item was run after this. A skipped item has the claim of the run that held the lease.
    pub fn is_before(&self, entry: &Entry) -> bool {
        when(entry) > self.when.as_str() && entry.state != ItemState::Skipped
    }

    /// Whether it belongs to this lease or job.
    pub fn is_about(&self, name: &str) -> bool {
        self.lease.as_str() == name || self.job == name
    }

    /// "3m ago", or when.
    pub fn ago(&self) -> String {
        times::ago(&self.when)
    }

    /// For the table of `history`.
    pub fn cells(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        vec![
            self.lease.to_string(),
            self.job.clone(),
            self.lease.to_string(),
            self.word.clone(),
            self.ago(),
            self.took.map_or_else(dash, |took| HumanDuration(took).to_string()),
            self.exit.map_or_else(dash, |exit| exit.to_string()),
            self.holder.clone(),
            self.token.to_string(),
            dash(),
            dash(),
        ]
    }

    /// For `--json`.
    pub fn object(&self) -> Value {
        json!({
            "v": 1, "kind": "run", "item": self.lease.as_str(), "job": self.job, "outcome": self.word,
            "reason": null, "time": self.when, "exit": self.exit,
            "duration_s": self.took.map(|took| took.as_secs_f64()), "said": null,
            "lease": self.lease.as_str(), "token": self.token, "run_id": null, "holder": self.holder,
            "attempt": null, "failures": null, "steps": [],
        })
    }

    /// For `why`, about a time.
    pub fn told_with_its_time(&self) -> String {
        let Self { lease, token, holder, word, when, .. } = self;
        let exit = self.exit.map(say::exit).unwrap_or_default();
        let took = self.took.map(|took| say::run_after(HumanDuration(took))).unwrap_or_default();
        let (outcome, time) = (format!("{word}{exit}"), times::local_text(when));
        say::past_run(lease, self.job_beside(), outcome, holder, token, time, took)
    }

    /// For `why`.
    pub fn sentence(&self) -> String {
        let Self { lease, token, holder, word, .. } = self;
        let (job, ago, took) = (self.job_beside(), self.ago(), self.took.map(HumanDuration));
        match LogEvent::parse(word) {
            Some(LogEvent::Unknown) => say::last_unknown(lease, job, holder, token, ago),
            Some(LogEvent::Unsealed) => say::last_not_fenced(lease, job, holder, token, ago),
            Some(LogEvent::Released) => {
                let took = took.map(say::after).unwrap_or_default();
                say::last_released(lease, job, holder, token, ago, took)
            }
            _ => {
                let exit = self.exit.filter(|code| *code != 0).map(say::exit).unwrap_or_default();
                let took = took.map(say::took).unwrap_or_default();
                say::last_run(lease, job, format!("{word}{exit}"), holder, token, ago, took)
            }
        }
    }

    /// The job, if its name is not that of the lease.
    fn job_beside(&self) -> String {
        if self.job == self.lease.as_str() { String::new() } else { say::of_job(&self.job) }
    }
}
