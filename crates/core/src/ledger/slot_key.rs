//! A slot and a key that one run does together.
//!
//! The slot is opened first, and then the key. If the outcome of an earlier run is unknown the slot decides,
//! because it has the steps.

use alloc::format;
use alloc::string::String;

use super::{Entry, IfUnknown, ItemState, Opened, SettleReason};

/// What to do about the key if the outcome of its last run is unknown. `silent`: the slot is run again after
/// such a run.
pub fn key_if_unknown(own: IfUnknown, silent: bool) -> IfUnknown {
    match own {
        // The time counts from the first start of the key, which may have been under another slot.
        IfUnknown::RetryWithin(_) => own,
        _ if silent => IfUnknown::Retry,
        _ => own,
    }
}

/// The record of a slot whose key keeps it from being run: its state, and why. None if the key does not.
pub fn slot_without_key(key: &str, opened: &Opened) -> Option<(ItemState, Option<SettleReason>, String)> {
    let skipped = |reason, said| (ItemState::Skipped, Some(reason), said);
    let failed = |said| (ItemState::Failed, None, said);
    Some(match opened {
        Opened::Begun(..) => return None,
        Opened::Done(entry) => skipped(SettleReason::Done, format!("{key}, by {}", by_whom(entry))),
        // Only slots are decided without a record.
        Opened::Settled | Opened::Skipped(_) => {
            skipped(SettleReason::Skipped, format!("{key} is not to be run"))
        }
        Opened::InProgress(entry) => {
            skipped(SettleReason::InProgress, format!("{key}, by {}", by_whom(entry)))
        }
        Opened::Unknown(entry, _) => {
            failed(format!("{key} never reported: it was begun by {}", by_whom(entry)))
        }
        Opened::Quarantined(entry) => {
            let times = match entry.failures {
                1 => "once".into(),
                n => format!("{n} times"),
            };
            failed(format!("{key} failed {times} and waits for a person"))
        }
        Opened::Bad(bad) => failed(format!("{key}: {bad}")),
        Opened::Failed { .. } => failed(format!("{key}: the store did not answer")),
    })
}

/// The run, with the time: this is kept in a record and read later.
fn by_whom(entry: &Entry) -> String {
    let claim = &entry.claim;
    let at = entry.ending.as_ref().map_or(&claim.holder.since, |ending| &ending.at);
    format!("{}/{} (token {}) at {at}", claim.holder.host, claim.holder.pid, claim.token)
}
