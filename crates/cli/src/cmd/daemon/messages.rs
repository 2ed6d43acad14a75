//! What a scheduler says.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::STUCK;
use leasehold::core::ledger::{Entry, ItemState};
use leasehold::core::name::Name;
use leasehold::stores::Failure;
use leasehold_run::job_records::{JobNote, SlotToStart};
use leasehold_run::schedule::Slot;
use leasehold_run::scheduler::{ClockError, RunEnded, SchedulerEvent, SlotFate, StartError};
use serde_json::{Value, json};

use crate::cmd::job_status::{ahead, dropped_of, time};
use crate::cmd::{held_for, item_args, store_failed};
use crate::config::Chosen;
use crate::exit::Failed;
use crate::out::Out;

/// Tells people, or whoever reads `--json`.
pub struct Messages<'a> {
    out: &'a Out,
    chosen: Chosen,
    /// What was said of a job and need not be said again.
    told: BTreeSet<(Name, String)>,
}

impl<'a> Messages<'a> {
    pub fn new(out: &'a Out, chosen: Chosen) -> Self {
        Self { out, chosen, told: BTreeSet::new() }
    }

    /// Tells of one thing.
    pub fn tell(&mut self, event: &SchedulerEvent<'_>) {
        match event {
            SchedulerEvent::Registered(changed) => {
                // Whoever has changed the file wants to hear what is still wrong.
                self.told.clear();
                self.registered(changed);
            }
            SchedulerEvent::Noted(job, note) => self.note(job, note),
            SchedulerEvent::Unusable(job, failure) => {
                if self.told.insert(((*job).clone(), failure.message.clone())) {
                    self.out.warn(&format!("{job} is not run: {}", failure.message));
                }
            }
            SchedulerEvent::Started(job, start) => self.started(job, start),
            SchedulerEvent::NotStarted(job, slot, error) => self.not_started(job, slot, error),
            SchedulerEvent::Ended(job, run) => self.ended(job, run),
            SchedulerEvent::StoreSilent(failure) => self.silent(failure),
            SchedulerEvent::StoreAnswers => self.out.warn("the store answers again"),
            SchedulerEvent::ClockWrong(error) => self.clock_wrong(error),
        }
    }

    /// For `--json`: what it is about, what people are told of it, and the same in fields.
    fn event(&self, event: &str, job: &Name, slot: &str, text: &str, fields: &Value) {
        if !self.out.json {
            return;
        }
        let mut object = json!({"v": 1, "event": event, "job": job.as_str(), "slot": slot, "text": text});
        if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
            object.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        self.out.object(&object);
    }

    /// Jobs were seen for the first time, or with another schedule.
    fn registered(&self, changed: &[(Name, Option<String>)]) {
        let new: Vec<&Name> =
            changed.iter().filter(|(_, before)| before.is_none()).map(|(job, _)| job).collect();
        let store = &self.chosen.shown;
        let text = match &new[..] {
            [] => String::new(),
            [job] => format!("{job} is new on {store}: due from now on, nothing was missed"),
            jobs => format!("{} jobs are new on {store}: due from now on, nothing was missed", jobs.len()),
        };
        if !new.is_empty() {
            self.out.note(&text);
        }
        for job in new {
            self.event("registered", job, "", &text, &json!({"before": null}));
        }
        for (job, before) in changed.iter().filter_map(|(job, before)| Some((job, before.as_ref()?))) {
            let text = format!(
                "{job} has another schedule now (it was {before}): what was due before is not run. If another machine \
                 still has the old one, give both the same file; if another leasehold.toml on this store has a job of that \
                 name, rename one"
            );
            self.out.note(&text);
            self.event("registered", job, "", &text, &json!({"before": before}));
        }
    }

    fn started(&self, job: &Name, start: &SlotToStart) {
        let SlotToStart { slot, late, again, .. } = start;
        let how = match (again, late) {
            (true, _) => ", once more",
            (false, true) => ", which was missed",
            (false, false) => "",
        };
        let text = format!("starting {job} for {slot}{how}");
        self.out.detail(&text);
        let fields = json!({"missed": *late && !again, "again": again});
        self.event("started", job, &slot.due().to_string(), &text, &fields);
    }

    fn not_started(&self, job: &Name, slot: &Slot, error: &StartError) {
        let text = format!("{job} was not started for {slot}: {error}");
        self.out.warn(&text);
        self.event("unstarted", job, &slot.due().to_string(), &text, &json!({"reason": error.to_string()}));
    }

