//! A store in this process's memory, for tests and experiments.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use leasehold_core::time::BootTime;

use super::{AsStore, Backend, OpenError, Reach, Scheme};
use crate::clock::boot_time;
use crate::stores::{Cas, Clock, Examine, Failure, Listed, Store, StoreFacts, Stored, Version};

/// The URL of every memory store.
pub const MEMORY: &str = "memory:";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: str::to_owned,
    variables: &[],
    store: Some(AsStore {
        reach: Reach::Process,
        ..AsStore::new(&[Scheme { name: "memory", example: MEMORY }], |_, rest, _| match rest {
            "" => Ok(Box::new(MemoryStore::new().map_err(OpenError::Store)?)),
            _ => Err(OpenError::Url("\"memory:\" takes nothing after the colon. Leave it out.".into())),
        })
    }),
    target: None,
};

/// A map that every clone shares. Each clone is a separate [`Store`] handle.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    instance: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    records: BTreeMap<String, MemoryRecord>,
    /// The time, if a test sets it.
    manual: Option<BootTime>,
}

#[derive(Debug)]
struct MemoryRecord {
    version: Version,
    body: Vec<u8>,
    written: BootTime,
}

impl Shared {
    fn now(&self) -> BootTime {
        self.manual.unwrap_or_else(boot_time)
    }
}

impl MemoryRecord {
    fn stored(&self, now: BootTime) -> Stored {
        Stored {
            body: self.body.clone(),
            version: self.version.clone(),
            age: now.0.checked_sub(self.written.0),
        }
    }
}

impl MemoryStore {
    /// An empty map with a new identity.
    pub fn new() -> Result<Self, Failure> {
        Ok(Self { instance: format!("{:032x}", crate::random::seed()), shared: Arc::default() })
    }

    /// An empty map whose clock stands still until [`MemoryStore::set_time`].
    pub fn with_manual_clock() -> Result<Self, Failure> {
        let store = Self::new()?;
        store.set_time(BootTime::default());
        Ok(store)
    }

    /// Sets the clock of every handle. From then on it moves only by this call.
    pub fn set_time(&self, now: BootTime) {
        self.lock().manual = Some(now);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Every change under the lock is one insert or remove, so a panic leaves nothing half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait(?Send)]
impl Store for MemoryStore {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            url: MEMORY.into(),
            instance: self.instance.clone(),
            clock: Clock::BootTime,
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: true,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: false,
            durability: "Everything is lost when this process ends.",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let shared = self.lock();
        let now = shared.now();
        Ok(shared.records.get(key).map(|r| r.stored(now)))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let mut shared = self.lock();
        if shared.records.get(key).map(|r| &r.version) != expected {
            return Cas::Conflict;
        }
        let written = shared.now();
        let version = Version(write.to_string());
        let record = MemoryRecord { version: version.clone(), body: body.to_vec(), written };
        shared.records.insert(key.to_owned(), record);
        Cas::Written { version, store_time: Some(written.0) }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let shared = self.lock();
        let now = shared.now();
        // Keys with the prefix sort after the prefix, so the start is the larger of the two bounds.
        let start = if after >= prefix { Bound::Excluded(after) } else { Bound::Included(prefix) };
        let found = shared
            .records
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(key, record)| Listed { key: key.clone(), stored: Some(record.stored(now)) });
        Ok(found.collect())
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let mut shared = self.lock();
        if shared.records.get(key).map(|r| &r.version) != Some(version) {
            return Cas::Conflict;
        }
        let now = shared.now();
        shared.records.remove(key);
        Cas::Written { version: version.clone(), store_time: Some(now.0) }
    }
}

#[async_trait(?Send)]
impl Examine for MemoryStore {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_gives_the_age() {
        let mut store = MemoryStore::with_manual_clock().unwrap();
        let written = pollster::block_on(store.cas("k", None, WriteId(1), b"x"));
        assert!(matches!(written, Cas::Written { .. }));
        store.set_time(BootTime(Duration::from_secs(9)));
        let age = |store: &mut MemoryStore| {
            let found = pollster::block_on(store.clone().read("k"));
            found.unwrap().unwrap().age
        };
        assert_eq!(age(&mut store), Some(Duration::from_secs(9)));
    }
}
