//! Targets whose fence is replaced only if it is still the one that was read: objects, documents, refs.
//!
//! Read the fence, ask the rule, replace the fence under a condition; after a conflict, start again. A target
//! adds how it reads its fence, and how it replaces fence and content in one step.

use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, next_seq, verdict};
use leasehold_core::fence_record::FenceRecord;
use leasehold_core::ids::WriteId;
use leasehold_core::store::{Cas, Failure, FailureKind, Landed, Version};
use leasehold_core::update::{self, FoundRecord, TRIES, Update, UpdateDecision, UpdateOutcome};

use super::{Refused, RefusedAction, Sealed, TargetAction, TargetError, Written, sealing};
use crate::random;
use crate::update::{Backoff, NextCall, RecordPlace, StoreAnswer, drive_at};

/// How often a server is checked before it counts as not answering.
const EXAMS: u32 = 5;

/// One fence that can be read, and replaced under a condition.
pub(crate) trait CasFence {
    /// The content of a write.
    type Content: ?Sized;

    /// As people may see it.
    fn shown(&self) -> &str;

    /// The fence, if there is one, with a version that no other fence has or had.
    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError>;

    /// Replaces the fence and the content in one step, if the fence still has this version.
    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&Self::Content>,
    ) -> Result<Swap, TargetError>;

    /// Checks that the server compares: asks it to replace the fence by an equal one, under conditions that cannot hold.
    /// `Done`: it refused. `Conflict`: there is no fence now.
    fn examine(&mut self) -> Result<Swap, TargetError>;

    /// [`CasFence::swap`] of the fence alone and [`CasFence::examine`] in one step, for a server on which a fence cannot be
    /// replaced by an equal one. `Done`: both succeeded. None: this target does them separately.
    fn swap_examined(&mut self, _at: Option<&Version>, _: &FenceRecord) -> Option<Result<Swap, TargetError>> {
        None
    }

    /// The name of this write's content, for targets that keep it apart from the fence.
    fn payload(&self, _fence: &Fence) -> Option<String> {
        None
    }
}

/// The outcome of a conditional replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// The fence was replaced.
    Done,
    /// The fence had another version; nothing was changed.
    Conflict,
    /// There was no reliable answer. Unless the failure is one that writes nothing, the fence may have been replaced, or
    /// may be replaced later.
    Unknown(Failure),
}

impl From<Cas> for Swap {
    fn from(cas: Cas) -> Self {
        match cas {
            Cas::Written { .. } => Self::Done,
            Cas::Conflict => Self::Conflict,
            Cas::Unknown(failure) => Self::Unknown(failure),
        }
    }
}

/// Whether a seal also checks that the server compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exam {
    Wanted,
    Spared,
}

/// An attempt that may have landed or may still land.
struct OpenAttempt {
    /// Which write it was.
    seq: u64,
    /// Why its outcome is unknown.
    why: String,
    /// It was only counted in observe mode. The fence does not record it, so a landed one only shows as a changed fence.
    let_in: bool,
    /// The fence that it was conditional on.
    on: Option<FenceRecord>,
}

/// The decision of a verb about the current fence.
#[allow(clippy::large_enum_variant)] // there is one at a time, for a short time
enum Want<T> {
    /// Replace it by `record`, as write number `seq`; the answer is `then`.
    Put { record: FenceRecord, seq: u64, let_in: bool, then: T },
    /// Do nothing; this is the answer.
    Nothing(T),
}

/// A fence that is offered. A stored fence has no write id: the rule decides whether an attempt has landed.
#[derive(Clone)]
struct OfferedFence {
    write: WriteId,
    record: FenceRecord,
}

impl update::Record for OfferedFence {
    fn write(&self) -> WriteId {
        self.write
    }
}

/// A fence that is changed, and the content to write with it.
struct FenceCell<'a, C: CasFence> {
    cell: &'a mut C,
    content: Option<&'a C::Content>,
    /// Set when the server has shown that it compares, if that is checked.
    exam: Option<&'a mut bool>,
}

