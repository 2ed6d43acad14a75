//! A picture in a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Effects, Style};
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::Window;

use super::layout::{Grain, lay_out, ticks};
use super::model::{Kind, Mark, Timeline};
use super::words::{self, Times};
use super::xml::cut;
use crate::messages::timeline as say;

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// In characters.
    pub width: usize,
    /// Whether it shows more than ASCII.
    pub unicode: bool,
}

/// The most notes below the picture.
const NOTES: usize = 20;
/// Between two ticks, in characters.
const TICK: usize = 10;
const INDENT: &str = "    ";

/// The picture, with colours.
pub fn text(timeline: &Timeline, terminal: Terminal) -> String {
    let mut out = String::new();
    wrapped(&mut out, "", "", &words::window(timeline), terminal.width);
    if timeline.is_empty() {
        out.push_str(&say::empty());
        return out;
    }
    // The widest name of a lane or a row, but not too much of the width.
    let rows = timeline.lanes.iter().flat_map(|lane| &lane.rows);
    let names = rows.map(|row| words::about(&row.about).chars().count() + 2);
    let hosts = timeline.lanes.iter().map(|lane| words::whose(&lane.whose).chars().count());
    let gutter = names.chain(hosts).max().unwrap_or(0).min((terminal.width * 3 / 10).max(8)) + 1;
    let columns = terminal.width.saturating_sub(gutter).max(10);
    let scale = Scale { window: timeline.window, columns };
    let column = timeline.window.until.saturating_sub(timeline.window.since)
        / u32::try_from(columns).unwrap_or(u32::MAX);
    wrapped(&mut out, "", "", &say::column(words::took(column)), terminal.width);
    out.push('\n');
    axis(&mut out, timeline, scale, gutter, terminal.unicode);
    let grain = Grain { columns: u32::try_from(columns).unwrap_or(u32::MAX), sign: 2 };
    for (whose, rows) in lay_out(timeline, grain) {
        let name = shown(&words::whose(&whose), terminal.width, terminal.unicode);
        let _ = writeln!(out, "{}", painted(&name, Style::new().bold()));
        for row in rows {
            let mut name = shown(&words::about(&row.about), gutter - 3, terminal.unicode);
            for track in row.tracks {
                let line = line(&track, scale, terminal.unicode);
                let name = std::mem::take(&mut name);
                let _ = writeln!(out, "{}", format!("  {name:<0$}{line}", gutter - 2).trim_end());
            }
        }
    }
    out.push('\n');
    notes(&mut out, timeline, terminal);
    sum(&mut out, timeline, terminal);
    out.trim_end().to_owned()
}

fn shown(name: &str, room: usize, unicode: bool) -> String {
    let name = cut(name, room);
    if unicode { name.into_owned() } else { name.replace('…', "~") }
}

/// Where times are.
#[derive(Clone, Copy)]
struct Scale {
    window: Window,
    columns: usize,
}

impl Scale {
    fn column(&self, at: Duration) -> usize {
        let Window { since, until } = self.window;
        let span = until.saturating_sub(since).as_nanos().max(1);
        let at = at.clamp(since, until).saturating_sub(since).as_nanos();
        let columns = self.columns as u128;
        usize::try_from(at * columns / span).unwrap_or(usize::MAX).min(self.columns - 1)
    }
}

fn axis(out: &mut String, timeline: &Timeline, scale: Scale, gutter: usize, unicode: bool) {
    let [line, tick] = if unicode { ['─', '┬'] } else { ['-', '+'] };
    let mut ruler = vec![line; scale.columns];
    let mut labels = String::new();
    let most = u32::try_from(scale.columns / TICK).unwrap_or(u32::MAX);
    for at in ticks(timeline.window, &timeline.zone, most) {
        let column = scale.column(at.at);
        ruler[column] = tick;
        let used = labels.chars().count();
        // A label that would stand beyond the end stands before its tick.
        let from = column.min(scale.columns.saturating_sub(at.label.chars().count()));
        if used == 0 || from > used {
            let _ = write!(labels, "{:1$}{2}", "", from - used, at.label);
        }
    }
    let ruler: String = ruler.into_iter().collect();
    let faint = Style::new().dimmed();
    let _ = writeln!(out, "{:gutter$}{}", "", painted(&labels, faint));
    let _ = writeln!(out, "{:gutter$}{}", "", painted(&ruler, faint));
}

/// The sign of a kind of mark, and what fills a bar of it.
fn sign(kind: Kind, unicode: bool) -> (char, char) {
    use LogEvent::{
        Dropped, Failed, Killed, Lost, Observed, Ok, Refused, Released, Skipped, Unknown, Unsealed,
    };
    let pick = |fine: char, plain: char| if unicode { fine } else { plain };
    let bar = pick('━', '#');
    let open = pick('┈', '-');
    match kind {
        Kind::Event(Ok) => (bar, bar),
        Kind::Event(Failed) => ('F', bar),
        Kind::Event(Lost) => ('!', bar),
        Kind::Event(Killed) => ('K', bar),
        Kind::Event(Unknown) => ('?', open),
        Kind::Event(Released) => (pick('─', '='), pick('─', '=')),
        Kind::Event(Observed) => (pick('╍', '~'), pick('╍', '~')),
        Kind::Event(Unsealed) => ('N', 'N'),
        Kind::Event(Skipped) => (pick('·', '.'), pick('·', '.')),
        Kind::Event(Dropped) => (pick('○', 'o'), pick('○', 'o')),
        Kind::Event(Refused) => (pick('×', 'x'), pick('×', 'x')),
        Kind::Event(_) => ('@', '@'),
        Kind::Other => ('*', '*'),
        Kind::Gap => (pick('░', '_'), pick('░', '_')),
    }
}

