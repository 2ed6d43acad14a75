//! Targets whose fence is replaced only if it is still the one that was read: objects, documents, refs.
//!
//! Reading, the rule and a conditional replacement, again after a conflict. What a target adds is how it
//! reads its fence, and how it puts fence and content in place in one step.

use leasehold_core::fence::{Bearer, Fence, Mode, Offer, Verdict, verdict};
use leasehold_core::fence_record::FenceRecord;
use leasehold_core::store::{Failure, FailureKind};

use super::{Asked, Attempt, Refused, Sealed, TargetError, Written, sealing};

/// How often a replacement is tried against others before we say that it is busy.
const TRIES: u32 = 10;

/// How often a server is asked to show that it compares before we say that it does not answer.
const EXAMS: u32 = 5;

/// One fence that can be read, and replaced under a condition.
pub(crate) trait CasFence {
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

    /// Makes the server show that it compares: it is asked to replace the fence, by what is there already, under
    /// conditions that cannot hold. `Done`: it refused. `Conflict`: there is no such fence now.
    fn examine(&mut self) -> Result<Swap, TargetError>;

    /// [`CasFence::swap`] of the fence alone and [`CasFence::examine`] in one. `Done`: both went well.
    fn swap_examined(
        &mut self,
        at: Option<&Self::Version>,
        record: &FenceRecord,
    ) -> Result<Swap, TargetError> {
        match self.swap(at, record, None)? {
            Swap::Done => self.examine(),
            other => Ok(other),
        }
    }

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

/// Whether a seal also makes the server show that it compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exam {
    Wanted,
    Spared,
}

/// [`super::Target::seal`] and [`super::Target::seal_examined`] for a cell.
pub(crate) fn seal<C: CasFence>(
    cell: &mut C,
    bearer: &Bearer,
    mode: Mode,
    exam: Exam,
) -> Result<Sealed, TargetError> {
    // What was heard of an attempt that may have landed or may still land.
    let mut doubt: Option<String> = None;
    for _ in 0..TRIES {
        let stored = cell.load().map_err(|e| in_doubt(cell, Asked::Seal, doubt.as_ref(), e))?;
        let (old, at) = parts(stored.as_ref());
        // A refusal is no doubt: whatever became of an attempt, it stands no longer, and wrote nothing.
        let sealing = sealing(old.and_then(FenceRecord::standing), bearer, mode, cell.shown())?;
        let (swap, let_in) = match (sealing, exam) {
            (None, Exam::Spared) => (Ok(Swap::Done), None),
            (None, Exam::Wanted) => (cell.examine(), None),
            (Some((fence, let_in)), _) => {
                let payload = old.and_then(|old| old.payload.clone());
                let record = FenceRecord::done(fence).after(old).with_payload(payload);
                let swap = match exam {
                    Exam::Spared => cell.swap(at, &record, None),
                    Exam::Wanted => cell.swap_examined(at, &record),
                };
                (swap, let_in)
            }
        };
        match swap.map_err(|e| in_doubt(cell, Asked::Seal, doubt.as_ref(), e))? {
            Swap::Done => return Ok(Sealed { let_in }),
            Swap::Conflict => {}
            // What was only to be counted may be missing in the count.
            Swap::Unknown(_) if let_in.is_some() && exam == Exam::Spared => return Ok(Sealed { let_in }),
            Swap::Unknown(said) => doubt = Some(said),
        }
    }
    Err(in_doubt(cell, Asked::Seal, doubt.as_ref(), contended(cell, "seal")))
}

/// [`CasFence::examine`] for a server that is told the version to compare with: `never` is one that no fence ever had.
/// A fence is there, so creating one and replacing that one must both be refused, whatever others do meanwhile.
#[cfg(any(feature = "object", feature = "redis"))]
pub(crate) fn refuses<C: CasFence>(cell: &mut C, never: &C::Version) -> Result<Swap, TargetError> {
    let mut wanted = vec![Some(never), None];
    let mut heard = String::new();
    for _ in 0..EXAMS {
        let Some((record, _)) = cell.load()? else { return Ok(Swap::Conflict) };
        while let Some(impossible) = wanted.last() {
            match cell.swap(*impossible, &record, None)? {
                Swap::Conflict => drop(wanted.pop()),
                Swap::Done => return Err(liar(cell.shown())),
                Swap::Unknown(said) => {
                    heard = said;
                    break;
                }
            }
        }
        if wanted.is_empty() {
            return Ok(Swap::Done);
        }
    }
    Err(unexamined(cell, heard))
}

/// [`super::Target::examine`] for a cell.
pub(crate) fn examine<C: CasFence>(cell: &mut C) -> Result<(), TargetError> {
    let mut heard = "others replace its fence all the time".into();
    for _ in 0..EXAMS {
        match cell.examine()? {
            Swap::Done => return Ok(()),
            Swap::Conflict => {}
            Swap::Unknown(said) => heard = said,
        }
    }
    Err(unexamined(cell, heard))
}

/// Nobody knows yet whether the server compares.
fn unexamined<C: CasFence>(cell: &C, message: String) -> TargetError {
    let failure = Failure::new(FailureKind::Unreachable, message);
    TargetError::Remote { target: cell.shown().into(), doing: "examine", failure }
}

/// The server said yes where it had to say no.
pub(crate) fn liar(target: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: "is on a server that does not compare: it took a write whose condition could not hold, so it would take a \
              stale write too"
            .into(),
        fix: "Use another server for it".into(),
    }
}

/// An attempt to write that may have landed or may still land.
struct Doubt {
    seq: u64,
    /// What was heard of it.
    why: String,
    /// It was only let in: no fence will tell that it landed, but for being another.
    let_in: bool,
    /// The fence that it was conditional on.
    on: Option<FenceRecord>,
}

