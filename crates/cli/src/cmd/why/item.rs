//! The outcome of one item.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::{Ending, Entry, IfUnknown, ItemState, NextRun, RetryDoubt, Subject, next_run};
use leasehold_run::jobs::Job;

use super::super::history::ItemRow;
use super::super::item_args::{by_whom, quoted, shown, shown_with_time, spaced, times, unasked};
use super::super::{held_for, now};
use crate::messages::{items, why as say};
use crate::out;

/// The outcome of an item and what the next run will do; the last lines of one that failed below.
pub fn tell(row: &ItemRow, job: Option<&Job>) {
    out::line(&sentence(row, job));
    let said = row.entry.ending.as_ref().map_or("", |ending| ending.said.as_str());
    if ![ItemState::Skipped, ItemState::Ok].contains(&row.entry.state) {
        said.lines().all(|line| out::line(&format!("    {}", line.replace('\t', "    "))));
    }
}

fn sentence(row: &ItemRow, job: Option<&Job>) -> String {
    let entry = &row.entry;
    let name = shown_with_time(&entry.subject);
    let ending = entry.ending.as_ref();
    let exit = ending.and_then(|ending| ending.exit).map(say::exit).unwrap_or_default();
    let took = ending.filter(|_| entry.done_by_hand().is_none());
    let took = took.map(|ending| say::took(HumanDuration(Duration::from_millis(ending.took_ms))));
    let attempt = if entry.attempt > 1 { say::attempt(entry.attempt) } else { String::new() };
    let scheduled = job.filter(|_| matches!(entry.subject, Subject::Slot { .. }));
    let next = match (row.state, &entry.subject) {
        (ItemState::Ok, Subject::Latest(_)) => say::cooldown_applies(),
        (ItemState::Ok, _) => say::not_run_again(),
        (ItemState::Started, _) => say::running(),
        (ItemState::Planned, _) => say::next_starts(),
        (ItemState::Skipped, _) => say::not_run(ending.map(Ending::told).unwrap_or_default()),
        _ => scheduled.map_or_else(|| unscheduled(entry), |job| after_a_bad_end(entry, job, now())),
    };
    let outcome = match entry.state {
        ItemState::Started if row.state == ItemState::Unknown => say::never_reported(),
        ItemState::Planned => say::to_be_tried_again(),
        state => state.word().into(),
    };
    if entry.state == ItemState::Skipped {
        // The claim in the record is of the run that held the lease.
        let ago = held_for(row.when()).map(|time| items::ago(HumanDuration(time)));
        return say::item_skipped(name, outcome, spaced(ago), next);
    }
    say::item(name, outcome, by_whom(entry), took.unwrap_or_default(), exit, attempt, next)
}

/// What a run does that has no flags about it.
fn unscheduled(entry: &Entry) -> String {
    let (if_unknown, attempts) = unasked(&entry.subject);
    let (failures, name) = (entry.failures, quoted(&shown(&entry.subject)));
    match next_run(entry, if_unknown, attempts) {
        NextRun::TriesAgain if attempts < u32::MAX => say::next_tries_unless(times(failures), failures),
        NextRun::TriesAgain | NextRun::Repeats | NextRun::Starts => say::next_tries(),
        NextRun::GoesOn => say::next_goes_on(steps_done(entry)),
        NextRun::FailedTooOften => say::waits(times(failures), attempts, name),
        NextRun::Unknown(_) => match next_run(entry, IfUnknown::Retry, attempts) {
            NextRun::Unknown(RetryDoubt::TooOften { .. }) => say::check_first(name),
            _ => say::next_asks(name),
        },
        NextRun::Skips => say::not_run_again(),
    }
}

fn steps_done(entry: &Entry) -> String {
    if entry.steps.len() == 1 { say::one_step() } else { say::steps(entry.steps.len()) }
}

/// What a scheduler does about a slot that did not end well.
fn after_a_bad_end(entry: &Entry, job: &Job, now: Timestamp) -> String {
    let ask = job.terms().ask(entry, now.as_second());
    let name = quoted(&shown(&entry.subject));
    match next_run(entry, ask.if_unknown, ask.attempts) {
        NextRun::TriesAgain => say::may_fail(job.attempts),
        NextRun::Repeats | NextRun::Starts => say::retried(),
        NextRun::GoesOn => say::goes_on(steps_done(entry)),
        NextRun::FailedTooOften => say::not_tried_again(name),
        NextRun::Unknown(_) => say::check_first(name),
        NextRun::Skips => say::not_run_again(),
    }
}
