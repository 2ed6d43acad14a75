//! Checks of what every store must do. Run them on your own store.
//!
//! ```
//! use leasehold::stores::conformance::{Harness, suite};
//! use leasehold::backends::memory::MemoryStore;
//!
//! // `make` is called once per check and gives an empty store; `Harness` opens handles on it.
//! suite(&|| {
//!     let store = MemoryStore::new().unwrap();
//!     Harness::new(move || Box::new(store.clone()))
//! });
//! ```

mod races;
mod rules;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use races::*;
pub use rules::*;

use super::{BatchWrite, Cas, Failure, Listed, Store, Stored, Version};
use leasehold_core::ids::WriteId;
use leasehold_core::time::BootTime;
use pollster::block_on;

/// A rule that a store breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// The sentence.
    pub text: String,
    /// The failed call, if the store did not answer. Nothing: it answered, and the answer is wrong.
    pub failure: Option<Failure>,
    /// Several writers won one race.
    pub many_winners: bool,
}

impl From<String> for BrokenRule {
    fn from(text: String) -> Self {
        Self { text, failure: None, many_winners: false }
    }
}

impl From<&str> for BrokenRule {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl BrokenRule {
    /// A wrong or missing answer to `what`.
    fn answer(what: &str, got: &Cas) -> Self {
        match got {
            Cas::Unknown(failure) => {
                let text = format!("{what} got no answer: {}", failure.message);
                Self { failure: Some(failure.clone()), ..text.into() }
            }
            Cas::Conflict => format!("{what} was refused.").into(),
            Cas::Written { .. } => format!("{what} was accepted.").into(),
        }
    }

    fn failed(what: &str, failure: Failure) -> Self {
        let text = format!("{what} failed: {}", failure.message);
        Self { failure: Some(failure), ..text.into() }
    }
}

/// One check.
pub type Check = fn(&Harness) -> Result<(), BrokenRule>;

/// How to open handles on one store that is empty at first.
#[derive(Clone)]
pub struct Harness {
    open: Arc<dyn Fn() -> Box<dyn Store> + Send + Sync>,
    /// How hard the checks try.
    pub effort: Effort,
}

/// How hard the checks try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Writers at once, each with its own thread and handle.
    pub writers: usize,
    /// How often they race for one version.
    pub rounds: usize,
    /// How many lines each writer adds in the check for lost updates.
    pub lines: usize,
    /// How many steps a check makes on one key, at most.
    pub steps: u8,
    /// No round starts after this.
    pub until: Option<BootTime>,
}

impl Default for Effort {
    fn default() -> Self {
        Self { writers: 32, rounds: 20, lines: 6, steps: 12, until: None }
    }
}

impl Harness {
    /// A harness. Its calls block, as those of a run do, so a store whose client needs a runtime must bring one.
    pub fn new(open: impl Fn() -> Box<dyn Store> + Send + Sync + 'static) -> Self {
        Self { open: Arc::new(open), effort: Effort::default() }
    }

    /// The same with another effort.
    pub fn trying(mut self, effort: Effort) -> Self {
        self.effort = effort;
        self
    }

    /// Another handle on the same store.
    pub fn open(&self) -> StoreHandle {
        StoreHandle { store: (self.open)() }
    }
}

/// A store whose calls block, and whose failures are given as broken rules.
pub struct StoreHandle {
    store: Box<dyn Store>,
}

impl StoreHandle {
    /// What the store says about itself.
    pub fn facts(&self) -> super::StoreFacts {
        self.store.facts()
    }

    /// [`Store::read`].
    pub fn read(&mut self, key: &str) -> Result<Option<Stored>, BrokenRule> {
        block_on(self.store.read(key)).map_err(|f| BrokenRule::failed(&format!("Reading {key:?}"), f))
    }

    /// [`Store::read`] of a key that must be there.
    pub fn get(&mut self, key: &str) -> Result<Stored, BrokenRule> {
        self.read(key)?.ok_or_else(|| format!("{key:?} was written and is not there.").into())
    }

    /// [`Store::cas`] with a fresh write id.
    pub fn cas(&mut self, key: &str, expected: Option<&Version>, body: &[u8]) -> Result<Cas, BrokenRule> {
        self.cas_as(key, expected, fresh()?, body)
    }

