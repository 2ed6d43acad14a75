//! From the words of the command line to the command.

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use leasehold::text::one_line;

use super::{Cli, Command, Everywhere, RunArgs};

/// The command line with `run` alone. Every job waits for `run`, and building the parsers of all other commands would cost
/// half as many instructions again as the whole `run x -- true` (callgrind, debug build).
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, disable_help_subcommand = true, propagate_version = true)]
struct RunAlone {
    #[command(flatten)]
    everywhere: Everywhere,
    #[command(subcommand)]
    command: OnlyRun,
}

#[derive(Debug, Subcommand)]
enum OnlyRun {
    /// Run a command while holding a lease
    Run(RunArgs),
}

/// What was typed.
pub fn parse() -> Result<Cli, clap::Error> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    parsed(&typed).map_err(|error| {
        // The error repeats the words: control characters in them must not reach the terminal.
        let shown: Vec<_> = typed.iter().map(|word| one_line(&word.to_string_lossy()).into()).collect();
        parsed(&shown).err().unwrap_or(error)
    })
}

fn parsed(words: &[OsString]) -> Result<Cli, clap::Error> {
    if words.get(1).is_some_and(|first| first == "run") {
        let RunAlone { everywhere, command: OnlyRun::Run(run) } = RunAlone::try_parse_from(words)?;
        return Ok(Cli { everywhere, command: Command::Run(run) });
    }
    Cli::try_parse_from(words)
}
