//! `leasehold read`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `read` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "read", about: "`leasehold read`.", entries: &[NOTES, FAILURES] };

notes! {
    standard_output() "standard output";
}

failures! {
    no_json() Usage "usage"
        { "`read` prints the content as it is, so --json cannot be used with it" "" "Leave out --json" }
    not_copied(to, why) Usage "to"
        { "cannot write to {to}: {why}" "The target was not changed" "Name another file with --to" }
}
