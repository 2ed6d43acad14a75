//! The store behind the server: one thread does one call after the other.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use leasehold::core::forgotten::FORGOTTEN_PREFIX;
use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::session::LEASE_PREFIX;
use leasehold::core::timing::StoreClock;
use leasehold::core::write_policy::{self, Illegal, RESOLUTION, RemovalOffer, WriteOffer};
use leasehold::forget;
use leasehold::stores::{Cas, Clock, Failure, Listed, Store, StoreFacts, Stored, Version};
use pollster::block_on;
use tokio::sync::oneshot;

use crate::exit::Failed;
use crate::messages::serve as say;

/// How many requests may wait for the store. More are refused.
const QUEUE: usize = 256;
/// How many of the last writes are remembered: a proxy may send one again after it was replaced.
const LANDED: usize = 1_000;

/// A call of the store.
pub enum StoreCall {
    Read { key: String },
    Write { key: String, expected: Option<Version>, write: WriteId, body: Vec<u8>, admin: bool },
    Remove { key: String, version: Version, admin: bool },
    List { prefix: String, after: String, limit: usize },
}

/// Its result.
pub enum StoreResult {
    Found(Option<Stored>),
    Written { version: Version, time: Option<Duration> },
    Removed,
    Conflict,
    Illegal(Illegal),
    Listed(Vec<Listed>),
    Failed(Failure),
}

/// A result, and the instance of the store that gave it.
pub struct StoreReply {
    pub instance: String,
    pub result: StoreResult,
}

/// A call, and where its reply goes.
pub struct StoreRequest {
    pub call: StoreCall,
    pub answer: oneshot::Sender<StoreReply>,
}

/// The store and its rules.
pub struct StoreWorker {
    store: Box<dyn Store>,
    /// The last writes that were made, newest last.
    landed: VecDeque<(String, WriteId, Version)>,
}

impl StoreWorker {
    pub fn new(store: Box<dyn Store>) -> Self {
        Self { store, landed: VecDeque::new() }
    }

    /// Whether the store answers. From then on its instance is known.
    pub fn check(&mut self) -> Result<(), Failure> {
        block_on(self.store.read("probe/serve")).map(drop)
    }

    /// The store, for others.
    pub fn into_store(self) -> Box<dyn Store> {
        self.store
    }

    /// Starts the thread.
    pub fn start(mut self) -> Result<SyncSender<StoreRequest>, Failed> {
        let (sender, jobs): (SyncSender<StoreRequest>, Receiver<StoreRequest>) = sync_channel(QUEUE);
        let work = move || {
            for job in jobs {
                // Nobody waits for the reply any more, so the call need not be made.
                if !job.answer.is_closed() {
                    let result = self.perform(job.call);
                    let instance = self.store.facts().instance;
                    drop(job.answer.send(StoreReply { instance, result }));
                }
            }
        };
        let started = std::thread::Builder::new().name("store".into()).spawn(work);
        started.map(|_| sender).map_err(say::no_thread)
    }

    fn perform(&mut self, call: StoreCall) -> StoreResult {
        match call {
            StoreCall::Read { key } => self.read(&key).map_or_else(StoreResult::Failed, StoreResult::Found),
            StoreCall::Write { key, expected, write, body, admin } => {
                self.write(&key, expected.as_ref(), write, &body, admin)
            }
            StoreCall::Remove { key, version, admin } => {
                let refused = match key.strip_prefix(LEASE_PREFIX).map(Name::new) {
                    Some(Ok(lease)) => self.lease_stays(&key, &lease, &version, admin),
                    _ => None,
                };
                refused.unwrap_or_else(|| match block_on(self.store.remove(&key, &version)) {
                    Cas::Written { .. } => StoreResult::Removed,
                    Cas::Conflict => StoreResult::Conflict,
                    Cas::Unknown(failure) => StoreResult::Failed(failure),
                })
            }
            StoreCall::List { prefix, after, limit } => {
                let found = block_on(self.store.list(&prefix, &after, limit));
                let facts = self.store.facts();
                let aged = |l: Listed| Listed { stored: l.stored.map(|s| reported(&facts, s)), ..l };
                found.map_or_else(StoreResult::Failed, |all| {
                    StoreResult::Listed(all.into_iter().map(aged).collect())
                })
            }
        }
    }

    fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let found = block_on(self.store.read(key))?;
        let facts = self.store.facts();
        Ok(found.map(|stored| reported(&facts, stored)))
    }

    /// Why a lease is not removed; nothing: it may be.
    fn lease_stays(
        &mut self,
        key: &str,
        lease: &Name,
        version: &Version,
        admin: bool,
    ) -> Option<StoreResult> {
        let (old, forgotten) =
            match self.read(key).and_then(|old| Ok((old, forget::records(self.store.as_mut(), lease)?))) {
                Ok((Some(old), forgotten)) if old.version == *version => (old, forgotten),
                Ok(_) => return Some(StoreResult::Conflict),
                Err(failure) => return Some(StoreResult::Failed(failure)),
            };
        let instance = self.store.facts().instance;
        let offer = RemovalOffer {
            key,
            old: &old.body,
            age: old.age,
            resolution: RESOLUTION,
            instance: &instance,
            admin,
            forgotten: &forgotten,
        };
        write_policy::may_remove(&offer).err().map(StoreResult::Illegal)
    }

    fn write(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        write: WriteId,
        body: &[u8],
        admin: bool,
    ) -> StoreResult {
        if key.starts_with(LEASE_PREFIX) || key.starts_with(FORGOTTEN_PREFIX) {
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

    /// The key has another version: a conflict, unless a proxy sent this write twice and the first one was made. This is
    /// the read-back of `core::update` once more, by hand: the server has only the write ids of its clients, and a write
    /// that was made may be replaced by now, so it looks into its own list.
    fn conflict(&self, key: &str, write: WriteId) -> StoreResult {
        let mut landed = self.landed.iter().rev();
        match landed.find(|(at, id, _)| *id == write && at == key) {
            Some((_, _, version)) => StoreResult::Written { version: version.clone(), time: None },
            None => StoreResult::Conflict,
        }
    }
}

/// The record as clients of the protocol get it, with an age that they can use.
fn reported(facts: &StoreFacts, stored: Stored) -> Stored {
    // The longest age says that this machine was rebooted, and so its holders ended. Clients are on other machines.
    let known = stored.age.filter(|age| facts.clock != Clock::BootTime || *age < Duration::MAX);
    let clock = StoreClock { resolution: facts.resolution, jump: facts.jump };
    Stored { age: known.map(|age| write_policy::reported_age(age, clock)), ..stored }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backends::memory::MemoryStore;

    #[test]
    fn a_reboot_here_says_nothing_about_holders_elsewhere() {
        let facts = MemoryStore::new().unwrap().facts();
        let facts =
            StoreFacts { clock: Clock::BootTime, resolution: Duration::ZERO, jump: Duration::ZERO, ..facts };
        let aged = |age| {
            reported(&facts, Stored { body: Vec::new(), version: Version("v".into()), age: Some(age) }).age
        };
        assert_eq!(aged(Duration::MAX), None);
        assert_eq!(aged(Duration::from_secs(9)), Some(Duration::from_secs(9)));
    }
}
