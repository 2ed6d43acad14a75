//! What the program says, by the names in `docs/messages.md`: a test asserts which message it was, not its wording.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// A sentence of the page.
pub struct Sentence {
    /// As `run.skipped`.
    pub name: String,
    /// What stands between its placeholders; with what it means for the job, and without.
    texts: [Vec<String>; 2],
}

impl Sentence {
    fn read(catalogue: &str, line: &str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("- **")?.split_once("**")?;
        let text = rest.split_once(": ")?.1;
        // What it means for the job is set in italics.
        let begins =
            |at: &(usize, &str)| text[at.0 + 2..].starts_with(|c: char| c.is_alphabetic() || c == '{');
        let apart = text.match_indices(" *").find(begins).and_then(|(from, _)| {
            let (means, next) = text[from + 2..].split_once(".*")?;
            Some((&text[..from], means, next.trim_start()))
        });
        let joined = |parts: &[&str]| {
            let mut all = String::new();
            for part in parts.iter().filter(|part| !part.is_empty()) {
                if !all.is_empty() {
                    all.push_str(if all.ends_with(['.', '?', '!', ':']) { " " } else { ". " });
                }
                all.push_str(part);
            }
            all.strip_suffix('.').map_or(all.clone(), Into::into)
        };
        let texts = match apart {
            Some((what, means, next)) => [joined(&[what, means, next]), joined(&[what, next])],
            None => [text.to_owned(), text.to_owned()],
        };
        Some(Self { name: format!("{catalogue}.{name}"), texts: texts.map(|text| literals(&text)) })
    }

    /// Whether a line is this sentence.
    pub fn is(&self, line: &str) -> bool {
        self.texts.iter().any(|texts| fits(texts, line))
    }

    /// How much of this line is its fixed text, if the line is this sentence.
    fn fixed_in(&self, line: &str) -> Option<usize> {
        self.texts.iter().filter(|texts| fits(texts, line)).map(|texts| weight(texts)).max()
    }

    /// Whether a line contains this sentence, perhaps as part of another.
    pub fn is_in(&self, line: &str) -> bool {
        let has = |texts: &Vec<String>| {
            let mut rest = line;
            texts.iter().all(|text| {
                let at = rest.find(text.as_str());
                rest = at.map_or(rest, |at| &rest[at + text.len()..]);
                at.is_some()
            })
        };
        self.texts.iter().any(|texts| weight(texts) >= TELLING && has(texts))
    }

    /// A part of others that has fewer fixed letters is in too many lines to be noticed.
    pub fn can_be_told(&self) -> bool {
        weight(&self.texts[0]) >= TELLING
    }
}

/// A sentence of less fixed text than this is like parts of too many others.
const TELLING: usize = 8;

/// How much of it is fixed.
fn weight(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}

/// The texts between `{placeholders}`.
fn literals(template: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut inside = false;
    for c in template.chars() {
        match c {
            '{' => {
                inside = true;
                texts.push(String::new());
            }
            '}' => inside = false,
            c if !inside => texts.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    // A sentence that may follow is not there if it is empty, nor is the full stop before it.
    if let [.., before, last] = &mut texts[..]
        && last.is_empty()
        && let Some(short) = before.strip_suffix(". ")
    {
        *before = short.to_owned();
    }
    texts
}

/// Whether a line has these texts in this order, and begins and ends with the outer ones.
fn fits(texts: &[String], line: &str) -> bool {
    let [first, middle @ .., last] = texts else { return texts.first().is_some_and(|only| only == line) };
    let Some(mut rest) = line.strip_prefix(first.as_str()) else { return false };
    for text in middle {
        let Some(at) = rest.find(text.as_str()) else { return false };
        rest = &rest[at + text.len()..];
    }
    rest.ends_with(last.as_str())
}

/// Every sentence of `docs/messages.md`.
pub fn sentences() -> &'static [Sentence] {
    static PAGE: OnceLock<Vec<Sentence>> = OnceLock::new();
    PAGE.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/messages.md");
        read(&std::fs::read_to_string(path).unwrap())
    })
}

fn read(page: &str) -> Vec<Sentence> {
    let mut catalogue = "";
    let mut found = Vec::new();
    for line in page.lines() {
        catalogue = line.strip_prefix("## ").unwrap_or(catalogue);
        found.extend(Sentence::read(catalogue, line));
    }
    found
}

/// A sentence of less fixed text than this is like too many others.
const LEAST: usize = 6;

