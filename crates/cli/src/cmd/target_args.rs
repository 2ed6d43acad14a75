//! Shared by the commands that write targets: the run they belong to, the targets, and failures.

use leasehold::backends::gate::{Gates, HOLDS_NOTHING};
use leasehold::backends::{is_gate, name_in_store, open_target, reset_command};
use leasehold::core::fence::{Bearer, RefusalReason};
use leasehold::core::name::Name;
use leasehold::core::session::Release;
use leasehold::core::store::FailureKind;
use leasehold::messages::Explanation;
use leasehold::run_fences::Fences;
use leasehold::targets::{Class, Refused, Target, TargetError};
use leasehold_run::placeholders::{Moment, filled};
use serde::{Deserialize, Serialize};

use crate::args::Everywhere;
use crate::exit::{FailKind, Failed};
use crate::messages::fenced as say;
use crate::out::Out;

/// The run that this process belongs to; without one there is no token.
pub fn enclosing(command: &str) -> Result<Bearer, Failed> {
    leasehold::targets::enclosing().ok_or_else(|| match std::env::var_os("LEASEHOLD_GRANT") {
        Some(_) => say::bad_run_variables(),
        None => say::outside_a_run(command),
    })
}

/// The targets of `--fence` for each lease that the run may get; and the store of the gates among them.
pub fn fences(
    templates: &[String],
    leases: &[Name],
    job: &Name,
    when: &Moment,
    flags: &Everywhere,
) -> Result<(Fences, Option<Gates>), Failed> {
    let each = |lease: &Name, gates: &mut _| named(templates, lease, job, when, flags, gates);
    fences_of(leases, each)
}

/// The targets of each lease, opened by `each`; and the store of the gates among them.
pub fn fences_of<'l>(
    leases: impl IntoIterator<Item = &'l Name>,
    each: impl Fn(&Name, &mut Option<Gates>) -> Vec<Result<Box<dyn Target>, Failed>>,
) -> Result<(Fences, Option<Gates>), Failed> {
    let (mut fences, mut gates) = (Fences::none(), None);
    for lease in leases {
        let targets: Result<_, Failed> = each(lease, &mut gates).into_iter().collect();
        let targets = targets.map_err(|failed| failed.meaning(say::nothing_run()))?;
        fences.add(lease.clone(), targets);
    }
    Ok((fences, gates))
}

/// Opens each of the targets.
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
    let Some(name) = name_in_store(url) else { return with_content(url) };
    let name = super::name(name)?;
    let gates = match gates {
        Some(gates) => gates,
        None => gates.insert(super::gate::gates(flags)?),
    };
    Ok(Box::new(gates.gate(&name)))
}

/// Opens a target that can be written or read.
pub fn with_content(url: &str) -> Result<Box<dyn Target>, Failed> {
    if name_in_store(url).is_some() {
        return Err(say::no_content(url, HOLDS_NOTHING));
    }
    open_target(url).map_err(|error| failed(&error))
}

/// Says how well a target is protected: always, unless --quiet, if that is less than people expect.
pub fn tell_class(target: &str, class: Class, shared: bool, out: &Out) {
    match class {
        _ if name_in_store(target).is_some() => out.chat(&say::fences_gate(target)),
        _ if is_gate(target) && shared => out.note(&say::lock_file_alone(target)),
        _ if is_gate(target) => out.chat(&say::fences_lock_file(target)),
        Class::Atomic => out.chat(&say::fences(target, class.word())),
        Class::Gate => out.note(&say::checked_before(target)),
    }
}

/// Why a target did not do what it was asked. It decides the exit code and the word of `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetReason {
    /// The rule says no.
    Refused(RefusalReason),
    /// Its fence cannot be read.
    BadFence,
    /// It may have been changed.
    Unknown,
    /// It cannot be a target.
    Unfit,
    /// Another process has its lock.
    Busy,
    /// Permission or credentials are missing.
    Denied,
    /// It does not take such a content.
    Content,
    /// The system failed.
    System,
    /// Its server did not answer.
    Unreachable,
    /// Its server cannot be used.
    Unusable,
}

impl TargetReason {
    /// The reason of this error.
    pub fn of(error: &TargetError) -> Self {
        match error {
            TargetError::Refused(refused) => Self::Refused(refused.reason),
            TargetError::BadFence { .. } => Self::BadFence,
            TargetError::Unknown { .. } | TargetError::InDoubt { .. } => Self::Unknown,
            TargetError::Unfit { .. } => Self::Unfit,
            TargetError::Busy { .. } => Self::Busy,
            TargetError::Io { source, .. } if denied(source) => Self::Denied,
            // For example a directory where the target is a file.
            TargetError::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                Self::Content
            }
            TargetError::Io { .. } => Self::System,
            TargetError::Lost { .. } => Self::Unreachable,
            TargetError::Remote { failure, .. } => match failure.kind {
                FailureKind::Unreachable => Self::Unreachable,
                FailureKind::Denied => Self::Denied,
                FailureKind::Unusable => Self::Unusable,
            },
        }
    }

    /// The failure, with its exit code and word.
    pub fn failed(self, told: Explanation) -> Failed {
        let (kind, word) = match self {
            Self::Refused(reason) => (FailKind::Refused, reason.word()),
            Self::BadFence => (FailKind::NeedsYou, "bad_fence"),
            Self::Unknown => (FailKind::NeedsYou, "unknown"),
            Self::Unfit => (FailKind::Config, "unfit"),
            Self::Busy => (FailKind::Unreachable, "target_busy"),
            Self::Denied => (FailKind::Denied, "denied"),
            Self::Content => (FailKind::Usage, "content"),
            Self::System => (FailKind::Unreachable, "target"),
            Self::Unreachable => (FailKind::Unreachable, "target_unreachable"),
            Self::Unusable => (FailKind::Config, "target_unusable"),
        };
        Failed::new(kind, word, told)
    }

    /// The outcome of a write, in the words of `history`. Not every failure that needs a person is `unknown`: only a
    /// write that may have landed.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::Refused(_) | Self::BadFence => "refused",
            Self::Unknown => "unknown",
            Self::Unfit
            | Self::Busy
            | Self::Denied
            | Self::Content
            | Self::System
            | Self::Unreachable
            | Self::Unusable => "failed",
        }
    }
}

/// The failure of a target, with its exit code and word.
pub fn failed(error: &TargetError) -> Failed {
    TargetReason::of(error).failed(error.explanation())
}

fn denied(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// A run that was not started because a target could not be fenced.
pub fn not_sealed(error: &TargetError, release: Release) -> Failed {
    let failed = failed(error).meaning(say::not_run_released());
    match error {
        TargetError::Refused(refused) => match refused.reason {
            // We had the lease to the end, so the store has lost a token that the fence has seen.
            RefusalReason::Stale if release == Release::Done => rewound(refused),
            RefusalReason::Stale => Failed { kind: FailKind::Lost, word: "lost", ..failed },
            RefusalReason::OtherLease => Failed { kind: FailKind::Config, ..failed },
            _ => Failed { kind: FailKind::NeedsYou, ..failed },
        },
        _ => failed,
    }
}

fn rewound(refused: &Refused) -> Failed {
    let Refused { target, lease, token, .. } = refused;
    let newer = refused.sealed().map_or_else(String::new, |token| token.to_string());
    let reset = reset_command(target).unwrap_or_else(|| say::reset_command(target));
    say::store_rewound(target, newer, token, lease, reset)
}

/// What a refusal says that did not take effect, because its fence only observes.
pub fn would_be_refused(refused: &Refused) -> String {
    say::would_be_refused(refused.reason.word(), refused.explanation().what)
}
