//! A gate: a command starts only while the run's token is the newest.
//!
//! Nothing checks the effects of the command, so the class is always [`Class::Gate`]. The promise is that no
//! command starts after a later run has sealed the gate.
//!
//! `gate:NAME` is a record in the lease's own store ([`StoreGate`]), for all machines that use that store.
//! `gate:/PATH` is a fence and a lock file in a directory ([`GateTarget`]), for this machine. There the next start
//! also waits for processes of the command that still have the lock open.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::fence_record::FenceRecord;
use leasehold_core::ids::WriteId;
use leasehold_core::name::Name;
use leasehold_core::store::{Cas, Failure, FailureKind, Version};
use leasehold_core::time::BootTime;
use pollster::block_on;

use super::{SCHEME, url};
use crate::backends::Opener;
use crate::backends::file::{CriticalSection, DirFence, FileKind, LockTarget, StagedPayload};
use crate::clock::boot_time;
use crate::random;
use crate::stores::Store;
use crate::targets::cas_fence::{self, CasFence, Exam, Swap};
use crate::targets::{Class, Content, Refused, RefusedAction, Sealed, Target, TargetError, Written};

/// How long a start waits for the lock, which a running command holds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one call to the store may take.
const EACH: Duration = Duration::from_secs(10);
/// How long all calls of one verb may take by default.
pub const ALL: Duration = Duration::from_secs(30);
/// The digest of a start in the fence.
const ENTERED: &str = "entered";
/// The error for a write to a gate, or a read.
pub const HOLDS_NOTHING: &str =
    "a gate holds nothing; run a command under it: leasehold gate NAME -- COMMAND";

/// The prefix of the records of gates.
pub const PREFIX: &str = "gates/";

/// The gates in one store. They share a separate handle, which the first call opens, so that a gate that waits
/// for the store does not delay renewals.
#[derive(Clone)]
pub struct Gates {
    handle: Arc<Mutex<GateHandle>>,
}

struct GateHandle {
    open: Opener,
    store: Option<Box<dyn Store>>,
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gates")
    }
}

impl Gates {
    /// The gates in the store that `open` opens. Contacts nothing yet.
    pub fn new(open: Opener) -> Self {
        Self { handle: Arc::new(Mutex::new(GateHandle { open, store: None })) }
    }

    /// The gate of this name.
    pub fn gate(&self, name: &Name) -> StoreGate {
        let (key, shown) = (format!("{PREFIX}{name}"), url(name.as_str()));
        StoreGate { gates: self.clone(), key, shown, until: BootTime::default(), doubt: None }
    }
}

/// A gate that is a record in a store.
#[derive(Debug)]
pub struct StoreGate {
    gates: Gates,
    key: String,
    shown: String,
    /// The end of the time for the calls of this verb.
    until: BootTime,
    /// Why it is unknown whether the last change was made, with the kind of failure.
    doubt: Option<Failure>,
}

impl StoreGate {
    /// Enters the gate, if our token is the newest. It changes the fence, so that this start comes before the seal of
    /// any later run. Tries for at most `patience`.
    pub fn enter(&mut self, bearer: &Bearer, patience: Duration) -> Result<Written, TargetError> {
        self.begin(patience);
        cas_fence::write(self, bearer, None, ENTERED, &()).map_err(|error| self.not_entered(error))
    }

    /// The same for a lease that was taken by hand. No run has sealed the gate for it, so this does.
    pub fn enter_by_hand(&mut self, bearer: &Bearer) -> Result<Written, TargetError> {
        self.begin(ALL);
        cas_fence::seal(self, bearer, FenceMode::Enforce, Exam::Spared)
            .map_err(|error| self.not_entered(error))?;
        self.enter(bearer, ALL)
    }

    /// The error of a start. No command was started, so it does not matter whether the fence counts the start.
    fn not_entered(&self, error: TargetError) -> TargetError {
        match error {
            TargetError::InDoubt { why, .. } => {
                self.remote("enter", self.doubt.clone().unwrap_or_else(|| unreachable(&why)))
            }
            TargetError::Remote { failure, .. } => self.remote("enter", failure),
            other => entering(other),
        }
    }

    fn begin(&mut self, patience: Duration) {
        self.until = boot_time().plus(patience);
    }

