//! Reading the run log, the newest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use leasehold_core::name::Name;
use leasehold_core::run_log::{
    BadLog, LOG_PREFIX, LogLine, LogRecord, day_in, day_of, not_after, older_than,
};
use pollster::block_on;

use super::{PAGE, prefix_of};
use crate::clock;
use crate::stores::{Failure, Store};

/// Whose records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All.
    All,
    /// Those of one job.
    Job(&'a Name),
    /// Those of all jobs whose names start with this.
    Prefix(&'a str),
}

/// A stretch of time, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The oldest time in it.
    pub since: Duration,
    /// The newest.
    pub until: Duration,
}

impl Window {
    /// From so long ago until now, or a little later: the clocks of other machines may be ahead.
    pub fn last(time: Duration) -> Self {
        let now = clock::wall();
        Self { since: now.saturating_sub(time), until: now + AHEAD }
    }

    /// All time.
    pub fn all() -> Self {
        Self { since: Duration::ZERO, until: LAST }
    }
}

/// The last time that a key can say.
const LAST: Duration = Duration::from_secs(99_999 * 86_400);
/// How far the clocks of other machines may be ahead.
const AHEAD: Duration = Duration::from_secs(600);

/// One record, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// What its key says.
    pub line: LogLine,
    /// What it says. None if the list of this store has no bodies, or the body cannot be read.
    pub record: Option<LogRecord>,
    /// The key.
    pub key: String,
    /// A later version wrote the body.
    pub newer: bool,
}

impl LogEntry {
    /// Reads the body, if the list had none. It may be gone by now.
    pub fn fill(&mut self, store: &mut dyn Store) -> Result<(), Failure> {
        if self.record.is_none()
            && !self.newer
            && let Some(stored) = block_on(store.read(&self.key))?
        {
            self.take(&stored.body);
        }
        Ok(())
    }

    fn take(&mut self, body: &[u8]) {
        match LogRecord::decode(body) {
            Ok(record) => self.record = Some(record),
            Err(bad) => self.newer = matches!(bad, BadLog::Newer(_)),
        }
    }
}

/// Visits the records of a window until `visit` gives false. Days come the newest first. The records of one job on one
/// day come the newest first, too; those of several jobs come job by job.
pub fn each(
    store: &mut dyn Store,
    scope: Scope<'_>,
    window: Window,
    page: usize,
    mut visit: impl FnMut(LogEntry) -> bool,
) -> Result<(), Failure> {
    let page = page.clamp(1, PAGE);
    let (oldest, mut day) = (day_of(window.since), day_of(window.until));
    // After so many days in a row without a record of these, the next day with any record is looked up.
    let mut patience = 1;
    let mut empty = usize::from(window.until > clock::wall() + DAYS_AHEAD);
    loop {
        if empty >= patience {
            let Some(next) = newest_day(store, day)? else { return Ok(()) };
            // Other jobs have records on every day: then it is not asked again so soon.
            patience = if next < day { 1 } else { patience * 2 + 1 };
            (day, empty) = (next, 0);
        }
        if day < oldest {
            return Ok(());
        }
        match each_of_day(store, scope, window, day, page, &mut visit)? {
            Seen::Enough => return Ok(()),
            Seen::Some => empty = 0,
            Seen::Nothing => empty += 1,
        }
        let Some(before) = day.checked_sub(1) else { return Ok(()) };
        day = before;
    }
}

/// A record this far ahead was written by a clock that is wrong.
const DAYS_AHEAD: Duration = Duration::from_secs(2 * 86_400);

/// What a day had.
enum Seen {
    Nothing,
    Some,
    /// The rest is not wanted.
    Enough,
}

/// The newest day with a record, not after this one.
fn newest_day(store: &mut dyn Store, day: u64) -> Result<Option<u64>, Failure> {
    let first = block_on(store.list(LOG_PREFIX, &older_than(day + 1), 1))?;
    Ok(first.first().and_then(|listed| day_in(&listed.key)))
}

