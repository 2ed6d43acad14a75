//! `leasehold metrics`: the run log as counters, in the text format of OpenMetrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use leasehold::backends::shown;
use leasehold::clock;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::run_log::LogEvent;
use leasehold::core::session::LEASE_PREFIX;
use leasehold::run_log::{LogEntry, Scope, Window, each};
use leasehold::stores::{Failure, Store, each_stored};
use pollster::block_on;

use super::{stats, store_failed};
use crate::args::{Everywhere, MetricsArgs};
use crate::config;
use crate::exit::{self, Failed};
use crate::messages::metrics as say;
use crate::out::{self, Out};

/// The most jobs, leases and targets that have a label of their own.
const LABELS_MOST: usize = 500;
/// The label of all others.
const OTHER: &str = "other";
/// The label of keys that `once` ran without a `--job`: each is a job of its own.
const KEYS: &str = "*.once";
/// The upper bounds of the run times, in seconds.
const BOUNDS: [u64; 10] = [1, 5, 15, 60, 300, 900, 1_800, 3_600, 7_200, 21_600];
/// Back to here if records are kept for ever.
const ALL: Duration = Duration::from_secs(400 * 86_400);

/// Prints them, or replaces a file.
pub fn run(flags: &Everywhere, args: &MetricsArgs, _out: &Out) -> Result<u8, Failed> {
    let mut opened = super::open(flags, &[])?;
    let window = Window::last(reach(flags));
    let text =
        text(opened.store.as_mut(), window).map_err(|failure| store_failed(&failure, &opened.chosen))?;
    match &args.textfile {
        None => {
            out::written(io::stdout().lock().write_all(text.as_bytes()));
        }
        Some(file) => {
            replace(file, &text).map_err(|e| say::not_written(file.display(), e))?;
        }
    }
    Ok(exit::OK)
}

/// How far back the run log is read: as long as it is kept.
pub fn reach(flags: &Everywhere) -> Duration {
    config::wishes(flags).retention.age.unwrap_or(ALL)
}

