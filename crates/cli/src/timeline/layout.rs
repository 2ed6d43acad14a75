//! Where the marks of a row stand: near ones become one, those that overlap stand below each other. And the times on
//! the axis.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::Window;

use super::model::{About, Kind, Lane, Mark, Row, Timeline, Whose};

/// The most marks in a picture.
const MARKS: usize = 2_000;
/// The most tracks of a row. What finds no room becomes one with a mark of its kind, or stands over others.
const TRACKS: usize = 6;

/// A row, as it is drawn.
pub struct Tracks {
    /// What it is about.
    pub about: About,
    /// Marks that do not overlap, in order of time.
    pub tracks: Vec<Vec<Mark>>,
}

/// How fine a picture is.
#[derive(Clone, Copy)]
pub struct Grain {
    /// How many columns it has. Marks of one kind that begin and end in the same one become one mark.
    pub columns: u32,
    /// How many columns a mark with a sign takes at least.
    pub sign: u32,
}

/// Lays out all rows: coarser than asked for, if there would be too many marks.
pub fn lay_out(timeline: &Timeline, mut grain: Grain) -> Vec<(Whose, Vec<Tracks>)> {
    let rows = || timeline.lanes.iter().flat_map(|lane| &lane.rows);
    let merged = |columns| rows().map(move |row| merge(row, timeline.window, columns)).collect::<Vec<_>>();
    let mut marks = merged(grain.columns);
    while marks.iter().map(Vec::len).sum::<usize>() > MARKS && grain.columns > 1 {
        grain.columns /= 2;
        marks = merged(grain.columns);
    }
    let cell = cell(timeline.window, grain.columns);
    let mut marks = marks.into_iter();
    let tracks = |row: &Row| {
        let tracks = pack(marks.next().unwrap_or_default(), cell, grain.sign);
        Tracks { about: row.about.clone(), tracks }
    };
    let mut tracks = rows().map(tracks).collect::<Vec<_>>().into_iter();
    let lane = |lane: &Lane| (lane.whose.clone(), tracks.by_ref().take(lane.rows.len()).collect());
    timeline.lanes.iter().map(lane).collect()
}

/// The time of one column.
fn cell(window: Window, columns: u32) -> Duration {
    ((window.until.saturating_sub(window.since)) / columns.max(1)).max(Duration::from_millis(1))
}

fn merge(row: &Row, window: Window, columns: u32) -> Vec<Mark> {
    let cell = cell(window, columns).as_nanos();
    let column = |at: Duration| at.saturating_sub(window.since).as_nanos() / cell;
    let mut merged: Vec<Mark> = Vec::new();
    for mark in &row.marks {
        let (at, short) = (column(mark.start), column(mark.end) == column(mark.start));
        // Those that begin in this column are the last ones, at most a few of each kind.
        let same = merged.iter_mut().rev().take_while(|other| column(other.start) == at).find(|other| {
            short && column(other.end) == at && other.kind == mark.kind && other.word == mark.word
        });
        match same {
            Some(other) => join(other, mark),
            None => merged.push(mark.clone()),
        }
    }
    merged
}

fn join(other: &mut Mark, mark: &Mark) {
    other.end = other.end.max(mark.end);
    other.count += mark.count;
    other.tokens = match (other.tokens, mark.tokens) {
        (Some((a, b)), Some((c, d))) if other.lease == mark.lease => Some((a.min(c), b.max(d))),
        _ => None,
    };
    other.overtaken = None;
}

/// Whether a mark is drawn with a sign of its own, wherever there is room for it or not.
pub fn has_sign(kind: Kind) -> bool {
    !matches!(kind, Kind::Event(LogEvent::Ok | LogEvent::Released | LogEvent::Observed) | Kind::Gap)
}