/// [`super::Target::write`] for a cell.
pub(crate) fn write<C: CasFence>(
    cell: &mut C,
    bearer: &Bearer,
    seq: Option<u64>,
    digest: &str,
    content: &C::Content,
) -> Result<Written, TargetError> {
    let mut doubt: Option<Doubt> = None;
    let unsure = |cell: &C, doubt: &Option<Doubt>, error: TargetError| {
        in_doubt(cell, Asked::Write, doubt.as_ref().map(|doubt| &doubt.why), error)
    };
    for _ in 0..TRIES {
        let stored = cell.load().map_err(|e| unsure(cell, &doubt, e))?;
        let (old, at) = parts(stored.as_ref());
        let fence = old.and_then(FenceRecord::standing);
        // Another write of this run has taken exactly that place, so the attempt can no longer land.
        if let (Some(Doubt { seq: number, let_in: false, .. }), Some(fence), None) = (&doubt, fence, seq)
            && fence.grant == bearer.grant
            && fence.seq == *number
            && fence.digest != digest
        {
            doubt = None;
        }
        let next = fence.map_or(1, |fence| fence.seq.saturating_add(1));
        let seq = seq.or(doubt.as_ref().map(|doubt| doubt.seq)).unwrap_or(next);
        let refusal = |reason| Refused::new(Attempt::Write, reason, cell.shown(), bearer, fence);
        let (next, let_in) = match verdict(fence, bearer, &Offer::Write { seq, digest: digest.into() }) {
            Verdict::Accept(next) => (next, None),
            Verdict::Repeat => return Ok(Written { seq, repeat: doubt.is_none(), let_in: None }),
            Verdict::Refuse(reason) => {
                let refused = TargetError::Refused(Box::new(refusal(reason)));
                return Err(unsure(cell, &doubt, refused));
            }
            Verdict::LetIn(reason, next) => (next, Some(refusal(reason))),
        };
        // Once more is only safe on the very fence that the attempt was conditional on: then one of the two
        // lands. Where the rule numbers the writes, it tells the rest.
        let moved = doubt.as_ref().filter(|d| (d.let_in || let_in.is_some()) && d.on.as_ref() != old);
        if moved.is_some() {
            return Err(unsure(cell, &doubt, contended(cell, "write")));
        }
        let payload = cell.payload(&Fence { seq, digest: digest.into(), ..next.clone() });
        let record = FenceRecord::done(next).after(old).with_payload(payload);
        match cell.swap(at, &record, Some(content)).map_err(|e| unsure(cell, &doubt, e))? {
            Swap::Done => return Ok(Written { seq, repeat: false, let_in }),
            Swap::Conflict => {}
            Swap::Unknown(why) => {
                doubt = Some(Doubt { seq, why, let_in: let_in.is_some(), on: old.cloned() });
            }
        }
    }
    Err(unsure(cell, &doubt, contended(cell, "write")))
}

/// [`super::Target::set_mode`] for a cell.
pub(crate) fn set_mode<C: CasFence>(cell: &mut C, mode: Mode) -> Result<(), TargetError> {
    let mut doubt: Option<String> = None;
    for _ in 0..TRIES {
        let stored = cell.load().map_err(|e| in_doubt(cell, Asked::Mode, doubt.as_ref(), e))?;
        let Some((record, at)) = stored.filter(|(record, _)| !record.forgotten) else {
            return Err(in_doubt(cell, Asked::Mode, doubt.as_ref(), never_sealed(cell.shown())));
        };
        if record.fence.mode == mode {
            return Ok(());
        }
        let record = FenceRecord { fence: Fence { mode, ..record.fence.clone() }, ..record };
        let swap = cell.swap(Some(&at), &record, None);
        match swap.map_err(|e| in_doubt(cell, Asked::Mode, doubt.as_ref(), e))? {
            Swap::Done => return Ok(()),
            Swap::Conflict => {}
            Swap::Unknown(said) => doubt = Some(said),
        }
    }
    Err(in_doubt(cell, Asked::Mode, doubt.as_ref(), contended(cell, "change the mode of")))
}

/// [`super::Target::forget`] for a cell: the fence stays where it is, for it may tell where the content lies.
pub(crate) fn forget<C: CasFence>(cell: &mut C) -> Result<Option<Fence>, TargetError> {
    let mut doubt: Option<String> = None;
    for _ in 0..TRIES {
        let stored = cell.load().map_err(|e| in_doubt(cell, Asked::Reset, doubt.as_ref(), e))?;
        let Some((record, at)) = stored.filter(|(record, _)| !record.forgotten) else { return Ok(None) };
        let fence = record.fence.clone();
        let swap = cell.swap(Some(&at), &record.forgotten(), None);
        match swap.map_err(|e| in_doubt(cell, Asked::Reset, doubt.as_ref(), e))? {
            Swap::Done => return Ok(Some(fence)),
            Swap::Conflict => {}
            Swap::Unknown(said) => doubt = Some(said),
        }
    }
    Err(in_doubt(cell, Asked::Reset, doubt.as_ref(), contended(cell, "reset the fence of")))
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

/// After an attempt that may have landed, "nothing was changed" would be a guess.
fn in_doubt<C: CasFence>(cell: &C, asked: Asked, doubt: Option<&String>, error: TargetError) -> TargetError {
    match doubt {
        Some(why) => TargetError::InDoubt { target: cell.shown().into(), asked, why: why.clone() },
        None => error,
    }
}

fn contended<C: CasFence>(cell: &C, doing: &'static str) -> TargetError {
    let message = format!("others changed it {TRIES} times in between");
    let failure = Failure::new(FailureKind::Unreachable, message);
    TargetError::Remote { target: cell.shown().into(), doing, failure }
}

#[cfg(test)]
mod tests;
