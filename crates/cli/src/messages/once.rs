//! `leasehold once`: what it refuses. Everything else is said by `run` and about items.

#[cfg(test)]
use leasehold::messages::Catalogue;

use super::failures;

/// What only `once` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "once", about: "`leasehold once KEY`: its key.", entries: &[FAILURES] };

failures! {
    not_in_a_key(word) Usage "usage" { "{word} means nothing in the key of once" "Nothing was run" "" }
}
