//! The rules of a lease: who may take it, keep it, give it back. Decided here and nowhere else.
//!
//! They stand behind a trait for one reason: the simulator runs the same session with one rule
//! broken at a time, and must catch every such mutant. Production code uses [`Standard`].

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Debug};
use core::hash::Hash;
use core::time::Duration;

use crate::additions::Additions;
use crate::history;
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
    /// In which life of the record.
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
    /// The new acquisition.
    pub grant: Grant,
    /// Used if the record has to be created.
    pub epoch: u128,
    /// This attempt.
    pub write: WriteId,
    /// The lease's duration.
    pub ttl: Duration,
    /// Evidence of life for neighbours.
    pub lock: Option<String>,
    /// For people to read.
    pub holder: Holder,
}

/// What is known when a claim is decided.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The record, if there is one.
    pub record: Option<&'a LeaseRecord>,
    /// Its age by the store's clock, if known.
    pub age: Option<Duration>,
    /// How coarse that age is.
    pub resolution: Duration,
    /// How long we have watched this very version unchanged, on our own clock.
    pub watched: Duration,
    /// A neighbour's evidence shows that the holder and all it started are gone.
    pub holder_gone: bool,
    /// The store instance that answered.
    pub instance: &'a str,
    /// The highest token this host has seen.
    pub seen: Option<SeenToken>,
}

impl<'a> View<'a> {
    /// What somebody sees who has only just looked, and looked at nothing but the store.
    pub fn at_a_glance(
        record: &'a LeaseRecord,
        age: Option<Duration>,
        resolution: Duration,
        instance: &'a str,
    ) -> Self {
        let (watched, holder_gone, seen) = (Duration::ZERO, false, None);
        Self { record: Some(record), age, resolution, watched, holder_gone, instance, seen }
    }
}

/// Why nobody may act on what the store says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The record is unreadable, newer, or another lease's.
    Bad(BadRecord),
    /// The store is behind what this host has seen: it was rewound.
    Behind {
        /// What this host remembers.
        seen: Token,
        /// What the store has.
        found: Token,
    },
    /// The store has no record although this host has seen one.
    Vanished {
        /// What this host remembers.
        seen: Token,
    },
    /// A claim of this very run, which it had seen replaced, is in force again.
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
                write!(f, "the store was rewound: it says token {found}, and {seen} was seen here")
            }
            Self::Vanished { seen } => write!(f, "the record is gone, and token {seen} was seen here"),
            Self::Returned { token } => {
                write!(
                    f,
                    "the store was rewound: a claim of ours that had been replaced, token {token}, is back"
                )
            }
            Self::Exhausted => write!(f, "no token is left"),
        }
    }
}

/// Whether a store has lost what this host has seen there.
pub fn rewound(seen: SeenToken, record: Option<&LeaseRecord>) -> Option<Refusal> {
    let Some(record) = record else { return Some(Refusal::Vanished { seen: seen.token }) };
    let found = SeenToken { epoch: record.epoch, token: record.token };
    found.is_behind(seen).then_some(Refusal::Behind { seen: seen.token, found: record.token })
}

/// What a claim comes to.
#[allow(clippy::large_enum_variant)] // lives for one step
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// Write this, if the version is still the one that was read.
    Take(LeaseRecord),
    /// Somebody holds it.
    Held {
        /// When it ends unless renewed; nothing when only watching can tell.
        ends_in: Option<Duration>,
    },
    /// Neither.
    Refuse(Refusal),
}

/// One write that was sent and whose fate may be open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Which of the leases that would do it was for.
    pub at: usize,
    /// Its id, as stored in the body if it landed.
    pub write: WriteId,
    /// When it was sent.
    pub sent: BootTime,
    /// The version it replaces; nothing: it creates.
    pub expected: Option<Version>,
}

/// What a read-back found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// Ours; the lease counts from here if known (nothing: adopt the version, move no deadline).
    Ours {
        /// The instant from which the lease surely runs.
        from: Option<BootTime>,
        /// Someone asked us to stop.
        revoked: bool,
    },
    /// Not ours, or no longer.
    NotOurs,
}

/// What a record means at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// Nobody holds it.
    Free,
    /// Held on paper, but for longer than it may be without a renewal.
    Expired,
    /// Held; until when unless renewed, if anyone can tell.
    Held {
        /// Nothing when only watching can tell.
        ends_in: Option<Duration>,
    },
}

