//! Placeholders of a job: checked when it is read, filled in for each slot.

use jiff::Timestamp;
use leasehold::text::did_you_mean;
use leasehold_core::ledger::KEY_MAX;
use leasehold_core::name::Name;

use super::Job;
use crate::placeholders::{self, BadTemplate, Moment};

/// What a job does for one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilledJob {
    /// The command.
    pub run: Vec<String>,
    /// The key under which it is done.
    pub key: Option<String>,
}

/// What may stand in braces in `run`, besides `date@Zone`.
const IN_RUN: [&str; 4] = ["job", "slot", "key", "date"];

/// As long as the name of a slot can be.
const SOME_SLOT: &str = "2026-11-01T01:30:00-04:00";

/// Two times that share neither a slot nor a date.
fn samples() -> [Moment; 2] {
    let of = |slot: &str, second| Moment {
        slot: Some(slot.into()),
        at: Timestamp::from_second(second).unwrap_or_default(),
    };
    [of(SOME_SLOT, 1_800_000_000), of("2027-12-03T04:05:06-07:00", 1_900_000_000)]
}

impl Job {
    /// The command and the key for a slot; dates are those of when it is due.
    ///
    /// Fails only if the records of a time zone have gone since the job was read: another date would be another
    /// key, and the work be done twice.
    pub fn filled(&self, slot_id: &str, due: Timestamp) -> Result<FilledJob, BadTemplate> {
        let when = Moment { slot: Some(slot_id.into()), at: due };
        let key = self.key_at(&when)?;
        let fill = |word: &str| match word {
            "{key}" => Ok(key.clone().unwrap_or_default()),
            _ => placeholders::filled(word, &self.leases[0], &self.name, &when),
        };
        let run = self.run.iter().map(|argument| each(argument, fill)).collect::<Result<_, _>>()?;
        Ok(FilledJob { run, key })
    }

    /// The lease is not taken yet, so `{lease}` is the first one.
    fn key_at(&self, when: &Moment) -> Result<Option<String>, BadTemplate> {
        let fill = |key| placeholders::filled(key, &self.leases[0], &self.name, when);
        self.key.as_deref().map(fill).transpose()
    }

    /// The program's name. Only `{job}` is replaced in it.
    pub(super) fn program_name(&self) -> String {
        let name = self.run.first().map_or("", String::as_str);
        each(name, |_| Ok(self.name.to_string())).unwrap_or_default()
    }

    /// The key of one sample slot: two jobs with the same one would have the same keys.
    pub(super) fn sample_key(&self) -> Option<String> {
        self.key_at(&samples()[0]).ok().flatten()
    }
}

/// Replaces each placeholder with the result of `fill`. All other braces stay: arguments hold JSON, shell and awk.
fn each(argument: &str, fill: impl Fn(&str) -> Result<String, BadTemplate>) -> Result<String, BadTemplate> {
    let (mut text, mut rest) = (String::new(), argument);
    while let Some((before, word, after)) = next_word(rest) {
        text += before;
        text += &match known(word) && !foreign(before) {
            true => fill(word)?,
            false => word.into(),
        };
        rest = after;
    }
    Ok(text + rest)
}

/// The next innermost pair of braces: the text before it, the pair, the text after it.
fn next_word(text: &str) -> Option<(&str, &str, &str)> {
    let close = text.find('}')?;
    match text[..close].rfind('{') {
        Some(open) => Some((&text[..open], &text[open..=close], &text[close + 1..])),
        None => Some((&text[..=close], "", &text[close + 1..])),
    }
}

/// `${word}` belongs to a shell and `{{word}}` to a template.
fn foreign(before: &str) -> bool {
    before.ends_with(['$', '{'])
}

fn inside(word: &str) -> &str {
    word.trim_start_matches('{').trim_end_matches('}')
}

fn known(word: &str) -> bool {
    IN_RUN.contains(&inside(word)) || inside(word).starts_with("date@")
}

/// What is wrong with the command, if anything.
pub(super) fn wrong_run(job: &Job) -> Option<String> {
    let [when, _] = samples();
    for (n, argument) in job.run.iter().enumerate() {
        if argument.contains('\0') {
            return Some("an argument cannot contain a NUL".into());
        }
        let mut rest = argument.as_str();
        while let Some((before, word, after)) = next_word(rest) {
            if let Some(wrong) = wrong_word(job, word, before, n == 0, &when) {
                return Some(format!("run: {argument:?}: {wrong}"));
            }
            rest = after;
        }
    }
    None
}

fn wrong_word(job: &Job, word: &str, before: &str, program: bool, when: &Moment) -> Option<String> {
    if word.is_empty() || foreign(before) {
        return None;
    }
    if known(word) {
        return match word {
            "{job}" => None,
            _ if program => {
                Some(format!("the program must be the same for every slot; write {word} into its arguments"))
            }
            "{key}" if job.key.is_none() => Some("this job has no key; write key = \"charge-{slot}\"".into()),
            "{key}" => None,
            _ => placeholders::filled(word, &job.leases[0], &job.name, when).err().map(|bad| bad.to_string()),
        };
    }
    match inside(word) {
        "lease" | "resource" => Some(format!(
            "{word} is not known before a lease is taken; write [\"sh\", \"-c\", \"exec ./publish \
             \\\"$LEASEHOLD_LEASE\\\"\"]"
        )),
        // `@{upstream}` belongs to git.
        other if looks_like_one(other) && !before.ends_with('@') => {
            let meant = did_you_mean(other, &IN_RUN).map(|m| format!(" (did you mean {{{m}}}?)"));
            Some(format!(
                "{word} is not a placeholder{}; the placeholders are {{job}}, {{slot}}, {{key}}, {{date}} and \
                 {{date@Zone}}. To keep it as it is, write a space within the braces, or pass it in env and \
                 have sh -c insert it",
                meant.unwrap_or_default()
            ))
        }
        _ => None,
    }
}

fn looks_like_one(word: &str) -> bool {
    (2..=20).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// What is wrong with the key, if anything.
pub(super) fn wrong_key(job: &Job) -> Option<String> {
    let template = job.key.as_deref()?;
    let [first, second] = samples();
    let (one, other) = match (job.key_at(&first), job.key_at(&second)) {
        (Ok(one), Ok(other)) => (one.unwrap_or_default(), other.unwrap_or_default()),
        (Err(bad), _) | (_, Err(bad)) => return Some(format!("key: {bad}")),
    };
    if one.is_empty() || one.len() > KEY_MAX || one.contains('\0') {
        let bytes = one.len();
        return Some(format!(
            "a key has 1 to {KEY_MAX} bytes and no NUL; {template:?} would give a key of {bytes} bytes"
        ));
    }
    (one == other).then(|| {
        format!(
            "the key {template:?} is the same for every slot, so only the first slot would be run; write \
             \"{template}-{{slot}}\", or use {{date}} for once a day"
        )
    })
}

/// What is wrong with a target's name, if anything.
pub(super) fn wrong_fence(template: &str, lease: &Name, job: &Name) -> Option<String> {
    let [when, _] = samples();
    placeholders::filled(template, lease, job, &when).err().map(|bad| format!("fence: {bad}"))
}
