//! The run log: one record for each run that ended, each skip, each refused write, and each thing that a
//! person did. It is for people; no rule reads it.
//!
//! A record's key says the day, the job, the time and the outcome. So the runs of one job on one day, newest
//! first, are one range of keys, and a list of them needs no bodies:
//!
//! ```text
//! log/79224/site/R58928999.3f9a0c21b7de.ok.0.1200.42.-.mac-mini
//!     │     │    │         │            │  │ │    │  │ └ host
//!     │     │    │         │            │  │ │    │  └ due time of its slot
//!     │     │    │         │            │  │ │    └ token
//!     │     │    │         │            │  │ └ milliseconds it ran
//!     │     │    │         │            │  └ exit code
//!     │     │    │         │            └ outcome, or outcome_reason
//!     │     │    │         └ id: of the grant, for a run that held the lease
//!     │     │    └ 99999999 minus the milliseconds since midnight, UTC
//!     │     └ job
//!     └ 99999 minus the days since 1970
//! ```
//!
//! The times in keys are by the clock of the machine that wrote them. How long a record is kept is decided by
//! its age, which the store tells.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::additions::{self, Additions};
use crate::codec;
use crate::ids::{Token, WriteId};
use crate::ledger::{ItemState, Subject};
use crate::name::Name;
use crate::record::Holder;
use crate::time::utc;

/// All keys of the run log start with this.
pub const LOG_PREFIX: &str = "log/";
/// Longest body, in bytes.
pub const LOG_BODY_MAX: usize = 8 * 1024;

/// The newest format that this version reads. It writes format 1, or 2 if there are additions.
const FORMAT: u64 = 2;
/// Longest texts in a record, in bytes. Longer ones are cut.
const SAID_MAX: usize = 2 * 1024;
const WORD_MAX: usize = 256;
const HOST_MAX: usize = 24;
const WHY_MAX: usize = 16;
const DAY: u64 = 86_400;
const LAST_DAY: u64 = 99_999;
const LAST_MS: u64 = 99_999_999;
/// Before the time in a key. Names of jobs have no capital letter, so no name is taken for a part of another.
const TIME: char = 'R';
/// Between the outcome and its reason in a key.
const WHY: char = '_';

/// What a record of the run log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogEvent {
    /// A run ended, and its command succeeded.
    Ok,
    /// A run ended, and its command failed.
    Failed,
    /// A run did not run its command, for the reason in the record.
    Skipped,
    /// A run lost its lease, and its command was stopped.
    Lost,
    /// A run's command was stopped for another reason.
    Killed,
    /// A lease was taken over from a run that had not recorded its end.
    Unknown,
    /// A lease that was held without a command was given back.
    Released,
    /// A run could not fence its targets and ran nothing.
    Unsealed,
    /// Slots were dropped.
    Dropped,
    /// A write was refused.
    Refused,
    /// `run --observe` ran a command.
    Observed,
    /// A person asked a holder to stop.
    Break,
    /// A person allowed another try.
    Retry,
    /// A person said that an item was done.
    Done,
    /// A person paused a job.
    Pause,
    /// A person resumed a job.
    Resume,
    /// A person made the store forget names.
    Forget,
}

impl LogEvent {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Failed,
        Self::Skipped,
        Self::Lost,
        Self::Killed,
        Self::Unknown,
        Self::Released,
        Self::Unsealed,
        Self::Dropped,
        Self::Refused,
        Self::Observed,
        Self::Break,
        Self::Retry,
        Self::Done,
        Self::Pause,
        Self::Resume,
        Self::Forget,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Unknown => "unknown",
            Self::Released => "released",
            Self::Unsealed => "unsealed",
            Self::Dropped => "dropped",
            Self::Refused => "refused",
            Self::Observed => "observed",
            Self::Break => "break",
            Self::Retry => "retry",
            Self::Done => "done",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Forget => "forget",
        }
    }

    /// The event with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.word() == word)
    }

    /// The event of a run whose job ended like this.
    pub fn of(state: ItemState) -> Self {
        match state {
            ItemState::Ok => Self::Ok,
            ItemState::Failed => Self::Failed,
            ItemState::Skipped => Self::Skipped,
            ItemState::Lost => Self::Lost,
            ItemState::Killed => Self::Killed,
            ItemState::Planned | ItemState::Started | ItemState::Unknown => Self::Unknown,
        }
    }

    /// Whether this is the end of a run that executed its command.
    pub fn is_run(self) -> bool {
        matches!(self, Self::Ok | Self::Failed | Self::Lost | Self::Killed | Self::Unknown)
    }

    /// Whether a person did it, by a command.
    pub fn by_person(self) -> bool {
        matches!(self, Self::Break | Self::Retry | Self::Done | Self::Pause | Self::Resume | Self::Forget)
    }
}

/// Distinguishes records of the same job in the same millisecond. All records of one hold have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId(u64);

