//! `leasehold stats [JOB]`: what the run log adds up to, and which TTL fits.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::run_log::LogEvent;
use leasehold::core::run_stats::{RUNS_FOR_ADVICE, RunStats, RunTimes, Tally, TtlAdvice, TtlFit};
use leasehold::core::session::lease_key;
use leasehold::run_log::{LogEntry, Scope, Window, each};
use leasehold::stores::Store;
use leasehold_run::{job_records, jobs};
use pollster::block_on;
use serde_json::{Value, json};

use super::{OpenedStore, daemon, history, store_failed};
use crate::args::{Everywhere, StatsArgs};
use crate::config::scope;
use crate::exit::{self, Failed};
use crate::messages::stats as say;
use crate::out::{self, Out};

/// So many records are asked for at a time.
pub const PAGE: usize = 1000;
/// The events of runs, in the order in which they are shown.
const RUNS: [LogEvent; 5] =
    [LogEvent::Ok, LogEvent::Failed, LogEvent::Lost, LogEvent::Killed, LogEvent::Unknown];

/// Each job with its sums, and how many records a later version wrote.
pub struct Sums {
    pub jobs: BTreeMap<Name, RunStats>,
    pub newer: u64,
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &StatsArgs, out: &Out) -> Result<u8, Failed> {
    let prefix = args.name.as_deref().filter(|name| name.ends_with('/'));
    let only = args.name.as_deref().filter(|_| prefix.is_none()).map(super::name).transpose()?;
    let mut opened = super::open(flags, &[])?;
    let wanted = match (&only, prefix) {
        (Some(job), _) => Scope::Job(job),
        (None, Some(prefix)) => Scope::Prefix(prefix),
        (None, None) => Scope::All,
    };
    let sums = added_up(opened.store.as_mut(), wanted, Window::last(args.since), |_| true);
    let sums = sums.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let ttls = ttls_in(&daemon::path(flags));
    if sums.newer > 0 {
        out.note(&say::newer(sums.newer));
    }
    let since = HumanDuration(args.since);
    if let Some(job) = &only {
        let ttl = match ttls.get(job) {
            Some(ttl) => Some(*ttl),
            None => held_ttl(&mut opened, job)?,
        };
        return match sums.jobs.get(job) {
            Some(stats) => {
                one(job, stats, ttl, args.since, out);
                Ok(exit::OK)
            }
            None if ttls.contains_key(job) || is_known(&mut opened, job)? => {
                let shown = &opened.chosen;
                if !out.json {
                    out::line(&say::nothing_of(job, since, &shown.shown, scope(shown)));
                }
                Ok(exit::OK)
            }
            None => Err(history::unheard_of(&mut opened, job.as_str())?),
        };
    }
    if out.json {
        sums.jobs
            .iter()
            .all(|(job, stats)| out.object(&object(job, stats, ttls.get(job).copied(), args.since)));
    } else if sums.jobs.is_empty() {
        out::line(&say::nothing(since, &opened.chosen.shown, scope(&opened.chosen)));
    } else {
        table(&sums.jobs);
    }
    Ok(exit::OK)
}

/// The TTLs that jobs of this leasehold.toml name.
pub fn ttls_in(file: &Path) -> BTreeMap<Name, Duration> {
    let jobs = jobs::here(file).unwrap_or_default().into_iter();
    jobs.filter_map(|job| Some((job.name, job.wishes.ttl?))).collect()
}

/// Adds up the records of a window. `seen` gets each of them, and says whether it is counted; if not, older ones are not read.
pub fn added_up(
    store: &mut dyn Store,
    wanted: Scope<'_>,
    window: Window,
    mut seen: impl FnMut(&LogEntry) -> bool,
) -> Result<Sums, leasehold::stores::Failure> {
    let (mut tallies, mut newer): (BTreeMap<Name, Tally>, u64) = (BTreeMap::new(), 0);
    // Their bodies say how many slots were dropped, and the lists of some stores have none.
    let mut unread = Vec::new();
    each(store, wanted, window, PAGE, |entry| {
        if !seen(&entry) {
            return false;
        }
        newer += u64::from(entry.newer);
        let is_dropped = entry.line.event() == Some(LogEvent::Dropped);
        if is_dropped && entry.record.is_none() && !entry.newer {
            unread.push(entry);
            return true;
        }
        count(&mut tallies, &entry);
        true
    })?;
    for mut entry in unread {
        entry.fill(store)?;
        count(&mut tallies, &entry);
    }
    let jobs = tallies.into_iter().map(|(job, tally)| (job, tally.sums())).collect();
    Ok(Sums { jobs, newer })
}

