//! Targets: the things that a run writes, each with a fence that refuses a run that lost its lease.
//!
//! The targets themselves are in [`crate::backends`]. The rule is [`leasehold_core::fence::verdict`]. A target does the check,
//! the write and the change of the fence in one step, or says that it cannot ([`Class`]).

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

/// How often `/proc/locks` is read to find who has a lock. The kernel writes it in pieces, so a line may be missing while
/// other processes lock and unlock.
pub(crate) const LOOKS: u32 = 5;

/// How much a target can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Check and write are one step: a stale write is refused, however long the writer was paused.
    Atomic,
    /// Checked right before the write: a run that is paused between the two can still write.
    Gate,
}

impl Class {
    /// The word that people see.
    pub fn word(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Gate => "gate",
        }
    }
}

/// The content of a write.
pub enum Content<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Everything that can be read from it.
    Stream(&'a mut dyn Read),
    /// Everything in this directory.
    Directory(&'a Path),
}

/// The target is fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The refusal that was only counted, because the target observes.
    pub let_in: Option<Refused>,
}

/// A write that a target accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its number among the writes of this run.
    pub seq: u64,
    /// It was accepted before, so this is the answer to a retry. Nothing was changed.
    pub repeat: bool,
    /// The refusal that was only counted, because the target observes.
    pub let_in: Option<Refused>,
}

/// Reads a variable of a job's environment.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Something with a fence. Calls block, each with its own time limit. Nothing is contacted before the first call.
pub trait Target: fmt::Debug + Send {
    /// Its URL, as people may see it.
    fn shown(&self) -> &str;

    /// How much it can promise here.
    fn class(&self) -> Class;

    /// A warning about the place of this target, in one sentence.
    fn caution(&self) -> Option<&str> {
        None
    }

    /// Fences the target for this run: from now on every older run is refused. Changes nothing else; a second call
    /// changes nothing. A target that was never fenced starts in `mode`.
    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError>;

    /// The name under which its server is remembered once it has shown that it compares. None if no server compares.
    fn server(&mut self) -> Result<Option<String>, TargetError> {
        Ok(None)
    }

    /// As [`Target::seal`], and the server must also show that it refuses a write whose condition cannot hold.
    fn seal_examined(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.seal(bearer, mode)
    }

    /// Only that, on an existing fence, which stays as it is.
    fn examine(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    /// Writes, as number `seq` of this run, or as its next. A second call with the same number and content
    /// is a retry after a lost answer, and is answered as done.
    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError>;

    /// Its fence, if it has one.
    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError>;

    /// Sets whether it refuses stale writes or only counts them.
    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError>;

    /// Removes its fence and returns it. The next run with --fence fences the target again, with a token of any store. Until
    /// then every write is refused. Only for use when no run is left that the fence must refuse.
    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "has a fence that only its own tools can remove".into(),
            fix: "Remove the fence with those tools".into(),
        })
    }

    /// Writes the whole content to `to`, for people and programs that only read. Needs no lease.
    fn read(&mut self, _to: &mut dyn Write) -> Result<(), TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "cannot be read by leasehold read, which is for files, objects, Redis keys and Firestore documents".into(),
            fix: "Read it with its own tools".into(),
        })
    }

    /// Variables for the job's environment that make tools without Leasehold subject to this fence.
    fn environment(&self, _bearer: &Bearer, _has: Variables<'_>) -> Vec<(OsString, OsString)> {
        Vec::new()
    }

    /// A word that changes whenever the content changes. None if this target cannot tell, or has no content yet.
    fn fingerprint(&mut self) -> Option<String> {
        None
    }

    /// Records the content as this run leaves it, so that a later run can compare.
    fn remember(&mut self, _bearer: &Bearer, _fingerprint: &str) -> Result<(), TargetError> {
        Ok(())
    }

    /// Called when the job has ended: a sentence about writes that bypassed the fence.
    fn aftermath(&mut self, _bearer: &Bearer) -> Option<String> {
        None
    }
}

impl TargetAction {
    /// The verb for messages about a target.
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

/// The fence after a seal, and the refusal that is only counted because the target observes. None if the fence is already
/// the one of this run.
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

/// The run that this process is part of, as a target sees it.
pub fn enclosing() -> Option<Bearer> {
    Enclosing::from_env(|name| std::env::var(name).ok()).map(Bearer::from)
}

impl From<Enclosing> for Bearer {
    fn from(run: Enclosing) -> Self {
        Self { lease: run.lease, epoch: run.epoch, token: run.token, grant: run.grant }
    }
}
