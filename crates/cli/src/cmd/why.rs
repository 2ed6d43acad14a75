//! `leasehold why NAME [TIME]`: why it did or did not run, in sentences.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use leasehold::core::ids::WriteId;
use leasehold::core::ledger::agenda::{Agenda, Prospect, Range, prospect};
use leasehold::core::ledger::{Alive, Entry, Found, State, Subject};
use leasehold::core::name::Name;
use leasehold::core::stop::Text;
use leasehold::random;
use leasehold::schedule::SlotError;
use leasehold::text::{harmless, masked};
use serde_json::json;

use super::history::{self, Dropped, Row};
use super::past::{self, Run};
use super::standing::{self, Standing, Stood, is_at};
use super::{Opened, daemon, held_for, items, status};
use crate::args::{Everywhere, Why};
use crate::exit::{self, Failed};
use crate::jobs::{self, Job};
use crate::out::{self, Out};

/// Most items that are told of.
const MOST: usize = 5;

/// The time that was asked about.
enum Asked {
    /// A slot, or what may be one.
    At(i64),
    /// The job is in the leasehold.toml here, and this is none of its slots: why. It may have been one once.
    NoSlot(Option<i64>, String),
}

impl Asked {
    fn second(&self) -> Option<i64> {
        match self {
            Self::At(at) => Some(*at),
            Self::NoSlot(at, _) => *at,
        }
    }
}

/// What was asked.
struct Question<'a> {
    /// A job, a lease, a key or an item.
    name: &'a str,
    /// A time, as it was typed.
    time: Option<&'a str>,
    /// As one word, if it was typed as one.
    whole: &'a str,
}

impl<'a> Question<'a> {
    /// `JOB SLOT` and `JOB@SLOT` are the same.
    fn of(args: &'a Why) -> Self {
        let (name, time) = (args.name.as_str(), args.time.as_deref());
        let slot = name.split_once('@').filter(|(job, _)| time.is_none() && Name::new(job).is_ok());
        match slot.filter(|(_, time)| time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T')) {
            Some((job, time)) => Self { name: job, time: Some(time), whole: name },
            None => Self { name, time, whole: name },
        }
    }

    /// Whether an item is what was asked about.
    fn is_about(&self, row: &Row, asked: Option<&Asked>, job: Option<&Job>) -> bool {
        if items::shown(&row.entry.subject) == self.whole {
            return true;
        }
        let then = asked.is_none_or(|asked| asked.second().is_some_and(|at| is_at(&row.entry, at)));
        let under = job.is_none() && row.entry.claim.lease.as_str() == self.name;
        then && (row.is_about(self.name) || under)
    }
}

/// Tells.
pub fn run(flags: &Everywhere, args: &Why, out: &Out) -> Result<u8, Failed> {
    let question = Question::of(args);
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_else(|failed| {
        out.warn(&failed.message);
        Vec::new()
    });
    let job = jobs.iter().find(|job| job.name.as_str() == question.name);
    let now = super::now();
    let asked = question.time.map(|time| asked(time, question.name, job, now)).transpose()?;
    let mut opened = super::open(flags, &[])?;
    let mut rows = history::recorded(&mut opened)?.rows;
    let last = last_run(&mut opened, &question, &rows, job)?;
    rows.retain(|row| question.is_about(row, asked.as_ref(), job));
    let more = newest(&mut rows);
    let stood = match Name::new(question.name) {
        Ok(name) => Some(standing::stood(&mut opened, &name, job, now)?),
        Err(_) => None,
    };
    let agenda = stood.as_ref().and_then(|stood| stood.agenda.as_ref());
    let unsealed = stood.as_ref().and_then(|stood| stood.standing.unsealed());
    let last = unsealed.filter(|_| asked.is_none() || rows.is_empty()).or(last.as_ref());
    let range = agenda.and_then(|agenda| match &asked {
        Some(Asked::At(at)) if rows.is_empty() => agenda.range_of(*at),
        Some(_) => None,
        None => agenda.dropped.last(),
    });
    if out.json {
        objects(&rows, last, agenda, stood.as_ref(), range, out);
        return Ok(exit::OK);
    }
    let lease_known = leases(&mut opened, question.name, job)?;
    let users: Vec<&str> =
        jobs.iter().filter(|job| needs(job, question.name)).map(|j| j.name.as_str()).collect();
    if job.is_none() && !users.is_empty() {
        out::line(&format!("jobs here that need {}: {}.", question.name, users.join(", ")));
    }
    let recorded = !rows.is_empty() || last.is_some();
    if !recorded && agenda.is_none() && job.is_none() && users.is_empty() && !lease_known {
        out::line(&history::unheard_of(&mut opened, question.whole)?);
        return Ok(exit::OK);
    }
    if let (Some(stood), Some(agenda)) = (&stood, agenda) {
        stands(stood, agenda, job, asked.is_none(), now);
    }
    if let (Some(time), Some(job)) = (question.time, job) {
        skipped_by_the_clock(time, job).into_iter().for_each(|sentence| {
            out::line(&sentence);
        });
    }
    last.into_iter().for_each(|run| ran_last(run, job.filter(|_| unsealed.is_some())));
    rows.iter().for_each(|row| tell(row, job));
    if more > 0 {
        out::line(&format!("and {more} more: leasehold history {}", question.name));
    }
    match (&asked, range) {
        (None, Some(range)) => {
            out::line(&format!("dropped last of {}, {}.", question.name, standing::dropped(range)));
        }
        (None, None) if !recorded => {
            out::line(&nothing(question.name, agenda, job));
        }
        (Some(asked), range) if rows.is_empty() => {
            out::line(&unrun(&question, asked, range, agenda, job, now));
        }
        _ => {}
    }
    Ok(exit::OK)
}

