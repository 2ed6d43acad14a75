//! A slot and a key that one run does together.
//!
//! The run starts the slot first, and then the key if it started the slot. It records the end of the key first, and then
//! that of the slot: a run that finds only one of them recorded finds the slot open, and starts it again. If an earlier run
//! never reported, the slot decides whether to try again, because it has the steps.

use alloc::format;
use alloc::string::String;

use super::{Amended, Entry, IfUnknown, ItemState, Opened, SettleReason};

/// What to do about a run that never reported how the key ended. `silent`: the slot was started again after
/// such a run.
pub fn key_if_unknown(own: IfUnknown, silent: bool) -> IfUnknown {
    match own {
        // The key counts from its own first time, which may have been under another slot.
        IfUnknown::RetryWithin(_) => own,
        _ if silent => IfUnknown::Retry,
        _ => own,
    }
}

/// What to record of the slot as soon as its key was opened; nothing: the slot stays open. It stays open if the command is
/// to start. It also stays open if the store did not answer, because recording would keep the run from ending.
pub fn slot_after_key(key: &str, opened: &Opened) -> Option<(ItemState, Option<SettleReason>, String)> {
    let answered = !matches!(opened, Opened::Failed { .. });
    slot_without_key(key, opened).filter(|_| answered)
}

/// What to record of an item whose command was never executed. `key`: of a slot, with the result of opening it.
pub fn never_executed(key: Option<(&str, &Opened)>) -> (ItemState, Option<SettleReason>, String) {
    let without_key = key.and_then(|(key, opened)| slot_without_key(key, opened));
    let ended = || (ItemState::Planned, None, "the run ended before its command was started".into());
    without_key.unwrap_or_else(ended)
}

/// Whether to record the end of the slot. `key`: the result of recording the end of its key.
pub fn slot_follows(key: &Amended) -> bool {
    !matches!(key, Amended::Failed(_))
}

/// What to record of the slot if its key is not started: its state, and why. Nothing if the key is started.
pub fn slot_without_key(key: &str, opened: &Opened) -> Option<(ItemState, Option<SettleReason>, String)> {
    let skipped = |reason, said| (ItemState::Skipped, Some(reason), said);
    let failed = |said| (ItemState::Failed, None, said);
    Some(match opened {
        Opened::Begun(..) => return None,
        Opened::Done(entry) => skipped(SettleReason::Done, format!("{key}, by {}", by_whom(entry))),
        // Only a slot is settled without a record, so this is no key.
        Opened::Settled | Opened::Skipped(_) => {
            skipped(SettleReason::Skipped, format!("{key} must not be run"))
        }
        Opened::InProgress(entry) => {
            skipped(SettleReason::InProgress, format!("{key}, by {}", by_whom(entry)))
        }
        Opened::Unknown(entry, _) => {
            failed(format!("{key} never reported how it ended: it was started by {}", by_whom(entry)))
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

/// The run of an entry, for a record that is read much later: with the time at which it ended, or else started.
fn by_whom(entry: &Entry) -> String {
    let claim = &entry.claim;
    let at = entry.ending.as_ref().map_or(&claim.holder.since, |ending| &ending.at);
    format!("{} (token {}) at {at}", claim.holder, claim.token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Failure, FailureKind};

    #[test]
    fn a_slot_stays_open_while_the_store_does_not_answer_for_its_key() {
        let failure = Failure::new(FailureKind::Unreachable, "no");
        let silent = Opened::Failed { failure: failure.clone(), sent: true };
        assert_eq!(slot_after_key("k", &silent), None);
        assert_eq!(never_executed(Some(("k", &silent))).0, ItemState::Failed);
        assert!(!slot_follows(&Amended::Failed(failure)));
        assert!(slot_follows(&Amended::Superseded(None)));
        let skipped = Opened::Settled;
        assert_eq!(slot_after_key("k", &skipped), slot_without_key("k", &skipped));
        assert_eq!(never_executed(Some(("k", &skipped))).0, ItemState::Skipped);
        assert_eq!(never_executed(None).0, ItemState::Planned);
    }
}
