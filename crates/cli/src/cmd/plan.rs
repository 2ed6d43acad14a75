//! `leasehold plan`: the jobs of leasehold.toml, what ran last, and what is due next.

use std::time::Duration;

use jiff::Timestamp;
use leasehold::agenda::{self, ON_TIME};
use leasehold::core::ledger::agenda::Agenda;
use leasehold::core::ledger::{Entry, State, Subject};
use leasehold::core::stop::Text;
use leasehold::schedule::Slot;
use serde_json::json;

use super::{Opened, daemon, history, open, store_failed};
use crate::args::{Everywhere, Plan};
use crate::exit::{self, Failed};
use crate::jobs::{self, Job};
use crate::out::{self, Out};

/// So many slots waved off in a row, and the job is stuck.
const STUCK: usize = 3;

/// One job, as it stands.
struct Row<'a> {
    job: &'a Job,
    last: Option<(Entry, &'static str)>,
    standing: String,
    next: Vec<Slot>,
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &Plan, out: &Out) -> Result<u8, Failed> {
    let jobs = jobs::load_elsewhere(&daemon::path(flags))?;
    if let Some(name) = args.job.as_ref().filter(|name| !jobs.iter().any(|job| job.name.as_str() == **name)) {
        let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        return Err(Failed::usage(format!("there is no job {name:?}. They are: {}", known.join(", "))));
    }
    let mut opened = open(flags, &[])?;
    let now = Timestamp::now();
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
    Ok(exit::OK)
}

fn row<'a>(opened: &mut Opened, job: &'a Job, now: Timestamp, next: u8) -> Result<Row<'a>, Failed> {
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let store = opened.store.as_mut();
    let agenda = agenda::read(store, &job.name).map_err(failed)?;
    let from = agenda.as_ref().map_or(0, |agenda| agenda.settled.min(now.as_second()) - 30 * 86_400);
    let (entries, _) = agenda::recorded(store, &job.name, from, i64::MAX).map_err(failed)?;
    let entries: Vec<Entry> = entries.into_iter().map(|(entry, _)| entry).collect();
    let newest = entries.last().cloned();
    let last = match newest {
        Some(entry) => {
            let word = history::word(store, &entry).map_err(failed)?;
            Some((entry, word))
        }
        None => None,
    };
    let standing = standing(job, agenda.as_ref(), &entries, last.as_ref(), now);
    let next = job.schedule.after(now).take(next.into()).collect();
    Ok(Row { job, last, standing, next })
}

/// How a job stands, in a few words.
fn standing(
    job: &Job,
    agenda: Option<&Agenda>,
    entries: &[Entry],
    last: Option<&(Entry, &'static str)>,
    now: Timestamp,
) -> String {
    let Some(agenda) = agenda else { return "no daemon and no tick has seen it yet".into() };
    if let Some(paused) = &agenda.paused {
        return format!("paused by {} at {}", paused.by, paused.at);
    }
    if agenda.schedule != job.written {
        return format!("another schedule is in force: {}", agenda.schedule);
    }
    let waved_off = entries.iter().rev().take_while(|entry| entry.state == State::Skipped).count();
    if waved_off >= STUCK {
        return format!("stuck: {waved_off} slots in a row found its lease held");
    }
    match last {
        Some((entry, "started")) => return format!("running, begun by {}", super::items::by_whom(entry)),
        Some((_, word @ ("failed" | "unknown" | "lost" | "killed"))) => {
            return format!("last slot {word}: leasehold why {}", job.name);
        }
        _ => {}
    }
    let due = job.schedule.prev_at_or_before(now).filter(|slot| slot.number() > agenda.settled);
    let recorded = |slot: &Slot| {
        entries.iter().any(|e| matches!(e.subject, Subject::Slot { at, .. } if at == slot.number()))
    };
    let late = due.filter(|slot| !recorded(slot)).map(|slot| now.as_second() - slot.number() - stagger(job));
    match late {
        Some(late) if late > ON_TIME.as_secs().cast_signed() => {
            let late = Duration::from_secs(late.unsigned_abs());
            format!("overdue for {}: does a daemon run?", Text(late))
        }
        _ => "ok".into(),
    }
}

fn stagger(job: &Job) -> i64 {
    job.stagger.as_secs().cast_signed()
}

fn cells(row: &Row<'_>, now: Timestamp) -> Vec<Vec<String>> {
    let last = row.last.as_ref().map_or_else(
        || "-".into(),
        |(entry, word)| match &entry.subject {
            Subject::Slot { id, .. } => format!("{word} {id}"),
            Subject::Key(_) | Subject::Latest(_) => (*word).into(),
        },
    );
    let next = |slot: &Slot| {
        let wait = Duration::from_secs(u64::try_from(slot.number() - now.as_second()).unwrap_or(0));
        format!("{slot} (in {})", Text(wait))
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

fn object(row: &Row<'_>) -> serde_json::Value {
    json!({
        "v": 1, "job": row.job.name.as_str(), "schedule": row.job.written, "standing": row.standing,
        "last": row.last.as_ref().map(|(entry, word)| json!({
            "slot": match &entry.subject { Subject::Slot { id, .. } => Some(id.as_str()), _ => None },
            "outcome": word,
        })),
        "next": row.next.iter().map(|slot| slot.due().to_string()).collect::<Vec<_>>(),
    })
}
