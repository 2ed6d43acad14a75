//! A gate in a store: core's whole table, and a store whose answers are lost.

use std::collections::VecDeque;

use async_trait::async_trait;
use leasehold_core::fence::RefusalReason;
use leasehold_core::ids::{Epoch, Grant, Token};

use super::*;
use crate::backends::file::digest;
use crate::backends::gate::named;
use crate::backends::memory::MemoryStore;
use crate::backends::{is_gate, name_in_store};
use crate::stores::{Listed, StoreFacts, Stored};
use crate::targets::conformance::{OLD, TargetBench, replay, whole};

fn mail() -> Name {
    Name::new("mail").unwrap()
}

fn bearer(token: u64) -> Bearer {
    let (epoch, grant) = (Epoch::first(7), Grant(u128::from(token)));
    Bearer { lease: Name::new("site").unwrap(), epoch, token: Token::new(token).unwrap(), grant }
}

/// A gate at which each start has its own number and content, as the writes of other targets have.
#[derive(Debug)]
struct Numbered {
    gate: StoreGate,
    content: String,
}

impl Target for Numbered {
    fn shown(&self) -> &str {
        Target::shown(&self.gate)
    }
    fn class(&self) -> Class {
        self.gate.class()
    }
    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.gate.seal(bearer, mode)
    }
    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        let Content::Bytes(bytes) = content else { panic!("the suite writes bytes") };
        self.gate.begin(ALL);
        let written = cas_fence::write(&mut self.gate, bearer, seq, &digest(bytes), &())?;
        self.content = String::from_utf8(bytes.to_vec()).unwrap();
        Ok(written)
    }
    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.gate.show()
    }
    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.gate.set_mode(mode)
    }
}

struct OnMemory {
    store: MemoryStore,
    numbered: Numbered,
}

impl TargetBench for OnMemory {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        let key = &self.numbered.gate.key;
        let at = block_on(self.store.read(key)).unwrap().map(|stored| stored.version);
        let done = match (stored, &at) {
            (Some(record), _) => {
                let write = WriteId(random::seed());
                block_on(self.store.cas(key, at.as_ref(), write, &record.encode()))
            }
            (None, Some(at)) => block_on(self.store.remove(key, at)),
            (None, None) => Cas::Written { version: Version(String::new()), store_time: None },
        };
        assert!(matches!(done, Cas::Written { .. }), "{done:?}");
        self.numbered.content = content.into();
        stored.map(|record| record.fence.clone())
    }

    fn content(&mut self) -> String {
        self.numbered.content.clone()
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.numbered
    }
}

#[test]
fn the_whole_table() {
    let store = MemoryStore::new().unwrap();
    let handle = store.clone();
    let gates = Gates::new(Arc::new(move || Ok(Box::new(handle.clone()))));
    let numbered = Numbered { gate: gates.gate(&mail()), content: OLD.into() };
    let cases = whole();
    let replayed = replay(&mut OnMemory { store, numbered }, &cases);
    let known = cases.iter().filter(|case| case.stored.as_ref().is_none_or(|fence| fence.done)).count();
    assert_eq!(replayed, known);
    assert!(replayed > 5_000, "{replayed}");
}

/// The outcome of one conditional write.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// It lands, and the answer is lost.
    Landed,
    /// It never lands, and there is no answer.
    Vanished,
    /// The store refuses it.
    Refused(FailureKind),
    /// A later run seals the gate just before it.
    Overtaken,
}

/// A store with a given outcome for each conditional write, and no answer to reads after the first ones.
struct Faulty {
    inner: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    reads: Arc<Mutex<usize>>,
}

#[async_trait(?Send)]
impl Store for Faulty {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }
    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        {
            let mut left = self.reads.lock().unwrap();
            *left = left.checked_sub(1).ok_or_else(|| unreachable("silent"))?;
        }
        self.inner.read(key).await
    }
    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Answered);
        match fate {
            Fate::Answered => self.inner.cas(key, expected, write, body).await,
            Fate::Landed => {
                self.inner.cas(key, expected, write, body).await;
                Cas::Unknown(unreachable("lost"))
            }
            Fate::Vanished => Cas::Unknown(unreachable("lost")),
            Fate::Refused(kind) => Cas::Unknown(Failure::new(kind, "no")),
            Fate::Overtaken => {
                let next = self.inner.clone();
                let gates = Gates::new(Arc::new(move || Ok(Box::new(next.clone()))));
                gates.gate(&mail()).seal(&bearer(2), FenceMode::Enforce).unwrap();
                self.inner.cas(key, expected, write, body).await
            }
        }
    }
    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.inner.list(prefix, after, limit).await
    }
    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.inner.remove(key, version).await
    }
}

