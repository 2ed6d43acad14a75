//! How an item is shown to people: its state, and what the next run does about it.

use super::{
    Alive, Entry, FoundEntry, IfUnknown, ItemClaim, ItemRequest, ItemState, ItemVerdict, RetryDoubt, begin,
};

/// What the next run does about an item on which no run is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRun {
    /// It starts the item: a person asked for that, or the command was not executed before.
    Starts,
    /// It tries the item again: the last run failed, and the item may fail more often.
    TriesAgain,
    /// It runs the item again although the outcome of the last run is unknown.
    Repeats,
    /// It goes on after the steps that are done, although the outcome of the last run is unknown.
    GoesOn,
    /// It is skipped: the item is done, or is not to be run.
    Skips,
    /// It leaves the item to a person: the item failed too often.
    FailedTooOften,
    /// It leaves the item to a person: the outcome of the last run is unknown.
    Unknown(RetryDoubt),
}

/// What the next run does if it asks for the item in this way.
pub fn next_run(entry: &Entry, if_unknown: IfUnknown, attempts: u32) -> NextRun {
    let ask = ItemRequest {
        subject: entry.subject.clone(),
        job: entry.job.clone(),
        claim: ItemClaim::nobody(&entry.claim, !entry.claim.grant.0),
        if_unknown,
        attempts,
        keep: None,
    };
    let found = FoundEntry { entry, age: None };
    match begin(Some(found), &ask, Some(Alive::No), entry.write) {
        ItemVerdict::Begin(_) => match entry.state {
            ItemState::Failed => NextRun::TriesAgain,
            ItemState::Planned => NextRun::Starts,
            _ if if_unknown == IfUnknown::RetryWithSteps => NextRun::GoesOn,
            _ => NextRun::Repeats,
        },
        ItemVerdict::Quarantined => NextRun::FailedTooOften,
        ItemVerdict::Unknown(_, doubt) => NextRun::Unknown(doubt),
        ItemVerdict::Done | ItemVerdict::Skipped | ItemVerdict::InProgress | ItemVerdict::AskLease(..) => {
            NextRun::Skips
        }
    }
}

/// The state of an item as people are shown it: the outcome of a run that started, and has lost its lease, is
/// unknown. `alive` is asked only about an item that was started.
pub fn shown_state<E>(entry: &Entry, alive: impl FnOnce() -> Result<Alive, E>) -> Result<ItemState, E> {
    Ok(match entry.state {
        ItemState::Started if alive()? == Alive::No => ItemState::Unknown,
        state => state,
    })
}
