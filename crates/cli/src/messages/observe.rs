//! `run --observe`: what it would have done, and what it saw.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What a run says that only observes.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "observe",
    about: "`leasehold run --observe`.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    observed(text) "observed: {text}";
    not_noted(why) "the observations of this run could not be written down: {why}";

    without_lease(why) "this run goes on without a lease: {why}";
    overlap(lease, held) "{lease} is {held}; this run goes on beside it";
    would_skip(item, why) "{item} would have been skipped: {why}";
    would_not_run(item, word, code) "{item} would not have been run ({word}, {code})";
    no_gates(why) "the job cannot pass its gates here: {why}";
    lost(why) "the job was not stopped, because this run only observes: {why}";

    ran_beside(lease, holder) "{lease} was run by {holder} beside this run";
    overwrote(target, holder)
        "{target} is no longer as {holder} left it, and that run started after this one: newer work was overwritten";
    overwritten(target, holder)
        "{target} has the content that {holder} left, and that run started before this one: if this run wrote there, its \
         work was overwritten";

    changed(target, token) "{target} changed since the run with token {token} left it";
    accepted_write(target) "{target} accepted 1 write meanwhile that would have been refused";
    accepted_writes(target, writes) "{target} accepted {writes} writes meanwhile that would have been refused";
    no_answer(patience) "the targets did not answer within {patience}; this run goes on without them";
}

failures! {
    tail() Usage "usage"
        { "--observe changes nothing, so it does not pass the output on for --tail" "Nothing was run"
          "Leave out --tail, or --observe" }
}

explanations! {
    not_executed(why) { "cannot run the command: {why}" "" "" }
}
