//! `leasehold forget`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "forget", about: "`leasehold forget`.", entries: &[NOTES, FAILURES] };

notes! {
    forgot(name, store, leases, keys, log)
        "forgot {name} on {store}; records removed: leases {leases}, keys {keys}, run log {log}";
    would(name, store, leases, keys)
        "would forget {name} on {store}; records to remove: leases {leases}, keys {keys}. Nothing was removed; to \
         remove them, leave out --dry-run";
    nothing(name, store, age)
        "nothing to forget for {name} on {store}: it has no free lease and no finished key there that has been \
         unchanged for {age}";
    before(name, store) "nothing to forget: {store} has forgotten {name} already";
    more_left(count) "{count} more remain. To list them all, add --json";
    /// A fence remembers the lease as it was.
    still_fenced(target, typed)
        "{target} still has the fence of a forgotten lease, and refuses later runs of that lease (79) until you type: \
         leasehold fence reset {typed}";
}

failures! {
    too_young(age, least) Usage "usage"
        { "--older-than {age} is too short" "Nothing was removed"
          "Use at least {least}, so that a late message cannot restore a removed record" }
    /// The store has no clock.
    no_ages(store) Usage "no_ages"
        { "{store} cannot tell how old its records are" "Nothing was removed"
          "Only a store with a clock can forget names" }
    bad_record(key, store, bad) NeedsYou "bad_record"
        { "{key} on {store}: {bad}" "Nothing more was removed, because other machines would refuse the lease"
          "Upgrade leasehold on this machine, or find out which program wrote that record, and remove it" }
}
