//! `leasehold check`: what needs a person.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

/// What `check` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "check",
    about: "`leasehold check`: one line for each thing that needs your attention.",
    entries: &[NOTES],
};

notes! {
    nothing() "nothing needs your attention";
    item_unknown(item, by, key)
        "nobody knows how {item} ended: {by} started it and never reported back. Check whether it was done; then: \
         leasehold retry --done {key}, or the same without --done if it was not";
    quarantined(item, times, key)
        "{item} failed {times} and waits for you. Find out what is wrong; then: leasehold retry {key}";
    item_ended(item, outcome, ago, key)
        "{item} ended {ago}: {outcome}. The next call tries again. Details: leasehold why {key}";
    last_run(job, outcome, ago) "the last run of {job} ended {ago}: {outcome}. Details: leasehold why {job}";
    never_reported(lease, holder)
        "{holder} took {lease} and never reported back, and no run has taken the lease since. Details: leasehold why \
         {lease}";
    refused(job, target, ago, why)
        "a write of {job} was refused {ago} at {target}: {why}. Details: leasehold why {job}";
    several_refused(count, job, target, ago, why)
        "{count} writes of {job} were refused, the last one {ago} at {target}: {why}. Details: leasehold why {job}";
    standing(job, standing) "{job}: {standing}";
    unseen(job) "{job} does not run, because no daemon or tick has loaded it yet. Start one: leasehold daemon";
    damaged(lease, why) "{lease} cannot be used: {why}. Details: leasehold why {lease}";
    waiting(count)
        "{count} records of the run log are only on this machine, because the store did not accept them; the next run \
         here tries again. To test the store: leasehold doctor";
    not_kept(count, file)
        "{count} records of the run log are lost, because neither the store nor this machine could save them. To \
         clear this warning once you know the cause: rm {file}";
    newer(count)
        "this version cannot read {count} records that a newer one wrote. Upgrade leasehold on this machine";
}
