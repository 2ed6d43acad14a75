//! `leasehold step`; `gate` says the same about a run that does not answer.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What `step` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "step",
    about: "`leasehold step`; `leasehold gate` says the same about a run that does not answer.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

/// What it means that the run did not answer: before the command was started.
pub const NOT_RUN: &str = "Nothing was run";
/// The same, after the command ended well.
pub const NOT_RECORDED: &str = "The step is done, but that is not recorded";

notes! {
    /// The step is done already.
    skipped(step, token, output) "skipped step {step}: already done under token {token}{output}";
    no_output() "; its output was not kept";
    the_step(step) "step {step}";
    no_room_for_output(step)
        "step {step} is recorded as done, but without its output, because the record of its item is nearly full";
    output_not_kept(step, most)
        "step {step} is done, but its output was not kept, because it is longer than {most} bytes or is not text";
}

failures! {
    no_item(step) Usage "usage"
        { "step {step} is not inside a run with a key or a slot" "Nothing was run"
          "Use it inside one: leasehold once KEY -- sh -c 'leasehold step {step} -- …'" }
    busy(step) Usage "usage"
        { "another process of this run is already running step {step}" "Nothing was run" "" }
    full(step) Config "full"
        { "step {step}: the record of its item is full, so it could not be recorded as done" "Nothing was run"
          "Keep less output of the steps, or divide the work into several items" }
    bad_name(step, most, bytes) Usage "usage"
        { "step {step}: the name of a step must have 1 to {most} bytes, but this one has {bytes}" "Nothing was run" "" }
    over(what, means) Refused "refused" {
        "{what} was refused: the run that it belongs to has ended" "{means}" "" }
    overtaken(step, means) Refused "refused"
        { "step {step} was refused: a later run has started this item" "{means}" "" }
    no_answer(what, why, means) Unreachable "supervisor"
        { "the run that {what} belongs to did not answer: {why}" "{means}" "" }
    not_recorded(step, why) Unreachable "not_recorded"
        { "step {step} is done, but that could not be recorded: {why}"
          "The run records it with its next step or at its end; if that fails too, a retry runs the step again" "" }
}

explanations! {
    no_command(why) { "{why}" "Nothing was run" "" }
    not_executed(why) { "{why}" "The step was not done" "" }
}