impl<C: CasFence> RecordPlace for FenceCell<'_, C> {
    type Body = FenceRecord;
    type Found = Result<Option<(FenceRecord, Version)>, TargetError>;
    type Swapped = Result<Swap, TargetError>;

    fn read(&mut self) -> Self::Found {
        self.cell.load()
    }

    fn cas(&mut self, expected: Option<&Version>, _: WriteId, record: FenceRecord) -> Self::Swapped {
        if let Some(passed) = &mut self.exam
            && let Some(swapped) = self.cell.swap_examined(expected, &record)
        {
            **passed = matches!(swapped, Ok(Swap::Done));
            return swapped;
        }
        self.cell.swap(expected, &record, self.content)
    }

    fn unsettled(&self, answer: &StoreAnswer<Self::Found, Self::Swapped>) -> Option<Failure> {
        matches!(answer, StoreAnswer::Cas(Ok(Swap::Conflict | Swap::Unknown(_)))).then(busy)
    }

    /// Waits a random part of `at_most`, so that writers that collided do not collide again. Each call has its own limit.
    fn pause(&mut self, at_most: Duration, _: Failure) -> Result<(), Failure> {
        pause(at_most);
        Ok(())
    }
}

fn pause(at_most: Duration) {
    let part = u32::try_from(random::seed() % 1000).unwrap_or_default();
    std::thread::park_timeout(at_most * part / 1000);
}

/// Reads the fence, asks `want`, and replaces the fence; again after a conflict.
fn change<C: CasFence, T>(
    mut at: FenceCell<'_, C>,
    asked: TargetAction,
    mut want: impl FnMut(&C, Option<&FenceRecord>, &mut Option<OpenAttempt>) -> Result<Want<T>, TargetError>,
) -> Result<T, TargetError> {
    let mut update = Update::<OfferedFence>::new(random::seed());
    let mut doubt: Option<OpenAttempt> = None;
    // The answer if the current attempt succeeds, and the doubt if its outcome is unknown.
    let mut offered: Option<(T, OpenAttempt)> = None;
    let done = drive_at(&mut at, NextCall::Read, |at, answer| {
        let unsure =
            |doubt: Option<&OpenAttempt>, error| NextCall::Done(Err(in_doubt(at.cell, asked, doubt, error)));
        let next = match answer {
            StoreAnswer::Read(Err(error)) | StoreAnswer::Cas(Err(error)) => {
                return unsure(doubt.as_ref(), error);
            }
            StoreAnswer::Read(Ok(loaded)) => {
                let found =
                    loaded.map(|(record, version)| FoundRecord { record: Err(record), version, age: None });
                update.on_read(Ok(found), |found, write| {
                    let old = found.and_then(|found| found.record.err());
                    match want(at.cell, old.as_ref(), &mut doubt) {
                        Ok(Want::Put { record, seq, let_in, then }) => {
                            let why = String::new();
                            offered = Some((then, OpenAttempt { seq, why, let_in, on: old }));
                            UpdateDecision::Write(OfferedFence { write, record })
                        }
                        Ok(Want::Nothing(then)) => UpdateDecision::Stop(Ok(then)),
                        Err(error) => UpdateDecision::Stop(Err(error)),
                    }
                })
            }
            // The server said that it wrote nothing. A second try would not help, and after a failover it could accept a
            // stale write.
            StoreAnswer::Cas(Ok(Swap::Unknown(failure))) if failure.landed == Landed::No => {
                let error = remote(at.cell, asked.doing(), failure);
                return unsure(doubt.as_ref(), error);
            }
            StoreAnswer::Cas(Ok(swap)) => {
                let (then, attempt) = offered.take().unzip();
                let cas = match (swap, then) {
                    (Swap::Done, Some(then)) => return NextCall::Done(Ok(then)),
                    (Swap::Unknown(failure), then) => {
                        if let (true, Some(then)) = (asked == TargetAction::Seal && let_in(&attempt), then) {
                            // In observe mode the count may then lack one, which is accepted.
                            return NextCall::Done(Ok(then));
                        }
                        let why = failure.message.clone();
                        doubt = attempt.map(|attempt| OpenAttempt { why, ..attempt });
                        Cas::Unknown(failure)
                    }
                    _ => Cas::Conflict,
                };
                update.on_cas(cas)
            }
        };
        match NextCall::of(next, |sent| sent.record.clone()) {
            NextCall::Read => NextCall::Read,
            NextCall::Cas { expected, write, body } => NextCall::Cas { expected, write, body },
            NextCall::Done(UpdateOutcome::Stopped(answer)) => NextCall::Done(answer),
            NextCall::Done(outcome) => {
                let failure = match outcome {
                    UpdateOutcome::Failed { failure, .. } => failure,
                    _ => busy(),
                };
                let error = remote(at.cell, asked.doing(), failure);
                unsure(doubt.as_ref(), error)
            }
        }
    });
    done.unwrap_or_else(|failure| Err(remote(at.cell, asked.doing(), failure)))
}

