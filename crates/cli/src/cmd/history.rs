//! `leasehold history`: the outcomes of keys, slots and runs, and the slots that were dropped.

use std::time::Duration;

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::{DroppedRange, JobRecord};
use leasehold::core::ledger::{Alive, Ending, Entry, ItemState, SettleReason, Subject};
use leasehold::core::name::Name;
use leasehold::core::session::LEASE_PREFIX;
use leasehold::ledger::{PREFIXES, alive};
use leasehold::stores::{Store, each_stored};
use leasehold::text::did_you_mean;
use leasehold_run::job_records::{self, Unreadable};
use leasehold_run::jobs;
use serde_json::{Value, json};

use super::past_runs::{self, PastRun};
use super::times::{self, local_second, utc};
use super::{OpenedStore, daemon, held_for, item_args, store_failed};
use crate::args::{Everywhere, HistoryArgs};
use crate::config::scope;
use crate::exit::{self, Failed};
use crate::messages::history as say;
use crate::out::{self, Out};
use crate::timeline;

/// Most jobs that are named if there is none of this name.
const JOBS_SHOWN: usize = 20;
/// A range of slots that were not run.
const DROPPED: &str = "dropped";
/// The outcomes that `--only` takes, in the order in which they are counted.
const WORDS: [&str; 11] = [
    "ok", "skipped", "failed", "lost", "killed", "unknown", "unsealed", "released", "started", "planned",
    DROPPED,
];

/// One item.
pub struct ItemRow {
    /// As it is recorded.
    pub entry: Entry,
    /// Its outcome, or that a run is working on it now.
    pub state: ItemState,
}

impl ItemRow {
    /// Whether it belongs to this job, key or slot.
    pub fn is_about(&self, name: &str) -> bool {
        let slot = matches!(&self.entry.subject, Subject::Slot { id, .. } if id == name);
        self.entry.job.as_str() == name || item_args::shown(&self.entry.subject) == name || slot
    }

    /// Whether it was run under this lease, or skipped because that was held.
    pub fn is_under(&self, lease: &str) -> bool {
        self.entry.claim.lease.as_str() == lease
    }

    /// Whether it is a slot.
    pub fn is_slot(&self) -> bool {
        matches!(self.entry.subject, Subject::Slot { .. })
    }

    /// Why it was skipped, or that a person recorded it as done, in a word.
    pub fn reason(&self) -> Option<&'static str> {
        self.entry.ending.as_ref()?.reason.map(SettleReason::word)
    }

    /// When it last ended or started, by that machine's clock.
    pub fn when(&self) -> &str {
        when(&self.entry)
    }
}

/// When an item last ended or started, by that machine's clock.
pub fn when(entry: &Entry) -> &str {
    entry.ending.as_ref().map_or(entry.claim.holder.since.as_str(), |ending| ending.at.as_str())
}

/// Slots of a job that were dropped.
pub struct DroppedOfJob {
    pub job: Name,
    /// Which, and why.
    pub range: DroppedRange,
}

impl DroppedOfJob {
    /// Which, as people read it.
    fn slots(&self) -> String {
        let DroppedRange { first, last, .. } = self.range;
        match first == last {
            true => local_second(first),
            false => format!("{} … {}", local_second(first), local_second(last)),
        }
    }

    /// For `--json`.
    pub fn object(&self) -> Value {
        let DroppedRange { first, last, count, why, .. } = self.range;
        json!({
            "v": 1, "kind": DROPPED, "job": self.job.as_str(), "outcome": DROPPED, "reason": why.word(),
            "first": utc(first), "last": utc(last), "count": count,
            "time": utc(last),
        })
    }
}

/// One line of it.
enum Line {
    Item(Box<ItemRow>),
    Run(PastRun),
    Dropped(DroppedOfJob),
}

impl Line {
    fn word(&self) -> &str {
        match self {
            Self::Item(row) => row.state.word(),
            Self::Run(run) => &run.word,
            Self::Dropped(_) => DROPPED,
        }
    }

    fn when(&self) -> String {
        match self {
            Self::Item(row) => row.when().to_owned(),
            Self::Run(run) => run.when.clone(),
            Self::Dropped(dropped) => utc(dropped.range.last),
        }
    }

