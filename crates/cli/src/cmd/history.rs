//! `leasehold history`: what the run log says, the newest first.

mod asked;
mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::ItemState;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{LogEntry, Retention, Scope, Window, in_order, newest};
use leasehold::stores::Failure;
use leasehold::text::did_you_mean;
use leasehold_run::jobs::{self, Job};
use serde_json::json;

pub use self::asked::{About, Asked, slot, state, unheard_of};
use self::line::COLUMNS;
pub use self::line::{ItemRow, Line};
use super::{OpenedStore, daemon, store_failed};
use crate::args::{Everywhere, HistoryArgs};
use crate::config::scope;
use crate::exit::{self, Failed};
use crate::messages::history as say;
use crate::out::{self, Out};
use crate::timeline;

/// How many lines people are shown.
const LINES: usize = 50;
/// So many of the others are counted.
const COUNTED: usize = 1000;
/// The most lines of one table.
const TABLE: usize = 1000;
/// How far the clocks of two machines may be apart.
const CLOCKS: Duration = Duration::from_secs(86_400);
/// Without a word in the run log: the states of items that are open.
const OPEN: [ItemState; 2] = [ItemState::Started, ItemState::Planned];

/// The outcomes that `--only` takes, in the order in which they are counted.
fn words() -> Vec<&'static str> {
    let events = LogEvent::ALL.into_iter().map(LogEvent::word);
    events.chain(OPEN.into_iter().map(ItemState::word)).collect()
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &HistoryArgs, out: &Out) -> Result<u8, Failed> {
    if args.pictures.any() {
        return timeline::run(flags, args, out);
    }
    let words = words();
    for word in &args.only {
        if !words.contains(&word.as_str()) {
            let meant = did_you_mean(word, &words).map(say::meant).unwrap_or_default();
            return Err(say::bad_outcome(format!("{word:?}"), meant, words.join(", ")));
        }
    }
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_default();
    let mut opened = super::open(flags, &[])?;
    let name = args.name.as_deref();
    let asked =
        Asked::of(opened.store.as_mut(), name, &jobs).map_err(|f| store_failed(&f, &opened.chosen))?;
    for (key, why) in &asked.unreadable {
        out.warn(&say::unreadable(key, why));
    }
    let mut listing = Listing::new(args, out, &asked);
    let read = listing.read(&mut opened);
    read.map_err(|f| store_failed(&f, &opened.chosen))?;
    if let Some(name) = name.filter(|_| listing.is_empty()) {
        must_be_known(&mut opened, name, &asked, &jobs)?;
    }
    listing.end(&opened, opened.log.retention());
    Ok(exit::OK)
}

/// Fails if nothing has this name: no record, and none of these jobs.
pub fn must_be_known(
    opened: &mut OpenedStore,
    name: &str,
    asked: &Asked,
    jobs: &[Job],
) -> Result<(), Failed> {
    if asked.is_known() || is_here(jobs, Some(name)) {
        return Ok(());
    }
    let (scopes, store) = (asked.scopes(), opened.store.as_mut());
    let any = scopes.into_iter().map(|scope| {
        newest(store, scope, Window::all(), 1, |entry| asked.is_about(entry))
            .map(|(some, _)| !some.is_empty())
    });
    let any = any.collect::<Result<Vec<bool>, Failure>>();
    if any.map_err(|f| store_failed(&f, &opened.chosen))?.contains(&true) {
        return Ok(());
    }
    Err(unheard_of(opened, name)?)
}

/// Whether one of these jobs has this name, or needs this lease.
fn is_here(jobs: &[Job], name: Option<&str>) -> bool {
    jobs.iter().any(|job| {
        Some(job.name.as_str()) == name || job.leases.iter().any(|lease| Some(lease.as_str()) == name)
    })
}

/// Whether the leasehold.toml here has a job of this name, or one that needs this lease.
pub fn is_known_here(flags: &Everywhere, name: &str) -> bool {
    is_here(&jobs::here(&daemon::path(flags)).unwrap_or_default(), Some(name))
}

/// The time that was asked about.
pub fn window(args: &HistoryArgs) -> Window {
    let all = Window::all();
    Window { since: args.since.unwrap_or(all.since), until: args.until.unwrap_or(all.until) }
}

/// What is listed, and how much of it has been.
struct Listing<'a> {
    args: &'a HistoryArgs,
    out: &'a Out,
    asked: &'a Asked,
    window: Window,
    limit: Option<usize>,
    /// Lines that are not in the run log, the oldest first.
    others: Vec<Line>,
    /// Lines of a table that are not printed yet.
    table: Vec<Line>,
    headed: bool,
    shown: usize,
    rest: usize,
    counts: BTreeMap<String, u64>,
    observed: Observed,
    /// Nobody reads any more.
    closed: bool,
}

