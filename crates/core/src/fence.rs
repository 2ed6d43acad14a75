//! The fence: what a target remembers, and whether it accepts a write.
//!
//! A fence belongs to one lease: tokens of different leases are never compared. Sealing raises the token of a
//! fence; a write never does. Some targets run a copy of this rule (a trigger, a script, a hook). Tests
//! replay a table of cases against such a copy (feature `tables`).

#[cfg(any(test, feature = "tables"))]
mod table;

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Grant, Token};
use crate::name::Name;
use crate::session::Granted;
#[cfg(any(test, feature = "tables"))]
pub use table::{FenceCase, table};

/// A token that is further ahead than this is forged or a bug, and no later grant.
pub const JUMP_MAX: u64 = 1_000_000;

/// What a target remembers of the last grant that it was sealed for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The lease this target belongs to.
    pub lease: Name,
    /// The epoch of that lease's record.
    pub epoch: Epoch,
    /// The highest token.
    pub token: Token,
    /// The grant that has it.
    pub grant: Grant,
    /// How many writes of that grant were accepted; zero after the seal.
    pub seq: u64,
    /// The digest of the last of them; empty after the seal.
    pub digest: String,
    /// Whether that write is known to be complete.
    pub done: bool,
    /// Whether the target refuses stale writes, or only counts them.
    pub mode: FenceMode,
    /// How many stale writes were accepted and counted in [`FenceMode::Observe`].
    pub let_in: u64,
}

/// Whether a target refuses stale writes, or only counts them. Stored with the fence, so a writer cannot
/// loosen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FenceMode {
    /// Stale writes are refused.
    Enforce,
    /// Stale writes are accepted and counted.
    Observe,
}

impl FenceMode {
    /// The word that is stored, shown and typed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }

    /// Reads [`FenceMode::word`].
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Enforce, Self::Observe].into_iter().find(|mode| mode.word() == word)
    }
}

/// A holder's proof for a target: the identity of its grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bearer {
    /// Its lease.
    pub lease: Name,
    /// The epoch of the lease's record.
    pub epoch: Epoch,
    /// Its token.
    pub token: Token,
    /// Its grant.
    pub grant: Grant,
}

impl From<&Granted> for Bearer {
    fn from(granted: &Granted) -> Self {
        let Granted { lease, epoch, token, grant, .. } = granted.clone();
        Self { lease, epoch, token, grant }
    }
}

/// What a run asks of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FenceOffer {
    /// Raise the fence and write nothing. A target that was never fenced starts in this mode. One that observes
    /// enforces from now on if this is [`FenceMode::Enforce`].
    Seal(FenceMode),
    /// Write number `seq` of this grant, with this content.
    Write {
        /// Counted from one within a grant.
        seq: u64,
        /// The digest of the content.
        digest: String,
    },
}

/// Why a target refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalReason {
    /// The target was sealed for a later grant.
    Stale,
    /// The same token with another grant: two grants share a token.
    Fork,
    /// Another epoch of the record.
    Epoch,
    /// The token is implausibly far ahead.
    Jump,
    /// The target belongs to another lease.
    OtherLease,
    /// The target was not sealed for this token.
    NotSealed,
    /// Another write of this grant has the number already, or numbers were left out.
    Sequence,
}

impl RefusalReason {
    /// The word used in history and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Fork => "fork",
            Self::Epoch => "epoch",
            Self::Jump => "jump",
            Self::OtherLease => "other-lease",
            Self::NotSealed => "not-sealed",
            Self::Sequence => "sequence",
        }
    }

    /// The reason with this word.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [
            Self::Stale,
            Self::Fork,
            Self::Epoch,
            Self::Jump,
            Self::OtherLease,
            Self::NotSealed,
            Self::Sequence,
        ];
        all.into_iter().find(|reason| reason.word() == word)
    }
}

/// The answer of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FenceVerdict {
    /// Accept it, and store this fence in the same step.
    Accept(Fence),
    /// The write was done before, and this is a retry after a lost answer. Change nothing.
    Repeat,
    /// Refuse it.
    Refuse(RefusalReason),
    /// The rule refuses, and the target only observes: accept it, and store this fence, which counts it. The
    /// fence keeps its grant, so a stale writer stays stale.
    LetIn(RefusalReason, Fence),
}

/// The number of the write that follows the writes this fence has accepted. Without a fence: the first.
pub fn next_seq(fence: Option<&Fence>) -> u64 {
    fence.map_or(1, |fence| fence.seq.saturating_add(1))
}

