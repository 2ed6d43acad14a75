//! From the words that were typed to the command.

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use leasehold::text::one_line;

use super::{Cli, Command, Everywhere, RunArgs};

/// The same with `run` alone: what every job waits for need not build the parsers of all other commands.
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
        // What is wrong is told in the words that were typed: they may do nothing to a terminal.
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