    fn is_about(&self, name: &str) -> bool {
        match self {
            Self::Item(row) => row.is_about(name) || row.is_under(name),
            Self::Run(run) => run.is_about(name),
            Self::Dropped(dropped) => dropped.job.as_str() == name,
        }
    }
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &HistoryArgs, out: &Out) -> Result<u8, Failed> {
    if args.pictures.any() {
        return timeline::run(flags, args, out);
    }
    for word in &args.only {
        if !WORDS.contains(&word.as_str()) {
            let meant = did_you_mean(word, &WORDS).map(say::meant).unwrap_or_default();
            return Err(say::bad_outcome(format!("{word:?}"), meant, WORDS.join(", ")));
        }
    }
    let mut opened = super::open(flags, &[])?;
    let StoreRecords { rows, job_records, mut unreadable } = recorded(&mut opened)?;
    let past_runs::PastRuns { runs, leases, unreadable: bad } = past_runs::runs(&mut opened, &rows)?;
    unreadable.extend(bad);
    let jobs: Vec<Name> = job_records.iter().map(|job_record| job_record.job.clone()).collect();
    let dropped = job_records.into_iter().flat_map(|job_record| {
        let job = job_record.job;
        job_record.dropped.into_iter().map(move |range| DroppedOfJob { job: job.clone(), range })
    });
    let items = rows.into_iter().map(|row| Line::Item(Box::new(row)));
    let mut lines: Vec<Line> =
        items.chain(runs.into_iter().map(Line::Run)).chain(dropped.map(Line::Dropped)).collect();
    let heard_of = args.name.as_ref().is_none_or(|name| {
        let known = jobs.iter().chain(&leases).any(|known| known.as_str() == name);
        known || lines.iter().any(|line| line.is_about(name))
    });
    for (key, why) in unreadable {
        out.warn(&say::unreadable(key, why));
    }
    if let Some(name) = args.name.as_ref().filter(|name| !heard_of && !is_here(flags, name)) {
        return Err(unheard_of(&mut opened, name)?);
    }
    lines.retain(|line| wanted(line, args));
    lines.sort_by_cached_key(Line::when);
    show(&lines, args, &opened, out);
    Ok(exit::OK)
}

/// Whether the leasehold.toml here has a job of this name, or one that needs this lease.
pub fn is_here(flags: &Everywhere, name: &str) -> bool {
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_default();
    jobs.iter().any(|job| job.name.as_str() == name || job.leases.iter().any(|lease| lease.as_str() == name))
}

/// Nothing has this name; which names there are.
pub fn unheard_of(opened: &mut OpenedStore, name: &str) -> Result<Failed, Failed> {
    let failed = |failure| store_failed(&failure, &opened.chosen);
    let (job_records, _) = job_records::read_all(opened.store.as_mut()).map_err(failed)?;
    let mut leases = Vec::new();
    let listed = each_stored(opened.store.as_mut(), LEASE_PREFIX, "", |key, _| {
        leases.push(key[LEASE_PREFIX.len()..].to_owned());
        true
    });
    listed.map_err(failed)?;
    let jobs: Vec<&str> = job_records.iter().map(|job_record| job_record.job.as_str()).collect();
    let known: Vec<&str> = jobs.iter().copied().chain(leases.iter().map(String::as_str)).collect();
    let meant = did_you_mean(name, &known).map(say::meant_name).unwrap_or_default();
    let there = match &jobs[..] {
        [] => say::no_jobs(),
        few if few.len() <= JOBS_SHOWN => say::jobs(few.join(", ")),
        many => say::some_jobs(many[..JOBS_SHOWN].join(", "), many.len() - JOBS_SHOWN),
    };
    let chosen = &opened.chosen;
    Ok(say::unknown_name(name, &chosen.shown, scope(chosen), there, meant))
}

/// The records of a store.
pub struct StoreRecords {
    /// Every item that was not dropped.
    pub rows: Vec<ItemRow>,
    job_records: Vec<JobRecord>,
    /// Records that cannot be read, and why.
    unreadable: Vec<Unreadable>,
}

/// Reads them.
pub fn recorded(opened: &mut OpenedStore) -> Result<StoreRecords, Failed> {
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    for prefix in PREFIXES {
        each_stored(opened.store.as_mut(), prefix, "", |key, stored| {
            match Entry::decode(&stored.body) {
                Ok(entry) => rows.push(entry),
                Err(bad) => unreadable.push((key, bad.to_string())),
            }
            true
        })
        .map_err(|f| store_failed(&f, &opened.chosen))?;
    }
    let (job_records, bad) =
        job_records::read_all(opened.store.as_mut()).map_err(|f| store_failed(&f, &opened.chosen))?;
    unreadable.extend(bad);
    let rows = job_records::told(rows, &job_records).into_iter().map(|entry| {
        let state = state(opened.store.as_mut(), &entry).map_err(|f| store_failed(&f, &opened.chosen))?;
        Ok(ItemRow { entry, state })
    });
    Ok(StoreRecords { rows: rows.collect::<Result<_, Failed>>()?, job_records, unreadable })
}

/// The outcome of an item, or that a run is working on it now.
pub fn state(store: &mut dyn Store, entry: &Entry) -> Result<ItemState, leasehold::stores::Failure> {
    Ok(match entry.state {
        ItemState::Started if alive(store, &entry.claim.lease, entry.claim.grant)? == Alive::No => {
            ItemState::Unknown
        }
        state => state,
    })
}

