//! `leasehold help`, `help exit-codes`, completions and the manual page.

use std::io::Write;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Completions, Help};
use crate::exit::{self, Failed};
use crate::out;

/// Help for a command, or the exit codes.
pub fn help(args: &Help) -> Result<u8, Failed> {
    let mut cli = Cli::command();
    match args.topic.as_deref() {
        None => cli.print_help().ok(),
        Some("exit-codes") => {
            let _ = write!(std::io::stdout(), "{}", exit::TABLE);
            None
        }
        // The same as `leasehold TOPIC --help`, whatever that is.
        Some(topic) => match Cli::try_parse_from(["leasehold", topic, "--help"]) {
            Err(help) if help.kind() == ErrorKind::DisplayHelp && !topic.starts_with('-') => {
                help.print().ok()
            }
            _ => return Err(Failed::usage(format!("there is no command {topic:?}. See: leasehold --help"))),
        },
    };
    Ok(exit::OK)
}

/// A completion script on stdout.
pub fn completions(args: &Completions) -> u8 {
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut std::io::stdout());
    exit::OK
}

/// The manual page on stdout.
pub fn man() -> u8 {
    let mut page = Vec::new();
    if clap_mangen::Man::new(Cli::command()).render(&mut page).is_ok() {
        out::line(String::from_utf8_lossy(&page).trim_end());
    }
    exit::OK
}

/// clap's own 2 is never used: to an agent's hook it would mean "block".
pub fn usage(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            exit::OK
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            exit::USAGE
        }
        _ => {
            let text = error.render().to_string();
            out::say(text.trim_start_matches("error: ").trim_end());
            exit::USAGE
        }
    }
}
