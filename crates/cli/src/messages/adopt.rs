//! `leasehold adopt`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "adopt", about: "`leasehold adopt`.", entries: &[NOTES, FAILURES] };

notes! {
    nothing_lost(lease, store)
        "nothing to adopt: as far as this machine knows, {store} has lost no record of {lease}";
    accepted(lease, store, found, seen)
        "{lease} has {found} on {store}, and this machine accepts that from now on. It had seen token {seen}";
    token(token) "token {token}";
    no_record() "no record";
    later_fences()
        "a target that was fenced with a later token refuses the next runs (79) until you run: leasehold fence reset \
         TARGET";
    lost_items()
        "if the store has lost a key or a slot that this machine saw started or done, that item is refused (78) until \
         you run it with --new-here";
}

failures! {
    still_runs(lease, processes) Busy "busy"
        { "a job of {lease} still runs here, and the store has lost its lease: {processes}" "Nothing was changed"
          "Wait until it has ended, or end it; then run: leasehold adopt {lease}" }
    not_written(lease, path, why) Config "state"
        { "{path} cannot be written: {why}" "{lease} is still refused"
          "Free some disk space, or give this user write permission there; then run: leasehold adopt {lease}" }
}
