//! Alerts: one for each change, however many machines see it. The record of a job says what was told last.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::WriteId;
use crate::name::Name;
use crate::update::Record;

/// The keys of all records of alerts start with this.
pub const ALERT_PREFIX: &str = "alerts/";
/// Longest body, in bytes.
const BODY_MAX: usize = 4 * 1024;
/// The format that this version reads and writes.
const FORMAT: u64 = 1;

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertKind {
    /// A job is late or stuck.
    Overdue,
    /// A run failed.
    Failed,
    /// A write was refused.
    Refused,
    /// A run lost its lease.
    Lost,
    /// Nobody knows how an item ended, or it waits for a person.
    Unknown,
}

impl AlertKind {
    /// All, the least serious first.
    pub const ALL: [Self; 5] = [Self::Overdue, Self::Failed, Self::Refused, Self::Lost, Self::Unknown];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Overdue => "overdue",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }

    /// The kind with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// What was told last about a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AlertRecord {
    leasehold_alert: u64,
    /// The job itself, so that a record copied under another key is noticed.
    pub job: Name,
    /// What is wrong; none: it is well again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AlertKind>,
    /// Since when, by the clock of the machine that told it.
    pub since: String,
    /// The write that stored this.
    pub write: WriteId,
}

impl Record for AlertRecord {
    fn write(&self) -> WriteId {
        self.write
    }
}

impl AlertRecord {
    /// The record to store if a job stands like this now; none if that was told already, or if all is and was well. Whoever
    /// stores it tells it.
    pub fn change(
        found: Option<&Self>,
        job: &Name,
        kind: Option<AlertKind>,
        since: &str,
        write: WriteId,
    ) -> Option<Self> {
        let told = found.and_then(|found| found.kind);
        let next = || Self { leasehold_alert: FORMAT, job: job.clone(), kind, since: since.into(), write };
        (told != kind).then(next)
    }

    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        // Strings, numbers and derived structs only: encoding cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a body; none if it is not the record of this job in this format.
    pub fn decode(job: &Name, body: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(body.get(..body.len().min(BODY_MAX))?).ok()?;
        (record.leasehold_alert == FORMAT && record.job == *job).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let job = Name::new("site").unwrap();
        let now = |found: Option<&AlertRecord>, kind| {
            AlertRecord::change(found, &job, kind, "2026-11-19T03:00:00Z", WriteId(7))
        };
        // Nothing is told while all is well.
        assert_eq!(now(None, None), None);
        let failed = now(None, Some(AlertKind::Failed)).unwrap();
        assert_eq!(AlertRecord::decode(&job, &failed.encode()), Some(failed.clone()));
        assert_eq!(now(Some(&failed), Some(AlertKind::Failed)), None);
        let lost = now(Some(&failed), Some(AlertKind::Lost)).unwrap();
        let well = now(Some(&lost), None).unwrap();
        assert_eq!(well.kind, None);
        assert_eq!(now(Some(&well), None), None);
        assert!(now(Some(&well), Some(AlertKind::Failed)).is_some());
        assert_eq!(AlertRecord::decode(&Name::new("other").unwrap(), &failed.encode()), None);
        assert_eq!(AlertRecord::decode(&job, b"{}"), None);
    }
}
