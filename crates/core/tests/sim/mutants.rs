//! Rules that are broken on purpose, one at a time. If a mutant is not caught, a check is missing.

use std::cell::Cell;
use std::time::Duration;

use leasehold_core::forgotten::Forgotten;
use leasehold_core::ids::{Epoch, Grant, Token, WriteId};
use leasehold_core::name::Name;
use leasehold_core::record::{Hold, LeaseRecord};
use leasehold_core::rules::{
    Attempt, Claim, ClaimDecision, ReadBack, Rules, SeenToken, Standard, View, granted,
};
use leasehold_core::time::BootTime;

macro_rules! mutants {
    ($($name:ident = $text:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Mutant {
            /// The production rules.
            None,
            $($name),*
        }

        /// Every mutant, and its mistake.
        pub(crate) const MUTANTS: &[(Mutant, &str)] = &[$((Mutant::$name, $text)),*];
    };
}

mutants! {
    ReleaseDeletes = "release deletes the record",
    ReleaseUnconditional = "release ignores whose record it frees",
    AcquireByPut = "acquire by plain put",
    OwnerIsHost = "the grant is the host's name",
    RenewUnconditional = "renew without version",
    DeadlineFromReply = "deadline counted from the reply",
    DeadlineFromRetry = "deadline moved by a retry's send time",
    ClientClock = "expiry by the client's clock",
    ConflictIsLoss = "conflict taken as lost without reading back",
    ConflictIsWin = "conflict taken as won",
    GrantIsEnough = "own grant credited with the newest attempt",
    ForkAccepted = "the fence accepts an equal token of another grant",
    SealSkipped = "the seal is skipped",
    CheckThenWrite = "the target checks, then writes",
    TokenReset = "the token starts again after a release",
    SameEpoch = "the same epoch after re-creation",
    SameOwnerReenters = "the same owner gets the lease twice",
    ReleaseEarly = "release before the tree is empty",
    NapIgnored = "a clock that stops in suspend",
    StopMarginIgnored = "no time taken off for killing",
    JumpIgnored = "the store clock's step is not taken off",
    ResolutionIgnored = "coarse ages taken as exact",
    WatchedFromSend = "watched time counted from before the request",
    InstanceHidden = "a renewal or release writes the new store instance",
    InstanceIgnored = "a new store instance goes unnoticed",
    HostMemoryIgnored = "the host forgets what it has seen",
    KillsMainOnly = "only the main process is killed",
    StaleReplyTaken = "a late reply taken for the newest request's",
    StaleAccepted = "the fence accepts a smaller token",
    RetryWritesAgain = "a retried write is applied twice",
    NeverExpires = "a silent holder keeps the lease without end",
    StartedAfterExec = "an item is recorded as started after its command has started",
    RecordedAfterRelease = "the end of an item is recorded after the lease was given back",
    StaleClose = "the end of an item is written without comparing versions",
    UnreadableIsFree = "a lease whose record cannot be read counts as free",
    SkipIsOk = "an item whose command was never executed is recorded as ok",
    ForgetsHeld = "a lease that is held is forgotten",
    ForgetsTooSoon = "a lease is forgotten while a message that creates it may still land",
    ForgetsBlindly = "a lease is removed without comparing versions",
    ForgetsUnannounced = "a lease is removed and no record says so",
    AnnouncedAfterwards = "a lease is removed before the record says so",
    ForgottenIgnored = "the record of a forgotten lease is ignored",
    EpochKept = "a lease that was forgotten gets its old epoch again",
    UnknownRetried = "an item with an unknown outcome is run again without a request",
}

impl Mutant {
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        MUTANTS.iter().map(|(m, _)| *m).find(|m| format!("{m:?}") == name)
    }
}

/// The rules with one of them broken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    mutant: Mutant,
    /// The wall clock's error on this host, in nanoseconds.
    skew: i64,
}

thread_local! {
    /// The time of the step under way, which no rule may look at.
    static NOW: Cell<BootTime> = const { Cell::new(BootTime(Duration::ZERO)) };
}

pub(crate) fn tell_mutants(now: BootTime) {
    NOW.set(now);
}

pub(crate) fn broken(mutant: Mutant, skew: i64) -> Broken {
    Broken { mutant, skew }
}

impl Rules for Broken {
    fn expired(&self, hold: &Hold, view: &View<'_>) -> bool {
        match (self.mutant, view.age) {
            (Mutant::ClientClock, Some(age)) => {
                let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX).saturating_add(self.skew);
                age >= i64::try_from(hold.ttl.as_nanos()).unwrap_or(i64::MAX)
            }
            (Mutant::ResolutionIgnored, Some(age)) => age >= hold.ttl,
            (Mutant::NeverExpires, _) => false,
            _ => Standard.expired(hold, view),
        }
    }

    fn acquire(&self, view: &View<'_>, claim: &Claim) -> ClaimDecision {
        match (self.mutant, view.record) {
            (Mutant::SameEpoch, None) => {
                ClaimDecision::Take(granted(claim, Epoch::first(1), Token::FIRST, view.instance))
            }
            (Mutant::EpochKept, None) if view.forgotten && view.seen.is_some() => {
                let epoch = view.seen.map_or(Epoch::first(1), |seen| seen.epoch);
                ClaimDecision::Take(granted(claim, epoch, Token::FIRST, view.instance))
            }
            (Mutant::SameOwnerReenters, Some(record)) if record.holder.host == claim.holder.host => {
                Standard.acquire(&View { holder_gone: true, ..view.clone() }, claim)
            }
            (_, Some(record)) if record.hold.as_ref().is_some_and(|hold| self.expired(hold, view)) => {
                Standard.acquire(&View { holder_gone: true, ..view.clone() }, claim)
            }
            // The standard rule would ask its own `expired`.
            (Mutant::ClientClock | Mutant::NeverExpires, Some(record)) if record.hold.is_some() => Standard
                .acquire(
                    &View { age: Some(Duration::ZERO), instance: &record.instance, ..view.clone() },
                    claim,
                ),
            _ => Standard.acquire(view, claim),
        }
    }

    fn is_forgotten(&self, lease: &Name, seen: SeenToken, records: &[Forgotten]) -> bool {
        self.mutant != Mutant::ForgottenIgnored && Standard.is_forgotten(lease, seen, records)
    }

    fn release(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        let freed = Standard.release(record, write);
        match self.mutant {
            Mutant::TokenReset => LeaseRecord { token: Token::FIRST, ..freed },
            _ => freed,
        }
    }

    fn settle(&self, found: &LeaseRecord, grant: Grant, attempts: &[Attempt]) -> ReadBack {
        let settled = Standard.settle(found, grant, attempts);
        let newest = attempts.iter().map(|a| a.sent).max();
        let own = attempts.iter().any(|a| a.write == found.write);
        match (self.mutant, settled) {
            (Mutant::DeadlineFromRetry, ReadBack::Ours { revoked, .. }) if own => {
                ReadBack::Ours { from: newest, revoked }
            }
            (Mutant::GrantIsEnough, ReadBack::Ours { revoked, .. }) => {
                ReadBack::Ours { from: newest, revoked }
            }
            (_, settled) => settled,
        }
    }

    fn counts_from(&self, attempt: &Attempt) -> BootTime {
        match self.mutant {
            Mutant::DeadlineFromReply => NOW.get(),
            _ => Standard.counts_from(attempt),
        }
    }

    fn may_release(&self, tree_empty: bool) -> bool {
        self.mutant == Mutant::ReleaseEarly || tree_empty
    }
}
