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
    not_pinged(host, why) "the ping to {host} failed: {why}. The run itself is not affected";
    not_usable(why) "this run sends no ping: {why}. The run itself is not affected";
    not_alerted(place, why) "{place} did not get the alert: {why}. The run itself is not affected";
    alert_command(program) "the command {program}";
    no_answer_in_time() "no answer in time";
    not_reached() "it cannot be reached";
    no_whole_answer() "it did not finish its answer";
    http_status(status) "it answers HTTP {status}";
    no_url() "it is not a URL with a host";
    /// A build without the feature for HTTP.
    no_http() "this build does not support HTTP";

    /// The text of an alert about a run.
    run_ended(job, outcome) "the last run of {job} ended: {outcome}. Details: leasehold why {job}";
    run_refused(job, target, why) "{target} refused a write of {job}: {why}. Details: leasehold why {job}";
    well_again(job) "{job} has recovered";
}

failures! {
    bad_ping(why) Config "bad_ping" { "--ping cannot be used: {why}" "Nothing was run" "" }
    not_observed() Usage "usage" { "--ping does not work with --observe" "Nothing was run" "Leave out --ping" }
    no_alerts() Config "no_alerts"
        { "no [alerts] section is configured here" "" "To see how to write one: leasehold help leasehold.toml" }
}
