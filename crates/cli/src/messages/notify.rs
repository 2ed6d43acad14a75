//! Pings and alerts.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What is said of pings and alerts.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "notify",
    about: "Pings and alerts. Their URLs are secrets, so only the host is named.",
    entries: &[NOTES, FAILURES],
};

notes! {
    not_pinged(host, why) "{host} was not told how this run went: {why}. The run itself is not affected";
    not_usable(why) "nobody is told how this run goes: {why}. The run itself is not affected";
    not_alerted(place, why) "{place} did not get the alert: {why}. The run itself is not affected";
    alert_command(program) "the command {program}";
    no_answer_in_time() "no answer in time";
    not_reached() "it cannot be reached";
    no_whole_answer() "it did not finish its answer";
    http_status(status) "it answers HTTP {status}";
    no_url() "it is not a URL with a host";
    /// A build without the feature for HTTP.
    no_http() "this build has no HTTP";

    /// The text of an alert about a run.
    run_ended(job, outcome) "the last run of {job} ended: {outcome}. What is known of it: leasehold why {job}";
    run_refused(job, target)
        "a write of {job} was refused, at {target}: a run wrote after a newer one had taken over. Which run: leasehold why \
         {job}";
    well_again(job) "{job} is well again";
}

failures! {
    bad_ping(why) Config "bad_ping" { "--ping cannot be used: {why}" "Nothing was run" "" }
    not_observed() Usage "usage" { "--observe does not ping" "Nothing was run" "Leave --ping out" }
    no_alerts() Config "no_alerts"
        { "no [alerts] is configured here" "" "leasehold help leasehold.toml shows how to write it" }
}
