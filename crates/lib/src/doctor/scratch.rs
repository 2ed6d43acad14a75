//! The doctor's own prefix in a live store. All records under it are removed at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use leasehold_core::time::BootTime;

use super::{Opener, messages as say, pause};
use crate::clock::boot_time;
use crate::stores::prefixed::Prefixed;
use crate::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, Store, StoreFacts, Stored, Version,
};

/// Every examination has its own prefix under this one.
const PLACE: &str = "doctor/";
/// Records older than this were left by a doctor that was killed.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// Longest time for removing the records.
const SWEEP: Duration = Duration::from_secs(5);
/// How many handles remove records at once.
const SWEEPERS: usize = 8;
/// How many handles are opened at once.
const FEW: usize = 8;

/// One prefix with a random name, and the handles that were opened on it.
#[derive(Clone)]
pub(super) struct Scratch(Arc<Shared>);

struct Shared {
    open: Opener,
    prefix: String,
    /// If set, no call is made but those that remove records.
    stop: Arc<AtomicBool>,
    /// Unused handles. They are kept because a connection costs time.
    idle: Mutex<Vec<Box<dyn Examine>>>,
    /// Every key that may have been written, and the time of its last write.
    written: Mutex<BTreeMap<String, BootTime>>,
    limit: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no half change inside.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scratch {
    /// A new prefix; nothing is opened yet. No call takes longer than `limit`.
    pub(super) fn new(open: Opener, stop: Arc<AtomicBool>, limit: Duration) -> Self {
        let prefix = format!("{PLACE}{:016x}/", crate::random::seed() as u64);
        let (idle, written) = Default::default();
        Self(Arc::new(Shared { open, prefix, stop, idle, written, limit }))
    }

    /// A handle on `part` of the prefix: an unused one, or a new one.
    pub(super) fn handle(&self, part: &str) -> Box<dyn Examine> {
        let idle = lock(&self.0.idle).pop();
        match idle.map_or_else(|| self.opened(), Ok) {
            Ok(store) => {
                Box::new(ScratchPart { scratch: self.clone(), part: format!("{part}/"), store: Some(store) })
            }
            Err(failure) => Box::new(Shut(failure)),
        }
    }

    fn opened(&self) -> Result<Box<dyn Examine>, Failure> {
        Ok(self.within((self.0.open)()?, ""))
    }

    /// A store that shows only the keys under this part of the prefix.
    pub(super) fn within(&self, mut store: Box<dyn Examine>, part: &str) -> Box<dyn Examine> {
        store.limit_calls(self.0.limit);
        Box::new(Prefixed::new(store, format!("{}{part}", self.0.prefix)))
    }

    /// Adds a handle on the same store to the unused ones.
    pub(super) fn adopt(&self, store: Box<dyn Examine>) {
        lock(&self.0.idle).push(self.within(store, ""));
    }

    fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst)
    }

    fn interrupted(&self) -> Option<Failure> {
        self.stopped().then(|| Failure::new(FailureKind::Unreachable, say::interrupted()))
    }

    /// Notes a write before it is sent; waits first if the store limits writes of one key.
    fn note(&self, key: &str, spacing: Duration) {
        let last = lock(&self.0.written).get(key).copied();
        if let Some(last) = last.filter(|_| !spacing.is_zero()) {
            self.pause(last.plus(spacing).since(boot_time()));
        }
        lock(&self.0.written).insert(key.into(), boot_time());
    }

    /// Waits, unless stopped.
    pub(super) fn pause(&self, time: Duration) {
        pause(time, &self.0.stop);
    }

    /// Opens `count` handles, a few at a time and at most for `patience`. Keeps those that the store answered; gives
    /// their number, and the first failure.
    pub(super) fn crowd(&self, count: usize, patience: Duration) -> (usize, Option<Failure>) {
        let until = boot_time().plus(patience);
        let mut kept = std::mem::take(&mut *lock(&self.0.idle));
        let mut refused = None;
        while kept.len() < count && refused.is_none() && (kept.len() < FEW || boot_time() < until) {
            let wave: Vec<_> = (kept.len()..count).take(FEW).map(|_| self.opened()).collect();
            let answers = thread::scope(|scope| {
                let threads: Vec<_> =
                    wave.into_iter().map(|opened| scope.spawn(|| answers(opened))).collect();
                let panicked = || Err(super::unusable(say::thread_panicked()));
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>()
            });
            for answer in answers {
                match answer {
                    Ok(store) => kept.push(store),
                    Err(failure) => refused = Some(failure),
                }
            }
        }
        let accepted = kept.len().min(count);
        *lock(&self.0.idle) = kept;
        (accepted, refused)
    }

    /// Removes all records that were written here; gives the keys that are still there.
    pub(super) fn sweep(&self) -> Vec<String> {
        if lock(&self.0.written).is_empty() {
            return Vec::new();
        }
        let until = boot_time().plus(SWEEP);
        let mut sweepers = std::mem::take(&mut *lock(&self.0.idle));
        let mut traces: BTreeSet<String> =
            sweepers.drain(SWEEPERS.min(sweepers.len())..).flat_map(|spare| spare.traces()).collect();
        if sweepers.is_empty() {
            sweepers.extend(self.opened());
        }
        let written: BTreeSet<String> = lock(&self.0.written).keys().cloned().collect();
        // A store that does not answer is asked only once.
        let found = sweepers.first_mut().and_then(|first| listed(first.as_mut()).ok());
        let Some(mut keys) = found else {
            return written.into_iter().map(|key| format!("{}{key}", self.0.prefix)).collect();
        };
        let known: BTreeSet<String> = keys.iter().map(|l| l.key.clone()).collect();
        keys.extend(written.difference(&known).map(|key| Listed { key: key.clone(), stored: None }));
        let share = keys.len().div_ceil(sweepers.len()).max(1);
        let mut left: Vec<String> = thread::scope(|scope| {
            let work = keys.chunks(share).zip(&mut sweepers);
            let threads: Vec<_> = work
                .map(|(keys, sweeper)| scope.spawn(move || swept(sweeper.as_mut(), keys, until)))
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
        });
        // Writes that landed late.
        if let Some(sweeper) = sweepers.first_mut() {
            let late = listed(sweeper.as_mut()).unwrap_or_default();
            left.retain(|key| !late.iter().any(|l| l.key == *key));
            left.extend(swept(sweeper.as_mut(), &late, until));
        }
        traces.extend(sweepers.iter().flat_map(|sweeper| sweeper.traces()));
        traces.extend(left.into_iter().map(|key| format!("{}{key}", self.0.prefix)));
        traces.into_iter().collect()
    }

    /// Removes records that a killed doctor left long ago. Best effort.
    pub(super) fn sweep_forgotten(&self) {
        let Ok(store) = (self.0.open)() else { return };
        let mut store: Box<dyn Examine> = Box::new(Prefixed::new(store, PLACE));
        store.limit_calls(self.0.limit);
        let age = |l: &Listed| l.stored.as_ref().and_then(|stored| stored.age);
        let mut old = listed(store.as_mut()).unwrap_or_default();
        old.retain(|l| age(l).is_some_and(|age| age > FORGOTTEN));
        swept(store.as_mut(), &old, boot_time().plus(SWEEP));
    }
}

