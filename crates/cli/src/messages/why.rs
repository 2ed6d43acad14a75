//! `leasehold why`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `why` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "why",
    about: "`leasehold why NAME [TIME]`: why something did or did not run.",
    entries: &[NOTES, FAILURES],
};

notes! {
    /// A time without an offset, as it was understood.
    taken_as(text, time) "{text} is taken to mean {time}";
    users(lease, jobs) "jobs here that use {lease}: {jobs}.";
    more(name) "Older records: leasehold history {name}";
    targets(job, dir, targets) "targets of {job}, as seen from {dir}: {targets}.";
    slot(job, time) "{job}@{time}";

    paused(job, since, by) "{job} is paused since {since}, by {by}: its slots are dropped until you type leasehold \
                            resume {job}.";
    elsewhere(job, schedule)
        "{job} still has another schedule ({schedule}), which another machine loaded, or this one before the file \
         changed. The schedule in this file takes effect when a daemon or a tick loads it.";
    stands(job, standing) "{job}: {standing}";
    due_next(job, slot, when) "{job} is due next at {slot}, {when}.";
    in_time(time) "in {time}";
    moved_by_the_clock(shown, job, due) "the clock change skips {shown}, so {job} is due at {due} instead.";
    skipped_by_the_clock(shown, job) "the clock change skips {shown}, so {job} does not run then.";

    dropped_last(job, dropped) "{job} last dropped {dropped}.";
    dropped(slot, dropped) "{slot} was dropped: {dropped}.";
    not_due(job, why) "{job} is not due then: {why}.";
    forgotten(slot)
        "{slot} is over and has no record: either its old record was removed, or it was due before any machine loaded \
         this schedule.";
    not_started_nor_known(slot, job, schedule)
        "no run of {slot} has started. It is unknown whether {job} has such a slot ({schedule}), because no \
         leasehold.toml here contains that job.";
    due(slot, when) "{slot} is due {when}.";
    not_started(slot, when, job)
        "{slot} was due {when}, and no run of it has started: is a daemon or a tick running? A scheduler records that \
         the lease is held only when it tries the slot; see: leasehold plan {job}";
    not_loaded_then(slot)
        "no run of {slot} has started: no daemon or tick has loaded the job on this store yet. Only slots that become \
         due after that are run. Start one: leasehold daemon, or `leasehold tick` from cron.";
    not_loaded(job)
        "there are no records of {job}: no daemon or tick has loaded the job on this store yet. Only slots that \
         become due after that are run. Start one: leasehold daemon, or `leasehold tick` from cron.";
    no_slots_yet(job) "no slot of {job} is recorded yet, and none was dropped.";
    no_run(name, kept)
        "there is no record of a run of {name}: {kept}, and a run with --no-history leaves no record";

    no_slots(name) "{name} has no recorded slots, so its runs do not belong to set times.";
    no_such_slot(name, time) "there is no record of a run of {name} with --slot {time}.";
    none_kept(name, time, kept)
        "There is no record of {name} around {time}: {kept}, and a run with --no-history leaves no record.";
    too_old(name, time, kept) "It is unknown whether {name} ran at {time}: {kept}.";
    nearest(name, time) "These are the records of {name} nearest to {time}.";
    keep_slots() "To get a record for each set time, even if nothing starts then, define the job in leasehold.toml.";

    /// One key or slot; `next` says what follows.
    item(item, outcome, by, took, exit, attempt, next) "{item}: {outcome}, by {by}{took}{exit}{attempt}; {next}.";
    item_skipped(item, outcome, ago, next) "{item}: {outcome}{ago}; {next}.";
    never_reported() "started and never reported back";
    to_be_tried_again() "to be tried again";
    attempt(number) ", at attempt {number}";
    took(time) " in {time}";
    after(time) " after {time}";
    exit(code) " (exit {code})";
    cooldown_applies() "runs with --cooldown are skipped until the cooldown is over";
    not_run_again() "it is not run again";
    running() "a run is working on it now, and other runs are skipped";
    next_starts() "the next run starts it";
    not_run(told) "it is not run ({told})";
    next_tries() "the next run tries again";
    next_tries_unless(times, failures)
        "it failed {times}; the next run tries again, unless it has --attempts {failures}";
    waits(times, attempts, quoted)
        "it failed {times}, and with the default of {attempts} attempts it waits for you (79): leasehold retry {quoted}";
    next_goes_on(steps) "the next run continues it: {steps}";
    next_asks(key)
        "it may have done its work: the next run asks you (79), unless that run has --if-unknown retry. Check \
         whether it was done; then: leasehold retry --done {key}, or the same without --done if it was not";
    one_step() "1 of its steps is done and will not be repeated";
    steps(count) "{count} of its steps are done and will not be repeated";
    may_fail(attempts) "it is tried again until it has failed {attempts} times";
    retried() "it is run again because of retry = true";
    goes_on(steps) "it is run again: {steps}";
    not_tried_again(quoted) "it is not run again until you decide: leasehold retry {quoted}";
    check_first(quoted)
        "it may have done its work: check, then leasehold retry {quoted}, or leasehold retry --done {quoted}";

    /// A run without a key or a slot, at a time.
    past_run(lease, job, outcome, holder, token, time, took)
        "{lease}{job}: {outcome}, by {holder} (token {token}), ended at {time}{took}.";
    past_skip(lease, job, holder, time, why) "{lease}{job}: {holder} skipped its run at {time}: {why}.";
    last_skipped(lease, job, holder, ago, why) "the last run of {lease}{job} was skipped, by {holder} {ago}: {why}.";
    skipped_held(reason, holder, token) "{reason}, {holder} held the lease (token {token})";
    refused(lease, token, target, when, why) "{target} refused a write of {lease} with token {token}, {when}: {why}.";
    fence_has(token) "it has token {token} already";
    of_job(job) " ({job})";
    run_after(time) ", after {time}";
    last_unknown(lease, job, holder, token, ago)
        "the last run of {lease}{job} never reported how it ended: {holder} held the lease (token {token}), which \
         another run took over {ago}.";
    last_not_fenced(lease, job, holder, token, ago)
        "the last run of {lease}{job} started no command: {holder} (token {token}) could not fence its targets {ago}. Its \
         output says why. To see which run has fenced a target: leasehold fence ls TARGET.";
    last_released(lease, job, holder, token, ago, took)
        "{lease}{job} was last held by {holder} (token {token}), and was released {ago}{took}.";
    last_run(lease, job, outcome, holder, token, ago, took)
        "the last run of {lease}{job}: {outcome}, by {holder} (token {token}) {ago}{took}.";
}

failures! {
    no_time(text) Usage "usage"
        { "{text} is not a time" "" "Write it as 03:00, \"yesterday 03:00\", 2026-11-16T05:45 or 2026-11-16T05:45Z" }
}
