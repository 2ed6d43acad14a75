//! Why a target did not do it, in sentences: what happened, what it means, what to do.

use std::fmt;
use std::io;
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, RefusalReason};
use leasehold_core::human_duration::HumanDuration;
use leasehold_core::ids::Token;
use leasehold_core::name::Name;
use leasehold_core::store::Failure;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::backends::{AsTarget, gate, target_of};

/// Why a target did not do it.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The rule says no.
    #[error(transparent)]
    Refused(Box<Refused>),
    /// Somebody is inside the target's critical section and stays there.
    #[error("{}", busy(.target, *.waited, *.holder))]
    Busy {
        /// The target.
        target: String,
        /// How long we waited.
        waited: Duration,
        /// The process inside, if it can be told.
        holder: Option<u32>,
    },
    /// The fence is there and cannot be read. It may be ahead of us, so nobody is let in.
    #[error(
        "refused: {why}, so nobody can tell who may write {target}. Nothing was written. Restore \
         {fence} from a backup; only if no run can still be writing, remove it and run again"
    )]
    BadFence {
        /// The target.
        target: String,
        /// The file that holds its fence.
        fence: String,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be a target at all.
    #[error("{target} {why}. Nothing was written. {fix}")]
    Unfit {
        /// The target.
        target: String,
        /// What is wrong with it, as the rest of a sentence.
        why: String,
        /// What to do.
        fix: String,
    },
    /// The system said no before anything was changed.
    #[error("cannot {doing} {target}: {source}. Nothing was changed there")]
    Io {
        /// The target.
        target: String,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It lies behind a network, and that or its server said no before anything was changed.
    #[error("cannot {doing} {target}: {}. Nothing was changed there", .failure.message.trim_end_matches('.'))]
    Remote {
        /// The target.
        target: String,
        /// What was being done.
        doing: &'static str,
        /// What was said, and of what kind it is.
        failure: Failure,
    },
    /// The connection to its server was lost before anything was changed.
    #[error("cannot {doing} {target}: {}. Nothing was changed there", .why.trim_end_matches('.'))]
    Lost {
        /// The target.
        target: String,
        /// What was being done.
        doing: &'static str,
        /// What was said.
        why: String,
    },
    /// No answer that can be relied on, and nothing more can be found out.
    #[error("{}", in_doubt(.target, *.asked, .why.trim_end_matches('.')))]
    InDoubt {
        /// The target.
        target: String,
        /// What was asked for.
        asked: TargetAction,
        /// What is known.
        why: String,
    },
    /// The system said no in the middle: whoever comes next finishes the write or takes it back.
    #[error(
        "the outcome of writing {target} is unknown: {source}. The next run that seals it finishes this \
         write or takes it back; look at it then"
    )]
    Unknown {
        /// The target.
        target: String,
        /// What the system said.
        source: io::Error,
    },
}

fn busy(target: &str, waited: Duration, holder: Option<u32>) -> String {
    let (who, evict) = match holder {
        Some(pid) => (format!("process {pid} is"), format!("; if it hangs, end it: kill -9 {pid}")),
        None => ("another process is".into(), String::new()),
    };
    format!(
        "{who} inside the lock of {target} and did not leave within {}. Nothing was written. Try again{evict}",
        HumanDuration(waited)
    )
}

/// What may have been done, or not, or may be done yet.
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

fn in_doubt(target: &str, asked: TargetAction, why: &str) -> String {
    let (what, then) = match asked {
        TargetAction::Write => (
            format!("the outcome of writing {target}"),
            format!(
                "It may have landed, perhaps before a later run took over, or not at all. Look at {target} \
                 before you write it again"
            ),
        ),
        TargetAction::Seal => (
            format!("whether {target} was sealed"),
            "If it was, earlier runs are refused there and nothing else has changed. Sealing again is safe: \
             run it again"
                .into(),
        ),
        TargetAction::Mode => (
            format!("whether the mode of {target} was changed"),
            format!(
                "It may refuse stale writes now, or only count them. See which: leasehold fence ls {target}. \
                 Then do it again"
            ),
        ),
        TargetAction::Reset => (
            format!("whether the fence of {target} was reset"),
            format!("See: leasehold fence ls {target}. Resetting again is safe"),
        ),
        TargetAction::Guard => (
            format!("whether the guard of {target} was changed"),
            format!("See: leasehold guard show {target}. Then do it again: what is done already stays"),
        ),
    };
    format!("{what} is unknown: {why}. {then}")
}

