//! The record of an item: JSON that a person can read, decoded strictly.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ending, Entry, ItemClaim, ItemState, KEY_MAX, SettleReason, StepRecord, Subject};
use crate::additions::{self, Additions};
use crate::ids::WriteId;
use crate::name::Name;

/// The newest format that this version reads. It writes the oldest that can say what is to be said: format 1, and 2
/// where there is a reason, or there are additions. A reason is of what is settled: so what an older version cannot
/// read, and therefore leaves alone, is nothing that it would have to see to.
const FORMAT: u64 = 2;
/// Longest record, and so the most that the output of its steps may be.
pub const ENTRY_MAX: usize = 60 * 1024;

/// Why a body is not a record we may act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BadEntry {
    /// Written by a later version of Leasehold.
    Newer(u64),
    /// A record of another item under this key.
    Other,
    /// Not a record: damaged, or written by something else.
    Damaged(String),
}

impl fmt::Display for BadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(format) => {
                write!(f, "the record has format {format} and this version reads up to {FORMAT}")
            }
            Self::Other => f.write_str("the record belongs to another key or slot"),
            Self::Damaged(why) => write!(f, "the record is not readable ({why})"),
        }
    }
}

/// The JSON shape. Field order is the order a person reads.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    leasehold_item: u64,
    item: Subject,
    state: ItemState,
    job: Name,
    attempt: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    failures: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    silences: u32,
    claim: ItemClaim,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_first_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ending: Option<Ending>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepRecord>,
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
    write: WriteId,
}

/// Format 1 has the reason as the first word of what is said.
fn from_format_1(state: ItemState, ending: Ending) -> Ending {
    let reason = |word: &str| SettleReason::ALL.into_iter().find(|reason| reason.word() == word);
    let settled = matches!(state, ItemState::Skipped | ItemState::Ok);
    match ending.said.split_once(": ").map(|(word, said)| (reason(word), String::from(said))) {
        Some((Some(reason), said)) if settled => Ending { reason: Some(reason), said, ..ending },
        _ => ending,
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Only the format number, so that a later version is named as such before anything else is read.
#[derive(Deserialize)]
struct Format {
    leasehold_item: u64,
}

impl Entry {
    /// The bytes to store; nothing if that is more than a record may be.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let wire = Wire {
            leasehold_item: self.format(),
            item: self.subject.clone(),
            state: self.state,
            job: self.job.clone(),
            attempt: self.attempt,
            failures: self.failures,
            silences: self.silences,
            claim: self.claim.clone(),
            since_first_ms: self
                .since_first
                .map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            ending: self.ending.clone(),
            steps: self.steps.clone(),
            more: self.more.clone(),
            write: self.write,
        };
        serde_json::to_vec(&wire).ok().filter(|body| body.len() <= ENTRY_MAX)
    }

    /// The oldest format that can say this.
    fn format(&self) -> u64 {
        let by_text = |ending: &Ending| from_format_1(self.state, ending.clone()) != *ending;
        let says_why = |ending: &Ending| ending.reason.is_some() || by_text(ending);
        if self.ending.as_ref().is_some_and(says_why) { 2 } else { additions::format(&self.more) }
    }

    /// Reads whatever item a body tells of. Anything out of the ordinary is refused.
    pub fn decode(body: &[u8]) -> Result<Self, BadEntry> {
        let damaged = |why: String| BadEntry::Damaged(why);
        if body.len() > ENTRY_MAX {
            return Err(damaged(format!("{} bytes long", body.len())));
        }
        let format: Format = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        if format.leasehold_item > FORMAT {
            return Err(BadEntry::Newer(format.leasehold_item));
        }
        if format.leasehold_item < 1 {
            return Err(damaged(format!("unknown format {}", format.leasehold_item)));
        }
        let mut wire: Wire = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
        if wire.leasehold_item == 1 {
            wire.ending = wire.ending.map(|ending| from_format_1(wire.state, ending));
        }
        if !additions::fits(format.leasehold_item, &wire.more) {
            return Err(damaged(additions::UNFIT.into()));
        }
        if matches!(&wire.item, Subject::Key(key) if key.is_empty() || key.len() > KEY_MAX) {
            return Err(damaged("a key that cannot be one".into()));
        }
        let fits = match wire.state {
            ItemState::Started => wire.ending.is_none(),
            // Of the run that was silent there is no ending; an earlier one may have had one.
            ItemState::Planned | ItemState::Unknown => true,
            ItemState::Ok | ItemState::Failed | ItemState::Skipped | ItemState::Lost | ItemState::Killed => {
                wire.ending.is_some()
            }
        };
        // What was waved off was never begun.
        let begun = wire.attempt > 0 || matches!(wire.state, ItemState::Skipped | ItemState::Planned);
        if !begun || !fits {
            return Err(damaged("state and ending contradict each other".into()));
        }
        Ok(Self {
            subject: wire.item,
            job: wire.job,
            state: wire.state,
            attempt: wire.attempt,
            failures: wire.failures,
            silences: wire.silences,
            claim: wire.claim,
            since_first: wire.since_first_ms.map(Duration::from_millis),
            ending: wire.ending,
            steps: wire.steps,
            more: wire.more,
            write: wire.write,
        })
    }

    /// The same for the body stored under the key of `subject`.
    pub fn decode_of(subject: &Subject, body: &[u8]) -> Result<Self, BadEntry> {
        let entry = Self::decode(body)?;
        if entry.subject == *subject { Ok(entry) } else { Err(BadEntry::Other) }
    }
}