/// Whoever reads the file meanwhile gets the old text or the new one.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // node_exporter reads what ends in .prom only.
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let written = File::create(&beside).and_then(|mut new| {
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&beside, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// What is counted of the run log.
#[derive(Default)]
struct Counts {
    /// How many records each job has.
    jobs: BTreeMap<String, u64>,
    runs: BTreeMap<(String, LogEvent), u64>,
    skips: BTreeMap<(String, String), u64>,
    dropped: BTreeMap<String, u64>,
    refused: BTreeMap<(String, String), u64>,
    times: BTreeMap<String, Times>,
}

/// The run times of one job.
#[derive(Clone, Copy, Default)]
struct Times {
    /// How many are within each bound; the last are all.
    within: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Counts {
    fn add(&mut self, entry: &LogEntry) {
        let (line, record) = (&entry.line, entry.record.as_ref());
        let Some(event) = line.event() else { return };
        let job = match line.job.as_str().ends_with(".once") {
            true => KEYS.to_owned(),
            false => line.job.to_string(),
        };
        *self.jobs.entry(job.clone()).or_default() += 1;
        let why = || line.reason.clone().unwrap_or_default();
        match event {
            LogEvent::Skipped => *self.skips.entry((job, why())).or_default() += 1,
            LogEvent::Dropped => {
                *self.dropped.entry(job).or_default() += record.and_then(|record| record.count).unwrap_or(1);
            }
            LogEvent::Refused => {
                let target = record.and_then(|record| record.target.as_ref());
                let target = target.map_or_else(|| OTHER.into(), |refused| shown(&refused.target));
                *self.refused.entry((target, why())).or_default() += 1;
            }
            _ if event.is_run() => {
                *self.runs.entry((job.clone(), event)).or_default() += 1;
                if let Some(took) = line.took {
                    self.times.entry(job).or_default().add(took);
                }
            }
            _ => {}
        }
    }
}

impl Times {
    fn add(&mut self, took: Duration) {
        let bounds = BOUNDS.iter().map(|bound| took <= Duration::from_secs(*bound)).chain([true]);
        for (count, within) in self.within.iter_mut().zip(bounds) {
            *count += u64::from(within);
        }
        self.sum += took;
    }

    fn join(&mut self, other: &Self) {
        for (count, more) in self.within.iter_mut().zip(other.within) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

/// The whole text.
pub fn text(store: &mut dyn Store, window: Window) -> Result<String, Failure> {
    let (mut counts, mut unread) = (Counts::default(), Vec::new());
    each(store, Scope::All, window, stats::PAGE, |entry| {
        let body = matches!(entry.line.event(), Some(LogEvent::Dropped | LogEvent::Refused));
        match body && entry.record.is_none() && !entry.newer {
            true => unread.push(entry),
            false => counts.add(&entry),
        }
        true
    })?;
    for mut entry in unread {
        entry.fill(store)?;
        counts.add(&entry);
    }
    let began = clock::boot_time();
    let mut tokens = BTreeMap::new();
    each_stored(store, LEASE_PREFIX, "", |key, stored| {
        let lease = key.strip_prefix(LEASE_PREFIX).and_then(|lease| Name::new(lease).ok());
        if let Some(lease) = lease.filter(|lease| !lease.as_str().ends_with(".once"))
            && let Ok(record) = LeaseRecord::decode(&lease, &stored.body)
        {
            tokens.insert(lease, record.token.get());
        }
        tokens.len() < LABELS_MOST
    })?;
    let list = clock::boot_time().since(began);
    let began = clock::boot_time();
    // Any key will do.
    block_on(store.read(&format!("{LEASE_PREFIX}none")))?;
    Ok(written(&counts, &tokens, &[("list", list), ("read", clock::boot_time().since(began))]))
}

/// Which jobs have a label of their own: those with the most records.
fn labelled(jobs: &BTreeMap<String, u64>) -> BTreeSet<&str> {
    let mut all: Vec<(&str, u64)> = jobs.iter().map(|(job, count)| (job.as_str(), *count)).collect();
    all.sort_by_key(|(job, count)| (std::cmp::Reverse(*count), *job));
    all.into_iter().take(LABELS_MOST).map(|(job, _)| job).collect()
}

fn written(counts: &Counts, tokens: &BTreeMap<Name, u64>, calls: &[(&str, Duration)]) -> String {
    let labelled = labelled(&counts.jobs);
    let label = |job: &String| if labelled.contains(job.as_str()) { job.clone() } else { OTHER.to_owned() };
    let mut page = Page::default();
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for ((job, event), count) in &counts.runs {
        *sums.entry((label(job), event.word().into())).or_default() += count;
    }
    page.counter("leasehold_runs", "Runs that executed their command.", ["job", "outcome"], &sums);
    sums.clear();
    for ((job, why), count) in &counts.skips {
        *sums.entry((label(job), why.clone())).or_default() += count;
    }
    page.counter(
        "leasehold_skips",
        "Runs that were skipped. A skip is no failure.",
        ["job", "reason"],
        &sums,
    );
    let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
    for (job, count) in &counts.dropped {
        *dropped.entry(label(job)).or_default() += count;
    }
    page.head("leasehold_slots_dropped", "counter", "Slots that were not run.");
    for (job, count) in &dropped {
        page.sample("leasehold_slots_dropped_total", &[("job", job)], count);
    }
    sums.clear();
    for (at, ((target, why), count)) in counts.refused.iter().enumerate() {
        let target = if at < LABELS_MOST { target.as_str() } else { OTHER };
        *sums.entry((target.to_owned(), why.clone())).or_default() += count;
    }
    let about = "Writes that a target refused, by reason.";
    page.counter("leasehold_writes_refused", about, ["resource", "reason"], &sums);
    page.head("leasehold_lease_token", "gauge", "The token of the holder of a lease, or of its last one.");
    for (lease, token) in tokens {
        page.sample("leasehold_lease_token", &[("lease", lease.as_str())], token);
    }
    let mut times: BTreeMap<String, Times> = BTreeMap::new();
    for (job, of_job) in &counts.times {
        times.entry(label(job)).or_default().join(of_job);
    }
    page.times(&times);
    let name = "leasehold_store_op_duration_seconds";
    page.head(name, "summary", "How long calls of the command that wrote this took.");
    for (op, took) in calls {
        page.sample(&format!("{name}_count"), &[("op", op)], 1);
        page.sample(&format!("{name}_sum"), &[("op", op)], took.as_secs_f64());
    }
    page.0 + "# EOF\n"
}

/// Text in the format of OpenMetrics.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, about: &str) {
        // In memory: it cannot fail.
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if name.ends_with("_seconds") {
            let _ = writeln!(self.0, "# UNIT {name} seconds");
        }
        let _ = writeln!(self.0, "# HELP {name} {about}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn counter(
        &mut self,
        name: &str,
        about: &str,
        labels: [&str; 2],
        sums: &BTreeMap<(String, String), u64>,
    ) {
        self.head(name, "counter", about);
        for ((first, second), count) in sums {
            self.sample(&format!("{name}_total"), &[(labels[0], first), (labels[1], second)], count);
        }
    }

    fn times(&mut self, times: &BTreeMap<String, Times>) {
        let name = "leasehold_run_duration_seconds";
        self.head(name, "histogram", "How long runs took, with any outcome.");
        for (job, times) in times {
            let bounds = BOUNDS.iter().map(|bound| format!("{bound}.0")).chain(["+Inf".into()]);
            for (bound, count) in bounds.zip(times.within) {
                self.sample(&format!("{name}_bucket"), &[("job", job), ("le", &bound)], count);
            }
            let all = times.within.last().copied().unwrap_or(0);
            self.sample(&format!("{name}_count"), &[("job", job)], all);
            self.sample(&format!("{name}_sum"), &[("job", job)], times.sum.as_secs_f64());
        }
    }
}

/// A value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_bounded() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
        let mut counts = Counts::default();
        for n in 0..LABELS_MOST + 3 {
            let job = format!("job-{n}");
            counts.jobs.insert(job.clone(), 2);
            counts.runs.insert((job, LogEvent::Ok), 2);
        }
        let text = written(&counts, &BTreeMap::new(), &[]);
        let samples: Vec<&str> =
            text.lines().filter(|line| line.starts_with("leasehold_runs_total")).collect();
        assert_eq!(samples.len(), LABELS_MOST + 1);
        assert!(samples.contains(&"leasehold_runs_total{job=\"other\",outcome=\"ok\"} 6"), "{text}");
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn run_times_are_counted_within_each_bound() {
        let mut times = Times::default();
        times.add(Duration::from_secs(5));
        times.add(Duration::from_secs(100_000));
        assert_eq!((times.within[0], times.within[1], times.within[9], times.within[10]), (0, 1, 1, 2));
    }
}
