//! Where output goes: lines for people to stderr, objects of `--json` to stdout.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::poll::takes_a_line;
use leasehold::text::{escaped, one_line};
use serde_json::{Value, json};

use crate::args::{Color, Everywhere};
use crate::exit::Failed;
use crate::messages::report as messages;

/// How much is said, and how.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// One object per line on stdout.
    pub json: bool,
    /// Only what is wrong.
    pub quiet: bool,
    /// Details too.
    pub verbose: bool,
    /// stderr is a terminal.
    terminal: bool,
    /// Leave a line out rather than wait for the reader of stderr.
    hurried: bool,
}

impl Out {
    /// As the flags say.
    pub fn new(flags: &Everywhere) -> Self {
        let choice = match flags.color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        };
        if flags.color != Color::Auto {
            choice.write_global();
        }
        Self {
            json: flags.json,
            quiet: flags.quiet,
            verbose: flags.verbose,
            terminal: std::io::stderr().is_terminal(),
            hurried: false,
        }
    }

    /// Without flags and without a terminal.
    pub fn plain() -> Self {
        Self { json: false, quiet: false, verbose: false, terminal: false, hurried: false }
    }

    /// The same while a job runs: a reader that stopped must not keep this process from ending the job.
    pub fn hurried(&self) -> Self {
        Self { hurried: true, ..*self }
    }

    /// Whether ordinary events get a line: stderr is a terminal, or --verbose was given.
    pub fn chatty(&self) -> bool {
        !self.quiet && (self.terminal || self.verbose)
    }

    /// A line about an ordinary event.
    pub fn chat(&self, text: &str) {
        if self.chatty() {
            self.say(text);
        }
    }

    /// A line that is always said, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// A line that is always said, also with `--quiet`: something is wrong.
    pub fn warn(&self, text: &str) {
        self.say(text);
    }

    /// A detail, with `--verbose` only.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.say(text);
        }
    }

    /// A failure: the sentences on stderr; with `--json` as an object there.
    pub fn fail(&self, failed: &Failed) {
        if self.json {
            let error =
                json!({"code": failed.word, "message": failed.told.to_string(), "exit": failed.code()});
            let object = escaped(&json!({"v": 1, "error": error}).to_string());
            let _ = std::io::stderr().write_all(format!("{object}\n").as_bytes());
        } else {
            self.say(&failed.told.to_string());
        }
    }

    fn say(&self, text: &str) {
        let text = one_line(text);
        // A pipe that says it is ready has room for this much, not for a line of any length.
        let text = if self.hurried { shortened(&text) } else { text.into() };
        if self.hurried && !takes_a_line(std::io::stderr().as_fd()) {
            return;
        }
        // In one write: others may write to the same pipe.
        let _ = anstream::stderr().lock().write_all(format!("leasehold: {text}\n").as_bytes());
    }

    /// One object on stdout; whether anyone still reads.
    pub fn object(&self, value: &Value) -> bool {
        // Not through anstream: what removes colours removes other characters too.
        written(writeln!(io::stdout().lock(), "{}", escaped(&value.to_string())))
    }
}

/// A table on stdout, the first row its head. Whether anyone still reads.
pub fn table(rows: &[Vec<String>]) -> bool {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    rows.iter().all(|row| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", *width)).collect();
        as_is(cells.join("  ").trim_end())
    })
}

/// A line on stdout, for people. Whether anyone still reads.
pub fn line(text: &str) -> bool {
    as_is(&one_line(text))
}

/// Text on stdout for a shell, or with colours: the caller has called `one_line` on text that others wrote. Whether
/// anyone still reads; a closed pipe is no reason to panic.
pub fn as_is(text: &str) -> bool {
    written(writeln!(anstream::stdout().lock(), "{text}"))
}

/// Some output could not be written, and not because its reader closed the pipe.
static UNWRITTEN: AtomicBool = AtomicBool::new(false);

/// Whether it could be written. If not, [`all_written`] fails.
pub fn written(result: io::Result<()>) -> bool {
    if result.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::BrokenPipe) {
        UNWRITTEN.store(true, Ordering::Relaxed);
    }
    result.is_ok()
}

/// Whether some output could not be written.
pub fn lost() -> bool {
    UNWRITTEN.load(Ordering::Relaxed)
}

/// The code, unless some output could not be written.
pub fn all_written(code: u8) -> Result<u8, Failed> {
    if lost() { Err(messages::output_lost()) } else { Ok(code) }
}

/// Lines on stderr, as they are.
pub fn say(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "leasehold: {text}");
}

/// At most what a pipe takes at once.
fn shortened(text: &str) -> std::borrow::Cow<'_, str> {
    const MOST: usize = 1_000;
    match text.char_indices().find(|(at, _)| *at >= MOST) {
        None => text.into(),
        Some((at, _)) => format!("{} …", &text[..at]).into(),
    }
}
