//! A part of another store: every key gets a prefix that the user of this store does not see.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;

use super::{BatchWrite, Cas, Examine, Failure, Listed, Remark, Store, StoreFacts, Stored, Version};

/// The part of a store whose keys begin with a prefix.
pub struct Prefixed<S: ?Sized> {
    inner: Box<S>,
    prefix: String,
}

impl<S: Store + ?Sized> Prefixed<S> {
    /// The part of `inner` under `prefix`, which may be any short text.
    pub fn new(inner: Box<S>, prefix: impl Into<String>) -> Self {
        Self { inner, prefix: prefix.into() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

#[async_trait(?Send)]
impl<S: Store + ?Sized> Store for Prefixed<S> {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let key = self.key(key);
        self.inner.read(&key).await
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let key = self.key(key);
        self.inner.cas(&key, expected, write, body).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let (prefix, after) = (self.key(prefix), self.key(after));
        let found = self.inner.list(&prefix, &after, limit).await?;
        let strip = |l: Listed| {
            let key = l.key.strip_prefix(&self.prefix)?.to_owned();
            Some(Listed { key, ..l })
        };
        Ok(found.into_iter().filter_map(strip).collect())
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let key = self.key(key);
        self.inner.remove(&key, version).await
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let moved: Vec<BatchWrite> =
            writes.iter().map(|w| BatchWrite { key: self.key(&w.key), ..w.clone() }).collect();
        self.inner.cas_many(&moved).await
    }

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        let moved = |w: &BatchWrite| BatchWrite { key: self.key(&w.key), ..w.clone() };
        let (first, with) = (moved(first), moved(with));
        self.inner.cas_with(&first, &with).await
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        let key = self.key(key);
        self.inner.wait_change(&key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.inner.limit_calls(each)
    }
}

#[async_trait(?Send)]
impl<S: Examine + ?Sized> Examine for Prefixed<S> {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.inner.examine().await
    }

    async fn forget(&mut self, key: &str) {
        let key = self.key(key);
        self.inner.forget(&key).await;
    }

    /// Whole keys: a trace is not only in this part.
    fn traces(&self) -> Vec<String> {
        self.inner.traces()
    }
}