fn count(tallies: &mut BTreeMap<Name, Tally>, entry: &LogEntry) {
    let slots = entry.record.as_ref().and_then(|record| record.count);
    tallies.entry(entry.line.job.clone()).or_default().add(&entry.line, slots);
}

/// The TTL of the hold of a lease, if it is held.
fn held_ttl(opened: &mut OpenedStore, lease: &Name) -> Result<Option<Duration>, Failed> {
    let stored = block_on(opened.store.read(&lease_key(lease)));
    let stored = stored.map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let record = stored.and_then(|stored| LeaseRecord::decode(lease, &stored.body).ok());
    Ok(record.and_then(|record| record.hold).map(|hold| hold.ttl))
}

/// Whether there is a lease or a job of this name.
pub fn is_known(opened: &mut OpenedStore, name: &Name) -> Result<bool, Failed> {
    let lease = block_on(opened.store.read(&lease_key(name)));
    let known = lease.and_then(|lease| match lease {
        Some(_) => Ok(true),
        None => job_records::read(opened.store.as_mut(), name).map(|job_record| job_record.is_some()),
    });
    known.map_err(|failure| store_failed(&failure, &opened.chosen))
}

fn one(job: &Name, stats: &RunStats, ttl: Option<Duration>, since: Duration, out: &Out) {
    if out.json {
        out.object(&object(job, stats, ttl, since));
        return;
    }
    let mut lines = vec![say::head(job, HumanDuration(since)), say::runs(stats.runs(), outcomes(stats))];
    if let (count @ 1.., Some(percent)) = (stats.count(LogEvent::Skipped), skip_rate(stats)) {
        lines.push(say::skipped(count, stats.runs() + count, percent, reasons(stats)));
    }
    if let count @ 1.. = stats.count(LogEvent::Refused) {
        lines.push(say::refused(counted(count, say::one_write, say::writes), job));
    }
    if let count @ 1.. = stats.dropped_slots {
        lines.push(say::dropped(counted(count, say::one_slot, say::slots), job));
    }
    let ok_runs = counted(stats.ok.count as u64, say::one_ok_run, say::ok_runs);
    let leases = counted(stats.by_hand.count as u64, say::one_lease, say::leases);
    let took = (&stats.ok, ok_runs, say::took as fn(_, _, _, _) -> String);
    for (times, count, line) in [took, (&stats.by_hand, leases, say::held)] {
        if let RunTimes { p50: Some(p50), p95: Some(p95), worst: Some(worst), .. } = times {
            lines.push(line(HumanDuration(*p50), HumanDuration(*p95), HumanDuration(*worst), count));
        }
    }
    lines.extend(stats.interval.map(|interval| say::every(HumanDuration(interval))));
    lines.push(say::ttl(sentence(job, stats, &stats.advice(ttl))));
    lines.iter().all(|line| out::line(line));
}

/// "1 write", "2 writes"
fn counted(count: u64, one: fn() -> String, several: fn(u64) -> String) -> String {
    if count == 1 { one() } else { several(count) }
}

/// ": 203 ok, 4 failed"
fn outcomes(stats: &RunStats) -> String {
    let counts = RUNS.into_iter().map(|event| (event.word(), stats.count(event)));
    listed(counts)
}

/// ": 4 overlap, 1 done"
fn reasons(stats: &RunStats) -> String {
    listed(stats.skips.iter().map(|(why, count)| (why.as_str(), *count)))
}

fn listed<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let counts: Vec<String> =
        counts.filter(|(_, count)| *count > 0).map(|(word, count)| format!("{count} {word}")).collect();
    if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) }
}

/// The part of the runs that was skipped, in percent.
pub fn skip_rate(stats: &RunStats) -> Option<String> {
    stats.skipped_permille().map(|permille| format!("{}.{}", permille / 10, permille % 10))
}

