//! What the commands that write to targets share: whose run it is, names with placeholders, failures.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::backends::gate::{self, Gates};
use leasehold::backends::{open_target, target_of};
use leasehold::core::fence::{Bearer, Reason};
use leasehold::core::name::Name;
use leasehold::core::session::Release;
use leasehold::core::store::FailureKind;
use leasehold::fences::Fences;
use leasehold::targets::{Class, Refused, Target, TargetError};
use leasehold::text::did_you_mean;

use crate::args::Everywhere;
use crate::exit::{Failed, Kind};
use crate::out::Out;

/// The run that we are part of; without one there is no token to write with.
pub fn enclosing(command: &str) -> Result<Bearer, Failed> {
    leasehold::targets::enclosing().ok_or_else(|| {
        if std::env::var_os("LEASEHOLD_GRANT").is_some() {
            return Failed::usage(
                "LEASEHOLD_LEASE, LEASEHOLD_TOKEN and LEASEHOLD_GRANT are not as a run has set them, so nobody can \
                 tell which run this is. Nothing was written. Hand them on unchanged, all three",
            );
        }
        Failed::usage(format!(
            "there is no run in the environment, so there is no token to write with. Nothing was written. \
             `leasehold {command}` works inside a run that names the target: leasehold run NAME --fence \
             TARGET -- leasehold {command} TARGET -- COMMAND"
        ))
    })
}

/// What may stand in braces in the name of a target.
const PLACEHOLDERS: [&str; 5] = ["lease", "job", "slot", "date", "date@Zone"];

/// What the placeholders that tell of time stand for.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The name of the slot that a run is for.
    pub slot: Option<String>,
    /// Whose date it is.
    pub at: Timestamp,
}

impl Moment {
    /// Today, and no slot.
    pub fn today() -> Moment {
        Moment { slot: None, at: super::now() }
    }
}

