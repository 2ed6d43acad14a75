//! What the commands that write to targets share: whose run it is, and failures.

use leasehold::backends::gate::{self, Gates};
use leasehold::backends::{open_target, target_of};
use leasehold::core::fence::{Bearer, RefusalReason};
use leasehold::core::name::Name;
use leasehold::core::session::Release;
use leasehold::core::store::FailureKind;
use leasehold::run_fences::Fences;
use leasehold::targets::{Class, Refused, Target, TargetError};
use leasehold_run::placeholders::{Moment, filled};

use crate::args::Everywhere;
use crate::exit::{FailKind, Failed};
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

/// The targets named with `--fence`, for each lease that may be granted; and the store of those that are gates.
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

/// The targets of each lease, which are opened by `each`; and the store of those that are gates.
pub fn fences_of<'l>(
    leases: impl IntoIterator<Item = &'l Name>,
    each: impl Fn(&Name, &mut Option<Gates>) -> Vec<Result<Box<dyn Target>, Failed>>,
) -> Result<(Fences, Option<Gates>), Failed> {
    let (mut fences, mut gates) = (Fences::none(), None);
    for lease in leases {
        let targets: Result<_, Failed> = each(lease, &mut gates).into_iter().collect();
        let targets = targets.map_err(|failed| failed.meaning("Nothing was run"))?;
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
        return Err(Failed::new(FailKind::Usage, "content", format!("{url}: {}", gate::HOLDS_NOTHING)));
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
        TargetError::Refused(refused) => (FailKind::Refused, refused.reason.word()),
        TargetError::BadFence { .. } => (FailKind::NeedsYou, "bad_fence"),
        TargetError::Unknown { .. } | TargetError::InDoubt { .. } => (FailKind::NeedsYou, "unknown"),
        TargetError::Unfit { .. } => (FailKind::Config, "unfit"),
        TargetError::Busy { .. } => (FailKind::Unreachable, "target_busy"),
        TargetError::Io { source, .. } if denied(source) => (FailKind::Denied, "denied"),
        // A directory for a file, a file for a tree, anything for a gate.
        TargetError::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
            (FailKind::Usage, "content")
        }
        TargetError::Io { .. } => (FailKind::Unreachable, "target"),
        TargetError::Lost { .. } => (FailKind::Unreachable, "target_unreachable"),
        TargetError::Remote { failure, .. } => match failure.kind {
            FailureKind::Unreachable => (FailKind::Unreachable, "target_unreachable"),
            FailureKind::Denied => (FailKind::Denied, "denied"),
            FailureKind::Unusable => (FailKind::Config, "target_unusable"),
        },
    };
    Failed::new(kind, word, error.explanation())
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
    let failed = failed(error).meaning("Nothing was run, and the lease was released");
    match error {
        TargetError::Refused(refused) => match refused.reason {
            // The lease was ours to the end, so the store has forgotten what the fence has seen.
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
    let sealed = refused.sealed().map_or_else(String::new, |token| token.to_string());
    let reset = target_of(target).and_then(|kind| kind.reset).zip(target.split_once(':'));
    let reset = match reset {
        Some((reset, (_, given))) => reset(given),
        None => format!("leasehold fence reset {target}"),
    };
    Failed::new(
        FailKind::NeedsYou,
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
        refused.explanation().what
    )
}
