//! What a picture of the run log shows: a lane for each machine, and in it a row for each job that it ran.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::core::ledger::Subject;
use leasehold::core::run_log::{LogEvent, LogId};
use leasehold::run_log::{LogEntry, Window};

use crate::messages::refusals;

/// The most lanes of machines. The machines with the least to show share the last one.
const LANES: usize = 12;
/// The most rows of all lanes together, but at least one for each lane.
const ROWS: usize = 40;

/// What a mark stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A record of the run log.
    Event(LogEvent),
    /// A record of a later version, with a word that this one does not know.
    Other,
    /// No run had the lease: after one that lost it, and before the next.
    Gap,
}

impl Kind {
    /// Whether it takes time. Everything else happens at once.
    pub fn lasts(self) -> bool {
        use LogEvent::{Observed, Released};
        match self {
            Self::Event(event) => event.is_run() || matches!(event, Observed | Released),
            Self::Gap => true,
            Self::Other => false,
        }
    }

    /// Whether it is told in words, too.
    pub fn stands_out(self) -> bool {
        use LogEvent::{Dropped, Failed, Killed, Lost, Refused, Unknown, Unsealed};
        matches!(self, Self::Event(Failed | Lost | Killed | Unknown | Unsealed | Dropped | Refused))
    }
}

/// One mark, or several that are too near to each other to be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What it is.
    pub kind: Kind,
    /// The word of the record.
    pub word: String,
    /// When it began, since 1970, by the clock of its machine.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// When a later run had its lease, although it went on.
    pub overtaken: Option<Duration>,
    /// How many records it stands for.
    pub count: usize,
    /// The lowest and the highest token of its runs.
    pub tokens: Option<(u64, u64)>,
    /// Of a refused write, the token of the fence. Of a gap, the token of the next run.
    pub newer: Option<u64>,
    /// The job.
    pub job: String,
    /// The lease; the job, if the record does not say.
    pub lease: String,
    /// The machine.
    pub host: String,
    /// The id of the record.
    pub id: LogId,
    /// The key or slot.
    pub item: Option<String>,
    /// Why, in a word.
    pub reason: Option<String>,
    /// The exit code.
    pub exit: Option<i32>,
    /// The target of a refused write.
    pub target: Option<String>,
    /// How many slots or names.
    pub names: Option<u64>,
    /// What the record says for people.
    pub said: String,
}

impl Mark {
    fn of(entry: LogEntry, host: String) -> Self {
        let LogEntry { line, record, .. } = entry;
        let since = record.as_ref().and_then(|record| instant(&record.holder.since));
        let kind = line.event().map_or(Kind::Other, Kind::Event);
        // Nobody knows how long a run lasted that never reported; it had begun when it took its lease.
        let start = match line.took {
            Some(took) if kind.lasts() => line.at.saturating_sub(took),
            // It stands where its slot was due.
            _ if kind == Kind::Event(LogEvent::Dropped) => line.slot.map_or(line.at, due).min(line.at),
            None if kind == Kind::Event(LogEvent::Unknown) => since.unwrap_or(line.at).min(line.at),
            _ => line.at,
        };
        let token = line.token.map(leasehold::core::ids::Token::get);
        let mut mark = Self {
            kind,
            word: line.word,
            start,
            end: line.at,
            overtaken: None,
            count: 1,
            tokens: token.map(|token| (token, token)),
            newer: None,
            job: line.job.to_string(),
            lease: line.job.to_string(),
            host,
            id: line.id,
            item: line.slot.and_then(slot_name),
            reason: line.reason,
            exit: line.exit,
            target: None,
            names: None,
            said: String::new(),
        };
        if let Some(record) = record {
            if let Some(lease) = record.lease {
                mark.lease = lease.to_string();
            }
            if let Some(refused) = record.target {
                mark.newer = refused.fence.map(leasehold::core::ids::Token::get);
                mark.target = Some(refused.target);
            }
            mark.item = match record.item {
                Some(Subject::Key(key)) => Some(key),
                Some(Subject::Slot { id, .. }) => Some(id),
                Some(Subject::Latest(_)) | None => mark.item,
            };
            mark.reason = record.reason.or(mark.reason);
            mark.names = record.count;
            mark.said = record.said;
        }
        mark
    }

    fn gap(lost: &Self, next: &Self) -> Self {
        Self {
            kind: Kind::Gap,
            word: String::new(),
            start: lost.end,
            end: next.start,
            overtaken: None,
            newer: next.tokens.map(|(token, _)| token),
            count: 1,
            item: None,
            reason: None,
            exit: None,
            target: None,
            names: None,
            said: String::new(),
            ..lost.clone()
        }
    }

    /// How long it lasted.
    pub fn lasted(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }

    /// The token of the fence, if it refused a write because a newer run had taken over.
    pub fn newer_fence(&self) -> Option<u64> {
        self.newer.filter(|_| refusals::is_stale(self.reason.as_deref()))
    }

