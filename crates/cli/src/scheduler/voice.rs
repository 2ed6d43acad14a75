//! What a scheduler says.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use jiff::Timestamp;
use leasehold::agenda::Note;
use leasehold::core::ledger::agenda::{Range, Why};
use leasehold::core::ledger::{Entry, State};
use leasehold::core::name::Name;
use leasehold::schedule::Slot;
use leasehold::stores::Failure;
use serde_json::json;

use super::start::Ended;
use crate::cmd::items;
use crate::config::Chosen;
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

    fn event(&self, event: &str, job: &Name, slot: &str, text: &str) {
        if self.out.json {
            self.out
                .object(&json!({"v": 1, "event": event, "job": job.as_str(), "slot": slot, "text": text}));
        }
    }

    /// A job was seen for the first time, or with another schedule.
    pub fn registered(&self, job: &Name, before: Option<&str>) {
        let text = match before {
            None => format!("{job} is new on this store: it is due from now on, and has missed nothing"),
            Some(before) => {
                format!(
                    "{job} has another schedule now (it was {before}): what was due before is not run. If another machine \
                     still has the old one, give both the same file"
                )
            }
        };
        match before {
            None => self.out.chat(&text),
            Some(_) => self.out.note(&text),
        }
        self.event("registered", job, "", &text);
    }

    pub fn started(&self, job: &Name, slot: &Slot, late: bool) {
        let late = if late { ", which was missed" } else { "" };
        let text = format!("starting {job} for {slot}{late}");
        self.out.detail(&text);
        self.event("started", job, &slot.due().to_string(), &text);
    }

    pub fn unstarted(&self, job: &Name, slot: &Slot, error: &str) {
        let text = format!("{job} was not started for {slot}: {error}");
        self.out.warn(&text);
        self.event("unstarted", job, &slot.due().to_string(), &text);
    }

    /// A run has ended. Whether all is well.
    pub fn ended(&self, job: &Name, ended: &Ended, entry: Result<Option<Entry>, Failure>) -> bool {
        let slot = ended.slot.due().to_string();
        let entry = entry.ok().flatten();
        // What is at it now is another run: of ours there is nothing to say.
        let state = entry.as_ref().map(|entry| entry.state).filter(|state| *state != State::Started);
        let code = match (ended.status.code(), ended.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let word = state.map_or("not begun", State::word);
        self.event("ended", job, &slot, &format!("{word}, {code}"));
        match state {
            Some(State::Ok | State::Skipped) => true,
            None if ended.status.success() => true,
            Some(_) => {
                self.out.warn(&format!("{job} for {slot}: {word} ({code}); leasehold why {job} {slot}"));
                false
            }
            None => {
                self.out.warn(&format!("{job} for {slot} was not begun ({code})"));
                false
            }
        }
    }

    /// What was found about a job. Some of it is said once.
    pub fn note(&self, job: &Name, note: &Note, told: &mut BTreeSet<String>) {
        let (event, slot, text) = match note {
            Note::Dropped(range) => ("dropped", String::new(), dropped(job, range)),
            Note::WavedOff(entry) => {
                let lease = &entry.claim.lease;
                let by = items::by_whom(entry);
                ("skipped", shown(entry), format!("skipped {}: {lease} is held by {by}", shown(entry)))
            }
            Note::Stuck(slot) => {
                let text =
                    format!("{job} is stuck: slots in a row found its lease held; see: leasehold plan {job}");
                ("stuck", items::shown(slot), text)
            }
            Note::Silent(entry) => {
                let by = items::by_whom(entry);
                let text = format!(
                    "{} was begun by {by} and never reported; see: leasehold why {job}",
                    shown(entry)
                );
                ("unknown", shown(entry), text)
            }
            Note::Elsewhere(schedule) => (
                "elsewhere",
                String::new(),
                format!(
                    "{job} is not run here: another machine has loaded another schedule for it since ({schedule}). Give \
                     all machines the same file"
                ),
            ),
            Note::Bad(why) => ("bad", String::new(), format!("{why}. It is left alone")),
        };
        let once = matches!(note, Note::Elsewhere(_) | Note::Bad(_));
        if once && !told.insert(text.clone()) {
            return;
        }
        self.event(event, job, &slot, &text);
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

/// "dropped 525597 slots of minutely, from … to …: …"
pub fn dropped(job: &Name, range: &Range) -> String {
    let time =
        |second| Timestamp::from_second(second).map_or_else(|_| second.to_string(), |at| at.to_string());
    let slots = match range.count {
        1 => "1 slot".into(),
        n => format!("{n} slots"),
    };
    let why = match range.why {
        Why::Missed => "nobody ran them in time, and catch_up asks for no more",
        Why::Paused => "the job was paused",
    };
    format!("dropped {slots} of {job}, from {} to {}: {why}", time(range.first), time(range.last))
}
