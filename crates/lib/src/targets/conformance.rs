//! The tests that every target must pass: all cases of core's rule, replayed against the real target.

use leasehold_core::fence::{
    Bearer, Fence, FenceCase, FenceOffer, FenceVerdict, RefusalReason, table, verdict,
};
use leasehold_core::fence_record::FenceRecord;

use super::{Content, Target, TargetError};

/// A target under test, whose fence and content the tests can set directly.
pub trait TargetBench {
    /// Sets the fence (None: no fence) and the content. Returns the fence that the rule will see, which differs if the
    /// target first finishes a write of a dead writer.
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence>;

    /// The content.
    fn content(&mut self) -> String;

    /// The target.
    fn target(&mut self) -> &mut dyn Target;

    /// The digest that the target gives to this content.
    fn digest(&self, content: &str) -> String {
        crate::backends::file::digest(content.as_bytes())
    }

    /// A stored fence whose write is not finished, if this target has such a state.
    fn unfinished(&mut self, _fence: &Fence) -> Option<FenceRecord> {
        None
    }
}

/// The content before the first fenced write.
pub const OLD: &str = "old";

/// The whole table.
pub fn whole() -> Vec<FenceCase> {
    table()
}

/// At most `each` cases of every kind, for slow targets. Cases of one kind have the same stored fence, offer and
/// verdict.
pub fn some_of_each_kind(each: usize) -> Vec<FenceCase> {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    let kind = |case: &FenceCase| {
        let stored = case.stored.as_ref().map(|f| (f.seq, f.done, f.mode, f.token));
        let verdict = match &case.verdict {
            FenceVerdict::Accept(fence) => format!("accept {}", fence.seq),
            FenceVerdict::Repeat => "repeat".into(),
            FenceVerdict::Refuse(reason) => format!("refuse {}", reason.word()),
            FenceVerdict::LetIn(reason, _) => format!("let in {}", reason.word()),
        };
        format!("{stored:?} {:?} {verdict}", case.offer)
    };
    let mut cases = table();
    cases.retain(|case| {
        let count = counts.entry(kind(case)).or_default();
        *count += 1;
        *count <= each
    });
    cases
}

/// Replays these cases and returns their number.
///
/// # Panics
/// If the target's answer differs from the rule's.
pub fn replay(bench: &mut dyn TargetBench, cases: &[FenceCase]) -> usize {
    let mut count = 0;
    for case in cases {
        let fence = case.stored.as_ref().map(|fence| real_fence(bench, fence));
        let record = match fence {
            Some(fence) if !fence.done => match bench.unfinished(&fence) {
                Some(record) => Some(record),
                None => continue,
            },
            fence => fence.map(FenceRecord::done),
        };
        // The labels of the table stand for contents of that text.
        let label = case.stored.as_ref().filter(|f| f.seq > 0 && f.done).map_or(OLD, |f| &f.digest);
        let before = bench.install(record.as_ref(), label);
        one(bench, case, before.as_ref());
        count += 1;
    }
    count
}

fn one(bench: &mut dyn TargetBench, case: &FenceCase, before: Option<&Fence>) {
    let offer = match &case.offer {
        FenceOffer::Seal(mode) => FenceOffer::Seal(*mode),
        FenceOffer::Write { seq, digest } => FenceOffer::Write { seq: *seq, digest: bench.digest(digest) },
    };
    let settled = before.filter(|fence| fence.seq > 0 && case.stored.as_ref().is_some_and(|f| !f.done));
    let kept = match settled {
        // The write of a dead writer was finished first.
        Some(fence) if fence.digest == bench.digest("d1") => "d1".into(),
        _ => bench.content(),
    };
    let wanted = verdict(before, &case.bearer, &offer);
    let got = answer(bench, case, before);
    assert_eq!(got, wanted, "{case:?}");
    let written = match (&wanted, &case.offer) {
        (FenceVerdict::Accept(_) | FenceVerdict::LetIn(..), FenceOffer::Write { digest, .. }) => {
            digest.clone()
        }
        _ => kept,
    };
    assert_eq!(bench.content(), written, "{case:?}");
    agrees(bench, case, before, &got);
}

/// The target's answer as a verdict of the rule.
fn answer(bench: &mut dyn TargetBench, case: &FenceCase, before: Option<&Fence>) -> FenceVerdict {
    let FenceCase { bearer, offer, .. } = case;
    let target = bench.target();
    let result = match offer {
        FenceOffer::Seal(mode) => target.seal(bearer, *mode).map(|sealed| (false, sealed.let_in)),
        FenceOffer::Write { seq, digest } => target
            .write(bearer, Some(*seq), Content::Bytes(digest.as_bytes()))
            .map(|written| (written.repeat, written.let_in)),
    };
    let after = target.show().unwrap_or_else(|e| panic!("{e}")).map(|record| record.fence);
    match result {
        Ok((_, Some(refused))) => {
            check_words(&refused, bearer, before);
            FenceVerdict::LetIn(
                refused.reason,
                after.unwrap_or_else(|| panic!("the fence is gone: {case:?}")),
            )
        }
        Ok((false, None)) if matches!(offer, FenceOffer::Seal(_)) && after.as_ref() == before => {
            FenceVerdict::Repeat
        }
        Ok((false, None)) => FenceVerdict::Accept(after.unwrap_or_else(|| panic!("no fence: {case:?}"))),
        Ok((true, None)) => {
            assert_eq!(after.as_ref(), before);
            FenceVerdict::Repeat
        }
        Err(TargetError::Refused(refused)) => {
            assert_eq!(after.as_ref(), before, "a refusal changed the fence");
            check_words(&refused, bearer, before);
            FenceVerdict::Refuse(refused.reason)
        }
        Err(other) => panic!("{other}: {case:?}"),
    }
}

/// A refusal names both tokens.
fn check_words(refused: &super::Refused, bearer: &Bearer, before: Option<&Fence>) {
    assert_eq!(refused.token, bearer.token);
    assert_eq!(refused.sealed(), before.map(|fence| fence.token));
}

/// The verdict in the table must agree too, where its labels and real digests mean the same.
fn agrees(bench: &dyn TargetBench, case: &FenceCase, before: Option<&Fence>, got: &FenceVerdict) {
    let unfinished = case.stored.as_ref().is_some_and(|fence| !fence.done);
    let nameless = matches!(&case.offer, FenceOffer::Write { digest, .. } if digest.is_empty());
    match (&case.verdict, got) {
        // The write was finished before the rule was asked, and its answer depends on how.
        _ if unfinished && before.is_none_or(|fence| fence.seq == 0) => {}
        (FenceVerdict::Accept(fence), FenceVerdict::Accept(now)) => {
            assert_eq!(now, &real_fence(bench, fence))
        }
        (FenceVerdict::Accept(fence), FenceVerdict::Repeat) if unfinished => {
            assert_eq!(before, Some(&real_fence(bench, fence)));
        }
        // No real content has an empty digest, so no write is taken for the retry of a seal.
        (
            FenceVerdict::Repeat,
            FenceVerdict::Refuse(RefusalReason::Sequence) | FenceVerdict::LetIn(RefusalReason::Sequence, _),
        ) if nameless => {}
        (FenceVerdict::LetIn(reason, _), FenceVerdict::LetIn(said, _)) => {
            assert_eq!(reason, said, "{case:?}")
        }
        (table, got) => assert_eq!(table, got, "{case:?}"),
    }
}

fn real_fence(bench: &dyn TargetBench, fence: &Fence) -> Fence {
    let digest = if fence.seq == 0 { String::new() } else { bench.digest(&fence.digest) };
    Fence { digest, ..fence.clone() }
}