/// The store, if it answers.
fn answers(opened: Result<Box<dyn Examine>, Failure>) -> Result<Box<dyn Examine>, Failure> {
    let mut store = opened?;
    pollster::block_on(store.read("warm-up"))?;
    Ok(store)
}

fn listed(store: &mut dyn Store) -> Result<Vec<Listed>, Failure> {
    pollster::block_on(store.list("", "", 1000))
}

/// Removes all records that this handle sees. Best effort.
pub(super) fn clear(store: &mut dyn Examine) {
    let keys = listed(store).unwrap_or_default();
    swept(store, &keys, boot_time().plus(SWEEP));
}

/// Removes these keys; gives those that may still be there.
fn swept(store: &mut dyn Examine, keys: &[Listed], until: BootTime) -> Vec<String> {
    let mut left = Vec::new();
    for Listed { key, stored } in keys {
        let mut version = stored.as_ref().map(|stored| stored.version.clone());
        let mut gone = false;
        for _ in 0..4 {
            if boot_time() >= until {
                break;
            }
            if let Some(version) = &version {
                pollster::block_on(store.remove(key, version));
            }
            match pollster::block_on(store.read(key)) {
                Ok(None) => {
                    gone = true;
                    break;
                }
                Ok(Some(stored)) => version = Some(stored.version),
                Err(_) => {}
            }
        }
        match gone {
            true => pollster::block_on(store.forget(key)),
            false => left.push(key.clone()),
        }
    }
    left
}

