//! A slot and a key that one run does together.
//!
//! The slot is begun first, and the key only if the slot is. The slot decides about silence, for it has the steps.

use alloc::format;
use alloc::string::String;

use super::{Entry, IfUnknown, ItemState, Opened, SettleReason};

/// How the key is asked about a run that never reported. `silent`: the slot was begun again after one.
pub fn key_if_unknown(own: IfUnknown, silent: bool) -> IfUnknown {
    match own {
        // The key counts from its own first time, which may have been under another slot.
        IfUnknown::RetryWithin(_) => own,
        _ if silent => IfUnknown::Retry,
        _ => own,
    }
}

/// What is recorded of the slot when its key is not begun with it: its state, and why. Nothing where the key
/// is begun.
pub fn slot_without_key(key: &str, opened: &Opened) -> Option<(ItemState, Option<SettleReason>, String)> {
    let skipped = |reason, said| (ItemState::Skipped, Some(reason), said);
    let failed = |said| (ItemState::Failed, None, said);
    Some(match opened {
        Opened::Begun(..) => return None,
        Opened::Done(entry) => skipped(SettleReason::Done, format!("{key}, by {}", by_whom(entry))),
        // Only slots are settled without a record.
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

/// For a record that is read much later: with the time, if it ended.
fn by_whom(entry: &Entry) -> String {
    let claim = &entry.claim;
    let at = entry.ending.as_ref().map_or(&claim.holder.since, |ending| &ending.at);
    format!("{}/{} (token {}) at {at}", claim.holder.host, claim.holder.pid, claim.token)
}
