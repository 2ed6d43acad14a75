//! `leasehold why NAME [TIME]`: why it did or did not run, in sentences.

mod around;
mod item;

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::AmbiguousOffset;
use leasehold::backends::shown;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::Subject;
use leasehold::core::ledger::job_record::{DroppedRange, JobRecord};
use leasehold::core::name::Name;
use leasehold_run::jobs::{self, Job};
use leasehold_run::schedule::SlotError;
use serde_json::json;

use super::history::{self, DroppedOfJob, ItemRow};
use super::job_status::{self, JobStatus, KnownJob, is_at};
use super::past_runs::{self, PastRun};
use super::{OpenedStore, daemon, item_args, status};
use crate::args::{Everywhere, WhyArgs};
use crate::exit::{self, Failed};
use crate::out::{self, Out};

/// Most items that are told of.
const MOST: usize = 5;

/// The time that was asked about.
enum AskedTime {
    /// A slot, or what may be one.
    At(i64),
    /// The job is in the leasehold.toml here, and this is none of its slots: why. It may have been one once.
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
        if item_args::shown(&row.entry.subject) == self.whole {
            return true;
        }
        let then = asked.is_none_or(|asked| asked.second().is_some_and(|at| is_at(&row.entry, at)));
        // What other jobs do under the lease tells nothing of a job that is called as it.
        then && (row.is_about(self.name) || job.is_none() && row.is_under(self.name))
    }
}

/// What is known of it.
struct Known<'a> {
    question: &'a Question<'a>,
    asked: Option<&'a AskedTime>,
    /// As the leasehold.toml here has it.
    job: Option<&'a Job>,
    /// The jobs there that need this lease.
    users: Vec<&'a str>,
    /// What a run would find of the leases it needs.
    leases: Vec<String>,
    /// The newest items that were asked about, and how many more there are.
    rows: Vec<ItemRow>,
    more: usize,
    /// The runs that are kept, and the last one if nothing is newer.
    runs: &'a [PastRun],
    last: Option<&'a PastRun>,
    /// Other slots of this name are recorded.
    slots: bool,
    stood: Option<&'a KnownJob>,
}