fn wanted(line: &Line, args: &HistoryArgs) -> bool {
    let named = args.name.as_ref().is_none_or(|name| line.is_about(name));
    let recent = args.since.is_none_or(|since| held_for(&line.when()).is_none_or(|ago| ago <= since));
    named && recent && (args.only.is_empty() || args.only.iter().any(|word| word == line.word()))
}

fn show(lines: &[Line], args: &HistoryArgs, opened: &OpenedStore, out: &Out) {
    if out.json {
        lines.iter().all(|line| {
            out.object(&match line {
                Line::Item(row) => object(row),
                Line::Run(run) => run.object(),
                Line::Dropped(dropped) => dropped.object(),
            })
        });
        return;
    }
    if lines.is_empty() {
        let chosen = &opened.chosen;
        let all = args.name.is_none() && args.since.is_none() && args.only.is_empty();
        let nothing = if all { say::nothing } else { say::nothing_like_that };
        out::line(&nothing(&chosen.shown, scope(chosen)));
        return;
    }
    let head = ["ITEM", "JOB", "LEASE", "OUTCOME", "WHEN", "TOOK", "EXIT", "BY", "TOKEN", "ATTEMPT", "STEPS"];
    let mut table = vec![head.map(String::from).to_vec()];
    table.extend(lines.iter().map(|line| match line {
        Line::Item(row) => cells(row),
        Line::Run(run) => run.cells(),
        Line::Dropped(dropped) => dropped_cells(dropped),
    }));
    // Most jobs have the name of their lease.
    if !lines.iter().any(|line| matches!(line, Line::Item(row) if row.entry.job != row.entry.claim.lease)) {
        table.iter_mut().for_each(|row| drop(row.remove(2)));
    }
    out::table(&table);
    out::line(&counted(lines));
}

/// "12 ok, 3 skipped, 1 failed, 525597 dropped"
fn counted(lines: &[Line]) -> String {
    let number = |line: &Line| match line {
        Line::Item(_) | Line::Run(_) => 1,
        Line::Dropped(dropped) => dropped.range.count,
    };
    let count =
        |word: &str| lines.iter().filter(|line| line.word() == word).map(number).fold(0, u64::saturating_add);
    let counts = WORDS.into_iter().map(|word| (count(word), word)).filter(|(count, _)| *count > 0);
    counts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

fn dropped_cells(dropped: &DroppedOfJob) -> Vec<String> {
    let DroppedRange { last, count, why, .. } = dropped.range;
    let outcome = format!("{DROPPED} ({count} {})", why.word());
    let mut cells =
        vec![dropped.slots(), dropped.job.to_string(), "-".into(), outcome, times::ago(&utc(last))];
    cells.resize(11, "-".into());
    cells
}

fn cells(row: &ItemRow) -> Vec<String> {
    let Entry { subject, job, ending, claim, attempt, steps, .. } = &row.entry;
    let dash = || "-".to_owned();
    let item = match subject {
        Subject::Key(key) => key.clone(),
        Subject::Slot { id, .. } => item_args::with_local_time(subject, id),
        Subject::Latest(_) => "(cooldown)".into(),
    };
    let took =
        ending.as_ref().map_or_else(dash, |e| HumanDuration(Duration::from_millis(e.took_ms)).to_string());
    vec![
        item,
        job.to_string(),
        claim.lease.to_string(),
        row.reason()
            .map_or_else(|| row.state.word().into(), |reason| format!("{} ({reason})", row.state.word())),
        times::ago(row.when()),
        took,
        ending.as_ref().and_then(|e| e.exit).map_or_else(dash, |exit| exit.to_string()),
        format!("{}/{}", claim.holder.host, claim.holder.pid),
        claim.token.to_string(),
        attempt.to_string(),
        steps.len().to_string(),
    ]
}

/// For `--json`.
pub fn object(row: &ItemRow) -> Value {
    let Entry { subject, job, ending, claim, attempt, failures, steps, .. } = &row.entry;
    let (kind, item) = match subject {
        Subject::Key(key) => ("key", key.as_str()),
        Subject::Slot { id, .. } => ("slot", id.as_str()),
        Subject::Latest(job) => ("cooldown", job.as_str()),
    };
    json!({
        "v": 1, "kind": kind, "item": item, "job": job.as_str(), "outcome": row.state.word(),
        "reason": row.reason(), "time": row.when(),
        "exit": ending.as_ref().and_then(|e| e.exit),
        "duration_s": ending.as_ref().map(|e| Duration::from_millis(e.took_ms).as_secs_f64()),
        "said": ending.as_ref().map(Ending::told).filter(|said| !said.is_empty()),
        "lease": claim.lease.as_str(), "token": claim.token.get(), "run_id": claim.holder.run,
        "holder": format!("{}/{}", claim.holder.host, claim.holder.pid),
        "attempt": attempt, "failures": failures,
        "steps": steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(),
    })
}
