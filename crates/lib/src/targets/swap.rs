//! Targets whose fence is replaced only if it is still the one that was read: objects, documents, refs.
//!
//! Reading, the rule and a conditional replacement, again after a conflict. What a target adds is how it
//! reads its fence, and how it puts fence and content in place in one step.

use leasehold_core::fence::{Bearer, Fence, Mode, Offer, Reason, Verdict, verdict};
use leasehold_core::fence_record::FenceRecord;

use super::{Attempt, Refused, Sealed, TargetError, Written};

/// How often a replacement is tried against others before we say that it is busy.
const TRIES: u32 = 10;

/// One fence that can be read, and replaced under a condition.
pub(crate) trait Cell {
    /// What tells one stored fence from every other.
    type Version;
    /// What a write brings besides its fence.
    type Content: ?Sized;

    /// As people may see it.
    fn shown(&self) -> &str;

    /// The fence and its version; nothing: it was never sealed.
    fn load(&mut self) -> Result<Option<(FenceRecord, Self::Version)>, TargetError>;

    /// In one step: if the fence is still at this version, replaces it and puts the content in place.
    fn swap(
        &mut self,
        at: Option<&Self::Version>,
        record: &FenceRecord,
        content: Option<&Self::Content>,
    ) -> Result<Swap, TargetError>;

    /// Where the content of this write will lie, for targets that keep it apart from the fence.
    fn payload(&self, _fence: &Fence) -> Option<String> {
        None
    }
}

/// What became of a conditional replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// It is in place.
    Done,
    /// The fence was another; nothing was changed.
    Conflict,
    /// It may be in place, now or later; why nobody knows.
    Unknown(String),
}

/// [`super::Target::seal`] for a cell.
pub(crate) fn seal<C: Cell>(cell: &mut C, bearer: &Bearer, mode: Mode) -> Result<Sealed, TargetError> {
    let mut why = None;
    for _ in 0..TRIES {
        let stored = cell.load()?;
        let (old, at) = parts(stored.as_ref());
        let (fence, let_in) = match verdict(old.map(|r| &r.fence), bearer, &Offer::Seal(mode)) {
            Verdict::Accept(fence) => (fence, None),
            Verdict::Repeat => return Ok(Sealed { let_in: None }),
            Verdict::Refuse(reason) => return Err(refused(cell, Attempt::Seal, reason, bearer, old)),
            Verdict::LetIn(reason, fence) => (fence, Some(refusal(cell, Attempt::Seal, reason, bearer, old))),
        };
        let record = FenceRecord::done(fence).with_payload(old.and_then(|old| old.payload.clone()));
        match cell.swap(at, &record, None)? {
            Swap::Done => return Ok(Sealed { let_in }),
            Swap::Conflict => {}
            // What was only to be counted may be missing in the count.
            Swap::Unknown(_) if let_in.is_some() => return Ok(Sealed { let_in }),
            Swap::Unknown(said) => why = Some(said),
        }
    }
    Err(contended(cell, "seal", why))
}

