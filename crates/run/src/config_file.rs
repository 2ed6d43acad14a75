//! Values of a configuration file with the lines they stand on.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use leasehold::messages::Explanation;
use leasehold::text::did_you_mean;
use leasehold_core::name::Name;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::duration;

/// The keys of every configuration file.
pub const KEYS: [&str; 4] = ["store", "store_file", "keep_log", "keep_log_runs"];
/// The other keys of a project's file.
pub const PROJECT_KEYS: [&str; 4] = ["defaults", "job", "new_here", "timezone"];

/// What is wrong with a file, and on which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFile(pub Explanation);

impl BadFile {
    /// There is no such file.
    pub fn missing(path: &Path) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str()).display();
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let dir = whole.parent().unwrap_or(&whole).display();
        Self(Explanation::parts(
            format!("there is no {name} in {dir}"),
            "",
            "Name another file with --config FILE, or write one; see: leasehold help leasehold.toml",
        ))
    }
}

/// The text of a file; `None` if there is no such file.
pub fn text_of(path: &Path) -> Result<Option<String>, BadFile> {
    // Reading a pipe or a device might never end.
    let special = std::fs::metadata(path).is_ok_and(|file| !file.is_file() && !file.is_dir());
    if special {
        let path = path.display();
        return Err(BadFile(Explanation::of(format!("cannot read {path}: it is not a regular file"))));
    }
    let why = match std::fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => return Ok(Some(text)),
            Err(e) => {
                let line = line(e.as_bytes(), e.utf8_error().valid_up_to());
                format!("line {line} is not UTF-8; save it as UTF-8")
            }
        },
        // A link into a share that is not mounted names a store all the same.
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_symlink() => {
            "it is a link to a file that is not there; is a share not mounted?".into()
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == ErrorKind::IsADirectory => "it is a directory".into(),
        Err(e) => e.to_string(),
    };
    Err(BadFile(Explanation::of(format!("cannot read {}: {why}", path.display()))))
}

/// The line of a byte.
fn line(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// A file that is being read.
pub struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
}

impl<'a> Reader<'a> {
    /// Reads this text. `path` is for messages.
    pub fn new(text: &'a str, path: &'a Path) -> Self {
        Self { text, path }
    }

    /// The whole file as a table.
    pub fn file(&'a self) -> Result<Section<'a>, BadFile> {
        let table = DeTable::parse(self.text);
        let table = table.map_err(|e| self.bad(e.span().map_or(0, |span| span.start), e.message()))?;
        Ok(Section { reader: self, at: 0, table: table.into_inner() })
    }

    fn bad(&self, at: usize, what: &str) -> BadFile {
        let line = line(self.text.as_bytes(), at);
        BadFile(Explanation::of(format!("{}:{line}: {what}", self.path.display())))
    }
}

/// A table in it.
pub struct Section<'a> {
    reader: &'a Reader<'a>,
    at: usize,
    table: DeTable<'a>,
}

