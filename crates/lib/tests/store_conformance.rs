//! Every store passes the suite, and every way to break a store is caught by it.

mod common;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::Scratch;
use leasehold::core::ids::WriteId;
use leasehold::stores::conformance::{Harness, findings, suite};
use leasehold::stores::{Cas, Clock, Facts, Failure, Listed, Store, Stored, Version, open};

fn by_url(scheme: &'static str) -> Harness {
    let scratch = Scratch::new();
    Harness::new(move || open(&format!("{scheme}:{}", scratch.join("store"))).expect(scheme))
}

#[test]
fn memory() {
    suite(&|| {
        let store = leasehold::stores::memory::MemoryStore::new().unwrap();
        Harness::new(move || Box::new(store.clone()))
    });
}

#[test]
fn sqlite() {
    suite(&|| by_url("sqlite"));
}

#[test]
fn dir() {
    suite(&|| by_url("dir"));
}

/// What is wrong with a [`Sloppy`] store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// Writes whatever is expected.
    PlainPut,
    /// Numbers versions per record, from 1 again after a removal.
    RestartingCounter,
    /// Uses a hash of the body as its version.
    ContentHash,
    /// Looks first and writes later.
    CheckThenWrite,
    /// Removes whatever the version.
    PlainRemove,
    /// Never starts the age again.
    FrozenAge,
    /// Answers reads from what this handle saw first.
    StaleRead,
}

#[derive(Clone)]
struct Record {
    version: String,
    body: Vec<u8>,
    written: Duration,
}

struct Sloppy {
    flaw: Flaw,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    seen: BTreeMap<String, Record>,
}

impl Sloppy {
    fn version(&self, old: Option<&Record>, write: WriteId, body: &[u8]) -> String {
        match self.flaw {
            Flaw::RestartingCounter => {
                let last = old.map_or(0, |r| r.version.parse::<u64>().unwrap_or(0));
                (last + 1).to_string()
            }
            Flaw::ContentHash => {
                let mut hasher = DefaultHasher::new();
                body.hash(&mut hasher);
                hasher.finish().to_string()
            }
            _ => write.to_string(),
        }
    }

    fn stored(record: &Record) -> Stored {
        Stored {
            body: record.body.clone(),
            version: Version(record.version.clone()),
            age: leasehold::clock::boot_time().0.checked_sub(record.written),
        }
    }
}

#[async_trait(?Send)]
impl Store for Sloppy {
    fn facts(&self) -> Facts {
        Facts {
            url: "sloppy:".into(),
            instance: "sloppy".into(),
            clock: Clock::BootTime,
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: true,
            lock_dir: None,
            pushes: false,
            durability: "None.",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let found = self.records.lock().unwrap().get(key).cloned();
        let found = match (self.flaw, found) {
            (Flaw::StaleRead, Some(new)) => Some(self.seen.entry(key.into()).or_insert(new).clone()),
            (_, found) => found,
        };
        Ok(found.as_ref().map(Self::stored))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let mut records = self.records.lock().unwrap();
        let old = records.get(key).cloned();
        let matches = old.as_ref().map(|r| r.version.as_str()) == expected.map(|v| v.0.as_str());
        if !matches && self.flaw != Flaw::PlainPut {
            return Cas::Conflict;
        }
        if self.flaw == Flaw::CheckThenWrite {
            drop(records);
            for _ in 0..20 {
                std::thread::yield_now();
            }
            records = self.records.lock().unwrap();
        }
        let version = self.version(old.as_ref(), write, body);
        let now = leasehold::clock::boot_time().0;
        let written = match (self.flaw, &old) {
            (Flaw::FrozenAge, Some(old)) => old.written,
            _ => now,
        };
        let record = Record { version: version.clone(), body: body.to_vec(), written };
        records.insert(key.into(), record);
        Cas::Written { version: Version(version), store_time: None }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let records = self.records.lock().unwrap();
        let found = records
            .iter()
            .filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after)
            .take(limit)
            .map(|(key, _)| Listed { key: key.clone(), stored: None });
        Ok(found.collect())
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let mut records = self.records.lock().unwrap();
        let matches = records.get(key).is_some_and(|r| r.version == version.0);
        if !matches && self.flaw != Flaw::PlainRemove {
            return Cas::Conflict;
        }
        records.remove(key);
        Cas::Written { version: version.clone(), store_time: None }
    }
}

fn caught(flaw: Flaw) -> Vec<&'static str> {
    let found = findings(&|| {
        let records = Arc::default();
        Harness::new(move || Box::new(Sloppy { flaw, records: Arc::clone(&records), seen: BTreeMap::new() }))
    });
    let failed = found.into_iter().filter(|(_, result)| result.is_err());
    failed.map(|(name, _)| name).collect()
}

#[test]
fn every_broken_store_is_caught() {
    assert_eq!(caught(Flaw::None), [""; 0], "the broken stores' own base is sound");
    for (flaw, checks) in [
        (Flaw::PlainPut, &["stale_holder", "late_landing_write", "create_if_absent", "racing_updates"][..]),
        (Flaw::RestartingCounter, &["recreated_record"]),
        (Flaw::ContentHash, &["equal_bodies_differ_in_version", "recreated_record"]),
        (Flaw::CheckThenWrite, &["racing_creates", "racing_updates", "no_lost_update"]),
        (Flaw::PlainRemove, &["remove_needs_the_version"]),
        (Flaw::FrozenAge, &["ages"]),
        (Flaw::StaleRead, &["read_your_writes"]),
    ] {
        let caught = caught(flaw);
        for check in checks {
            assert!(caught.contains(check), "{check} missed {flaw:?}; caught by {caught:?}");
        }
    }
}
