//! How the last holds of each lease ended, for `history` and `why`: what its record keeps for people.

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
use super::{OpenedStore, held_for, store_failed};
use crate::exit::Failed;

/// One hold that is over.
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
    /// When it ended, or was found to have; by the clock of the machine that wrote it down.
    pub when: String,
}

/// One hold of a lease: no two have the same.
type HoldId<'a> = (&'a Name, Epoch, u64);

/// The holds that have rows of their own in the ledger. The claim in one that was skipped is of whoever was in its way.
fn holds(rows: &[ItemRow]) -> HashSet<HoldId<'_>> {
    let claims = rows.iter().filter(|row| row.entry.state != ItemState::Skipped).map(|row| &row.entry.claim);
    claims.map(|claim| (&claim.lease, claim.epoch, claim.token.get())).collect()
}

/// What the records of leases tell.
#[derive(Default)]
pub struct PastRuns {
    /// Those that are over, the oldest first.
    pub runs: Vec<PastRun>,
    /// Every lease that has a record.
    pub leases: Vec<Name>,
    /// What is no record.
    pub unreadable: Vec<Unreadable>,
}

/// Reads them all. What has a row of its own in the ledger is not told twice.
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

    /// Whether an item was run after this. The claim in one that was skipped is of whoever was in its way.
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
        held_for(&self.when).map_or_else(|| self.when.clone(), |d| format!("{} ago", HumanDuration(d)))
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

    /// For `why`, of a time.
    pub fn told_with_its_time(&self) -> String {
        let Self { lease, token, holder, word, job, when, .. } = self;
        let job = if job == lease.as_str() { String::new() } else { format!(" ({job})") };
        let exit = self.exit.map(|code| format!(" (exit {code})")).unwrap_or_default();
        let took = self.took.map(|took| format!(", after {}", HumanDuration(took))).unwrap_or_default();
        format!("{lease}{job}: {word}{exit}, by {holder} (token {token}), ended at {when}{took}.")
    }

    /// For `why`.
    pub fn sentence(&self) -> String {
        let Self { lease, token, holder, word, job, .. } = self;
        let job = if job == lease.as_str() { String::new() } else { format!(" ({job})") };
        let ago = self.ago();
        let after =
            |word: &str| self.took.map(|took| format!(" {word} {}", HumanDuration(took))).unwrap_or_default();
        let exit =
            self.exit.filter(|code| *code != 0).map(|code| format!(" (exit {code})")).unwrap_or_default();
        match word.as_str() {
            UNKNOWN => format!(
                "the last run of {lease}{job} never reported: {holder} had it (token {token}), and it was taken over {ago}."
            ),
            UNSEALED => format!(
                "the last run of {lease}{job} ran nothing: {holder} had it (token {token}) {ago}, and could not seal its \
                 targets: leasehold fence ls TARGET tells whose one is, and the log of that run why it was refused."
            ),
            RELEASED => {
                let after = after("after");
                format!(
                    "{lease}{job} was last held by {holder} (token {token}), and given back {ago}{after}."
                )
            }
            _ => {
                let took = after("in");
                format!(
                    "the last run of {lease}{job}: {word}{exit}, by {holder} (token {token}) {ago}{took}."
                )
            }
        }
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

    /// A row about another hold hides none: of a record's other life, or of a slot that gave way to this very hold.
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
