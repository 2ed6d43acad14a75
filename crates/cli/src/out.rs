//! What we say and where: human lines on stderr, `--json` on stdout, nothing in between the job's own.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use crate::args::{Color, Everywhere};
use crate::exit::Failed;

/// How to talk.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// One object per line on stdout.
    pub json: bool,
    /// Nothing, unless something is wrong.
    pub quiet: bool,
    verbose: bool,
    /// Somebody is watching stderr.
    terminal: bool,
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
        }
    }

    /// Whether the ordinary course of things is worth a line: somebody watches, or asked for it.
    pub fn chatty(&self) -> bool {
        !self.quiet && (self.terminal || self.verbose)
    }

    /// A line for the ordinary course of things.
    pub fn chat(&self, text: &str) {
        if self.chatty() {
            say(text);
        }
    }

    /// A line that is always said, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// A line that is said whatever was asked for: something is wrong.
    pub fn warn(&self, text: &str) {
        say(text);
    }

    /// A detail, with `--verbose` only.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            say(text);
        }
    }

    /// A failure: the sentences on stderr; with `--json` as an object there.
    pub fn fail(&self, failed: &Failed) {
        if self.json {
            let error = json!({"code": failed.word, "message": failed.message, "exit": failed.code});
            let _ = writeln!(std::io::stderr(), "{}", json!({"v": 1, "error": error}));
        } else {
            say(&failed.message);
        }
    }

    /// One object on stdout.
    pub fn object(&self, value: &Value) {
        line(&value.to_string());
    }
}

/// A line on stdout. A reader that went away is no reason to panic.
pub fn line(text: &str) {
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

fn say(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "leasehold: {text}");
}
