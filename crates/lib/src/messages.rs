//! Sentences for people. Each stands once, in a catalogue; `docs/messages.md` lists them all.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A failure in three parts: what happened, what it means for the job, what to do next.
///
/// A caller that passes a failure on can replace one part and keep the others. A part may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// What happened.
    pub what: String,
    /// What it means for the job: mostly that nothing was run or written.
    pub means: String,
    /// What to do, with the command to type.
    pub next: String,
}

impl Explanation {
    /// Only what happened.
    pub fn of(what: impl fmt::Display) -> Self {
        Self::parts(what, "", "")
    }

    /// All three parts. The full stops between them are put in when they are shown.
    pub fn parts(what: impl fmt::Display, means: impl fmt::Display, next: impl fmt::Display) -> Self {
        let part = |text: &dyn fmt::Display| {
            let text = text.to_string();
            text.strip_suffix('.').map_or(text.clone(), Into::into)
        };
        Self { what: part(&what), means: part(&means), next: part(&next) }
    }

    /// The same about one of several things.
    pub fn of_one(self, name: impl fmt::Display) -> Self {
        Self { what: format!("{name}: {}", self.what), ..self }
    }

    /// The same with another meaning for the job.
    pub fn meaning(self, means: impl fmt::Display) -> Self {
        Self { means: means.to_string(), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<&str> = None;
        for part in [&self.what, &self.means, &self.next].into_iter().filter(|part| !part.is_empty()) {
            match before {
                None => {}
                Some(text) if text.ends_with(['.', '?', '!', ':']) => f.write_str(" ")?,
                Some(_) => f.write_str(". ")?,
            }
            f.write_str(part)?;
            before = Some(part);
        }
        Ok(())
    }
}

/// One sentence of a catalogue, with its placeholders.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name in the catalogue.
    pub name: &'static str,
    /// The exit code and the word of `--json`, where it has them.
    pub exit: Option<(&'static str, &'static str)>,
    /// What happened, what it means, what to do next.
    pub parts: [&'static str; 3],
}

/// The catalogue of one command or one part of the library.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue {
    /// Its name: that of the command.
    pub name: &'static str,
    /// When these sentences are said.
    pub about: &'static str,
    /// The sentences.
    pub entries: &'static [&'static [Entry]],
}

/// Lines: each becomes a function that fills in its placeholders, and an entry of `NOTES`.
#[macro_export]
macro_rules! notes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) $text:literal;)*) => {
        $($(#[$doc])* #[doc = concat!("“", $text, "”")]
        pub fn $name($($arg: impl ::std::fmt::Display),*) -> String { format!($text) })*
        /// Every line of this catalogue.
        #[allow(dead_code)] // a program reads them only to list them
        pub const NOTES: &[$crate::messages::Entry] = &[$($crate::messages::Entry {
            name: stringify!($name),
            exit: None,
            parts: [$text, "", ""],
        }),*];
    };
}

/// Explanations: each becomes a function that fills in its placeholders, and an entry of `EXPLANATIONS`.
#[macro_export]
macro_rules! explanations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) { $what:literal $means:literal $next:literal })*) => {
        $($(#[$doc])* #[doc = concat!("“", $what, "”")]
        pub fn $name($($arg: impl ::std::fmt::Display),*) -> $crate::messages::Explanation {
            $crate::messages::Explanation::parts(format!($what), format!($means), format!($next))
        })*
        /// Every explanation of this catalogue.
        #[allow(dead_code)] // a program reads them only to list them
        pub const EXPLANATIONS: &[$crate::messages::Entry] = &[$($crate::messages::Entry {
            name: stringify!($name),
            exit: None,
            parts: [$what, $means, $next],
        }),*];
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    notes! {
        sample(name) "skipped {name}";
    }

    explanations! {
        refused(name) { "{name} said no." "Nothing was run." "Ask: leasehold status {name}" }
    }

    #[test]
    fn parts_are_joined_by_one_full_stop() {
        let all = refused("site");
        assert_eq!(all.to_string(), "site said no. Nothing was run. Ask: leasehold status site");
        assert_eq!(all.meaning("").to_string(), "site said no. Ask: leasehold status site");
        assert_eq!(Explanation::of("Is the disk full?").meaning("No").to_string(), "Is the disk full? No");
        assert_eq!(sample("site"), "skipped site");
        assert_eq!((NOTES.len(), EXPLANATIONS[0].parts[1]), (1, "Nothing was run."));
    }
}
