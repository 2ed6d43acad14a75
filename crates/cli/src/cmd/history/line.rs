//! A line of `history`, also for `why`: a record of the run log, or an item that is not in it.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::Token;
use leasehold::core::ledger::job_record::DroppedRange;
use leasehold::core::ledger::{Ending, Entry, ItemState, SettleReason, Subject};
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogLine};
use leasehold::host;
use leasehold::ledger::key_of;
use leasehold::run_log::LogEntry;
use serde_json::{Value, json};

use super::super::{item_args, times};
use crate::messages::history as say;

/// Slots that were not run.
const DROPPED: &str = "dropped";

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// The event, if it is one that this version knows.
    pub event: Option<LogEvent>,
    /// What it is, in a word.
    kind: String,
    /// When it happened, by the clock of its machine; since 1970.
    pub at: Duration,
    /// The key or slot.
    pub subject: Option<Subject>,
    pub job: Name,
    pub lease: Name,
    pub word: String,
    pub reason: Option<String>,
    pub exit: Option<i32>,
    pub took: Option<Duration>,
    /// What the record says for people.
    said: String,
    pub token: Option<u64>,
    pub holder: String,
    pub run_id: Option<String>,
    /// Of a refused write: the target.
    pub target: Option<String>,
    /// The token of its fence.
    pub fence: Option<u64>,
    /// Slots that were dropped.
    dropped: Option<Dropped>,
    /// How many names were forgotten.
    count: Option<u64>,
    /// Of the run that has the item now, or had it last.
    attempt: Option<u32>,
    failures: Option<u32>,
    steps: Option<Vec<String>>,
    /// Tells the records of one run from those of others.
    pub id: Option<LogId>,
}

/// Slots that were dropped.
#[derive(Clone, Copy, Debug)]
struct Dropped {
    first: i64,
    last: i64,
    count: Option<u64>,
}

impl Line {
    /// A record of the run log. `items`: records of items, for what only they say.
    pub fn of(LogEntry { line, record, .. }: LogEntry, items: &[ItemRow]) -> Self {
        let event = line.event();
        let holder = record.as_ref().map_or_else(|| line.host.clone(), |record| record.holder.to_string());
        let run_id = record.as_ref().map(|record| record.holder.run.clone());
        let is_run = event.is_some_and(LogEvent::is_run);
        let item = items.iter().find(|row| is_run && row.id() == line.id).map(|row| &row.entry);
        let slot = record.as_ref().and_then(|record| record.holder.slot.clone()).filter(|_| is_run);
        let (mut subject, mut lease, mut reason, mut said) =
            (None, line.job.clone(), line.reason.clone(), String::new());
        let (mut target, mut fence, mut count) = (None, None, None);
        if let Some(record) = record {
            lease = record.lease.unwrap_or(lease);
            subject = record.item;
            reason = record.reason.or(reason);
            said = record.said;
            count = record.count;
            if let Some(refused) = record.target {
                (target, fence) = (Some(refused.target), refused.fence.map(Token::get));
            }
        }
        let subject = item.map(|item| item.subject.clone()).or(subject).or_else(|| slot_of(&line, slot));
        let dropped = subject.as_ref().filter(|_| event == Some(LogEvent::Dropped)).and_then(|subject| {
            let Subject::Slot { at, .. } = subject else { return None };
            let before = line.took.and_then(|span| i64::try_from(span.as_secs()).ok()).unwrap_or(0);
            Some(Dropped { first: at - before, last: *at, count })
        });
        let mut word = line.word;
        if event == Some(LogEvent::Done) {
            // The same words as in the record of the item.
            let by_hand = SettleReason::ByHand.word();
            (word, reason) = (ItemState::Ok.word().into(), Some(by_hand.into()));
            said = format!("{by_hand}: {said}");
        }
        Self {
            event,
            kind: kind(event, &word, subject.as_ref()).into(),
            at: line.at,
            subject,
            job: line.job,
            lease,
            word,
            reason,
            exit: line.exit,
            took: line.took.filter(|_| dropped.is_none()),
            said,
            token: line.token.map(Token::get),
            holder,
            run_id,
            target,
            fence,
            dropped,
            count,
            attempt: item.map(|item| item.attempt),
            failures: item.map(|item| item.failures),
            steps: item.map(steps),
            id: Some(line.id),
        }
    }

    /// An item that is not in the run log: it is open, or its run left no record.
    pub fn of_item(row: &ItemRow) -> Self {
        let Entry { subject, job, ending, claim, attempt, failures, .. } = &row.entry;
        Self {
            event: None,
            kind: kind(None, "", Some(subject)).into(),
            at: row.at(),
            subject: Some(subject.clone()),
            job: job.clone(),
            lease: claim.lease.clone(),
            word: row.state.word().into(),
            reason: row.reason().map(String::from),
            exit: ending.as_ref().and_then(|ending| ending.exit),
            took: ending.as_ref().map(|ending| Duration::from_millis(ending.took_ms)),
            said: ending.as_ref().map(Ending::told).unwrap_or_default(),
            token: Some(claim.token.get()),
            holder: claim.holder.to_string(),
            run_id: Some(claim.holder.run.clone()),
            target: None,
            fence: None,
            dropped: None,
            count: None,
            attempt: Some(*attempt),
            failures: Some(*failures),
            steps: Some(steps(&row.entry)),
            id: None,
        }
    }

