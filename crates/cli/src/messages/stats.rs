//! `leasehold stats`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

/// What `stats` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "stats",
    about: "`leasehold stats [JOB]`: totals of the run log, and advice on the TTL.",
    entries: &[NOTES],
};

notes! {
    nothing(since, store, scope) "there are no records from the last {since} on {store}{scope}";
    nothing_of(name, since, store, scope) "there are no records of {name} from the last {since} on {store}{scope}";
    head(job, since) "{job}, the last {since}";
    runs(count, outcomes) "runs     {count}{outcomes}";
    skipped(count, all, percent, reasons) "skipped  {count} of {all} ({percent}%){reasons}: a skip is not a failure";
    refused(writes, job) "refused  {writes}: leasehold why {job}";
    one_write() "1 write";
    writes(count) "{count} writes";
    dropped(slots, job) "dropped  {slots}: leasehold why {job}";
    one_slot() "1 slot";
    slots(count) "{count} slots";
    took(p50, p95, worst, runs) "took     p50 {p50}, p95 {p95}, worst {worst} ({runs})";
    one_ok_run() "1 ok run";
    ok_runs(count) "{count} ok runs";
    held(p50, p95, worst, leases) "held     p50 {p50}, p95 {p95}, worst {worst} ({leases} taken by hand)";
    one_lease() "1 lease";
    leases(count) "{count} leases";
    every(interval) "started  mostly every {interval}";
    ttl(advice) "TTL      {advice}";

    too_few(healthy, needed, job)
        "no advice yet: it needs {needed} ok runs, and this period has {healthy}. Keep 90s until then, or look \
         further back: leasehold stats {job} --since 90d";
    right(ttl, survives)
        "{ttl} is right: a dead holder blocks others for {ttl}, and the lease survives a sleep of {survives}. A run \
         renews its lease, so the length of the job does not matter";
    long(ttl, survives)
        "{ttl} is long: a dead holder blocks others for {ttl}, and 90s is enough even for long jobs, because a run \
         renews its lease. Keep {ttl} only if the job must survive a sleep of up to {survives}";
    short(ttl, lost, runs, survives)
        "{ttl} is short: {lost} of {runs} runs lost the lease, which survives a sleep or an unreachable store for \
         only {survives}. Use a longer TTL, unless another machine must take over quickly after a crash";
    by_hand(least, most, worst)
        "use {least} to {most}, 1.5 to 2 times the longest hold ({worst}): nothing renews a lease that is held by \
         hand, so it must outlast the job. A dead holder blocks others for that long; with `leasehold run`, 90s is \
         enough";
    by_hand_now(ttl, fit, least, most, worst)
        "{ttl} is {fit}: use {least} to {most}, 1.5 to 2 times the longest hold ({worst}), because nothing renews a \
         lease that is held by hand. A dead holder blocks others for that long; with `leasehold run`, 90s is enough";
    /// Records of a later version are counted by their keys.
    newer(count) "a newer version wrote {count} of the records; this one counts only the parts that it understands";
}
