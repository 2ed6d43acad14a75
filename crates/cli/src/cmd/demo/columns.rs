//! Prints two columns; one after the other if the terminal is narrow.

use anstyle::{AnsiColor, Style};
use leasehold::text::one_line;

use crate::messages::demo as say;
use crate::out;

const WIDEST: usize = 110;
const NARROWEST: usize = 72;
const GAP: usize = 3;

/// A text and its style.
#[derive(Clone, Debug)]
pub struct StyledLine {
    style: Style,
    text: String,
}

/// Without a style.
pub fn plain(text: impl Into<String>) -> StyledLine {
    StyledLine { style: Style::new(), text: text.into() }
}

/// A good result.
pub fn good(text: impl Into<String>) -> StyledLine {
    StyledLine { style: AnsiColor::Green.on_default().bold(), text: text.into() }
}

/// A bad result.
pub fn bad(text: impl Into<String>) -> StyledLine {
    StyledLine { style: AnsiColor::Red.on_default().bold(), text: text.into() }
}

/// The words of a process.
pub fn quoted(text: impl Into<String>) -> StyledLine {
    StyledLine { style: AnsiColor::Cyan.on_default(), text: text.into() }
}

/// The terminal.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    width: usize,
    shown: bool,
}

impl Screen {
    /// As wide as the terminal, or 80 (COLUMNS) where there is none.
    pub fn new(shown: bool) -> Self {
        let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let terminal = terminal.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        let wished = || std::env::var("COLUMNS").ok()?.parse().ok();
        Self { width: terminal.or_else(wished).unwrap_or(80).clamp(24, WIDEST), shown }
    }

    /// An empty line.
    pub fn gap(self) {
        self.print("");
    }

    /// A paragraph across both columns.
    pub fn say(self, paragraph: &StyledLine) {
        for line in wrapped(&paragraph.text, self.width) {
            self.print(&styled(paragraph.style, &line));
        }
    }

    /// A command to copy, never wrapped; and its effect, if there is room.
    pub fn command(self, command: &str, effect: &str) {
        if self.side_by_side() {
            self.print(&format!("  {command:<36}{effect}"));
        } else {
            self.print(&format!("  {command}"));
        }
    }

    /// A heading.
    pub fn heading(self, text: &str) {
        self.gap();
        self.say(&StyledLine { style: Style::new().bold(), text: text.into() });
    }

    /// The heads of the columns.
    pub fn titles(self) {
        self.gap();
        let (left, right) = (say::with(), say::without());
        if self.side_by_side() {
            self.both(&[good(left)], &[bad(right)]);
            let rule = "\u{2500}".repeat(self.column());
            self.both(&[plain(rule.clone())], &[plain(rule)]);
        } else {
            self.say(&plain(say::in_turn(left, right)));
        }
    }

    /// The same step on both sides.
    pub fn step(self, left: &[StyledLine], right: &[StyledLine]) {
        if self.side_by_side() {
            return self.both(left, right);
        }
        let titles = [good(format!("{}:", say::with())), bad(format!("{}:", say::without()))];
        for (title, column) in titles.iter().zip([left, right]) {
            self.say(title);
            for text in column {
                for line in wrapped(&text.text, self.width - 2) {
                    self.print(&format!("  {}", styled(text.style, &line)));
                }
            }
        }
    }

    fn side_by_side(self) -> bool {
        self.width >= NARROWEST
    }

    fn column(self) -> usize {
        (self.width - GAP) / 2
    }

    fn both(self, left: &[StyledLine], right: &[StyledLine]) {
        let cells = |column: &[StyledLine]| -> Vec<(Style, String)> {
            let lines = column.iter().flat_map(|text| {
                wrapped(&text.text, self.column()).into_iter().map(|line| (text.style, line))
            });
            lines.collect()
        };
        let (left, right) = (cells(left), cells(right));
        let none = (Style::new(), String::new());
        for n in 0..left.len().max(right.len()) {
            let (style, text) = left.get(n).unwrap_or(&none);
            let padding = " ".repeat(self.column().saturating_sub(text.chars().count()) + GAP);
            let (other_style, other) = right.get(n).unwrap_or(&none);
            let line = format!("{}{padding}{}", styled(*style, text), styled(*other_style, other));
            self.print(line.trim_end());
        }
    }

    fn print(self, line: &str) {
        if self.shown {
            out::as_is(line);
        }
    }
}

fn styled(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{}{style:#}", one_line(text)) }
}

/// Lines of at most `width` characters, broken between words; a longer word is broken.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let mut rest: &[char] = &word.chars().collect::<Vec<_>>();
        if used > 0 && used + 1 + rest.len() > width {
            lines.push(String::new());
            used = 0;
        }
        while !rest.is_empty() {
            let room = width.saturating_sub(used + usize::from(used > 0)).max(1);
            let (now, later) = rest.split_at(room.min(rest.len()));
            if let Some(line) = lines.last_mut() {
                line.extend((used > 0).then_some(' ').iter().chain(now));
            }
            used += now.len() + usize::from(used > 0);
            rest = later;
            if !rest.is_empty() {
                lines.push(String::new());
                used = 0;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn words_are_kept_whole_where_they_fit() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("one", 3), ["one"]);
        assert_eq!(wrapped("", 3), [""]);
        assert_eq!(wrapped("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrapped("ä ö ü", 3), ["ä ö", "ü"]);
    }
}