impl LogId {
    /// The id of a random number: of a grant, where there is one.
    pub fn of(random: u128) -> Self {
        // Truncated on purpose: 48 bits.
        #[allow(clippy::cast_possible_truncation)]
        Self(random as u64 & 0xffff_ffff_ffff)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// One record of the run log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogRecord {
    /// When it happened, by the clock of the machine that wrote it; since 1970.
    pub at: Duration,
    /// The job.
    pub job: Name,
    /// The event.
    pub event: LogEvent,
    /// Why, in a word: of a skip, a lost lease, a refusal.
    pub reason: Option<String>,
    /// The id.
    pub id: LogId,
    /// The lease, if there is one.
    pub lease: Option<Name>,
    /// The token of the run that this is about.
    pub token: Option<Token>,
    /// The exit code of its command.
    pub exit: Option<i32>,
    /// How long it ran. Of slots that were dropped: the time from the first to the last.
    pub took: Option<Duration>,
    /// The run that this is about, or the process that a person started.
    pub holder: Holder,
    /// The key or slot.
    pub item: Option<Subject>,
    /// Of a refused write: the target, and the token that it had.
    pub target: Option<RefusedWrite>,
    /// How many: slots that were dropped, names that were forgotten.
    pub count: Option<u64>,
    /// For people: the last lines of output, a cause, the user who typed a command.
    pub said: String,
    /// Additions of later versions.
    pub more: Additions,
}

/// A write that a target refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedWrite {
    /// The target, as the user wrote it.
    pub target: String,
    /// The token of its fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Token>,
}

/// What the key of a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it happened; since 1970.
    pub at: Duration,
    /// The job.
    pub job: Name,
    /// The word of the event. A later version may have other words.
    pub word: String,
    /// Why, in a word.
    pub reason: Option<String>,
    /// The id.
    pub id: LogId,
    /// The exit code.
    pub exit: Option<i32>,
    /// How long it ran.
    pub took: Option<Duration>,
    /// The token.
    pub token: Option<Token>,
    /// When its slot was due, in seconds since 1970.
    pub slot: Option<i64>,
    /// The machine; cut if it is long.
    pub host: String,
}

impl LogLine {
    /// The event, if this version knows it.
    pub fn event(&self) -> Option<LogEvent> {
        LogEvent::parse(&self.word)
    }
}

/// Why a body is not a record of the run log that this version can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLog {
    /// A later version wrote it.
    Newer(u64),
    /// It is damaged, or another program wrote it.
    Damaged,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    leasehold_log: u64,
    time: String,
    ms: u64,
    job: Name,
    outcome: LogEvent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    holder: Holder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<Subject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<RefusedWrite>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    said: String,
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
    id: LogId,
}

impl LogRecord {
    /// A record with only the fields that every record has.
    pub fn new(at: Duration, event: LogEvent, job: Name, id: LogId, holder: Holder) -> Self {
        Self {
            at,
            job,
            event,
            reason: None,
            id,
            lease: None,
            token: None,
            exit: None,
            took: None,
            holder,
            item: None,
            target: None,
            count: None,
            said: String::new(),
            more: Additions::new(),
        }
    }

    /// The key. A record that is written twice has the same key.
    pub fn key(&self) -> String {
        let ms = millis(self.at);
        let number = |number: Option<u64>| number.map_or_else(dash, |number| number.to_string());
        let why =
            self.reason.as_deref().map(|why| format!("{WHY}{}", plain(why, WHY_MAX))).unwrap_or_default();
        let slot = match &self.item {
            Some(Subject::Slot { at, .. }) => at.to_string(),
            _ => dash(),
        };
        format!(
            "{}{:08}.{:012x}.{}{why}.{}.{}.{}.{slot}.{}",
            job_prefix(day_of(self.at), &self.job),
            LAST_MS - ms % (DAY * 1_000),
            self.id.0,
            self.event.word(),
            self.exit.map_or_else(dash, |exit| exit.to_string()),
            number(self.took.map(millis)),
            number(self.token.map(Token::get)),
            plain(&self.holder.host, HOST_MAX),
        )
    }

    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let wire = Wire {
            leasehold_log: additions::format(&self.more),
            time: utc(self.at),
            ms: millis(self.at),
            job: self.job.clone(),
            outcome: self.event,
            reason: self.reason.as_deref().map(|why| cut(why, WORD_MAX)),
            lease: self.lease.clone(),
            token: self.token,
            exit: self.exit,
            took_ms: self.took.map(millis),
            holder: self.holder.clone(),
            item: self.item.clone(),
            target: self
                .target
                .as_ref()
                .map(|refused| RefusedWrite { target: cut(&refused.target, WORD_MAX), fence: refused.fence }),
            count: self.count,
            said: cut(&self.said, SAID_MAX),
            more: self.more.clone(),
            id: self.id,
        };
        // Strings, numbers and derived structs only: encoding cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    /// Decodes a body.
    pub fn decode(body: &[u8]) -> Result<Self, BadLog> {
        let wire = codec::decode(
            body,
            (LOG_BODY_MAX, FORMAT),
            |wire: &Wire| (wire.leasehold_log, &wire.more),
            BadLog::Newer,
            |_| BadLog::Damaged,
        )?;
        Ok(Self {
            at: Duration::from_millis(wire.ms),
            job: wire.job,
            event: wire.outcome,
            reason: wire.reason,
            id: wire.id,
            lease: wire.lease,
            token: wire.token,
            exit: wire.exit,
            took: wire.took_ms.map(Duration::from_millis),
            holder: wire.holder,
            item: wire.item,
            target: wire.target,
            count: wire.count,
            said: wire.said,
            more: wire.more,
        })
    }

