//! `leasehold once`: what it refuses. Everything else is said by `run` and about items.

#[cfg(test)]
use leasehold::messages::Catalogue;

use super::failures;

/// What only `once` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "once", about: "`leasehold once KEY`: its key.", entries: &[FAILURES] };

failures! {
    not_in_a_key(word) Usage "usage" { "a key of `once` cannot contain {word}" "Nothing was run"
          "Only dates can be filled in there. See: leasehold help once" }
}