/// The rules. Every method has the production rule as its body.
pub trait Rules: Clone + Debug + PartialEq + Eq + Hash {
    /// Whether a held record has expired.
    fn expired(&self, hold: &Hold, view: &View<'_>) -> bool {
        let same_instance = view.record.is_some_and(|r| r.instance == view.instance);
        match view.age {
            Some(age) if same_instance => age >= hold.ttl.saturating_add(view.resolution),
            // An instance that may have lost writes has no say about ages.
            _ => view.watched >= hold.ttl,
        }
    }

    /// What a record means at this moment.
    fn standing(&self, record: &LeaseRecord, view: &View<'_>) -> LeaseStanding {
        match &record.hold {
            None => LeaseStanding::Free,
            Some(hold) if self.expired(hold, view) => LeaseStanding::Expired,
            Some(hold) => {
                let age = view.age.filter(|_| record.instance == view.instance);
                let end = hold.ttl.saturating_add(view.resolution);
                LeaseStanding::Held { ends_in: age.map(|age| end.saturating_sub(age)) }
            }
        }
    }

    /// Whether the claim may be granted, and what to write.
    fn acquire(&self, view: &View<'_>, claim: &Claim) -> ClaimDecision {
        if let Some(refusal) = view.seen.and_then(|seen| rewound(seen, view.record)) {
            return ClaimDecision::Refuse(refusal);
        }
        let Some(record) = view.record else {
            let epoch = Epoch::first(claim.epoch);
            return ClaimDecision::Take(granted(claim, epoch, Token::FIRST, view.instance));
        };
        // Whoever asks here has seen that its own claims came to nothing. A grant has one token.
        if record.held_by(claim.grant) {
            return ClaimDecision::Refuse(Refusal::Returned { token: record.token });
        }
        if let LeaseStanding::Held { ends_in } = self.standing(record, view)
            && !view.holder_gone
        {
            return ClaimDecision::Held { ends_in };
        }
        let steps = if record.instance == view.instance { 1 } else { INSTANCE_SKIP };
        match record.token.after(steps) {
            Some(token) => ClaimDecision::Take(LeaseRecord {
                past: history::inherited(record, &claim.holder.since),
                more: record.more.clone(),
                ..granted(claim, record.epoch, token, view.instance)
            }),
            None => ClaimDecision::Refuse(Refusal::Exhausted),
        }
    }

    /// The record after a renewal: only the write id is new, so only the age restarts. The instance
    /// stays that of the grant: if the store has changed since, the next grant must still skip.
    fn renew(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        LeaseRecord { write, ..record.clone() }
    }

    /// The record after a release: free, the token kept, the grant cleared, the instance as above.
    fn release(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        LeaseRecord { write, hold: None, ..record.clone() }
    }

    /// Whose the record is, and from when it counts. Any write id this process sent is ours; the
    /// deadline moves by the send time of *that* attempt. Our grant with a foreign write id (a renewal
    /// or a revocation by hand) moves no deadline: its age is the store's word, which a step back of
    /// the store's clock or a new instance makes too young, while watchers count for themselves.
    fn settle(&self, found: &LeaseRecord, grant: Grant, attempts: &[Attempt]) -> ReadBack {
        let Some(hold) = found.hold.as_ref().filter(|h| h.grant == grant) else {
            return ReadBack::NotOurs;
        };
        let from = attempts.iter().find(|a| a.write == found.write).map(|a| a.sent);
        ReadBack::Ours { from, revoked: hold.revoke }
    }

    /// The instant a confirmed write counts from.
    fn counts_from(&self, attempt: &Attempt, _replied: BootTime) -> BootTime {
        attempt.sent
    }

    /// Whether a lease may be given back while something of the job may still run.
    fn may_release(&self, tree_empty: bool) -> bool {
        tree_empty
    }
}

/// The production rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standard;

impl Rules for Standard {}

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

/// Forgets attempts on a lease that can no longer land: the version stored there is known, and a conditional write
/// lands only on the version it expects. The one that is stored is kept: it is what we count from.
pub fn prune(attempts: &mut Vec<Attempt>, at: usize, stored: Option<&Version>, write: Option<WriteId>) {
    attempts.retain(|a| a.at != at || a.expected.as_ref() == stored || Some(a.write) == write);
}