impl<'a> Section<'a> {
    /// A table without keys, at the same place.
    pub fn empty(&self) -> Section<'a> {
        Section { reader: self.reader, at: self.at, table: DeTable::new() }
    }

    fn value(&self, key: &str) -> Option<&Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// An error on the line of this key, or of the table if the key is not there.
    pub fn bad(&self, key: &str, what: &str) -> BadFile {
        let said = self.table.keys().find(|said| said.get_ref() == key);
        self.reader.bad(said.map_or(self.at, |said| said.span().start), what)
    }

    /// Refuses every key that is not in the list.
    pub fn only(&self, known: &[&str]) -> Result<(), BadFile> {
        for key in self.table.keys() {
            let word: &str = key.get_ref();
            if !known.contains(&word) {
                let meant =
                    did_you_mean(word, known).or_else(|| usual(word).filter(|key| known.contains(key)));
                let hint = meant.map(|key| format!(" (did you mean {key:?}?)"));
                let hint = hint.unwrap_or_else(|| "; `leasehold help leasehold.toml` lists all keys".into());
                let what = format!("unknown key {word:?}{hint}");
                return Err(self.reader.bad(key.span().start, &what));
            }
        }
        Ok(())
    }

    fn wanted(&self, key: &str, what: &str) -> BadFile {
        self.bad(key, &format!("{key} must be {what}"))
    }

    fn inner(&self, table: &Spanned<DeValue<'a>>, key: &str, what: &str) -> Result<Section<'a>, BadFile> {
        let inner = table.get_ref().as_table().ok_or_else(|| self.wanted(key, what))?;
        Ok(Section { reader: self.reader, at: table.span().start, table: inner.clone() })
    }

    /// `[key]`
    pub fn section(&self, key: &str) -> Result<Option<Section<'a>>, BadFile> {
        self.value(key).map(|value| self.inner(value, key, &format!("a table: [{key}]"))).transpose()
    }

    /// `[[key]]`, each.
    pub fn sections(&self, key: &str) -> Result<Vec<Section<'a>>, BadFile> {
        let what = format!("written [[{key}]]");
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let all = value.get_ref().as_array().ok_or_else(|| self.wanted(key, &what))?;
        all.iter().map(|table| self.inner(table, key, &what)).collect()
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<String>, BadFile> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let text = value.get_ref().as_str().ok_or_else(|| self.wanted(key, "a text in quotes"))?;
        Ok(Some(text.into()))
    }

    /// Texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, BadFile> {
        let wrong = || self.wanted(key, "a list of texts: [\"a\", \"b\"]");
        let Some(value) = self.value(key) else { return Ok(None) };
        let all = value.get_ref().as_array().ok_or_else(wrong)?;
        let texts = all.iter().map(|text| text.get_ref().as_str().map(str::to_owned).ok_or_else(wrong));
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// Whether the value is a text.
    pub fn is_text(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value.get_ref().is_str())
    }

    /// Yes or no.
    pub fn truth(&self, key: &str) -> Result<Option<bool>, BadFile> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.get_ref().as_bool().map(Some).ok_or_else(|| self.wanted(key, "true or false"))
    }

    /// The name of a job or a lease.
    pub fn name(&self, key: &str) -> Result<Option<Name>, BadFile> {
        let text = self.text(key)?;
        text.map(|text| Name::new(&text).map_err(|e| self.bad(key, &e.to_string()))).transpose()
    }

    /// A text that `parse` can read.
    pub fn parsed<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, BadFile> {
        let text = self.text(key)?;
        text.map(|text| parse(&text).map_err(|e| self.bad(key, &format!("{key}: {e}")))).transpose()
    }

    /// A duration.
    pub fn duration(&self, key: &str) -> Result<Option<Duration>, BadFile> {
        self.parsed(key, duration::parse)
    }

    /// A whole number within these bounds.
    pub fn count(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>, BadFile> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.get_ref().as_integer();
        let number = number.and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
        let number = number.filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| self.wanted(key, &format!("a whole number from {least} to {most}")))
    }

    /// One of these words.
    pub fn choice<'w>(&self, key: &str, words: &[&'w str]) -> Result<Option<&'w str>, BadFile> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let found = words.iter().copied().find(|word| *word == text);
        let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        found.map(Some).ok_or_else(|| self.wanted(key, &quoted.join(" or ")))
    }

    /// Variables of an environment.
    pub fn variables(&self, key: &str) -> Result<BTreeMap<String, String>, BadFile> {
        let Some(table) = self.section(key)? else { return Ok(BTreeMap::new()) };
        let mut variables = BTreeMap::new();
        for name in table.table.keys() {
            let name: &str = name.get_ref();
            let value = table.text(name)?.unwrap_or_default();
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let why = "a variable needs a name without = or NUL, and a value without NUL";
                return Err(table.bad(name, why));
            }
            if name.starts_with("LEASEHOLD_") {
                let why = format!("{name} cannot be set here: the run sets all LEASEHOLD_ variables");
                return Err(table.bad(name, &why));
            }
            variables.insert(name.into(), value);
        }
        Ok(variables)
    }
}

/// The key that other schedulers call this.
fn usual(word: &str) -> Option<&'static str> {
    Some(match word {
        "command" | "cmd" | "exec" | "script" => "run",
        "schedule" | "when" | "at" => "cron",
        "interval" | "period" => "every",
        "tz" | "zone" => "timezone",
        "timeout" => "max_run",
        "retries" => "attempts",
        "environment" | "envs" => "env",
        "cwd" | "workdir" | "working_directory" => "dir",
        _ => return None,
    })
}
