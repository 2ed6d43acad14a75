//! Tells people, or readers of `--json`, what a scheduler does.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::job_record::STUCK;
use leasehold::core::ledger::{Entry, ItemState, SettleReason, failed_too_often};
use leasehold::core::name::Name;
use leasehold_run::job_records::{JobNote, SlotToStart};
use leasehold_run::schedule::Slot;
use leasehold_run::scheduler::{ClockError, RunEnded, SchedulerEvent, SlotFate, StartError};
use serde_json::{Value, json};

use crate::cmd::job_status::because;
use crate::cmd::times::utc;
use crate::cmd::{held_for, item_args, store_failed};
use crate::config::Chosen;
use crate::exit::Failed;
use crate::messages::{daemon as say, plan};
use crate::out::Out;

/// Tells what happens.
pub struct Progress<'a> {
    out: &'a Out,
    chosen: Chosen,
    /// What was told about a job once, and is not repeated.
    told: BTreeSet<(Name, ToldOnce)>,
}

/// Something that is found at each look, and told at the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ToldOnce {
    /// The job's records cannot be used.
    Unusable,
    /// Another machine's schedule is in force.
    Elsewhere(String),
    /// It is decided up to this second.
    Ahead(i64),
    /// The record of the slot that is due at this second cannot be used.
    Bad(i64),
}

impl ToldOnce {
    /// The note, if it is one that is told once.
    fn of(note: &JobNote) -> Option<Self> {
        match note {
            JobNote::Elsewhere(schedule) => Some(Self::Elsewhere(schedule.clone())),
            JobNote::Ahead(upto) => Some(Self::Ahead(*upto)),
            JobNote::Bad(at, _) => Some(Self::Bad(*at)),
            JobNote::Dropped(_) | JobNote::SlotSkipped(_) | JobNote::Stuck(_) | JobNote::Silent(_) => None,
        }
    }
}

impl<'a> Progress<'a> {
    pub fn new(out: &'a Out, chosen: Chosen) -> Self {
        Self { out, chosen, told: BTreeSet::new() }
    }

    /// Tells of one event.
    pub fn tell(&mut self, event: &SchedulerEvent<'_>) {
        match event {
            SchedulerEvent::Registered(changed) => {
                // After a change of the file everything that is still wrong is told again.
                self.told.clear();
                self.registered(changed);
            }
            SchedulerEvent::Noted(job, note) => self.note(job, note),
            SchedulerEvent::Unusable(job, failure) => {
                if self.told.insert(((*job).clone(), ToldOnce::Unusable)) {
                    self.out.warn(&say::not_run(job, &failure.message));
                }
            }
            SchedulerEvent::Started(job, start) => {
                self.told.remove(&((*job).clone(), ToldOnce::Unusable));
                self.started(job, start);
            }
            SchedulerEvent::NotStarted(job, slot, error) => self.not_started(job, slot, error),
            SchedulerEvent::Ended(job, run) => self.ended(job, run),
            SchedulerEvent::StoreSilent(failure) => {
                let why = failure.message.trim_end_matches('.');
                self.out.warn(&say::store_silent(why, &self.chosen.shown));
            }
            SchedulerEvent::StoreAnswers => self.out.warn(&say::store_answers()),
            SchedulerEvent::ClockWrong(error) => self.clock_wrong(error),
        }
    }

    /// For `--json`: its name, the sentence for people, and the same in fields.
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

    /// Jobs were loaded for the first time, or with another schedule.
    fn registered(&self, changed: &[(Name, Option<String>)]) {
        let new: Vec<&Name> =
            changed.iter().filter(|(_, before)| before.is_none()).map(|(job, _)| job).collect();
        let store = &self.chosen.shown;
        let text = match &new[..] {
            [] => String::new(),
            [job] => say::new_job(job, store),
            jobs => say::new_jobs(jobs.len(), store),
        };
        if !new.is_empty() {
            self.out.note(&text);
        }
        for job in new {
            self.event("registered", job, "", &text, &json!({"before": null}));
        }
        for (job, before) in changed.iter().filter_map(|(job, before)| Some((job, before.as_ref()?))) {
            let text = say::rescheduled(job, before);
            self.out.note(&text);
            self.event("registered", job, "", &text, &json!({"before": before}));
        }
    }

