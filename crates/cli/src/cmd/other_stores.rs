//! Work that was done on another store: it is not repeated on this one, unless somebody says that it is new here.

use leasehold::core::ledger::Subject;
use leasehold::ledger::Item;
use leasehold::other_stores::{OtherStores, UnknownHere, answered};
use leasehold::state::StateDir;
use leasehold_run::runner::run::RunSpec;

use super::{OpenedStore, item_args, store_failed};
use crate::config::Chosen;
use crate::exit::Failed;
use crate::messages::other_stores as say;
use crate::out::Out;

/// Refuses a key or a slot that this machine saw on another store, unless the store in use knows it as done. With
/// `new_here` it may be done here, and items of that other store are not refused any more.
pub fn refuse(spec: &mut RunSpec, opened: &mut OpenedStore, new_here: bool) -> Result<(), Failed> {
    let Some(seen) = &mut spec.seen else { return Ok(()) };
    for Item { subject, keep, .. } in [&spec.item, &spec.key].into_iter().flatten() {
        let others = seen.others(subject, *keep);
        let [other, ..] = &others[..] else { continue };
        let answered = answered(opened.store.as_mut(), subject, *keep).map_err(|failure| {
            store_failed(&failure, &opened.chosen).meaning(say::perhaps_done(item_args::shown(subject)))
        });
        if !answered? {
            if !new_here {
                return Err(refusal(subject, other, &opened.chosen));
            }
            note_new_here(seen, &others, &opened.chosen)?;
        }
        seen.pass(subject, others);
    }
    Ok(())
}

/// An item that is not run because of what this machine saw on another store.
pub fn refusal(subject: &Subject, other: &str, chosen: &Chosen) -> Failed {
    let name = item_args::shown(subject);
    say::seen_there(&name, other, &chosen.shown, item_args::quoted(&name), format!("{other:?}"))
}

/// Notes `new_here` of the file that names the store: a scheduler's runs do not read that file.
pub fn told_by_file(opened: &OpenedStore) -> Result<(), Failed> {
    let OpenedStore { chosen, state, .. } = opened;
    match &chosen.new_here[..] {
        [] => Ok(()),
        others => note_new_here(&OtherStores::new(state, &chosen.shown), others, chosen),
    }
}

/// Remembers that work which was seen on these stores is new on this one.
pub fn note_new_here(seen: &OtherStores, others: &[String], chosen: &Chosen) -> Result<(), Failed> {
    seen.new_here(others).map_err(|e| say::new_here_unnoted(others.join(", "), &chosen.shown, e))
}

/// The store may have lost records: work that this machine saw there is refused, unless the store still knows it.
pub fn set_aside(chosen: &Chosen, state: &StateDir) -> Result<(), Failed> {
    let aside = OtherStores::new(state, &chosen.shown).set_aside();
    aside.map_err(|e| say::loss_unnoted(&chosen.shown, e))
}

/// Warns that this machine could not note the outcome of an item.
pub fn warn_unnoted<E: std::fmt::Display>(subject: &Subject, why: &E, out: &Out) {
    out.warn(&say::unnoted(item_args::shown(subject), why));
}

/// "3 keys and slots of 2 jobs"
pub fn counted(unknown: &UnknownHere) -> String {
    let keys = if unknown.keys == 1 { say::key() } else { say::keys(unknown.keys) };
    let slots = if unknown.jobs == 1 { say::slots_of_a_job() } else { say::slots(unknown.jobs) };
    match (unknown.keys, unknown.jobs) {
        (_, 0) => keys,
        (0, _) => slots,
        _ => say::keys_and_slots(keys, slots),
    }
}
