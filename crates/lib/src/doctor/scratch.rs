//! A corner of a live store for the doctor alone, that is swept when it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use leasehold_core::time::BootTime;

use super::{Opener, pause};
use crate::clock::boot_time;
use crate::stores::prefixed::Prefixed;
use crate::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, Store, StoreFacts, Stored, Version,
};

/// Where every corner is.
const PLACE: &str = "doctor/";
/// What lies there longer than this was left by a doctor that was killed.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// How long sweeping may take.
const SWEEP: Duration = Duration::from_secs(5);
/// How many handles sweep at once.
const BROOMS: usize = 8;
/// How many are opened at once.
const FEW: usize = 8;

/// A corner with a name of its own, and the handles that were opened on it.
#[derive(Clone)]
pub(super) struct Scratch(Arc<Shared>);

struct Shared {
    open: Opener,
    prefix: String,
    /// No call is made any more, except to sweep.
    stop: Arc<AtomicBool>,
    /// Handles that nobody uses now: a connection is worth keeping.
    idle: Mutex<Vec<Box<dyn Examine>>>,
    /// Every key that may have been written, and when it last was.
    written: Mutex<BTreeMap<String, BootTime>>,
    limit: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scratch {
    /// A new corner; nothing is opened yet. No call in it takes longer than `limit`.
    pub(super) fn new(open: Opener, stop: Arc<AtomicBool>, limit: Duration) -> Self {
        let prefix = format!("{PLACE}{:016x}/", crate::random::seed() as u64);
        let (idle, written) = Default::default();
        Self(Arc::new(Shared { open, prefix, stop, idle, written, limit }))
    }

    /// A handle on the part of the corner that is called `part`, one that was opened before if it can be.
    pub(super) fn handle(&self, part: &str) -> Box<dyn Examine> {
        let idle = lock(&self.0.idle).pop();
        match idle.map_or_else(|| self.opened(), Ok) {
            Ok(store) => {
                Box::new(ScratchPart { corner: self.clone(), part: format!("{part}/"), store: Some(store) })
            }
            Err(failure) => Box::new(Shut(failure)),
        }
    }

    fn opened(&self) -> Result<Box<dyn Examine>, Failure> {
        Ok(self.within((self.0.open)()?, ""))
    }

    /// A store as it is seen from the part of the corner whose keys begin so.
    pub(super) fn within(&self, mut store: Box<dyn Examine>, part: &str) -> Box<dyn Examine> {
        store.limit_calls(self.0.limit);
        Box::new(Prefixed::new(store, format!("{}{part}", self.0.prefix)))
    }

    /// Another handle on the same store is used like those that were opened here.
    pub(super) fn adopt(&self, store: Box<dyn Examine>) {
        lock(&self.0.idle).push(self.within(store, ""));
    }

    fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst)
    }

    fn interrupted(&self) -> Option<Failure> {
        let message = "the examination was interrupted";
        self.stopped().then_some(Failure::new(FailureKind::Unreachable, message))
    }

    /// Notes that a write is on its way; waits first where the store wants its writes apart.
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

    /// Opens so many handles, a few at a time, for as long as `patience`, and keeps those that got an answer:
    /// how many, and why the others did not.
    pub(super) fn crowd(&self, count: usize, patience: Duration) -> (usize, Option<Failure>) {
        let until = boot_time().plus(patience);
        let mut kept = std::mem::take(&mut *lock(&self.0.idle));
        let mut refused = None;
        while kept.len() < count && refused.is_none() && (kept.len() < FEW || boot_time() < until) {
            let wave: Vec<_> = (kept.len()..count).take(FEW).map(|_| self.opened()).collect();
            let answers = thread::scope(|scope| {
                let threads: Vec<_> =
                    wave.into_iter().map(|opened| scope.spawn(|| answers(opened))).collect();
                let panicked = || Err(super::unusable("a thread of the doctor panicked".into()));
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>()
            });
            for answer in answers {
                match answer {
                    Ok(store) => kept.push(store),
                    Err(failure) => refused = Some(failure),
                }
            }
        }
        let let_in = kept.len().min(count);
        *lock(&self.0.idle) = kept;
        (let_in, refused)
    }

    /// Removes all that was written here; gives the keys that are still there.
    pub(super) fn sweep(&self) -> Vec<String> {
        if lock(&self.0.written).is_empty() {
            return Vec::new();
        }
        let until = boot_time().plus(SWEEP);
        let mut brooms = std::mem::take(&mut *lock(&self.0.idle));
        let mut traces: BTreeSet<String> =
            brooms.drain(BROOMS.min(brooms.len())..).flat_map(|spare| spare.traces()).collect();
        if brooms.is_empty() {
            brooms.extend(self.opened());
        }
        let written: BTreeSet<String> = lock(&self.0.written).keys().cloned().collect();
        // Whoever does not answer is not waited for again and again.
        let found = brooms.first_mut().and_then(|first| listed(first.as_mut()).ok());
        let Some(mut keys) = found else {
            return written.into_iter().map(|key| format!("{}{key}", self.0.prefix)).collect();
        };
        let known: BTreeSet<String> = keys.iter().map(|l| l.key.clone()).collect();
        keys.extend(written.difference(&known).map(|key| Listed { key: key.clone(), stored: None }));
        let share = keys.len().div_ceil(brooms.len()).max(1);
        let mut left: Vec<String> = thread::scope(|scope| {
            let work = keys.chunks(share).zip(&mut brooms);
            let threads: Vec<_> =
                work.map(|(keys, broom)| scope.spawn(move || swept(broom.as_mut(), keys, until))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
        });
        // What was on its way and landed in between.
        if let Some(broom) = brooms.first_mut() {
            let late = listed(broom.as_mut()).unwrap_or_default();
            left.retain(|key| !late.iter().any(|l| l.key == *key));
            left.extend(swept(broom.as_mut(), &late, until));
        }
        traces.extend(brooms.iter().flat_map(|broom| broom.traces()));
        traces.extend(left.into_iter().map(|key| format!("{}{key}", self.0.prefix)));
        traces.into_iter().collect()
    }

    /// Removes what a doctor that was killed left behind long ago. Best effort.
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

/// Removes all that this handle sees. Best effort.
pub(super) fn clear(store: &mut dyn Examine) {
    let keys = listed(store).unwrap_or_default();
    swept(store, &keys, boot_time().plus(SWEEP));
}

/// Removes these keys; gives those that are still there, as far as can be told.
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

/// A handle on a part of the corner. It goes back among the idle ones when it is dropped.
struct ScratchPart {
    corner: Scratch,
    part: String,
    /// Nothing only while it is dropped.
    store: Option<Box<dyn Examine>>,
}

impl ScratchPart {
    fn inner(&mut self) -> Result<&mut Box<dyn Examine>, Failure> {
        let refuse = self.corner.interrupted();
        let gone = || Failure::new(FailureKind::Unreachable, "the handle is gone");
        refuse.map_or_else(|| self.store.as_mut().ok_or_else(gone), Err)
    }
}

impl Drop for ScratchPart {
    fn drop(&mut self) {
        lock(&self.corner.0.idle).extend(self.store.take());
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
            // The server may have closed a connection that was idle; a read can be made again. One that was
            // waited for in vain is not worth waiting for twice.
            Err(failure)
                if failure.kind == FailureKind::Unreachable
                    && boot_time().since(asked) < self.corner.0.limit =>
            {
                self.inner()?.read(&key).await
            }
            answer => answer,
        }
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let key = format!("{}{key}", self.part);
        self.corner.note(&key, self.facts().spacing);
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