    fn started(&self, job: &Name, start: &SlotToStart) {
        let SlotToStart { slot, late, again, .. } = start;
        let how = match (again, late) {
            (true, _) => say::once_more(),
            (false, true) => say::late(),
            (false, false) => String::new(),
        };
        let text = say::starting(job, slot, how);
        self.out.detail(&text);
        let fields = json!({"missed": *late && !again, "again": again});
        self.event("started", job, &slot.due().to_string(), &text, &fields);
    }

    fn not_started(&self, job: &Name, slot: &Slot, error: &StartError) {
        let text = say::not_started(job, slot, error);
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

    /// What a scheduler found about a job. Some of it is told once.
    fn note(&mut self, job: &Name, note: &JobNote) {
        let (event, slot, text, fields) = match note {
            JobNote::Dropped(range) => {
                let (first, last, why) = (utc(range.first), utc(range.last), because(range.why));
                let text = match range.count {
                    1 => say::dropped_one(job, &first, why),
                    count => say::dropped(count, job, &first, &last, why),
                };
                let fields = json!({
                    "outcome": "dropped", "reason": range.why.word(), "count": range.count,
                    "first": first, "last": last,
                });
                ("dropped", String::new(), text, fields)
            }
            JobNote::SlotSkipped(entry) => {
                let (lease, holder) = (&entry.claim.lease, &entry.claim.holder);
                let held = held_for(&holder.since).map(|time| say::for_time(HumanDuration(time)));
                let by = holder.to_string();
                let text =
                    say::skipped(shown(entry), lease, &by, entry.claim.token, held.unwrap_or_default());
                let fields = json!({
                    "outcome": ItemState::Skipped.word(), "reason": SettleReason::Overlap.word(),
                    "lease": lease.as_str(), "holder": by, "since": holder.since,
                });
                ("skipped", shown(entry), text, fields)
            }
            JobNote::Stuck(slot) => {
                ("stuck", item_args::shown(slot), say::stuck(job, STUCK), json!({"count": STUCK}))
            }
            JobNote::Silent(entry) => {
                let text = say::never_reported(shown(entry), item_args::by_whom(entry), job);
                let fields = json!({"outcome": ItemState::Unknown.word(), "attempt": entry.attempt});
                ("unknown", shown(entry), text, fields)
            }
            JobNote::Elsewhere(schedule) => {
                let text = say::elsewhere(job, schedule);
                ("elsewhere", String::new(), text, json!({"schedule": schedule}))
            }
            JobNote::Ahead(upto) => {
                let text = say::ahead(job, plan::ahead(utc(*upto), job));
                ("ahead", String::new(), text, json!({"until": utc(*upto)}))
            }
            JobNote::Bad(_, why) => ("bad", String::new(), say::left_alone(why), json!({"reason": why})),
        };
        if ToldOnce::of(note).is_some_and(|once| !self.told.insert((job.clone(), once))) {
            return;
        }
        self.event(event, job, &slot, &text, &fields);
        match note {
            JobNote::SlotSkipped(_) => self.out.note(&text),
            _ => self.out.warn(&text),
        }
    }

    fn clock_wrong(&self, error: &ClockError) {
        let why = clock_failed(error, &self.chosen).told.to_string();
        match error {
            ClockError::Off(_) => self.out.warn(&why),
            ClockError::Store(_) => self.out.warn(&say::clocks_unknown(why.trim_end_matches('.'))),
        }
    }
}

/// A clock that is too far off to start anything, as a failure.
pub fn clock_failed(error: &ClockError, chosen: &Chosen) -> Failed {
    let ahead = match error {
        ClockError::Off(ahead) => *ahead,
        ClockError::Store(failure) => return store_failed(failure, chosen),
    };
    let off = HumanDuration(Duration::from_millis(ahead.unsigned_abs()));
    let way = if ahead > 0 { say::ahead_of() } else { say::behind() };
    say::clock_off(off, way, &chosen.shown)
}

fn shown(entry: &Entry) -> String {
    item_args::shown(&entry.subject)
}

/// What is told of a run that has ended.
struct RunMessage {
    word: &'static str,
    text: String,
    /// Something is wrong.
    alarming: bool,
}

fn told(job: &Name, slot: &str, run: &RunEnded<'_>) -> RunMessage {
    let (status, attempts) = (run.ended.status, run.ended.attempts);
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => say::exit_code(code),
        (None, signal) => say::signal(signal.unwrap_or(0)),
    };
    let see = say::see_why(job, slot);
    let alarming = !run.went_well();
    let (word, text) = match (run.became, &run.record) {
        (SlotFate::NotKnown, Err(failure)) => {
            let why = failure.message.trim_end_matches('.');
            ("not known", say::outcome_unasked(job, slot, how, why))
        }
        (SlotFate::NotBegun | SlotFate::NotKnown, _) => ("not begun", say::not_begun(job, slot, how)),
        (SlotFate::Silent, _) => (ItemState::Unknown.word(), say::silent(job, slot, how, see)),
        (SlotFate::Stands(record), _) if matches!(record.state, ItemState::Ok | ItemState::Skipped) => {
            let word = record.state.word();
            (word, say::ended(job, slot, word))
        }
        (SlotFate::Stands(record), _) => {
            let (word, failed) = (record.state.word(), record.state == ItemState::Failed);
            let attempt = match failed && attempts > 1 {
                true => say::attempt(record.failures, attempts),
                false => String::new(),
            };
            let waits = match failed && failed_too_often(record.failures, attempts) {
                true => say::waits(),
                false => String::new(),
            };
            (word, say::ended_badly(job, slot, word, how, attempt, waits, see))
        }
    };
    RunMessage { word, text, alarming }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use leasehold::core::ledger::Subject;
    use leasehold::stores::{Failure, FailureKind};
    use leasehold_run::handoff::SlotRecord;
    use leasehold_run::scheduler::EndedRun;

