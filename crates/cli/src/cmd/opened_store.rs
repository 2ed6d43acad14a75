//! Opening the store that a command uses, with what this machine remembers about it.

use std::sync::Arc;

use leasehold::backends::{self, Holders};
use leasehold::core::name::Name;
use leasehold::core::timing::{Timing, TimingWishes};
use leasehold::doctor::{FirstUse, FirstUseNotes, Tell};
use leasehold::run_log::LogWriter;
use leasehold::seen_tokens::SeenTokens;
use leasehold::state::{StateDir, is_denial};
use leasehold::stores::Store;
use leasehold_run::notify::AlertSettings;

use super::slow_store_notice::SlowStoreNotice;
use crate::args::Everywhere;
use crate::config::{self, Chosen, Missing, Wishes};
use crate::exit::{FailKind, Failed, by_kind};
use crate::messages::store as say;
use crate::out::Out;

/// An opened store, with what this machine remembers about it.
pub struct OpenedStore {
    /// Which store.
    pub chosen: Chosen,
    /// The store itself.
    pub store: Box<dyn Store>,
    /// The tokens that this machine has seen there.
    pub memory: SeenTokens,
    /// Writes the run log there.
    pub log: LogWriter,
    /// Who is told if something goes wrong.
    pub alerts: Option<AlertSettings>,
    /// Where this user keeps state.
    pub state: StateDir,
}

/// Chooses and opens the store. If no store is named, none of `leases` may have run on another one.
pub fn open(flags: &Everywhere, leases: &[Name]) -> Result<OpenedStore, Failed> {
    open_for(flags, leases, Holders::Here)
}

/// The same, for holders that may be elsewhere.
pub fn open_for(flags: &Everywhere, leases: &[Name], holders: Holders) -> Result<OpenedStore, Failed> {
    let state = config::state_dir()?;
    let chosen = config::choose(flags, &state)?;
    let memory = SeenTokens::new(state.clone(), chosen.shown.clone());
    let out = Out::new(flags);
    for lease in leases {
        config::refuse_wrong_store(&chosen, &memory, lease, &out)?;
    }
    let store = config::open_for(&chosen, Missing::Refuse, holders)?;
    if let Some(ignored) = backends::ignored(&chosen.url) {
        out.note(&ignored);
    }
    let Wishes { retention, alerts } = config::wishes(flags);
    let log = memory.log_writer(retention);
    Ok(OpenedStore { chosen, store, memory, log, alerts, state })
}

/// Opens the store for a command that takes a lease: a store that machines share is tested on first use.
pub fn open_tested(flags: &Everywhere, leases: &[Name]) -> Result<OpenedStore, Failed> {
    tested(open(flags, leases)?, flags)
}

/// Tests that a shared store compares and sets, unless this user has tested it on this machine before.
pub fn tested(opened: OpenedStore, flags: &Everywhere) -> Result<OpenedStore, Failed> {
    if opened.store.facts().this_machine_only {
        return Ok(opened);
    }
    let OpenedStore { chosen, store, memory, log, alerts, state } = opened;
    let notes = FirstUseNotes::new(&state, &chosen.url, &chosen.shown);
    let out = Out::new(flags);
    let notice = SlowStoreNotice::begin(&out, &chosen);
    let tell: Tell = Arc::new(move |text: &str| out.note(text));
    let tested = FirstUse::begin(store, config::examined_opener(&chosen), notes, tell);
    drop(notice);
    let failed = |failure: leasehold::stores::Failure| {
        by_kind(failure.kind, say::not_tested(&chosen.shown, failure.message))
    };
    let store = tested.map_err(failed)?;
    Ok(OpenedStore { chosen, store, memory, log, alerts, state })
}

/// Notes, before a lease is asked for, that it is kept on this store: without the note this machine could not protect
/// the lease later. Done once for each lease and store.
pub fn remember_store(opened: &OpenedStore, leases: &[Name]) -> Result<(), Failed> {
    if opened.chosen.embedded {
        return Ok(());
    }
    let shared = !opened.store.facts().this_machine_only;
    leases.iter().try_for_each(|lease| {
        opened.memory.remember_store(lease, shared).map_err(|e| {
            let kind = if is_denial(&e) { FailKind::Denied } else { FailKind::Config };
            let told = say::not_noted(opened.memory.place(lease), lease, &opened.chosen.shown, e);
            Failed::new(kind, "state", told)
        })
    })
}

/// Warns if something could not be remembered. The embedded store is in the same place, so it fails by itself.
pub fn warn_unremembered(memory: &SeenTokens, chosen: &Chosen, out: &Out) {
    if let Some(trouble) = memory.trouble().filter(|_| !chosen.embedded) {
        out.warn(&say::not_remembered(trouble));
    }
}

/// Checked timing for this store.
pub fn timing(wishes: TimingWishes, store: &dyn Store) -> Result<Timing, Failed> {
    leasehold::stores::timing(wishes, store).map_err(say::bad_timing)
}
