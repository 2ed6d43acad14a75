//! What a request asks for: filters, a window of time, and where a list goes on.

use std::time::Duration;

use axum::extract::Query;
use axum::http::Uri;
use leasehold::clock;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{Scope, Window};
use leasehold_run::duration;
use serde::Deserialize;

use super::Refusal;
use crate::cmd::times;
use crate::messages::dashboard as say;

const HOUR: u64 = 3_600;
/// Without `since`.
const WEEK: Duration = Duration::from_secs(7 * 24 * HOUR);
/// Longer texts than this are no filter.
const TEXT_MAX: usize = 512;

/// The windows that a page offers, by the word for each.
pub const WINDOWS: [(&str, Duration); 3] =
    [("6h", Duration::from_secs(6 * HOUR)), ("24h", Duration::from_secs(24 * HOUR)), ("7d", WEEK)];

/// A query as it came.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Asked {
    /// Outcomes, with commas between them.
    #[serde(default)]
    pub only: String,
    /// A job, or a prefix with a slash at its end.
    #[serde(default)]
    pub name: String,
    /// A duration, or a time.
    #[serde(default)]
    pub since: String,
    /// The same.
    #[serde(default)]
    pub until: String,
    /// Of a list: where it goes on.
    #[serde(default)]
    pub older: String,
    /// Of a picture.
    #[serde(default)]
    pub window: String,
    /// Of events: the page.
    #[serde(default)]
    pub page: String,
    /// Of events: what the page shows.
    #[serde(default)]
    pub mark: String,
}

/// Whose records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    All,
    Job(Name),
    Prefix(String),
}

impl Whose {
    /// The same, to read the log.
    pub fn scope(&self) -> Scope<'_> {
        match self {
            Self::All => Scope::All,
            Self::Job(name) => Scope::Job(name),
            Self::Prefix(prefix) => Scope::Prefix(prefix),
        }
    }
}

/// Where a list goes on: at the records of this millisecond, after so many of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Older {
    pub at: u64,
    pub skip: usize,
}

/// A list of records that was asked for.
#[derive(Clone, Debug)]
pub struct Listing {
    pub only: Vec<LogEvent>,
    pub whose: Whose,
    pub window: Window,
    pub skip: usize,
}

impl Asked {
    /// What a URI asks for.
    pub fn of(uri: &Uri) -> Result<Self, Refusal> {
        let Query(asked) =
            Query::<Self>::try_from_uri(uri).map_err(|_| Refusal::bad("query", say::bad_query()))?;
        let texts = [&asked.only, &asked.name, &asked.since, &asked.until, &asked.older, &asked.window];
        match texts.iter().any(|text| text.len() > TEXT_MAX) {
            true => Err(Refusal::bad("query", say::bad_query())),
            false => Ok(asked),
        }
    }

    /// The outcomes.
    pub fn only(&self) -> Result<Vec<LogEvent>, Refusal> {
        let words = self.only.split(',').map(str::trim).filter(|word| !word.is_empty());
        let event = |word: &str| {
            LogEvent::parse(word).ok_or_else(|| {
                Refusal::bad("only", say::bad_only(LogEvent::ALL.map(LogEvent::word).join(", ")))
            })
        };
        words.map(event).collect()
    }

    /// The job or prefix.
    pub fn whose(&self) -> Result<Whose, Refusal> {
        let name = self.name.trim();
        if name.is_empty() {
            return Ok(Whose::All);
        }
        if let Some(job) = name.strip_suffix('/') {
            return match Name::new(job) {
                Ok(_) => Ok(Whose::Prefix(name.into())),
                Err(_) => Err(Refusal::bad("name", say::bad_name())),
            };
        }
        Name::new(name).map(Whose::Job).map_err(|_| Refusal::bad("name", say::bad_name()))
    }

    /// The list of records.
    pub fn listing(&self) -> Result<Listing, Refusal> {
        let ahead = Window::last(WEEK);
        let since = time(&self.since)?.unwrap_or(ahead.since);
        let mut until = time(&self.until)?.unwrap_or(ahead.until);
        let older = match self.older.is_empty() {
            true => None,
            false => Some(Older::read(&self.older).ok_or_else(|| Refusal::bad("older", say::bad_query()))?),
        };
        if let Some(older) = older {
            until = until.min(Duration::from_millis(older.at));
        }
        let skip = older.map_or(0, |older| older.skip);
        Ok(Listing { only: self.only()?, whose: self.whose()?, window: Window { since, until }, skip })
    }

    /// The window of a picture: its word, and how long it is.
    pub fn window(&self) -> Result<(&'static str, Duration), Refusal> {
        if self.window.is_empty() {
            return Ok(WINDOWS[1]);
        }
        let known = WINDOWS.into_iter().find(|(word, _)| *word == self.window);
        known.ok_or_else(|| Refusal::bad("window", say::bad_window()))
    }
}

/// `24h` is so long ago; otherwise a time of this machine's zone, or an instant.
fn time(text: &str) -> Result<Option<Duration>, Refusal> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(ago) = duration::parse(text) {
        return Ok(Some(clock::wall().saturating_sub(ago)));
    }
    let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let zone = times::here();
        times::typed(text, times::now(), &zone)?.to_zoned(zone).ok().map(|at| at.timestamp())
    });
    let at = instant.and_then(|at| u64::try_from(at.as_millisecond()).ok());
    at.map(|at| Some(Duration::from_millis(at))).ok_or_else(|| Refusal::bad("time", say::bad_time()))
}

impl Older {
    fn read(text: &str) -> Option<Self> {
        let (at, skip) = text.split_once('.')?;
        // Times that far ahead are no times.
        let at = at.parse().ok().filter(|at| *at < u64::from(u32::MAX) * 2_000)?;
        Some(Self { at, skip: skip.parse().ok().filter(|skip| *skip < 100_000)? })
    }

    /// For a link.
    pub fn text(self) -> String {
        format!("{}.{}", self.at, self.skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, Refusal> {
        Asked::of(&format!("/log?{query}").parse().unwrap())
    }

    #[test]
    fn filters_are_read_or_refused() {
        let listing = |query: &str| asked(query).and_then(|asked| asked.listing());
        let found = listing("only=lost,%20refused&name=team-a/&since=1h&older=1700000000000.2").unwrap();
        assert_eq!(found.only, [LogEvent::Lost, LogEvent::Refused]);
        assert_eq!((found.whose, found.skip), (Whose::Prefix("team-a/".into()), 2));
        assert_eq!(found.window.until, Duration::from_millis(1_700_000_000_000));
        assert_eq!(listing("").unwrap().whose, Whose::All);
        for bad in [
            "only=nonsense",
            "name=Gemi+Lab",
            "name=%2F",
            "since=soon",
            "until=0300",
            "older=1",
            "older=-1.2",
            "older=99999999999999999999.0",
            "only=ok&only=ok",
            &format!("name={}", "a".repeat(600)),
        ] {
            assert!(listing(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn windows_have_words() {
        assert_eq!(asked("").unwrap().window().unwrap().0, "24h");
        assert_eq!(asked("window=7d").unwrap().window().unwrap().1, WEEK);
        assert!(asked("window=8d").unwrap().window().is_err());
    }
}