    /// [`Store::cas`].
    pub fn cas_as(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        write: WriteId,
        body: &[u8],
    ) -> Result<Cas, BrokenRule> {
        Ok(block_on(self.store.cas(key, expected, write, body)))
    }

    /// [`Store::cas_with`] with fresh write ids.
    pub fn cas_with(
        &mut self,
        key: &str,
        expected: &Version,
        body: &[u8],
        with: &str,
    ) -> Result<Option<Cas>, BrokenRule> {
        let write = |key: &str, expected, body: &[u8]| {
            fresh().map(|write| BatchWrite { key: key.into(), expected, write, body: body.into() })
        };
        let (first, with) = (write(key, Some(expected.clone()), body)?, write(with, None, b"with")?);
        Ok(block_on(self.store.cas_with(&first, &with)))
    }

    /// [`Store::list`].
    pub fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, BrokenRule> {
        block_on(self.store.list(prefix, after, limit))
            .map_err(|f| BrokenRule::failed(&format!("Listing {prefix:?}"), f))
    }

    /// [`Store::remove`].
    pub fn remove(&mut self, key: &str, version: &Version) -> Result<Cas, BrokenRule> {
        Ok(block_on(self.store.remove(key, version)))
    }

    /// A write that must succeed; gives its version.
    pub fn write(
        &mut self,
        key: &str,
        expected: Option<&Version>,
        body: &[u8],
    ) -> Result<Version, BrokenRule> {
        match self.cas(key, expected, body)? {
            Cas::Written { version, .. } => Ok(version),
            other => Err(BrokenRule::answer(&format!("A write to {key:?} without another writer"), &other)),
        }
    }

    /// An error unless the attempt met a conflict and left the key as it was.
    fn refused(
        &mut self,
        key: &str,
        what: &str,
        got: &Cas,
        before: Option<&Stored>,
    ) -> Result<(), BrokenRule> {
        if *got != Cas::Conflict {
            return Err(BrokenRule::answer(what, got));
        }
        let after = self.read(key)?;
        let same = after.as_ref().map(|s| (&s.version, &s.body)) == before.map(|s| (&s.version, &s.body));
        ensure(same, || format!("{what} was refused, and yet the key changed."))
    }
}

/// A write id that was never used.
pub fn fresh() -> Result<WriteId, BrokenRule> {
    Ok(WriteId(crate::random::seed()))
}

fn ensure(good: bool, message: impl FnOnce() -> String) -> Result<(), BrokenRule> {
    if good { Ok(()) } else { Err(message().into()) }
}

/// Every check by name. The first ones decide whether two runs can hold one lease.
pub const CHECKS: &[(&str, Check)] = &[
    ("compares_and_sets", compares_and_sets),
    ("stale_holder", stale_holder),
    ("late_landing_write", late_landing_write),
    ("recreated_record", recreated_record),
    ("create_if_absent", create_if_absent),
    ("read_your_writes", read_your_writes),
    ("equal_bodies_differ_in_version", equal_bodies_differ_in_version),
    ("remove_needs_the_version", remove_needs_the_version),
    ("listing", listing),
    ("keys", keys),
    ("bodies", bodies),
    ("ages", ages),
    ("written_together", written_together),
    ("identity", identity),
    ("racing_creates", racing_creates),
    ("racing_updates", racing_updates),
    ("no_lost_update", no_lost_update),
];

/// Runs every check, each on a new store, and gives its result.
pub fn findings(make: &dyn Fn() -> Harness) -> Vec<(&'static str, Result<(), BrokenRule>)> {
    CHECKS.iter().map(|(name, check)| (*name, check(&make()))).collect()
}

/// How long a call may take in [`suite`]. It is long, so that a busy machine does not look like a bad store.
const SUITE_CALL_LIMIT: Duration = Duration::from_secs(60);

/// Runs every check, and panics with all broken rules.
///
/// # Panics
/// If a rule is broken.
pub fn suite(make: &dyn Fn() -> Harness) {
    let patient = || {
        let Harness { open, effort } = make();
        let open = move || {
            let mut store = open();
            store.limit_calls(SUITE_CALL_LIMIT);
            store
        };
        Harness::new(open).trying(effort)
    };
    let wrong: Vec<String> = findings(&patient)
        .into_iter()
        .filter_map(|(name, found)| found.err().map(|e| format!("{name}: {e}")))
        .collect();
    assert!(wrong.is_empty(), "this store is not safe to use:\n{}", wrong.join("\n"));
}
