//! Stores: places that can compare-and-set opaque bytes.
//!
//! A store gets keys, bodies and versions. It does not know holders, expiry or tokens. The stores themselves are in
//! [`crate::backends`].

#[cfg(feature = "doctor")]
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

/// The facts that a store declares about itself. Timing and promises follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// The URL as it is shown; it contains no secret.
    pub url: String,
    /// Names this instance. Another one may have lost writes that this one acknowledged.
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
    /// The directory of the lock files that allow a takeover right after a crash; none where machines share the store.
    pub lock_dir: Option<PathBuf>,
    /// The least time between two writes of one record. The store may refuse one that comes earlier.
    pub spacing: Duration,
    /// It reports changes of a record, so that waiters need not ask again and again.
    pub pushes: bool,
    /// Which failures acknowledged writes survive, in one sentence for people.
    pub durability: &'static str,
    /// A promise that this store cannot make here, in one sentence; for example on a network mount.
    pub caution: Option<String>,
}

impl StoreFacts {
    /// The properties of its clock that timing needs.
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
    /// There is none: watchers wait until a record stayed unchanged for a full TTL.
    Observed,
}

/// One key found by [`Store::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// The record, if the listing contains records.
    pub stored: Option<Stored>,
}

/// One conditional write of [`Store::cas_many`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchWrite {
    /// The key.
    pub key: String,
    /// The version that must be there; nothing: the key must be absent.
    pub expected: Option<Version>,
    /// The id of this attempt.
    pub write: WriteId,
    /// The content.
    pub body: Vec<u8>,
}

/// A remark of a store about itself, for the doctor. It is about something that no compare-and-set can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The subject, in a word: "durability", "eviction".
    pub about: &'static str,
    /// The result.
    pub verdict: RemarkLevel,
    /// One sentence: the finding, and what it means.
    pub text: String,
}

/// How bad a [`Remark`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemarkLevel {
    /// As it should be.
    Good,
    /// It works, with less than it could have.
    Weak,
    /// A promise does not hold there.
    Unsafe,
}

/// Checks timing for this store.
///
/// # Errors
///
/// If it cannot keep the promise, or the store does not take writes that often; as a sentence with numbers.
pub fn timing(wishes: TimingWishes, store: &dyn Store) -> Result<Timing, String> {
    let facts = store.facts();
    let timing =
        Timing::new(wishes, facts.store_clock()).and_then(|timing| timing.with_spacing(facts.spacing));
    timing.map_err(|e| e.to_string())
}

/// Five calls that every store has, and a few with working defaults.
///
/// A store is used from one thread at a time; it need not be `Sync`. A store behind a network connects with its
/// first call, not when it is opened.
#[async_trait(?Send)]
pub trait Store: Send {
    /// The facts of this store. Cheap; called after every read, because the instance can change.
    fn facts(&self) -> StoreFacts;

    /// The newest body under `key`, if there is one. Linearizable: it sees every acknowledged write.
    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure>;

    /// Stores `body` under `key` if and only if the key's version is `expected` (nothing: absent).
    ///
    /// `write` is fresh for every attempt; a store that chooses its own versions uses it as the version.
    /// Never retries by itself: a hidden retry of a write that landed would report a conflict.
    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas;

    /// Keys that start with `prefix` and sort after `after`: in order, and at most `limit` of them.
    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure>;

    /// Removes `key` if its version is `version`. For records that are no longer needed. Leases only by
    /// [`crate::forget`], which says so first.
    async fn remove(&mut self, key: &str, version: &Version) -> Cas;

    /// Writes of different keys, each as with [`Store::cas`], answered in their order. A store that can sends
    /// many of them in one call.
    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let mut answers = Vec::with_capacity(writes.len());
        for w in writes {
            answers.push(self.cas(&w.key, w.expected.as_ref(), w.write, &w.body).await);
        }
        answers
    }

    /// Makes the write `first`, as [`Store::cas`] does. If it is made, creates the record `with` in the same step, unless
    /// that key exists. None: this store has no such step, and nothing was done.
    async fn cas_with(&mut self, _first: &BatchWrite, _with: &BatchWrite) -> Option<Cas> {
        None
    }

    /// Waits, at most that long, until the key's version differs from `version`. True: it differs, or may.
    /// Called only if [`StoreFacts::pushes`]. The answer is a hint and decides nothing.
    async fn wait_change(&mut self, _key: &str, _version: Option<&Version>, _at_most: Duration) -> bool {
        false
    }

    /// Limits the time of each call from now on, and gives the limit before. Stores whose calls are always short ignore it.
    fn limit_calls(&mut self, each: Duration) -> Duration {
        each
    }
}

/// Calls that only the doctor makes.
#[async_trait(?Send)]
pub trait Examine: Store {
    /// Remarks about the store's settings: durability, eviction, poolers, file systems.
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        Ok(Vec::new())
    }

    /// Deletes the trace of a removed key, for stores in which a removed key leaves one. Only for keys that are never
    /// used again, as those of the doctor.
    async fn forget(&mut self, _key: &str) {}

    /// Keys that this handle removed and whose trace could not be deleted. Every other call sees them as absent.
    fn traces(&self) -> Vec<String> {
        Vec::new()
    }
}