    /// Slots that were dropped, of which only the record of their job tells.
    pub fn of_range(job: &Name, range: &DroppedRange) -> Self {
        let DroppedRange { first, last, count, why, .. } = *range;
        Self {
            event: Some(LogEvent::Dropped),
            kind: DROPPED.into(),
            at: seconds(last),
            subject: None,
            job: job.clone(),
            lease: job.clone(),
            word: DROPPED.into(),
            reason: Some(why.word().into()),
            exit: None,
            took: None,
            said: String::new(),
            token: None,
            holder: "-".into(),
            run_id: None,
            target: None,
            fence: None,
            dropped: Some(Dropped { first, last, count: Some(count) }),
            count: None,
            attempt: None,
            failures: None,
            steps: None,
            id: None,
        }
    }

    /// Whether `--only` with this word shows it.
    pub fn is_called(&self, word: &str) -> bool {
        self.word == word || self.event.is_some_and(|event| event.word() == word)
    }

    /// Whether it says how the last run of an item ended, or that the item was not run.
    pub fn tells_of(&self, row: &ItemRow) -> bool {
        let of_run = self.event.is_some_and(LogEvent::is_run) && self.id == Some(row.id());
        let key = |subject: &Subject| key_of(subject) == key_of(&row.entry.subject);
        of_run || self.word == row.state.word() && self.subject.as_ref().is_some_and(key)
    }

    /// How many slots or runs it tells of.
    pub fn counts(&self) -> u64 {
        self.dropped.map_or(1, |dropped| dropped.count.unwrap_or(1))
    }

    /// Whether the slot that is due then was dropped with these.
    pub fn spans(&self, range: &DroppedRange) -> bool {
        self.dropped.is_some_and(|dropped| (range.first..=range.last).contains(&dropped.last))
    }

    /// Who had the lease, of a run that found it held.
    pub fn held_by(&self) -> Option<&str> {
        (self.event == Some(LogEvent::Skipped) && !self.said.is_empty()).then_some(self.said.as_str())
    }

    /// The last lines of its output, or who did it.
    fn told(&self) -> Option<&str> {
        (self.held_by().is_none() && !self.said.is_empty()).then_some(self.said.as_str())
    }

    /// When, as records say it.
    pub fn when(&self) -> String {
        host::utc(self.at.as_secs())
    }

    /// "3m ago", or when.
    pub fn ago(&self) -> String {
        times::ago(&self.when())
    }

    /// Whether an item was run after this. A skipped item has the claim of the run that held the lease.
    pub fn is_before(&self, row: &ItemRow) -> bool {
        row.at() > self.at && row.entry.state != ItemState::Skipped
    }

    /// What it is about, as people read it.
    fn item(&self) -> String {
        if let Some(Dropped { first, last, .. }) = self.dropped {
            return match first == last {
                true => times::local_second(first),
                false => format!("{} … {}", times::local_second(first), times::local_second(last)),
            };
        }
        match &self.subject {
            Some(Subject::Key(key)) => key.clone(),
            Some(subject @ Subject::Slot { id, .. }) => item_args::with_local_time(subject, id),
            Some(Subject::Latest(_)) => "(cooldown)".into(),
            None => self.lease.to_string(),
        }
    }

    /// Whether the lease is to be shown beside it.
    pub fn has_another_lease(&self) -> bool {
        self.subject.is_some() && self.dropped.is_none() && self.job != self.lease
    }

    /// What is not in the other columns.
    fn note(&self) -> String {
        if let Some(target) = &self.target {
            return self.fence.map_or_else(|| target.clone(), |fence| say::refused(target, fence));
        }
        if let Some(holder) = self.held_by() {
            return say::held_by(holder);
        }
        match self.event {
            Some(event) if event.by_person() => say::done_by(&self.said),
            _ => String::new(),
        }
    }

