//! Pictures of the run log: in a terminal, as SVG, and as a page of HTML.
//!
//! [`model`] says what is in a picture, [`layout`] what stands where, [`words`] what is written beside it. The other
//! modules draw.

mod html;
mod layout;
pub mod model;
pub mod svg;
mod text;
pub mod words;
mod xml;

#[cfg(test)]
mod night;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use leasehold::clock;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{LogEntry, Scope, Window, newest};
use leasehold::state::check_writable;
use leasehold::stores::{Failure, Store};
use leasehold::text::did_you_mean;

use self::model::Timeline;
use self::svg::Options;
use self::text::Terminal;
use crate::args::{Everywhere, HistoryArgs, PictureArgs};
use crate::cmd::{OpenedStore, open, store_failed, times};
use crate::exit::{self, Failed};
use crate::messages::{history, timeline as say};
use crate::out::{self, Out};

/// Without `--since`.
const WINDOW: Duration = Duration::from_secs(86_400);
/// The most records that are read.
const RECORDS: usize = 10_000;
/// The most records that are read one by one, where a list has only keys.
const FILLED: usize = 100;
/// The width of a picture in a file, in pixels.
const WIDTH: u32 = 1_120;
/// Off a terminal.
const COLUMNS: usize = 80;

/// Draws what was asked for.
pub fn run(flags: &Everywhere, args: &HistoryArgs, out: &Out) -> Result<u8, Failed> {
    if out.json {
        return Err(say::with_json());
    }
    check_words(&args.only)?;
    let PictureArgs { timeline: shown, svg, html } = &args.pictures;
    for path in svg.iter().chain(html) {
        check_writable(path).map_err(|e| say::unwritable(path.display(), e))?;
    }
    let mut opened = open(flags, &[])?;
    let timeline = read(&mut opened, args)?;
    if let Some(path) = svg {
        let drawn = svg::svg(&timeline, &Options { width: WIDTH, id: "timeline", style: true });
        write(path, &format!("{drawn}\n"), out)?;
    }
    if let Some(path) = html {
        write(path, &html::html(&timeline), out)?;
    }
    if *shown {
        out::as_is(&text::text(&timeline, terminal()));
    }
    Ok(exit::OK)
}

fn check_words(only: &[String]) -> Result<(), Failed> {
    let known = LogEvent::ALL.map(LogEvent::word);
    let Some(word) = only.iter().find(|word| !known.contains(&word.as_str())) else { return Ok(()) };
    let meant = did_you_mean(word, &known).map(history::meant).unwrap_or_default();
    Err(history::bad_outcome(format!("{word:?}"), meant, known.join(", ")))
}

fn write(path: &Path, text: &str, out: &Out) -> Result<(), Failed> {
    replace(path, text).map_err(|e| say::unwritable(path.display(), e))?;
    out.chat(&say::wrote(path.display()));
    Ok(())
}

/// Whoever opens the file finds the old picture or the new one. Its reader may be another user.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link stays a link. A device would become a file.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut beside = OsString::from(&path);
    beside.push(format!(".{}.tmp", std::process::id()));
    let replaced = File::create_new(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    });
    if replaced.is_err() {
        let _ = fs::remove_file(&beside);
    }
    replaced
}

/// What the store has about this.
fn read(opened: &mut OpenedStore, args: &HistoryArgs) -> Result<Timeline, Failed> {
    let now = clock::wall();
    // The clocks of other machines may be ahead.
    let until = args.until.unwrap_or(Window::last(WINDOW).until);
    let since = args.since.unwrap_or(until.min(now).saturating_sub(WINDOW));
    let (window, now) = (Window { since, until }, args.until.unwrap_or(now));
    of(opened.store.as_mut(), args.name.as_deref(), window, now, &args.only)
        .map_err(|failure| store_failed(&failure, &opened.chosen))
}

/// What a store has about a name in a window, which ends now, or with the newest record if that is later.
pub fn of(
    store: &mut dyn Store,
    name: Option<&str>,
    window: Window,
    now: Duration,
    only: &[String],
) -> Result<Timeline, Failure> {
    let (entries, cut) = entries(store, name, window)?;
    let until = entries.iter().map(|entry| entry.line.at).max().map_or(now, |newest| newest.max(now));
    let mut timeline = Timeline::new(entries, Window { since: window.since, until }, times::here(), only);
    timeline.cut = cut;
    Ok(timeline)
}

/// The records about a name: a job, a prefix of jobs, a lease, a key or a slot.
fn entries(
    store: &mut dyn Store,
    name: Option<&str>,
    window: Window,
) -> Result<(Vec<LogEntry>, bool), Failure> {
    let job = name.and_then(|name| Name::new(name).ok());
    let mut found = match (name, &job) {
        (None, _) => newest(store, Scope::All, window, RECORDS, |_| true)?,
        (Some(_), Some(job)) => newest(store, Scope::Job(job), window, RECORDS, |_| true)?,
        (Some(name), None) if name.ends_with('/') => {
            newest(store, Scope::Prefix(name), window, RECORDS, |_| true)?
        }
        (Some(_), None) => Default::default(),
    };
    if let Some(name) = name
        && found.0.is_empty()
    {
        found = newest(store, Scope::All, window, RECORDS, |entry| is_about(entry, name))?;
    }
    let told_by_body = |entry: &&mut LogEntry| {
        use LogEvent::{Dropped, Lost, Refused, Unknown};
        matches!(entry.line.event(), Some(Dropped | Lost | Refused | Unknown)) && entry.record.is_none()
    };
    found.0.iter_mut().filter(told_by_body).take(FILLED).try_for_each(|entry| entry.fill(store))?;
    Ok(found)
}

/// Whether a record is about this lease, key or slot.
fn is_about(entry: &LogEntry, name: &str) -> bool {
    use leasehold::core::ledger::Subject;
    let Some(record) = &entry.record else { return false };
    let item = match &record.item {
        Some(Subject::Key(key)) => Some(key),
        Some(Subject::Slot { id, .. }) => Some(id),
        Some(Subject::Latest(_)) | None => None,
    };
    record.lease.as_ref().is_some_and(|lease| lease.as_str() == name) || item.is_some_and(|item| item == name)
}

/// What stdout can show.
fn terminal() -> Terminal {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return Terminal { width: COLUMNS, unicode: false };
    }
    let size = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter();
    let locale = variables.filter_map(|name| std::env::var(name).ok()).find(|text| !text.is_empty());
    let unicode = locale.is_some_and(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    Terminal { width: if size == 0 { COLUMNS } else { size.max(MIN) }, unicode }
}

/// Narrower terminals break the lines themselves.
const MIN: usize = 40;
