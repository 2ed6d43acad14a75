//! A store with one thing wrong with it, to be caught.
#![allow(dead_code)] // each test file uses its own part of it

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::ids::WriteId;
use leasehold::stores::{
    Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, RemarkLevel, Store, StoreFacts, Stored,
    Version,
};

/// What is wrong with a [`Sloppy`] store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flaw {
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
    /// Always says that a record is this old.
    AgeStandsStill,
    /// Says that a record grows younger.
    AgeGoesBack,
    /// Says that a record is older than it is.
    AgeRunsAhead,
    /// Declares a clock that tells microseconds and tells seconds.
    CoarseAge,
    /// Keeps a removed record.
    KeepsRemoved,
    /// Says that it pushes, and does not.
    Deaf,
    /// Its clock is an hour behind ours.
    HourBehind,
    /// It says of itself that records may vanish.
    Evicts,
    /// It says of itself that it could be better.
    Weak,
    /// Gives out after this many calls of one handle.
    Mortal(usize),
}

/// What all handles of one store share.
pub type Records = Arc<Mutex<BTreeMap<String, Record>>>;

#[derive(Clone)]
pub struct Record {
    version: String,
    body: Vec<u8>,
    written: Duration,
}

pub struct Sloppy {
    flaw: Flaw,
    records: Records,
    seen: BTreeMap<String, Record>,
    calls: usize,
}

impl Sloppy {
    pub fn new(flaw: Flaw, records: &Records) -> Self {
        Self { flaw, records: Arc::clone(records), seen: BTreeMap::new(), calls: 0 }
    }

    fn count(&mut self) -> Result<(), Failure> {
        self.calls += 1;
        match self.flaw {
            Flaw::Mortal(most) if self.calls > most => {
                Err(Failure::new(FailureKind::Unreachable, "The line went dead."))
            }
            _ => Ok(()),
        }
    }

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

    fn stored(&self, record: &Record) -> Stored {
        let age = leasehold::clock::boot_time().0.checked_sub(record.written);
        let age = age.map(|age| match self.flaw {
            Flaw::AgeStandsStill => Duration::from_millis(1),
            Flaw::AgeGoesBack => Duration::from_secs(60).saturating_sub(age),
            Flaw::AgeRunsAhead => age * 3,
            Flaw::CoarseAge => Duration::from_secs(age.as_secs()),
            _ => age,
        });
        Stored { body: record.body.clone(), version: Version(record.version.clone()), age }
    }
}

#[async_trait(?Send)]
impl Store for Sloppy {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            url: "sloppy:".into(),
            instance: "sloppy".into(),
            clock: if self.flaw == Flaw::HourBehind { Clock::Server } else { Clock::BootTime },
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: true,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: self.flaw == Flaw::Deaf,
            durability: "None.",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.count()?;
        let found = self.records.lock().unwrap().get(key).cloned();
        let found = match (self.flaw, found) {
            (Flaw::StaleRead, Some(new)) => Some(self.seen.entry(key.into()).or_insert(new).clone()),
            (_, found) => found,
        };
        Ok(found.map(|record| self.stored(&record)))
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        if let Err(failure) = self.count() {
            return Cas::Unknown(failure);
        }
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
        let hour_ago = leasehold::clock::wall() - Duration::from_secs(3600);
        let store_time = (self.flaw == Flaw::HourBehind).then_some(hour_ago);
        Cas::Written { version: Version(version), store_time }
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
        if self.flaw != Flaw::KeepsRemoved {
            records.remove(key);
        }
        Cas::Written { version: version.clone(), store_time: None }
    }
}

#[async_trait(?Send)]
impl Examine for Sloppy {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let remark = |about, verdict, text: &str| Ok(vec![Remark { about, verdict, text: text.into() }]);
        match self.flaw {
            Flaw::Evicts => remark("eviction", RemarkLevel::Unsafe, "it throws away records when it is full"),
            Flaw::Weak => remark("durability", RemarkLevel::Weak, "it could write sooner"),
            _ => Ok(Vec::new()),
        }
    }
}
