//! `leasehold retry`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What `retry` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "retry",
    about: "`leasehold retry`: a person decides about an item.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    left(item, why) "{item} is left as it is: {why}";
    is_done() "it is done";
    is_planned(who) "a retry is already allowed; {who}";
    is_running(lease) "a run is working on it; wait until it ends, or stop it: leasehold break {lease}";
    done(item) "{item} is recorded as done";
    again(item, who) "{item} may be run again; {who}";

    by_the_next_run() "the next run starts it";
    by_nobody(most, job)
        "{most} slots of {job} already wait to be tried again, and a scheduler accepts no more. Retry this one \
         again when some of them are done";
    after_resume(job) "the job is paused; a daemon or the next tick runs it after `leasehold resume {job}`";
    by_a_scheduler() "`leasehold tick` runs it now, and a daemon when the job is next due";
    by_slot(slot, job) "the next run of {job} with --slot {slot} starts it, because no scheduler knows the job";
}

failures! {
    no_record(item, store) Usage "usage"
        { "{item} has no record on {store}: it was never started there, or its slot was dropped, or its record \
           was removed"
          "" "See what is recorded: leasehold history" }
    not_an_item(name) Usage "usage"
        { "{name} is a lease or a job, and what is retried is a key or a slot" ""
          "To list its keys and slots: leasehold history {name}" }
    bad_record(item, why) NeedsYou "bad_record" { "{item}: {why}" "" "" }
    changed(item, quoted) NeedsYou "changed"
        { "the record of {item} changed meanwhile" "" "Look again: leasehold why {quoted}" }
}

explanations! {
    unconfirmed(why, quoted) { "{why}" ""
        "Your decision may have been recorded all the same; see: leasehold why {quoted}" }
}
