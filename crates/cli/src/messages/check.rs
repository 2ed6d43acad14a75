//! `leasehold check`: what needs a person.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

/// What `check` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "check", about: "`leasehold check`: what needs you, a line each.", entries: &[NOTES] };

notes! {
    nothing() "nothing needs you";
    item_unknown(item, by, key)
        "nobody knows how {item} ended: {by} started it and never reported. Find out whether it was done. If so: \
         leasehold retry --done {key}. If not, omit --done";
    quarantined(item, failures, key)
        "{item} failed {failures} times, and is not run again by itself. See what is wrong; then: leasehold retry {key}";
    item_ended(item, outcome, ago, key) "{item} ended {ago}: {outcome}. The next call tries again: leasehold why {key}";
    last_run(job, outcome, ago) "the last run of {job} ended {ago}: {outcome}. What is known of it: leasehold why {job}";
    never_reported(lease, holder)
        "{holder} took {lease} and never reported, and no run has taken it since. What is known of it: leasehold why {lease}";
    refused(count, job, target, ago)
        "{count} writes of {job} were refused in this time, the last {ago}, at {target}: a run wrote after a newer one had \
         taken over. Which run: leasehold why {job}";
    standing(job, standing) "{job}: {standing}";
    unseen(job) "{job}: no daemon and no tick has loaded it yet, so it is not run. Start one: leasehold daemon";
    damaged(lease, why) "{lease} cannot be used: {why}. What is known of it: leasehold why {lease}";
    waiting(count)
        "{count} records of the run log are on this machine only: the store did not take them. The next run here tries \
         again. Does the store answer? leasehold doctor";
    not_kept(count, file)
        "{count} records of the run log are lost: neither the store nor this machine took them, so history is not \
         complete. When you know why: rm {file}";
    newer(count)
        "{count} records were written by a newer version, and this one cannot read them: install that version here, too";
}
