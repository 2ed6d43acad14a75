//! What needs a person: decided here, for `leasehold check` and for the page Now.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold::core::alert::AlertKind;
use leasehold::core::ledger::{BadEntry, Entry, ItemState, Opened, Subject};
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogLine};
use leasehold::ledger::{Item, entry, peek};
use leasehold::run_log::LogEntry;
use leasehold::stores::{Failure, Store};

use super::job_status::JobStatus;
use super::{history, item_args};

/// The most items of the run log that are looked up because somebody may have to decide about them.
pub const LOOKED_UP: usize = 20;
/// The end of the name of a lease that `once` made for a key.
pub const ONCE: &str = ".once";
/// Why a run of an item is skipped that waits for a person.
const NEVER_REPORTED: &str = "never-reported";
const QUARANTINED: &str = "quarantined";

/// Why something needs a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedKind {
    /// A run started and nobody knows how it ended.
    Unknown,
    /// It failed too often.
    Quarantined,
    Failed,
    Lost,
    Killed,
    /// Writes were refused.
    Refused,
    /// A job is late, or no scheduler has loaded it.
    Overdue,
    /// Its runs do not end, or its slots find the lease held.
    Stuck,
    /// The targets of its last run could not be fenced.
    NotFenced,
    /// Its record is ahead of the clock.
    Ahead,
    /// Slots wait for a person.
    Waiting,
    /// A record cannot be read.
    Damaged,
    /// A later version wrote a record.
    Newer,
    /// Records of the run log are not in the store.
    Unlogged,
}

impl NeedKind {
    /// As `--json` says it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Quarantined => "quarantined",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Refused => "refused",
            Self::Overdue => "overdue",
            Self::Stuck => "stuck",
            Self::NotFenced => "not_fenced",
            Self::Ahead => "ahead",
            Self::Waiting => "waiting",
            Self::Damaged => "damaged",
            Self::Newer => "newer",
            Self::Unlogged => "unlogged",
        }
    }

    /// As which kind of alert it is told; none: it is not about a job.
    pub fn alert(self) -> Option<AlertKind> {
        Some(match self {
            Self::Unknown | Self::Quarantined | Self::Waiting => AlertKind::Unknown,
            Self::Failed | Self::Killed => AlertKind::Failed,
            Self::Lost => AlertKind::Lost,
            Self::Refused => AlertKind::Refused,
            Self::Overdue | Self::Stuck | Self::NotFenced | Self::Ahead => AlertKind::Overdue,
            Self::Damaged | Self::Newer | Self::Unlogged => return None,
        })
    }
}

/// Whether the standing of a job does.
pub fn of_standing(standing: &JobStatus) -> Option<NeedKind> {
    Some(match standing {
        JobStatus::Unseen | JobStatus::Overdue(..) => NeedKind::Overdue,
        JobStatus::Stuck(..) | JobStatus::Overrun(..) => NeedKind::Stuck,
        JobStatus::NotFenced(..) => NeedKind::NotFenced,
        JobStatus::Ahead(_) => NeedKind::Ahead,
        JobStatus::Waiting(_) => NeedKind::Waiting,
        JobStatus::Ended(ItemState::Unknown) => NeedKind::Unknown,
        JobStatus::Ended(ItemState::Lost) => NeedKind::Lost,
        JobStatus::Ended(ItemState::Killed) => NeedKind::Killed,
        JobStatus::Ended(_) => NeedKind::Failed,
        JobStatus::Paused { .. } | JobStatus::Elsewhere(_) | JobStatus::Running(_) | JobStatus::Fine => {
            return None;
        }
    })
}

/// The newest run of each job, as far as it was seen.
#[derive(Debug, Default)]
pub struct NewestRuns {
    runs: HashMap<Name, LogLine>,
    /// When one last went well.
    ok: HashMap<Name, Duration>,
    /// When a person last decided about an item of the job.
    decided: HashMap<Name, Duration>,
    /// The runs about whose items a person has decided.
    decided_runs: HashSet<LogId>,
}

impl NewestRuns {
    /// Looks at a record. The newest records come first.
    pub fn see(&mut self, line: &LogLine) {
        let (job, Some(event)) = (&line.job, line.event()) else { return };
        if (event.is_run() || event == LogEvent::Unsealed) && !self.runs.contains_key(job) {
            self.runs.insert(job.clone(), line.clone());
        }
        match event {
            LogEvent::Ok => drop(self.ok.entry(job.clone()).or_insert(line.at)),
            LogEvent::Done | LogEvent::Retry => {
                self.decided.entry(job.clone()).or_insert(line.at);
                self.decided_runs.insert(line.id);
            }
            _ => {}
        }
    }

    /// Whether a person has decided about the item of this run. Another run may have taken over after that.
    pub fn is_decided(&self, run: LogId) -> bool {
        self.decided_runs.contains(&run)
    }

    /// Whether a later run of the job went well.
    pub fn ok_since(&self, line: &LogLine) -> bool {
        self.ok.get(&line.job).is_some_and(|at| *at > line.at)
    }

