//! The first run of this user on a store that machines share: a few calls that find the worst liars, and
//! a note that they went well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::exams::RACES;
use super::{Depth, Ended, Opener, examine, unusable};
use crate::clock::wall;
use crate::state::{StateDir, read_private, write_private};
use crate::stores::{Cas, Facts, Failure, Listed, Remark, Store, Stored, Verdict, Version, Write};

/// After this long a store is looked at again.
const GOOD_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// Variables by which a URL without an endpoint gets one.
const ELSEWHERE: [&str; 7] = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_USE_EMULATOR",
    "FIRESTORE_EMULATOR_HOST",
    "GOOGLE_BASE_URL",
];

/// What the doctor refused is refused for this long without another look: a short one may find nothing.
const BAD_FOR: Duration = Duration::from_secs(3600);

/// What is kept of one store: that it went well, or why it was refused; on which one, with which version of ours, and when.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Page {
    store: String,
    instance: String,
    version: String,
    at_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Where it is noted that a store went well.
#[derive(Clone, Debug)]
pub struct Notes {
    path: PathBuf,
    shown: String,
}

impl Notes {
    /// The notes in `state` about the store at `url`, which is called `shown` (without secrets).
    pub fn new(state: &StateDir, url: &str, shown: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(url.as_bytes());
        // The same URL is another store where a variable sends it elsewhere.
        for name in ELSEWHERE {
            let value = std::env::var_os(name).unwrap_or_default();
            digest.update([0]);
            digest.update(value.as_encoded_bytes());
        }
        let digest = digest.finalize();
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { path: state.path().join("probed").join(format!("{name}.json")), shown: shown.into() }
    }

    /// What is noted, if that is not too long ago.
    fn page(&self) -> Option<Page> {
        let bytes = read_private(&self.path).ok().flatten()?;
        let page: Page = serde_json::from_slice(&bytes).ok()?;
        let age = wall().checked_sub(Duration::from_secs(page.at_s))?;
        let good_for = if page.refused.is_some() { BAD_FOR } else { GOOD_FOR };
        (age < good_for && page.version == env!("CARGO_PKG_VERSION")).then_some(page)
    }

    /// It does not go well any more: the next run looks again.
    fn withdraw(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Notes that the doctor does not trust it, and why. It takes the doctor to trust it again, or some time.
    pub fn refused(&self, why: &str) {
        // What was noted before must not stay, whatever happens.
        self.withdraw();
        self.write("", Some(why.trim_end_matches('.').into()));
    }

    /// Notes that it went well. Failing to costs another look next time.
    pub fn went_well(&self, instance: &str) {
        self.write(instance, None);
    }

    fn write(&self, instance: &str, refused: Option<String>) {
        let (store, version) = (self.shown.clone(), env!("CARGO_PKG_VERSION").into());
        let page = Page { store, instance: instance.into(), version, at_s: wall().as_secs(), refused };
        if let Ok(bytes) = serde_json::to_vec(&page) {
            let _ = write_private(&self.path, &bytes);
        }
    }
}

fn untrusted(why: &str) -> Failure {
    unusable(format!(
        "This store cannot be trusted with leases: {why}. They would not be exclusive, so it will not be used. See: \
         leasehold doctor"
    ))
}

/// A store that is looked at before its first use here, and again when it turns out to be another one.
pub struct FirstUse {
    store: Box<dyn Store>,
    open: Opener,
    notes: Notes,
    /// The instance that went well; checked by the first answer, and then no more.
    known: Option<String>,
    tell: Tell,
}

/// Hears what should be said to whoever runs something there for the first time.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

impl FirstUse {
    /// The store, if it went well before or does now. `open` gives further handles on it.
    ///
    /// Nothing is called on a store that went well before.
    pub fn begin(
        store: Box<dyn Store>,
        open: Opener,
        notes: Notes,
        tell: Tell,
    ) -> Result<Box<dyn Store>, Failure> {
        match notes.page() {
            Some(Page { refused: Some(why), .. }) => return Err(untrusted(&why)),
            Some(Page { instance, .. }) => {
                return Ok(Box::new(Self { store, open, notes, known: Some(instance), tell }));
            }
            None => {}
        }
        probe(&open, &notes, &tell, store.facts().caution)?;
        Ok(store)
    }

    /// The first answer tells which instance this is.
    fn look(&mut self) -> Result<bool, Failure> {
        let Some(known) = &self.known else { return Ok(false) };
        let facts = self.store.facts();
        let another = !facts.instance.is_empty() && facts.instance != *known;
        if another {
            probe(&self.open, &self.notes, &self.tell, facts.caution)?;
        }
        // Not before: one that failed is made again by the next read.
        self.known = None;
        Ok(another)
    }
}

/// A few calls; an error if they fail, or show that the store lies. What it cannot promise is told, unless that
/// was `known` without asking.
fn probe(open: &Opener, notes: &Notes, tell: &Tell, known: Option<String>) -> Result<(), Failure> {
    let diagnosis = examine(Arc::clone(open), Depth::Probe, &Arc::new(AtomicBool::new(false)), &mut |_| {});
    if let Some(left) = diagnosis.left_behind() {
        tell(&left);
    }
    match diagnosis.ended {
        Ended::Usable => {}
        // Nobody stops a probe.
        Ended::Interrupted => return Ok(()),
        Ended::Failed(failure) => return Err(failure),
        Ended::Refused { why, .. } => {
            notes.withdraw();
            return Err(untrusted(why.trim_end_matches('.')));
        }
    }
    let caution = diagnosis.facts.as_ref().and_then(|facts| facts.caution.clone());
    if let Some(caution) = caution.filter(|caution| known.as_ref() != Some(caution)) {
        tell(&caution);
    }
    // What could not be raced was not tested: the next run looks again.
    if diagnosis.findings.iter().any(|f| f.about == RACES && f.verdict == Verdict::Good) {
        notes.went_well(&diagnosis.facts.map(|facts| facts.instance).unwrap_or_default());
    }
    Ok(())
}

#[async_trait(?Send)]
impl Store for FirstUse {
    fn facts(&self) -> Facts {
        self.store.facts()
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let found = self.store.read(key).await?;
        match self.look()? {
            // What was read is old by now.
            true => self.store.read(key).await,
            false => Ok(found),
        }
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.store.cas(key, expected, write, body).await
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.store.list(prefix, after, limit).await
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.store.remove(key, version).await
    }

    async fn cas_many(&mut self, writes: &[Write]) -> Vec<Cas> {
        self.store.cas_many(writes).await
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.store.wait_change(key, version, at_most).await
    }

    async fn forget(&mut self, key: &str) {
        self.store.forget(key).await;
    }

    fn spacing(&self) -> Duration {
        self.store.spacing()
    }

    fn ignored(&self) -> Option<String> {
        self.store.ignored()
    }

    fn least_ttl(&self) -> Duration {
        self.store.least_ttl()
    }

    fn holders_elsewhere(&mut self) {
        self.store.holders_elsewhere();
    }

    fn limit_calls(&mut self, each: Duration) {
        self.store.limit_calls(each);
    }

    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        self.store.examine().await
    }
}
