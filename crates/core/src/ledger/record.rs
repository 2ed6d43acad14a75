//! The record of an item, as stored: JSON that a person can read, decoded strictly.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ending, Entry, ItemClaim, ItemState, KEY_MAX, SettleReason, StepRecord, Subject};
use crate::additions::{self, Additions};
use crate::codec;
use crate::ids::WriteId;
use crate::name::Name;

/// The newest format that this version reads. It writes the oldest one that fits: format 1, or 2 if there is
/// a reason or there are additions. Only settled items have a reason. An older version cannot read those and
/// leaves them alone, which is right.
const FORMAT: u64 = 2;
/// Longest record, in bytes. The output of its steps has to fit in it.
pub const ENTRY_MAX: usize = 60 * 1024;

/// Why a body is not a record that this version may act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BadEntry {
    /// A later version of Leasehold wrote it.
    Newer(u64),
    /// A record of another item under this key.
    Other,
    /// It is damaged, or another program wrote it.
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

/// The JSON object. The fields are in the order in which a person reads them.
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

/// In format 1 the reason is the first word of the text.
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

impl Entry {
    /// The bytes to store; none if there are too many.
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

    /// The oldest format that fits this entry.
    fn format(&self) -> u64 {
        let by_text = |ending: &Ending| from_format_1(self.state, ending.clone()) != *ending;
        let says_why = |ending: &Ending| ending.reason.is_some() || by_text(ending);
        if self.ending.as_ref().is_some_and(says_why) { 2 } else { additions::format(&self.more) }
    }

    /// Decodes the entry of any item. Everything unusual is refused.
    pub fn decode(body: &[u8]) -> Result<Self, BadEntry> {
        let damaged = |why: String| BadEntry::Damaged(why);
        let mut wire = codec::decode(
            body,
            (ENTRY_MAX, FORMAT),
            |wire: &Wire| (wire.leasehold_item, &wire.more),
            BadEntry::Newer,
            BadEntry::Damaged,
        )?;
        if wire.leasehold_item == 1 {
            wire.ending = wire.ending.map(|ending| from_format_1(wire.state, ending));
        }
        if matches!(&wire.item, Subject::Key(key) if key.is_empty() || key.len() > KEY_MAX) {
            return Err(damaged("its key is empty or too long".into()));
        }
        let fits = match wire.state {
            ItemState::Started => wire.ending.is_none(),
            // A run whose outcome is unknown has no ending; an earlier run may have left one.
            ItemState::Planned | ItemState::Unknown => true,
            ItemState::Ok | ItemState::Failed | ItemState::Skipped | ItemState::Lost | ItemState::Killed => {
                wire.ending.is_some()
            }
        };
        // A slot that was skipped has no attempt.
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

    /// Decodes the entry that is stored under the key of `subject`.
    pub fn decode_of(subject: &Subject, body: &[u8]) -> Result<Self, BadEntry> {
        let entry = Self::decode(body)?;
        if entry.subject == *subject { Ok(entry) } else { Err(BadEntry::Other) }
    }
}
