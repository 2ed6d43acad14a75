use std::time::Duration;

use async_trait::async_trait;
use leasehold::backends::memory::MemoryStore;
use leasehold::stores::{Listed, StoreFacts};
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::ledger::Subject;
use leasehold_core::ledger::job_record::JobSchedule;
use leasehold_core::name::Name;
use leasehold_core::record::{Hold, Holder};
use leasehold_core::session::lease_key;
use leasehold_core::store::{Cas, FailureKind, Version};

use super::*;
use crate::schedule::{Every, Schedule};

/// A store that loses the first answer to a write of a slot's record.
struct Lossy {
    inner: MemoryStore,
    /// The write whose answer is lost lands all the same.
    lands: bool,
    lost: bool,
}

#[async_trait(?Send)]
impl Store for Lossy {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.inner.read(key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        if self.lost || !key.starts_with("slots/") {
            return self.inner.cas(key, expected, write, body).await;
        }
        self.lost = true;
        if self.lands {
            self.inner.cas(key, expected, write, body).await;
        }
        Cas::Unknown(Failure::new(FailureKind::Unreachable, "lost"))
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.inner.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.inner.remove(key, version).await
    }
}

fn held(lease: &Name) -> LeaseRecord {
    let holder = Holder {
        host: "h".into(),
        pid: 1,
        run: "r".into(),
        job: "other".into(),
        since: String::new(),
        slot: None,
    };
    let hold = Hold { grant: Grant(1), ttl: Duration::from_secs(600), revoke: false, lock: None };
    LeaseRecord {
        lease: lease.clone(),
        epoch: Epoch::first(7),
        token: Token::FIRST,
        write: WriteId(1),
        instance: String::new(),
        hold: Some(hold),
        holder,
        past: Vec::new(),
        more: Default::default(),
    }
}

/// A job that is due each minute.
fn terms() -> Terms {
    let (job, minute) = (Name::new("site").unwrap(), Duration::from_secs(60));
    let schedule = Schedule::every(Every::new(minute, Duration::ZERO).unwrap());
    Terms {
        named: JobSchedule { key: schedule.key(), written: "every 1m".into() },
        schedule,
        leases: vec![job.clone()],
        job,
        skips: true,
        catch_up: 1,
        max_age: None,
        retry: false,
        attempts: 1,
        keep: minute,
        stagger: Duration::ZERO,
    }
}

/// The record of a lease names the slot of its holder. Slots of an earlier schedule have such a name too.
#[test]
fn a_slot_is_found_by_its_name() {
    let terms = terms();
    for at in [-60, 0, 6_060, 6_061] {
        let slot = Slot::due_at(at).unwrap();
        let Subject::Slot { id, .. } = terms.subject(&slot) else { panic!("a slot is a slot") };
        assert_eq!(terms.slot_called(&id).map(|slot| slot.number()), Some(at), "{id}");
    }
    for id in ["", "6060", "1970-01-01T01:41:00.5Z"] {
        assert_eq!(terms.slot_called(id), None, "{id}");
    }
}

/// After a lost answer the record of a skipped slot is read again, so this look has one note of it.
#[test]
fn a_lost_answer_does_not_hide_a_skipped_slot() {
    for lands in [true, false] {
        let mut store = Lossy { inner: MemoryStore::new().unwrap(), lands, lost: false };
        let (name, terms) = (Name::new("site").unwrap(), terms());
        register(&mut store, &[&terms], 6_000).unwrap();
        block_on(store.cas(&lease_key(&name), None, WriteId(1), &held(&name).encode()));
        let look = due_now(&mut store, &terms, 6_061, Tried::This(6_060)).unwrap();
        assert!(store.lost, "no slot gave way");
        let told = look.notes.iter().filter(|note| matches!(note, JobNote::SlotSkipped(_))).count();
        assert_eq!(told, 1, "{:?}", look.notes);
        let slot = Slot::due_at(6_060).unwrap();
        let entry = ledger::entry(&mut store, &terms.subject(&slot)).unwrap();
        assert!(entry.is_some_and(|entry| is_skipped_unstarted(&entry)));
    }
}
