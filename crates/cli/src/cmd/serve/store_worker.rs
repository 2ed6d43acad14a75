//! The store behind the server, on a thread of its own: one call after the other.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use leasehold::core::ids::WriteId;
use leasehold::core::session::LEASE_PREFIX;
use leasehold::core::write_policy::{self, Illegal, RESOLUTION, WriteOffer};
use leasehold::stores::{Cas, Clock, Failure, Listed, Store, StoreFacts, Stored, Version};
use pollster::block_on;
use tokio::sync::oneshot;

use crate::exit::{FailKind, Failed};

/// How many requests may wait for the store before others are turned away.
const QUEUE: usize = 256;
/// How many of the last writes are remembered: a proxy may send one again after it was replaced.
const LANDED: usize = 1_000;
/// What clients of the protocol reckon with: the jump of a store's clock.
const JUMP: Duration = Duration::from_secs(1);

/// What is asked of the store.
pub enum StoreCall {
    Read { key: String },
    Write { key: String, expected: Option<Version>, write: WriteId, body: Vec<u8>, admin: bool },
    Remove { key: String, version: Version },
    List { prefix: String, after: String, limit: usize },
}

/// What it says.
pub enum StoreResult {
    Found(Option<Stored>),
    Written { version: Version, time: Option<Duration> },
    Removed,
    Conflict,
    Illegal(Illegal),
    Listed(Vec<Listed>),
    Failed(Failure),
}

/// An answer, and who gave it.
pub struct StoreReply {
    pub instance: String,
    pub told: StoreResult,
}

/// A request on its way.
pub struct StoreRequest {
    pub call: StoreCall,
    pub answer: oneshot::Sender<StoreReply>,
}

/// The store and its rules.
pub struct StoreWorker {
    store: Box<dyn Store>,
    /// What landed, newest last.
    landed: VecDeque<(String, WriteId, Version)>,
}

impl StoreWorker {
    pub fn new(store: Box<dyn Store>) -> Self {
        Self { store, landed: VecDeque::new() }
    }

    /// Whether there is a store at all; from here on it is known which instance.
    pub fn check(&mut self) -> Result<(), Failure> {
        block_on(self.store.read("probe/serve")).map(drop)
    }

    /// Begins to work.
    pub fn start(mut self) -> Result<SyncSender<StoreRequest>, Failed> {
        let (sender, jobs): (SyncSender<StoreRequest>, Receiver<StoreRequest>) = sync_channel(QUEUE);
        let work = move || {
            for job in jobs {
                // Nobody waits any more: a read is not needed, a write was promised to nobody.
                if !job.answer.is_closed() {
                    let told = self.perform(job.call);
                    let instance = self.store.facts().instance;
                    drop(job.answer.send(StoreReply { instance, told }));
                }
            }
        };
        let started = std::thread::Builder::new().name("store".into()).spawn(work);
        started.map(|_| sender).map_err(|e| {
            Failed::new(
                FailKind::Unreachable,
                "serve",
                format!("cannot start a thread: {e}. Nothing was started"),
            )
        })
    }

    fn perform(&mut self, call: StoreCall) -> StoreResult {
        match call {
            StoreCall::Read { key } => self.read(&key).map_or_else(StoreResult::Failed, StoreResult::Found),
            StoreCall::Write { key, expected, write, body, admin } => {
                self.write(&key, expected.as_ref(), write, &body, admin)
            }
            StoreCall::Remove { key, version } => match block_on(self.store.remove(&key, &version)) {
                Cas::Written { .. } => StoreResult::Removed,
                Cas::Conflict => StoreResult::Conflict,
                Cas::Unknown(failure) => StoreResult::Failed(failure),
            },
            StoreCall::List { prefix, after, limit } => {
                let found = block_on(self.store.list(&prefix, &after, limit));
                let facts = self.store.facts();
                let aged = |l: Listed| Listed { stored: l.stored.map(|s| told(&facts, s)), ..l };
                found.map_or_else(StoreResult::Failed, |all| {
                    StoreResult::Listed(all.into_iter().map(aged).collect())
                })
            }
        }
    }

    fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let found = block_on(self.store.read(key))?;
        let facts = self.store.facts();
        Ok(found.map(|stored| told(&facts, stored)))
    }

    fn write(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        write: WriteId,
        body: &[u8],
        admin: bool,
    ) -> StoreResult {
        if key.starts_with(LEASE_PREFIX) {
            let old = match self.read(key) {
                Ok(old) => old,
                Err(failure) => return StoreResult::Failed(failure),
            };
            if old.as_ref().map(|old| &old.version) != expected {
                return self.conflict(key, write);
            }
            let instance = self.store.facts().instance;
            let offer = WriteOffer {
                key,
                old: old.as_ref().map(|old| old.body.as_slice()),
                age: old.as_ref().and_then(|old| old.age),
                resolution: RESOLUTION,
                instance: &instance,
                admin,
                write,
                new: body,
            };
            match write_policy::legal(&offer) {
                Err(why) if why.is_conflict() => return StoreResult::Conflict,
                Err(why) => return StoreResult::Illegal(why),
                // On that very version, or not at all.
                Ok(_) => {}
            }
        }
        match block_on(self.store.cas(key, expected, write, body)) {
            Cas::Written { version, store_time } => {
                self.landed.push_back((key.into(), write, version.clone()));
                if self.landed.len() > LANDED {
                    self.landed.pop_front();
                }
                StoreResult::Written { version, time: store_time }
            }
            Cas::Unknown(failure) => StoreResult::Failed(failure),
            Cas::Conflict => self.conflict(key, write),
        }
    }

    /// Another version was met: unless this very attempt landed before, and was sent twice on the way.
    fn conflict(&self, key: &str, write: WriteId) -> StoreResult {
        let mut landed = self.landed.iter().rev();
        match landed.find(|(at, id, _)| *id == write && at == key) {
            Some((_, _, version)) => StoreResult::Written { version: version.clone(), time: None },
            None => StoreResult::Conflict,
        }
    }
}

/// As clients of the protocol are told: they reckon with a fine clock that jumps by [`JUMP`] at most,
/// so what a coarser one may be wrong by is taken off the age. A lease then ends later, never earlier.
fn told(facts: &StoreFacts, stored: Stored) -> Stored {
    // Another boot of this machine ended whoever held a lease *here*. Our clients are elsewhere.
    let known = stored.age.filter(|age| facts.clock != Clock::BootTime || *age < Duration::MAX);
    let off = facts.resolution + facts.jump.saturating_sub(JUMP);
    Stored { age: known.map(|age| age.saturating_sub(off)), ..stored }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backends::memory::MemoryStore;

    fn aged(clock: Clock, resolution: u64, jump: u64, age: Option<Duration>) -> Option<Duration> {
        let resolution = Duration::from_millis(resolution);
        let jump = Duration::from_millis(jump);
        let facts = MemoryStore::new().unwrap().facts();
        let facts = StoreFacts { clock, resolution, jump, ..facts };
        told(&facts, Stored { body: Vec::new(), version: Version("v".into()), age }).age
    }

    #[test]
    fn a_coarse_clock_is_told_younger() {
        let s = |n| Some(Duration::from_secs(n));
        assert_eq!(aged(Clock::Server, 0, 1_000, s(90)), s(90));
        assert_eq!(aged(Clock::Server, 2_000, 3_000, s(90)), s(86));
        assert_eq!(aged(Clock::Server, 2_000, 3_000, s(1)), s(0));
        assert_eq!(aged(Clock::Server, 2_000, 3_000, None), None);
    }

    #[test]
    fn a_reboot_here_says_nothing_about_holders_elsewhere() {
        assert_eq!(aged(Clock::BootTime, 0, 0, Some(Duration::MAX)), None);
        assert_eq!(aged(Clock::BootTime, 0, 0, Some(Duration::from_secs(9))), Some(Duration::from_secs(9)));
    }
}
