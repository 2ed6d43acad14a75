//! What a scheduler says.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use leasehold::core::ledger::agenda::STUCK;
use leasehold::core::ledger::{Entry, State};
use leasehold::core::name::Name;
use leasehold::core::stop::Text;
use leasehold::stores::Failure;
use leasehold_run::job_records::{Note, Start};
use leasehold_run::schedule::Slot;
use serde_json::{Value, json};

use super::clocks::Wrong;
use super::start::Ended;
use crate::cmd::standing::{ahead, dropped_of, time};
use crate::cmd::{held_for, items};
use crate::config::Chosen;
use crate::exit;
use crate::out::Out;

/// Tells people, or whoever reads `--json`.
pub struct Voice<'a> {
    out: &'a Out,
}

impl<'a> Voice<'a> {
    pub fn new(out: &'a Out) -> Self {
        Self { out }
    }

    pub fn warn(&self, text: &str) {
        self.out.warn(text);
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
    pub fn registered(&self, changed: &[(Name, Option<String>)], chosen: &Chosen) {
        let new: Vec<&Name> =
            changed.iter().filter(|(_, before)| before.is_none()).map(|(job, _)| job).collect();
        let store = &chosen.shown;
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

    pub fn started(&self, job: &Name, start: &Start) {
        let Start { slot, late, again, .. } = start;
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

    pub fn unstarted(&self, job: &Name, slot: &Slot, error: &str) {
        let text = format!("{job} was not started for {slot}: {error}");
        self.out.warn(&text);
        self.event("unstarted", job, &slot.due().to_string(), &text, &json!({"reason": error}));
    }

    /// A run has ended. Whether all is well.
    pub fn ended(&self, job: &Name, ended: &Ended, entry: Result<Option<Entry>, Failure>) -> bool {
        let slot = ended.slot.due().to_string();
        let Told { word, text, well } = told(job, &slot, ended, &entry);
        let entry = entry.ok().flatten();
        let fields = json!({
            "outcome": word, "exit": ended.status.code(), "signal": ended.status.signal(),
            "attempt": entry.as_ref().map(|entry| entry.attempt),
            "failures": entry.as_ref().map(|entry| entry.failures), "attempts": ended.attempts,
        });
        self.event("ended", job, &slot, &text, &fields);
        if !well {
            self.out.warn(&text);
        }
        well
    }

    /// What was found about a job. Some of it is said once.
    pub fn note(&self, job: &Name, note: &Note, told: &mut BTreeSet<String>) {
        let (event, slot, text, fields) = match note {
            Note::Dropped(range) => {
                let fields = json!({
                    "outcome": "dropped", "reason": range.why.word(), "count": range.count,
                    "first": time(range.first), "last": time(range.last),
                });
                ("dropped", String::new(), dropped_of(job, range), fields)
            }
            Note::WavedOff(entry) => {
                let (lease, holder) = (&entry.claim.lease, &entry.claim.holder);
                let held = held_for(&holder.since).map(|d| format!(" for {}", Text(d))).unwrap_or_default();
                let by = format!("{}/{}", holder.host, holder.pid);
                let token = entry.claim.token;
                let text = format!("skipped {}: {lease} is held by {by} (token {token}){held}", shown(entry));
                let fields = json!({
                    "outcome": "skipped", "reason": "overlap", "lease": lease.as_str(), "holder": by,
                    "since": holder.since,
                });
                ("skipped", shown(entry), text, fields)
            }
            Note::Stuck(slot) => {
                let text = format!(
                    "{job} is stuck: {STUCK} slots in a row found its lease held; see: leasehold plan {job}"
                );
                ("stuck", items::shown(slot), text, json!({"count": STUCK}))
            }
            Note::Silent(entry) => {
                let by = items::by_whom(entry);
                let text = format!(
                    "{} was begun by {by} and never reported; see: leasehold why {job}",
                    shown(entry)
                );
                let fields = json!({"outcome": "unknown", "attempt": entry.attempt});
                ("unknown", shown(entry), text, fields)
            }
            Note::Elsewhere(schedule) => (
                "elsewhere",
                String::new(),
                format!(
                    "{job} is not run here: another machine has loaded another schedule for it since ({schedule}). Give \
                     all machines the same file"
                ),
                json!({"schedule": schedule}),
            ),
            Note::Ahead(upto) => {
                let text = format!("{job} is not run: it is {}", ahead(job, *upto));
                ("ahead", String::new(), text, json!({"until": time(*upto)}))
            }
            Note::Bad(why) => {
                ("bad", String::new(), format!("{why}. It is left alone"), json!({"reason": why}))
            }
        };
        let once = matches!(note, Note::Elsewhere(_) | Note::Bad(_) | Note::Ahead(_));
        if once && !told.insert(text.clone()) {
            return;
        }
        self.event(event, job, &slot, &text, &fields);
        match note {
            Note::WavedOff(_) => self.out.note(&text),
            _ => self.out.warn(&text),
        }
    }

    /// The store answers, again.
    pub fn answered(&self, silent: &mut u32) {
        if std::mem::take(silent) > 0 {
            self.out.warn("the store answers again");
        }
    }

    /// The clock is not to be gone by.
    pub fn untimed(&self, why: &str, wrong: Wrong) {
        match wrong {
            Wrong::Off => self.out.warn(why),
            Wrong::Silent => self.out.warn(&format!(
                "{}. This machine's clock was set, or was wrong before, and cannot be compared with the store's: nothing \
                 is started until it can be; what is due meanwhile is caught up as far as catch_up says",
                why.trim_end_matches('.')
            )),
        }
    }

    pub fn silent(&self, failure: &Failure, chosen: &Chosen) {
        self.out.warn(&format!(
            "{} ({}). Nothing is started until it answers; what is due meanwhile is caught up as far as catch_up says",
            failure.message.trim_end_matches('.'),
            chosen.shown
        ));
    }
}

fn shown(entry: &Entry) -> String {
    items::shown(&entry.subject)
}

/// What is said of a run that has ended.
struct Told {
    word: &'static str,
    text: String,
    well: bool,
}

fn told(job: &Name, slot: &str, ended: &Ended, entry: &Result<Option<Entry>, Failure>) -> Told {
    let success = ended.status.success();
    let code = match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    let not_begun = || Told {
        word: "not begun",
        text: format!("{job} for {slot} was not begun ({code})"),
        well: success,
    };
    let entry = match entry {
        Ok(Some(entry)) => entry,
        Ok(None) => return not_begun(),
        Err(failure) => {
            let why = failure.message.trim_end_matches('.');
            let text = format!(
                "{job} for {slot} ended ({code}); the store could not be asked what came of it: {why}"
            );
            return Told { word: "not known", text, well: success };
        }
    };
    let word = entry.state.word();
    let see = format!("leasehold why {job} {slot}");
    let (ours, needs_you) = (ended.left(entry), ended.status.code() == Some(exit::NEEDS_YOU.into()));
    match entry.state {
        State::Ok | State::Skipped => Told { word, text: format!("{job} for {slot}: {word}"), well: true },
        State::Started if ours => {
            let text = format!("{job} for {slot} began and never reported ({code}); {see}");
            Told { word: "unknown", text, well: false }
        }
        // Another run is at it, or somebody lets it be tried again: of ours there is nothing to say.
        State::Started | State::Planned => not_begun(),
        // What another run has left, unless that is why this one began nothing.
        State::Failed | State::Lost | State::Killed | State::Unknown if !ours && !needs_you => not_begun(),
        state => {
            let attempt = match state == State::Failed && ended.attempts > 1 {
                true => format!(", attempt {} of {}", entry.failures, ended.attempts),
                false => String::new(),
            };
            let waits = state == State::Failed && entry.failures >= ended.attempts;
            let waits = if waits { "it waits for you: " } else { "" };
            Told {
                word,
                text: format!("{job} for {slot}: {word} ({code}){attempt}; {waits}{see}"),
                well: false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;
    use std::time::Duration;

    use jiff::Timestamp;
    use leasehold::core::ids::{Epoch, Grant, Token, WriteId};
    use leasehold::core::ledger::{Claim, Subject};
    use leasehold::host;
    use leasehold::stores::FailureKind;
    use leasehold_run::schedule::{Every, Schedule};

    use super::*;

    const RUN: &str = "mac-1-a";

    /// What is said of a run that ended so, as raw as wait tells it, if this is found in the store.
    fn said(raw: i32, found: &Result<Option<Entry>, Failure>) -> Option<(String, bool)> {
        let job = Name::new("site").ok()?;
        let every = Every::new(Duration::from_secs(60), Duration::ZERO).ok()?;
        let slot = Schedule::every(every).prev_at_or_before(Timestamp::UNIX_EPOCH)?;
        let id = slot.due().to_string();
        let subject = Subject::Slot { job: job.clone(), at: 0, id: id.clone() };
        let ended = Ended { slot, subject, status: ExitStatus::from_raw(raw), run: RUN.into(), attempts: 1 };
        let told = told(&job, &id, &ended, found);
        Some((told.text, told.well))
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_run_that_did_not_begin() {
        let site = "site for 1970-01-01T00:00:00Z";
        let nothing = said(9, &Ok(None));
        assert_eq!(nothing, Some((format!("{site} was not begun (signal 9)"), false)));
        let failure = Failure::new(FailureKind::Unreachable, "no answer.");
        let text =
            format!("{site} ended (exit code 1); the store could not be asked what came of it: no answer");
        assert_eq!(said(0x100, &Err(failure.clone())), Some((text, false)));
        assert_eq!(said(0, &Err(failure)).map(|(_, well)| well), Some(true));
    }

    /// A record that a run of this process, on this host, with that run id has left.
    fn left_by(run: &str) -> Option<Entry> {
        let job = Name::new("site").ok()?;
        let claim = Claim {
            lease: job.clone(),
            epoch: Epoch::first(1),
            token: Token::new(1)?,
            grant: Grant(1),
            holder: host::holder(run, &job),
        };
        Some(Entry {
            subject: Subject::Slot { job: job.clone(), at: 0, id: "1970-01-01T00:00:00Z".into() },
            job,
            state: State::Failed,
            attempt: 1,
            failures: 1,
            silences: 0,
            claim,
            since_first: None,
            ending: None,
            steps: Vec::new(),
            more: serde_json::Map::new(),
            write: WriteId(1),
        })
    }

    #[test]
    fn a_record_is_a_runs_own_by_the_run_id_alone() {
        let site = "site for 1970-01-01T00:00:00Z";
        let failed = format!(
            "{site}: failed (exit code 1); it waits for you: leasehold why site 1970-01-01T00:00:00Z"
        );
        assert_eq!(said(0x100, &Ok(left_by(RUN))), Some((failed, false)));
        let not_begun = format!("{site} was not begun (exit code 1)");
        assert_eq!(said(0x100, &Ok(left_by("another"))), Some((not_begun, false)));
    }
}
