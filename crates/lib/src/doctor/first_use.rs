//! The first run of this user on a store that machines share: a few calls that find the worst liars, and
//! a note that they went well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use serde::{Deserialize, Serialize};

use super::checks::RACES;
use super::{Depth, ExaminationEnd, Opener, examine, unusable};
use crate::backends::known_as;
use crate::clock::wall;
use crate::state::{StateDir, read_private, write_private};
use crate::stores::{BatchWrite, Cas, Failure, Listed, RemarkLevel, Store, StoreFacts, Stored, Version};

/// After this long a store is looked at again.
const GOOD_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// What is kept of one store: that it went well, or that it was refused; which one, with which version of ours, and when.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct FirstUseRecord {
    store: String,
    instance: String,
    version: String,
    at_s: u64,
    #[serde(default)]
    refused: bool,
}

/// Where it is noted that a store went well.
#[derive(Clone, Debug)]
pub struct FirstUseNotes {
    path: PathBuf,
    shown: String,
}

impl FirstUseNotes {
    /// The notes in `state` about the store at `url`, which is called `shown` (without secrets).
    pub fn new(state: &StateDir, url: &str, shown: &str) -> Self {
        let name = known_as(url);
        Self { path: state.path().join("probed").join(format!("{name}.json")), shown: shown.into() }
    }

    /// What is noted, if that is not too long ago.
    fn page(&self) -> Option<FirstUseRecord> {
        let bytes = read_private(&self.path).ok().flatten()?;
        let page: FirstUseRecord = serde_json::from_slice(&bytes).ok()?;
        let age = wall().checked_sub(Duration::from_secs(page.at_s))?;
        (age < GOOD_FOR && page.version == env!("CARGO_PKG_VERSION")).then_some(page)
    }

    /// Notes that it was refused: the next run examines it thoroughly, for a short look may find nothing.
    pub fn refused(&self) {
        // What was noted before must not stay, whatever happens.
        let _ = std::fs::remove_file(&self.path);
        self.write("", true);
    }

    /// Notes that it went well. Failing to costs another look next time.
    pub fn went_well(&self, instance: &str) {
        self.write(instance, false);
    }

    fn write(&self, instance: &str, refused: bool) {
        let (store, version) = (self.shown.clone(), env!("CARGO_PKG_VERSION").into());
        let page =
            FirstUseRecord { store, instance: instance.into(), version, at_s: wall().as_secs(), refused };
        if let Ok(bytes) = serde_json::to_vec(&page) {
            let _ = write_private(&self.path, &bytes);
        }
    }
}

/// A store that is looked at before its first use here, and again when it turns out to be another one.
pub struct FirstUse {
    store: Box<dyn Store>,
    open: Opener,
    notes: FirstUseNotes,
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
        notes: FirstUseNotes,
        tell: Tell,
    ) -> Result<Box<dyn Store>, Failure> {
        let depth = match notes.page() {
            Some(FirstUseRecord { refused: false, instance, .. }) => {
                return Ok(Box::new(Self { store, open, notes, known: Some(instance), tell }));
            }
            Some(_) => Depth::Quick,
            None => Depth::Probe,
        };
        look_at(&open, depth, &notes, &tell, store.facts().caution)?;
        Ok(store)
    }

    /// The first answer tells which instance this is.
    fn look(&mut self) -> Result<bool, Failure> {
        let Some(known) = &self.known else { return Ok(false) };
        let facts = self.store.facts();
        let another = !facts.instance.is_empty() && facts.instance != *known;
        if another {
            look_at(&self.open, Depth::Probe, &self.notes, &self.tell, facts.caution)?;
        }
        // Not before: one that failed is made again by the next read.
        self.known = None;
        Ok(another)
    }
}

/// Examines it; an error if a call fails, or the store lies. What it cannot promise is told, unless that was `known`
/// without asking.
fn look_at(
    open: &Opener,
    depth: Depth,
    notes: &FirstUseNotes,
    tell: &Tell,
    known: Option<String>,
) -> Result<(), Failure> {
    let diagnosis = examine(Arc::clone(open), None, depth, &Arc::new(AtomicBool::new(false)), &mut |_| {});
    if let Some(left) = diagnosis.left_behind() {
        tell(&left);
    }
    match diagnosis.ended {
        ExaminationEnd::Usable => {}
        // Nobody stops it.
        ExaminationEnd::Interrupted => return Ok(()),
        ExaminationEnd::Failed(failure) => return Err(failure),
        ExaminationEnd::Refused { why, .. } => {
            notes.refused();
            return Err(unusable(format!(
                "This store cannot be trusted with leases: {}. They would not be exclusive, so it will not be used. See: \
                 leasehold doctor",
                why.trim_end_matches('.')
            )));
        }
    }
    let caution = diagnosis.facts.as_ref().and_then(|facts| facts.caution.clone());
    if let Some(caution) = caution.filter(|caution| known.as_ref() != Some(caution)) {
        tell(&caution);
    }
    // What could not be raced was not tested: the next run looks again.
    if diagnosis.findings.iter().any(|f| f.about == RACES && f.verdict == RemarkLevel::Good) {
        notes.went_well(&diagnosis.facts.map(|facts| facts.instance).unwrap_or_default());
    }
    Ok(())
}

#[async_trait(?Send)]
impl Store for FirstUse {
    fn facts(&self) -> StoreFacts {
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

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        self.store.cas_many(writes).await
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.store.wait_change(key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) {
        self.store.limit_calls(each);
    }
}
