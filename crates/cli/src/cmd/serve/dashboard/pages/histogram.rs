//! How long runs took, on a logarithmic axis: 30s, 90s and 45m must stand on one.

use std::time::Duration;

use leasehold::core::run_log::LogEvent;
use maud::{Markup, html};

use super::super::stats::JobFacts;
use super::parts::{class, human};
use crate::messages::dashboard as say;

const HEIGHT: f64 = 330.0;
const EDGE: f64 = 16.0;
/// Where runs stand.
const BASE: f64 = 262.0;
const TOP: f64 = 60.0;
/// The least width of a column.
const COLUMN: f64 = 16.5;
/// A square stands for one run, as long as there is room.
const SQUARES: usize = 13;
const TICKS: [u64; 15] =
    [1, 5, 15, 30, 60, 120, 300, 600, 1_200, 2_700, 7_200, 21_600, 43_200, 86_400, 259_200];

/// Words nearer to each other than this stand below each other, so far.
const ROOM: f64 = 90.0;
const DOWN: f64 = 30.0;

/// Times on the axis.
struct Scale {
    low: f64,
    high: f64,
    right: f64,
    columns: usize,
}

impl Scale {
    fn x(&self, time: Duration) -> f64 {
        let at = time.as_secs_f64().max(0.001).ln();
        EDGE + (self.right - EDGE) * ((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn column(&self, time: Duration) -> usize {
        // Between 0 and the number of columns.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let column = ((self.x(time) - EDGE) / (self.right - EDGE) * self.columns as f64) as usize;
        column.min(self.columns - 1)
    }
}

/// The picture, as wide as this. Its ids begin with `id`.
pub fn histogram(facts: &JobFacts, width: f64, id: &str) -> Markup {
    let right = width - EDGE;
    // A small number.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let count = ((right - EDGE) / COLUMN) as usize;
    let ttl = facts.ttl();
    let (runs, ok) = (&facts.times, &facts.sums.ok);
    let lines = [Some(ttl / 3), Some(ttl), facts.interval];
    let times = || runs.iter().map(|(took, _)| *took).chain(lines.into_iter().flatten());
    let (Some(least), Some(most)) = (times().min(), times().max()) else { return html! {} };
    let scale = Scale {
        low: least.as_secs_f64().max(0.01).ln() - 0.4,
        high: most.as_secs_f64().max(0.02).ln() + 0.5,
        right,
        columns: count,
    };
    let mut columns: Vec<Vec<LogEvent>> = vec![Vec::new(); count];
    for (took, event) in runs {
        columns[scale.column(*took)].push(*event);
    }
    // What stands out is on top, where one sees it.
    columns.iter_mut().for_each(|column| column.sort_unstable());
    let tallest = columns.iter().map(Vec::len).max().unwrap_or(0);
    let wide = (right - EDGE) / count as f64;
    let step = (wide).min((BASE - TOP) / tallest.max(1) as f64);
    let mut ticks: Vec<(u64, f64)> = Vec::new();
    for tick in TICKS {
        let x = scale.x(Duration::from_secs(tick));
        if x > EDGE + 1.0 && x < right - 12.0 && ticks.last().is_none_or(|(_, last)| x - last > 46.0) {
            ticks.push((tick, x));
        }
    }
    let marks = [("p50", ok.p50), ("p95", ok.p95), ("worst", ok.worst)];
    html! {
        svg.hist viewBox={ "0 0 " (width) " " (HEIGHT) } role="img" aria-labelledby={ (id) "-title " (id) "-desc" } {
            title id={ (id) "-title" } { "Run times" }
            desc id={ (id) "-desc" } { (described(facts, ttl)) }
            @if let Some(interval) = facts.interval.map(|interval| scale.x(interval)) {
                rect.beyond x=(px(interval)) y=(TOP) width=(px((right - interval).max(0.0))) height=(BASE - TOP) {}
            }
            line.axis x1=(EDGE) x2=(right) y1=(BASE) y2=(BASE) {}
            @for (tick, x) in &ticks {
                line.axis x1=(px(*x)) x2=(px(*x)) y1=(BASE) y2=(BASE + 4.0) {}
                text.tick x=(px(*x)) y=(BASE + 17.0) text-anchor="middle" { (human(Duration::from_secs(*tick))) }
            }
            @let (renewal, end) = (scale.x(ttl / 3), scale.x(ttl));
            (ruler(&scale, ttl / 3, "renewed every", false, 0.0))
            (ruler(&scale, ttl, "TTL", true, if end - renewal < ROOM { DOWN } else { 0.0 }))
            @if let Some(interval) = facts.interval {
                (ruler(&scale, interval, "interval", true, if (scale.x(interval) - end).abs() < ROOM { DOWN * 2.0 } else { 0.0 }))
            }
            @for (at, column) in columns.iter().enumerate() {
                @let x = EDGE + wide * at as f64;
                @if tallest <= SQUARES {
                    @for (up, event) in column.iter().enumerate() {
                        rect.run.(class(Some(*event))) x=(px(x + 1.0)) y=(px(BASE - step * (up + 1) as f64 + 1.0))
                            width=(px(wide - 2.0)) height=(px(step - 2.0)) rx="2" {}
                    }
                } @else {
                    @for (event, from, to) in blocks(column) {
                        rect.run.(class(Some(event))) x=(px(x + 1.0)) y=(px(BASE - step * to as f64))
                            width=(px(wide - 2.0)) height=(px(step * (to - from) as f64)) rx="1" {}
                    }
                }
            }
            @for (at, (word, time)) in marks.into_iter().filter_map(|(word, time)| Some((word, time?))).enumerate() {
                @let x = scale.x(time);
                @let anchor = if x > right - 70.0 { "end" } else if x < EDGE + 50.0 { "start" } else { "middle" };
                path.arrow d={ "M" (px(x)) " " (BASE + 22.0) "l4 7h-8z" } {}
                text.tick x=(px(x)) y=(BASE + 39.0 + 13.0 * at as f64) text-anchor=(anchor) {
                    (word) " " tspan.strong { (human(time)) }
                }
            }
        }
    }
}

/// A line across the picture.
fn ruler(scale: &Scale, time: Duration, word: &str, strong: bool, down: f64) -> Markup {
    let x = scale.x(time);
    let (anchor, beside) = if x > scale.right - 80.0 { ("end", -5.0) } else { ("start", 5.0) };
    html! {
        line.ruler.strong[strong] x1=(px(x)) x2=(px(x)) y1=(10.0 + down) y2=(BASE) {}
        text.tick x=(px(x + beside)) y=(px(20.0 + down)) text-anchor=(anchor) { (word) }
        text.value x=(px(x + beside)) y=(px(35.0 + down)) text-anchor=(anchor) { (human(time)) }
    }
}

/// Equal events that follow each other, from one height to another.
fn blocks(column: &[LogEvent]) -> Vec<(LogEvent, usize, usize)> {
    let mut blocks: Vec<(LogEvent, usize, usize)> = Vec::new();
    for (at, event) in column.iter().enumerate() {
        match blocks.last_mut() {
            Some((last, _, to)) if last == event => *to = at + 1,
            _ => blocks.push((*event, at, at + 1)),
        }
    }
    blocks
}

fn px(number: f64) -> String {
    format!("{number:.1}")
}

/// For those who cannot see it.
fn described(facts: &JobFacts, ttl: Duration) -> String {
    let (ok, time) = (&facts.sums.ok, |time: Option<Duration>| time.map_or_else(|| "–".into(), human));
    let mut text = say::run_times(ok.count, time(ok.p50), time(ok.p95), time(ok.worst), human(ttl));
    if let Some(interval) = facts.interval {
        text = format!("{text} {}", say::run_interval(human(interval), facts.too_long()));
    }
    text
}
