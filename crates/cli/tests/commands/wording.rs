//! The words of docs/glossary.md, and no others for the same things, in messages, help, the documents of users, and the
//! sentences of stores and targets.

use std::path::Path;
use std::process::Command;

use crate::world::binary;

/// What each of these is called instead is in docs/glossary.md, or it belongs to docs/protocol.md alone.
const FORBIDDEN: [&str; 36] = [
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
    "life of the record",
    "lives of the record",
    "lock holder",
    "mend",
    "mended",
    "other side",
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

/// The tracked files in these places.
fn tracked(places: &[&str]) -> Vec<String> {
    let mut git = Command::new("git");
    git.arg("ls-files").args(places).current_dir(root());
    let output = git.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(String::from).collect()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

fn documents() -> Vec<String> {
    let user = |name: &String| {
        name.ends_with(".md") && !name.starts_with("docs/decisions/") && !EXPLAIN.contains(&name.as_str())
    };
    tracked(&["README.md", "docs", "packaging"]).into_iter().filter(user).collect()
}

/// The string literals of a Rust file.
fn literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', '\'', 'r']) {
        let from = &rest[at..];
        let hashes = from[1..].len() - from[1..].trim_start_matches('#').len();
        let is_word = rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if from.starts_with("//") {
            rest = from.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(text) = from.strip_prefix('"') {
            let mut escaped = false;
            let is_end = |c: char| {
                let end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                end
            };
            let end = text.find(is_end).unwrap_or(text.len());
            literals.push(text[..end].replace("\\\n", " ").replace("\\n", " "));
            rest = text.get(end + 1..).unwrap_or_default();
        } else if from.starts_with('r') && from[1 + hashes..].starts_with('"') && !is_word {
            let (text, end) = (&from[hashes + 2..], format!("\"{}", "#".repeat(hashes)));
            let (literal, after) = text.split_once(&end).unwrap_or((text, ""));
            literals.push(literal.to_owned());
            rest = after;
        } else if let Some(text) = from.strip_prefix('\'') {
            // A character, or a lifetime.
            let quoted = text.trim_start_matches('\\');
            let length = quoted.chars().next().map_or(0, char::len_utf8);
            rest = quoted[length..].strip_prefix('\'').unwrap_or(text);
        } else {
            rest = &from[1..];
        }
    }
    literals
}

/// The sentences of a literal. The values that are filled in are left out. So are words in capitals: those are of SQL.
/// Of a statement in SQL, only its comments and its texts are sentences.
fn sentences(literal: &str) -> Vec<String> {
    const STATEMENTS: [&str; 8] =
        ["ALTER ", "CREATE ", "DELETE ", "DROP ", "INSERT ", "SELECT ", "UPDATE ", "WITH "];
    let (comments, rest): (Vec<&str>, Vec<&str>) =
        literal.lines().partition(|line| line.trim_start().starts_with("--"));
    let texts: Vec<String> = match STATEMENTS.iter().any(|word| literal.trim_start().starts_with(word)) {
        true => comments
            .into_iter()
            .chain(rest.join("\n").split('\'').skip(1).step_by(2))
            .map(String::from)
            .collect(),
        false => vec![literal.to_owned()],
    };
    let spoken = |text: &String| {
        let plain = text.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
        let plain: String = plain.collect::<Vec<_>>().join("-");
        let words = plain.split_whitespace().map(|word| match word.contains(char::is_lowercase) {
            true => word,
            false => "-",
        });
        words.collect::<Vec<_>>().join(" ")
    };
    // A single word is a name.
    texts.iter().filter(|text| text.trim().contains(char::is_whitespace)).map(spoken).collect()
}

/// The comments of a script, and what it prints.
fn of_script(script: &str) -> Vec<String> {
    let comment = |line: &str| line.trim_start().strip_prefix('#').map(String::from);
    let printed = |line: &str| line.split_once("refuse \"").map(|(_, text)| text.to_owned());
    script.lines().filter_map(|line| comment(line).or_else(|| printed(line))).collect()
}

#[test]
fn documents_and_messages_use_the_words_of_the_glossary() {
    let names = documents();
    assert!(names.iter().any(|name| name == "docs/messages.md") && names.len() > 10, "{names:?}");
    let wrong: Vec<String> = names
        .iter()
        .flat_map(|name| found(&read(name)).into_iter().map(move |word| format!("{name}: {word}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// These sentences are in no catalogue.
#[test]
fn stores_and_targets_use_the_words_of_the_glossary() {
    const HOOK: &str = "packaging/git-hooks/leasehold-fence";
    let names = tracked(&["crates/lib/src/backends"]);
    let rust = names.iter().filter(|name| name.ends_with(".rs"));
    let mut said: Vec<(&str, String)> = rust
        .flat_map(|name| {
            let literals = literals(&read(name)).into_iter();
            literals.flat_map(|literal| sentences(&literal)).map(|text| (name.as_str(), text))
        })
        .collect();
    assert!(said.len() > 500, "few sentences were found: {}", said.len());
    let refused = |text: &str| said.iter().any(|(_, said)| said.contains(text));
    assert!(refused("leasehold_grant() returns names no run"), "SQLite");
    assert!(refused("refused: this session belongs to no run"), "PostgreSQL");
    said.extend(of_script(&read(HOOK)).into_iter().map(|text| (HOOK, text)));
    let wrong: Vec<String> = said
        .iter()
        .flat_map(|(name, text)| found(text).into_iter().map(move |word| format!("{name}: {word}")))
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
    // A line that goes on is indented further.
    let listed = all.lines().filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let listed = listed.filter_map(|rest| rest.split_whitespace().next());
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

#[test]
fn a_forbidden_word_in_a_literal_is_caught() {
    let caught = |source: &str| {
        let texts = literals(source).into_iter().flat_map(|literal| sentences(&literal));
        texts.map(|text| found(&text).len()).sum::<usize>()
    };
    assert_eq!(caught(r#"say("it was never sealed \"there\": {why}")"#), 1);
    assert_eq!(
        caught("const C: char = '\"'; fn f<'a>() { g('\\'', \"a token that was\\\n    announced\") }"),
        1
    );
    assert_eq!(caught("r#\"SELECT 1 FROM \"x\", 'the seal of it'\"#"), 1);
    assert_eq!(caught("\"CREATE x\n-- it's before the seal\n'no epoch'\""), 2);
    for fine in [
        "// it was \"sealed\" by them\nlet word = \"sealed\";",
        "\"the newest is {sealed} ({})\"",
        "\"SELECT epoch, carrier FROM fences WHERE mode = 'observe'\"",
        "\"it lacks a right: GRANT SELECT ON x\"",
    ] {
        assert_eq!(caught(fine), 0, "{fine}");
    }
    assert_eq!(of_script("# until it is sealed\nseal x\n  refuse \"the seal is broken\"\n").len(), 2);
}