fn let_in(attempt: &Option<OpenAttempt>) -> bool {
    attempt.as_ref().is_some_and(|attempt| attempt.let_in)
}

/// [`super::Target::seal`] and [`super::Target::seal_examined`] for a cell.
pub(crate) fn seal<C: CasFence>(
    cell: &mut C,
    bearer: &Bearer,
    mode: FenceMode,
    exam: Exam,
) -> Result<Sealed, TargetError> {
    let mut passed = exam == Exam::Spared;
    let at = FenceCell { cell, content: None, exam: (!passed).then_some(&mut passed) };
    let sealed = change(at, TargetAction::Seal, |cell, old, _| {
        // After a refusal an earlier attempt is no longer in doubt: it has been replaced, and wrote nothing.
        let sealing = sealing(old.and_then(FenceRecord::standing), bearer, mode, cell.shown())?;
        let Some((fence, let_in)) = sealing else { return Ok(Want::Nothing(Sealed { let_in: None })) };
        let payload = old.and_then(|old| old.payload.clone());
        let record = FenceRecord::done(fence).after(old).with_payload(payload);
        Ok(Want::Put { record, seq: 0, let_in: let_in.is_some(), then: Sealed { let_in } })
    })?;
    if !passed {
        // The fence is raised, even if this check fails.
        examine(cell)?;
    }
    Ok(sealed)
}

/// [`CasFence::examine`] for a server that is told the version to compare with: `never` is a version that no fence ever had.
/// There is a fence, so the server must refuse to create one, and to replace the version `never`. Other writers change
/// neither.
#[cfg(any(feature = "object", feature = "redis"))]
pub(crate) fn refuses<C: CasFence>(cell: &mut C, never: &Version) -> Result<Swap, TargetError> {
    let Some((record, _)) = cell.load()? else { return Ok(Swap::Conflict) };
    for impossible in [None, Some(never)] {
        match cell.swap(impossible, &record, None)? {
            Swap::Conflict => {}
            Swap::Done => return Err(does_not_compare(cell.shown())),
            unknown @ Swap::Unknown(_) => return Ok(unknown),
        }
    }
    Ok(Swap::Done)
}

/// [`super::Target::examine`] for a cell.
pub(crate) fn examine<C: CasFence>(cell: &mut C) -> Result<(), TargetError> {
    let others = format!("others replaced its fence {EXAMS} times in between");
    let mut failure = Failure::new(FailureKind::Unreachable, others);
    let mut backoff = Backoff::FIRST;
    for _ in 0..EXAMS {
        match cell.examine()? {
            Swap::Done => return Ok(()),
            Swap::Conflict => {}
            Swap::Unknown(said) if said.landed == Landed::No => return Err(remote(cell, "check", said)),
            Swap::Unknown(said) => failure = said,
        }
        pause(backoff.next());
    }
    Err(remote(cell, "check", failure))
}

/// The server accepted a write that it had to refuse.
pub(crate) fn does_not_compare(target: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: "is on a server that does not compare: it accepted a write whose condition could not hold, so it would accept \
              a stale write too"
            .into(),
        fix: "Use another server for it".into(),
    }
}

