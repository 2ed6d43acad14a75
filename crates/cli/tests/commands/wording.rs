//! The words of docs/glossary.md, and no others for the same things, in messages, help and the documents of users.

use std::path::Path;
use std::process::Command;

use crate::world::binary;

/// What each of these is called instead is in docs/glossary.md, or it belongs to docs/protocol.md alone.
const FORBIDDEN: [&str; 32] = [
    "announced",
    "astray",
    "at it already",
    "epoch",
    "epochs",
    "fencing token",
    "go over",
    "goes over",
    "gone over",
    "grant",
    "granted",
    "grants",
    "held off",
    "in vain",
    "let in",
    "lets in",
    "lives of the record",
    "lock holder",
    "reseal",
    "seal",
    "sealed",
    "sealing",
    "seals",
    "unheard",
    "unseal",
    "unsealed",
    "wave off",
    "waved off",
    "waves off",
    "went round",
    "write id",
    "write ids",
];

/// Documents that explain the words to those who want to know.
const EXPLAIN: [&str; 4] =
    ["docs/protocol.md", "docs/store-protocol.md", "docs/lessons.md", "docs/object-stores.md"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The text without code, names of files and links: those are names, and stay as they are.
fn prose(text: &str) -> String {
    let outside = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    let spans: Vec<&str> = outside.split('`').step_by(2).collect();
    let mut plain = String::new();
    for (at, part) in spans.join(" ").split("](").enumerate() {
        let part = if at == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        plain.push_str(part);
    }
    plain
}

/// The forbidden words in a text, each with the words around it.
fn found(text: &str) -> Vec<String> {
    let prose = prose(text).to_lowercase();
    let words: Vec<&str> = prose.split_whitespace().collect();
    // A word with a dash or an underscore is a name.
    let bare =
        |word: &&str| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').to_owned();
    let bare: Vec<String> = words.iter().map(bare).collect();
    let mut found = Vec::new();
    for phrase in FORBIDDEN {
        let parts: Vec<&str> = phrase.split(' ').collect();
        for (at, window) in bare.windows(parts.len()).enumerate() {
            if window.iter().zip(&parts).all(|(word, part)| word == part) {
                let around = &words[at.saturating_sub(4)..(at + parts.len() + 4).min(words.len())];
                found.push(format!("{phrase:?} in “{}”", around.join(" ")));
            }
        }
    }
    found
}

fn documents() -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "README.md", "docs", "packaging"]).current_dir(root());
    let output = git.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let user = |name: &&str| {
        name.ends_with(".md") && !name.starts_with("docs/decisions/") && !EXPLAIN.contains(name)
    };
    names.lines().filter(user).map(String::from).collect()
}

#[test]
fn documents_and_messages_use_the_words_of_the_glossary() {
    let names = documents();
    assert!(names.iter().any(|name| name == "docs/messages.md") && names.len() > 10, "{names:?}");
    let text = |name: &String| std::fs::read_to_string(root().join(name)).unwrap();
    let wrong: Vec<String> = names
        .iter()
        .flat_map(|name| found(&text(name)).into_iter().map(move |word| format!("{name}: {word}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn help(args: &[&str]) -> String {
    let output = Command::new(binary()).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_uses_the_words_of_the_glossary() {
    let all = help(&["--help"]);
    let listed = all.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let commands: Vec<&str> = listed.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase())).collect();
    assert!(commands.contains(&"run") && commands.contains(&"doctor"), "{commands:?}");
    let mut wrong: Vec<String> = found(&all);
    for command in commands.iter().filter(|command| !["leasehold", "help"].contains(command)) {
        wrong.extend(
            found(&help(&[command, "--help"])).into_iter().map(|word| format!("{command} --help: {word}")),
        );
    }
    wrong.extend(["exit-codes", "leasehold.toml"].into_iter().flat_map(|page| found(&help(&["help", page]))));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_forbidden_word_is_caught() {
    assert_eq!(found("The second run was Waved off.").len(), 1);
    assert_eq!(found("a run that was sealed, and its epoch").len(), 2);
    assert_eq!(
        found("see `sealed`, [x](docs/seal.md) and not-sealed\n```\nseal\n```\n"),
        Vec::<String>::new()
    );
}
