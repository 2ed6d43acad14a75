//! `leasehold help`, `help exit-codes`, `help leasehold.toml`, completions and the manual page.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use leasehold::text::one_line;
use leasehold_run::handoff;

use crate::args::{Cli, CompletionsArgs, HelpArgs, ManArgs};
use crate::exit::{self, Failed};
use crate::messages::help as say;
use crate::out;

/// Commands that only Leasehold itself starts.
const INTERNAL: [&str; 2] = [handoff::COMMAND, "demo-actor"];

/// Help for a command, the exit codes, or the file of jobs.
pub fn help(args: &HelpArgs) -> Result<u8, Failed> {
    let mut cli = Cli::command();
    let topic: Vec<&str> = args.topic.iter().map(String::as_str).collect();
    match &topic[..] {
        [] => out::written(cli.print_help()),
        ["exit-codes"] => out::as_is(&exit_codes()),
        ["leasehold.toml"] => out::as_is(&leasehold_run::jobs::reference()),
        // The same as `leasehold TOPIC --help`.
        words => {
            let typed = ["leasehold"].iter().chain(words).chain(&["--help"]);
            cli.build();
            match (Cli::try_parse_from(typed), below(&cli, words)) {
                (Err(help), Some(_)) if help.kind() == ErrorKind::DisplayHelp => out::written(help.print()),
                _ => return Err(no_command(&topic.join(" "))),
            }
        }
    };
    Ok(exit::OK)
}

/// The table of exit codes.
fn exit_codes() -> String {
    let rows = [
        ("0", say::exit_0()),
        ("1", say::exit_1()),
        ("11", say::exit_11()),
        ("64", say::exit_64()),
        ("69", say::exit_69()),
        ("75", say::exit_75()),
        ("76", say::exit_76()),
        ("77", say::exit_77()),
        ("78", say::exit_78()),
        ("79", say::exit_79()),
        ("126", say::exit_126()),
        ("127", say::exit_127()),
        ("128+n", say::exit_128()),
    ];
    let rows: Vec<String> = rows.iter().map(|(code, meaning)| format!("  {code:<6}{meaning}")).collect();
    format!("{}\n\n{}\n\n{}", say::exit_codes(), rows.join("\n"), say::exit_codes_of_commands())
}

/// A completion script on stdout.
pub fn completions(args: &CompletionsArgs) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    out::as_is(String::from_utf8_lossy(&script).trim_end());
    exit::OK
}

/// The manual page on stdout: of one command, or of everything.
pub fn man(args: &ManArgs) -> Result<u8, Failed> {
    let mut cli = Cli::command();
    cli.build();
    let commands = || cli.get_subcommands().filter(|c| !c.is_hide_set());
    let words: Vec<&str> = args.name.iter().map(String::as_str).collect();
    let pages = match words.is_empty() {
        false => page(below(&cli, &words).ok_or_else(|| no_command(&words.join(" ")))?),
        true => std::iter::once(page(&cli)).chain(commands().map(page)).collect(),
    };
    out::as_is(pages.trim_end());
    Ok(exit::OK)
}

/// The command that these words name, one below the other.
fn below<'a>(cli: &'a clap::Command, words: &[&str]) -> Option<&'a clap::Command> {
    words.iter().try_fold(cli, |command, word| command.find_subcommand(word))
}

fn page(command: &clap::Command) -> String {
    let mut page = Vec::new();
    let full = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    // In memory: it cannot fail.
    let _ = clap_mangen::Man::new(command.clone()).title(full).render(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

fn no_command(name: &str) -> Failed {
    say::no_command(format!("{name:?}"))
}

/// The exit code for a command line that clap refused. Its own code, 2, would mean "block" to an agent's hook.
pub fn usage(mut error: clap::Error) -> u8 {
    without_internal(&mut error);
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            out::written(error.print());
            out::all_written(exit::OK).unwrap_or_else(|failed| failed.code())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            exit::USAGE
        }
        _ => {
            let text = error.render().to_string();
            out::say(text.trim_start_matches("error: ").trim_end());
            let typed: Vec<String> =
                std::env::args_os().skip(1).map(|word| one_line(&word.to_string_lossy())).collect();
            if error.kind() == ErrorKind::MissingRequiredArgument
                && let Some(word) = read_as_name(&typed)
            {
                out::say(&say::read_as_name(word));
            }
            if for_eval(std::env::args_os()) {
                out::line(&format!("(exit {})", exit::USAGE));
            }
            exit::USAGE
        }
    }
}

/// Of `run -- COMMAND`, the word that was read as the name.
fn read_as_name(typed: &[String]) -> Option<&str> {
    match typed.split(|word| word == "--").collect::<Vec<_>>()[..] {
        [[command, ..], [word]] if command == "run" => Some(word),
        _ => None,
    }
}

/// Suggests no command that only Leasehold itself starts.
fn without_internal(error: &mut clap::Error) {
    if let Some(ContextValue::Strings(mut words)) = error.remove(ContextKind::SuggestedSubcommand) {
        words.retain(|word| !INTERNAL.contains(&word.as_str()));
        if !words.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(words));
        }
    }
}

/// Whether a shell evaluates the output: `acquire --eval`.
fn for_eval(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let args: Vec<_> = args.skip(1).take_while(|arg| arg != "--").collect();
    args.iter().any(|arg| arg == "acquire") && args.iter().any(|arg| arg == "--eval")
}
