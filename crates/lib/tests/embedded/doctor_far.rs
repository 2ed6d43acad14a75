//! A store that is far away is asked for less, and for several things at once, so that its examination ends soon.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::WriteId;
use leasehold::doctor::{Depth, ExaminationEnd, examine};
use leasehold::stores::{Cas, Examine, Failure, Listed, Store, StoreFacts, Stored, Version};

/// The keys that calls were about, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// An honest store at some distance.
struct Away {
    store: MemoryStore,
    distance: Duration,
    asked: Asked,
}

impl Away {
    #[expect(clippy::disallowed_methods)] // the distance is what the test is about
    fn travel(&self, key: &str) {
        self.asked.lock().unwrap().push(key.into());
        std::thread::sleep(self.distance);
    }
}

#[async_trait(?Send)]
impl Store for Away {
    fn facts(&self) -> StoreFacts {
        self.store.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.travel(key);
        self.store.read(key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.travel(key);
        self.store.cas(key, expected, write, body).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.store.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.travel(key);
        self.store.remove(key, version).await
    }
}

#[async_trait(?Send)]
impl Examine for Away {}

/// The part of the doctor's corner that each call was about, in order.
fn examined(distance: Duration) -> Vec<String> {
    let (store, asked) = (MemoryStore::new().unwrap(), Asked::default());
    let away = {
        let asked = Arc::clone(&asked);
        move || Away { store: store.clone(), distance, asked: Arc::clone(&asked) }
    };
    let diagnosis =
        examine(Arc::new(move || Ok(Box::new(away()))), None, Depth::Full, &Arc::default(), &mut |_| {});
    assert_eq!(diagnosis.ended, ExaminationEnd::Usable, "{diagnosis:#?}");
    let asked = asked.lock().unwrap();
    asked.iter().filter_map(|key| key.split('/').nth(2).map(str::to_owned)).collect()
}

const RULES: [&str; 6] = ["create", "stale", "late", "recreated", "versions", "reads"];

/// How many calls the rule made that made most.
fn longest(asked: &[String]) -> usize {
    RULES.map(|rule| asked.iter().filter(|part| *part == rule).count()).into_iter().max().unwrap()
}

#[test]
fn a_store_far_away_is_asked_less_and_at_once() {
    let far = examined(Duration::from_millis(35));
    assert!(longest(&far) <= 32, "{} calls, one after the other", longest(&far));
    let first = RULES.map(|rule| far.iter().position(|part| part == rule).unwrap());
    let last = RULES.map(|rule| far.iter().rposition(|part| part == rule).unwrap());
    assert!(first.iter().max() < last.iter().min(), "they are not looked at side by side");
    // One that is near is asked for more.
    assert!(longest(&examined(Duration::ZERO)) > 80);
}
