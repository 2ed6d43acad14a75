//! Every command that a message tells people to type exists, and parses.

use clap::{CommandFactory, Parser};

use super::CATALOGUES;
use crate::args::Cli;

/// What stands for a placeholder in a command.
fn value(placeholder: &str) -> &'static str {
    match placeholder {
        "target" | "typed" | "url" | "fence" => "file:x",
        "store" | "shown" | "other" => "sqlite:/x.db",
        "others" => "refuse",
        "token" => "7",
        "ttl" | "time" | "wait" => "90s",
        "slot" | "item" => "site@2026-11-18T06:30+00:00",
        _ => "site",
    }
}

/// The commands in a text, as they would be typed.
fn commands(text: &str) -> Vec<String> {
    let known: Vec<String> = Cli::command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
    let mut found = Vec::new();
    for (at, _) in text.match_indices("leasehold ") {
        let (before, from) = (&text[..at], &text[at..]);
        let word = from["leasehold ".len()..].split(|c: char| !c.is_ascii_lowercase() && c != '-').next();
        let told = before.ends_with(": ") || before.ends_with('`') || before.is_empty();
        let typed = word.is_some_and(|word| known.iter().any(|name| name == word));
        // Part of another command.
        let inner = before.ends_with("-- ") || before.ends_with("&& ");
        if inner || !(told || typed) {
            continue;
        }
        let end = ["`", "; ", ". ", " (", ") ", ", ", " —", "\"", " to ", " and ", " or ", ") "]
            .iter()
            .filter_map(|stop| from.find(stop))
            .min()
            .unwrap_or(from.len());
        found.push(from[..end].trim_end_matches(['.', ':', ')']).to_owned());
    }
    found
}

/// The words of a command; what stands between quotes is one.
fn words(command: &str) -> Vec<String> {
    let quoted = command.split('\'').enumerate();
    let words = quoted.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().map(filled).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

fn filled(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(value(name));
        rest = after;
    }
    text + rest
}

fn wrong(text: &str) -> Vec<String> {
    // The name of a command alone is how people speak of it.
    let is_name = |words: &[String]| {
        words.len() == 2 && Cli::command().get_subcommands().any(|c| c.get_name() == words[1])
    };
    let parses = |command: &String| match Cli::try_parse_from(words(command)) {
        Ok(_) => true,
        Err(error) => !error.use_stderr() || is_name(&words(command)),
    };
    commands(text).into_iter().filter(|command| !parses(command)).collect()
}

#[test]
fn every_command_that_a_message_names_parses() {
    let (mut count, mut bad) = (0, Vec::new());
    for catalogue in CATALOGUES {
        for entry in catalogue.entries.iter().copied().flatten() {
            for part in entry.parts {
                count += commands(part).len();
                bad.extend(
                    wrong(part).into_iter().map(|w| format!("{}.{}: {w}", catalogue.name, entry.name)),
                );
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(count > 30, "few commands were found: {count}");
}

#[test]
fn a_command_that_does_not_exist_is_caught() {
    let good =
        "it is held. See: leasehold status {lease}. `leasehold run NAME -- CMD`; upgrade leasehold here";
    assert_eq!(wrong(good), Vec::<String>::new());
    assert_eq!(commands(good).len(), 2);
    assert_eq!(wrong("Type: leasehold foo {lease}").len(), 1);
    assert_eq!(wrong("Then leasehold status --nonsense").len(), 1);
}
