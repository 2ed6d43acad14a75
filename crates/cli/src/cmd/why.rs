//! `leasehold why NAME [TIME]`: why it did or did not run, in sentences.

mod around;
mod item;
mod log;

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use leasehold::backends::shown;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::Subject;
use leasehold::core::ledger::job_record::{DroppedRange, JobRecord};
use leasehold::core::name::Name;
use leasehold::ledger::key_of;
use leasehold::messages::Explanation;
use leasehold_run::jobs::{self, Job};
use leasehold_run::schedule::SlotError;
use serde_json::json;

use super::history::{self, About, Asked, ItemRow, Line};
use super::job_status::{self, JobStatus, KnownJob, is_at};
use super::{OpenedStore, daemon, item_args, status, store_failed, times};
use crate::args::{Everywhere, WhyArgs};
use crate::exit::{self, Failed};
use crate::messages::{history as history_say, items, why as say};
use crate::out::{self, Out};

/// Most items that are shown.
const MOST: usize = 5;

/// The time that was asked about.
enum AskedTime {
    /// A slot, or any time of a job that is not in the leasehold.toml here.
    At(i64),
    /// The job is in the leasehold.toml here, and this is none of its slots: why. An earlier schedule may have had it.
    NoSlot(Option<i64>, String),
}

impl AskedTime {
    fn second(&self) -> Option<i64> {
        match self {
            Self::At(at) => Some(*at),
            Self::NoSlot(at, _) => *at,
        }
    }
}

/// The question.
struct Question<'a> {
    /// A job, a lease, a key or an item.
    name: &'a str,
    /// A time, as it was typed.
    time: Option<&'a str>,
    /// The name, and the time if it was part of the same word.
    whole: &'a str,
}

impl<'a> Question<'a> {
    /// `JOB SLOT` and `JOB@SLOT` are the same.
    fn of(args: &'a WhyArgs) -> Self {
        let (name, time) = (args.name.as_str(), args.time.as_deref());
        let slot = name.split_once('@').filter(|(job, _)| time.is_none() && Name::new(job).is_ok());
        match slot.filter(|(_, time)| time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T')) {
            Some((job, time)) => Self { name: job, time: Some(time), whole: name },
            None => Self { name, time, whole: name },
        }
    }

    /// Whether an item is what was asked about.
    fn is_about(&self, row: &ItemRow, asked: Option<&AskedTime>, job: Option<&Job>) -> bool {
        let (shown, entry) = (item_args::shown(&row.entry.subject), &row.entry);
        if shown == self.whole {
            return true;
        }
        let then = asked.is_none_or(|asked| asked.second().is_some_and(|at| is_at(entry, at)));
        // A job with the name of this lease is another one than the jobs that run under the lease.
        let under = job.is_none() && entry.claim.lease.as_str() == self.name;
        then && (entry.job.as_str() == self.name || shown == self.name || under)
    }
}

/// What is known of it.
struct Known<'a> {
    question: &'a Question<'a>,
    /// How the time was understood, if it had no offset.
    taken: Option<String>,
    asked: Option<&'a AskedTime>,
    /// As the leasehold.toml here has it.
    job: Option<&'a Job>,
    /// The jobs there that need this lease.
    users: Vec<&'a str>,
    /// The state of the leases that a run needs.
    leases: Vec<String>,
    /// The newest items of this name, and whether there are more.
    rows: Vec<ItemRow>,
    more: bool,
    /// The last run if no item is newer; skips and refused writes after it.
    last: Vec<Line>,
    /// What is recorded around the time that was asked about.
    around: Vec<Line>,
    /// Other slots of this name are recorded.
    slots: bool,
    stood: Option<&'a KnownJob>,
    /// How long the run log is kept.
    kept: Option<Duration>,
}

