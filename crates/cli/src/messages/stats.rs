//! `leasehold stats`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `stats` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "stats",
    about: "`leasehold stats [JOB]`: what the run log adds up to, and which TTL fits.",
    entries: &[NOTES, FAILURES],
};

notes! {
    nothing(since, store, scope) "nothing is recorded of the last {since} on {store}{scope}";
    nothing_of(name, since, store, scope) "nothing is recorded of {name} in the last {since} on {store}{scope}";
    head(job, since) "{job}, the last {since}";
    runs(count, outcomes) "runs     {count}{outcomes}";
    skipped(count, all, percent, reasons) "skipped  {count} of {all} ({percent} %){reasons}: a skip is no failure";
    refused(count, job) "refused  {count} writes: leasehold why {job}";
    dropped(count, job) "dropped  {count} slots: leasehold why {job}";
    took(p50, p95, worst, count) "took     p50 {p50}, p95 {p95}, worst {worst} ({count} runs that were ok)";
    held(p50, p95, worst, count) "held     p50 {p50}, p95 {p95}, worst {worst} ({count} times by hand)";
    every(interval) "started  every {interval}, mostly";
    ttl(advice) "TTL      {advice}";

    too_few(healthy, needed, job)
        "no advice yet: {healthy} runs were ok in this time, and it takes {needed}. Until then keep 90s, or look further \
         back: leasehold stats {job} --since 90d";
    right(ttl, survives)
        "{ttl} is right: a dead holder blocks others for {ttl}, and a sleep of {survives} is survived. The lease is renewed \
         while the job runs, so how long the job takes does not matter";
    long(ttl, survives)
        "{ttl} is long: a dead holder blocks others for {ttl}. The lease is renewed while the job runs, so 90s serves \
         long jobs too. Keep {ttl} only if its machine sleeps for up to {survives} and the job should go on";
    short(ttl, lost, runs, survives)
        "{ttl} is short: {lost} of {runs} runs lost the lease. It survives a sleep, or a store out of reach, of {survives}. \
         Take a longer one if its machine pauses for longer, and no other must take over sooner";
    by_hand(least, most, worst)
        "{least} to {most}: nothing renews a lease that is held by hand, so it must outlast the job. That is 1.5 to 2 \
         times the longest, {worst}. A dead holder blocks others for as long; leasehold run needs 90s only";
    by_hand_now(ttl, fit, least, most, worst)
        "{ttl} is {fit}: nothing renews a lease that is held by hand, so it must outlast the job. Take {least} to {most}, \
         1.5 to 2 times the longest, {worst}. A dead holder blocks others for as long; leasehold run needs 90s only";
    /// Records of a later version are counted by their keys.
    newer(count) "{count} records were written by a newer version, and are counted as far as this version understands them";
}

failures! {
    unknown_name(name, store, scope) Usage "unknown_name"
        { "nothing is known of {name} on {store}{scope}" "" "Which jobs there are: leasehold stats" }
}
