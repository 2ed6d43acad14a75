//! The first run of a user on a store that machines share: a short examination, and a note that the store passed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use serde::{Deserialize, Serialize};

use super::{Depth, ExaminationEnd, Opener, examine, messages as say, unusable};
use crate::backends::known_as;
use crate::clock::wall;
use crate::state::{StateDir, read_private, write_private};
use crate::stores::{BatchWrite, Cas, Failure, Listed, Store, StoreFacts, Stored, Version};

/// How long a store that passed is not examined again.
const GOOD_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// The note of one store: whether it passed or was refused, which store it was, our version, and when.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct FirstUseRecord {
    store: String,
    instance: String,
    version: String,
    at_s: u64,
    #[serde(default)]
    refused: bool,
}

/// The note of one store on this machine.
#[derive(Clone, Debug)]
pub struct FirstUseNotes {
    path: PathBuf,
    shown: String,
}

impl FirstUseNotes {
    /// The note in `state` of the store at `url`. `shown`: the URL without secrets.
    pub fn new(state: &StateDir, url: &str, shown: &str) -> Self {
        let name = known_as(url);
        Self { path: state.path().join("probed").join(format!("{name}.json")), shown: shown.into() }
    }

    /// The note, if it is not too old.
    fn page(&self) -> Option<FirstUseRecord> {
        let bytes = read_private(&self.path).ok().flatten()?;
        let page: FirstUseRecord = serde_json::from_slice(&bytes).ok()?;
        let age = wall().checked_sub(Duration::from_secs(page.at_s))?;
        (age < GOOD_FOR && page.version == env!("CARGO_PKG_VERSION")).then_some(page)
    }

    /// Notes that the store was refused. The next run examines it thoroughly, because a short race may find nothing.
    pub fn refused(&self) {
        // The old note must go even if the new one cannot be written.
        let _ = std::fs::remove_file(&self.path);
        self.write("", true);
    }

    /// Notes that the store passed. Without the note the next run examines it again.
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

/// A store that is examined before its first use, and again if another instance answers.
pub struct FirstUse {
    store: Box<dyn Store>,
    open: Opener,
    notes: FirstUseNotes,
    /// The instance that passed; compared with the first answer, and then nothing.
    known: Option<String>,
    tell: Tell,
}

/// Takes the lines that the user should see.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

impl FirstUse {
    /// The store, if it passed before or passes now. `open` opens more handles on it.
    ///
    /// No call is made on a store that passed before.
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

    /// Examines the store if its first answer comes from another instance than the one that passed.
    fn look(&mut self) -> Result<bool, Failure> {
        let Some(known) = &self.known else { return Ok(false) };
        let facts = self.store.facts();
        let another = !facts.instance.is_empty() && facts.instance != *known;
        if another {
            look_at(&self.open, Depth::Probe, &self.notes, &self.tell, facts.caution)?;
        }
        // Only now: an examination that failed is made again by the next read.
        self.known = None;
        Ok(another)
    }
}

/// Examines the store; an error if a call fails or the store is refused. Shows the store's caution, unless the caller
/// has shown this `known` one.
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
        // Nothing stops this examination.
        ExaminationEnd::Interrupted => return Ok(()),
        ExaminationEnd::Failed(failure) => return Err(failure),
        ExaminationEnd::Refused { why, .. } => {
            notes.refused();
            return Err(unusable(say::not_trusted(why.trim_end_matches('.'))));
        }
    }
    let caution = diagnosis.facts.as_ref().and_then(|facts| facts.caution.clone());
    if let Some(caution) = caution.filter(|caution| known.as_ref() != Some(caution)) {
        tell(&caution);
    }
    // Without a race the store was not tested: the next run examines it again.
    if diagnosis.was_raced() {
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
            // The examination took time: read again.
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

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        self.store.cas_with(first, with).await
    }

    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        self.store.wait_change(key, version, at_most).await
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.store.limit_calls(each)
    }
}