/// The result of a start with these outcomes, at a gate that its run has sealed.
fn entered(fates: &[Fate], reads: usize) -> Result<Written, TargetError> {
    let inner = MemoryStore::new().unwrap();
    let handle = inner.clone();
    let honest = Gates::new(Arc::new(move || Ok(Box::new(handle.clone()))));
    honest.gate(&mail()).seal(&bearer(1), FenceMode::Enforce).unwrap();
    let fates = Arc::new(Mutex::new(fates.iter().copied().collect()));
    let reads = Arc::new(Mutex::new(reads));
    let gates = Gates::new(Arc::new(move || {
        let (inner, fates, reads) = (inner.clone(), Arc::clone(&fates), Arc::clone(&reads));
        Ok(Box::new(Faulty { inner, fates, reads }))
    }));
    gates.gate(&mail()).enter(&bearer(1), ALL)
}

#[test]
fn a_lost_answer_is_read_back() {
    for fates in [&[][..], &[Fate::Landed], &[Fate::Vanished], &[Fate::Vanished, Fate::Landed]] {
        let written = entered(fates, usize::MAX).unwrap_or_else(|e| panic!("{fates:?}: {e}"));
        assert_eq!((written.seq, written.let_in), (1, None), "{fates:?}");
    }
}

/// No command was started, whether or not the fence was changed: that is no unknown outcome.
#[test]
fn no_answer_at_all_starts_nothing() {
    for fate in [Fate::Landed, Fate::Vanished] {
        let error = entered(&[fate], 1).unwrap_err();
        let TargetError::Remote { failure, .. } = &error else { panic!("{fate:?}: {error}") };
        assert_eq!(failure.kind, FailureKind::Unreachable);
    }
    for kind in [FailureKind::Denied, FailureKind::Unusable] {
        let error = entered(&[Fate::Refused(kind)], usize::MAX).unwrap_err();
        let TargetError::Remote { failure, .. } = &error else { panic!("{error}") };
        assert_eq!(failure.kind, kind);
    }
}

/// Another run seals between our read and our write, as it happens to a paused run.
#[test]
fn who_was_overtaken_on_the_way_is_refused() {
    for fates in [&[Fate::Overtaken][..], &[Fate::Vanished, Fate::Overtaken]] {
        match entered(fates, usize::MAX) {
            Err(TargetError::Refused(refused)) => {
                assert_eq!((refused.attempt, refused.reason), (RefusedAction::Enter, RefusalReason::Stale));
                assert_eq!((refused.token.get(), refused.sealed()), (1, Token::new(2)));
            }
            // After a doubt the error only says that nothing was started.
            Err(TargetError::Remote { .. }) if fates.len() > 1 => {}
            other => panic!("{fates:?}: {other:?}"),
        }
    }
}

#[test]
fn by_hand_the_gate_is_sealed_on_the_way() {
    let store = MemoryStore::new().unwrap();
    let gates = Gates::new(Arc::new(move || Ok(Box::new(store.clone()))));
    let mut gate = gates.gate(&mail());
    assert!(gate.enter(&bearer(1), ALL).is_err(), "no run has fenced it");
    assert_eq!(gate.enter_by_hand(&bearer(1)).unwrap().seq, 1);
    assert_eq!(gate.enter_by_hand(&bearer(1)).unwrap().seq, 2);
    gate.seal(&bearer(2), FenceMode::Enforce).unwrap();
    let Err(TargetError::Refused(refused)) = gate.enter_by_hand(&bearer(1)) else {
        panic!("it was accepted")
    };
    assert_eq!((refused.attempt, refused.reason), (RefusedAction::Enter, RefusalReason::Stale));
}

#[test]
fn a_name_and_a_path() {
    for (url, name) in [("gate:mail", Some("mail")), ("gate:a/b", Some("a/b")), ("gate:", Some(""))] {
        assert_eq!((named(url), name_in_store(url)), (name, name));
        assert!(is_gate(url), "{url}");
    }
    for url in ["gate:/x", "gate:./x", "gate:../x", "file:x"] {
        assert_eq!((named(url), name_in_store(url)), (None, None), "{url}");
        assert_eq!(is_gate(url), url != "file:x", "{url}");
    }
    // Without a store it does not become a file of that name.
    let error = crate::targets::open("gate:mail").unwrap_err();
    assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
}
