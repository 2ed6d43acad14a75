//! Names of targets and keys with placeholders in braces: `{lease}`, `{slot}`, `{date}`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::text::did_you_mean;
use leasehold_core::name::Name;

/// The placeholders of targets and keys.
const PLACEHOLDERS: [&str; 5] = ["lease", "job", "slot", "date", "date@Zone"];

/// The slot and the time that placeholders stand for.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The name of the slot.
    pub slot: Option<String>,
    /// The time whose date `{date}` is.
    pub at: Timestamp,
}

impl Moment {
    /// A time without a slot.
    pub fn at(at: Timestamp) -> Self {
        Self { slot: None, at }
    }
}

/// A text whose placeholders cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{template:?}: {why}")]
pub struct BadTemplate {
    template: String,
    why: String,
}

/// Doubles all braces, so that [`filled`] gives the text back.
pub fn literal(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

/// A target's name, or a key, with its placeholders filled in. `{{` and `}}` are braces.
pub fn filled(template: &str, lease: &Name, job: &Name, when: &Moment) -> Result<String, BadTemplate> {
    let wrong = |why: String| BadTemplate { template: template.into(), why };
    let (mut text, mut rest) = (String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        text += &rest[..at];
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        // A } that closes nothing stays.
        if brace == "}" || after.starts_with('{') {
            text += brace;
            rest = after.strip_prefix(brace).unwrap_or(after);
            continue;
        }
        let (word, after) =
            after.split_once('}').ok_or_else(|| wrong("a { is never closed; write {{ for a brace".into()))?;
        text += &match word {
            "lease" => lease.to_string(),
            "job" => job.to_string(),
            "slot" => when.slot.clone().ok_or_else(|| wrong("{slot} needs --slot".into()))?,
            "date" => day(when.at, TimeZone::UTC),
            _ => match word.strip_prefix("date@") {
                Some(zone) => day(when.at, TimeZone::get(zone).map_err(|e| wrong(e.to_string()))?),
                None => return Err(wrong(unknown(word))),
            },
        };
        rest = after;
    }
    Ok(text + rest)
}

fn day(now: Timestamp, zone: TimeZone) -> String {
    now.to_zoned(zone).date().to_string()
}

fn unknown(word: &str) -> String {
    let meant =
        did_you_mean(word, &PLACEHOLDERS).map_or(String::new(), |m| format!(" (did you mean {{{m}}}?)"));
    format!(
        "{{{word}}} is not a placeholder{meant}; the placeholders are {{lease}}, {{job}}, {{slot}}, {{date}} \
         and {{date@Zone}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_for(slot: Option<&str>, template: &str) -> Result<String, String> {
        let (lease, job) = (Name::new("site").unwrap(), Name::new("publish").unwrap());
        let when = Moment { slot: slot.map(str::to_owned), at: "2026-03-28T23:30:00Z".parse().unwrap() };
        filled(template, &lease, &job, &when).map_err(|bad| bad.to_string())
    }

    fn fill(template: &str) -> Result<String, String> {
        fill_for(None, template)
    }

    #[test]
    fn placeholders() {
        assert_eq!(
            fill("file:/srv/{lease}/{job}-{date}.json").unwrap(),
            "file:/srv/site/publish-2026-03-28.json"
        );
        assert_eq!(fill("file:/srv/{date@Europe/Berlin}").unwrap(), "file:/srv/2026-03-29");
        assert_eq!(fill("file:/plain").unwrap(), "file:/plain");
        assert!(fill("file:/{lese}").unwrap_err().contains("did you mean {lease}?"));
        assert!(fill("file:/{").unwrap_err().contains("never closed"));
        assert!(fill("file:/{date@Nowhere/None}").unwrap_err().contains("Nowhere/None"));
    }

    #[test]
    fn slots() {
        let slot = Some("2026-03-28T23:30:00Z");
        assert_eq!(fill_for(slot, "{job}@{slot}").unwrap(), "publish@2026-03-28T23:30:00Z");
        assert!(fill("{slot}").unwrap_err().contains("{slot} needs --slot"));
        assert!(fill("{slto}").unwrap_err().contains("did you mean {slot}?"));
    }

    #[test]
    fn braces() {
        assert_eq!(fill("{{job}}").unwrap(), "{job}");
        assert_eq!(fill("{{{job}}}").unwrap(), "{publish}");
        assert_eq!(fill("a}b").unwrap(), "a}b");
        assert_eq!(fill("ä{{ü}}").unwrap(), "ä{ü}");
        assert!(fill("{{{").unwrap_err().contains("never closed"));
    }
}