/// The messages of these lines: the sentence of most fixed text for each.
pub fn named<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<&'static str> {
    let fixed =
        |line: &str, s: &'static Sentence| Some((s.fixed_in(line).filter(|fixed| *fixed >= LEAST)?, s));
    let best = |line: &str| {
        sentences().iter().filter_map(|s| fixed(line, s)).max_by_key(|(fixed, _)| *fixed).map(|(_, s)| s)
    };
    let names = lines.map(|line| best(&plain(line)));
    names.flatten().map(|sentence| sentence.name.as_str()).collect()
}

/// Whether this is the name of a message.
pub fn is_name(what: &str) -> bool {
    sentences().iter().any(|sentence| sentence.name == what)
}

/// Whether a text, which may end within a line, has said this message, or this fact.
pub fn says(text: &str, what: &str) -> bool {
    let whole = &text[..text.rfind('\n').unwrap_or(0)];
    if is_name(what) {
        named(whole.lines()).contains(&what) || hears(whole, what)
    } else {
        text.contains(what)
    }
}

/// Whether this is like the name of a message, and none has it.
pub fn is_meant_as_name(what: &str) -> bool {
    let Some((catalogue, name)) = what.split_once('.') else { return false };
    let named = |s: &Sentence| s.name.split_once('.').is_some_and(|(of, _)| of == catalogue);
    let word = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    word && sentences().iter().any(named) && !is_name(what)
}

/// Whether a line of this text is this message, or contains it.
///
/// # Panics
///
/// If no message has the name.
pub fn hears(text: &str, name: &str) -> bool {
    let sentence = sentences().iter().find(|sentence| sentence.name == name).unwrap();
    text.lines().map(plain).any(|line| sentence.is(&line) || sentence.is_in(&line))
}

/// Without the program's name, or out of an error that was printed as JSON.
fn plain(line: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(line).ok();
    let told = json.as_ref().and_then(|json| json["error"]["message"].as_str());
    told.unwrap_or_else(|| line.strip_prefix("leasehold: ").unwrap_or(line)).to_owned()
}

/// Where it is kept which messages were seen, for the test that all of them are: one place for every test program.
///
/// # Panics
///
/// If this is no test program that cargo built.
pub fn seen_in() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let profile = program.ancestors().nth(2).expect("a directory of cargo");
    let target = profile.ancestors().skip(1).find(|dir| dir.join("tmp").is_dir());
    target.unwrap_or(profile).join("tmp/messages")
}

/// Keeps which messages were seen: as lines, in lines and in JSON.
pub fn note_seen(text: &str) {
    let mut lines: Vec<String> = text.lines().map(plain).collect();
    for json in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        strings(&json, &mut lines);
    }
    for line in &lines {
        note(|sentence| sentence.is_in(line));
    }
}

/// Keeps which messages were seen in a text that was wrapped at a width.
pub fn note_wrapped(text: &str) {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    note(|sentence| sentence.is_in(&line));
}

fn strings(json: &serde_json::Value, found: &mut Vec<String>) {
    match json {
        serde_json::Value::String(text) => found.push(text.clone()),
        serde_json::Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        serde_json::Value::Object(fields) => fields.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}

fn note(seen_now: impl Fn(&Sentence) -> bool) {
    static SEEN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut seen = SEEN.lock().expect("no test panics here");
    for sentence in sentences().iter().filter(|sentence| seen_now(sentence)) {
        if seen.insert(&sentence.name) {
            std::fs::create_dir_all(seen_in()).expect("a directory for notes");
            let path = seen_in().join(std::process::id().to_string());
            let file = std::fs::File::options().create(true).append(true).open(path);
            writeln!(file.expect("a file for notes"), "{}", sentence.name).expect("a note");
        }
    }
}

#[test]
fn a_line_is_known_by_its_sentence() {
    let page = "## run\n\n- **skipped**: skipped {job}{waited}: {held}\n\
                - **bad** (64 `usage`): {id} is bad. *Nothing was run.* Use: {other}\n";
    let page = read(page);
    assert_eq!(page[0].name, "run.skipped");
    assert!(page[0].is("skipped site: held by vm/3") && !page[0].is("site: held by vm/3"));
    assert!(page[1].is("x is bad. Nothing was run. Use: y") && page[1].is("x is bad. Use: y"));
    assert!(!page[1].is("x is bad") && !page[1].is("x is worse. Use: y"));
    assert!(page[0].is_in("at last skipped site: held"));
}

#[test]
fn a_message_is_heard_within_a_line() {
    assert!(hears("leasehold: took a: token 1 released here\nx\n", "run.released"));
    assert!(!hears("leasehold: site is held\n", "run.released"));
    assert!(is_meant_as_name("run.skiped") && !is_meant_as_name("run.skipped"));
    assert!(!is_meant_as_name("leasehold.toml") && !is_meant_as_name("skipped"));
}
