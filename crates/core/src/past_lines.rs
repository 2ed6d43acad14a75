//! The lines about past runs in lease records, from before there was a run log.
//!
//! Later versions write the run log instead ([`crate::run_log`]) and carry these lines along. A server in front
//! of a store still has clients that add them.

use alloc::format;
use alloc::string::String;

use crate::record::LeaseRecord;

/// How many lines are kept. The oldest is removed first.
const MOST: usize = 8;
/// Longest line, in bytes. A record with the most and longest lines stays below its own limit, even if JSON
/// writes each character as six.
pub const LINE_MAX: usize = 280;

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