/// Explains.
pub fn run(flags: &Everywhere, args: &WhyArgs, out: &Out) -> Result<u8, Failed> {
    let mut question = Question::of(args);
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_else(|bad| {
        out.warn(&bad.to_string());
        Vec::new()
    });
    let job = jobs.iter().find(|job| job.name.as_str() == question.name);
    let now = super::now();
    let understood = question.time.map(|time| understood(time, job, now));
    let taken = understood.as_ref().and_then(|understood| understood.taken.clone());
    question.time = understood.as_ref().map(|understood| understood.text.as_str());
    let asked = understood.as_ref().map(|time| asked(time, question.name, job, now)).transpose()?;
    let mut opened = super::open(flags, &[])?;
    let chosen = opened.chosen.clone();
    let failed = |failure| store_failed(&failure, &chosen);
    let stood = match Name::new(question.name) {
        Ok(name) => Some(job_status::stood(&mut opened, &name, job, now)?),
        Err(_) => None,
    };
    let store = opened.store.as_mut();
    let mut found = Asked::of(store, Some(question.whole), &[]).map_err(failed)?;
    if question.whole != question.name {
        found.about = About::Name(question.name.into());
    }
    let log = log::Log::of(store, question.name, &found).map_err(failed)?;
    let second = asked.as_ref().and_then(AskedTime::second);
    let items = log
        .items(second)
        .chain(second.into_iter().flat_map(|at| log.jobs.iter().map(move |job| history::slot(job, at))));
    for subject in items.collect::<Vec<_>>() {
        found.read_item(store, &subject).map_err(failed)?;
    }
    let mut rows = std::mem::take(&mut found.rows);
    let known =
        |rows: &[ItemRow], row: &ItemRow| rows.iter().any(|other| other.entry.subject == row.entry.subject);
    for row in stood.iter().flat_map(|stood| &stood.rows) {
        if !known(&rows, row) {
            rows.push(row.clone());
        }
    }
    let slots = rows.iter().any(|row| {
        row.entry.job.as_str() == question.name && matches!(row.entry.subject, Subject::Slot { .. })
    });
    rows.retain(|row| question.is_about(row, asked.as_ref(), job));
    let last = if asked.is_none() { log.last(&rows) } else { Vec::new() };
    let more = newest(&mut rows) || log.more;
    let unscheduled =
        rows.is_empty() && job.is_none() && stood.as_ref().is_none_or(|stood| stood.job_record.is_none());
    let around = match second.filter(|_| unscheduled) {
        Some(at) => log.around(store, at).map_err(failed)?,
        None => Vec::new(),
    };
    let users = jobs.iter().filter(|job| needs(job, question.name)).map(|j| j.name.as_str()).collect();
    let leases = leases(&mut opened, question.name, job)?;
    let any = found.is_known() || !log.lines.is_empty() || !around.is_empty();
    let (asked, stood, question) = (asked.as_ref(), stood.as_ref(), &question);
    let kept = opened.log.retention().age;
    let known =
        Known { question, taken, asked, job, users, leases, rows, more, last, around, slots, stood, kept };
    if !any && known.is_nothing() {
        return Err(history::unheard_of(&mut opened, question.whole)?);
    }
    if out.json {
        known.objects(out)
    } else {
        known.tell(now)
    }
    Ok(exit::OK)
}