/// Tells.
pub fn run(flags: &Everywhere, args: &WhyArgs, out: &Out) -> Result<u8, Failed> {
    let question = Question::of(args);
    let jobs = jobs::here(&daemon::path(flags)).unwrap_or_else(|bad| {
        out.warn(&bad.to_string());
        Vec::new()
    });
    let job = jobs.iter().find(|job| job.name.as_str() == question.name);
    let now = super::now();
    let asked = question.time.map(|time| asked(time, question.name, job, now)).transpose()?;
    let mut opened = super::open(flags, &[])?;
    let mut rows = history::recorded(&mut opened)?.rows;
    let mut runs = past_runs::runs(&mut opened, &rows)?.runs;
    runs.retain(|run| run.is_about(question.name));
    let last = last_run(&runs, &question, &rows, job);
    let slots = rows.iter().any(|row| row.is_about(question.name) && row.is_slot());
    rows.retain(|row| question.is_about(row, asked.as_ref(), job));
    let more = newest(&mut rows);
    let stood = match Name::new(question.name) {
        Ok(name) => Some(job_status::stood(&mut opened, &name, job, now)?),
        Err(_) => None,
    };
    let users = jobs.iter().filter(|job| needs(job, question.name)).map(|j| j.name.as_str()).collect();
    let leases = leases(&mut opened, question.name, job)?;
    let (asked, runs, stood) = (asked.as_ref(), &runs[..], stood.as_ref());
    let question = &question;
    let known = Known { question, asked, job, users, leases, rows, more, runs, last, slots, stood };
    if known.is_nothing() {
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
        let recorded = !self.rows.is_empty() || !self.runs.is_empty() || self.agenda().is_some();
        !recorded && self.job.is_none() && self.users.is_empty() && self.leases.is_empty()
    }

    fn agenda(&self) -> Option<&JobRecord> {
        self.stood.and_then(|stood| stood.agenda.as_ref())
    }

    /// What came of the last run; whether that is that it could not seal its targets.
    fn last(&self) -> (Option<&PastRun>, bool) {
        let unsealed = self.stood.and_then(|stood| stood.standing.unsealed());
        let unsealed_last = unsealed.filter(|_| self.asked.is_none() || self.rows.is_empty());
        (unsealed_last.or(self.last), unsealed.is_some())
    }

    fn range(&self) -> Option<&DroppedRange> {
        let agenda = self.agenda()?;
        match self.asked {
            Some(AskedTime::At(at)) if self.rows.is_empty() => agenda.range_of(*at),
            Some(_) => None,
            None => agenda.dropped.last(),
        }
    }

    /// The time that was asked about, if no schedule tells whether a run was to begin then: what is known is what was
    /// kept.
    fn unscheduled(&self) -> Option<i64> {
        let unscheduled = self.rows.is_empty() && self.agenda().is_none() && self.job.is_none();
        self.asked.filter(|_| unscheduled).and_then(AskedTime::second)
    }

    fn around(&self) -> &[PastRun] {
        self.unscheduled().map_or(&[], |at| around::around(self.runs, at))
    }

    fn tell(&self, now: Timestamp) {
        let Self { question, asked, job, users, rows, more, .. } = self;
        let (name, time, agenda) = (question.name, question.time.unwrap_or_default(), self.agenda());
        for sentence in &self.leases {
            out::line(sentence);
        }
        if job.is_none() && !users.is_empty() {
            out::line(&format!("jobs here that need {name}: {}.", users.join(", ")));
        }
        if let (Some(stood), Some(agenda)) = (self.stood, agenda) {
            stands(stood, agenda, *job, asked.is_none(), now);
        }
        if let Some(sentence) =
            job.filter(|_| asked.is_some()).and_then(|job| skipped_by_the_clock(time, job))
        {
            out::line(&sentence);
        }
        let (last, unsealed) = self.last();
        last.into_iter().for_each(|run| ran_last(run, job.filter(|_| unsealed)));
        rows.iter().for_each(|row| item::tell(row, *job));
        if *more > 0 {
            out::line(&format!("and {more} more: leasehold history {name}"));
        }
        for run in self.around() {
            out::line(&run.told_with_its_time());
        }
        match (asked, self.range()) {
            (None, Some(range)) => {
                out::line(&format!("dropped last of {name}, {}.", job_status::dropped(range)))
            }
            (None, None) if rows.is_empty() && last.is_none() => out::line(&nothing(name, agenda, *job)),
            (Some(asked), range) if rows.is_empty() => out::line(&self.unrun(asked, range, now)),
            _ => true,
        };
    }

    /// Why there is no record of a slot.
    fn unrun(&self, asked: &AskedTime, range: Option<&DroppedRange>, now: Timestamp) -> String {
        let (name, time) = (self.question.name, self.question.time.unwrap_or_default());
        let at = match asked {
            AskedTime::NoSlot(_, why) => return format!("{name} is not due then: {why}."),
            AskedTime::At(at) => *at,
        };
        if let Some(range) = range {
            return format!("{name}@{time} was dropped, of {}.", job_status::dropped(range));
        }
        match (self.agenda(), self.job) {
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
            (None, None) => around::reach(name, time, at, self.runs.first(), self.slots),
        }
    }

    fn objects(&self, out: &Out) {
        let (agenda, range) = (self.agenda(), self.range());
        let dropped =
            agenda.zip(range).map(|(agenda, range)| DroppedOfJob { job: agenda.job.clone(), range: *range });
        let job = agenda.zip(self.stood).map(|(agenda, stood)| {
            json!({
                "v": 1, "kind": "job", "job": agenda.job.as_str(), "schedule": agenda.schedule,
                "standing": stood.standing.in_words(&agenda.job), "settled": job_status::time(agenda.settled),
                "paused": agenda.paused.as_ref().map(|paused| json!({"by": paused.by, "since": paused.at})),
            })
        });
        let runs = self.last().0.into_iter().chain(self.around()).map(PastRun::object);
        let rows = self.rows.iter().map(history::object).chain(runs);
        rows.chain(dropped.map(|dropped| dropped.object())).chain(job).all(|object| out.object(&object));
    }
}

/// What came of the last run; if it could not seal them, the targets of its job.
fn ran_last(run: &PastRun, unsealed: Option<&Job>) {
    out::line(&run.sentence());
    if let Some(Job { name, dir, fence, .. }) = unsealed {
        let targets: Vec<_> = fence.iter().map(|target| shown(target)).collect();
        out::line(&format!("targets of {name}, as seen from {}: {}.", dir.display(), targets.join(", ")));
    }
}