    fn ended(&self, job: &Name, run: &RunEnded<'_>) {
        let (slot, status) = (run.ended.slot.due().to_string(), run.ended.status);
        let RunMessage { word, text, alarming } = told(job, &slot, run);
        let record = run.record.as_ref().ok().and_then(Option::as_ref);
        let fields = json!({
            "outcome": word, "exit": status.code(), "signal": status.signal(),
            "attempt": record.map(|record| record.attempt),
            "failures": record.map(|record| record.failures), "attempts": run.ended.attempts,
        });
        self.event("ended", job, &slot, &text, &fields);
        if alarming {
            self.out.warn(&text);
        }
    }

    /// What was found about a job. Some of it is said once.
    fn note(&mut self, job: &Name, note: &JobNote) {
        let (event, slot, text, fields) = match note {
            JobNote::Dropped(range) => {
                let fields = json!({
                    "outcome": "dropped", "reason": range.why.word(), "count": range.count,
                    "first": time(range.first), "last": time(range.last),
                });
                ("dropped", String::new(), dropped_of(job, range), fields)
            }
            JobNote::WavedOff(entry) => {
                let (lease, holder) = (&entry.claim.lease, &entry.claim.holder);
                let held =
                    held_for(&holder.since).map(|d| format!(" for {}", HumanDuration(d))).unwrap_or_default();
                let by = format!("{}/{}", holder.host, holder.pid);
                let token = entry.claim.token;
                let text = format!("skipped {}: {lease} is held by {by} (token {token}){held}", shown(entry));
                let fields = json!({
                    "outcome": "skipped", "reason": "overlap", "lease": lease.as_str(), "holder": by,
                    "since": holder.since,
                });
                ("skipped", shown(entry), text, fields)
            }
            JobNote::Stuck(slot) => {
                let text = format!(
                    "{job} is stuck: {STUCK} slots in a row found its lease held; see: leasehold plan {job}"
                );
                ("stuck", item_args::shown(slot), text, json!({"count": STUCK}))
            }
            JobNote::Silent(entry) => {
                let by = item_args::by_whom(entry);
                let text = format!(
                    "{} was begun by {by} and never reported; see: leasehold why {job}",
                    shown(entry)
                );
                let fields = json!({"outcome": "unknown", "attempt": entry.attempt});
                ("unknown", shown(entry), text, fields)
            }
            JobNote::Elsewhere(schedule) => (
                "elsewhere",
                String::new(),
                format!(
                    "{job} is not run here: another machine has loaded another schedule for it since ({schedule}). Give \
                     all machines the same file"
                ),
                json!({"schedule": schedule}),
            ),
            JobNote::Ahead(upto) => {
                let text = format!("{job} is not run: it is {}", ahead(job, *upto));
                ("ahead", String::new(), text, json!({"until": time(*upto)}))
            }
            JobNote::Bad(why) => {
                ("bad", String::new(), format!("{why}. It is left alone"), json!({"reason": why}))
            }
        };
        let once = matches!(note, JobNote::Elsewhere(_) | JobNote::Bad(_) | JobNote::Ahead(_));
        if once && !self.told.insert((job.clone(), text.clone())) {
            return;
        }
        self.event(event, job, &slot, &text, &fields);
        match note {
            JobNote::WavedOff(_) => self.out.note(&text),
            _ => self.out.warn(&text),
        }
    }

    fn clock_wrong(&self, error: &ClockError) {
        let why = clock_failed(error, &self.chosen).told.to_string();
        match error {
            ClockError::Off(_) => self.out.warn(&why),
            ClockError::Store(_) => self.out.warn(&format!(
                "{}. This machine's clock was set, or was wrong before, and cannot be compared with the store's: nothing \
                 is started until it can be; what is due meanwhile is caught up as far as catch_up says",
                why.trim_end_matches('.')
            )),
        }
    }

    fn silent(&self, failure: &Failure) {
        self.out.warn(&format!(
            "{} ({}). Nothing is started until it answers; what is due meanwhile is caught up as far as catch_up says",
            failure.message.trim_end_matches('.'),
            self.chosen.shown
        ));
    }
}

