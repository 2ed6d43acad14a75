//! Records of the run log that are not in a store yet: kept on this machine, a file each, until a run hands them in.
//!
//! A process inside a job, such as `leasehold write`, has no store. It keeps its records here, and its run hands them
//! in when it ends.

use std::fs;
use std::path::PathBuf;

use leasehold_core::name::Name;
use leasehold_core::run_log::LogRecord;
use leasehold_core::time::BootTime;
use serde::{Deserialize, Serialize};

use super::write;
use crate::clock;
use crate::seen_tokens::SeenTokens;
use crate::state::{StateDir, read_private, write_private};
use crate::stores::Store;

/// The most records that are kept. Later ones are counted and dropped.
const MOST: usize = 1000;
/// The file that counts what was dropped.
const DROPPED: &str = "dropped";

/// The records of this machine that are not in a store.
#[derive(Clone, Debug)]
pub struct Unlogged {
    state: Option<StateDir>,
    /// The store of this process, as it is shown; none inside a job.
    store: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    /// None: the store of the lease.
    store: Option<String>,
    record: String,
}

impl Unlogged {
    /// Records in `state`, of a process that uses this store.
    pub fn new(state: StateDir, store: Option<String>) -> Self {
        Self { state: Some(state), store }
    }

    /// Nothing is kept.
    pub fn none() -> Self {
        Self { state: None, store: None }
    }

    fn dir(&self) -> Option<PathBuf> {
        self.state.as_ref().map(StateDir::unlogged)
    }

    /// Keeps a record. Best effort: what cannot be kept is counted, if that can be written.
    pub fn keep(&self, record: &LogRecord) {
        let Some(dir) = self.dir() else { return };
        let Ok(text) = String::from_utf8(record.encode()) else { return };
        let kept = Kept { store: self.store.clone(), record: text };
        let full = fs::read_dir(&dir).is_ok_and(|entries| entries.count() > MOST);
        let name =
            format!("{:012x}-{}-{}.json", record.id.number(), record.at.as_millis(), record.event.word());
        let bytes = serde_json::to_vec(&kept).unwrap_or_default();
        if full || write_private(&dir.join(name), &bytes).is_err() {
            let count = self.dropped() + 1;
            let _ = write_private(&dir.join(DROPPED), count.to_string().as_bytes());
        }
    }

    /// How many records could not be kept.
    pub fn dropped(&self) -> u64 {
        let bytes = self.dir().and_then(|dir| read_private(&dir.join(DROPPED)).ok().flatten());
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok()).unwrap_or(0)
    }

    /// How many records are waiting to be handed in, on any store.
    pub fn waiting(&self) -> usize {
        let entries = self.dir().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name() != DROPPED).count()
    }

    /// Writes the kept records of this store into it, until then. What is not taken stays.
    pub(super) fn hand_in(&self, store: &mut dyn Store, end: BootTime) {
        let Some(dir) = self.dir() else { return };
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if clock::boot_time() >= end {
                return;
            }
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(Some(bytes)) = read_private(&path) else { continue };
            let kept: Option<Kept> = serde_json::from_slice(&bytes).ok();
            let Some(record) = kept.as_ref().and_then(|kept| LogRecord::decode(kept.record.as_bytes()).ok())
            else {
                // Half of a record, or another format: nobody can hand it in.
                let _ = fs::remove_file(&path);
                continue;
            };
            if !self.belongs_here(kept.and_then(|kept| kept.store), record.lease.as_ref()) {
                continue;
            }
            if write(store, &record).is_err() {
                return;
            }
            let _ = fs::remove_file(&path);
        }
    }

    /// Whether a record belongs to the store of this process.
    fn belongs_here(&self, store: Option<String>, lease: Option<&Name>) -> bool {
        match (store, &self.state, &self.store, lease) {
            (Some(store), _, Some(here), _) => store == *here,
            (None, Some(state), Some(here), Some(lease)) => {
                SeenTokens::new(state.clone(), here.clone()).knows(lease)
            }
            _ => false,
        }
    }
}
