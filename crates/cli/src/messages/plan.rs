//! `leasehold plan`: how a job stands; `why` says the same.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `plan` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "plan",
    about: "`leasehold plan`: the state of a job; `leasehold why` and the daemon say the same.",
    entries: &[NOTES, FAILURES],
};

notes! {
    unseen() "neither a daemon nor a tick has loaded it yet";
    paused(by, at) "paused by {by} at {at}";
    elsewhere(schedule) "another schedule is in force: {schedule}";
    ahead(upto, job)
        "its slots up to {upto} are recorded as over, so none of them is run. Either a machine with a wrong \
         clock recorded that, or this machine's clock is behind. If this machine's clock is right (date -u): \
         leasehold resume {job}";
    stuck(slots, by) "stuck: {slots} slots in a row found its lease held{by}";
    stuck_on_itself(by) " by its own run, started by {by}";
    overrun(by, so_far, limit)
        "stuck: its run, started by {by}, has taken {so_far} and should have ended after {limit}; its wrapper \
         is frozen, or its processes cannot be ended";
    running(by) "running, started by {by}";
    last_slot(state, job) "last slot {state}, see: leasehold why {job}";
    not_fenced(late, ago, lease, token, job)
        "{late}; its run could not fence its targets {ago} ({lease}token {token}), see: leasehold why {job}";
    not_run() "not run";
    late(time) "overdue by {time}";
    overdue(late, slots) "overdue by {late}{slots}: is a daemon or a tick running?";
    overdue_slots(count) ", {count} slots";
    one_waits(job, outcomes) "1 slot waits for you, see: leasehold history {job} --only {outcomes}";
    some_wait(count, job, outcomes)
        "{count} slots wait for you, see: leasehold history {job} --only {outcomes}";
    fine() "ok";

    one_slot(slot) "the slot {slot}";
    slots(count, first, last) "{count} slots from {first} to {last}";
    /// Slots that were dropped, and why.
    dropped(slots, why) "{slots}: {why}";
    missed()
        "no run started in time (no daemon or tick ran, or its runs could not start), and catch_up or \
         catch_up_max_age does not allow them to run later";
    paused_then() "the job was paused, and a slot that becomes due during a pause is not run later";

    until(slot, time) "{slot} (in {time})";
    not_startable(why) "{why}. On this machine `leasehold daemon` and `leasehold tick` would not start";
    /// `run` says it too, on a terminal.
    long_ttl(job, ttl)
        "{job} has a TTL of {ttl}: if the machine that runs it crashes, no other machine runs it for {ttl}. \
         The lease is renewed while the job runs, so 90s is enough for long jobs, too";
}

failures! {
    unknown_job(job, known) Usage "usage" { "there is no job {job}" "" "The jobs are: {known}" }
}
