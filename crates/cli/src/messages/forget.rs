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
        "forgot {name} on {store}; records removed: {leases} of leases, {keys} of keys, {log} of the run log";
    would(name, store, leases, keys)
        "would forget {name} on {store}; records to remove: {leases} of leases, {keys} of keys. Nothing was removed. To \
         remove them, leave out --dry-run";
    nothing(name, store, age)
        "nothing to forget for {name} on {store}: no free lease and no finished key there has been unchanged for {age}";
    before(name, store) "nothing to forget: {name} was forgotten on {store} before";
    more_left(count) "and {count} more are left. To see all of them, add --json";
    /// A fence remembers the lease as it was.
    still_fenced(target, typed)
        "{target} still has the fence of a lease that was forgotten, and refuses its next runs (79) until you run: \
         leasehold fence reset {typed}";
}

failures! {
    too_young(age, least) Usage "usage"
        { "--older-than {age} is too short" "Nothing was removed"
          "Use at least {least}: a message to the store may be late, and must not bring a record back" }
    /// The store has no clock.
    no_ages(store) Usage "no_ages"
        { "{store} does not know how old its records are" "Nothing was removed"
          "Names can be forgotten only on a store that has a clock" }
    bad_record(key, store, bad) NeedsYou "bad_record"
        { "{key} on {store}: {bad}" "Nothing more was removed, because other machines would refuse the lease"
          "Upgrade leasehold on this machine, or find out what wrote there and remove that record" }
}
