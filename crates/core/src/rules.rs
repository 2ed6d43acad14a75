//! The rules of a lease: who may take it, keep it and give it back. They are decided only here.
//!
//! They are a trait for one reason: the simulator runs the same session with one rule broken at a
//! time, and must catch every such mutant. Production code uses [`Standard`].

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Debug};
use core::hash::Hash;
use core::time::Duration;

use crate::additions::Additions;
use crate::forgotten::Forgotten;
use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::name::Name;
use crate::record::{BadRecord, Hold, Holder, LeaseRecord};
use crate::store::Version;
use crate::time::BootTime;

/// How far the token jumps when the store may have lost acknowledged writes.
pub const INSTANCE_SKIP: u64 = 1_000;

/// The highest token this host has seen for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenToken {
    /// The epoch of the record.
    pub epoch: Epoch,
    /// The token.
    pub token: Token,
}

impl SeenToken {
    /// Whether `other` is the newer token of the same record. Tokens of different epochs do not compare.
    pub fn is_behind(self, other: Self) -> bool {
        self.epoch == other.epoch && self.token < other.token
    }
}

/// Who asks for a lease, and with which identities.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The lease.
    pub lease: Name,
    /// The identity of the new acquisition.
    pub grant: Grant,
    /// The id of the epoch, if the record has to be created.
    pub epoch: u128,
    /// The id of this attempt.
    pub write: WriteId,
    /// The TTL.
    pub ttl: Duration,
    /// Where others on this machine can see whether the holder lives.
    pub lock: Option<String>,
    /// Who asks.
    pub holder: Holder,
}

/// The facts that decide a claim.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The record, if there is one.
    pub record: Option<&'a LeaseRecord>,
    /// Its age by the store's clock, if known.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// How long this host has watched this version unchanged, by its own clock.
    pub watched: Duration,
    /// The holder ran on this machine, and no process of it is left.
    pub holder_gone: bool,
    /// The store instance that answered.
    pub instance: &'a str,
    /// The highest token this host has seen.
    pub seen: Option<SeenToken>,
    /// What this host has seen was forgotten on purpose, so that its record may be gone.
    pub forgotten: bool,
}

impl<'a> View<'a> {
    /// The view of a single look at the store, without watching and without memory.
    pub fn at_a_glance(
        record: &'a LeaseRecord,
        age: Option<Duration>,
        resolution: Duration,
        instance: &'a str,
    ) -> Self {
        let (watched, holder_gone, seen, forgotten) = (Duration::ZERO, false, None, false);
        Self { record: Some(record), age, resolution, watched, holder_gone, instance, seen, forgotten }
    }
}

/// Why a record must not be acted on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The record cannot be read, is newer, or belongs to another lease.
    Bad(BadRecord),
    /// The store is behind what this host has seen: it was rewound.
    Behind {
        /// The token that this host remembers.
        seen: Token,
        /// The token in the store.
        found: Token,
    },
    /// The store has no record although this host has seen one.
    Vanished {
        /// The token that this host remembers.
        seen: Token,
    },
    /// A claim of this run, which the run has seen replaced, is in the store again.
    Returned {
        /// Its token.
        token: Token,
    },
    /// No token is left.
    Exhausted,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(bad) => write!(f, "{bad}"),
            Self::Behind { seen, found } => {
                write!(f, "the store was rewound: it has token {found}, but {seen} was seen here")
            }
            Self::Vanished { seen } => write!(f, "the record is gone, although token {seen} was seen here"),
            Self::Returned { token } => {
                write!(
                    f,
                    "the store was rewound: it shows an old claim of this run (token {token}), which another \
                     run had already replaced"
                )
            }
            Self::Exhausted => write!(f, "no token is left"),
        }
    }
}

/// Whether a store has lost records that this host has seen there.
pub fn rewound(seen: SeenToken, record: Option<&LeaseRecord>) -> Option<Refusal> {
    let Some(record) = record else { return Some(Refusal::Vanished { seen: seen.token }) };
    let found = SeenToken { epoch: record.epoch, token: record.token };
    found.is_behind(seen).then_some(Refusal::Behind { seen: seen.token, found: record.token })
}

/// The decision about a claim.
#[allow(clippy::large_enum_variant)] // lives for one step
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// Write this, if the version is still the one that was read.
    Take(LeaseRecord),
    /// Another run holds the lease.
    Held {
        /// How long it lasts unless renewed; none if only watching can tell.
        ends_in: Option<Duration>,
    },
    /// The record must not be acted on.
    Refuse(Refusal),
}

/// One write that was sent. It may have landed or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The index of its lease in the plan.
    pub at: usize,
    /// Its id, which the record has if it landed.
    pub write: WriteId,
    /// When it was sent.
    pub sent: BootTime,
    /// The version it replaces; none: it creates the record.
    pub expected: Option<Version>,
    /// A claim of a lease that was held: the record it replaces.
    pub replaces: Option<Box<LeaseRecord>>,
    /// Its answer left open whether it lands.
    pub in_doubt: bool,
}

/// The result of reading a record back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// Our grant is in the record.
    Ours {
        /// When our write was sent: the lease counts from then. None: the write is not ours, so no deadline
        /// moves.
        from: Option<BootTime>,
        /// A person asked us to stop.
        revoked: bool,
    },
    /// Our grant is not in the record.
    NotOurs,
}

/// The state of a lease, by its record and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// No run holds it.
    Free,
    /// The record says held, but its TTL has passed without a renewal.
    Expired,
    /// A run holds it.
    Held {
        /// How long it lasts unless renewed; none if only watching can tell.
        ends_in: Option<Duration>,
    },
}