/// A clock by which nothing is started, as a failure.
pub fn clock_failed(error: &ClockError, chosen: &Chosen) -> Failed {
    let ahead = match error {
        ClockError::Off(ahead) => *ahead,
        ClockError::Store(failure) => return store_failed(failure, chosen),
    };
    let off = HumanDuration(Duration::from_millis(ahead.unsigned_abs()));
    let way = if ahead > 0 { "ahead of" } else { "behind" };
    Failed::config(format!(
        "this machine's clock is {off} {way} that of {}. Nothing was started: jobs would run at wrong times. Set \
         the clock (timedatectl set-ntp true), then start again",
        chosen.shown
    ))
}

fn shown(entry: &Entry) -> String {
    item_args::shown(&entry.subject)
}

/// What is said of a run that has ended.
struct RunMessage {
    word: &'static str,
    text: String,
    /// Something is wrong.
    alarming: bool,
}

fn told(job: &Name, slot: &str, run: &RunEnded<'_>) -> RunMessage {
    let (status, attempts) = (run.ended.status, run.ended.attempts);
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    let see = format!("leasehold why {job} {slot}");
    let alarming = !run.went_well();
    let (word, text) = match (run.became, &run.record) {
        (SlotFate::NotKnown, Err(failure)) => {
            let why = failure.message.trim_end_matches('.');
            let asked = "the store could not be asked what came of it";
            ("not known", format!("{job} for {slot} ended ({code}); {asked}: {why}"))
        }
        (SlotFate::NotBegun | SlotFate::NotKnown, _) => {
            ("not begun", format!("{job} for {slot} was not begun ({code})"))
        }
        (SlotFate::Silent, _) => {
            ("unknown", format!("{job} for {slot} began and never reported ({code}); {see}"))
        }
        (SlotFate::Stands(record), _) if matches!(record.state, ItemState::Ok | ItemState::Skipped) => {
            let word = record.state.word();
            (word, format!("{job} for {slot}: {word}"))
        }
        (SlotFate::Stands(record), _) => {
            let (word, failed) = (record.state.word(), record.state == ItemState::Failed);
            let attempt = match failed && attempts > 1 {
                true => format!(", attempt {} of {attempts}", record.failures),
                false => String::new(),
            };
            let waits = if failed && record.failures >= attempts { "it waits for you: " } else { "" };
            (word, format!("{job} for {slot}: {word} ({code}){attempt}; {waits}{see}"))
        }
    };
    RunMessage { word, text, alarming }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use leasehold::core::ledger::Subject;
    use leasehold::stores::FailureKind;
    use leasehold_run::handoff::SlotRecord;
    use leasehold_run::scheduler::EndedRun;

    use super::*;

    const SITE: &str = "site for 1970-01-01T00:00:00Z";

    /// What is said of a run that ended so, as raw as wait tells it, and whether it is alarming.
    fn said(raw: i32, became: SlotFate, record: Result<Option<SlotRecord>, Failure>) -> (String, bool) {
        let job = Name::new("site").unwrap();
        let slot = Slot::due_at(0).unwrap();
        let id = slot.due().to_string();
        let subject = Subject::Slot { job: job.clone(), at: 0, id: id.clone() };
        let status = ExitStatus::from_raw(raw);
        let ended = EndedRun { slot, subject, status, run_id: "r".into(), outcome: None, attempts: 1 };
        let told = told(&job, &id, &RunEnded { ended: &ended, record, became });
        (told.text, told.alarming)
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_run_that_did_not_begin() {
        let not_begun = said(9, SlotFate::NotBegun, Ok(None));
        assert_eq!(not_begun, (format!("{SITE} was not begun (signal 9)"), true));
        let failure = Failure::new(FailureKind::Unreachable, "no answer.");
        let text =
            format!("{SITE} ended (exit code 1); the store could not be asked what came of it: no answer");
        assert_eq!(said(0x100, SlotFate::NotKnown, Err(failure)), (text, true));
    }

    #[test]
    fn a_slot_that_failed_for_the_last_time_waits_for_a_person() {
        let recorded = SlotRecord { state: ItemState::Failed, attempt: 1, failures: 1 };
        let failed = format!(
            "{SITE}: failed (exit code 1); it waits for you: leasehold why site 1970-01-01T00:00:00Z"
        );
        assert_eq!(said(0x100, SlotFate::Stands(recorded), Ok(Some(recorded))), (failed, true));
    }
}