/// Leaves the newest, those first; how many more there are.
fn newest(rows: &mut Vec<ItemRow>) -> usize {
    // Also of those that ended in the same second.
    rows.reverse();
    rows.sort_by(|a, b| b.when().cmp(a.when()));
    let more = rows.len().saturating_sub(MOST);
    rows.truncate(MOST);
    more
}

/// The last run of the lease or job, if no item was run since; none where one slot was asked about.
fn last_run<'a>(
    runs: &'a [PastRun],
    question: &Question<'_>,
    rows: &[ItemRow],
    job: Option<&Job>,
) -> Option<&'a PastRun> {
    let last = runs.last().filter(|_| question.time.is_none())?;
    let mut since = rows.iter().filter(|row| question.is_about(row, None, job));
    (!since.any(|row| last.is_before(&row.entry))).then_some(last)
}

fn needs(job: &Job, lease: &str) -> bool {
    job.leases.iter().any(|name| name.as_str() == lease)
}

/// What a run would find of the leases it needs.
fn leases(opened: &mut OpenedStore, name: &str, job: Option<&Job>) -> Result<Vec<String>, Failed> {
    let names = match job {
        Some(job) => job.leases.clone(),
        None => Name::new(name).into_iter().collect(),
    };
    let sentences = names.iter().filter_map(|lease| status::sentence(opened, lease).transpose());
    sentences.collect()
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
    let zone = job.schedule.zone()?;
    let shown: DateTime = time.get(..16)?.parse().ok()?;
    let gap = matches!(zone.to_ambiguous_timestamp(shown).offset(), AmbiguousOffset::Gap { .. });
    gap.then(|| format!("the wall clock skips {time}, and {name} is not run for it."))
}

/// The time that a text means for a job.
fn asked(time: &str, name: &str, job: Option<&Job>, now: Timestamp) -> Result<AskedTime, Failed> {
    let plain = || {
        let name = Name::new(name).map_err(|e| Failed::usage(e.to_string()))?;
        match item_args::slot_of(time, &name, now) {
            Ok(Subject::Slot { at, .. }) => Ok(at),
            Ok(Subject::Key(_) | Subject::Latest(_)) => Ok(0),
            Err(_) => Err(Failed::usage(format!(
                "{time:?} is no time with an offset from UTC: write it as 2026-11-16T05:45Z or 2026-11-16T14:45+09:00"
            ))),
        }
    };
    match job.map(|job| job.schedule.parse_slot_id(time)) {
        None | Some(Err(SlotError::NotATime(_))) => Ok(AskedTime::At(plain()?)),
        Some(Ok(slot)) => Ok(AskedTime::At(slot.number())),
        Some(Err(none @ SlotError::NotASlot { .. })) => Ok(AskedTime::NoSlot(plain().ok(), none.to_string())),
        Some(Err(unclear)) => Err(Failed::usage(unclear.to_string())),
    }
}

/// How the job stands. Asked about one slot, only what bears on it.
fn stands(stood: &KnownJob, agenda: &JobRecord, job: Option<&Job>, whole: bool, now: Timestamp) {
    let name = &agenda.job;
    match &stood.standing {
        JobStatus::Paused { by, at } => {
            out::line(&format!(
                "{name} is paused since {at}, by {by}: its slots are dropped until `leasehold resume {name}`."
            ));
            return;
        }
        JobStatus::Elsewhere(schedule) => {
            out::line(&format!(
                "another schedule is in force for {name}, loaded by another machine or before this file was changed \
                 ({schedule}): what the file here says is not run until a daemon or a tick loads it."
            ));
            return;
        }
        // Whichever slot was asked about.
        ahead @ JobStatus::Ahead(_) => {
            out::line(&format!("{name} is {}.", ahead.in_words(name)));
            return;
        }
        // What ended badly is told below; and who is at it now.
        JobStatus::Ended(_)
        | JobStatus::Unsealed(..)
        | JobStatus::Running(_)
        | JobStatus::Fine
        | JobStatus::Unseen => {}
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
    let time = HumanDuration(Duration::from_secs(seconds.unsigned_abs()));
    if seconds >= 0 { format!("in {time}") } else { format!("{time} ago") }
}

fn nothing(name: &str, agenda: Option<&JobRecord>, job: Option<&Job>) -> String {
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
