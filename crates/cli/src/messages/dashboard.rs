//! The dashboard of `leasehold serve`: sentences of its pages, and why a request is not answered.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "dashboard",
    about: "The pages of `leasehold serve`. Lines from `only_looks` to `late` are answers to requests that are refused.",
    entries: &[NOTES],
};

notes! {
    /// Of the store.
    store_is_silent(since) "The store has not answered since {since}.";
    shown_as_known(at) "Showing what was last known at {at}.";
    nothing_known_yet() "The store has not answered yet, so nothing is known.";
    answers_again() "the store answers again";
    no_answer(why) "the store does not answer: {why}";
    reload() "Load the page again when it does.";

    /// Of what needs a person.
    held(held, all) "Leases held: {held} of {all}.";
    nothing_needs_you() "Nothing needs you.";
    one_needs_you() "One thing needs you.";
    some_need_you(count) "{count} things need you.";
    more_matters(count) "and {count} more in the log";
    whole_story() "To see the whole story";
    times(count) "{count} times";
    ok_since() "A later run was ok. Nothing to repair.";
    not_ok_since() "No later run was ok.";
    began_unreported(job) "{job} began and never reported";
    unreported_what(host, token) "{host} began it with token {token}, and recorded no end.";
    failed_too_often(job) "{job} failed as often as it may";
    too_often_what(host, token) "The last try was that of {host} with token {token}.";
    too_often_means() "It is not run again until you say so.";
    when_repaired() "When the cause is repaired, type";
    unreported_means() "Nobody knows whether the work was done. It is not run again until you say so.";
    unreported_run_means() "Its work may be half done. Later runs were not held up.";
    unreported_hold_means() "Its work may be half done, and no run has taken the lease since.";
    if_done() "If it was done, type";
    if_not_done() "If it was not, type";
    it_failed(job) "{job} failed";
    failed_what(exit, host, took) "The command ended with exit code {exit} on {host} after {took}.";
    failed_somehow(host, took) "The command failed on {host} after {took}.";
    it_lost(host, job) "{host} lost the lease of {job}";
    lost_what(took) "It could not renew the lease in time, so its command was stopped after {took}.";
    lost_means() "Another run could take over with a newer token. A late write to a fenced target is refused.";
    it_was_stopped(job) "{job} was stopped";
    stopped_what(host, took, why) "Its command was stopped on {host} after {took}: {why}.";
    ran_nothing(job) "{job} ran nothing";
    unfenced_what(host) "On {host} a target could not be fenced, so the command was not started.";
    it_was_refused(job) "A write of {job} was refused";
    refused_what(target, host, token, fence)
        "{host} came to {target} with token {token}, where the newest token is {fence}.";
    refused_because(host, token, target, why) "{host} came to {target} with token {token}: {why}.";
    refused_somewhere(host, token) "{host} came with token {token}, and its target did not take that.";
    refused_means() "Nothing was written.";
    stale_means() "Nothing was overwritten. What the newer run wrote stands.";
    were_dropped(job, count) "Slots of {job} that were dropped: {count}";
    dropped_what(why) "No scheduler ran them when they were due ({why}).";
    dropped_means() "They stay undone. catch_up in leasehold.toml says how many missed slots are run later.";
    is_overdue(job) "{job} is overdue";
    overdue_what(late, slots) "Its oldest slot that did not start was due {late} ago. Such slots: {slots}.";
    overdue_means() "No scheduler started it. Either none is running, or none has this job.";
    if_no_scheduler() "If no scheduler runs, start one";
    is_paused(job) "{job} is paused";
    paused_what(by, at) "It was paused on {by} at {at}.";
    paused_means() "Its slots are dropped until it is resumed.";
    to_resume() "To resume it";
    bad_lease(lease) "The record of the lease {lease} cannot be used";
    bad_lease_means() "No run takes this lease until the record is in order.";

    /// Of lists.
    no_leases() "No lease has been taken on this store. Try:";
    more_free(count) "and {count} free leases more: leasehold status";
    first_leases(count) "There are more leases. These are the first {count} by name, and those of the jobs below.";
    no_jobs() "No schedule is known to this store. leasehold.toml says what is due; leasehold run works without one.";
    nothing_ran() "Nothing ran in the last 24 hours.";
    more_jobs(count) "and {count} jobs more: leasehold plan";
    bad_jobs(count) "Records of jobs that cannot be read: {count}";
    more_in_log(count) "and {count} more in the log";
    same_as_table() "The log has the same as a table.";
    no_match() "No record matches. Clear the filters, or look at a longer time.";
    no_records() "There are no records in this time.";
    further_back() "Look back 90 days";
    no_older() "There are no older records in this time. Records are removed after 90 days, or as the settings say.";
    key(key) "key {key}";
    slot(slot) "slot {slot}";
    so_many(count) "count {count}";
    newer_version() "written by a newer version: shown as far as it is understood";

    /// Of one job.
    unknown_job() "Nothing is known here about a job of this name.";
    no_times() "No run of this job has ended in this time.";
    beyond_interval() "Runs in the shaded part outlast the interval: the next slot is skipped.";
    only_newest(count) "There are more records in this time: only the newest {count} were read.";
    run_times(runs, p50, p95, worst, ttl)
        "{runs} ok runs: half took up to {p50}, 95 of 100 up to {p95}, the longest {worst}. The TTL is {ttl}.";
    run_interval(interval, longer) "The interval is {interval}, and {longer} runs took longer.";
    from_runs(runs, enough) "From {runs} ok runs of the last 30 days. Below {enough} no advice is given.";

    /// Answers to requests that are refused.
    only_looks() "this server only shows: GET and HEAD";
    other_host(address) "this server is not known by that name: use http://{address}, or localhost through a tunnel";
    other_origin() "a page of another site asked for this";
    all_names() "the dashboard shows all names, and this bearer may only see some: its prefix must be *";
    no_body() "a request to look has no body";
    bad_query() "this query cannot be read";
    bad_only(known) "unknown outcome; known are {known}";
    bad_name() "this is no name of a job, nor a prefix that ends with a slash";
    bad_time() "this is no time: try 24h, 03:00, \"yesterday 03:00\" or 2026-11-16T05:45Z";
    bad_window() "a window is 6h, 24h or 7d";
    no_such_page() "There is nothing under this address.";
    too_many_viewers(most) "{most} pages are open, and no more are kept up to date";
    busy() "too many requests are waiting for the store";
    late() "the store did not answer in time";
}