/// What came of the last run; if it could not seal them, the targets of its job.
fn ran_last(run: &Run, unsealed: Option<&Job>) {
    out::line(&run.sentence());
    if let Some(Job { name, dir, fence, .. }) = unsealed {
        let targets: Vec<_> = fence.iter().map(|target| masked(target)).collect();
        out::line(&format!("targets of {name}, as seen from {}: {}.", dir.display(), targets.join(", ")));
    }
}

/// Leaves the newest, those first; how many more there are.
fn newest(rows: &mut Vec<Row>) -> usize {
    // Also of those that ended in the same second.
    rows.reverse();
    rows.sort_by(|a, b| b.when().cmp(a.when()));
    let more = rows.len().saturating_sub(MOST);
    rows.truncate(MOST);
    more
}

/// The last run of the lease or job, if no item was run since; none where one slot was asked about.
fn last_run(
    opened: &mut Opened,
    question: &Question<'_>,
    rows: &[Row],
    job: Option<&Job>,
) -> Result<Option<Run>, Failed> {
    if question.time.is_some() {
        return Ok(None);
    }
    let last = past::runs(opened, rows)?.runs.into_iter().rfind(|run| run.is_about(question.name));
    let mut since = rows.iter().filter(|row| question.is_about(row, None, job));
    Ok(last.filter(|run| !since.any(|row| run.is_before(&row.entry))))
}

fn needs(job: &Job, lease: &str) -> bool {
    job.leases.iter().any(|name| name.as_str() == lease)
}

/// What a run would find of the leases it needs. Whether there are any.
fn leases(opened: &mut Opened, name: &str, job: Option<&Job>) -> Result<bool, Failed> {
    let names = match job {
        Some(job) => job.leases.clone(),
        None => Name::new(name).into_iter().collect(),
    };
    let mut any = false;
    for lease in names {
        if let Some(sentence) = status::sentence(opened, &lease)? {
            any = true;
            out::line(&sentence);
        }
    }
    Ok(any)
}

/// A time on the wall that never comes: when the job is due instead, if it is.
fn skipped_by_the_clock(time: &str, job: &Job) -> Option<String> {
    let name = &job.name;
    if let Ok(slot) = job.schedule.parse_slot_id(time) {
        let named: Timestamp = slot.id().parse().ok()?;
        return (named != slot.due()).then(|| {
            format!("the wall clock skips {}: {name} is due when it goes on, at {}.", slot.id(), slot.due())
        });
    }
    let zone = job.written.rsplit_once(" in ")?.1;
    let zone = TimeZone::get(zone.split(',').next()?).ok()?;
    let shown: DateTime = time.get(..16)?.parse().ok()?;
    let gap = matches!(zone.to_ambiguous_timestamp(shown).offset(), AmbiguousOffset::Gap { .. });
    gap.then(|| format!("the wall clock skips {time}, and {name} is not run for it."))
}

/// The time that a text means for a job.
fn asked(time: &str, name: &str, job: Option<&Job>, now: Timestamp) -> Result<Asked, Failed> {
    let plain = || {
        let name = Name::new(name).map_err(|e| Failed::usage(e.to_string()))?;
        match items::slot_of(time, &name, now) {
            Ok(Subject::Slot { at, .. }) => Ok(at),
            Ok(Subject::Key(_) | Subject::Latest(_)) => Ok(0),
            Err(_) => Err(Failed::usage(format!(
                "{time:?} is no time with an offset from UTC: write it as 2026-11-16T05:45Z or 2026-11-16T14:45+09:00"
            ))),
        }
    };
    match job.map(|job| job.schedule.parse_slot_id(time)) {
        None | Some(Err(SlotError::NotATime(_))) => Ok(Asked::At(plain()?)),
        Some(Ok(slot)) => Ok(Asked::At(slot.number())),
        Some(Err(none @ SlotError::NotASlot { .. })) => Ok(Asked::NoSlot(plain().ok(), none.to_string())),
        Some(Err(unclear)) => Err(Failed::usage(unclear.to_string())),
    }
}

