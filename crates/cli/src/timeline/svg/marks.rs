//! The marks of one track: bars, signs, and the words beside them where there is room.

use std::fmt::Write as _;

use leasehold::core::run_log::LogEvent;

use super::super::layout::has_sign;
use super::super::model::{Kind, Mark};
use super::super::words::{self, Times};
use super::super::xml::escaped;
use super::{Layers, Scale, glyphs, text, text_width};

/// The height of a bar, and how far its top is below that of its track.
const BAR: f64 = 16.0;
const TOP: f64 = 3.0;
/// The narrowest bar, and the narrowest one with a sign in it.
const LEAST: f64 = 3.0;
const SIGN: f64 = 16.0;
/// The narrowest bar that shows its sign, if it need not.
const INSIDE: f64 = 14.0;

/// Where a mark was drawn.
pub struct Place {
    pub kind: Kind,
    pub lease: String,
    pub token: Option<u64>,
    pub newer: Option<u64>,
    /// Its middle.
    pub middle: f64,
    pub y: f64,
}

/// Draws a track whose top is at `y`.
pub fn draw(
    layers: &mut Layers,
    track: &[Mark],
    scale: Scale,
    y: f64,
    times: &Times,
    places: &mut Vec<Place>,
) {
    let mut free = scale.left - 6.0;
    for (number, mark) in track.iter().enumerate() {
        let (from, to) = extent(mark, scale);
        let _ = write!(
            layers.marks,
            r#"<g class="tl-mark {}"><title>{}</title>"#,
            glyphs::class(mark.kind),
            escaped(&words::all(mark, times))
        );
        shape(&mut layers.marks, mark, scale, from, to, y + TOP);
        layers.marks.push_str("</g>");
        places.push(Place {
            kind: mark.kind,
            lease: mark.lease.clone(),
            token: mark.token(),
            newer: mark.newer_fence(),
            middle: f64::midpoint(from, to),
            y: y + TOP + BAR / 2.0,
        });
        let next = track.get(number + 1).map_or(scale.right + 8.0, |next| extent(next, scale).0);
        let end = to + 5.0;
        let placed = words::labels(mark).into_iter().find_map(|label| {
            // Bold letters are wider.
            let width = text_width(&label) * if mark.newer.is_some() { 1.12 } else { 1.0 };
            match () {
                () if end + width + 4.0 <= next => Some((label, end, end + width)),
                () if from - 5.0 - width >= free + 4.0 => Some((label, from - 5.0 - width, to)),
                () => None,
            }
        });
        free = to;
        if let Some((label, x, until)) = placed {
            text(&mut layers.texts, class_of_words(mark.kind), x, y + TOP + 12.2, "start", &label);
            free = until;
        }
    }
}

/// From where to where a mark is drawn.
fn extent(mark: &Mark, scale: Scale) -> (f64, f64) {
    let (from, to) = (scale.x(mark.start), scale.x(mark.end));
    match (has_sign(mark.kind), mark.kind.lasts()) {
        (true, true) => (from, to.max(from + SIGN)),
        // A sign that takes no time stands around its moment.
        (true, false) => (from - SIGN / 2.0, from + SIGN / 2.0),
        _ => (from, to.max(from + LEAST)),
    }
}

fn rect(out: &mut String, class: &str, from: f64, to: f64, y: f64) {
    let _ = write!(
        out,
        r#"<rect class="{class}" x="{from:.1}" y="{y:.1}" width="{:.1}" height="{BAR}" rx="{:.1}"/>"#,
        to - from,
        ((to - from) / 3.0).min(3.0)
    );
}

fn shape(out: &mut String, mark: &Mark, scale: Scale, from: f64, to: f64, y: f64) {
    let middle = y + BAR / 2.0;
    match mark.kind {
        Kind::Event(LogEvent::Unknown) => {
            // Until when it ran is not known.
            rect(out, "tl-open", from, to, y);
            rect(out, "tl-full", to - SIGN, to, y);
            glyphs::draw(out, mark.kind, to - SIGN + 2.0, y + 2.0);
        }
        Kind::Event(LogEvent::Lost) => {
            let until = mark.overtaken.map_or(to, |at| scale.x(at).max(from + SIGN));
            torn(out, from, until, y);
            glyphs::draw(out, mark.kind, from + 2.0, y + 2.0);
            if until + 2.0 < to {
                let _ = write!(
                    out,
                    r#"<line class="tl-late" x1="{until:.1}" x2="{to:.1}" y1="{middle:.1}" y2="{middle:.1}"/><line class="tl-stop" x1="{to:.1}" x2="{to:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                    middle - 4.0,
                    middle + 4.0
                );
            }
        }
        Kind::Event(event) if event.is_run() => {
            rect(out, if event == LogEvent::Ok { "tl-bar" } else { "tl-full" }, from, to, y);
            if to - from >= INSIDE {
                glyphs::draw(out, mark.kind, from + 1.5, y + 2.0);
            }
        }
        Kind::Event(LogEvent::Released | LogEvent::Observed) | Kind::Gap => {
            rect(out, "tl-open", from, to, y);
            if to - from >= INSIDE && mark.kind != Kind::Gap {
                glyphs::draw(out, mark.kind, from + 2.0, y + 2.0);
            }
        }
        _ => glyphs::draw(out, mark.kind, from + 2.0, y + 2.0),
    }
}

/// A bar whose right end is torn off.
fn torn(out: &mut String, from: f64, to: f64, y: f64) {
    let _ = write!(
        out,
        r#"<path class="tl-full" d="M{:.1} {y:.1}H{to:.1}l-3 2.7 3 2.7-3 2.6 3 2.7-3 2.6 3 2.7H{:.1}a2 2 0 0 1-2-2V{:.1}a2 2 0 0 1 2-2z"/>"#,
        from + 2.0,
        from + 2.0,
        y + 2.0
    );
}

/// The class of the words beside a mark.
fn class_of_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Event(LogEvent::Refused) => "tl-label tl-refused",
        Kind::Event(event) if event.is_run() => "tl-token",
        Kind::Event(LogEvent::Released | LogEvent::Observed) => "tl-token",
        _ => "tl-note",
    }
}