/// A text that stays as it is when placeholders are filled in.
pub fn literal(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

/// A target's name, or a key, with its placeholders filled in. `{{` and `}}` are braces.
pub fn filled(template: &str, lease: &Name, job: &Name, when: &Moment) -> Result<String, Failed> {
    let wrong = |why: String| Failed::usage(format!("{template:?}: {why}"));
    let (mut text, mut rest) = (String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        text += &rest[..at];
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        // One that opens nothing stands for itself too.
        if brace == "}" || after.starts_with('{') {
            text += brace;
            rest = after.strip_prefix(brace).unwrap_or(after);
            continue;
        }
        let (word, after) = after.split_once('}').ok_or_else(|| wrong("a { is never closed".into()))?;
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
        did_you_mean(word, &PLACEHOLDERS).map_or(String::new(), |m| format!(", did you mean {{{m}}}?"));
    format!(
        "{{{word}}} means nothing here{meant} Known: {{lease}}, {{job}}, {{slot}}, {{date}}, {{date@Zone}}"
    )
}

/// The targets named with `--fence`, for each lease that may be granted; and the store of those that are gates.
pub fn fences(
    templates: &[String],
    leases: &[Name],
    job: &Name,
    when: &Moment,
    flags: &Everywhere,
) -> Result<(Fences, Option<Gates>), Failed> {
    let (mut fences, mut gates) = (Fences::none(), None);
    for lease in leases {
        let targets: Result<_, Failed> =
            named(templates, lease, job, when, flags, &mut gates).into_iter().collect();
        let targets = targets.map_err(|failed| Failed {
            message: format!("{}. Nothing was run", failed.message.trim_end_matches('.')),
            ..failed
        })?;
        fences.add(lease.clone(), targets);
    }
    Ok((fences, gates))
}

/// Each of the targets, or why it is none.
pub fn named(
    templates: &[String],
    lease: &Name,
    job: &Name,
    when: &Moment,
    flags: &Everywhere,
    gates: &mut Option<Gates>,
) -> Vec<Result<Box<dyn Target>, Failed>> {
    templates.iter().map(|template| opened(&filled(template, lease, job, when)?, flags, gates)).collect()
}

/// Opens a target; nothing is reached yet. Gates share a handle on the store that is chosen.
pub fn opened(url: &str, flags: &Everywhere, gates: &mut Option<Gates>) -> Result<Box<dyn Target>, Failed> {
    let Some(name) = gate::named(url) else { return with_content(url) };
    let name = super::name(name)?;
    let gates = match gates {
        Some(gates) => gates,
        None => gates.insert(super::gate::gates(flags)?),
    };
    Ok(Box::new(gates.gate(&name)))
}

/// Opens a target that can be written or read.
pub fn with_content(url: &str) -> Result<Box<dyn Target>, Failed> {
    if gate::named(url).is_some() {
        return Err(Failed::new(Kind::Usage, "content", format!("{url}: {}", gate::HOLDS_NOTHING)));
    }
    let url = match gate::given(url) {
        Some(path) => gate::url(&super::gate::absolute(path)),
        None => url.into(),
    };
    open_target(&url).map_err(|error| failed(&error))
}

/// What a target can promise; loudly where it is less than one would expect of it.
pub fn tell_class(target: &str, class: Class, shared: bool, out: &Out) {
    let a_gate = gate::given(target).is_some();
    if gate::named(target).is_some() {
        out.chat(&format!("fences {target} (gate): a command that runs already does not delay the next run"));
    } else if a_gate && shared {
        let why = "is a lock file: it holds for this machine only, and other machines share the store";
        out.note(&format!("{target} {why}. For all of them write gate:NAME"));
    } else if a_gate {
        out.chat(&format!("fences {target} (gate, for this machine only)"));
    } else if class == Class::Atomic {
        out.chat(&format!("fences {target} ({})", class.word()));
    } else {
        out.note(&format!(
            "{target} is not on a file system of this machine alone, so it is checked just before the write \
             (class gate): a run that is paused in between can slip through"
        ));
    }
}

/// A target that did not do it, as a failure.
pub fn failed(error: &TargetError) -> Failed {
    let (kind, word) = match error {
        TargetError::Refused(refused) => (Kind::Refused, refused.reason.word()),
        TargetError::BadFence { .. } => (Kind::NeedsYou, "bad_fence"),
        TargetError::Unknown { .. } | TargetError::InDoubt { .. } => (Kind::NeedsYou, "unknown"),
        TargetError::Unfit { .. } => (Kind::Config, "unfit"),
        TargetError::Busy { .. } => (Kind::Unreachable, "target_busy"),
        TargetError::Io { source, .. } if denied(source) => (Kind::Denied, "denied"),
        // A directory for a file, a file for a tree, anything for a gate.
        TargetError::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
            (Kind::Usage, "content")
        }
        TargetError::Io { .. } => (Kind::Unreachable, "target"),
        TargetError::Lost { .. } => (Kind::Unreachable, "target_unreachable"),
        TargetError::Remote { failure, .. } => match failure.kind {
            FailureKind::Unreachable => (Kind::Unreachable, "target_unreachable"),
            FailureKind::Denied => (Kind::Denied, "denied"),
            FailureKind::Unusable => (Kind::Config, "target_unusable"),
        },
    };
    Failed::new(kind, word, error.to_string())
}

/// What became of a write that a target did not take, in the words of history, and why in a word. Only what
/// nobody knows is `unknown`, whatever else needs a person.
pub fn outcome(error: &TargetError) -> (&'static str, &'static str) {
    let outcome = match error {
        TargetError::Refused(_) | TargetError::BadFence { .. } => "refused",
        TargetError::Unknown { .. } | TargetError::InDoubt { .. } => "unknown",
        TargetError::Unfit { .. }
        | TargetError::Busy { .. }
        | TargetError::Io { .. }
        | TargetError::Lost { .. }
        | TargetError::Remote { .. } => "failed",
    };
    (outcome, failed(error).word)
}

fn denied(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// A run that was not started because a target could not be sealed.
pub fn not_sealed(error: &TargetError, release: Release) -> Failed {
    let Failed { kind, word, message } = failed(error);
    let message =
        format!("{}. Nothing was run, and the lease was given back.", message.trim_end_matches('.'));
    match error {
        TargetError::Refused(refused) => match refused.reason {
            // The lease was ours to the end, so the store has forgotten what the fence has seen.
            Reason::Stale if release == Release::Done => rewound(refused),
            Reason::Stale => Failed::new(Kind::Lost, "lost", message),
            Reason::OtherLease => Failed::new(Kind::Config, word, message),
            _ => Failed::new(Kind::NeedsYou, word, message),
        },
        _ => Failed { kind, word, message },
    }
}

fn rewound(refused: &Refused) -> Failed {
    let Refused { target, lease, token, .. } = refused;
    let sealed = refused.sealed().map_or_else(String::new, |token| token.to_string());
    let reset = target_of(target).and_then(|kind| kind.reset).zip(target.split_once(':'));
    let reset = match reset {
        Some((reset, (_, given))) => reset(given),
        None => format!("leasehold fence reset {target}"),
    };
    Failed::new(
        Kind::NeedsYou,
        "store_rewound",
        format!(
            "{target} was sealed with token {sealed} and the store has just granted {token} for {lease}: the \
             store was rewound (restored from a backup, or it lost writes). Nothing was run: tokens would \
             repeat. Find out what happened to the store before anything writes again. Once no run from before \
             is left: {reset}"
        ),
    )
}

/// A write that was let in only because its target watches.
pub fn let_in(refused: &Refused) -> String {
    format!(
        "would have been refused ({}): {}. Only watched here, so it was let in",
        refused.reason.word(),
        refused.fault()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_for(slot: Option<&str>, template: &str) -> Result<String, String> {
        let (lease, job) = (Name::new("site").unwrap(), Name::new("publish").unwrap());
        let when = Moment { slot: slot.map(str::to_owned), at: "2026-03-28T23:30:00Z".parse().unwrap() };
        filled(template, &lease, &job, &when).map_err(|failed| failed.message)
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
