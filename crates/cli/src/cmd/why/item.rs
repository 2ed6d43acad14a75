//! What became of one item.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::job_record::{Prospect, prospect};
use leasehold::core::ledger::{Alive, Ending, Entry, FoundEntry, ItemState, Subject};
use leasehold::random;
use leasehold_run::jobs::Job;

use super::super::history::ItemRow;
use super::super::{held_for, item_args};
use crate::args::ATTEMPTS;
use crate::out;

/// What became of one item, and what the next run will do; what a failed one said, below.
pub fn tell(row: &ItemRow, job: Option<&Job>) {
    out::line(&sentence(row, job));
    let said = row.entry.ending.as_ref().map_or("", |ending| ending.said.as_str());
    if ![ItemState::Skipped, ItemState::Ok].contains(&row.entry.state) {
        said.lines().all(|line| out::line(&format!("    {}", line.replace('\t', "    "))));
    }
}

fn sentence(row: &ItemRow, job: Option<&Job>) -> String {
    let entry = &row.entry;
    let name = item_args::shown(&entry.subject);
    let by = item_args::by_whom(entry);
    let exit =
        entry.ending.as_ref().and_then(|e| e.exit).map(|exit| format!(" (exit {exit})")).unwrap_or_default();
    let took = entry.ending.as_ref().filter(|_| entry.done_by_hand().is_none());
    let took = took.map(|e| Duration::from_millis(e.took_ms));
    let took = took.map(|took| format!(" in {}", HumanDuration(took))).unwrap_or_default();
    let attempt = if entry.attempt > 1 { format!(", at attempt {}", entry.attempt) } else { String::new() };
    let scheduled = job.filter(|_| matches!(entry.subject, Subject::Slot { .. }));
    let next = match (row.state, &entry.subject) {
        (ItemState::Ok, Subject::Latest(_)) => "runs with --cooldown are skipped until that is over".into(),
        (ItemState::Ok, _) => "it is not run again".into(),
        (ItemState::Started, _) => "it is being done now, and others are skipped".into(),
        (ItemState::Planned, _) => "the next run begins it".into(),
        (ItemState::Skipped, _) => {
            let told = entry.ending.as_ref().map(Ending::told).unwrap_or_default();
            format!("it is not run ({told})")
        }
        (state, _) => scheduled
            .map_or_else(|| unscheduled(entry, state), |job| badly(entry, job, &name, super::super::now())),
    };
    let word = match entry.state {
        ItemState::Started if row.state == ItemState::Unknown => "begun and never reported",
        ItemState::Planned => "to be tried again",
        state => state.word(),
    };
    if entry.state == ItemState::Skipped {
        // The claim is of whoever was in its way.
        let ago = held_for(row.when()).map(|d| format!(" {} ago", HumanDuration(d))).unwrap_or_default();
        return format!("{name}: {word}{ago}; {next}.");
    }
    format!("{name}: {word}, by {by}{took}{exit}{attempt}; {next}.")
}

fn unscheduled(entry: &Entry, state: ItemState) -> String {
    let slot = matches!(entry.subject, Subject::Slot { .. });
    match state {
        ItemState::Failed if matches!(entry.subject, Subject::Latest(_)) => "the next run tries again".into(),
        ItemState::Failed if entry.failures < ATTEMPTS => {
            let n = entry.failures;
            let times = if n == 1 { "once".into() } else { format!("{n} times") };
            format!("it failed {times}, and the next run tries again, unless it says --attempts {n}")
        }
        ItemState::Failed => {
            let (name, n) = (item_args::shown(&entry.subject), entry.failures);
            let more = n.saturating_add(1);
            format!(
                "it failed {n} times, and waits for you (79), unless a run says --attempts {more}: leasehold retry {name}"
            )
        }
        _ if slot && !entry.steps.is_empty() => {
            format!("the next run of it goes on: {}", steps_done(entry))
        }
        _ => {
            "nobody can tell whether it did its work: the next run asks you (79), unless it says --if-unknown retry".into()
        }
    }
}

fn steps_done(entry: &Entry) -> String {
    match entry.steps.len() {
        1 => "1 step of it is done and is not done again".into(),
        n => format!("{n} steps of it are done and are not done again"),
    }
}

/// What a scheduler does about a slot that did not end well.
fn badly(entry: &Entry, job: &Job, name: &str, now: Timestamp) -> String {
    let found = FoundEntry { entry, age: None };
    let ask = job.terms().ask(entry, now.as_second());
    // A run that is at it is told of before.
    let open = prospect(found, &ask, Some(Alive::No), WriteId(random::seed())) == Prospect::Open;
    let failed = entry.state == ItemState::Failed;
    match open {
        true if failed => format!("it may fail {} times, and is tried again", job.attempts),
        true if job.retry => "it is run again, as retry = true says".into(),
        true => format!("it is run again: {}", steps_done(entry)),
        false if failed => format!("it is not run again unless you say: leasehold retry {name}"),
        false => format!(
            "nobody can tell whether it did its work: look, then leasehold retry {name}, or leasehold retry --done {name}"
        ),
    }
}
