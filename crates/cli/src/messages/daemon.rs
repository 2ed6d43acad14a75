//! `leasehold daemon` and `leasehold tick`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What a scheduler says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "daemon",
    about: "`leasehold daemon` and `leasehold tick`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    one_job(store, how) "1 job on {store}{how}";
    jobs(count, store, how) "{count} jobs on {store}{how}";
    how_to_end() "; on TERM or Ctrl-C it waits for running jobs and ends";
    draining() "no more jobs are started; waiting for running jobs (send the signal again to end them)";
    signals_blocked() "this process was started with SIGCHLD or SIGTERM blocked";
    read_again(file) "read {file} again";
    other_store(named, current)
        "the file now names another store, {named}. This daemon stays on {current} until it is started again";
    /// What it means that the changed file cannot be used.
    jobs_stay() "The jobs stay as they were before that change";
    jobs_stay_until_clocks_agree() "Until the clocks agree, the jobs stay as they were before that change";
    jobs_stay_until_answer() "Until the store answers, the jobs stay as they were before that change";

    new_job(job, store) "{job} is new on {store}: its slots are due from now on, and it has missed none";
    new_jobs(count, store)
        "{count} jobs are new on {store}: their slots are due from now on, and they have missed none";
    rescheduled(job, before)
        "{job} has a new schedule (the old one was {before}), so slots that were due before are not run. If \
         another machine still has the old schedule, give both the same file; if another leasehold.toml on \
         this store has a job of that name, rename one of them";
    not_run(job, why) "{job} is not run: {why}";
    starting(job, slot, how) "starting {job} for {slot}{how}";
    once_more() ", once more";
    late() ", which was missed";
    not_started(job, slot, why) "{job} was not started for {slot}: {why}";
    store_answers() "the store answers again";
    store_silent(why, store)
        "{why} ({store}). Nothing is started until the store answers; then missed slots are run as far as \
         catch_up allows";
    clocks_unknown(why)
        "{why}. This machine's clock was set, or was wrong before, and cannot be compared with the store's. \
         Nothing is started until it can be; then missed slots are run as far as catch_up allows";

    dropped_one(job, slot, why) "dropped 1 slot of {job}, {slot}: {why}";
    dropped(count, job, first, last, why) "dropped {count} slots of {job}, from {first} to {last}: {why}";
    skipped(slot, lease, holder, token, time) "skipped {slot}: {lease} is held by {holder} (token {token}){time}";
    for_time(time) " for {time}";
    stuck(job, slots) "{job} is stuck: {slots} slots in a row found its lease held; see: leasehold plan {job}";
    never_reported(slot, by, job)
        "{slot} was started by {by} and never reported how it ended; see: leasehold why {job}";
    elsewhere(job, schedule)
        "{job} is not run here: another machine has since loaded another schedule for it ({schedule}). Give \
         all machines the same file";
    ahead(job, ahead) "{job} is not run for now: {ahead}";
    left_alone(why) "{why}. That record is left alone";

    exit_code(code) "exit code {code}";
    signal(number) "signal {number}";
    outcome_unasked(job, slot, how, why)
        "{job} for {slot} ended ({how}), but the store could not be asked for its outcome: {why}";
    not_begun(job, slot, how) "{job} for {slot} did not start ({how})";
    silent(job, slot, how, see) "{job} for {slot} started but never reported how it ended ({how}); {see}";
    ended(job, slot, outcome) "{job} for {slot}: {outcome}";
    ended_badly(job, slot, outcome, how, attempt, waits, see)
        "{job} for {slot}: {outcome} ({how}){attempt}; {waits}{see}";
    attempt(number, most) ", attempt {number} of {most}";
    waits() "it waits for you: ";
    see_why(job, slot) "leasehold why {job} {slot}";
    ahead_of() "ahead of";
    behind() "behind";
}

failures! {
    clock_unsure() Clock "clock"
        { "this machine's clock was set, or is wrong. Nothing is started until it agrees with the store's clock" "" "" }
    clock_off(off, way, store) Config "config"
        { "this machine's clock is {off} {way} that of {store}" "Nothing was started: jobs would run at wrong times"
          "Set the clock (timedatectl set-ntp true), then start again" }
}
