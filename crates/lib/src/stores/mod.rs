//! Stores: anything that can compare-and-set opaque bytes.
//!
//! A store gets keys, bodies and versions. It never sees an owner, an expiry or a token. The stores themselves are in
//! [`crate::backends`].

#[cfg(feature = "conformance")]
pub mod conformance;
mod pages;
pub mod prefixed;

pub use pages::each_stored;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
pub use leasehold_core::store::{Cas, Failure, FailureKind, Landed, Stored, Version};
use leasehold_core::timing::{StoreClock, Timing, TimingWishes};

pub use crate::backends::{OpenError, Opener, memory, open_store as open};

/// What a store declares about itself, so that timing and promises can be derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// How the store is named to people; never contains a secret.
    pub url: String,
    /// Which incarnation this is. Another one may have lost writes the last one acknowledged.
    pub instance: String,
    /// Where the age of a record comes from.
    pub clock: Clock,
    /// How coarse that age is.
    pub resolution: Duration,
    /// Largest forward step of the store's clock, plus the largest difference between any two
    /// clocks that may stamp and answer for one record (`J` in the stop rule).
    pub jump: Duration,
    /// Only processes on this machine can reach it.
    pub this_machine_only: bool,
    /// Where lock files for instant crash recovery go; none where processes of several machines meet.
    pub lock_dir: Option<PathBuf>,
    /// Two writes of one record that are closer than this may be turned away as too many.
    pub spacing: Duration,
    /// It can tell when a record changes, so that waiters need not ask again and again.
    pub pushes: bool,
    /// What survives what, in one sentence for people.
    pub durability: &'static str,
    /// What this store cannot promise here, in one sentence; for example on a network mount.
    pub caution: Option<String>,
}

impl StoreFacts {
    /// What its clock allows.
    pub fn store_clock(&self) -> StoreClock {
        StoreClock { resolution: self.resolution, jump: self.jump }
    }
}

/// Where the age of a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The boot-time clock of the one machine that can reach the store.
    BootTime,
    /// The store's server.
    Server,
    /// Nowhere: watchers wait until a record stayed unchanged for a full TTL.
    Observed,
}

/// One key found by [`Store::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// What is stored there, where one call gives it.
    pub stored: Option<Stored>,
}

/// One conditional write of [`Store::cas_many`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchWrite {
    /// Where.
    pub key: String,
    /// The version that must be there; nothing: it must be absent.
    pub expected: Option<Version>,
    /// This attempt.
    pub write: WriteId,
    /// What to store.
    pub body: Vec<u8>,
}

/// Something the doctor has to say about a store that no compare-and-set can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What was looked at, in a word or two: "durability", "eviction".
    pub about: &'static str,
    /// How bad it is.
    pub verdict: RemarkLevel,
    /// One sentence: what was found, and what it means.
    pub text: String,
}

/// How bad a [`Remark`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemarkLevel {
    /// As it should be.
    Good,
    /// Works, with less than could be had.
    Weak,
    /// A promise does not hold there.
    Unsafe,
}

/// Timing that keeps the promise on this store.
///
/// # Errors
///
/// If it cannot, or the store does not take writes that often; as a sentence with numbers.
pub fn timing(wishes: TimingWishes, store: &dyn Store) -> Result<Timing, String> {
    let facts = store.facts();
    let timing =
        Timing::new(wishes, facts.store_clock()).and_then(|timing| timing.with_spacing(facts.spacing));
    timing.map_err(|e| e.to_string())
}

/// Four verbs over opaque bytes, and a few that have working defaults.
///
/// A store is used from one thread at a time; it need not be `Sync`. Opening one reaches nothing:
/// a store behind a network connects with its first call.
#[async_trait(?Send)]
pub trait Store: Send {
    /// What this store is. Cheap; asked after every read, because an instance can change.
    fn facts(&self) -> StoreFacts;

    /// The newest body under `key`, if there is one. Linearizable: it sees every acknowledged write.
    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure>;

    /// Stores `body` under `key` if and only if the key's version is `expected` (nothing: absent).
    ///
    /// `write` is fresh for every attempt; a store that chooses its own versions uses it as the version.
    /// Never retries by itself: a hidden retry of a write that landed would report a conflict.
    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas;

    /// Keys that start with `prefix` and sort after `after`, in order, at most `limit`.
    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure>;

    /// Removes `key` if its version is `version`. For the records of items that are over: lease records
    /// are never removed.
    async fn remove(&mut self, key: &str, version: &Version) -> Cas;

    /// Many writes of different keys, each by itself as with [`Store::cas`], answered in their order.
    /// A store that can makes a handful of calls of them.
    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let mut answers = Vec::with_capacity(writes.len());
        for w in writes {
            answers.push(self.cas(&w.key, w.expected.as_ref(), w.write, &w.body).await);
        }
        answers
    }

    /// Waits, at most that long, until the key's version is another than this. True: it is, or may be.
    /// Asked only where [`StoreFacts::pushes`]; what it says is a hint and decides nothing.
    async fn wait_change(&mut self, _key: &str, _version: Option<&Version>, _at_most: Duration) -> bool {
        false
    }

    /// No call may take longer than this from now on. Stores whose calls are always short ignore it.
    fn limit_calls(&mut self, _each: Duration) {}
}

/// What only an examination asks of a store.
#[async_trait(?Send)]
pub trait Examine: Store {
    /// What the doctor should know beyond the verbs: durability, eviction, poolers, file systems.
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        Ok(Vec::new())
    }

    /// Clears away what is left of a key that was removed and whose name nobody will ever use again; for
    /// stores in which a removed key leaves a trace. Only the doctor's keys are such keys.
    async fn forget(&mut self, _key: &str) {}

    /// Keys that this handle removed and of which a trace stays all the same, because it may not or cannot be
    /// deleted. They are absent to every verb.
    fn traces(&self) -> Vec<String> {
        Vec::new()
    }
}