    /// The token, if it is one.
    pub fn token(&self) -> Option<u64> {
        self.tokens.and_then(|(low, high)| (low == high).then_some(low))
    }
}

fn instant(text: &str) -> Option<Duration> {
    let at: Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok().map(Duration::from_millis)
}

fn due(second: i64) -> Duration {
    Duration::from_secs(u64::try_from(second).unwrap_or(0))
}

fn slot_name(second: i64) -> Option<String> {
    Timestamp::from_second(second).ok().map(|at| at.to_string())
}

/// Whose lane it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A machine's.
    Machine(String),
    /// That of so many machines.
    Machines(usize),
    /// Nobody's: what no machine did.
    Nobody,
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A job.
    Job(String),
    /// So many jobs.
    Jobs(usize),
    /// The time between two runs.
    Gaps,
    /// Slots that were dropped.
    Dropped,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Whose it is.
    pub whose: Whose,
    /// Its rows, in order of their names.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is about.
    pub about: About,
    /// Its marks, in order of time.
    pub marks: Vec<Mark>,
}

/// A picture of the run log, before it is drawn.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The stretch of time that it shows.
    pub window: Window,
    /// The zone of the times.
    pub zone: TimeZone,
    /// The lanes; that of nobody last.
    pub lanes: Vec<Lane>,
    /// Older records of the window are not in it.
    pub cut: bool,
}

impl Timeline {
    /// What these entries say, the newest first. Only events with one of these words are shown, unless there is none.
    pub fn new(entries: Vec<LogEntry>, window: Window, zone: TimeZone, only: &[String]) -> Self {
        let mut marks = marks(entries);
        marks.sort_by(|a, b| (a.start, a.end, &a.host, a.kind).cmp(&(b.start, b.end, &b.host, b.kind)));
        let gaps = overtake(&mut marks);
        let wanted = |mark: &Mark| only.is_empty() || only.contains(&mark.word);
        marks.retain(|mark| wanted(mark) && mark.end >= window.since && mark.start <= window.until);
        // A gap is shown with the run that lost its lease.
        let shown: HashSet<LogId> = marks.iter().map(|mark| mark.id).collect();
        let gaps: Vec<Mark> = gaps.into_iter().filter(|gap| shown.contains(&gap.id)).collect();
        let (dropped, marks): (Vec<Mark>, Vec<Mark>) =
            marks.into_iter().partition(|mark| mark.kind == Kind::Event(LogEvent::Dropped));
        let mut lanes = machines(marks);
        let nobody = [(About::Gaps, gaps), (About::Dropped, dropped)].into_iter();
        let rows: Vec<Row> = nobody
            .filter(|(_, marks)| !marks.is_empty())
            .map(|(about, marks)| Row { about, marks })
            .collect();
        if !rows.is_empty() {
            lanes.push(Lane { whose: Whose::Nobody, rows });
        }
        Self { window, zone, lanes, cut: false }
    }

    /// Every mark that is a record, in order of time.
    pub fn records(&self) -> Vec<&Mark> {
        let rows = self.lanes.iter().flat_map(|lane| &lane.rows);
        let mut marks: Vec<&Mark> =
            rows.flat_map(|row| &row.marks).filter(|mark| mark.kind != Kind::Gap).collect();
        marks.sort_by_key(|mark| (mark.end, mark.start));
        marks
    }

    /// How many there are of each kind. One record may be about several slots that were dropped.
    pub fn counts(&self) -> BTreeMap<Kind, u64> {
        let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
        for mark in self.records() {
            let dropped = mark.names.filter(|_| mark.kind == Kind::Event(LogEvent::Dropped));
            let count = counts.entry(mark.kind).or_default();
            *count = count.saturating_add(dropped.unwrap_or(1));
        }
        counts
    }

