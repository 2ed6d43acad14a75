//! A picture as SVG: in a file of its own, or as a part of a page.

mod glyphs;
mod marks;

use std::fmt::Write as _;
use std::time::Duration;

use leasehold::core::run_log::LogEvent;

use self::marks::Place;
use super::layout::{Grain, Tracks, lay_out, ticks};
use super::model::{About, Kind, Timeline, Whose};
use super::words::{self, Times};
use super::xml::{cut, escaped};
use crate::messages::timeline as say;

/// The rules of style that a picture needs. Its colours are variables: `--ok`, `--lost` and so on, where a page sets
/// them, and else those of the picture, light and dark.
pub const STYLE: &str = include_str!("svg/style.css");

/// How a picture is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Its width in pixels. Below 600 the names stand above the rows.
    pub width: u32,
    /// The ids in it begin with this: they must differ from all others on a page.
    pub id: &'a str,
    /// Whether it brings its style along. A page with several pictures has [`STYLE`] once.
    pub style: bool,
}

/// Narrower ones have the names above the rows.
const NARROW: u32 = 600;
/// For names, left of the rows.
const NAMES: f64 = 236.0;
const HEAD: f64 = 34.0;
const TRACK: f64 = 24.0;
const EDGE: f64 = 12.0;
/// A column of it, in pixels, and how many of them a sign takes.
const COLUMN: u32 = 4;
const SIGN: u32 = 5;

/// What is drawn, in layers: the later ones over the earlier.
#[derive(Default)]
struct Layers {
    ground: String,
    lines: String,
    marks: String,
    texts: String,
}

/// Where times are.
#[derive(Clone, Copy)]
struct Scale {
    since: Duration,
    until: Duration,
    left: f64,
    right: f64,
}

impl Scale {
    fn x(&self, at: Duration) -> f64 {
        let at = at.clamp(self.since, self.until).saturating_sub(self.since).as_secs_f64();
        let span = self.until.saturating_sub(self.since).as_secs_f64().max(0.001);
        self.left + (self.right - self.left) * at / span
    }
}

/// The picture.
pub fn svg(timeline: &Timeline, options: &Options<'_>) -> String {
    let width = f64::from(options.width);
    let narrow = options.width < NARROW;
    let left = if narrow { EDGE } else { NAMES };
    let window = timeline.window;
    let scale = Scale { since: window.since, until: window.until, left, right: width - EDGE - 4.0 };
    let mut layers = Layers::default();
    let columns = (options.width.saturating_sub(if narrow { 24 } else { 252 }) / COLUMN).max(1);
    let lanes = lay_out(timeline, Grain { columns, sign: SIGN });
    let mut y = HEAD;
    let mut places = Vec::new();
    let times = Times::new(timeline);
    for (whose, rows) in &lanes {
        y = lane(&mut layers, whose, rows, scale, narrow, y, &times, &mut places);
        let _ = write!(
            layers.ground,
            r#"<line class="tl-edge" x1="{EDGE}" x2="{:.0}" y1="{y:.1}" y2="{y:.1}"/>"#,
            width - EDGE
        );
    }
    if lanes.is_empty() {
        y += 56.0;
        text(&mut layers.texts, "tl-none", width / 2.0, y - 26.0, "middle", &say::empty());
    }
    axis(&mut layers, timeline, scale, y);
    arrows(&mut layers.lines, &places);
    let height = legend(&mut layers.texts, timeline, width, y + 24.0);
    let Layers { ground, lines, marks, texts } = layers;
    let id = escaped(options.id);
    let style = if options.style { format!("<style>{STYLE}</style>") } else { String::new() };
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="tl" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-labelledby="{id}-title {id}-desc"><title id="{id}-title">{}</title><desc id="{id}-desc">{}</desc>{style}<rect class="tl-ground" width="{width:.0}" height="{height:.0}"/>{ground}{lines}{marks}{texts}</svg>"#,
        escaped(&say::title()),
        escaped(&summary(timeline)),
    )
}

/// What it shows, in a few sentences.
pub fn summary(timeline: &Timeline) -> String {
    let mut sentences = vec![words::window(timeline)];
    if timeline.is_empty() {
        sentences.push(say::empty().trim_end_matches('.').to_owned());
    } else {
        let counts = timeline.counts().into_iter();
        let counts: Vec<String> =
            counts.map(|(kind, count)| say::counted(words::meaning(kind), count)).collect();
        sentences.push(counts.join(", "));
    }
    let records = timeline.records();
    let notes = records.iter().filter_map(|mark| words::note(mark, timeline));
    sentences.extend(notes.take(NOTES));
    format!("{}.", sentences.join(". "))
}

/// The most notes in a description.
const NOTES: usize = 5;