    /// Whether a record needs a person: that of a run which ended badly and is the newest of its job, or that of a write
    /// that was refused. A later run that goes well ends both. If nobody knows how a run ended, a decision ends it, too.
    pub fn need(&self, line: &LogLine) -> Option<NeedKind> {
        let event = line.event()?;
        let kind = match event {
            LogEvent::Refused => return (!self.ok_since(line)).then_some(NeedKind::Refused),
            LogEvent::Unknown if self.is_decided(line.id) => return None,
            LogEvent::Unknown if self.decided.get(&line.job).is_some_and(|at| *at > line.at) => return None,
            LogEvent::Failed => NeedKind::Failed,
            LogEvent::Lost => NeedKind::Lost,
            LogEvent::Killed => NeedKind::Killed,
            LogEvent::Unknown => NeedKind::Unknown,
            LogEvent::Unsealed => NeedKind::NotFenced,
            _ => return None,
        };
        let newest = self.runs.get(&line.job)?;
        (newest.id == line.id && newest.at == line.at && newest.event() == Some(event)).then_some(kind)
    }
}

/// How an item stands.
pub enum ItemStanding {
    /// It has no record.
    Absent,
    /// Nobody needs to look at it.
    Fine,
    /// Nobody knows how it ended, and no run starts it again.
    Unknown(Box<Entry>),
    /// It failed as often as it may.
    Quarantined(Box<Entry>),
    /// Its last run ended badly. The next one tries again.
    Ended(Box<Entry>),
    /// Its record must not be acted on.
    Damaged(BadEntry),
}

/// How an item stands. A run may have been told to try less often than usual: `too_often` says that one was skipped since.
pub fn item(store: &mut dyn Store, subject: &Subject, too_often: bool) -> Result<ItemStanding, Failure> {
    let (if_unknown, attempts) = item_args::unasked(subject);
    let asked = Item { subject: subject.clone(), if_unknown, attempts, keep: None };
    match peek(store, &asked)? {
        Some(Opened::Quarantined(entry)) => return Ok(ItemStanding::Quarantined(Box::new(entry))),
        Some(Opened::Unknown(entry, _)) => return Ok(ItemStanding::Unknown(Box::new(entry))),
        Some(Opened::Bad(bad)) => return Ok(ItemStanding::Damaged(bad)),
        _ => {}
    }
    let Some(recorded) = entry(store, subject)?.map(Box::new) else { return Ok(ItemStanding::Absent) };
    Ok(match history::state(store, &recorded)? {
        ItemState::Unknown if recorded.state == ItemState::Started => ItemStanding::Unknown(recorded),
        ItemState::Failed if too_often => ItemStanding::Quarantined(recorded),
        ItemState::Failed | ItemState::Lost | ItemState::Killed | ItemState::Unknown => {
            ItemStanding::Ended(recorded)
        }
        _ => ItemStanding::Fine,
    })
}

/// Keeps a record if its item may wait for a person; of each item one, and not too many.
pub fn keep_waiting(waiting: &mut Vec<LogEntry>, entry: &LogEntry) {
    if waiting.len() < LOOKED_UP && may_wait(&entry.line) {
        // A list may have only keys.
        let item = item_of(entry);
        if entry.record.is_none() || item.is_some() && !waiting.iter().any(|other| item_of(other) == item) {
            waiting.push(entry.clone());
        }
    }
}

/// Whether the item of a record may wait for a person, by what its key says.
fn may_wait(line: &LogLine) -> bool {
    let why = line.reason.as_deref();
    match line.event() {
        Some(LogEvent::Unknown) => true,
        Some(LogEvent::Skipped) => why == Some(NEVER_REPORTED) || why == Some(QUARANTINED),
        _ => false,
    }
}

/// Whether it was skipped because its item had failed as often as it might.
pub fn is_too_often(line: &LogLine) -> bool {
    line.event() == Some(LogEvent::Skipped) && line.reason.as_deref() == Some(QUARANTINED)
}

/// The item of a record.
pub fn item_of(entry: &LogEntry) -> Option<Subject> {
    let record = entry.record.as_ref()?;
    match &record.item {
        Some(item) => Some(item.clone()),
        // Of a run that never reported, its lease says what it ran.
        None => {
            let lease = record.lease.as_ref().map_or("", Name::as_str);
            item_of_lease(lease, entry.line.job.as_str(), record.holder.slot.as_deref())
        }
    }
}

/// The item that the holder of a lease ran, as far as the lease says.
pub fn item_of_lease(lease: &str, job: &str, slot_id: Option<&str>) -> Option<Subject> {
    match slot_id {
        Some(id) => slot(&Name::new(job).ok()?, id),
        None => lease.strip_suffix(ONCE).map(|key| Subject::Key(key.into())),
    }
}

fn slot(job: &Name, id: &str) -> Option<Subject> {
    let at = id.parse::<jiff::Timestamp>().ok()?.as_second();
    Some(Subject::Slot { job: job.clone(), at, id: id.into() })
}

/// Whether a hold that has expired needs a person, where no item and no schedule tell of it: its holder never reported, and
/// no run has taken the lease since. Not for ever.
pub fn never_reported(age: Option<Duration>, since: Duration) -> bool {
    age.is_none_or(|age| age <= since)
}