fn each_of_day(
    store: &mut dyn Store,
    scope: Scope<'_>,
    window: Window,
    day: u64,
    page: usize,
    visit: &mut impl FnMut(LogEntry) -> bool,
) -> Result<Seen, Failure> {
    let prefix = prefix_of(&scope, day);
    let mut after = match scope {
        Scope::Job(job) if day == day_of(window.until) => not_after(window.until, job),
        _ => String::new(),
    };
    let mut seen = Seen::Nothing;
    loop {
        let listed = block_on(store.list(&prefix, &after, page))?;
        let full = listed.len() == page;
        for found in listed {
            seen = Seen::Some;
            after.clone_from(&found.key);
            let Some(line) = LogLine::read(&found.key) else { continue };
            // A job whose name is the prefix without its last slash.
            if matches!(scope, Scope::Prefix(prefix) if !line.job.as_str().starts_with(prefix)) {
                continue;
            }
            if line.at > window.until || line.at < window.since {
                // Of one job the others are older still.
                match scope {
                    Scope::Job(_) if line.at < window.since => return Ok(Seen::Enough),
                    _ => continue,
                }
            }
            let mut entry = LogEntry { line, record: None, key: found.key, newer: false };
            if let Some(stored) = found.stored {
                entry.take(&stored.body);
            }
            if !visit(entry) {
                return Ok(Seen::Enough);
            }
        }
        if !full {
            return Ok(seen);
        }
    }
}

/// Visits the records of a window that are `wanted`, the newest first, until `visit` gives false. At most some thousand
/// are in memory at once; `first`: how many are read at first.
pub fn in_order(
    store: &mut dyn Store,
    scopes: &[Scope<'_>],
    mut window: Window,
    first: usize,
    mut wanted: impl FnMut(&LogEntry) -> bool,
    mut visit: impl FnMut(&mut dyn Store, LogEntry) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut chunk = first.clamp(1, CHUNK);
    let mut last: Option<LogEntry> = None;
    loop {
        let (mut found, mut more) = (Vec::new(), false);
        for scope in scopes {
            let next = |entry: &LogEntry| {
                last.as_ref().is_none_or(|last| order(entry) < order(last)) && wanted(entry)
            };
            let (some, others) = newest(store, *scope, window, chunk, next)?;
            found.extend(some);
            more |= others;
        }
        found.sort_by(|a, b| order(b).cmp(&order(a)));
        more |= found.len() > chunk;
        found.truncate(chunk);
        let Some(oldest) = found.last() else { return Ok(()) };
        (window.until, last) = (oldest.line.at, Some(oldest.clone()));
        for entry in found {
            if !visit(store, entry)? {
                return Ok(());
            }
        }
        if !more {
            return Ok(());
        }
        chunk = CHUNK;
    }
}

/// How many records [`in_order`] has in memory at once.
const CHUNK: usize = 2000;

/// The newest records of a window that are `wanted`, the newest first; and whether there are more.
pub fn newest(
    store: &mut dyn Store,
    scope: Scope<'_>,
    window: Window,
    limit: usize,
    mut wanted: impl FnMut(&LogEntry) -> bool,
) -> Result<(Vec<LogEntry>, bool), Failure> {
    let mut found = Vec::new();
    let mut more = false;
    // Within a day several jobs are not in order of time: the newest of a day are kept in a heap, the oldest on top.
    let mut heap: BinaryHeap<Reverse<ByTime>> = BinaryHeap::new();
    let mut day = None;
    // Of several jobs a whole day is read in any case.
    let page = if matches!(scope, Scope::Job(_)) { limit.saturating_add(1) } else { PAGE };
    each(store, scope, window, page, |entry| {
        let of = day_of(entry.line.at);
        if day.replace(of).is_some_and(|before| before != of) {
            drain(&mut heap, &mut found);
        }
        let room = limit - found.len();
        if !wanted(&entry) {
            return true;
        }
        if room == 0 {
            more = true;
            return false;
        }
        heap.push(Reverse(ByTime(entry)));
        if heap.len() > room {
            heap.pop();
            more = true;
            // Those of one job come in order: the rest is older.
            return !matches!(scope, Scope::Job(_));
        }
        true
    })?;
    drain(&mut heap, &mut found);
    Ok((found, more))
}

fn drain(heap: &mut BinaryHeap<Reverse<ByTime>>, found: &mut Vec<LogEntry>) {
    let mut day: Vec<LogEntry> =
        std::mem::take(heap).into_iter().map(|Reverse(ByTime(entry))| entry).collect();
    day.sort_by(|a, b| order(b).cmp(&order(a)));
    found.append(&mut day);
}

/// An entry, ordered by time.
struct ByTime(LogEntry);

fn order(entry: &LogEntry) -> (Duration, Reverse<&str>) {
    (entry.line.at, Reverse(entry.key.as_str()))
}

impl PartialEq for ByTime {
    fn eq(&self, other: &Self) -> bool {
        order(&self.0) == order(&other.0)
    }
}

impl Eq for ByTime {}

impl PartialOrd for ByTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        order(&self.0).cmp(&order(&other.0))
    }
}
