//! Broken stores that the suites must find, as negative controls.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Failure, Listed, Store, StoreFacts, Stored, Version};

use crate::proxy::lock;

/// Time for another contender to take a lease that was just released.
const MEANWHILE: Duration = Duration::from_millis(30);

/// The wrong answer of a broken store if the real one did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// "It was not written."
    Conflict,
    /// "It was written."
    Written,
    /// It sends the write again and gives that answer, as many client libraries do.
    Retry,
}

/// A store that is correct until an answer is missing.
pub struct Liar {
    inner: Box<dyn Store>,
    lie: Lie,
}

impl Liar {
    /// Makes a broken store of a correct one.
    pub fn of(inner: Box<dyn Store>, lie: Lie) -> Box<dyn Store> {
        Box::new(Self { inner, lie })
    }
}

#[async_trait(?Send)]
impl Store for Liar {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.inner.read(key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let answer = self.inner.cas(key, expected, write, body).await;
        match (answer, self.lie) {
            (Cas::Unknown(_), Lie::Conflict) => {
                // Late enough for another contender to act in between, because then the wrong answer does harm.
                let (quiet, never) = (Mutex::new(()), Condvar::new());
                drop(never.wait_timeout_while(lock(&quiet), MEANWHILE, |()| true));
                Cas::Conflict
            }
            (Cas::Unknown(_), Lie::Written) => {
                Cas::Written { version: Version(write.to_string()), store_time: None }
            }
            (Cas::Unknown(_), Lie::Retry) => self.inner.cas(key, expected, write, body).await,
            (answer, _) => answer,
        }
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.inner.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.inner.remove(key, version).await
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.inner.limit_calls(each)
    }
}