/// A handle on a part of the prefix. It goes back to the unused ones when it is dropped.
struct ScratchPart {
    scratch: Scratch,
    part: String,
    /// Nothing only while it is dropped.
    store: Option<Box<dyn Examine>>,
}

impl ScratchPart {
    fn inner(&mut self) -> Result<&mut Box<dyn Examine>, Failure> {
        let refuse = self.scratch.interrupted();
        let gone = || Failure::new(FailureKind::Unreachable, "the handle is gone");
        refuse.map_or_else(|| self.store.as_mut().ok_or_else(gone), Err)
    }
}

impl Drop for ScratchPart {
    fn drop(&mut self) {
        lock(&self.scratch.0.idle).extend(self.store.take());
    }
}

#[async_trait(?Send)]
impl Store for ScratchPart {
    fn facts(&self) -> StoreFacts {
        self.store.as_ref().map_or_else(no_facts, |store| store.facts())
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let key = format!("{}{key}", self.part);
        let asked = boot_time();
        match self.inner()?.read(&key).await {
            // The server may have closed an idle connection, so the read is made again. But not if it reached the
            // time limit: the second would too.
            Err(failure)
                if failure.kind == FailureKind::Unreachable
                    && boot_time().since(asked) < self.scratch.0.limit =>
            {
                self.inner()?.read(&key).await
            }
            answer => answer,
        }
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let key = format!("{}{key}", self.part);
        self.scratch.note(&key, self.facts().spacing);
        match self.inner() {
            Ok(store) => store.cas(&key, expected, write, body).await,
            Err(failure) => Cas::Unknown(failure),
        }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let (prefix, after) = (format!("{}{prefix}", self.part), format!("{}{after}", self.part));
        let part = self.part.clone();
        let mut found = self.inner()?.list(&prefix, &after, limit).await?;
        for listed in &mut found {
            listed.key = listed.key.strip_prefix(&part).unwrap_or(&listed.key).to_owned();
        }
        Ok(found)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let key = format!("{}{key}", self.part);
        match self.inner() {
            Ok(store) => store.remove(&key, version).await,
            Err(failure) => Cas::Unknown(failure),
        }
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        let key = format!("{}{key}", self.part);
        match self.inner() {
            Ok(store) => store.wait_change(&key, version, at_most).await,
            Err(_) => false,
        }
    }
}

#[async_trait(?Send)]
impl Examine for ScratchPart {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.inner()?.examine().await
    }
}

/// A store that could not be opened.
struct Shut(Failure);

#[async_trait(?Send)]
impl Store for Shut {
    fn facts(&self) -> StoreFacts {
        no_facts()
    }

    async fn read(&mut self, _: &str) -> Result<Option<Stored>, Failure> {
        Err(self.0.clone())
    }

    async fn cas(&mut self, _: &str, _: Option<&Version>, _: WriteId, _: &[u8]) -> Cas {
        Cas::Unknown(self.0.clone())
    }

    async fn list(&mut self, _: &str, _: &str, _: usize) -> Result<Vec<Listed>, Failure> {
        Err(self.0.clone())
    }

    async fn remove(&mut self, _: &str, _: &Version) -> Cas {
        Cas::Unknown(self.0.clone())
    }
}

#[async_trait(?Send)]
impl Examine for Shut {}

fn no_facts() -> StoreFacts {
    StoreFacts {
        url: String::new(),
        instance: String::new(),
        clock: Clock::Observed,
        resolution: Duration::ZERO,
        jump: Duration::ZERO,
        this_machine_only: false,
        lock_dir: None,
        spacing: Duration::ZERO,
        pushes: false,
        durability: "",
        caution: None,
    }
}
