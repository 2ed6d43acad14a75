//! The messages of targets: why one did not do what it was asked.

use crate::messages::Catalogue;
use crate::{explanations, notes};

/// The messages of all targets.
pub const CATALOGUE: Catalogue = Catalogue {
    name: "targets",
    about: "Files, directories, repositories, tables, objects, Redis keys, Firestore documents and gates.",
    entries: &[EXPLANATIONS, NOTES],
};

explanations! {
    busy(who, target, waited, evict)
        { "{who} holds the lock of {target} and did not release it within {waited}"
          "Nothing was written" "Try again{evict}" }
    /// The fence cannot be read. It may be newer than the run, so every write is refused.
    bad_fence(why, target, fence)
        { "refused: {why}, so nobody can tell who may write {target}" "Nothing was written"
          "Restore {fence} from a backup, or write to a new target" }
    unfit(target, why, fix) { "{target} {why}" "Nothing was written" "{fix}" }
    failed(doing, target, why) { "cannot {doing} {target}: {why}" "Nothing was changed there" "" }
    /// The system failed in the middle of a write.
    write_unknown(target, why)
        { "the outcome of writing {target} is unknown: {why}" ""
          "The next run that fences {target} finishes this write or undoes it; look at {target} then" }
    write_in_doubt(target, why)
        { "the outcome of writing {target} is unknown: {why}"
          "The write may have been made, perhaps just before a later run took over"
          "Look at {target} before you write it again" }
    fence_in_doubt(target, why)
        { "it is unknown whether {target} was fenced: {why}"
          "If it was, earlier runs are refused there; nothing else has changed"
          "Run it again: fencing twice is safe" }
    mode_in_doubt(target, why, typed) { "it is unknown whether the mode of {target} was changed: {why}"
          "It may refuse stale writes now, or only count them"
          "Look at the mode; if it was not changed, change it again. To look: leasehold fence ls {typed}" }
    reset_in_doubt(target, why, typed) { "it is unknown whether the fence of {target} was reset: {why}" "Resetting it twice is safe"
          "Look at the fence; if it is still there, reset it again. To look: leasehold fence ls {typed}" }
    guard_in_doubt(target, why, typed) { "it is unknown whether the guard of {target} was changed: {why}" "A change that was made is kept"
          "Look at the guard; if the change is missing, make it again. To look: leasehold guard show {typed}" }

    stale_write(target, token, newer, repair)
        { "write refused: your token {token} is older than {newer}, which {target} has seen"
          "This run lost its lease while it was paused: its output is stale and was not written" "{repair}" }
    stale_fence(target, token, newer, repair)
        { "{target} refused this run: its token {token} is older than {newer}, which {target} has seen"
          "This run lost its lease while it was paused: its output is stale and was not written" "{repair}" }
    stale_start(target, token, newer)
        { "start refused: your token {token} is older than {newer}, which {target} has seen"
          "This run lost its lease while it was paused; the command was not started" "" }
    fork(refused, target, token, lease, nothing)
        { "{refused}: another run of {lease} used the same token {token} at {target}"
          "{nothing}" "Two runs got one token, so the store of the lease lost a write. Examine that store \
                       before you run anything again" }
    /// The fence comes from another store, or the record of the lease was deleted and made again.
    other_history(refused, target, token, newer, lease, nothing, typed) {
        "{refused}: {target} was last fenced with token {newer}, by a run on another store or before the \
         record of {lease} was deleted; your token {token} cannot be compared with that"
          "{nothing}" "If you changed the store on purpose, and no run is left on the other one: leasehold \
                       fence reset {typed}" }
    jump(refused, target, token, newer, nothing)
        { "{refused}: your token {token} is implausibly far ahead of {newer}, the last one that {target} has seen"
          "{nothing}" "Check where the token came from" }
    other_lease(refused, target, owner, lease, token, nothing)
        { "{refused}: {target} belongs to the lease {owner}, and this run holds {lease} (token {token})"
          "{nothing}" "Jobs that write the same target must share a lease, so run this one under {owner}" }
    gate_not_named(gate, lease, typed) { "start refused: this run did not name the gate {gate}" "The command was not started"
          "Name it when you start the run: leasehold run {lease} --fence {typed} -- COMMAND" }
    not_named(refused, target, token, newer, lease, typed) { "{refused}: this run (token {token}) did not name {target}, which was last fenced with token {newer}"
          "Nothing was written" "Name the target when you start the run: leasehold run {lease} --fence {typed} -- COMMAND" }
    never_named(refused, target, token, here, lease, typed) { "{refused}: no run has fenced {target}{here}, so there is no token to compare with your token {token}"
          "Nothing was written" "Name the target when you start the run: leasehold run {lease} --fence {typed} -- COMMAND" }
    sequence(refused, target, token)
        { "{refused}: another write of this run (token {token}) replaced {target} first"
          "Nothing was written" "Read what is there, then write again" }
}

notes! {
    write_refused() "write refused";
    fence_refused() "fencing refused";
    start_refused() "start refused";
    nothing_written() "Nothing was written";
    not_started() "The command was not started";
    process(pid) "process {pid}";
    another_process() "another process";
    evict(pid) "; if it hangs, end it: kill -9 {pid}";
    /// A relative path, where the job may have changed its directory.
    here(path) " (here that means {path}; did the job change its directory?)";
}
