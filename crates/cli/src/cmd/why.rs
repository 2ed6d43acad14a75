//! `leasehold why NAME [TIME]`: why it did or did not run, in sentences.

use jiff::Timestamp;
use leasehold::core::ledger::{Entry, State, Subject};
use leasehold::core::name::Name;
use leasehold::core::stop::Text;
use leasehold::text::harmless;

use super::history::{self, Row};
use super::{items, status};
use crate::args::{Everywhere, Why};
use crate::exit::{self, Failed};
use crate::out::{self, Out};

/// Most items that are told of.
const MOST: usize = 5;

/// Tells.
pub fn run(flags: &Everywhere, args: &Why, out: &Out) -> Result<u8, Failed> {
    let at = args.time.as_deref().map(|time| slot(time, &args.name)).transpose()?;
    let mut opened = super::open(flags, &[])?;
    let lease = Name::new(&args.name).ok().map(|lease| status::sentence(&mut opened, &lease)).transpose()?;
    let (mut rows, _) = history::rows(&mut opened)?;
    rows.retain(|row| row.is_about(&args.name) && at.is_none_or(|at| is_at(&row.entry, at)));
    rows.sort_by(|a, b| b.when().cmp(a.when()));
    if out.json {
        rows.iter().take(MOST).all(|row| out.object(&history::object(row)));
        return Ok(exit::OK);
    }
    if let Some(sentence) = lease.flatten() {
        out::line(&sentence);
    }
    for row in rows.iter().take(MOST) {
        out::line(&sentence(row));
        // Whoever can write to the store can put anything there.
        let said = row.entry.ending.as_ref().map(|ending| harmless(&ending.said)).unwrap_or_default();
        said.lines().all(|line| out::line(&format!("    {line}")));
    }
    if rows.is_empty() {
        out::line(&nothing(args));
    }
    Ok(exit::OK)
}

fn slot(time: &str, name: &str) -> Result<i64, Failed> {
    let job = Name::new(name).map_err(|e| Failed::usage(e.to_string()))?;
    match items::slot_of(time, &job, Timestamp::now())? {
        Subject::Slot { at, .. } => Ok(at),
        Subject::Key(_) | Subject::Latest(_) => Ok(0),
    }
}

fn is_at(entry: &Entry, at: i64) -> bool {
    matches!(&entry.subject, Subject::Slot { at: due, .. } if *due == at)
}

fn nothing(args: &Why) -> String {
    let name = &args.name;
    match &args.time {
        Some(time) => format!(
            "no run began {name}@{time}: nothing was fired for it, or whatever was found the lease held by another and was \
             skipped. Only what begins is recorded"
        ),
        None => format!(
            "no key, slot or cooldown of {name} is recorded: a plain `leasehold run` leaves no record"
        ),
    }
}

/// What became of one item, and what the next run will do.
fn sentence(row: &Row) -> String {
    let entry = &row.entry;
    let name = items::shown(&entry.subject);
    let by = items::by_whom(entry);
    let exit =
        entry.ending.as_ref().and_then(|e| e.exit).map(|exit| format!(" (exit {exit})")).unwrap_or_default();
    let took = entry.ending.as_ref().map(|e| std::time::Duration::from_millis(e.took_ms));
    let took = took.map(|took| format!(" in {}", Text(took))).unwrap_or_default();
    let attempt = if entry.attempt > 1 { format!(", at attempt {}", entry.attempt) } else { String::new() };
    let next = match (row.word, &entry.subject) {
        ("ok", Subject::Latest(_)) => "runs with --cooldown are skipped until that is over",
        ("ok", _) => "it is not run again",
        ("started", _) => "it is being done now, and others are skipped",
        ("failed", _) => {
            "the next run tries again, unless it failed as often as --attempts allows: then it asks you (79)"
        }
        ("planned", _) => "the next run begins it",
        ("skipped", _) => "it is not run",
        _ => {
            "nobody can tell whether it did its work: the next run asks you (79), unless it says --if-unknown retry"
        }
    };
    let word = match entry.state {
        State::Started if row.word == "unknown" => "begun and never reported",
        State::Planned => "to be tried again",
        state => state.word(),
    };
    format!("{name}: {word}, by {by}{took}{exit}{attempt}; {next}.")
}
