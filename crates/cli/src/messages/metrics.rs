//! `leasehold metrics`.

#[cfg(test)]
use leasehold::messages::Catalogue;

use super::failures;

/// What `metrics` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "metrics",
    about: "`leasehold metrics`: counters of the run log, as OpenMetrics.",
    entries: &[FAILURES],
};

failures! {
    not_written(file, why) Config "not_written"
        { "cannot write {file}: {why}" "The file was not changed" "Its directory must exist and be writable" }
}
