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
        "{lease} stays as it is: {store} has lost nothing of it that this machine has seen";
    accepted(lease, store, found, seen)
        "{lease} is accepted as {store} has it: {found}, where this machine had seen token {seen}";
    token(token) "token {token}";
    no_record() "no record";
    later_fences()
        "a target that was fenced with a later token refuses the next runs (79) until you run: leasehold fence reset \
         TARGET";
    lost_items()
        "a key or a slot that this machine saw started or done, and that the store has lost, is refused (78) until a run \
         says --new-here";
}

failures! {
    still_runs(lease, processes) Busy "busy"
        { "a job of {lease} still runs here, and the store has lost its lease: {processes}" "Nothing was changed"
          "Wait until it has ended, or end it; then run: leasehold adopt {lease}" }
    not_written(lease, path, why) Config "state"
        { "{path} cannot be written: {why}" "{lease} is refused as before"
          "Make room there, or give the rights; then run: leasehold adopt {lease}" }
}