/// The rules. The body of each method is the production rule.
pub trait Rules: Clone + Debug + PartialEq + Eq + Hash {
    /// Whether a held record has expired.
    fn expired(&self, hold: &Hold, view: &View<'_>) -> bool {
        match view.record.and_then(|record| told_age(record, view.instance, view.age)) {
            Some(age) => ends_in(hold, age, view.resolution).is_zero(),
            None => view.watched >= hold.ttl,
        }
    }

    /// The state of a lease, by its record and the time.
    fn standing(&self, record: &LeaseRecord, view: &View<'_>) -> LeaseStanding {
        match &record.hold {
            None => LeaseStanding::Free,
            Some(hold) if self.expired(hold, view) => LeaseStanding::Expired,
            Some(hold) => {
                let age = told_age(record, view.instance, view.age);
                LeaseStanding::Held { ends_in: age.map(|age| ends_in(hold, age, view.resolution)) }
            }
        }
    }

    /// Whether the claim may be granted, and what to write.
    fn acquire(&self, view: &View<'_>, claim: &Claim) -> ClaimDecision {
        if let Some(refusal) = view.seen.and_then(|seen| rewound(seen, view.record))
            && !(view.forgotten && matches!(refusal, Refusal::Vanished { .. }))
        {
            return ClaimDecision::Refuse(refusal);
        }
        let Some(record) = view.record else {
            let epoch = Epoch::first(claim.epoch);
            return ClaimDecision::Take(granted(claim, epoch, Token::FIRST, view.instance));
        };
        // This run has seen that its own claims were replaced. A grant has one token.
        if record.held_by(claim.grant) {
            return ClaimDecision::Refuse(Refusal::Returned { token: record.token });
        }
        if let LeaseStanding::Held { ends_in } = self.standing(record, view)
            && !view.holder_gone
        {
            return ClaimDecision::Held { ends_in };
        }
        match next_token(record, view.instance) {
            Some(token) => ClaimDecision::Take(LeaseRecord {
                past: record.past.clone(),
                more: record.more.clone(),
                ..granted(claim, record.epoch, token, view.instance)
            }),
            None => ClaimDecision::Refuse(Refusal::Exhausted),
        }
    }

    /// Whether one of these records says that what this host has seen of a lease was forgotten on purpose.
    fn is_forgotten(&self, lease: &Name, seen: SeenToken, records: &[Forgotten]) -> bool {
        records.iter().any(|record| record.covers(lease, seen))
    }

    /// The record after a renewal. Only the write id is new, so only the age restarts. The instance stays that
    /// of the grant: if the store has another one since, the next grant must still skip tokens.
    fn renew(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        LeaseRecord { write, ..record.clone() }
    }

    /// The record after a release: it is free and has no grant. The token and the instance stay.
    fn release(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        LeaseRecord { write, hold: None, ..record.clone() }
    }

    /// Whether the record is ours, and from when the lease counts. Every write id that this process sent is
    /// ours, and the lease counts from the time *that* attempt was sent. Our grant with another write id (a
    /// renewal or a revocation by hand) moves no deadline: only the store knows the age of that write, and
    /// the age is too young if the store's clock steps back or its instance changes, while other runs count
    /// the time by their own clocks.
    fn settle(&self, found: &LeaseRecord, grant: Grant, attempts: &[Attempt]) -> ReadBack {
        let Some(hold) = found.hold.as_ref().filter(|h| h.grant == grant) else {
            return ReadBack::NotOurs;
        };
        let from = attempts.iter().find(|a| a.write == found.write).map(|a| a.sent);
        ReadBack::Ours { from, revoked: hold.revoke }
    }

    /// When the lease starts to count after a confirmed write.
    fn counts_from(&self, attempt: &Attempt) -> BootTime {
        attempt.sent
    }

    /// Whether a lease may be given back. `tree_empty`: no process of the job is left.
    fn may_release(&self, tree_empty: bool) -> bool {
        tree_empty
    }
}

/// The production rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standard;

impl Rules for Standard {}

/// The age of a record as its store tells it. An instance that may have lost writes cannot tell it.
pub(crate) fn told_age(record: &LeaseRecord, instance: &str, age: Option<Duration>) -> Option<Duration> {
    age.filter(|_| record.instance == instance)
}

/// When a hold of this age expires. The store's clock has this resolution.
pub(crate) fn ends_in(hold: &Hold, age: Duration, resolution: Duration) -> Duration {
    hold.ttl.saturating_add(resolution).saturating_sub(age)
}

/// The token of the next grant. Another instance may have lost tokens that were granted.
pub(crate) fn next_token(record: &LeaseRecord, instance: &str) -> Option<Token> {
    record.token.after(if record.instance == instance { 1 } else { INSTANCE_SKIP })
}

/// The record of a new grant.
pub fn granted(claim: &Claim, epoch: Epoch, token: Token, instance: &str) -> LeaseRecord {
    LeaseRecord {
        lease: claim.lease.clone(),
        epoch,
        token,
        write: claim.write,
        instance: instance.into(),
        hold: Some(Hold { grant: claim.grant, ttl: claim.ttl, revoke: false, lock: claim.lock.clone() }),
        holder: claim.holder.clone(),
        past: Vec::new(),
        more: Additions::new(),
    }
}

/// Forgets attempts on a lease that can no longer land: a conditional write lands only on the version it
/// expects, and the stored version is known. The attempt that is stored is kept, because the lease counts
/// from it.
pub fn prune(attempts: &mut Vec<Attempt>, at: usize, stored: Option<&Version>, write: Option<WriteId>) {
    attempts.retain(|a| a.at != at || a.expected.as_ref() == stored || Some(a.write) == write);
}
