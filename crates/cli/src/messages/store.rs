//! The store and the lease records in it: what every command says that asks a store.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What is said of a store that fails, and of records that Leasehold does not act on.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "store",
    about: "Every command that asks a store.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    /// Said on a terminal only.
    slow(store) "no answer yet from {store}; still waiting";
    not_remembered(why)
        "this machine could not save a note about the lease ({why}). Until it can, it cannot notice that the \
         record was deleted or the store was rewound. Free some disk space there";
    /// Follows a failure: the store may have carried out a claim without confirming it.
    claim_in_doubt() "The store may still accept the claim; if it does, the lease stays held until it expires";
}

failures! {
    bad_timing(why) Usage "usage" { "cannot use these times: {why}" "Nothing was run" "" }
    /// A target could not be fenced.
    not_fenced(why) Unreachable "seal_failed" { "a target could not be fenced: {why}" "Nothing was run" "" }
    item_not_run(why) Unreachable "item" { "cannot run the item: {why}" "Nothing was run" "" }

    newer_record(lease, store, bad) Config "config"
        { "{lease} on {store}: {bad}" "Nothing was changed" "Upgrade leasehold on this machine" }
    bad_record(lease, store, bad) NeedsYou "bad_record"
        { "{lease} on {store}: {bad}" "Nothing was changed, because two jobs could run at once"
          "Find out which program wrote there. Restore the record, or use another lease name" }
    /// The record has a smaller token than this machine has seen.
    rewound(store, found, lease, seen) NeedsYou "store_rewound"
        { "{store} has token {found} for {lease}, but this machine has seen {seen}: the store was rewound \
           (restored from a backup, or it lost writes)"
          "Nothing was run, because tokens would repeat"
          "Find out what happened to the store. When no job of {lease} runs any more: leasehold adopt {lease}" }
    vanished(store, lease, seen) NeedsYou "record_vanished"
        { "{store} has no record of {lease}, but this machine has seen token {seen} there: the record was deleted, \
           or this is another store under the same name"
          "Nothing was run, because a holder may still be at work under the lost record"
          "When no job of {lease} runs any more: leasehold adopt {lease}" }
    /// A record of this run is back, although another run had replaced it.
    returned(store, lease, token) NeedsYou "store_rewound"
        { "{store} shows an old claim of this run on {lease} (token {token}), which another run had already \
           replaced: the store was rewound (it lost writes, or was restored)"
          "Nothing was run, and the other run is stopped"
          "Find out what happened to the store; the next run may start when that claim has expired" }
    exhausted(lease) NeedsYou "tokens_exhausted"
        { "{lease} has used up its tokens (2^53 - 1)" "Nothing was run" "Use another lease name" }
}

explanations! {
    failed(store, why) { "store {store}: {why}" "" "" }
    /// The store did not pass its first test.
    not_tested(store, why) { "store {store}: {why}" "Nothing was run" "" }
    cannot_run(store, why, lease, late)
        { "store {store}: {why}"
          "Nothing was run, because without the store two machines could run {lease} at once" "{late}" }
    cannot_take(store, why, lease, late) { "store {store}: {why}" "{lease} was not taken" "{late}" }
    unconfirmed(store, why, lease)
        { "store {store}: {why}"
          "The change was sent but not confirmed, so it may have been made or may still be made"
          "See: leasehold status {lease}" }
    interrupted_run(late) { "interrupted before anything was run" "" "{late}" }
    interrupted_take(lease, late) { "interrupted before {lease} was taken" "" "{late}" }
    /// The machine cannot write down that the lease is kept on this store.
    not_noted(place, lease, store, why)
        { "this machine cannot note in {place} that {lease} is kept on {store}: {why}"
          "Nothing was run: without the note, a run on a wrong store or after a lost record would not be refused"
          "Free some disk space there, or give this user write permission, or set XDG_STATE_HOME to another directory" }
}
