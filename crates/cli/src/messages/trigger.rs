//! `leasehold trigger`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `trigger` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "trigger",
    about: "`leasehold trigger JOB [SLOT]`: run a slot of a job now.",
    entries: &[NOTES, FAILURES],
};

notes! {
    started(slot) "running {slot} now";
    done(slot, by) "skipped {slot}: done by {by}";
    not_run(slot, job) "skipped {slot}: its lease is held, or another run is working on it. Details: leasehold why \
                        {job}";
}

failures! {
    bad_slot(text, job, why) Usage "no_slot" { "{text} is not a slot of {job}: {why}" "" "To see its slots: leasehold \
                                                                                          plan {job}" }
    not_due(slot, job) Usage "no_slot" { "{slot} is not due yet" "" "To run the newest slot that is due: leasehold \
                                                                     trigger {job}" }
    /// Its record may have been removed after it was done.
    forgotten(slot, keep, job) NeedsYou "forgotten"
        { "{slot} has no record: such records are kept for {keep}" "It may have been done long ago"
          "To run the newest slot instead: leasehold trigger {job}" }
    changed(slot, key) NeedsYou "changed" { "the record of {slot} changed meanwhile" "" "Look again: leasehold why \
                                                                                         {key}" }
    too_many_open(job) NeedsYou "too_many_open"
        { "too many slots of {job} are already waiting to run" "" "Try again when some of them are over; see: \
                                                                   leasehold plan {job}" }
}