impl Known<'_> {
    fn is_nothing(&self) -> bool {
        let recorded = !self.rows.is_empty() || self.job_record().is_some();
        !recorded && self.job.is_none() && self.users.is_empty() && self.leases.is_empty()
    }

    fn job_record(&self) -> Option<&JobRecord> {
        self.stood.and_then(|stood| stood.job_record.as_ref())
    }

    /// The last runs, and whether the last could not fence its targets.
    fn last(&self) -> (Vec<&Line>, bool) {
        let not_fenced = self.stood.and_then(|stood| stood.standing.not_fenced());
        let shown = not_fenced.filter(|_| self.asked.is_none() || self.rows.is_empty());
        (shown.map_or_else(|| self.last.iter().collect(), |run| vec![run]), not_fenced.is_some())
    }

    fn range(&self) -> Option<&DroppedRange> {
        let job_record = self.job_record()?;
        match self.asked {
            Some(AskedTime::At(at)) if self.rows.is_empty() => job_record.range_of(*at),
            Some(_) => None,
            None => job_record.dropped.last(),
        }
    }

    fn tell(&self, now: Timestamp) {
        let Self { question, asked, job, users, rows, more, .. } = self;
        let (name, time, job_record) = (question.name, question.time.unwrap_or_default(), self.job_record());
        for sentence in self.taken.iter().chain(&self.leases) {
            out::line(sentence);
        }
        if job.is_none() && !users.is_empty() {
            out::line(&say::users(name, users.join(", ")));
        }
        if let (Some(stood), Some(job_record)) = (self.stood, job_record) {
            stands(stood, job_record, *job, asked.is_none(), now);
        }
        if let Some(sentence) =
            job.filter(|_| asked.is_some()).and_then(|job| skipped_by_the_clock(time, job))
        {
            out::line(&sentence);
        }
        let (last, not_fenced) = self.last();
        last.iter().for_each(|run| ran_last(run, job.filter(|_| not_fenced)));
        rows.iter().for_each(|row| item::tell(row, *job));
        if *more && asked.is_none() && rows.len() >= MOST {
            out::line(&say::more(name));
        }
        for run in &self.around {
            out::line(&run.told_with_its_time());
        }
        match (asked, self.range()) {
            (None, Some(range)) => out::line(&say::dropped_last(name, job_status::dropped(range))),
            (None, None) if rows.is_empty() && last.is_empty() => {
                out::line(&nothing(name, job_record, *job, kept_for(self.kept)))
            }
            (Some(asked), range) if rows.is_empty() => out::line(&self.not_recorded(asked, range, now)),
            _ => true,
        };
    }

    /// Why there is no record of a slot.
    fn not_recorded(&self, asked: &AskedTime, range: Option<&DroppedRange>, now: Timestamp) -> String {
        let (name, time) = (self.question.name, self.question.time.unwrap_or_default());
        let at = match asked {
            AskedTime::NoSlot(_, why) => return say::not_due(name, why),
            AskedTime::At(at) => *at,
        };
        let slot = say::slot(name, times::slot_at(time, at));
        if let Some(range) = range {
            return say::dropped(slot, job_status::dropped(range));
        }
        match (self.job_record(), self.job) {
            (Some(job_record), _) if at <= job_record.settled => say::forgotten(slot),
            (Some(job_record), None) => say::not_started_nor_known(slot, name, &job_record.schedule),
            (_, Some(_)) if at > now.as_second() => say::due(slot, within(at, now)),
            (Some(_), Some(_)) => say::not_started(slot, within(at, now), name),
            (None, Some(_)) => say::not_loaded_then(slot),
            (None, None) => around::reach(name, time, at, !self.around.is_empty(), self.slots, self.kept),
        }
    }

    fn objects(&self, out: &Out) {
        let (job_record, range) = (self.job_record(), self.range());
        let dropped = job_record.zip(range).map(|(job_record, range)| Line::of_range(&job_record.job, range));
        let job = job_record.zip(self.stood).map(|(job_record, stood)| {
            json!({
                "v": 1, "kind": "job", "job": job_record.job.as_str(), "schedule": job_record.schedule,
                "standing": stood.standing.in_words(&job_record.job), "settled": times::utc(job_record.settled),
                "paused": job_record.paused.as_ref().map(|paused| json!({"by": paused.by, "since": paused.at})),
            })
        });
        let runs = self.last().0.into_iter().chain(&self.around).map(Line::object);
        let rows = self.rows.iter().map(|row| Line::of_item(row).object()).chain(runs);
        rows.chain(dropped.map(|dropped| dropped.object())).chain(job).all(|object| out.object(&object));
    }
}

/// The last run; and the targets of its job, if it could not fence them.
fn ran_last(run: &Line, not_fenced: Option<&Job>) {
    out::line(&run.sentence());
    if let Some(Job { name, dir, fence, .. }) = not_fenced {
        let targets: Vec<_> = fence.iter().map(|target| shown(target)).collect();
        out::line(&say::targets(name, dir.display(), targets.join(", ")));
    }
}

/// Keeps the newest items, the newest first; whether there were others.
fn newest(rows: &mut Vec<ItemRow>) -> bool {
    // The sort keeps this order within a second.
    rows.sort_by(|a, b| (b.when(), key_of(&b.entry.subject)).cmp(&(a.when(), key_of(&a.entry.subject))));
    let more = rows.len() > MOST;
    rows.truncate(MOST);
    more
}

/// "records are kept for 90d"
fn kept_for(kept: Option<Duration>) -> String {
    kept.map_or_else(history_say::kept_for_good, |age| history_say::kept_for(HumanDuration(age)))
}

fn needs(job: &Job, lease: &str) -> bool {
    job.leases.iter().any(|name| name.as_str() == lease)
}

/// The state of the leases that a run needs.
fn leases(opened: &mut OpenedStore, name: &str, job: Option<&Job>) -> Result<Vec<String>, Failed> {
    let names = match job {
        Some(job) => job.leases.clone(),
        None => Name::new(name).into_iter().collect(),
    };
    let sentences = names.iter().filter_map(|lease| status::sentence(opened, lease).transpose());
    sentences.collect()
}

/// A time that the wall clock skips: when the job is due instead, if it is.
fn skipped_by_the_clock(time: &str, job: &Job) -> Option<String> {
    let name = &job.name;
    if let Ok(slot) = job.schedule.parse_slot_id(time) {
        let named: Timestamp = slot.id().parse().ok()?;
        let due = || times::local(slot.due());
        return (named != slot.due()).then(|| say::moved_by_the_clock(slot.id(), name, due()));
    }
    let zone = job.schedule.zone()?;
    let shown: DateTime = time.get(..16)?.parse().ok()?;
    is_skipped(zone, shown).then(|| say::skipped_by_the_clock(time, name))
}

/// A time as it was typed, in the words of a slot.
struct Understood {
    text: String,
    /// The instant of a time without an offset.
    at: Option<i64>,
    /// How such a time was understood, for people.
    taken: Option<String>,
}