/// The rule. `stored`: the fence of the target; none: it was never fenced.
pub fn verdict(stored: Option<&Fence>, bearer: &Bearer, offer: &FenceOffer) -> FenceVerdict {
    let Some(fence) = stored else {
        return match offer {
            FenceOffer::Seal(mode) => FenceVerdict::Accept(sealed(bearer, *mode, 0)),
            FenceOffer::Write { .. } => FenceVerdict::Refuse(RefusalReason::NotSealed),
        };
    };
    match enforced(fence, bearer, offer) {
        FenceVerdict::Refuse(reason) if fence.mode == FenceMode::Observe => {
            FenceVerdict::LetIn(reason, Fence { let_in: fence.let_in.saturating_add(1), ..fence.clone() })
        }
        verdict => verdict,
    }
}

/// The rule of a target that enforces.
fn enforced(fence: &Fence, bearer: &Bearer, offer: &FenceOffer) -> FenceVerdict {
    if fence.lease != bearer.lease {
        return FenceVerdict::Refuse(RefusalReason::OtherLease);
    }
    if fence.epoch != bearer.epoch {
        // Reserved: no command raises the generation, and `adopt` does not either.
        let raised = bearer.epoch.generation > fence.epoch.generation;
        return match offer {
            FenceOffer::Seal(mode) if raised => announce(fence, bearer, *mode),
            _ => FenceVerdict::Refuse(RefusalReason::Epoch),
        };
    }
    if bearer.token < fence.token {
        return FenceVerdict::Refuse(RefusalReason::Stale);
    }
    if bearer.token > fence.token {
        return match offer {
            FenceOffer::Seal(mode) => announce(fence, bearer, *mode),
            FenceOffer::Write { .. } => FenceVerdict::Refuse(RefusalReason::NotSealed),
        };
    }
    if bearer.grant != fence.grant {
        return FenceVerdict::Refuse(RefusalReason::Fork);
    }
    match offer {
        FenceOffer::Seal(_) => FenceVerdict::Repeat,
        FenceOffer::Write { seq, digest } => within_grant(fence, *seq, digest),
    }
}

fn announce(fence: &Fence, bearer: &Bearer, wished: FenceMode) -> FenceVerdict {
    if bearer.token.get().saturating_sub(fence.token.get()) > JUMP_MAX {
        return FenceVerdict::Refuse(RefusalReason::Jump);
    }
    // A run can only make the mode stricter.
    let mode = if wished == FenceMode::Enforce { wished } else { fence.mode };
    FenceVerdict::Accept(sealed(bearer, mode, fence.let_in))
}

fn within_grant(fence: &Fence, seq: u64, digest: &str) -> FenceVerdict {
    // Writes are counted from one; number zero is the seal.
    if seq == 0 {
        return FenceVerdict::Refuse(RefusalReason::Sequence);
    }
    if seq == fence.seq && digest == fence.digest && fence.done {
        return FenceVerdict::Repeat;
    }
    // An unfinished write with the same number and content is done again.
    let again = seq == fence.seq && digest == fence.digest;
    if Some(seq) == fence.seq.checked_add(1) || again {
        return FenceVerdict::Accept(Fence { seq, digest: digest.into(), done: true, ..fence.clone() });
    }
    FenceVerdict::Refuse(RefusalReason::Sequence)
}