    /// Every kind of mark in it.
    pub fn kinds(&self) -> Vec<Kind> {
        let marks = self.lanes.iter().flat_map(|lane| &lane.rows).flat_map(|row| &row.marks);
        let kinds: std::collections::BTreeSet<Kind> = marks.map(|mark| mark.kind).collect();
        kinds.into_iter().collect()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The gap after a run that lost its lease.
    pub fn gap_after(&self, lost: &Mark) -> Option<&Mark> {
        let rows = self.lanes.iter().flat_map(|lane| &lane.rows).filter(|row| row.about == About::Gaps);
        rows.flat_map(|row| &row.marks).find(|gap| gap.id == lost.id)
    }
}

/// A mark for each entry. A run that was thought to have ended unnoticed, and then told its end, has one mark.
fn marks(entries: Vec<LogEntry>) -> Vec<Mark> {
    let unknown = |entry: &LogEntry| entry.line.event() == Some(LogEvent::Unknown);
    let ends = |entry: &LogEntry| matches!(entry.line.event(), Some(event) if event.is_run() || event == LogEvent::Released);
    let told: HashSet<LogId> =
        entries.iter().filter(|e| ends(e) && !unknown(e)).map(|entry| entry.line.id).collect();
    // When another run took over. Several may have found that: the first one took it.
    let mut taken: HashMap<LogId, Duration> = HashMap::new();
    for entry in entries.iter().filter(|entry| unknown(entry)) {
        let at = taken.entry(entry.line.id).or_insert(entry.line.at);
        *at = (*at).min(entry.line.at);
    }
    let full: HashMap<String, String> = entries
        .iter()
        .filter_map(|entry| Some((entry.line.host.clone(), entry.record.as_ref()?.holder.host.clone())))
        .collect();
    let mut seen = HashSet::new();
    let mut marks = Vec::new();
    for entry in entries.into_iter().rev() {
        let id = entry.line.id;
        if unknown(&entry) && told.contains(&id) || ends(&entry) && !seen.insert(id) {
            continue;
        }
        // A key has the host cut, without its special characters.
        let host = match &entry.record {
            Some(record) => record.holder.host.clone(),
            None => full.get(&entry.line.host).unwrap_or(&entry.line.host).clone(),
        };
        let mut mark = Mark::of(entry, host);
        mark.overtaken = taken.get(&id).copied().filter(|at| mark.kind.lasts() && *at < mark.end);
        marks.push(mark);
    }
    marks
}

/// Notes on each run whether the next run of its lease began before it ended, and gives the gaps after lost leases.
fn overtake(marks: &mut [Mark]) -> Vec<Mark> {
    let mut holders: HashMap<&str, Vec<(u64, usize)>> = HashMap::new();
    for (at, mark) in marks.iter().enumerate() {
        if let (true, Some(token)) = (mark.kind.lasts(), mark.token()) {
            holders.entry(&mark.lease).or_default().push((token, at));
        }
    }
    let mut next_of = Vec::new();
    for tokens in holders.values_mut() {
        tokens.sort_unstable();
        next_of.extend(tokens.windows(2).filter(|two| two[0].0 < two[1].0).map(|two| (two[0].1, two[1].1)));
    }
    next_of.sort_unstable();
    let mut gaps = Vec::new();
    for (run, next) in next_of {
        let (mark, next) = (&marks[run], &marks[next]);
        match mark.kind {
            Kind::Event(LogEvent::Lost) if next.start > mark.end => gaps.push(Mark::gap(mark, next)),
            // Of other runs it would only say that the clocks of two machines differ.
            Kind::Event(LogEvent::Lost) if next.start < mark.end => {
                let at = mark.overtaken.map_or(next.start, |at| at.min(next.start)).max(mark.start);
                marks[run].overtaken = Some(at);
            }
            _ => {}
        }
    }
    gaps
}

/// A lane for each machine. The machines with the least to show share one, and so do the jobs.
fn machines(marks: Vec<Mark>) -> Vec<Lane> {
    let mut hosts: BTreeMap<String, Vec<Mark>> = BTreeMap::new();
    for mark in marks {
        hosts.entry(mark.host.clone()).or_default().push(mark);
    }
    let (hosts, rest) = most(hosts, LANES);
    let jobs = (ROWS / (hosts.len() + 1)).max(1);
    let lane = |whose, marks: Vec<Mark>| {
        let mut rows: BTreeMap<String, Vec<Mark>> = BTreeMap::new();
        for mark in marks {
            rows.entry(mark.job.clone()).or_default().push(mark);
        }
        let (rows, rest) = most(rows, jobs);
        let mut rows: Vec<Row> =
            rows.into_iter().map(|(job, marks)| Row { about: About::Job(job), marks }).collect();
        rows.extend(rest.map(|(count, marks)| Row { about: About::Jobs(count), marks }));
        Lane { whose, rows }
    };
    let mut lanes: Vec<Lane> =
        hosts.into_iter().map(|(host, marks)| lane(Whose::Machine(host), marks)).collect();
    lanes.extend(rest.map(|(count, marks)| lane(Whose::Machines(count), marks)));
    lanes
}

type Named = (String, Vec<Mark>);

/// Those with the most to show, in order of their names; and how many others there are, with all their marks.
fn most(all: BTreeMap<String, Vec<Mark>>, room: usize) -> (Vec<Named>, Option<(usize, Vec<Mark>)>) {
    let mut all: Vec<Named> = all.into_iter().collect();
    if all.len() <= room {
        return (all, None);
    }
    let weight = |marks: &[Mark]| (marks.iter().filter(|mark| mark.kind.stands_out()).count(), marks.len());
    all.sort_by_cached_key(|(_, marks)| std::cmp::Reverse(weight(marks)));
    let others = all.split_off(room - 1);
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let count = others.len();
    let mut marks: Vec<Mark> = others.into_iter().flat_map(|(_, marks)| marks).collect();
    marks.sort_by_key(|mark| (mark.start, mark.end));
    (all, Some((count, marks)))
}
