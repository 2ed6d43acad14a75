//! `leasehold run`: from taking the lease to releasing it.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What `run` says; `once` and the runs of a scheduler say the same.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "run",
    about: "`leasehold run`, `leasehold once`, and the runs that a scheduler starts.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    /// Said on a terminal only, as are `done`, `stopped` and `failed`.
    took(lease, token, ttl, heartbeat, store, scope)
        "took {lease}: token {token}, TTL {ttl}, renewed every {heartbeat} ({store}){scope}";
    waiting(patience, lease, held) "waiting up to {patience} for {lease}: {held}";
    waiting_unanswered(why) "the store did not answer; this run keeps asking while it waits: {why}";
    waiting_answered() "the store answers again; still waiting";
    /// The one line of a run that did not start because the lease is held.
    skipped(job, waited, which, held, scope) "skipped {job}{waited}: {which}{held}{scope}";
    after_waiting(patience) " after waiting {patience}";
    all_held(leases, lease) "{leases} are all held; {lease} is ";
    /// The end of `skipped` and `waiting`; `acquire` and `break` say it too.
    held_by(holder, token, since, ends, left) "held by {holder} (token {token}){since}, {ends}{left}";
    held_until(left) "lease ends in {left} if not renewed";
    /// The store cannot tell how much of the TTL has passed.
    held_unchanged(ttl) "another run can take it over once its record has been unchanged for {ttl}";
    held_by_orphans(processes)
        "; its wrapper was killed, but {processes} still runs and keeps the lease: wait for it, or kill it";
    /// The TTL is 10 minutes or more; said on a terminal only.

    renewed() "renewed";
    renewed_again() "the lease is renewed again";
    renewal_failed(left, why)
        "a renewal failed; the job goes on, but is stopped in {left} unless another renewal succeeds: {why}";
    slept(lease)
        "this machine slept longer than the lease lasts. The job is frozen until the store says who holds {lease}";
    still_held(lease) "this run still holds {lease}; the job goes on with the same token";
    recreated(lease)
        "the record of {lease} was deleted and created again; targets that were fenced under the old record \
         refuse this run";

    stop_expired(lease)
        "{lease} expired while this job was paused, so another run may have started; ending the processes of the job";
    stop_unrenewed(lease, how)
        "{lease} was not renewed in time; stopping the job {how} before another run can take the lease";
    stop_taken(holder, lease, token) "{holder} holds {lease} now (token {token}); killing the job";
    stop_gone(lease) "this run no longer holds {lease}; killing the job";
    stop_asked(lease, how) "somebody broke {lease}; stopping the job {how}";
    stop_store_clock(lease, how)
        "the store's clock jumped ahead, so {lease} may expire early; stopping the job {how}";
    stop_max_run(lease, limit, how)
        "{lease} ran longer than {limit} (--max-run; \"none\" for no limit); stopping the job {how}";
    stop_interrupted() "interrupted twice; killing the job";
    stop_rest() "ending the remaining processes of the job";
    stop_how(grace) "(TERM, then KILL after {grace})";
    stop_stuck(lease)
        "the job was killed but has not ended yet, because the kernel holds it. {lease} is kept until the job has ended";
    left_behind(processes)
        "the command ended but left {processes} running. This run ends every process that is left before it \
         releases the lease; to let one finish, make the command wait for it";
    another_users(processes, lease)
        "cannot end {processes}, because it belongs to another user. {lease} is kept until it has ended";

    done(lease, took, code, end) "{lease} done in {took} (exit {code}), {end}";
    stopped(lease, took, code, end) "{lease} stopped after {took} (exit {code}), {end}";
    failed(lease, took, code, end) "{lease} failed after {took} (exit {code}), {end}";
    released() "released";
    already_released() "already released";
    not_released() "the store did not confirm the release: the lease expires by itself";
    output_cut(why) "not all of the command's output could be passed on: {why}";
    would_be_refused(what) "this run {what}";

    lost_expired() "it expired while this job was paused";
    lost_unrenewed() "it was not renewed in time";
    lost_taken(holder, token) "{holder} took it over (token {token})";
    lost_gone() "somebody else freed or replaced its record";
    lost_asked() "somebody broke it";
    lost_store_clock() "the store's clock jumped ahead";
    lost_given_up() "this run gave it up";
    lost_not_started() "The job was not started";
    lost_not_executed() "The job was not executed";
    lost_stopped(took) "The job was stopped after {took} and may have done part of its work";
    lost_ended(took, code)
        "The job ended by itself after {took} (exit {code}), perhaps while another run was at work";
    lost_kept() "; the lease was not released and expires by itself";

    /// What was probably meant by a command that cannot be run.
    hint_long_dash() "That is a long dash; type --";
    hint_shell(lease) "For shell syntax: leasehold run {lease} -- sh -c '…'";
    hint_here(file) "There is a file of that name here: ./{file}";
    hint_name(name, command) "\"{name}\" was taken as the lease NAME. Write: leasehold run NAME -- {name} {command}";
}

failures! {
    /// The lease was lost, and the job was stopped.
    lost(lease, token, how, job) Lost "lost"
        { "lost {lease}{token}: {how}" "{job}" "The next run starts afresh with a larger token" }
    /// `run` inside a run of the same lease.
    nested(lease, token, pid) Usage "usage"
        { "the run that this command is part of already holds {lease} (token {token}, pid {pid}), so this run \
           would wait for its own parent"
          "Nothing was run"
          "Use another name, or run the command without leasehold, because the outer run holds the lease for it" }
    named_twice(lease) Usage "usage" { "{lease} is named twice" "Nothing was run" "" }
    /// `--run-id`.
    bad_run_id(id) Usage "usage"
        { "{id} cannot be a run id" "Nothing was run" "Use up to 100 letters, digits and . _ : / @ -" }
    bad_max_run(why) Usage "usage" { "--max-run: {why} (or none)" "Nothing was run" "" }
    system(why) Unreachable "system" { "the system refused: {why}" "" "" }
    /// `run-slot`, typed by a person.
    no_scheduler(why) Usage "usage" { "cannot run the slot: {why}" "Nothing was run" "" }
    /// The scheduler and `run-slot` do not understand each other.
    unreadable_slot(why) Config "config" { "cannot run the slot: {why}" "Nothing was run" "" }
    unreceived_slot(why) Unreachable "system" { "cannot run the slot: {why}" "Nothing was run" "" }
    empty_slot() Config "config" { "the scheduler did not name a lease and a command" "Nothing was run" "" }
}

explanations! {
    /// The command was not found, or cannot be executed.
    no_command(why, lease, hint) { "cannot run the command: {why}" "{lease} was not taken, so another machine can run it" "{hint}" }
    /// The system did not execute the command.
    not_executed(why) { "cannot run the command: {why}" "The lease was released" "" }
}