    /// For the table.
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let dash = || "-".to_owned();
        let outcome = match (&self.reason, self.dropped) {
            (Some(why), Some(Dropped { count: Some(count), .. })) => format!("{} ({count} {why})", self.word),
            (Some(why), _) => format!("{} ({why})", self.word),
            (None, _) => self.word.clone(),
        };
        let number = |number: Option<u64>| number.map_or_else(dash, |number| number.to_string());
        [
            self.item(),
            self.job.to_string(),
            if self.dropped.is_some() { dash() } else { self.lease.to_string() },
            outcome,
            self.ago(),
            self.took.map_or_else(dash, |took| HumanDuration(took).to_string()),
            self.exit.map_or_else(dash, |exit| exit.to_string()),
            self.holder.clone(),
            number(self.token),
            number(self.attempt.map(u64::from)),
            number(self.steps.as_ref().map(|steps| steps.len() as u64)),
            self.note(),
        ]
    }

    /// For `--json`.
    pub fn object(&self) -> Value {
        if let Some(Dropped { first, last, count }) = self.dropped {
            return json!({
                "v": 1, "kind": DROPPED, "job": self.job.as_str(), "outcome": DROPPED, "reason": self.reason,
                "first": times::utc(first), "last": times::utc(last), "count": count, "time": times::utc(last),
            });
        }
        let item = match &self.subject {
            Some(Subject::Key(item) | Subject::Slot { id: item, .. }) => item,
            Some(Subject::Latest(job)) => job.as_str(),
            None => self.lease.as_str(),
        };
        let mut object = json!({
            "v": 1, "kind": self.kind, "item": item, "job": self.job.as_str(), "outcome": self.word,
            "reason": self.reason, "time": self.when(), "exit": self.exit,
            "duration_s": self.took.map(|took| took.as_secs_f64()), "said": self.told(),
            "lease": self.lease.as_str(), "token": self.token, "run_id": self.run_id, "holder": self.holder,
            "attempt": self.attempt, "failures": self.failures, "steps": self.steps.as_deref().unwrap_or_default(),
        });
        if let Some(holder) = self.held_by() {
            object["held_by"] = holder.into();
        }
        if let Some(target) = &self.target {
            (object["target"], object["fence"]) = (target.as_str().into(), self.fence.into());
        }
        if let Some(count) = self.count {
            object["count"] = count.into();
        }
        object
    }
}

/// The columns of the table.
pub const COLUMNS: [&str; 12] =
    ["ITEM", "JOB", "LEASE", "OUTCOME", "WHEN", "TOOK", "EXIT", "BY", "TOKEN", "ATTEMPT", "STEPS", "NOTE"];

fn kind<'a>(event: Option<LogEvent>, word: &'a str, subject: Option<&Subject>) -> &'a str {
    let of_item = match subject {
        Some(Subject::Key(_)) => Some("key"),
        Some(Subject::Slot { .. }) => Some("slot"),
        Some(Subject::Latest(_)) => Some("cooldown"),
        None => None,
    };
    match event {
        Some(LogEvent::Dropped) => DROPPED,
        Some(LogEvent::Observed) => "observed",
        Some(event) if event == LogEvent::Done || !event.by_person() && event != LogEvent::Refused => {
            of_item.unwrap_or(if event == LogEvent::Skipped { "skip" } else { "run" })
        }
        Some(_) => word,
        None => of_item.unwrap_or("other"),
    }
}

/// The slot that the key of a record names, or the holder.
fn slot_of(line: &LogLine, id: Option<String>) -> Option<Subject> {
    let at = match (line.slot, &id) {
        (Some(at), _) => at,
        (None, Some(id)) => id.parse::<Timestamp>().ok()?.as_second(),
        (None, None) => return None,
    };
    Some(Subject::Slot { job: line.job.clone(), at, id: id.unwrap_or_else(|| times::utc(at)) })
}

fn steps(entry: &Entry) -> Vec<String> {
    entry.steps.iter().map(|step| step.name.clone()).collect()
}

/// A second since 1970.
pub fn seconds(second: i64) -> Duration {
    Duration::from_secs(u64::try_from(second).unwrap_or(0))
}

fn since_1970(text: &str) -> Duration {
    text.parse::<Timestamp>().map_or(Duration::ZERO, |at| seconds(at.as_second()))
}

/// The record of an item.
#[derive(Clone, Debug)]
pub struct ItemRow {
    /// As it is recorded.
    pub entry: Entry,
    /// Its outcome, or that a run is working on it now.
    pub state: ItemState,
}

impl ItemRow {
    /// The id of the records of the run that has it, or had it last.
    pub fn id(&self) -> LogId {
        LogId::of(self.entry.claim.grant.0)
    }

    /// Why it was skipped, or that a person recorded it as done, in a word.
    pub fn reason(&self) -> Option<&'static str> {
        self.entry.ending.as_ref()?.reason.map(SettleReason::word)
    }

    /// When it last ended or started, by that machine's clock.
    pub fn when(&self) -> &str {
        let Entry { ending, claim, .. } = &self.entry;
        ending.as_ref().map_or(claim.holder.since.as_str(), |ending| ending.at.as_str())
    }

    /// The same, since 1970.
    pub fn at(&self) -> Duration {
        since_1970(self.when())
    }

    /// When its last run took its lease.
    pub fn began(&self) -> Duration {
        since_1970(&self.entry.claim.holder.since)
    }
}
