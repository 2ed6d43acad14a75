//! Notes about leases that this host keeps between runs: the stores that a lease was used on, the highest
//! token seen there, and a version that is watched because the store knows no ages.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::additions::Additions;
use leasehold_core::ids::{Epoch, Token, WriteId};
use leasehold_core::name::Name;
use leasehold_core::rules::SeenToken;
use leasehold_core::session::{LeaseChoice, WatchedRecord};
use leasehold_core::time::BootTime;
use serde::{Deserialize, Serialize};

use crate::backends::{Reach, store_of};
use crate::clock::clock_domain;
use crate::run_log::unlogged::Unlogged;
use crate::run_log::{LogWriter, Retention};
use crate::state::{StateDir, read_private, write_private};

/// How many files are looked at.
const LOOKED_AT: usize = 10_000;

/// The file of one lease. If it is lost or unreadable, the store alone decides.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct LeaseFile {
    stores: BTreeMap<String, TokenEntry>,
    /// Additions of later versions, carried along unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct TokenEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<Epoch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    watched: Option<EntryWatched>,
    /// Whether other machines use this store too. Entries of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    /// The user was told that the lease was used there before, when no store was named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    told: bool,
    /// Additions of later versions, carried along unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EntryWatched {
    write: WriteId,
    /// On the boot-time clock of this domain.
    since_ns: u64,
    clock: String,
}

impl TokenEntry {
    fn seen(&self) -> Option<SeenToken> {
        Some(SeenToken { epoch: self.epoch?, token: self.token? })
    }
}

/// Another store that a lease was used on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherStore {
    /// As it is shown.
    pub store: String,
    /// Other machines use it too.
    pub shared: bool,
    /// The user was told that the lease was used there.
    pub told: bool,
}

/// The notes about leases on one store.
#[derive(Clone, Debug)]
pub struct SeenTokens {
    state: Option<StateDir>,
    store: String,
    /// The first error in writing a note; shared by all copies.
    trouble: Arc<OnceLock<String>>,
}

impl SeenTokens {
    /// Notes in `state` about the store named `store` (without secrets).
    pub fn new(state: StateDir, store: impl Into<String>) -> Self {
        Self { state: Some(state), store: store.into(), trouble: Arc::default() }
    }

    /// No notes at all.
    pub fn none() -> Self {
        Self { state: None, store: String::new(), trouble: Arc::default() }
    }

    fn file(&self, lease: &Name) -> Option<PathBuf> {
        self.state.as_ref().map(|state| state.memory_file(lease))
    }

    fn load(&self, lease: &Name) -> LeaseFile {
        let bytes = self.file(lease).and_then(|path| read_private(&path).ok().flatten());
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// The lease with its notes.
    pub fn recall(&self, lease: &Name) -> LeaseChoice {
        let entry = self.load(lease).stores.remove(&self.store).unwrap_or_default();
        let seen = entry.seen();
        // Readings of the boot-time clock of another boot do not compare.
        let watched =
            entry.watched.filter(|w| clock_domain().as_deref() == Some(w.clock.as_str())).map(|w| {
                WatchedRecord { write: w.write, since: BootTime(std::time::Duration::from_nanos(w.since_ns)) }
            });
        LeaseChoice { lease: lease.clone(), seen, watched }
    }

    /// Whether this lease was used on this store from here.
    pub fn knows(&self, lease: &Name) -> bool {
        self.load(lease).stores.contains_key(&self.store)
    }

    /// The writer of the run log beside these notes.
    pub fn log_writer(&self, retention: Retention) -> LogWriter {
        let state = self.state.clone();
        let unlogged = state.map(|state| Unlogged::new(state, Some(self.store.clone())));
        let writer = LogWriter::new(unlogged.unwrap_or_else(Unlogged::none), retention);
        if self.state.is_some() { writer.with_notes(self.clone()) } else { writer }
    }

    /// Other stores that this user used this lease on.
    pub fn others(&self, lease: &Name) -> Vec<OtherStore> {
        let others = self.load(lease).stores.into_iter().filter(|(store, _)| *store != self.store);
        // Without a note the kind of store decides.
        let kind = |store: &str| store_of(store).map_or(Reach::Machines, |kind| kind.reach);
        let shared = |store: &str, entry: &TokenEntry| entry.shared.unwrap_or(kind(store) == Reach::Machines);
        others
            .map(|(store, entry)| OtherStore { shared: shared(&store, &entry), told: entry.told, store })
            .collect()
    }

    /// Notes that the user was told of another store of this lease. Without the note the user is told again.
    pub fn told(&self, lease: &Name, other: &str) {
        let (Some(path), mut page) = (self.file(lease), self.load(lease)) else { return };
        if let Some(entry) = page.stores.get_mut(other) {
            entry.told = true;
            let _ = write(&path, &page);
        }
    }

    /// Makes sure, before the lease is taken, that its notes can be written: writes one, unless there is one, that
    /// the lease is kept on this store, and whether machines share it.
    pub fn remember_store(&self, lease: &Name, shared: bool) -> io::Result<()> {
        let Some(path) = self.file(lease) else { return Ok(()) };
        let mut page = self.load(lease);
        let known = page.stores.get(&self.store);
        if known.is_some_and(|entry| entry.shared == Some(shared)) {
            return Ok(());
        }
        page.stores.entry(self.store.clone()).or_default().shared = Some(shared);
        write(&path, &page)
    }

    /// Forgets the token that was seen on this store, so that the record there counts as it is. Gives that token.
    pub fn forget(&self, lease: &Name) -> io::Result<Option<SeenToken>> {
        let seen = self.recall(lease).seen;
        let mut page = self.load(lease);
        let (Some(path), Some(entry)) = (self.file(lease), page.stores.get_mut(&self.store)) else {
            return Ok(None);
        };
        (entry.epoch, entry.token, entry.watched) = (None, None, None);
        write(&path, &page).map(|()| seen)
    }

    /// Drops the notes about a lease on this store: its name is over. Best effort: a note that stays does no harm.
    pub fn drop_notes(&self, lease: &Name) {
        let Some(path) = self.file(lease) else { return };
        let mut page = self.load(lease);
        if page.stores.remove(&self.store).is_none() {
            return;
        }
        let _ = match page.stores.is_empty() && page.more.is_empty() {
            true => std::fs::remove_file(&path),
            false => write(&path, &page),
        };
    }

    /// Some notes about leases on this store that were not changed for this long, by the clock of the file system.
    pub fn some_old(&self, age: Duration, most: usize, random: u64) -> Vec<(Name, SeenToken)> {
        let names = self.state.as_ref().map(|state| state.remembered(age, LOOKED_AT)).unwrap_or_default();
        let first = usize::try_from(random).unwrap_or(0) % names.len().max(1);
        let turned = names[first..].iter().chain(&names[..first]);
        turned.filter_map(|lease| Some((lease.clone(), self.recall(lease).seen?))).take(most).collect()
    }

    /// The first error in writing a note.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.get().map(String::as_str)
    }