/// What `run --observe` saw.
#[derive(Default)]
struct Observed {
    runs: u64,
    overlapped: u64,
    overwrote: u64,
}

impl Observed {
    fn add(&mut self, entry: &LogEntry) {
        let reason = entry.line.reason.as_deref().unwrap_or_default();
        let overwrote = reason == OVERWROTE;
        self.runs += 1;
        self.overwrote += u64::from(overwrote);
        // What was overwritten was written beside this run.
        self.overlapped += u64::from(overwrote || reason == OVERLAPPED);
    }
}

/// The reasons of observed runs.
pub const OVERLAPPED: &str = "overlapped";
/// Of one that left older work where newer had been.
pub const OVERWROTE: &str = "overwrote-newer";

impl<'a> Listing<'a> {
    fn new(args: &'a HistoryArgs, out: &'a Out, asked: &'a Asked) -> Self {
        Self {
            args,
            out,
            asked,
            window: window(args),
            limit: args.limit.map(|limit| limit as usize).or((!out.json).then_some(LINES)),
            others: Vec::new(),
            table: Vec::new(),
            headed: false,
            shown: 0,
            rest: 0,
            counts: BTreeMap::new(),
            observed: Observed::default(),
            closed: false,
        }
    }

    fn read(&mut self, opened: &mut OpenedStore) -> Result<(), Failure> {
        let asked = self.asked;
        self.others = self.unlogged(opened)?;
        let first = self.limit.map_or(COUNTED, |limit| limit.saturating_add(COUNTED));
        let (window, scopes) = (self.window, asked.scopes());
        let (only, observed) = (&self.args.only, self.args.observed);
        let wanted = |entry: &LogEntry| {
            let word = &entry.line.word;
            let seen = !observed || entry.line.event() == Some(LogEvent::Observed);
            seen && asked.is_about(entry)
                && (only.is_empty() || only.iter().any(|only| is_called(entry, word, only)))
        };
        in_order(opened.store.as_mut(), &scopes, window, first, wanted, |store, mut entry| {
            if asked.needs_body(&entry) {
                entry.fill(store)?;
                if !asked.is_about(&entry) {
                    return Ok(true);
                }
            }
            if observed {
                self.observed.add(&entry);
            }
            if self.is_full() {
                self.rest += 1;
                return Ok(observed || self.rest < COUNTED);
            }
            if self.out.json || is_told_by_body(&entry) {
                entry.fill(store)?;
            }
            self.add(Line::of(entry, &asked.rows));
            Ok(!self.closed)
        })?;
        while let Some(line) = self.others.pop() {
            self.put(line);
        }
        self.print();
        Ok(())
    }

    /// The items that are asked about and are not in the run log, and the slots of which only their job's record tells.
    fn unlogged(&self, opened: &mut OpenedStore) -> Result<Vec<Line>, Failure> {
        let (asked, args) = (self.asked, self.args);
        if args.observed || matches!(asked.about, About::Everything | About::Prefix(_)) {
            return Ok(Vec::new());
        }
        let mut ranges = asked.job_record.as_ref().map(|record| record.dropped.clone()).unwrap_or_default();
        let mut rows: Vec<&ItemRow> = asked.rows.iter().collect();
        rows.retain(|row| self.is_wanted(&Line::of_item(row)));
        let job = asked.job_record.as_ref().map(|record| &record.job);
        ranges.retain(|range| job.is_some_and(|job| self.is_wanted(&Line::of_range(job, range))));
        // The log has no record of them from before they began.
        let began =
            rows.iter().map(|row| row.began()).chain(ranges.iter().map(|range| line::seconds(range.last)));
        let Some(since) = began.min().map(|began| began.saturating_sub(CLOCKS)) else {
            return Ok(Vec::new());
        };
        let jobs: BTreeSet<&Name> = rows.iter().map(|row| &row.entry.job).chain(job).collect();
        let scopes: Vec<Scope<'_>> = jobs.into_iter().map(Scope::Job).collect();
        let (window, mut seen) = (Window { since, ..Window::all() }, 0);
        in_order(
            opened.store.as_mut(),
            &scopes,
            window,
            COUNTED,
            |_| true,
            |_, entry| {
                seen += 1;
                let line = Line::of(entry, &[]);
                rows.retain(|row| !line.tells_of(row));
                ranges.retain(|range| !line.spans(range));
                Ok(!(rows.is_empty() && ranges.is_empty()) && seen < COUNTED)
            },
        )?;
        let rows = rows.into_iter().map(Line::of_item);
        let ranges =
            job.into_iter().flat_map(|job| ranges.iter().map(move |range| Line::of_range(job, range)));
        let mut lines: Vec<Line> = rows.chain(ranges).collect();
        lines.sort_by_key(|line| line.at);
        Ok(lines)
    }

