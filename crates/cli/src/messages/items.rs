//! Keys and slots: what `run`, `once` and the runs of a scheduler say about them.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What a run says about its key or slot.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "items",
    about: "Keys and slots: `leasehold run` with `--key`, `--slot` or `--cooldown`, `leasehold once`, and slots.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    /// The one line of a run that did not start because its item is done, or is being done.
    skipped(item, why) "skipped {item}: {why}";
    cooling_down(by, cooldown) "its last successful run ({by}) is within the cooldown of {cooldown}";
    done(by) "done by {by}";
    not_wanted(told) "it was already skipped ({told})";
    in_progress(by, lease) "in progress, started by {by} under {lease}";
    over() "this slot is over: it was dropped, or it was done so long ago that its record was removed";

    by(holder, token, ago) "{holder} (token {token}){ago}";
    by_hand(who, ago) "hand ({who}){ago}";
    ago(time) "{time} ago";
    once() "once";
    times(count) "{count} times";

    lost_half_way() "stopped halfway because its lease was lost";
    stopped_half_way() "stopped halfway";
    silent() "never reported how it ended (it was killed, its machine died, or it could not reach the store)";
    too_late(ago) "; it was first started {ago} ago, and by now the provider may have forgotten the key";
    no_age() "; the store cannot tell how long ago it was first started";
    too_often(silences)
        "; {silences} runs in a row never reported how they ended, so it is not run again automatically";
    one_step_done() ". 1 of its steps is done and would not be run again";
    steps_done(count) ". {count} of its steps are done and would not be run again";
    maybe_recorded() ". It may already be recorded as started; if so, the next run asks you (79)";

    ended_unknown(item, quoted)
        "{item} was stopped halfway and may have done its work, so the next run asks you (79). Check whether it did; \
         then type leasehold retry {quoted} to run it again, or leasehold retry --done {quoted} to record it as done";
    unrecorded_silent(item)
        "the outcome of {item} was not recorded, because another run presumed this one dead and recorded the outcome \
         as unknown. The next run asks you (79)";
    unrecorded_changed(item, by) "the outcome of {item} was not recorded: its record was meanwhile changed{by}";
    changed_by(by) " by {by}";
    unrecorded_perhaps(item, why)
        "it is unknown whether the outcome of {item} was recorded: {why}. If it was not, the next run asks you (79)";
    unrecorded(item) "the outcome of {item} was not recorded, so the next run asks you (79)";

    slot_no_time() "that is not a time with an offset from UTC";
    slot_interval() "the interval must be a whole number of seconds";
    slot_fraction() "a slot cannot contain a fraction of a second";
    /// A time that is neither; the reason is about a duration.
    no_instant(why) "{why}; or write a time, as 03:00, \"yesterday 03:00\", 2026-11-16 or 2026-11-16T05:45Z";
    slot_leap() "the seconds of a minute are 0 to 59";
}

failures! {
    lone_provider_keeps() Usage "usage"
        { "--provider-keeps works only with --if-unknown retry" "Nothing was run" "Add --if-unknown retry" }
    no_item() Usage "usage"
        { "--attempts, --keep, --if-unknown, --provider-keeps and --new-here work only with --key or --slot"
          "Nothing was run" "" }
    bad_key(most, bytes) Usage "usage"
        { "a key must have 1 to {most} bytes, but this one has {bytes}" "Nothing was run" "" }
    bad_slot(slot, why) Usage "usage"
        { "--slot {slot}: {why}" "Nothing was run"
          "Write a time with its offset, such as 2026-11-16T05:45Z or 2026-11-16T14:45+09:00; or write now/15m \
           for the nearest multiple of 15 minutes" }
    no_clock(store) Config "config"
        { "{store} cannot tell how long ago something was written, so --cooldown, --keep and --provider-keeps \
           cannot work there"
          "Nothing was run" "Use --key or --slot alone, or a store with a clock" }
    /// A run started it and never reported; a person has to decide.
    unknown(item, by, how, doubt, steps, quoted) NeedsYou "outcome_unknown"
        { "{item} was started by {by} and {how}{doubt}" "It may have done its work, so nothing was run{steps}"
          "Check whether it did; then type leasehold retry {quoted} to run it again, or leasehold retry --done {quoted} \
           to record it as done" }
    /// It failed as often as it may.
    quarantined(item, times, by, quoted) NeedsYou "quarantined"
        { "{item} failed {times} (last by {by}) and waits for you" "Nothing was run"
          "Find out what is wrong; then: leasehold retry {quoted}" }
    bad_record(item, store, why) NeedsYou "bad_record"
        { "{item} on {store}: {why}" "Nothing was changed and nothing was run, because it may be done already" "" }
}

explanations! {
    /// The store did not say whether the item may run.
    not_asked(why, store, item, late) { "{why} ({store})" "Nothing was run: {item} may be done already{late}" "" }
}