fn pack(marks: Vec<Mark>, cell: Duration, sign: u32) -> Vec<Vec<Mark>> {
    let mut tracks: Vec<(Duration, Vec<Mark>)> = Vec::new();
    for mark in marks {
        let least = if has_sign(mark.kind) { cell * sign } else { cell };
        let until = mark.end.max(mark.start + least);
        let count = tracks.len();
        match tracks.iter_mut().find(|(free, _)| *free <= mark.start) {
            Some(track) => (track.0, _) = (until, track.1.push(mark)),
            None if count < TRACKS => tracks.push((until, vec![mark])),
            None => {
                let same = |track: &[Mark]| {
                    let last = track.last()?;
                    (last.kind == mark.kind && last.word == mark.word).then_some(last.end)
                };
                // The nearest of its kind.
                let near = tracks.iter().enumerate().filter_map(|(at, (_, track))| Some((same(track)?, at)));
                let at = near.max().map_or(count - 1, |(_, at)| at);
                let (free, track) = &mut tracks[at];
                *free = (*free).max(until);
                match track.last_mut().filter(|last| last.kind == mark.kind && last.word == mark.word) {
                    Some(last) => join(last, &mark),
                    None => track.push(mark),
                }
            }
        }
    }
    tracks.into_iter().map(|(_, marks)| marks).collect()
}

/// A time on the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Since 1970.
    pub at: Duration,
    /// `03:40`, or the day where one begins.
    pub label: String,
}

/// Steps between two ticks, in minutes.
const STEPS: [i32; 17] =
    [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 10_080, 20_160, 43_200];
const DAY: i32 = 1_440;

/// At most so many round times of a zone in a window.
pub fn ticks(window: Window, zone: &TimeZone, most: u32) -> Vec<Tick> {
    let span = window.until.saturating_sub(window.since);
    let fits = |minutes: &&i32| {
        let step = Duration::from_secs(u64::from(minutes.unsigned_abs()) * 60);
        span.as_secs() / step.as_secs() < u64::from(most.max(1))
    };
    let Some(step) = STEPS.iter().find(fits).copied() else { return Vec::new() };
    let (Some(first), Some(last)) = (local(window.since, zone), local(window.until, zone)) else {
        return Vec::new();
    };
    let mut ticks: Vec<Tick> = Vec::new();
    let mut day = match step {
        ..=DAY => first.date(),
        // The same days, wherever the window begins.
        _ => back_to(first.date(), step / DAY),
    };
    while day <= last.date() {
        for minute in (0..DAY).step_by(usize::try_from(step).unwrap_or(1)) {
            let clock = day.to_datetime(jiff::civil::Time::midnight()).checked_add(minute.minutes());
            let at = clock.ok().and_then(|clock| zone.to_timestamp(clock).ok()).and_then(since_1970);
            let Some(at) = at.filter(|at| *at >= window.since && *at <= window.until) else { continue };
            // An hour that the clocks leave out is no later than the one after it.
            if ticks.last().is_none_or(|tick| tick.at < at) {
                let Some(shown) = local(at, zone) else { continue };
                let day_begins = minute == 0 && (step >= DAY || !ticks.is_empty());
                let label = shown.strftime(if day_begins { "%d %b" } else { "%H:%M" }).to_string();
                ticks.push(Tick { at, label });
            }
        }
        let Ok(next) = day.checked_add((step / DAY).max(1).days()) else { break };
        day = next;
    }
    ticks
}

/// The last day up to this one whose number can be divided by this.
fn back_to(day: Date, days: i32) -> Date {
    let epoch = jiff::civil::date(1970, 1, 1);
    let number = day.since(epoch).map_or(0, |span| span.get_days());
    day.checked_sub(number.rem_euclid(days).days()).unwrap_or(day)
}

/// A time in a zone.
pub fn local(at: Duration, zone: &TimeZone) -> Option<Zoned> {
    let at = Timestamp::from_millisecond(i64::try_from(at.as_millis()).ok()?).ok()?;
    Some(at.to_zoned(zone.clone()))
}

fn since_1970(at: Timestamp) -> Option<Duration> {
    u64::try_from(at.as_millisecond()).ok().map(Duration::from_millis)
}