/// [`super::Target::write`] for a cell.
pub(crate) fn write<C: Cell>(
    cell: &mut C,
    bearer: &Bearer,
    seq: Option<u64>,
    digest: &str,
    content: &C::Content,
) -> Result<Written, TargetError> {
    // The number of an attempt that may have landed or may still land, and what was heard of it.
    let mut doubt: Option<(u64, String)> = None;
    for _ in 0..TRIES {
        let stored = cell.load().map_err(|e| in_doubt(cell, doubt.as_ref(), e))?;
        let (old, at) = parts(stored.as_ref());
        let fence = old.map(|record| &record.fence);
        // Another write of this run has taken exactly that place, so the attempt can no longer land.
        if let (Some((number, _)), Some(fence), None) = (&doubt, fence, seq)
            && fence.grant == bearer.grant
            && fence.seq == *number
            && fence.digest != digest
        {
            doubt = None;
        }
        let next = fence.map_or(1, |fence| fence.seq.saturating_add(1));
        let seq = seq.or(doubt.as_ref().map(|(number, _)| *number)).unwrap_or(next);
        let (fence, let_in) = match verdict(fence, bearer, &Offer::Write { seq, digest: digest.into() }) {
            Verdict::Accept(fence) => (fence, None),
            Verdict::Repeat => return Ok(Written { seq, repeat: doubt.is_none(), let_in: None }),
            Verdict::Refuse(reason) => {
                let refused = refused(cell, Attempt::Write, reason, bearer, old);
                return Err(in_doubt(cell, doubt.as_ref(), refused));
            }
            Verdict::LetIn(reason, fence) => {
                (fence, Some(refusal(cell, Attempt::Write, reason, bearer, old)))
            }
        };
        let payload = cell.payload(&Fence { seq, digest: digest.into(), ..fence.clone() });
        let record = FenceRecord::done(fence).with_payload(payload);
        match cell.swap(at, &record, Some(content)).map_err(|e| in_doubt(cell, doubt.as_ref(), e))? {
            Swap::Done => return Ok(Written { seq, repeat: false, let_in }),
            Swap::Conflict => {}
            Swap::Unknown(why) => doubt = Some((seq, why)),
        }
    }
    Err(in_doubt(cell, doubt.as_ref(), contended(cell, "write", None)))
}

/// [`super::Target::set_mode`] for a cell.
pub(crate) fn set_mode<C: Cell>(cell: &mut C, mode: Mode) -> Result<(), TargetError> {
    let mut why = None;
    for _ in 0..TRIES {
        let Some((record, at)) = cell.load()? else { return Err(never_sealed(cell.shown())) };
        if record.fence.mode == mode {
            return Ok(());
        }
        let record = FenceRecord { fence: Fence { mode, ..record.fence.clone() }, ..record };
        match cell.swap(Some(&at), &record, None)? {
            Swap::Done => return Ok(()),
            Swap::Conflict => {}
            Swap::Unknown(said) => why = Some(said),
        }
    }
    Err(contended(cell, "change the mode of", why))
}

/// There is no fence whose mode could be changed.
pub(crate) fn never_sealed(target: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: "has no fence yet".into(),
        fix: format!("Start a run with --fence {target} first"),
    }
}

fn parts<V>(stored: Option<&(FenceRecord, V)>) -> (Option<&FenceRecord>, Option<&V>) {
    (stored.map(|(record, _)| record), stored.map(|(_, version)| version))
}

fn refusal<C: Cell>(
    cell: &C,
    attempt: Attempt,
    reason: Reason,
    bearer: &Bearer,
    old: Option<&FenceRecord>,
) -> Refused {
    Refused::new(attempt, reason, cell.shown(), bearer, old.map(|record| &record.fence))
}

fn refused<C: Cell>(
    cell: &C,
    attempt: Attempt,
    reason: Reason,
    bearer: &Bearer,
    old: Option<&FenceRecord>,
) -> TargetError {
    TargetError::Refused(Box::new(refusal(cell, attempt, reason, bearer, old)))
}

/// After an attempt that may have landed, "nothing was written" would be a guess.
fn in_doubt<C: Cell>(cell: &C, doubt: Option<&(u64, String)>, error: TargetError) -> TargetError {
    match doubt {
        Some((_, why)) => TargetError::InDoubt { target: cell.shown().into(), why: why.clone() },
        None => error,
    }
}

fn contended<C: Cell>(cell: &C, doing: &'static str, why: Option<String>) -> TargetError {
    use leasehold_core::store::{Failure, FailureKind};
    let message = why.unwrap_or_else(|| format!("others changed it {TRIES} times in between"));
    let failure = Failure { kind: FailureKind::Unreachable, message };
    TargetError::Remote { target: cell.shown().into(), doing, failure }
}