/// A time without an offset is one of the zone of the job, if its schedule has a zone, or else of this machine.
fn understood(text: &str, job: Option<&Job>, now: Timestamp) -> Understood {
    let own = job.and_then(|job| Some((job, job.schedule.zone()?)));
    let zone = own.map_or_else(times::here, |(_, zone)| zone.clone());
    let as_typed = |text: &str| Understood { text: text.into(), at: None, taken: None };
    let Some(shown) = times::typed(text, now, &zone) else { return as_typed(text) };
    let clock = shown.strftime(if shown.second() == 0 { "%Y-%m-%dT%H:%M" } else { "%Y-%m-%dT%H:%M:%S" });
    let clock = clock.to_string();
    let slot = own.and_then(|(job, _)| job.schedule.parse_slot_id(&clock).ok());
    let (word, at) = match (slot, zone.to_timestamp(shown)) {
        (Some(slot), _) => (slot.id(), slot.due()),
        // No slot, and no instant either.
        _ if own.is_some() && is_skipped(&zone, shown) => return as_typed(&clock),
        (None, Ok(at)) if own.is_some() => (clock, at),
        (None, Ok(at)) => (at.to_string(), at),
        (None, Err(_)) => return as_typed(text),
    };
    let taken = Some(say::taken_as(text, times::local_in(at, zone)));
    Understood { text: word, at: Some(at.as_second()), taken }
}

/// Whether the wall clock of a zone skips a time.
fn is_skipped(zone: &TimeZone, shown: DateTime) -> bool {
    matches!(zone.to_ambiguous_timestamp(shown).offset(), AmbiguousOffset::Gap { .. })
}

/// The time that a text means for a job.
fn asked(time: &Understood, name: &str, job: Option<&Job>, now: Timestamp) -> Result<AskedTime, Failed> {
    let text = time.text.as_str();
    let plain = || {
        if let Some(at) = time.at {
            return Ok(at);
        }
        let name = super::name(name)?;
        match item_args::slot_of(text, &name, now) {
            Ok(Subject::Slot { at, .. }) => Ok(at),
            Ok(Subject::Key(_) | Subject::Latest(_)) => Ok(0),
            Err(_) => Err(say::no_time(format!("{text:?}"))),
        }
    };
    match job.map(|job| job.schedule.parse_slot_id(text)) {
        None | Some(Err(SlotError::NotATime(_))) => Ok(AskedTime::At(plain()?)),
        Some(Ok(slot)) => Ok(AskedTime::At(slot.number())),
        Some(Err(none @ SlotError::NotASlot { .. })) => Ok(AskedTime::NoSlot(plain().ok(), none.to_string())),
        Some(Err(unclear)) => Err(Failed::usage(Explanation::of(unclear))),
    }
}

/// The standing of the job; only what concerns every slot if one slot was asked about.
fn stands(stood: &KnownJob, job_record: &JobRecord, job: Option<&Job>, whole: bool, now: Timestamp) {
    let name = &job_record.job;
    match &stood.standing {
        JobStatus::Paused { by, at } => {
            out::line(&say::paused(name, times::local_text(at), by));
            return;
        }
        JobStatus::Elsewhere(schedule) => {
            out::line(&say::elsewhere(name, schedule));
            return;
        }
        ahead @ JobStatus::Ahead(_) => {
            out::line(&say::stands(name, ahead.in_words(name)));
            return;
        }
        // The sentences about its slots and runs say the same.
        JobStatus::Ended(_)
        | JobStatus::NotFenced(..)
        | JobStatus::Running(_)
        | JobStatus::Fine
        | JobStatus::Unseen => {}
        stuck_or_late if whole => {
            out::line(&say::stands(name, stuck_or_late.in_words(name)));
        }
        _ => {}
    }
    if let Some(slot) = job.filter(|_| whole).and_then(|job| job.schedule.next_after(now)) {
        let named = times::slot(&slot.id(), slot.due());
        out::line(&say::due_next(name, named, within(slot.number(), now)));
    }
}

/// "in 3m" or "3m ago"
fn within(second: i64, now: Timestamp) -> String {
    let seconds = second - now.as_second();
    let time = HumanDuration(Duration::from_secs(seconds.unsigned_abs()));
    if seconds >= 0 { say::in_time(time) } else { items::ago(time) }
}

fn nothing(name: &str, job_record: Option<&JobRecord>, job: Option<&Job>, kept: String) -> String {
    match (job_record, job) {
        (Some(_), _) => say::no_slots_yet(name),
        (None, Some(_)) => say::not_loaded(name),
        (None, None) => say::no_run(name, kept),
    }
}