    fn call<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut dyn Store, &str) -> T,
    ) -> Result<T, TargetError> {
        let mut handle = self.gates.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // We may have waited here for other gates.
        let left = self.until.since(boot_time());
        if left.is_zero() {
            return Err(self.remote(doing, unreachable("the store did not answer in time")));
        }
        let store = match handle.store.take() {
            Some(store) => store,
            None => (handle.open)().map_err(|failure| self.remote(doing, failure))?,
        };
        let store = handle.store.insert(store);
        store.limit_calls(left.min(EACH));
        Ok(work(store.as_mut(), &self.key))
    }

    fn remote(&self, doing: &'static str, failure: Failure) -> TargetError {
        TargetError::Remote { target: self.shown.clone(), doing, failure }
    }
}

fn unreachable(message: &str) -> Failure {
    Failure::new(FailureKind::Unreachable, message)
}

impl CasFence for StoreGate {
    type Content = ();

    fn shown(&self) -> &str {
        &self.shown
    }

    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let stored = self.call("read", |store, key| block_on(store.read(key)))?;
        let Some(stored) = stored.map_err(|failure| self.remote("read", failure))? else { return Ok(None) };
        let record = FenceRecord::decode(&stored.body).map_err(|bad| TargetError::BadFence {
            target: self.shown.clone(),
            fence: format!("the record {} in its store", self.key),
            why: bad.to_string(),
        })?;
        Ok(Some((record, stored.version)))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        _: Option<&()>,
    ) -> Result<Swap, TargetError> {
        let (write, body) = (WriteId(random::seed()), record.encode());
        let cas = self.call("change", |store, key| block_on(store.cas(key, at, write, &body)))?;
        if let Cas::Unknown(failure) = &cas {
            self.doubt = Some(failure.clone());
        }
        Ok(cas.into())
    }

    /// The store of a lease is checked before its first use.
    fn examine(&mut self) -> Result<Swap, TargetError> {
        Ok(Swap::Done)
    }
}

impl Target for StoreGate {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        Class::Gate
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.begin(ALL);
        cas_fence::seal(self, bearer, mode, Exam::Spared)
    }

    fn write(&mut self, _: &Bearer, _: Option<u64>, _: Content<'_>) -> Result<Written, TargetError> {
        Err(TargetError::Io { target: self.shown.clone(), doing: "write", source: holds_nothing() })
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.begin(ALL);
        Ok(self.load()?.map(|(record, _)| record).filter(|record| !record.forgotten))
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.begin(ALL);
        cas_fence::set_mode(self, mode)
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        self.begin(ALL);
        cas_fence::forget(self)
    }
}

/// A gate at a path.
pub type GateTarget = LockTarget<NoContent>;

/// A gate has only a fence and a lock, and no artefact.
#[derive(Debug)]
pub struct NoContent;

impl GateTarget {
    /// The gate whose fence and lock are beside `path`. Its URL shows the whole path, which means the same in every
    /// directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        let path = path.as_ref();
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Ok(Self::at(&whole, NoContent)?.with_patience(PATIENCE))
    }

    /// Enters the gate. The fence is changed before the command starts.
    pub fn enter(&mut self, bearer: &Bearer) -> Result<(CriticalSection, Written), TargetError> {
        self.note(bearer, ENTERED).map_err(entering)
    }
}

/// The same error, as the refusal of a start.
fn entering(error: TargetError) -> TargetError {
    match error {
        TargetError::Refused(refused) => {
            TargetError::Refused(Box::new(Refused { attempt: RefusedAction::Enter, ..*refused }))
        }
        other => other,
    }
}

impl FileKind for NoContent {
    const SCHEME: &'static str = SCHEME;

    fn class(&self, _: bool) -> Class {
        Class::Gate
    }

    fn fit(&self, _: &DirFence) -> io::Result<Result<(), (String, String)>> {
        Ok(Ok(()))
    }

    fn stage<'a>(&self, _: &'a DirFence, _: Content<'_>) -> io::Result<StagedPayload<'a>> {
        Err(holds_nothing())
    }

    fn place(&self, _: &DirFence, _: &CriticalSection, _: &str, _: &Fence) -> io::Result<()> {
        Ok(())
    }

    fn waiting(&self, _: &DirFence, _: &str, _: &Fence) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn present(&self, _: &DirFence, _: &Fence) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn fingerprint(&self, _: &DirFence) -> Option<String> {
        None
    }

    fn sweep(&self, _: &DirFence, _: &Fence) {}
}

fn holds_nothing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, HOLDS_NOTHING)
}

#[cfg(test)]
mod tests;
