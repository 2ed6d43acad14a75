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
    not_noted(why) "the observations of this run could not be saved: {why}";

    without_lease(why) "this run goes on without a lease: {why}";
    overlap(lease, held) "{lease} is {held}; this run goes on all the same";
    would_skip(item, why) "{item} would have been skipped: {why}";
    would_not_run(item, word, code) "{item} would not have been run ({word}, {code})";
    no_gates(why) "the job cannot pass its gates here: {why}";
    lost(why) "the job was not stopped, because this run only observes: {why}";

    ran_beside(lease, holder) "{holder} ran under {lease} at the same time as this run";
    overwrote(target, holder)
        "{target} is no longer as {holder} left it. That run started after this one, so newer work was overwritten";
    overwritten(target, holder)
        "{target} has the content that {holder} left, although that run started before this one. If this run \
         wrote there, its work was overwritten";

    changed(target, token) "{target} changed since the run with token {token} left it";
    accepted_write(target) "{target} meanwhile accepted 1 write that it would otherwise have refused";
    accepted_writes(target, writes)
        "{target} meanwhile accepted {writes} writes that it would otherwise have refused";
    no_answer(patience) "the targets did not answer within {patience}; this run goes on without them";
}

failures! {
    tail() Usage "usage"
        { "--observe leaves the output of the command alone, so --tail cannot keep any of it" "Nothing was run"
          "Leave out --tail, or --observe" }
}

explanations! {
    not_executed(why) { "cannot run the command: {why}" "" "" }
}
