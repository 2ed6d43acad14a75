//! How often the store is asked: finding a lease held is one read; taking it one read and one
//! conditional write; keeping it and giving it back one conditional write each.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::{Grant, WriteId};
use leasehold::core::name::Name;
use leasehold::core::session::{
    Event, Granted, Input, JobExit, LogPlan, Outcome, SessionPlan, Signal, Within,
};
use leasehold::core::time::BootTime;
use leasehold::core::timing::{StoreClock, Timing, TimingWishes};
use leasehold::driver::{Driver, InputSender, ProtectedWork};
use leasehold::run_log::LogWriter;
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::{Cas, Failure, Listed, Store, StoreFacts, Stored, Version};
use leasehold::{host, random};

/// A store that notes every call.
#[derive(Clone)]
struct Counting {
    inner: MemoryStore,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Counting {
    fn new(inner: &MemoryStore) -> Self {
        Self { inner: inner.clone(), calls: Arc::default() }
    }

    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

#[async_trait(?Send)]
impl Store for Counting {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.note("read");
        self.inner.read(key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.note("cas");
        self.inner.cas(key, expected, write, body).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.note("list");
        self.inner.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.note("remove");
        self.inner.remove(key, version).await
    }
}

/// A job that is over after so many renewals.
struct Counted {
    renewals: usize,
    left: usize,
    started: bool,
}

impl ProtectedWork for Counted {
    fn start(&mut self, _: &Granted, _: BootTime) -> Result<(), JobExit> {
        self.started = true;
        Ok(())
    }
    fn seal(&mut self, _: &Granted, _: InputSender) {}
    fn term(&mut self) {}
    fn kill(&mut self) {}
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _: Signal) {}
    fn tell(&mut self, event: &Event) {
        if *event == Event::Renewed {
            self.renewals += 1;
            self.left = self.left.saturating_sub(1);
        }
    }
}

/// One that is to be renewed soon, or not while a test runs.
fn plan(renewed: bool) -> SessionPlan {
    let lease = Name::new("thing").unwrap();
    let heartbeat = renewed.then_some(Duration::from_millis(5));
    let wishes = TimingWishes { ttl: Some(Duration::from_secs(60)), heartbeat, grace: None };
    SessionPlan {
        leases: vec![SeenTokens::none().recall(&lease)],
        grant: Grant(random::seed()),
        timing: Timing::new(wishes, StoreClock::default()).unwrap(),
        wait: Duration::ZERO,
        max_run: None,
        seal: false,
        item: None,
        log: LogPlan::Nothing,
        by_hand: false,
        force: false,
        lock: None,
        holder: host::holder("run", &lease),
        within: Within::default(),
    }
}

/// Runs a session through that many renewals; the calls it made, and how it ended.
fn calls(store: &MemoryStore, renewals: usize) -> (Vec<&'static str>, Outcome, usize) {
    let counting = Counting::new(store);
    let mut driver = Driver::new(
        plan(renewals > 0),
        Box::new(counting.clone()),
        SeenTokens::none(),
        None,
        LogWriter::without_state(),
    )
    .unwrap();
    let mut job = Counted { renewals: 0, left: renewals, started: false };
    let mut ended = driver.step(Input::Start, &mut job);
    while ended.is_none() {
        if job.started && job.left == 0 {
            ended = driver.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true }, &mut job);
            job.started = false;
            continue;
        }
        for input in driver.wait(None).unwrap().0 {
            ended = ended.or(driver.step(input, &mut job));
        }
    }
    let outcome = ended.unwrap();
    driver.finish(&outcome);
    let calls = counting.calls.lock().unwrap().clone();
    (calls, outcome, job.renewals)
}

#[test]
fn acquire_is_a_read_and_a_write_and_release_a_write() {
    let store = MemoryStore::new().unwrap();
    for _ in 0..3 {
        let (calls, outcome, _) = calls(&store, 0);
        assert!(matches!(outcome, Outcome::Finished { status: 0, .. }), "{outcome:?}");
        assert_eq!(calls, ["read", "cas", "cas"]);
    }
}

#[test]
fn a_renewal_is_one_write() {
    let store = MemoryStore::new().unwrap();
    let (calls, outcome, renewals) = calls(&store, 20);
    assert!(matches!(outcome, Outcome::Finished { status: 0, .. }), "{outcome:?}");
    // One more may be under way when the job ends; it is answered before the release is sent.
    assert!((20..=21).contains(&renewals), "{renewals}");
    assert!((23..=24).contains(&calls.len()), "{calls:?}");
    assert_eq!(calls[0], "read");
    assert!(calls[1..].iter().all(|call| *call == "cas"), "{calls:?}");
}

#[test]
fn finding_it_held_is_one_read() {
    let store = MemoryStore::new().unwrap();
    let holder = Counting::new(&store);
    let mut driver =
        Driver::new(plan(false), Box::new(holder), SeenTokens::none(), None, LogWriter::without_state())
            .unwrap();
    let mut job = Counted { renewals: 0, left: 1, started: false };
    let mut ended = driver.step(Input::Start, &mut job);
    while !job.started && ended.is_none() {
        for input in driver.wait(None).unwrap().0 {
            ended = driver.step(input, &mut job);
        }
    }
    let (calls, outcome, _) = calls(&store, 0);
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    assert_eq!(calls, ["read"]);
}
