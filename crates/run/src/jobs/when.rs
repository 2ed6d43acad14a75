//! When a job is due.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::{self, TimeZone};
use leasehold::text::did_you_mean;
use leasehold_core::human_duration::HumanDuration;

use super::{IfBusy, JobTable};
use crate::config_file::BadFile;
use crate::schedule::{Cron, CronError, Every, Gap, Overlap, Policy, Schedule};

/// Spreading runs that are due at once takes minutes.
const STAGGER_MOST: Duration = Duration::from_secs(3600);

/// The schedule of a job.
pub struct JobTimes {
    pub schedule: Schedule,
    pub written: String,
    pub stagger: Duration,
}

/// Patterns that were parsed before: many jobs have the same.
#[derive(Default)]
pub struct Patterns(RefCell<BTreeMap<String, Cron>>);

impl Patterns {
    fn cron(&self, text: &str) -> Result<Cron, CronError> {
        if let Some(cron) = self.0.borrow().get(text) {
            return Ok(cron.clone());
        }
        let cron = Cron::parse(text)?;
        self.0.borrow_mut().insert(text.into(), cron.clone());
        Ok(cron)
    }

    /// How many different patterns were parsed.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

/// A time zone by its name.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    let wrong = |why: &str| {
        let known: Vec<String> = tz::db().available().map(|zone| zone.to_string()).collect();
        let lower: Vec<String> = known.iter().map(|zone| zone.to_lowercase()).collect();
        let words: Vec<&str> = lower.iter().map(String::as_str).collect();
        let near = did_you_mean(name, &words).and_then(|near| lower.iter().position(|zone| zone == near));
        let meant = near.map(|at| format!(" (did you mean {}?)", known[at])).unwrap_or_default();
        format!("{why}{meant}; write a name such as Europe/Berlin, or UTC")
    };
    let zone = TimeZone::get(name).map_err(|e| wrong(&e.to_string()))?;
    if zone.is_unknown() { Err(wrong(&format!("{name:?} is not a time zone"))) } else { Ok(zone) }
}

/// Reads the schedule of a job.
pub fn due(said: &JobTable<'_>, busy: IfBusy) -> Result<JobTimes, BadFile> {
    let own = &said.own;
    let stagger = own.duration("stagger")?.unwrap_or_default();
    let (schedule, written, within) = match (own.has("every"), own.has("cron")) {
        (true, false) => every(said)?,
        (false, true) => cron(said)?,
        (false, false) => {
            return Err(own.bad(
                "",
                "this job does not say when it is due; write every = \"45m\" or cron = \"0 7 * * *\"",
            ));
        }
        (true, true) => return Err(own.bad("cron", "every and cron are both set; keep one")),
    };
    if stagger > STAGGER_MOST || within.is_some_and(|interval| stagger >= interval) {
        let within = within.filter(|interval| *interval <= STAGGER_MOST);
        let bound = match within {
            Some(interval) => format!("shorter than the interval of {}", HumanDuration(interval)),
            None => format!("at most {}", HumanDuration(STAGGER_MOST)),
        };
        return Err(own.bad(
            "stagger",
            &format!("a stagger of {} is too long: it must be {bound}", HumanDuration(stagger)),
        ));
    }
    if let (IfBusy::Wait(wait), Some(interval)) = (busy, within)
        && wait >= interval
    {
        let how = if wait > interval { "longer than" } else { "as long as" };
        let (wait, interval) = (HumanDuration(wait), HumanDuration(interval));
        let why = format!(
            "a wait of {wait} is {how} the interval of {interval}, so the next slot would be due while one waits; \
             write a shorter wait"
        );
        let section = if own.has("wait") { own } else { said.defaults };
        return Err(section.bad("wait", &why));
    }
    Ok(JobTimes { schedule, written, stagger })
}

type ReadSchedule = (Schedule, String, Option<Duration>);

fn every(said: &JobTable<'_>) -> Result<ReadSchedule, BadFile> {
    let own = &said.own;
    if let Some(wrong) = ["timezone", "gap", "overlap"].into_iter().find(|key| own.has(key)) {
        let why = format!(
            "{wrong} needs cron, because every does not depend on a wall clock; leave out {wrong}, or write \
             cron"
        );
        return Err(own.bad(wrong, &why));
    }
    let interval = own.duration("every")?.unwrap_or_default();
    let offset = own.duration("offset")?.unwrap_or_default();
    let every = Every::new(interval, offset).map_err(|e| {
        let key = if interval.is_zero() || offset < interval { "every" } else { "offset" };
        own.bad(key, &e.to_string())
    })?;
    Ok((Schedule::every(every), every.to_string(), Some(interval)))
}

fn cron(said: &JobTable<'_>) -> Result<ReadSchedule, BadFile> {
    let own = &said.own;
    if own.has("offset") {
        return Err(own.bad("offset", "offset needs every; with cron, write the minute in the pattern"));
    }
    let pattern = own.text("cron")?.unwrap_or_default();
    let cron = said.patterns.cron(&pattern).map_err(|e| own.bad("cron", &format!("cron: {e}")))?;
    own.parsed("timezone", zone)?;
    let name = said.either(|section| section.text("timezone"))?.or(said.zone.map(Into::into));
    let Some(name) = name else {
        let why = "cron needs a time zone; write timezone = \"Asia/Tokyo\" here, in [defaults], or at the top of the \
                   file for all jobs";
        return Err(own.bad("cron", why));
    };
    let known = zone(&name).map_err(|why| own.bad("cron", &why))?;
    let gap = match own.choice("gap", &["run", "skip"])? {
        Some("skip") => Gap::Skip,
        _ => Gap::Run,
    };
    let overlap = match own.choice("overlap", &["first", "last"])? {
        Some("last") => Overlap::Last,
        _ => Overlap::First,
    };
    let fields: Vec<&str> = pattern.split_ascii_whitespace().collect();
    let mut written = format!("cron {} in {}", fields.join(" "), known.iana_name().unwrap_or(&name));
    if gap == Gap::Skip {
        written += ", gap skip";
    }
    if overlap == Overlap::Last {
        written += ", overlap last";
    }
    Ok((Schedule::cron(cron, known, Policy { gap, overlap }), written, None))
}
