//! Shared by the stores on servers: a runtime, and a time limit for each call.
//!
//! The stores are async code over tokio. [`Remote`] runs them on any thread that is not inside a runtime already,
//! and makes a runtime with the first call. The async API calls its stores on a separate thread, so it can be
//! used inside any runtime.

use std::net::IpAddr;
use std::sync::Once;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::human_duration::HumanDuration;
use leasehold_core::ids::WriteId;
use tokio::runtime::{Builder, Runtime};

use crate::stores::{
    BatchWrite, Cas, Examine, Failure, FailureKind, Listed, Remark, Store, StoreFacts, Stored, Version,
};

/// The default time limit of a call.
const PATIENCE: Duration = Duration::from_secs(10);

/// The advice for a server that accepts connections and does not answer.
pub(crate) const SILENT: &str =
    "check that it runs, that the port is right, and that no firewall or proxy drops the answer";

/// How often the runtime polls before a call: once for the system, then for the tasks that it wakes.
const GLANCES: usize = 3;

/// A store over tokio, for callers without tokio.
pub struct Remote<S> {
    inner: S,
    limit: Duration,
    /// Made by the first call. The connections belong to it.
    runtime: Option<Runtime>,
}

impl<S> Remote<S> {
    /// Contacts nothing yet.
    pub fn new(inner: S) -> Self {
        Self { inner, limit: PATIENCE, runtime: None }
    }

    /// Runs `work` on the store, until it ends or its time is over.
    pub(crate) fn drive<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&mut S) -> T,
        gave_up: impl FnOnce(Failure) -> T,
    ) -> T {
        let runtime = match self.runtime.take().map_or_else(start, Ok) {
            Ok(runtime) => self.runtime.insert(runtime),
            Err(failure) => return gave_up(failure),
        };
        let call = work(&mut self.inner);
        let call = async {
            // Between calls the runtime does not run: let it notice closed connections first.
            for _ in 0..GLANCES {
                tokio::task::yield_now().await;
            }
            tokio::time::timeout(limit, call).await
        };
        match runtime.block_on(call) {
            Ok(answer) => answer,
            Err(_) => gave_up(Failure::new(
                FailureKind::Unreachable,
                format!("the server did not answer within {}; {SILENT}", HumanDuration(limit)),
            )),
        }
    }
}

/// Whether the host is this machine.
pub fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A runtime on the calling thread, with a provider for TLS.
pub(crate) fn start() -> Result<Runtime, Failure> {
    static PROVIDER: Once = Once::new();
    // A program around us may have installed its own, which is then used.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    Builder::new_current_thread().enable_all().build().map_err(|e| {
        Failure::new(
            FailureKind::Unreachable,
            format!("the system refused the resources for a network call: {e}"),
        )
    })
}

impl<S> Drop for Remote<S> {
    fn drop(&mut self) {
        // Without waiting, because we may be inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait(?Send)]
impl<S: Store> Store for Remote<S> {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.drive(self.limit, async |s| s.read(key).await, Err)
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.drive(self.limit, async |s| s.cas(key, expected, write, body).await, Cas::Unknown)
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.drive(self.limit, async |s| s.list(prefix, after, limit).await, Err)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.drive(self.limit, async |s| s.remove(key, version).await, Cas::Unknown)
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        let unknown = |failure| vec![Cas::Unknown(failure); writes.len()];
        self.drive(self.limit, async |s| s.cas_many(writes).await, unknown)
    }

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        let unknown = |failure| Some(Cas::Unknown(failure));
        self.drive(self.limit, async |s| s.cas_with(first, with).await, unknown)
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.drive(at_most, async |s| s.wait_change(key, version, at_most).await, |_| false)
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.inner.limit_calls(each);
        std::mem::replace(&mut self.limit, each)
    }
}

#[async_trait(?Send)]
impl<S: Examine> Examine for Remote<S> {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.drive(self.limit, async |s| s.examine().await, Err)
    }

    async fn forget(&mut self, key: &str) {
        self.drive(self.limit, async |s| s.forget(key).await, |_| ());
    }

    fn traces(&self) -> Vec<String> {
        self.inner.traces()
    }
}