/// The same for `--json`.
pub fn skip_percent(stats: &RunStats) -> Option<f64> {
    stats.skipped_permille().map(|permille| Duration::from_millis(permille * 100).as_secs_f64())
}

/// The advice and its reason.
pub fn sentence(job: &Name, stats: &RunStats, advice: &TtlAdvice) -> String {
    let time = HumanDuration;
    match *advice {
        TtlAdvice::TooFew { healthy } => say::too_few(healthy, RUNS_FOR_ADVICE, job),
        TtlAdvice::Renewed { ttl, fit, survives, lost } => match fit {
            TtlFit::Right => say::right(time(ttl), time(survives)),
            TtlFit::Long => say::long(time(ttl), time(survives)),
            TtlFit::Short => say::short(time(ttl), lost, stats.runs(), time(survives)),
        },
        TtlAdvice::ByHand { worst, least, most, ttl, fit } => match ttl.zip(fit) {
            None => say::by_hand(time(least), time(most), time(worst)),
            Some((ttl, fit)) => say::by_hand_now(time(ttl), fit.word(), time(least), time(most), time(worst)),
        },
    }
}

/// The advice, for `--json`.
pub fn told(advice: &TtlAdvice) -> Value {
    match *advice {
        TtlAdvice::TooFew { healthy } => json!({"kind": "too_few", "runs": healthy}),
        TtlAdvice::Renewed { ttl, fit, survives, .. } => json!({
            "kind": "renewed", "fit": fit.word(), "ttl_s": ttl.as_secs_f64(),
            "blocks_s": ttl.as_secs_f64(), "survives_s": survives.as_secs_f64(),
        }),
        TtlAdvice::ByHand { least, most, ttl, fit, .. } => json!({
            "kind": "by_hand", "fit": fit.map(TtlFit::word), "ttl_s": ttl.map(|ttl| ttl.as_secs_f64()),
            "from_s": least.as_secs_f64(), "to_s": most.as_secs_f64(),
        }),
    }
}

/// For `--json`.
fn object(job: &Name, stats: &RunStats, ttl: Option<Duration>, since: Duration) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let advice = stats.advice(ttl);
    let skipped = stats.count(LogEvent::Skipped);
    let mut object = json!({
        "v": 1, "job": job.as_str(), "since_s": since.as_secs_f64(), "runs": stats.runs(),
        "skipped": skipped, "skips": stats.skips,
        "skip_percent": skip_percent(stats),
        "refused": stats.count(LogEvent::Refused), "dropped": stats.dropped_slots,
        "released": stats.count(LogEvent::Released), "observed": stats.count(LogEvent::Observed),
        "unsealed": stats.count(LogEvent::Unsealed),
        "p50_s": seconds(stats.ok.p50), "p95_s": seconds(stats.ok.p95), "worst_s": seconds(stats.ok.worst),
        "held_worst_s": seconds(stats.by_hand.worst), "interval_s": seconds(stats.interval),
        "ttl": told(&advice), "advice": sentence(job, stats, &advice),
    });
    for event in RUNS {
        object[event.word()] = stats.count(event).into();
    }
    object
}

fn table(jobs: &BTreeMap<Name, RunStats>) {
    let head = [
        "JOB", "RUNS", "OK", "FAILED", "LOST", "KILLED", "UNKNOWN", "SKIPPED", "REFUSED", "P50", "P95",
        "WORST", "EVERY",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let time =
        |time: Option<Duration>| time.map_or_else(|| "-".into(), |time| HumanDuration(time).to_string());
    rows.extend(jobs.iter().map(|(job, stats)| {
        let mut row = vec![job.to_string(), stats.runs().to_string()];
        row.extend(RUNS.into_iter().map(|event| stats.count(event).to_string()));
        let skipped = stats.count(LogEvent::Skipped);
        row.push(match skip_rate(stats).filter(|_| skipped > 0) {
            None => skipped.to_string(),
            Some(percent) => format!("{skipped} ({percent}%)"),
        });
        row.push(stats.count(LogEvent::Refused).to_string());
        row.extend([stats.ok.p50, stats.ok.p95, stats.ok.worst, stats.interval].map(time));
        row
    }));
    out::table(&rows);
}
