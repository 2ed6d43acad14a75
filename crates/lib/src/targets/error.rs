//! Why a target did not do what it was asked.

use std::fmt;
use std::io;
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, RefusalReason};
use leasehold_core::human_duration::HumanDuration;
use leasehold_core::ids::Token;
use leasehold_core::name::Name;
use leasehold_core::store::Failure;
use serde::{Deserialize, Serialize};

use super::messages as say;
use crate::backends::{AsTarget, gate, target_of};
use crate::messages::Explanation;
use crate::text::shell_quoted;

/// Why a target did not do it.
#[derive(Debug)]
pub enum TargetError {
    /// The rule says no.
    Refused(Box<Refused>),
    /// Another process holds the target's lock and does not release it.
    Busy {
        /// The target.
        target: String,
        /// How long we waited.
        waited: Duration,
        /// That process, if it is known.
        holder: Option<u32>,
    },
    /// The fence cannot be read. It may be newer than the run, so every write is refused.
    BadFence {
        /// The target.
        target: String,
        /// The file that holds its fence.
        fence: String,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be a target at all.
    Unfit {
        /// The target.
        target: String,
        /// What is wrong with it, as the rest of a sentence.
        why: String,
        /// What to do.
        fix: String,
    },
    /// The system refused before anything was changed.
    Io {
        /// The target.
        target: String,
        /// The operation, as a verb.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The network or the server of the target refused before anything was changed.
    Remote {
        /// The target.
        target: String,
        /// The operation, as a verb.
        doing: &'static str,
        /// The failure.
        failure: Failure,
    },
    /// The connection to its server was lost before anything was changed.
    Lost {
        /// The target.
        target: String,
        /// The operation, as a verb.
        doing: &'static str,
        /// The error.
        why: String,
    },
    /// The outcome is unknown, and nothing more can be found out.
    InDoubt {
        /// The target.
        target: String,
        /// The action.
        asked: TargetAction,
        /// The error.
        why: String,
    },
    /// The system failed in the middle of a write. The next run that fences the target finishes it or undoes it.
    Unknown {
        /// The target.
        target: String,
        /// The system's error.
        source: io::Error,
    },
}

impl TargetError {
    /// What happened, what it means, what to do next.
    pub fn explanation(&self) -> Explanation {
        match self {
            Self::Refused(refused) => refused.explanation(),
            Self::Busy { target, waited, holder } => {
                let (who, evict) = match holder {
                    Some(pid) => (say::process(pid), say::evict(pid)),
                    None => (say::another_process(), String::new()),
                };
                say::busy(who, target, HumanDuration(*waited), evict)
            }
            Self::BadFence { target, fence, why } => say::bad_fence(why, target, fence),
            Self::Unfit { target, why, fix } => say::unfit(target, why, fix),
            Self::Io { target, doing, source } => say::failed(doing, target, source),
            Self::Remote { target, doing, failure } => {
                say::failed(doing, target, failure.message.trim_end_matches('.'))
            }
            Self::Lost { target, doing, why } => say::failed(doing, target, why.trim_end_matches('.')),
            Self::InDoubt { target, asked, why } => {
                let why = why.trim_end_matches('.');
                match asked {
                    TargetAction::Write => say::write_in_doubt(target, why),
                    TargetAction::Seal => say::fence_in_doubt(target, why),
                    TargetAction::Mode => say::mode_in_doubt(target, why, shell_quoted(target)),
                    TargetAction::Reset => say::reset_in_doubt(target, why, shell_quoted(target)),
                    TargetAction::Guard => say::guard_in_doubt(target, why, shell_quoted(target)),
                }
            }
            Self::Unknown { target, source } => say::write_unknown(target, source),
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explanation().fmt(f)
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Unknown { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An action whose outcome may be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetAction {
    /// Raising the fence.
    Seal,
    /// Writing.
    Write,
    /// Changing the mode of the fence.
    Mode,
    /// Forgetting the fence.
    Reset,
    /// Putting up a guard, or taking it down.
    Guard,
}

/// A refused action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusedAction {
    /// Raising the fence.
    Seal,
    /// Writing.
    Write,
    /// Starting a command at a gate.
    Enter,
}

/// A refusal: the run, the fence of the target, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The refused action.
    pub attempt: RefusedAction,
    /// The reason.
    pub reason: RefusalReason,
    /// The target.
    pub target: String,
    /// The lease of the refused run.
    pub lease: Name,
    /// The token of the refused run.
    pub token: Token,
    /// The fence of the target; nothing: it was never sealed.
    pub fence: Option<SealedBy>,
}

/// The part of a fence that a refusal shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedBy {
    /// The lease that the target belongs to.
    pub lease: Name,
    /// The token that was sealed there.
    pub token: Token,
}

impl From<&Fence> for SealedBy {
    fn from(fence: &Fence) -> Self {
        Self { lease: fence.lease.clone(), token: fence.token }
    }
}

impl Refused {
    pub(crate) fn new(
        attempt: RefusedAction,
        reason: RefusalReason,
        target: &str,
        bearer: &Bearer,
        fence: Option<&Fence>,
    ) -> Self {
        let (lease, token) = (bearer.lease.clone(), bearer.token);
        Self { attempt, reason, target: target.into(), lease, token, fence: fence.map(SealedBy::from) }
    }

    /// The token that was sealed here.
    pub fn sealed(&self) -> Option<Token> {
        self.fence.as_ref().map(|fence| fence.token)
    }

    /// What happened, what it means, what to do next.
    pub fn explanation(&self) -> Explanation {
        let Self { target, lease, token, attempt, .. } = self;
        let newer = self.sealed().map_or_else(|| "none".into(), |sealed| sealed.to_string());
        let (refused, nothing) = match attempt {
            RefusedAction::Seal => (say::fence_refused(), say::nothing_written()),
            RefusedAction::Write => (say::write_refused(), say::nothing_written()),
            RefusedAction::Enter => (say::start_refused(), say::not_started()),
        };
        let repair = || target_of(target).map_or(AsTarget::NOTHING_TO_REPAIR, |kind| kind.after_stale);
        match (self.reason, attempt) {
            (RefusalReason::Stale, RefusedAction::Seal) => say::stale_fence(target, token, newer, repair()),
            (RefusalReason::Stale, RefusedAction::Write) => say::stale_write(target, token, newer, repair()),
            (RefusalReason::Stale, RefusedAction::Enter) => say::stale_start(target, token, newer),
            (RefusalReason::Fork, _) => say::fork(refused, target, token, lease, nothing),
            (RefusalReason::Epoch, _) => {
                say::other_history(refused, target, token, newer, lease, nothing, shell_quoted(target))
            }
            (RefusalReason::Jump, _) => say::jump(refused, target, token, newer, nothing),
            (RefusalReason::OtherLease, _) => {
                say::other_lease(refused, target, self.owner(), lease, token, nothing)
            }
            (RefusalReason::NotSealed, RefusedAction::Enter) => {
                say::gate_not_named(gate::given(target).unwrap_or(target), lease, shell_quoted(target))
            }
            (RefusalReason::NotSealed, _) => match self.sealed() {
                Some(sealed) => say::not_named(refused, target, token, sealed, lease, shell_quoted(target)),
                None => say::never_named(refused, target, token, here(target), lease, shell_quoted(target)),
            },
            (RefusalReason::Sequence, _) => say::sequence(refused, target, token),
        }
    }

    /// The lease that the target belongs to.
    fn owner(&self) -> &str {
        self.fence.as_ref().map_or("another lease", |fence| fence.lease.as_str())
    }
}

/// The full form of a relative path: the job may have changed its directory since its run was started.
fn here(target: &str) -> String {
    let path = target.split_once(':').filter(|_| target_of(target).is_some_and(|kind| kind.path));
    let relative = path.map(|(_, path)| path).filter(|path| !path.starts_with('/'));
    match relative.and_then(|path| std::path::absolute(path).ok()) {
        Some(path) => say::here(path.display()),
        None => String::new(),
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explanation().fmt(f)
    }
}

impl std::error::Error for Refused {}