    /// What its key says.
    pub fn line(&self) -> LogLine {
        LogLine {
            at: Duration::from_millis(millis(self.at)),
            job: self.job.clone(),
            word: self.event.word().into(),
            reason: self.reason.clone(),
            id: self.id,
            exit: self.exit,
            took: self.took,
            token: self.token,
            slot: match &self.item {
                Some(Subject::Slot { at, .. }) => Some(*at),
                _ => None,
            },
            host: self.holder.host.clone(),
        }
    }

    /// The id of the write that creates it. The record is only ever created, so one id will do.
    pub fn write_id(&self) -> WriteId {
        WriteId(u128::from(self.id.0) << 64 | u128::from(millis(self.at)))
    }
}

impl LogLine {
    /// Reads a key; none if it is no key of the run log.
    pub fn read(key: &str) -> Option<Self> {
        let rest = key.strip_prefix(LOG_PREFIX)?;
        let (day, rest) = rest.split_once('/')?;
        let (job, rest) = rest.rsplit_once('/')?;
        let mut parts = rest.strip_prefix(TIME)?.split('.');
        let mut next = || parts.next();
        let day = LAST_DAY.checked_sub(digits(day, 5)?)?;
        let ms = LAST_MS.checked_sub(digits(next()?, 8)?)?;
        let id = u64::from_str_radix(next()?, 16).ok()?;
        let outcome = next()?;
        let (word, reason) = outcome.split_once(WHY).map_or((outcome, None), |(word, why)| (word, Some(why)));
        let line = Self {
            at: Duration::from_millis(day.checked_mul(DAY * 1_000)?.checked_add(ms)?),
            job: Name::new(job).ok()?,
            word: word.into(),
            reason: reason.map(String::from),
            id: LogId(id),
            exit: maybe(next()?)?,
            took: maybe(next()?)?.map(Duration::from_millis),
            token: maybe(next()?)?.and_then(Token::new),
            slot: maybe(next()?)?,
            host: next()?.into(),
        };
        next().is_none().then_some(line)
    }
}

/// The day of a time, counted from 1970.
pub fn day_of(at: Duration) -> u64 {
    at.as_secs() / DAY
}

/// The day in a key of the run log.
pub fn day_in(key: &str) -> Option<u64> {
    LAST_DAY.checked_sub(digits(key.strip_prefix(LOG_PREFIX)?.split('/').next()?, 5)?)
}

/// The prefix of all keys of one day. Later days sort before earlier ones.
pub fn day_prefix(day: u64) -> String {
    format!("{LOG_PREFIX}{:05}/", LAST_DAY.saturating_sub(day))
}

/// The prefix of the keys of one job on one day.
pub fn job_prefix(day: u64, job: &Name) -> String {
    format!("{}{job}/{TIME}", day_prefix(day))
}

/// Whether this is the prefix of one job on one day. What follows it in a key is letters, digits, dots, dashes and
/// underscores.
pub fn is_job_prefix(prefix: &str) -> bool {
    let rest = prefix.strip_prefix(LOG_PREFIX).and_then(|rest| rest.strip_suffix(TIME));
    let job = rest.and_then(|rest| rest.split_once('/')?.1.strip_suffix('/'));
    job.is_some_and(|job| Name::new(job).is_ok())
}

/// Before all keys of the job at or before this time, on its day. A list that begins here begins with them.
pub fn not_after(at: Duration, job: &Name) -> String {
    // The keys at that very millisecond continue after these digits, and so sort after this text.
    format!("{}{:08}", job_prefix(day_of(at), job), LAST_MS - millis(at) % (DAY * 1_000))
}

/// Before the keys of all days that are older than this one.
pub fn older_than(day: u64) -> String {
    // "0" is the character after "/".
    format!("{LOG_PREFIX}{:05}0", LAST_DAY.saturating_sub(day))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(LAST_DAY * DAY * 1_000)
}

fn dash() -> String {
    "-".into()
}

fn digits(text: &str, length: usize) -> Option<u64> {
    (text.len() == length && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn maybe<T: core::str::FromStr>(text: &str) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
}

/// A text of letters, digits and dashes, for use in a key.
fn plain(text: &str, most: usize) -> String {
    let mark = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let short: String = text.chars().take(most).map(mark).collect();
    if short.is_empty() { dash() } else { short }
}

fn cut(text: &str, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

#[cfg(test)]
mod tests;
