//! A store that writes down what it is asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::ids::WriteId;
use leasehold::stores::{
    BatchWrite, Cas, Clock, Examine, Failure, Listed, Remark, Store, StoreFacts, Stored, Version,
};
use pollster::block_on;

/// What a [`Spy`] was asked, in order.
pub type Asked = Arc<Mutex<Vec<&'static str>>>;

/// Every verb and every question there is, as [`ask_all`] asks them.
pub const ALL: [&str; 8] =
    ["facts", "read", "cas", "list", "remove", "cas_many", "wait_change", "limit_calls"];
/// What an examination asks, as [`examine_all`] does.
pub const EXAMINED: [&str; 3] = ["examine", "forget", "traces"];

pub struct Spy(pub Asked);

impl Spy {
    fn asked(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }
}

/// Asks for everything.
pub fn ask_all(store: &mut dyn Store) {
    let (one, id) = (Version("1".into()), WriteId(1));
    store.facts();
    block_on(store.read("k")).unwrap();
    block_on(store.cas("k", None, id, b""));
    block_on(store.list("", "", 1)).unwrap();
    block_on(store.remove("k", &one));
    block_on(store.cas_many(&[BatchWrite { key: "k".into(), expected: None, write: id, body: Vec::new() }]));
    block_on(store.wait_change("k", Some(&one), Duration::ZERO));
    store.limit_calls(Duration::from_secs(1));
}

/// Asks what an examination asks.
pub fn examine_all(store: &mut dyn Examine) {
    block_on(store.examine()).unwrap();
    block_on(store.forget("k"));
    store.traces();
}

#[async_trait(?Send)]
impl Store for Spy {
    fn facts(&self) -> StoreFacts {
        // It is looked at after a read as well; once is enough to be told.
        if !self.0.lock().unwrap().contains(&"facts") {
            self.asked("facts");
        }
        StoreFacts {
            url: "spy:".into(),
            instance: "spy".into(),
            clock: Clock::BootTime,
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: true,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: true,
            durability: "None.",
            caution: None,
        }
    }

    async fn read(&mut self, _key: &str) -> Result<Option<Stored>, Failure> {
        self.asked("read");
        Ok(None)
    }

    async fn cas(&mut self, _key: &str, _expected: Option<&Version>, _write: WriteId, _body: &[u8]) -> Cas {
        self.asked("cas");
        Cas::Conflict
    }

    async fn list(&mut self, _prefix: &str, _after: &str, _limit: usize) -> Result<Vec<Listed>, Failure> {
        self.asked("list");
        Ok(Vec::new())
    }

    async fn remove(&mut self, _key: &str, _version: &Version) -> Cas {
        self.asked("remove");
        Cas::Conflict
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        self.asked("cas_many");
        writes.iter().map(|_| Cas::Conflict).collect()
    }

    async fn wait_change(&mut self, _key: &str, _version: Option<&Version>, _at_most: Duration) -> bool {
        self.asked("wait_change");
        true
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.asked("limit_calls");
        each
    }
}

#[async_trait(?Send)]
impl Examine for Spy {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.asked("examine");
        Ok(Vec::new())
    }

    async fn forget(&mut self, _key: &str) {
        self.asked("forget");
    }

    fn traces(&self) -> Vec<String> {
        self.asked("traces");
        Vec::new()
    }
}

/// Passes on the four verbs and nothing that has a default.
pub struct Careless(pub Spy);

#[async_trait(?Send)]
impl Store for Careless {
    fn facts(&self) -> StoreFacts {
        self.0.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.0.read(key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.0.cas(key, expected, write, body).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.0.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.0.remove(key, version).await
    }
}

#[async_trait(?Send)]
impl Examine for Careless {}