#[allow(clippy::too_many_arguments)]
fn lane(
    layers: &mut Layers,
    whose: &Whose,
    rows: &[Tracks],
    scale: Scale,
    narrow: bool,
    mut y: f64,
    times: &Times,
    places: &mut Vec<Place>,
) -> f64 {
    y += 4.0;
    let name = words::whose(whose);
    let baseline = y + 16.0;
    let room = if narrow { 40 } else { 15 };
    named(&mut layers.texts, "tl-host", EDGE, baseline, "start", &name, room);
    if narrow {
        y += 20.0;
    }
    for row in rows {
        let name = words::about(&row.about);
        match narrow {
            true => {
                named(&mut layers.texts, "tl-job", EDGE, y + 13.0, "start", &name, 48);
                y += 16.0;
            }
            false => named(&mut layers.texts, "tl-job", NAMES - 12.0, y + 16.0, "end", &name, 18),
        }
        let gaps = row.about == About::Gaps;
        for track in &row.tracks {
            marks::draw(layers, track, scale, y, times, places);
            y += if gaps { TRACK - 4.0 } else { TRACK };
        }
    }
    y + 4.0
}

fn axis(layers: &mut Layers, timeline: &Timeline, scale: Scale, bottom: f64) {
    let top = HEAD - 6.0;
    let most = ((scale.right - scale.left) / 56.0).max(1.0);
    // Truncated on purpose: a few ticks.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let ticks = ticks(timeline.window, &timeline.zone, most as u32);
    for tick in ticks {
        let x = scale.x(tick.at);
        let _ = write!(
            layers.ground,
            r#"<line class="tl-grid" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#
        );
        // The first and the last label stay inside.
        let anchor = match () {
            () if x < scale.left + 18.0 => "start",
            () if x > scale.right - 18.0 => "end",
            () => "middle",
        };
        text(&mut layers.texts, "tl-time", x, 20.0, anchor, &tick.label);
    }
}

/// From each refused write to the run that has the token of the fence.
fn arrows(lines: &mut String, places: &[Place]) {
    for refused in places.iter().filter(|place| place.kind == Kind::Event(LogEvent::Refused)) {
        let newer = |place: &&Place| {
            place.lease == refused.lease && place.token.is_some() && place.token == refused.newer
        };
        let Some(run) = places.iter().filter(|place| place.kind.lasts()).find(newer) else { continue };
        let (x, y) = (refused.middle, refused.y);
        let (to_x, side) = (run.middle, if run.y > y { 1.0 } else { -1.0 });
        if (run.y - y).abs() < TRACK {
            continue;
        }
        let (from, to) = (y + side * 9.0, run.y - side * 10.0);
        let bend = f64::midpoint(from, to);
        let _ = write!(
            lines,
            r#"<path class="tl-arrow" d="M{x:.1} {from:.1}C{x:.1} {bend:.1} {to_x:.1} {bend:.1} {to_x:.1} {to:.1}"/><path class="tl-arrow" d="M{:.1} {:.1}L{to_x:.1} {to:.1}L{:.1} {:.1}"/>"#,
            to_x - 3.5,
            to - side * 6.0,
            to_x + 3.5,
            to - side * 6.0,
        );
    }
}

/// What a line of the legend is about.
enum Key {
    Kind(Kind),
    Late,
    Words,
}

/// What the marks mean that are in it; gives where it ends.
fn legend(out: &mut String, timeline: &Timeline, width: f64, mut y: f64) -> f64 {
    let mut items: Vec<(Key, String)> = Vec::new();
    for kind in timeline.kinds() {
        let meaning = words::meaning(kind);
        // People do several things, and have one sign.
        if items.iter().all(|(_, other)| *other != meaning) {
            items.push((Key::Kind(kind), meaning));
        }
    }
    if timeline.records().iter().any(|mark| mark.overtaken.is_some()) {
        items.push((Key::Late, say::overtaken()));
    }
    if !timeline.is_empty() {
        items.push((Key::Words, say::numbers()));
    }
    if timeline.cut {
        items.push((Key::Words, say::cut()));
    }
    let mut x = EDGE;
    for (key, meaning) in items {
        let sign = if matches!(key, Key::Words) { 0.0 } else { 18.0 };
        let taken = sign + text_width(&meaning) + 18.0;
        if x + taken > width && x > EDGE {
            (x, y) = (EDGE, y + 20.0);
        }
        match key {
            Key::Kind(kind) => glyphs::for_legend(out, kind, x, y - 10.5),
            Key::Late => {
                let (to, middle) = (x + 13.0, y - 4.0);
                let _ = write!(
                    out,
                    r#"<g class="tl-lost"><line class="tl-late" x1="{x:.1}" x2="{to:.1}" y1="{middle:.1}" y2="{middle:.1}"/></g>"#
                );
            }
            Key::Words => {}
        }
        text(out, "tl-legend", x + sign, y, "start", &meaning);
        x += taken;
    }
    y + 14.0
}

fn text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = write!(
        out,
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
        escaped(words)
    );
}

/// A name, cut if there is no room for all of it; then it is whole in a title.
fn named(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, name: &str, room: usize) {
    let _ = write!(
        out,
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}<title>{}</title></text>"#,
        escaped(&cut(name, room)),
        escaped(name)
    );
}

/// About how wide a text is. Names of other letters are wider.
fn text_width(text: &str) -> f64 {
    let narrow = |c: char| "il.,:;'|! ".contains(c);
    text.chars()
        .map(|c| match c {
            c if narrow(c) => 4.2,
            c if c.is_ascii() => 7.3,
            _ => 12.0,
        })
        .sum()
}
