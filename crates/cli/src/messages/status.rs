//! `leasehold status`: who holds which lease. `why` says the same of one lease.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "status",
    about: "`leasehold status`, and what `leasehold why` says of a lease.",
    entries: &[NOTES],
};

notes! {
    store(store, scope) "store: {store}{scope}";
    no_leases(store, scope) "no leases on {store} yet{scope}";
    no_lease(lease, store, scope) "no lease {lease} on {store} yet{scope}";
    none_held(store, scope) "no lease is held on {store} now{scope}";
    none_below(prefix, store, scope) "no lease below {prefix} on {store} yet{scope}";
    /// In the table: somebody broke the lease, and its holder has not stopped yet.
    asked_to_stop() "asked to stop";
    /// Under the table, for each lease that cannot be used.
    problem(lease, why) "{lease}: {why}";
    /// A problem: this machine has seen the lease, and the store has no record of it.
    vanished(store, token, lease)
        "{store} has no record of it, but this machine has seen token {token} there: the record was deleted, or this \
         is another store under the same name. Runs of it are refused (79). When no job of {lease} runs any more: \
         leasehold adopt {lease}";
    /// With `--watch`.
    unanswered() "the store does not answer; the last known state is shown. Trying again";
    answered() "the store answers again";

    held(lease, holder, token, time)
        "the lease {lease} is held by {holder} (token {token}){time}: a run now is skipped, or waits with --wait.";
    held_for(time) " for {time}";
    free(lease, last) "the lease {lease} is free{last}: a run now takes it.";
    last_token(token) " (last token {token})";
    unusable(lease, why) "the lease {lease} cannot be used: {why}";
}