    /// Notes a token or a watched version. An error does not stop the job; [`SeenTokens::trouble`] gives it.
    pub fn remember(&self, lease: &Name, seen: Option<SeenToken>, watched: Option<WatchedRecord>) {
        let Some(path) = self.file(lease) else { return };
        let mut page = self.load(lease);
        let entry = page.stores.entry(self.store.clone()).or_default();
        // A run that was overtaken may write its note after the run that overtook it.
        if seen.zip(entry.seen()).is_some_and(|(seen, noted)| seen.is_behind(noted)) {
            return;
        }
        if let Some(seen) = seen {
            entry.epoch = Some(seen.epoch);
            entry.token = Some(seen.token);
        }
        entry.watched = watched.and_then(|watched| {
            let since_ns = u64::try_from(watched.since.0.as_nanos()).unwrap_or(u64::MAX);
            Some(EntryWatched { write: watched.write, since_ns, clock: clock_domain()?.to_owned() })
        });
        if let Err(e) = write(&path, &page) {
            let _ = self.trouble.set(format!("{}: {e}", path.display()));
        }
    }

    /// The path of the file of a lease, to show to people.
    pub fn place(&self, lease: &Name) -> String {
        self.file(lease).map(|path| path.display().to_string()).unwrap_or_default()
    }
}

fn write(path: &std::path::Path, page: &LeaseFile) -> io::Result<()> {
    write_private(path, &serde_json::to_vec(page)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_note_takes_nothing_back() {
        let place = std::env::temp_dir().join(format!("leasehold-memory-{:032x}", crate::random::seed()));
        let state = StateDir::at(place.clone());
        state.ensure().unwrap();
        let (memory, lease) = (SeenTokens::new(state, "dir:/x"), Name::new("site").unwrap());
        let seen =
            |epoch, token| Some(SeenToken { epoch: Epoch::first(epoch), token: Token::new(token).unwrap() });
        let watched = Some(WatchedRecord { write: WriteId(9), since: crate::clock::boot_time() });
        memory.remember(&lease, seen(1, 6), None);
        memory.remember(&lease, None, watched);
        memory.remember(&lease, seen(1, 5), None);
        let kept = memory.recall(&lease);
        assert_eq!((kept.seen, kept.watched), (seen(1, 6), watched), "from a run that was overtaken");
        memory.remember(&lease, seen(2, 1), None);
        assert_eq!(memory.recall(&lease).seen, seen(2, 1), "tokens of another epoch do not compare");
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn additions_are_carried_along() {
        let place = std::env::temp_dir().join(format!("leasehold-memory-{:032x}", crate::random::seed()));
        let state = StateDir::at(place.clone());
        state.ensure().unwrap();
        let (memory, lease) = (SeenTokens::new(state, "dir:/x"), Name::new("site").unwrap());
        let file = memory.file(&lease).unwrap();
        write_private(&file, br#"{"stores":{"dir:/x":{"more":{"colour":"red"}}},"more":{"size":7}}"#)
            .unwrap();
        memory.remember_store(&lease, true).unwrap();
        let seen = SeenToken { epoch: Epoch::first(1), token: Token::new(6).unwrap() };
        memory.remember(&lease, Some(seen), None);
        memory.forget(&lease).unwrap();
        let text = String::from_utf8(read_private(&file).unwrap().unwrap()).unwrap();
        assert!(
            text.contains(r#""more":{"colour":"red"}"#) && text.contains(r#""more":{"size":7}"#),
            "{text}"
        );
        std::fs::remove_dir_all(place).unwrap();
    }
}