/// How the job stands. Asked about one slot, only what bears on it.
fn stands(stood: &Stood, agenda: &Agenda, job: Option<&Job>, whole: bool, now: Timestamp) {
    let name = &agenda.job;
    match &stood.standing {
        Standing::Paused { by, at } => {
            out::line(&format!(
                "{name} is paused since {at}, by {by}: its slots are dropped until `leasehold resume {name}`."
            ));
            return;
        }
        Standing::Elsewhere(schedule) => {
            out::line(&format!(
                "another schedule is in force for {name}, loaded by another machine or before this file was changed \
                 ({schedule}): what the file here says is not run until a daemon or a tick loads it."
            ));
            return;
        }
        // Whichever slot was asked about.
        ahead @ Standing::Ahead(_) => {
            out::line(&format!("{name} is {}.", ahead.in_words(name)));
            return;
        }
        // What ended badly is told below; and who is at it now.
        Standing::Ended(_)
        | Standing::Unsealed(..)
        | Standing::Running(_)
        | Standing::Fine
        | Standing::Unseen => {}
        stuck_or_late if whole => {
            let words = stuck_or_late.in_words(name);
            out::line(&format!("{name}: {}", words.trim_end_matches('.')));
        }
        _ => {}
    }
    if let Some(slot) = job.filter(|_| whole).and_then(|job| job.schedule.next_after(now)) {
        out::line(&format!("{name} is due next at {slot}, {}.", within(slot.number(), now)));
    }
}

/// "in 3m" or "3m ago"
fn within(second: i64, now: Timestamp) -> String {
    let seconds = second - now.as_second();
    let time = Text(Duration::from_secs(seconds.unsigned_abs()));
    if seconds >= 0 { format!("in {time}") } else { format!("{time} ago") }
}

fn nothing(name: &str, agenda: Option<&Agenda>, job: Option<&Job>) -> String {
    match (agenda, job) {
        (Some(_), _) => format!("no slot of {name} is recorded yet, and none was dropped."),
        (None, Some(_)) => format!(
            "nothing of {name} is recorded: no daemon and no tick has loaded the job on this store, and a job has no \
             past before that. Start one: leasehold daemon, or leasehold tick from cron."
        ),
        (None, None) => {
            format!(
                "no run of {name} is recorded: one that found the lease held leaves no record, nor does one with --no-history"
            )
        }
    }
}

/// Why there is no record of a slot.
fn unrun(
    question: &Question<'_>,
    asked: &Asked,
    range: Option<&Range>,
    agenda: Option<&Agenda>,
    job: Option<&Job>,
    now: Timestamp,
) -> String {
    let (name, time) = (question.name, question.time.unwrap_or_default());
    let at = match asked {
        Asked::NoSlot(_, why) => return format!("{name} is not due then: {why}."),
        Asked::At(at) => *at,
    };
    if let Some(range) = range {
        return format!("{name}@{time} was dropped, of {}.", standing::dropped(range));
    }
    match (agenda, job) {
        (Some(agenda), _) if at <= agenda.settled => format!(
            "{name}@{time} is settled, and nothing is left of it: it was settled so long ago that its record was \
             removed, or it was due before a machine first loaded this schedule, which has no past."
        ),
        (Some(agenda), None) => format!(
            "nobody has begun {name}@{time}, and there is no job {name} in a leasehold.toml here to tell whether it is \
             one of its slots ({}).",
            agenda.schedule
        ),
        (_, Some(_)) if at > now.as_second() => {
            format!("{name}@{time} is due {}.", within(at, now))
        }
        (Some(_), Some(_)) => format!(
            "nobody has begun {name}@{time}, which was due {}: does a daemon run, or a tick? What finds the lease held \
             is recorded when a scheduler has tried it; leasehold plan {name} tells how it stands.",
            within(at, now)
        ),
        (None, Some(_)) => format!(
            "nobody has begun {name}@{time}: no daemon and no tick has loaded the job on this store, and a job has no \
             past before that. Start one: leasehold daemon, or leasehold tick from cron."
        ),
        (None, None) => format!(
            "no run began {name}@{time}: nothing was fired for it, or whatever was found the lease held by another and was \
             skipped. Only what begins is recorded"
        ),
    }
}

