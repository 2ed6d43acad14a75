//! Who is told how a run went: a URL that is pinged, and alerts. The URLs are secrets.

use std::fmt;
use std::path::{Path, PathBuf};

use leasehold_core::alert::AlertKind;
use serde::{Deserialize, Serialize};

use crate::config_file::{BadFile, Section};

/// A URL, or the file that has it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretUrl {
    /// The URL.
    Url(String),
    /// The file.
    File(PathBuf),
}

/// Without the URL.
impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => f.write_str("Url(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl SecretUrl {
    /// As it is typed: the URL, or `@FILE`.
    pub fn typed(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(file) => Ok(Self::File(file.into())),
            None => checked(text.trim().into()).map(Self::Url),
        }
    }

    /// The URL. The error does not have it.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                checked(text.trim().into()).map_err(|why| format!("{}: {why}", path.display()))
            }
        }
    }

    /// The keys `NAME` and `NAME_file` of a section. A relative path starts from `base`.
    pub fn of(section: &Section<'_>, name: &str, base: &Path) -> Result<Option<Self>, BadFile> {
        let in_file = format!("{name}_file");
        let url = section.parsed(name, |text| checked(text.trim().into()))?;
        let file = section.text(&in_file)?;
        match (url, file) {
            (Some(_), Some(_)) => Err(section.bad(&in_file, &format!("write {name} or {in_file}, not both"))),
            (Some(url), None) => Ok(Some(Self::Url(url))),
            (None, file) => Ok(file.map(|file| Self::File(whole(base, &file)))),
        }
    }
}

/// A path of a file, whatever directory is the current one later.
fn whole(base: &Path, path: &str) -> PathBuf {
    let path = base.join(path);
    std::path::absolute(&path).unwrap_or(path)
}

/// Refuses what cannot be asked over HTTP.
fn checked(url: String) -> Result<String, String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !url.contains(char::is_whitespace) => Ok(url),
        _ => Err("it must be a URL that begins with https:// or http://".into()),
    }
}

/// `[alerts]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertSettings {
    /// Gets each alert as JSON.
    pub url: Option<SecretUrl>,
    /// Gets the same on standard input.
    pub command: Vec<String>,
    /// What is told.
    pub on: Vec<AlertKind>,
}

/// The keys of `[alerts]`.
const KEYS: [&str; 4] = ["url", "url_file", "command", "on"];

impl AlertSettings {
    /// The section `[alerts]` of a file, if there is one.
    pub fn of(file: &Section<'_>, base: &Path) -> Result<Option<Self>, BadFile> {
        let Some(section) = file.section("alerts")? else { return Ok(None) };
        section.only(&KEYS)?;
        let url = SecretUrl::of(&section, "url", base)?;
        let mut command = section.texts("command")?.unwrap_or_default();
        // The run that starts it may be in another directory.
        if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
            *program = whole(base, program).to_string_lossy().into_owned();
        }
        if url.is_none() && command.first().is_none_or(String::is_empty) {
            return Err(section.bad("", "[alerts] needs url, url_file or command"));
        }
        let words = AlertKind::ALL.map(AlertKind::word).join(", ");
        let kind = |word: String| {
            AlertKind::parse(&word)
                .ok_or_else(|| section.bad("on", &format!("on: {word:?} is none of: {words}")))
        };
        let on = section.texts("on")?.map(|words| words.into_iter().map(kind).collect::<Result<_, _>>());
        Ok(Some(Self { url, command, on: on.transpose()?.unwrap_or_else(|| AlertKind::ALL.to_vec()) }))
    }
}

/// Who is told about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// Pinged at the start and at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping: Option<SecretUrl>,
    /// Told once for each change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerts: Option<AlertSettings>,
}

impl Notify {
    /// Whether nobody is told.
    pub fn is_nobody(&self) -> bool {
        self.ping.is_none() && self.alerts.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_and_not_shown() {
        let secret = "https://hc.example/uuid-5e7";
        let url = SecretUrl::typed(secret).unwrap();
        assert_eq!(url.read().as_deref(), Ok(secret));
        assert!(!format!("{url:?}").contains("5e7"));
        for wrong in ["hc.example/uuid-5e7", "ftp://x/uuid-5e7", "https://", "https://x/ uuid-5e7", ""] {
            let why = SecretUrl::typed(wrong).unwrap_err();
            assert!(!why.contains("5e7"), "{why}");
        }
        assert_eq!(SecretUrl::typed("@/etc/ping"), Ok(SecretUrl::File("/etc/ping".into())));
        assert!(
            SecretUrl::File("/nonexistent/ping".into()).read().unwrap_err().contains("/nonexistent/ping")
        );
    }
}
