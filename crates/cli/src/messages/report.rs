//! Reports, and output that cannot be written.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What is said when a report or the output of a command cannot be written.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "report",
    about: "`--report`, `--report-append`, `--json`, and output that cannot be written.",
    entries: &[NOTES, FAILURES],
};

notes! {
    object_lost(outcome)
        "the run ended ({outcome}), but the JSON object could not be written to stdout (is the disk full?)";
    file_lost(outcome, path, why)
        "the run ended ({outcome}), but its report could not be written to {path}: {why}";
}

failures! {
    unwritable(path, why) Config "report" { "the report could not be written to {path}: {why}" "Nothing was run" "" }
    output_lost() Config "output" { "the output could not be written (is the disk full?)" "" "" }
}
