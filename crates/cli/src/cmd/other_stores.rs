//! What was done on another store: not done again on this one, unless somebody says that it is new here.

use leasehold::core::ledger::Subject;
use leasehold::ledger::Item;
use leasehold::other_stores::{OtherStores, UnknownHere, answered};
use leasehold::state::StateDir;
use leasehold_run::runner::run::RunSpec;

use super::{OpenedStore, by_kind, item_args};
use crate::config::Chosen;
use crate::exit::{FailKind, Failed};
use crate::out::Out;

/// Refuses a key or a slot that this machine saw on another store, unless the store in use answers for it. `new_here`:
/// somebody says that it is to be done here; then it is not asked again for these stores.
pub fn refuse(spec: &mut RunSpec, opened: &mut OpenedStore, new_here: bool) -> Result<(), Failed> {
    let Some(elsewhere) = &mut spec.seen else { return Ok(()) };
    for Item { subject, keep, .. } in [&spec.item, &spec.key].into_iter().flatten() {
        let others = elsewhere.others(subject, *keep);
        let [other, ..] = &others[..] else { continue };
        let (name, here) = (item_args::shown(subject), &opened.chosen.shown);
        let answered = answered(opened.store.as_mut(), subject, *keep).map_err(|failure| {
            let why = failure.message.trim_end_matches('.');
            by_kind(failure.kind, format!("{why} ({here}). Nothing was run: {name} may be done already."))
        });
        if !answered? {
            if !new_here {
                return Err(refusal(subject, other, &opened.chosen));
            }
            tell(elsewhere, &others, &opened.chosen)?;
        }
        elsewhere.pass(subject, others);
    }
    Ok(())
}

/// An item that is not run because of what this machine saw on another store.
pub fn refusal(subject: &Subject, other: &str, chosen: &Chosen) -> Failed {
    let (name, here) = (item_args::shown(subject), &chosen.shown);
    let message = format!(
        "{name} was begun or done on {other} from this machine, and {here} does not say that it was done. Nothing was run: it \
         could be done twice. If it was done there: `leasehold retry --done {}` records it as done on {here}. If all keys and \
         slots that this machine saw there are new here, not only this one, say so once: --new-here on the same command, or \
         new_here = [{other:?}] beside store in leasehold.toml",
        item_args::quoted(&name)
    );
    Failed::new(FailKind::Config, "other_store", message)
}

/// What the file says that names the store, for the runs of a scheduler too: they do not read the file.
pub fn told_by_file(opened: &OpenedStore) -> Result<(), Failed> {
    let OpenedStore { chosen, state, .. } = opened;
    match &chosen.new_here[..] {
        [] => Ok(()),
        others => tell(&OtherStores::new(state, &chosen.shown), others, chosen),
    }
}

/// Remembers that what was seen on these stores is new on this one.
pub fn tell(elsewhere: &OtherStores, others: &[String], chosen: &Chosen) -> Result<(), Failed> {
    elsewhere.new_here(others).map_err(|e| {
        let message = format!(
            "this machine cannot note that what was done on {} is new on {}: {e}. Nothing was run. Make room or give the rights \
             in the state directory",
            others.join(", "),
            chosen.shown
        );
        Failed::new(FailKind::Config, "state", message)
    })
}

/// What this machine saw on the store in use is refused from now on, unless the store still knows it.
pub fn set_aside(chosen: &Chosen, state: &StateDir) -> Result<(), Failed> {
    OtherStores::new(state, &chosen.shown).set_aside().map_err(|e| {
        let message = format!(
            "this machine cannot note that {} may have lost what was done there: {e}. Make room or give the rights in the state \
             directory",
            chosen.shown
        );
        Failed::new(FailKind::Config, "state", message)
    })
}

/// Warns of what this machine could not note.
pub fn warn_unnoted<E: std::fmt::Display>(subject: &Subject, why: &E, out: &Out) {
    out.warn(&format!(
        "this machine could not note what became of {}: {why}. If it is asked for on another store, it is done there again",
        item_args::shown(subject)
    ));
}

/// "3 keys and slots of 2 jobs"
pub fn counted(unknown: &UnknownHere) -> String {
    let many = |n: usize, one: &str, more: &str| match n {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {more}")),
    };
    let keys = many(unknown.keys, "key", "keys");
    let jobs = many(unknown.jobs, "job", "jobs").map(|jobs| format!("slots of {jobs}"));
    keys.into_iter().chain(jobs).collect::<Vec<_>>().join(" and ")
}
