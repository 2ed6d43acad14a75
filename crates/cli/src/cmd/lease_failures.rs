//! Why a lease was not taken or changed: the store failed, or its record must not be acted on.

use leasehold::core::name::Name;
use leasehold::core::record::BadRecord;
use leasehold::core::rules::Refusal;
use leasehold::core::session::NotStarted;
use leasehold::core::store::Failure;
use leasehold::messages::Explanation;
use leasehold_run::runner::signals::signal_number;

use crate::config::Chosen;
use crate::exit::{FailKind, Failed, by_kind};
use crate::messages::store as say;

/// A lease name from the command line.
pub fn name(text: &str) -> Result<Name, Failed> {
    Name::new(text).map_err(|e| Failed::usage(Explanation::of(e)))
}

/// What the lease was wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePurpose {
    /// To run a command.
    Run,
    /// To hold it by hand.
    Take,
}

/// A job that was not started, or a lease that was not taken.
pub fn not_started(why: &NotStarted, chosen: &Chosen, lease: &Name, aim: LeasePurpose) -> Failed {
    let late = |in_doubt| if in_doubt { say::claim_in_doubt() } else { String::new() };
    match why {
        NotStarted::Store { failure, in_doubt } => {
            let (store, why, late) = (&chosen.shown, &failure.message, late(*in_doubt));
            let told = match aim {
                LeasePurpose::Run => say::cannot_run(store, why, lease, late),
                LeasePurpose::Take => say::cannot_take(store, why, lease, late),
            };
            by_kind(failure.kind, told)
        }
        NotStarted::Refused { lease, refusal } => refused(lease, refusal, &chosen.shown),
        NotStarted::Seal { why, .. } => say::not_fenced(why),
        NotStarted::Item => say::item_not_run(why),
        NotStarted::Interrupted { signal, in_doubt } => {
            let told = match aim {
                LeasePurpose::Run => say::interrupted_run(late(*in_doubt)),
                LeasePurpose::Take => say::interrupted_take(lease, late(*in_doubt)),
            };
            Failed::new(FailKind::Interrupted(128 + signal_number(*signal)), "interrupted", told)
        }
    }
}

/// A record that contradicts what this machine has seen.
fn refused(lease: &Name, refusal: &Refusal, store: &str) -> Failed {
    match refusal {
        Refusal::Bad(bad) => bad_record(lease, bad, store),
        Refusal::Behind { seen, found } => say::rewound(store, found, lease, seen),
        Refusal::Vanished { seen } => say::vanished(store, lease, seen),
        Refusal::Returned { token } => say::returned(store, lease, token),
        Refusal::Exhausted => say::exhausted(lease),
    }
}

/// A record that cannot be read, or is another lease's.
pub fn bad_record(lease: &Name, bad: &BadRecord, store: &str) -> Failed {
    match bad {
        BadRecord::Newer(_) => say::newer_record(lease, store, bad),
        BadRecord::OtherLease(_) | BadRecord::Damaged(_) => say::bad_record(lease, store, bad),
    }
}

/// A store that failed, outside of any run.
pub fn store_failed(failure: &Failure, chosen: &Chosen) -> Failed {
    by_kind(failure.kind, say::failed(&chosen.shown, &failure.message))
}

/// A change by hand that the store did not confirm. `sent`: the change may have been made, or may yet be made.
pub fn unconfirmed(failure: &Failure, sent: bool, lease: &Name, chosen: &Chosen) -> Failed {
    match sent {
        false => store_failed(failure, chosen),
        true => by_kind(failure.kind, say::unconfirmed(&chosen.shown, &failure.message, lease)),
    }
}
