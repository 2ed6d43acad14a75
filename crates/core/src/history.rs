//! How the last few holds of a lease ended: lines in its record. They need no writes beside those of the lease.
//!
//! They are for people; no rule reads them. The times in them are from the wall clock of each writer. A line
//! is a text and not an object of seven fields, because every run reads and writes all of them.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use crate::record::LeaseRecord;

/// How many lines are kept. The oldest is removed first.
pub const MOST: usize = 8;
/// Longest line, in bytes. A record with the most and longest lines stays below its own limit, even if JSON
/// writes each character as six.
pub const LINE_MAX: usize = 280;
/// Longest text within a line, in bytes. Longer ones are cut.
const TEXT_MAX: usize = 64;

/// The outcome of a hold that was given back without an outcome of the work.
pub const RELEASED: &str = "released";
/// The outcome of a hold whose lease was lost, if it could still be given back.
pub const LOST: &str = "lost";
/// The outcome of a hold under which nothing was run, because a target could not be sealed.
pub const UNSEALED: &str = "unsealed";
/// The outcome of a hold that was still in the record when another run took the lease.
pub const UNKNOWN: &str = "unknown";

/// How a hold ended, as reported by the process that ended it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldEnd {
    /// The outcome.
    pub outcome: &'static str,
    /// The exit code, if a command ran and had one.
    pub exit: Option<i32>,
    /// How long it took, if that is known.
    pub took: Option<Duration>,
    /// When it ended, by the wall clock of that machine.
    pub at: String,
}

/// The lines of a lease after the hold in `record` has ended like this.
pub fn after(record: &LeaseRecord, end: &HoldEnd) -> Vec<String> {
    let spare = record.past.len().saturating_sub(MOST - 1);
    record.past.iter().skip(spare).cloned().chain([line(record, end)]).collect()
}

/// A record that was just freed, with a line about the end of its hold if there is one.
pub fn noted(freed: LeaseRecord, end: Option<&HoldEnd>) -> LeaseRecord {
    match end {
        Some(end) => LeaseRecord { past: after(&freed, end), ..freed },
        None => freed,
    }
}

/// The lines that a new grant inherits. If the record still has a holder, a line says that its outcome is
/// unknown. A holder that ran a slot gets none: the record of the slot says so.
pub fn inherited(record: &LeaseRecord, at: &str) -> Vec<String> {
    match &record.hold {
        Some(_) if record.holder.slot.is_none() => {
            after(record, &HoldEnd { outcome: UNKNOWN, exit: None, took: None, at: at.into() })
        }
        _ => record.past.clone(),
    }
}

/// `TOKEN OUTCOME EXIT MILLISECONDS TIME JOB HOST/PID`, with a dash for each unknown value.
fn line(record: &LeaseRecord, end: &HoldEnd) -> String {
    let dash = |text: Option<String>| text.map_or(Cow::Borrowed("-"), Cow::Owned);
    let exit = dash(end.exit.map(|code| code.to_string()));
    let took = end.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    let took = dash(took.map(|ms| ms.to_string()));
    let holder = &record.holder;
    let (at, job, host) = (word(&end.at), word(&holder.job), word(&holder.host));
    format!("{} {} {exit} {took} {at} {job} {host}/{}", record.token, end.outcome, holder.pid)
}

/// A text as one short word that JSON writes unchanged, for use in a line.
pub fn word(text: &str) -> Cow<'_, str> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '\\';
    if !text.is_empty() && text.len() <= TEXT_MAX && !text.contains(odd) {
        return Cow::Borrowed(text);
    }
    let mut short = String::new();
    for c in text.chars().map(|c| if odd(c) { '_' } else { c }) {
        if short.len() + c.len_utf8() > TEXT_MAX {
            break;
        }
        short.push(c);
    }
    Cow::Owned(if short.is_empty() { "-".into() } else { short })
}

/// Whether a record may have these lines: they are few and short.
pub fn fits(past: &[String]) -> bool {
    past.len() <= MOST && past.iter().all(|line| line.len() <= LINE_MAX)
}

/// Whether `new` are the lines of `old`, with at most one more: about the hold of `old`.
pub fn follows(old: &LeaseRecord, new: &[String]) -> bool {
    let spare = old.past.len().saturating_sub(MOST - 1);
    let one_more = new.split_last().is_some_and(|(last, rest)| {
        *rest == old.past[spare..] && last.starts_with(&format!("{} ", old.token))
    });
    one_more || *new == old.past[..]
}

/// A line that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastHold<'a> {
    /// The token of the hold.
    pub token: u64,
    /// The outcome.
    pub outcome: &'a str,
    /// The exit code of its command.
    pub exit: Option<i32>,
    /// How long it took.
    pub took: Option<Duration>,
    /// When it ended, or was found to have.
    pub at: &'a str,
    /// The name of the job.
    pub job: &'a str,
    /// `HOST/PID`
    pub holder: &'a str,
}

impl<'a> PastHold<'a> {
    /// Reads a line; none if it has another form.
    pub fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next();
        let number = |text: &str| (text != "-").then(|| text.parse::<u64>()).transpose().ok();
        let past = Self {
            token: next()?.parse().ok()?,
            outcome: next()?,
            exit: next().and_then(|exit| (exit != "-").then(|| exit.parse()).transpose().ok())?,
            took: next().and_then(number)?.map(Duration::from_millis),
            at: next()?,
            job: next()?,
            holder: next()?,
        };
        words.next().is_none().then_some(past)
    }
}

#[cfg(test)]
mod tests;