fn sealed(bearer: &Bearer, mode: FenceMode, let_in: u64) -> Fence {
    Fence {
        lease: bearer.lease.clone(),
        epoch: bearer.epoch,
        token: bearer.token,
        grant: bearer.grant,
        seq: 0,
        digest: String::new(),
        done: true,
        mode,
        let_in,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: FenceOffer = FenceOffer::Seal(FenceMode::Enforce);

    fn bearer(token: u64, grant: u128) -> Bearer {
        Bearer {
            lease: Name::new("site").unwrap(),
            epoch: Epoch { generation: 1, id: 7 },
            token: Token::new(token).unwrap(),
            grant: Grant(grant),
        }
    }

    fn write(seq: u64, digest: &str) -> FenceOffer {
        FenceOffer::Write { seq, digest: digest.into() }
    }

    fn after(stored: Option<&Fence>, bearer: &Bearer, offer: &FenceOffer) -> Fence {
        match verdict(stored, bearer, offer) {
            FenceVerdict::Accept(fence) => fence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sealed_target_refuses_the_old_holder_even_before_the_new_one_writes() {
        let old = bearer(33, 1);
        let fence = after(None, &old, &SEAL);
        let fence = after(Some(&fence), &old, &write(1, "a"));
        let new = bearer(34, 2);
        let fence = after(Some(&fence), &new, &SEAL);
        assert_eq!(verdict(Some(&fence), &old, &write(2, "b")), FenceVerdict::Refuse(RefusalReason::Stale));
        assert_eq!(verdict(Some(&fence), &old, &SEAL), FenceVerdict::Refuse(RefusalReason::Stale));
    }

    #[test]
    fn several_writes_of_one_run_and_a_retry_after_a_lost_answer() {
        let me = bearer(1, 1);
        let fence = after(None, &me, &SEAL);
        let fence = after(Some(&fence), &me, &write(1, "a"));
        assert_eq!(verdict(Some(&fence), &me, &write(1, "a")), FenceVerdict::Repeat);
        assert_eq!(verdict(Some(&fence), &me, &write(1, "b")), FenceVerdict::Refuse(RefusalReason::Sequence));
        let fence = after(Some(&fence), &me, &write(2, "b"));
        assert_eq!(verdict(Some(&fence), &me, &write(1, "a")), FenceVerdict::Refuse(RefusalReason::Sequence));
        assert_eq!(verdict(Some(&fence), &me, &write(4, "d")), FenceVerdict::Refuse(RefusalReason::Sequence));
    }

    #[test]
    fn an_unfinished_write_is_not_answered_as_done() {
        let me = bearer(1, 1);
        let fence = after(None, &me, &SEAL);
        let pending = Fence { done: false, ..after(Some(&fence), &me, &write(1, "a")) };
        assert!(matches!(verdict(Some(&pending), &me, &write(1, "a")), FenceVerdict::Accept(_)));
    }

    #[test]
    fn two_grants_with_one_token_are_told_apart() {
        let fence = after(None, &bearer(7, 1), &SEAL);
        assert_eq!(
            verdict(Some(&fence), &bearer(7, 2), &write(1, "x")),
            FenceVerdict::Refuse(RefusalReason::Fork)
        );
        assert_eq!(verdict(Some(&fence), &bearer(7, 2), &SEAL), FenceVerdict::Refuse(RefusalReason::Fork));
    }

    /// The promises over the whole table, written without looking at the branches of the rule.
    #[test]
    fn the_table_keeps_the_promises() {
        let cases = table();
        assert!(cases.len() > 5_000, "{}", cases.len());
        for case in &cases {
            let Some(fence) = &case.stored else { continue };
            let b = &case.bearer;
            let allowed = matches!(case.verdict, FenceVerdict::Accept(_) | FenceVerdict::Repeat);
            let same = b.lease == fence.lease && b.epoch == fence.epoch;
            if allowed {
                assert_eq!(b.lease, fence.lease);
                let raised =
                    b.epoch.generation > fence.epoch.generation && matches!(case.offer, FenceOffer::Seal(_));
                assert!(b.epoch == fence.epoch || raised, "{case:?}");
            }
            if same && b.token < fence.token || same && b.token == fence.token && b.grant != fence.grant {
                assert!(!allowed, "{case:?}");
            }
            if let (FenceVerdict::Accept(next), true) = (&case.verdict, same) {
                assert!((next.token, next.seq) >= (fence.token, fence.seq), "the fence went back: {case:?}");
            }
            match &case.verdict {
                FenceVerdict::Refuse(_) => assert_eq!(fence.mode, FenceMode::Enforce, "{case:?}"),
                // Only the count may differ, or a stale holder could take the fence over.
                FenceVerdict::LetIn(_, next) => {
                    let counted = Fence { let_in: fence.let_in + 1, ..fence.clone() };
                    assert_eq!((fence.mode, next), (FenceMode::Observe, &counted), "{case:?}");
                }
                FenceVerdict::Accept(next) => {
                    let stricter = case.offer == FenceOffer::Seal(FenceMode::Enforce);
                    let mode = if stricter { FenceMode::Enforce } else { fence.mode };
                    assert_eq!((next.mode, next.let_in), (mode, fence.let_in), "{case:?}");
                }
                FenceVerdict::Repeat => {}
            }
            if matches!(case.offer, FenceOffer::Write { .. }) && b.token > fence.token {
                assert!(!allowed, "only a seal brings a larger token: {case:?}");
            }
        }
    }

    #[test]
    fn observe_refuses_nothing_and_does_not_loosen_the_fence() {
        let old = bearer(33, 1);
        let fence = after(None, &old, &FenceOffer::Seal(FenceMode::Observe));
        let strict = after(Some(&fence), &bearer(34, 2), &SEAL);
        assert_eq!(verdict(Some(&strict), &old, &write(1, "a")), FenceVerdict::Refuse(RefusalReason::Stale));
        let fence = after(Some(&fence), &bearer(34, 2), &FenceOffer::Seal(FenceMode::Observe));
        let FenceVerdict::LetIn(RefusalReason::Stale, fence) = verdict(Some(&fence), &old, &write(1, "a"))
        else {
            panic!("not counted")
        };
        assert_eq!((fence.token.get(), fence.let_in), (34, 1));
    }
}
