//! The outcome of one item.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::job_record::{Prospect, prospect};
use leasehold::core::ledger::{Alive, Ending, Entry, FoundEntry, ItemState, Subject};
use leasehold::random;
use leasehold_run::jobs::Job;

use super::super::history::ItemRow;
use super::super::item_args::{by_whom, quoted, shown, shown_with_time, spaced, times, tries_again};
use super::super::{held_for, now};
use crate::args::ATTEMPTS;
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
        (state, _) => {
            scheduled.map_or_else(|| unscheduled(entry, state), |job| after_a_bad_end(entry, job, now()))
        }
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

fn unscheduled(entry: &Entry, state: ItemState) -> String {
    let (slot, failures) = (matches!(entry.subject, Subject::Slot { .. }), entry.failures);
    let steps = if slot { entry.steps.len() } else { 0 };
    let again = tries_again(state, failures, steps, ATTEMPTS);
    match state {
        ItemState::Failed if matches!(entry.subject, Subject::Latest(_)) => say::next_tries(),
        ItemState::Failed if again => say::next_tries_unless(times(failures), failures),
        ItemState::Failed => say::waits(times(failures), ATTEMPTS, quoted(&shown(&entry.subject))),
        _ if again => say::next_goes_on(steps_done(entry)),
        _ => say::next_asks(),
    }
}

fn steps_done(entry: &Entry) -> String {
    if entry.steps.len() == 1 { say::one_step() } else { say::steps(entry.steps.len()) }
}

/// What a scheduler does about a slot that did not end well.
fn after_a_bad_end(entry: &Entry, job: &Job, now: Timestamp) -> String {
    let found = FoundEntry { entry, age: None };
    let ask = job.terms().ask(entry, now.as_second());
    // Only asked if no run is working on it.
    let open = prospect(found, &ask, Some(Alive::No), WriteId(random::seed())) == Prospect::Open;
    let failed = entry.state == ItemState::Failed;
    let name = quoted(&shown(&entry.subject));
    match open {
        true if failed => say::may_fail(job.attempts),
        true if job.retry => say::retried(),
        true => say::goes_on(steps_done(entry)),
        false if failed => say::not_tried_again(name),
        false => say::check_first(name),
    }
}
