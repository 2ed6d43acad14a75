//! `leasehold gate`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What `gate` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "gate", about: "`leasehold gate`.", entries: &[NOTES, FAILURES, EXPLANATIONS] };

notes! {
    would_be_refused(what) "this command {what}";
}

failures! {
    late(target) Refused "stale"
        { "start refused: the lease of this run may have ended while {target} was checked"
          "The command was not started" "Run the job again" }
    /// A lease that was taken by hand.
    not_held(lease, token, store, target) Refused "stale"
        { "start refused: {lease} is not held under your token {token} on {store} ({target})"
          "The command was not started" "See who holds it: leasehold status {lease}" }
}

explanations! {
    /// The command was not found, or cannot be executed.
    no_command(why) { "{why}" "Nothing was run" "" }
    no_answer(target, why) { "the store could not be asked about {target}: {why}" "Nothing was run" "" }
}