fn style(kind: Kind) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match kind {
        Kind::Event(LogEvent::Ok) => colour(AnsiColor::Blue),
        Kind::Event(LogEvent::Failed | LogEvent::Unsealed) => colour(AnsiColor::Red),
        Kind::Event(LogEvent::Lost) | Kind::Gap => colour(AnsiColor::Magenta),
        Kind::Event(LogEvent::Refused) => colour(AnsiColor::Red) | Effects::BOLD,
        Kind::Event(LogEvent::Unknown) => colour(AnsiColor::Yellow),
        _ => Style::new().dimmed(),
    }
}

fn painted(text: &str, style: Style) -> String {
    if text.is_empty() { String::new() } else { format!("{}{text}{}", style.render(), style.render_reset()) }
}

/// One track, with colours.
fn line(track: &[Mark], scale: Scale, unicode: bool) -> String {
    let mut cells: Vec<(char, Style)> = vec![(' ', Style::new()); scale.columns];
    let mut put = |at: usize, c: char, style: Style| {
        if let Some(cell) = cells.get_mut(at) {
            *cell = (c, style);
        }
    };
    let mut free = 0;
    let from_to = |mark: &Mark, free: usize| {
        let from = scale.column(mark.start).max(free).min(scale.columns - 1);
        let to = if mark.kind.lasts() { scale.column(mark.end).max(from) } else { from };
        (from, to)
    };
    for (number, mark) in track.iter().enumerate() {
        let (from, to) = from_to(mark, free);
        let (end, fill) = sign(mark.kind, unicode);
        let style = style(mark.kind);
        let stop = mark.overtaken.map_or(to, |at| scale.column(at).clamp(from, to));
        for at in from..=to {
            let c = match at {
                at if at == stop => end,
                at if at > stop => sign(Kind::Event(LogEvent::Unknown), unicode).1,
                _ => fill,
            };
            put(at, c, style);
        }
        let next = track.get(number + 1).map_or(scale.columns + 1, |next| from_to(next, to + 1).0);
        let placed = words::labels(mark).into_iter().find_map(|label| {
            let label = if unicode { label } else { label.replace('×', "x") };
            let length = label.chars().count();
            match () {
                () if to + 2 + length < next => Some((to + 2, label)),
                () if from >= free + length + 2 => Some((from - length - 1, label)),
                () => None,
            }
        });
        free = to + 1;
        if let Some((at, label)) = placed {
            let plain = if mark.kind.lasts() { Style::new() } else { style };
            for (offset, c) in label.chars().enumerate() {
                put(at + offset, c, plain);
            }
            free = free.max(at + label.chars().count() + 1);
        }
    }
    coloured(&cells)
}

fn coloured(cells: &[(char, Style)]) -> String {
    let end = cells.iter().rposition(|(c, _)| *c != ' ').map_or(0, |last| last + 1);
    let mut out = String::new();
    for chunk in cells[..end].chunk_by(|a, b| a.1 == b.1) {
        let text: String = chunk.iter().map(|(c, _)| c).collect();
        out.push_str(&if chunk[0].1 == Style::new() { text } else { painted(&text, chunk[0].1) });
    }
    out
}

fn notes(out: &mut String, timeline: &Timeline, terminal: Terminal) {
    let times = Times::new(timeline);
    let records = timeline.records();
    let notes: Vec<(&Mark, String)> =
        records.into_iter().filter_map(|mark| Some((mark, words::note(mark, timeline)?))).collect();
    let before = notes.len().saturating_sub(NOTES);
    for (mark, note) in &notes[before..] {
        let head = format!("{} {}", times.at(mark.end), sign(mark.kind, terminal.unicode).0);
        wrapped(out, &head, INDENT, note, terminal.width);
    }
    if before > 0 {
        wrapped(out, "", "", &say::more_notes(before), terminal.width);
    }
    if timeline.cut {
        wrapped(out, "", "", &say::cut(), terminal.width);
    }
    if !notes.is_empty() {
        out.push('\n');
    }
}

/// How many there are of each kind, with their signs.
fn sum(out: &mut String, timeline: &Timeline, terminal: Terminal) {
    // Each of them stays on one line.
    let counts = timeline.counts().into_iter().map(|(kind, count)| {
        let counted = say::counted(words::meaning(kind), count);
        format!("{} {counted}", sign(kind, terminal.unicode).0).replace(' ', "\u{a0}")
    });
    let mut line = String::new();
    wrapped(&mut line, "", "", &counts.collect::<Vec<_>>().join("  "), terminal.width);
    out.push_str(&line.replace('\u{a0}', " "));
}

/// A text after a head, in lines of this width; all but the first begin with `indent`.
fn wrapped(out: &mut String, head: &str, indent: &str, text: &str, width: usize) {
    let mut line = head.to_owned();
    for (words, word) in text.split(' ').enumerate() {
        if words > 0 && line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = indent.to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{}", line.trim_end());
}