    use super::*;

    const SLOT: &str = "1970-01-01T00:00:00Z";

    /// The message for a run with this wait status: the word, the sentence and whether it is alarming.
    fn said(
        raw: i32,
        became: SlotFate,
        record: Result<Option<SlotRecord>, Failure>,
    ) -> (&'static str, String, bool) {
        let job = Name::new("site").unwrap();
        let slot = Slot::due_at(0).unwrap();
        let id = slot.due().to_string();
        let subject = Subject::Slot { job: job.clone(), at: 0, id: id.clone() };
        let status = ExitStatus::from_raw(raw);
        let ended = EndedRun { slot, subject, status, run_id: "r".into(), outcome: None, attempts: 1 };
        let told = told(&job, &id, &RunEnded { ended: &ended, record, became });
        (told.word, told.text, told.alarming)
    }

    /// What is wrong is told once, although its words may change from look to look.
    #[test]
    fn what_is_told_once_is_known_by_what_it_is_about() {
        let bad = |at, why: &str| ToldOnce::of(&JobNote::Bad(at, why.into()));
        assert_eq!(bad(60, "3 bytes long"), bad(60, "the record of site@…: 3 bytes long"));
        assert_ne!(bad(60, "3 bytes long"), bad(120, "3 bytes long"));
        let slot = Subject::Slot { job: Name::new("site").unwrap(), at: 60, id: SLOT.into() };
        assert_eq!(ToldOnce::of(&JobNote::Stuck(slot)), None);
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_run_that_did_not_begin() {
        let text = say::not_begun("site", SLOT, say::signal(9));
        assert_eq!(said(9, SlotFate::NotBegun, Ok(None)), ("not begun", text, true));
        let failure = Failure::new(FailureKind::Unreachable, "no answer.");
        let text = say::outcome_unasked("site", SLOT, say::exit_code(1), "no answer");
        assert_eq!(said(0x100, SlotFate::NotKnown, Err(failure)), ("not known", text, true));
    }

    #[test]
    fn a_slot_that_failed_for_the_last_time_waits_for_a_person() {
        let recorded = SlotRecord { state: ItemState::Failed, attempt: 1, failures: 1 };
        let see = say::see_why("site", SLOT);
        let text = say::ended_badly("site", SLOT, "failed", say::exit_code(1), "", say::waits(), see);
        assert_eq!(said(0x100, SlotFate::Stands(recorded), Ok(Some(recorded))), ("failed", text, true));
    }
}
