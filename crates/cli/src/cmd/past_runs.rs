//! How the last runs of each lease ended, for `history` and `why`: its record keeps that for people.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::core::history::{PastHold, RELEASED, UNKNOWN, UNSEALED, word};
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::Epoch;
use leasehold::core::ledger::{Entry, ItemState};
use leasehold::core::name::Name;
use leasehold::core::record::{BadRecord, LeaseRecord};
use leasehold::core::session::LEASE_PREFIX;
use leasehold::stores::each_stored;
use leasehold_run::job_records::Unreadable;
use serde_json::{Value, json};

use super::history::{ItemRow, when};
use super::{OpenedStore, store_failed, times};
use crate::exit::Failed;
use crate::messages::why as say;

/// A run that has ended.
pub struct PastRun {
    pub lease: Name,
    epoch: Epoch,
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

/// One hold of a lease: no two have the same.
type HoldId<'a> = (&'a Name, Epoch, u64);

/// The holds of the runs that started these items. A skipped item has the claim of the run that held the lease.
fn holds(rows: &[ItemRow]) -> HashSet<HoldId<'_>> {
    let claims = rows.iter().filter(|row| row.entry.state != ItemState::Skipped).map(|row| &row.entry.claim);
    claims.map(|claim| (&claim.lease, claim.epoch, claim.token.get())).collect()
}

/// The past runs in the records of leases.
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
            Ok(record) => {
                let over = record.past.iter().filter_map(|line| PastRun::of(&record, line));
                all.runs.extend(over.filter(|run| !told.contains(&run.hold())));
                all.leases.push(record.lease);
            }
            Err(bad) => all.unreadable.push((key, bad.to_string())),
        }
        true
    });
    found.map_err(|f| store_failed(&f, &opened.chosen))?;
    all.runs.sort_by(|a, b| a.when.cmp(&b.when));
    Ok(all)
}

impl PastRun {
    /// A line of a lease's record.
    pub fn of(record: &LeaseRecord, line: &str) -> Option<Self> {
        let PastHold { token, outcome, exit, took, at, job, holder } = PastHold::read(line)?;
        Some(Self {
            lease: record.lease.clone(),
            epoch: record.epoch,
            token,
            exit,
            took,
            job: job.into(),
            holder: holder.into(),
            word: outcome.into(),
            when: at.into(),
        })
    }

    fn hold(&self) -> HoldId<'_> {
        (&self.lease, self.epoch, self.token)
    }

    /// Whether an item was run after this. A skipped item has the claim of the run that held the lease.
    pub fn is_before(&self, entry: &Entry) -> bool {
        let claim = &entry.claim;
        let later = match claim.lease == self.lease && claim.epoch == self.epoch {
            true => claim.token.get() > self.token,
            false => when(entry) > self.when.as_str(),
        };
        later && entry.state != ItemState::Skipped
    }

    /// Whether it was a run of this job.
    pub fn is_of(&self, job: &Name) -> bool {
        self.job == word(job.as_str())
    }

    /// Whether it belongs to this lease or job.
    pub fn is_about(&self, name: &str) -> bool {
        self.lease.as_str() == name || self.job == word(name)
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
        match word.as_str() {
            UNKNOWN => say::last_unknown(lease, job, holder, token, ago),
            UNSEALED => say::last_not_fenced(lease, job, holder, token, ago),
            RELEASED => {
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

#[cfg(test)]
mod tests {
    use leasehold::core::ids::{Grant, Token, WriteId};
    use leasehold::core::ledger::{Entry, ItemClaim, Subject};
    use leasehold::core::record::Holder;

    use super::*;

    fn row(state: ItemState, epoch: u128, token: u64) -> ItemRow {
        let (host, run, job, since) = ("h".into(), "r".into(), "site".into(), "then".into());
        let holder = Holder { host, pid: 1, run, job, since, slot: None };
        let lease = Name::new("site").unwrap();
        let token = Token::new(token).unwrap();
        let claim =
            ItemClaim { lease: lease.clone(), epoch: Epoch::first(epoch), token, grant: Grant(1), holder };
        let entry = Entry {
            subject: Subject::Key("k".into()),
            job: lease,
            state,
            attempt: 1,
            failures: 0,
            silences: 0,
            claim,
            since_first: None,
            ending: None,
            steps: Vec::new(),
            more: serde_json::Map::new(),
            write: WriteId(1),
        };
        ItemRow { entry, state }
    }

    /// A hold of the same lease is another one if its token or its epoch differs, and a skipped slot names the hold
    /// that was in its way.
    #[test]
    fn a_hold_is_in_the_ledger_only_if_the_row_is_its_own() {
        let run = PastRun {
            lease: Name::new("site").unwrap(),
            epoch: Epoch::first(1),
            token: 7,
            exit: None,
            took: None,
            job: "site".into(),
            holder: "h/1".into(),
            word: "ok".into(),
            when: "then".into(),
        };
        assert!(holds(&[row(ItemState::Ok, 1, 7)]).contains(&run.hold()));
        assert!(!holds(&[row(ItemState::Ok, 1, 8)]).contains(&run.hold()));
        assert!(!holds(&[row(ItemState::Ok, 2, 7)]).contains(&run.hold()));
        assert!(!holds(&[row(ItemState::Skipped, 1, 7)]).contains(&run.hold()));
    }
}