/// [`super::Target::write`] for a cell.
pub(crate) fn write<C: CasFence>(
    cell: &mut C,
    bearer: &Bearer,
    seq: Option<u64>,
    digest: &str,
    content: &C::Content,
) -> Result<Written, TargetError> {
    let at = FenceCell { cell, content: Some(content), exam: None };
    change(at, TargetAction::Write, |cell, old, doubt| {
        let fence = old.and_then(FenceRecord::standing);
        // Another write of this run has used that number, so the attempt can no longer land.
        if let (Some(OpenAttempt { seq: number, let_in: false, .. }), Some(fence), None) =
            (&doubt, fence, seq)
            && fence.grant == bearer.grant
            && fence.seq == *number
            && fence.digest != digest
        {
            *doubt = None;
        }
        let unsure = |error| in_doubt(cell, TargetAction::Write, doubt.as_ref(), error);
        let next = next_seq(fence);
        let seq = seq.or(doubt.as_ref().map(|doubt| doubt.seq)).unwrap_or(next);
        let refusal = |reason| Refused::new(RefusedAction::Write, reason, cell.shown(), bearer, fence);
        let (next, let_in) = match verdict(fence, bearer, &FenceOffer::Write { seq, digest: digest.into() }) {
            FenceVerdict::Accept(next) => (next, None),
            FenceVerdict::Repeat => {
                return Ok(Want::Nothing(Written { seq, repeat: doubt.is_none(), let_in: None }));
            }
            FenceVerdict::Refuse(reason) => {
                return Err(unsure(TargetError::Refused(Box::new(refusal(reason)))));
            }
            FenceVerdict::LetIn(reason, next) => (next, Some(refusal(reason))),
        };
        // In observe mode the rule does not number the writes. Then a second attempt is only safe with the same condition as
        // the first, so that at most one of the two lands.
        let moved = |doubt: &OpenAttempt| (doubt.let_in || let_in.is_some()) && doubt.on.as_ref() != old;
        if doubt.as_ref().is_some_and(moved) {
            return Err(unsure(remote(cell, "write", busy())));
        }
        let payload = cell.payload(&Fence { seq, digest: digest.into(), ..next.clone() });
        let record = FenceRecord::done(next).after(old).with_payload(payload);
        let counted = let_in.is_some();
        Ok(Want::Put { record, seq, let_in: counted, then: Written { seq, repeat: false, let_in } })
    })
}

/// [`super::Target::set_mode`] for a cell.
pub(crate) fn set_mode<C: CasFence>(cell: &mut C, mode: FenceMode) -> Result<(), TargetError> {
    let at = FenceCell { cell, content: None, exam: None };
    change(at, TargetAction::Mode, |cell, old, doubt| {
        let Some(record) = old.filter(|record| !record.forgotten) else {
            return Err(in_doubt(cell, TargetAction::Mode, doubt.as_ref(), never_sealed(cell.shown())));
        };
        if record.fence.mode == mode {
            return Ok(Want::Nothing(()));
        }
        let record = FenceRecord { fence: Fence { mode, ..record.fence.clone() }, ..record.clone() };
        Ok(Want::Put { record, seq: 0, let_in: false, then: () })
    })
}

/// [`super::Target::forget`] for a cell. The fence is marked and not removed, because it may name the content.
pub(crate) fn forget<C: CasFence>(cell: &mut C) -> Result<Option<Fence>, TargetError> {
    let at = FenceCell { cell, content: None, exam: None };
    change(at, TargetAction::Reset, |_, old, _| {
        let Some(record) = old.filter(|record| !record.forgotten) else { return Ok(Want::Nothing(None)) };
        let (then, record) = (Some(record.fence.clone()), record.clone().forgotten());
        Ok(Want::Put { record, seq: 0, let_in: false, then })
    })
}

/// There is no fence.
pub(crate) fn never_sealed(target: &str) -> TargetError {
    TargetError::Unfit {
        target: target.into(),
        why: "has no fence yet".into(),
        fix: format!("Start a run with --fence {target} first"),
    }
}

/// After an attempt that may have landed, no error may say that nothing was changed.
fn in_doubt<C: CasFence>(
    cell: &C,
    asked: TargetAction,
    doubt: Option<&OpenAttempt>,
    error: TargetError,
) -> TargetError {
    match doubt {
        Some(OpenAttempt { why, .. }) => {
            TargetError::InDoubt { target: cell.shown().into(), asked, why: why.clone() }
        }
        None => error,
    }
}

fn busy() -> Failure {
    Failure::new(FailureKind::Unreachable, format!("others changed it {TRIES} times in between"))
}

fn remote<C: CasFence>(cell: &C, doing: &'static str, failure: Failure) -> TargetError {
    TargetError::Remote { target: cell.shown().into(), doing, failure }
}

#[cfg(test)]
mod tests;