    fn is_wanted(&self, line: &Line) -> bool {
        let only = &self.args.only;
        let in_time = line.at >= self.window.since && line.at <= self.window.until;
        in_time && (only.is_empty() || only.iter().any(|word| line.is_called(word)))
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.shown + self.table.len() >= limit)
    }

    fn is_empty(&self) -> bool {
        self.shown == 0
    }

    /// Adds a line, after those that are newer.
    fn add(&mut self, line: Line) {
        while self.others.last().is_some_and(|other| other.at >= line.at) {
            let Some(other) = self.others.pop() else { break };
            self.put(other);
        }
        self.put(line);
    }

    fn put(&mut self, line: Line) {
        if self.is_full() {
            self.rest += 1;
            return;
        }
        let count = self.counts.entry(line.word.clone()).or_default();
        *count = count.saturating_add(line.counts());
        if self.out.json {
            self.shown += 1;
            self.closed |= !self.out.object(&line.object());
            return;
        }
        self.table.push(line);
        if self.table.len() >= TABLE {
            self.print();
        }
    }

    fn print(&mut self) {
        let lines = std::mem::take(&mut self.table);
        if lines.is_empty() {
            return;
        }
        self.shown += lines.len();
        let mut rows = vec![COLUMNS.map(String::from)];
        rows.extend(lines.iter().map(Line::cells));
        // A column in which nothing is said is left out. Most jobs have the name of their lease.
        let says = |column: usize| match COLUMNS[column] {
            "LEASE" => lines.iter().any(Line::has_another_lease),
            "ATTEMPT" | "STEPS" => rows[1..].iter().any(|row| row[column] != "-"),
            "NOTE" => rows[1..].iter().any(|row| !row[column].is_empty()),
            _ => true,
        };
        let columns: Vec<usize> = (0..COLUMNS.len()).filter(|column| says(*column)).collect();
        let mut table: Vec<Vec<String>> =
            rows.iter().map(|row| columns.iter().map(|column| row[*column].clone()).collect()).collect();
        if std::mem::replace(&mut self.headed, true) {
            table.remove(0);
        }
        self.closed |= !out::table(&table);
    }

    /// The last lines: the sums, and what is not shown.
    fn end(&self, opened: &OpenedStore, retention: Retention) {
        if self.out.json {
            if self.args.observed {
                let Observed { runs, overlapped, overwrote } = self.observed;
                self.out.object(&json!({
                    "v": 1, "kind": "observed-sum", "runs": runs, "overlapped": overlapped, "overwrote_newer": overwrote,
                }));
            }
            return;
        }
        let kept = retention.age;
        if self.is_empty() {
            let chosen = &opened.chosen;
            let all = matches!(self.asked.about, About::Everything) && self.args.is_unfiltered();
            let nothing = if all { say::nothing } else { say::nothing_like_that };
            out::line(&nothing(&chosen.shown, scope(chosen)));
        } else if self.args.observed {
            let Observed { runs, overlapped, overwrote } = self.observed;
            out::line(&say::observed(runs, overlapped, overwrote));
        } else {
            out::line(&self.counted());
        }
        let kept_for = || kept.map_or_else(say::kept_for_good, |age| say::kept_for(HumanDuration(age)));
        if self.rest > 0 {
            let more = if self.rest >= COUNTED { say::at_least(COUNTED) } else { self.rest.to_string() };
            out::line(&say::rest(more, self.shown.saturating_mul(10), kept_for()));
        } else if self.args.since.is_some_and(|since| kept.is_some_and(|age| ago(since) > age)) {
            out::line(&kept_for());
        }
    }

    /// "12 ok, 3 skipped, 1 failed, 525597 dropped"
    fn counted(&self) -> String {
        let order = words();
        let place = |word: &str| order.iter().position(|known| *known == word).unwrap_or(order.len());
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_by_key(|(word, _)| place(word));
        counts.into_iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
    }
}

/// Whether `--only` with this word shows a record.
fn is_called(entry: &LogEntry, word: &str, only: &str) -> bool {
    word == only || entry.line.event() == Some(LogEvent::Done) && only == ItemState::Ok.word()
}

/// Whether the key of a record says too little for a line.
fn is_told_by_body(entry: &LogEntry) -> bool {
    matches!(entry.line.event(), Some(LogEvent::Refused | LogEvent::Dropped))
}

/// How long ago a time is.
fn ago(since: Duration) -> Duration {
    clock::wall().saturating_sub(since)
}
