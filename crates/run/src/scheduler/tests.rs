use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use jiff::Timestamp;
use leasehold::host;
use leasehold_core::ids::{Epoch, Grant, Token, WriteId};
use leasehold_core::ledger::{ItemClaim, Subject};

use super::*;
use crate::schedule::{Every, Schedule};

const RUN: &str = "mac-1-a";

fn subject() -> Subject {
    Subject::Slot { job: Name::new("site").unwrap(), at: 0, id: "1970-01-01T00:00:00Z".into() }
}

/// A run that ended with this wait status and handed back this outcome.
fn ended(raw: i32, outcome: Option<SlotOutcome>) -> EndedRun {
    let every = Every::new(Duration::from_secs(60), Duration::ZERO).unwrap();
    let slot = Schedule::every(every).prev_at_or_before(Timestamp::UNIX_EPOCH).unwrap();
    let status = ExitStatus::from_raw(raw);
    EndedRun { slot, subject: subject(), status, run_id: RUN.into(), outcome, attempts: 1 }
}

/// A record of a run of this process, on this host, with that run id.
fn left_by(run: &str, state: ItemState) -> Entry {
    let job = Name::new("site").unwrap();
    let claim = ItemClaim {
        lease: job.clone(),
        epoch: Epoch::first(1),
        token: Token::FIRST,
        grant: Grant(1),
        holder: host::holder(run, &job),
    };
    Entry {
        subject: subject(),
        job,
        state,
        attempt: 1,
        failures: 1,
        silences: 0,
        claim,
        since_first: None,
        ending: None,
        steps: Vec::new(),
        more: serde_json::Map::new(),
        write: WriteId(1),
    }
}

/// The outcome, and whether it went well.
fn of(raw: i32, outcome: Option<SlotOutcome>, found: Result<Option<Entry>, Failure>) -> (SlotFate, bool) {
    let ended = ended(raw, outcome);
    let told = RunEnded::new(&ended, found);
    (told.became, told.went_well())
}

#[test]
fn a_silent_store_does_not_mean_that_the_run_did_not_start() {
    let failure = Failure::new(FailureKind::Unreachable, "no answer.");
    assert_eq!(of(9, None, Ok(None)), (SlotFate::NotBegun, false));
    assert_eq!(of(0x100, None, Err(failure.clone())), (SlotFate::NotKnown, false));
    assert_eq!(of(0, None, Err(failure)), (SlotFate::NotKnown, true));
}

#[test]
fn the_run_id_alone_tells_whose_record_it_is() {
    let ours = left_by(RUN, ItemState::Failed);
    let stands = SlotFate::Stands(SlotRecord::from(&ours));
    assert_eq!(of(0x100, None, Ok(Some(ours))), (stands, false));
    let others = || Ok(Some(left_by("another", ItemState::Failed)));
    assert_eq!(of(0x100, None, others()), (SlotFate::NotBegun, false));
    // Unless it is why this run did not start.
    let needs_you = Some(SlotOutcome::NotBegun(NotBegun::NeedsYou));
    assert_eq!(of(79 << 8, needs_you, others()), (stands, false));
    assert_eq!(of(9, None, Ok(Some(left_by(RUN, ItemState::Started)))), (SlotFate::Silent, false));
    assert_eq!(of(0, None, Ok(Some(left_by("another", ItemState::Started)))), (SlotFate::NotBegun, true));
}

#[test]
fn the_record_tells_what_a_run_did_not_hand_back() {
    let (ours, others) = (left_by(RUN, ItemState::Started), left_by("another", ItemState::Started));
    let silent = ended(9, None);
    assert_eq!(silent.slot_outcome(Some(&ours)), SlotOutcome::Begun(None));
    for found in [None, Some(&others)] {
        assert_eq!(silent.slot_outcome(found), SlotOutcome::NotBegun(NotBegun::Failed));
    }
    let said = SlotOutcome::NotBegun(NotBegun::Skipped);
    assert_eq!(ended(0, Some(said)).slot_outcome(Some(&others)), said);
}