/// What was refused.
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

/// A refusal: who came, what the target remembers, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub struct Refused {
    /// What was refused.
    pub attempt: RefusedAction,
    /// Why.
    pub reason: RefusalReason,
    /// The target.
    pub target: String,
    /// The lease of the refused.
    pub lease: Name,
    /// The token of the refused.
    pub token: Token,
    /// What the target remembers; nothing: it was never sealed.
    pub fence: Option<SealedBy>,
}

/// Who has sealed a target: all of its fence that a refusal tells.
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

    /// What is wrong with who came.
    pub fn fault(&self) -> String {
        let Self { target, lease, token, .. } = self;
        let sealed = self.sealed().map_or_else(|| "none".into(), |t| t.to_string());
        match self.reason {
            RefusalReason::Stale => {
                format!("your token {token} is older than {sealed}, already sealed for {target}")
            }
            RefusalReason::Fork => format!(
                "token {token} was sealed for {target} by another run of {lease}: two runs were given one token"
            ),
            RefusalReason::Epoch => format!(
                "your token {token} and the {sealed} sealed for {target} belong to different lives of the record of \
                 {lease}: it was sealed by a run on another store (or another user's embedded one), or the record was \
                 made anew"
            ),
            RefusalReason::Jump => {
                format!("your token {token} is implausibly far ahead of {sealed}, sealed for {target}")
            }
            RefusalReason::OtherLease => {
                format!("{target} belongs to the lease {} and you hold {lease} (token {token})", self.owner())
            }
            RefusalReason::NotSealed => match (self.attempt, self.sealed()) {
                (RefusedAction::Enter, _) => {
                    format!("this run did not name the gate {}", gate::given(target).unwrap_or(target))
                }
                (_, Some(sealed)) => format!(
                    "your token {token} was not announced at {target}, which was last sealed with {sealed}"
                ),
                (_, None) => format!(
                    "{target} was never sealed, so your token {token} means nothing there{}",
                    here(target)
                ),
            },
            RefusalReason::Sequence => {
                format!("another write of this run (token {token}) took this place at {target}")
            }
        }
    }

    /// The lease that the target belongs to.
    fn owner(&self) -> &str {
        self.fence.as_ref().map_or("another lease", |fence| fence.lease.as_str())
    }
}

/// What a relative path means here: a job may have gone elsewhere since its run was started.
fn here(target: &str) -> String {
    let path = target.split_once(':').filter(|_| target_of(target).is_some_and(|kind| kind.path));
    let relative = path.map(|(_, path)| path).filter(|path| !path.starts_with('/'));
    match relative.and_then(|path| std::path::absolute(path).ok()) {
        Some(path) => format!(" (here it is {}; did the job change directory?)", path.display()),
        None => String::new(),
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.attempt {
            RefusedAction::Seal => "seal refused",
            RefusedAction::Write => "write refused",
            RefusedAction::Enter => "start refused",
        };
        write!(f, "{what}: {}", self.fault())?;
        let entering = self.attempt == RefusedAction::Enter;
        let nothing = if entering { "The command was not started" } else { "Nothing was written" };
        let Self { target, lease, .. } = self;
        match self.reason {
            RefusalReason::Stale => write!(
                f,
                ". This run lost its lease while it was paused; {}. {}",
                if entering {
                    "the command was not started"
                } else {
                    "its output is stale and was not written"
                },
                target_of(target).map_or(AsTarget::NOTHING_TO_REPAIR, |kind| kind.after_stale)
            ),
            RefusalReason::Fork => {
                write!(f, ". {nothing}. The lease store forgot a write; look at it before running again.")
            }
            RefusalReason::Epoch => write!(
                f,
                ". {nothing}. If you moved on purpose and no run is left there: leasehold fence reset {target}."
            ),
            RefusalReason::Jump => write!(f, ". {nothing}. Check where the token came from."),
            RefusalReason::OtherLease => write!(
                f,
                ". {nothing}. Jobs that write the same thing share its lease: run it under {}.",
                self.owner()
            ),
            RefusalReason::NotSealed if entering => write!(
                f,
                ". The command was not started. Start it with: leasehold run {lease} --fence {target}"
            ),
            RefusalReason::NotSealed => write!(
                f,
                ". Nothing was written. Name the target when you start the run: leasehold run {lease} --fence \
                 {target}."
            ),
            RefusalReason::Sequence => {
                write!(f, ". Nothing was written. Read what is there, then write again.")
            }
        }
    }
}
