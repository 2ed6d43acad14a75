//! How the last few holds of a lease ended: lines in its record, put there by writes that are made anyway.
//!
//! They are for people to read. No rule compares them or decides by them, and the wall clocks in them are those of
//! whoever wrote them. Each is a text, and not an object of seven fields, because every run reads and writes them all.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use crate::record::LeaseRecord;

/// So many are kept; the oldest goes first.
pub const MOST: usize = 8;
/// No line is longer. Even of characters that JSON writes as six, all of them leave a record below its own bound.
pub const LINE_MAX: usize = 280;
/// What is kept of a text.
const TEXT_MAX: usize = 64;

/// The outcome of a hold that was given back without a word about the work.
pub const RELEASED: &str = "released";
/// The outcome of a hold that ended because the lease was lost, where it could still be given back.
pub const LOST: &str = "lost";
/// The outcome of a hold under which nothing was run, because a target could not be sealed.
pub const UNSEALED: &str = "unsealed";
/// The outcome of a hold whose holder never reported.
pub const UNKNOWN: &str = "unknown";

/// How a hold ended, as told by whoever ended it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldEnd {
    /// In a word.
    pub outcome: &'static str,
    /// The exit code, if a command ran and had one.
    pub exit: Option<i32>,
    /// How long it took, if that is known.
    pub took: Option<Duration>,
    /// When, by the wall clock of that machine.
    pub at: String,
}

/// The past of a lease once the hold in `record` has ended like this.
pub fn after(record: &LeaseRecord, end: &HoldEnd) -> Vec<String> {
    let spare = record.past.len().saturating_sub(MOST - 1);
    record.past.iter().skip(spare).cloned().chain([line(record, end)]).collect()
}

/// A record that was just freed, with how its hold ended if that is to be kept.
pub fn noted(freed: LeaseRecord, end: Option<&HoldEnd>) -> LeaseRecord {
    match end {
        Some(end) => LeaseRecord { past: after(&freed, end), ..freed },
        None => freed,
    }
}

/// The past that a new grant inherits: a holder that is found in the record never reported. One that was at a slot
/// has a record of that slot, which says so.
pub fn inherited(record: &LeaseRecord, at: &str) -> Vec<String> {
    match &record.hold {
        Some(_) if record.holder.slot.is_none() => {
            after(record, &HoldEnd { outcome: UNKNOWN, exit: None, took: None, at: at.into() })
        }
        _ => record.past.clone(),
    }
}

/// `TOKEN OUTCOME EXIT MILLISECONDS TIME JOB HOST/PID`; what is not known is a dash.
fn line(record: &LeaseRecord, end: &HoldEnd) -> String {
    let dash = |text: Option<String>| text.map_or(Cow::Borrowed("-"), Cow::Owned);
    let exit = dash(end.exit.map(|code| code.to_string()));
    let took = end.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    let took = dash(took.map(|ms| ms.to_string()));
    let holder = &record.holder;
    let (at, job, host) = (word(&end.at), word(&holder.job), word(&holder.host));
    format!("{} {} {exit} {took} {at} {job} {host}/{}", record.token, end.outcome, holder.pid)
}

/// A text as one short word, which JSON writes as it is: so is a name that is longer kept in a line.
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

/// Whether lines may stand in a record: few and short.
pub fn fits(past: &[String]) -> bool {
    past.len() <= MOST && past.iter().all(|line| line.len() <= LINE_MAX)
}

/// Whether `new` is the past of `old`, with at most one line more: about the hold that `old` had.
pub fn follows(old: &LeaseRecord, new: &[String]) -> bool {
    let spare = old.past.len().saturating_sub(MOST - 1);
    let one_more = new.split_last().is_some_and(|(last, rest)| {
        *rest == old.past[spare..] && last.starts_with(&format!("{} ", old.token))
    });
    one_more || *new == old.past[..]
}

/// A line, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastHold<'a> {
    /// The token of the hold.
    pub token: u64,
    /// How it ended, in a word.
    pub outcome: &'a str,
    /// The exit code of its command.
    pub exit: Option<i32>,
    /// How long it took.
    pub took: Option<Duration>,
    /// When it ended, or was found to have.
    pub at: &'a str,
    /// What the work was called.
    pub job: &'a str,
    /// `HOST/PID`
    pub holder: &'a str,
}

impl<'a> PastHold<'a> {
    /// Reads a line; nothing if it is none of ours.
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
