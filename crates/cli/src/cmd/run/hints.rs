//! Hints for a command that cannot be run.

use std::ffi::OsStr;
use std::path::Path;

use leasehold::messages::Explanation;
use leasehold_run::runner::lookup::lookup;

use crate::args::RunArgs;
use crate::exit::Failed;
use crate::messages::run as say;

/// Long dashes, as word processors and web pages make them of `--`.
const LONG_DASHES: [char; 2] = ['\u{2013}', '\u{2014}'];

fn on_path(name: &OsStr) -> bool {
    lookup(name, std::env::var_os("PATH").as_deref()).is_ok()
}

/// A hint for a command that was not found.
pub fn unknown_command(args: &RunArgs) -> Option<String> {
    let first = &args.command[0];
    let text = first.to_str()?;
    if text.starts_with(LONG_DASHES) {
        return Some(say::hint_long_dash());
    }
    if is_shell(text) {
        return Some(say::hint_shell(&args.name));
    }
    if !text.is_empty() && !text.contains('/') && Path::new(first).is_file() {
        return Some(say::hint_here(text));
    }
    (on_path(args.name.as_ref()) && !set_apart(&args.name)).then(|| taken_as_name(args))
}

/// Whether the NAME was written before a `--`, and so was meant as the name.
fn set_apart(name: &str) -> bool {
    let words: Vec<_> = std::env::args_os().collect();
    let dashes = words.iter().position(|word| word == "--");
    dashes.is_some_and(|at| words[..at].iter().any(|word| word == name))
}

/// The same for an invalid NAME: it may be the command.
pub fn misplaced_name(failed: Failed, args: &RunArgs) -> Failed {
    if leasehold::core::name::Name::new(&args.name).is_ok() || !on_path(args.name.as_ref()) {
        return failed;
    }
    Failed { told: Explanation { next: taken_as_name(args), ..failed.told }, ..failed }
}

fn taken_as_name(args: &RunArgs) -> String {
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    say::hint_name(&args.name, words.join(" "))
}

/// Whether one word contains shell syntax.
fn is_shell(word: &str) -> bool {
    let variable = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    variable || word.contains([' ', '|', '&', ';', '>', '<'])
}

#[cfg(test)]
mod tests {
    use super::is_shell;

    #[test]
    fn shell_syntax_is_recognised() {
        for word in ["a | b", "a;b", "A=1", "x>y", "make all"] {
            assert!(is_shell(word), "{word}");
        }
        for word in ["", "make", "./a-b", "=", "g++"] {
            assert!(!is_shell(word), "{word}");
        }
    }
}