/// What became of one item, and what the next run will do; what a failed one said, below.
fn tell(row: &Row, job: Option<&Job>) {
    out::line(&sentence(row, job));
    let said = row.entry.ending.as_ref().map_or("", |ending| ending.said.as_str());
    if row.entry.state != State::Skipped {
        harmless(said).lines().all(|line| out::line(&format!("    {line}")));
    }
}

fn sentence(row: &Row, job: Option<&Job>) -> String {
    let entry = &row.entry;
    let name = items::shown(&entry.subject);
    let by = items::by_whom(entry);
    let exit =
        entry.ending.as_ref().and_then(|e| e.exit).map(|exit| format!(" (exit {exit})")).unwrap_or_default();
    let took = entry.ending.as_ref().map(|e| Duration::from_millis(e.took_ms));
    let took = took.map(|took| format!(" in {}", Text(took))).unwrap_or_default();
    let attempt = if entry.attempt > 1 { format!(", at attempt {}", entry.attempt) } else { String::new() };
    let scheduled = job.filter(|_| matches!(entry.subject, Subject::Slot { .. }));
    let next = match (row.word, &entry.subject) {
        ("ok", Subject::Latest(_)) => "runs with --cooldown are skipped until that is over".into(),
        ("ok", _) => "it is not run again".into(),
        ("started", _) => "it is being done now, and others are skipped".into(),
        ("planned", _) => "the next run begins it".into(),
        ("skipped", _) => {
            let said = entry.ending.as_ref().map_or("", |ending| ending.said.as_str());
            format!("it is not run ({said})")
        }
        (word, _) => {
            scheduled.map_or_else(|| unscheduled(entry, word), |job| badly(entry, job, &name, super::now()))
        }
    };
    let word = match entry.state {
        State::Started if row.word == "unknown" => "begun and never reported",
        State::Planned => "to be tried again",
        state => state.word(),
    };
    if entry.state == State::Skipped {
        // The claim is of whoever was in its way.
        let ago = held_for(row.when()).map(|d| format!(" {} ago", Text(d))).unwrap_or_default();
        return format!("{name}: {word}{ago}; {next}.");
    }
    format!("{name}: {word}, by {by}{took}{exit}{attempt}; {next}.")
}

fn unscheduled(entry: &Entry, word: &str) -> String {
    let slot = matches!(entry.subject, Subject::Slot { .. });
    match word {
        "failed" => {
            let name = items::shown(&entry.subject);
            format!(
                "the next run tries again, unless it failed as often as --attempts allows: then it waits for you (79), until \
                 `leasehold retry {name}`"
            )
        }
        _ if slot && !entry.steps.is_empty() => {
            format!("the next run of it goes on: {}", steps_done(entry))
        }
        _ => {
            "nobody can tell whether it did its work: the next run asks you (79), unless it says --if-unknown retry".into()
        }
    }
}

fn steps_done(entry: &Entry) -> String {
    match entry.steps.len() {
        1 => "1 step of it is done and is not done again".into(),
        n => format!("{n} steps of it are done and are not done again"),
    }
}

/// What a scheduler does about a slot that did not end well.
fn badly(entry: &Entry, job: &Job, name: &str, now: Timestamp) -> String {
    let found = Found { entry, age: None };
    let ask = job.terms().ask(entry, now.as_second());
    // A run that is at it is told of before.
    let open = prospect(found, &ask, Some(Alive::No), WriteId(random::seed())) == Prospect::Open;
    let failed = entry.state == State::Failed;
    match open {
        true if failed => format!("it may fail {} times, and is tried again", job.attempts),
        true if job.retry => "it is run again, as retry = true says".into(),
        true => format!("it is run again: {}", steps_done(entry)),
        false if failed => format!("it is not run again unless you say: leasehold retry {name}"),
        false => format!(
            "nobody can tell whether it did its work: look, then leasehold retry {name}, or leasehold retry --done {name}"
        ),
    }
}

fn objects(
    rows: &[Row],
    last: Option<&Run>,
    agenda: Option<&Agenda>,
    stood: Option<&Stood>,
    range: Option<&Range>,
    out: &Out,
) {
    let dropped = agenda.zip(range).map(|(agenda, range)| Dropped { job: agenda.job.clone(), range: *range });
    let job = agenda.zip(stood).map(|(agenda, stood)| {
        json!({
            "v": 1, "kind": "job", "job": agenda.job.as_str(), "schedule": agenda.schedule,
            "standing": stood.standing.in_words(&agenda.job), "settled": standing::time(agenda.settled),
            "paused": agenda.paused.as_ref().map(|paused| json!({"by": paused.by, "since": paused.at})),
        })
    });
    let rows = rows.iter().map(history::object).chain(last.map(Run::object));
    rows.chain(dropped.map(|dropped| dropped.object())).chain(job).all(|object| out.object(&object));
}
