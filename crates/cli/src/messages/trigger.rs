//! `leasehold trigger`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `trigger` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "trigger",
    about: "`leasehold trigger JOB [SLOT]`: a slot of a job, now.",
    entries: &[NOTES, FAILURES],
};

notes! {
    started(slot) "{slot} is run now";
    done(slot, by) "skipped {slot}: done by {by}";
    not_run(slot, job) "skipped {slot}: its lease is held, or another run works on it. What is known of it: leasehold why {job}";
}

failures! {
    bad_slot(text, job, why) Usage "no_slot" { "{text} names no slot of {job}: {why}" "" "Its slots: leasehold plan {job}" }
    not_due(slot, job) Usage "no_slot" { "{slot} is not due yet" "" "Without a time the newest slot is run: leasehold trigger {job}" }
    /// Its record may have been removed after it was done.
    forgotten(slot, keep, job) NeedsYou "forgotten"
        { "{slot} has no record: such records are kept for {keep}" "It may have been done long ago"
          "The newest slot can be run: leasehold trigger {job}" }
    changed(slot, key) NeedsYou "changed" { "{slot} changed meanwhile" "" "Look at it: leasehold why {key}" }
    too_many_open(job) NeedsYou "too_many_open"
        { "too many slots of {job} are still to be run" "" "When some of them are over, try again: leasehold plan {job}" }
}
