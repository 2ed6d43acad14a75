//! Targets: what a run writes to, each with a fence that refuses those who lost their lease.
//!
//! The targets themselves are in [`crate::backends`]. The rule is [`leasehold_core::fence::verdict`]; a target only makes the
//! question, the write and the new fence one step, or says that it cannot.

pub(crate) mod cas_fence;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(feature = "object", feature = "redis"))]
pub(crate) mod deadline;
pub mod error;
pub mod guard;
pub mod messages;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod sql;

use std::ffi::OsString;
use std::fmt;
use std::io::{Read, Write};
use std::path::Path;

use leasehold_core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, verdict};
use leasehold_core::fence_record::FenceRecord;

pub use self::error::{Refused, RefusedAction, SealedBy, TargetAction, TargetError};
pub use crate::backends::{gate, open_target as open};
use crate::host::Enclosing;

/// So often the kernel is asked who has a lock: it writes its list piece by piece, and while others lock and unlock, a line
/// may be left out.
pub(crate) const LOOKS: u32 = 5;

/// How much a target can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Check and write are one step: no pause, however long, lets a stale write in.
    Atomic,
    /// Checked just before the write: a pause in between can slip through.
    Gate,
}

impl Class {
    /// The word people are shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Gate => "gate",
        }
    }
}

/// What is to be written.
pub enum Content<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// All that comes out of here.
    Stream(&'a mut dyn Read),
    /// Everything in this directory.
    Directory(&'a Path),
}

/// A fence that was raised, or stood already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What would have been refused if this target did not only watch.
    pub let_in: Option<Refused>,
}

/// A write that a target has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which write of this grant it is.
    pub seq: u64,
    /// It had been taken before: the answer to a retry. Nothing was changed.
    pub repeat: bool,
    /// What would have been refused if this target did not only watch.
    pub let_in: Option<Refused>,
}

/// What the environment of a job has.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Something with a fence. Calls block, with limits of their own; nothing is reached before the first.
pub trait Target: fmt::Debug + Send {
    /// Its URL, as people may see it.
    fn shown(&self) -> &str;

    /// What it can promise here.
    fn class(&self) -> Class;

    /// What a run should know of where it is, in one sentence.
    fn caution(&self) -> Option<&str> {
        None
    }

    /// Raises the fence to this run: from now on every older one is refused. Changes nothing else; doing
    /// it again changes nothing. A target that was never fenced starts in `mode`.
    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError>;

    /// What its server is known by, once it has shown that it compares. Nothing: nobody but this machine compares here.
    fn server(&mut self) -> Result<Option<String>, TargetError> {
        Ok(None)
    }

    /// As [`Target::seal`]; and the server must show on the way that it refuses a condition that cannot hold.
    fn seal_examined(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.seal(bearer, mode)
    }

    /// Only that, on a fence that is there already: its content and who may write stay as they are.
    fn examine(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    /// Writes, as number `seq` of this run, or as its next. The same number and content again are
    /// answered as done: a retry after a lost answer.
    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError>;

    /// What it remembers; nothing: it was never sealed.
    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError>;

    /// Whether it refuses or only watches, from now on.
    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError>;

    /// Forgets who sealed it, so that the next run seals it anew, whichever store its token is from; what was
    /// forgotten. Until then nobody may write. Only for when no run is left that the fence would hold off.
    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "keeps its fence where only its own tools remove it".into(),
            fix: "Remove it with those".into(),
        })
    }

    /// What is there now, whole: for people and programs that only read. Needs no lease.
    fn read(&mut self, _to: &mut dyn Write) -> Result<(), TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "is read with its own tools".into(),
            fix: "leasehold read is for files, objects, Redis keys and Firestore documents".into(),
        })
    }

    /// What the job's environment needs, beside what it has, so that tools which know nothing of us are fenced here.
    fn environment(&self, _bearer: &Bearer, _has: Variables<'_>) -> Vec<(OsString, OsString)> {
        Vec::new()
    }

    /// What is there now, in a word that is another whenever it is another; nothing: this target cannot
    /// tell, or there is nothing yet.
    fn fingerprint(&mut self) -> Option<String> {
        None
    }

    /// Takes note of what is there as this run leaves it, for whoever compares later.
    fn remember(&mut self, _bearer: &Bearer, _fingerprint: &str) -> Result<(), TargetError> {
        Ok(())
    }

    /// A look back when the job has ended: what went round the fence, as a sentence.
    fn aftermath(&mut self, _bearer: &Bearer) -> Option<String> {
        None
    }
}

impl TargetAction {
    /// What is done, as it is said of a target.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Self::Seal => "fence",
            Self::Write => "write",
            Self::Mode => "change the mode of",
            Self::Reset => "reset the fence of",
            Self::Guard => "change the guard of",
        }
    }
}

/// What a seal makes of a fence: the one to remember, and what is let in only because the target watches.
/// Nothing: it stands as it is.
pub(crate) fn sealing(
    before: Option<&Fence>,
    bearer: &Bearer,
    mode: FenceMode,
    shown: &str,
) -> Result<Option<(Fence, Option<Refused>)>, TargetError> {
    let refusal = |reason| Refused::new(RefusedAction::Seal, reason, shown, bearer, before);
    match verdict(before, bearer, &FenceOffer::Seal(mode)) {
        FenceVerdict::Accept(next) => Ok(Some((next, None))),
        FenceVerdict::Repeat => Ok(None),
        FenceVerdict::LetIn(reason, next) => Ok(Some((next, Some(refusal(reason))))),
        FenceVerdict::Refuse(reason) => Err(TargetError::Refused(Box::new(refusal(reason)))),
    }
}

/// The run this process is part of, as a target sees it; nothing if it is not part of one.
pub fn enclosing() -> Option<Bearer> {
    Enclosing::from_env(|name| std::env::var(name).ok()).map(Bearer::from)
}

impl From<Enclosing> for Bearer {
    fn from(run: Enclosing) -> Self {
        Self { lease: run.lease, epoch: run.epoch, token: run.token, grant: run.grant }
    }
}
