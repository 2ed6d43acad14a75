//! `leasehold plan`: the jobs of leasehold.toml, what ran last, and what is due next.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::{Entry, ItemState, Subject};
use leasehold_run::jobs::{self, Job};
use leasehold_run::schedule::Slot;
use serde_json::json;

use super::job_status::{KnownJob, stood};
use super::{OpenedStore, daemon, item_args, open, times};
use crate::args::{Everywhere, PlanArgs};
use crate::exit::{self, Failed};
use crate::messages::plan as say;
use crate::out::{self, Out};

/// A TTL from here on is named: it says how long a dead holder blocks others.
pub const LONG_TTL: Duration = Duration::from_secs(600);

/// One job, and its standing.
struct JobRow<'a> {
    job: &'a Job,
    last: Option<(Entry, ItemState)>,
    standing: String,
    next: Vec<Slot>,
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &PlanArgs, out: &Out) -> Result<u8, Failed> {
    let jobs = jobs::load_elsewhere(&daemon::path(flags))?;
    // The programs of the jobs may be on another machine.
    if let Err(bad) = jobs::load(&daemon::path(flags)) {
        out.warn(&say::not_startable(bad.to_string().trim_end_matches('.')));
    }
    if let Some(name) = args.job.as_ref().filter(|name| !jobs.iter().any(|job| job.name.as_str() == **name)) {
        let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        return Err(say::unknown_job(format!("{name:?}"), known.join(", ")));
    }
    let mut opened = open(flags, &[])?;
    let now = super::now();
    let mut rows = Vec::new();
    for job in jobs.iter().filter(|job| args.job.as_ref().is_none_or(|name| job.name.as_str() == name)) {
        rows.push(row(&mut opened, job, now, args.next)?);
    }
    if out.json {
        rows.iter().all(|row| out.object(&object(row)));
        return Ok(exit::OK);
    }
    let head = ["JOB", "WHEN", "LAST", "NEXT", "STANDING"];
    let mut table = vec![head.map(String::from).to_vec()];
    for row in &rows {
        table.extend(cells(row, now));
    }
    out::table(&table);
    for job in rows.iter().map(|row| row.job) {
        if let Some(ttl) = job.wishes.ttl.filter(|ttl| *ttl >= LONG_TTL) {
            out.note(&say::long_ttl(&job.name, HumanDuration(ttl)));
        }
    }
    Ok(exit::OK)
}

fn row<'a>(opened: &mut OpenedStore, job: &'a Job, now: Timestamp, next: u8) -> Result<JobRow<'a>, Failed> {
    let KnownJob { last, standing, .. } = stood(opened, &job.name, Some(job), now)?;
    let standing = standing.in_words(&job.name);
    let next = job.schedule.after(now).take(next.into()).collect();
    Ok(JobRow { job, last, standing, next })
}

fn cells(row: &JobRow<'_>, now: Timestamp) -> Vec<Vec<String>> {
    let last = row.last.as_ref().map_or_else(
        || "-".into(),
        |(entry, state)| match &entry.subject {
            Subject::Slot { id, .. } => {
                format!("{} {}", state.word(), item_args::with_local_time(&entry.subject, id))
            }
            Subject::Key(_) | Subject::Latest(_) => state.word().into(),
        },
    );
    let next = |slot: &Slot| {
        let wait = Duration::from_secs(u64::try_from(slot.number() - now.as_second()).unwrap_or(0));
        say::until(times::slot(&slot.id(), slot.due()), HumanDuration(wait))
    };
    let mut nexts = row.next.iter().map(next);
    let first = vec![
        row.job.name.to_string(),
        row.job.written.clone(),
        last,
        nexts.next().unwrap_or_else(|| "-".into()),
        row.standing.clone(),
    ];
    let more = nexts.map(|next| vec![String::new(), String::new(), String::new(), next, String::new()]);
    std::iter::once(first).chain(more).collect()
}

fn object(row: &JobRow<'_>) -> serde_json::Value {
    json!({
        "v": 1, "job": row.job.name.as_str(), "schedule": row.job.written, "standing": row.standing,
        "last": row.last.as_ref().map(|(entry, state)| json!({
            "slot": match &entry.subject { Subject::Slot { id, .. } => Some(id.as_str()), _ => None },
            "outcome": state.word(),
        })),
        "next": row.next.iter().map(|slot| slot.due().to_string()).collect::<Vec<_>>(),
    })
}
