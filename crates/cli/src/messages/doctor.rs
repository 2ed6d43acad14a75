//! `leasehold doctor`: what the command adds to the examination. `use` examines a store with it too.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "doctor",
    about: "`leasehold doctor`, and the examination by `leasehold use`.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    trusted(store) "{store} can be trusted with leases";
    trusted_but_one(store) "{store} can be trusted with leases; one thing could be better, see above";
    trusted_but(store, count) "{store} can be trusted with leases; {count} things could be better, see above";
    p1_broken() "P1 (one token, one holder) does not hold there: two machines could hold one lease";
    p3_broken() "P3 (stopped in time) does not hold there: a lease could end while its job runs";

    target_answers() "answers, and its fence can be read";
    never_fenced() "was never fenced";
    fenced(lease, token, mode) "belongs to the lease {lease}, fenced with token {token} ({mode})";
    checked_near()
        "tokens are compared on this machine, in the lease's own store, or by a trigger in the database";
    no_fence_yet(target)
        "not examined: there is no fence yet. To fence and examine it: leasehold run NAME --fence {target} true";
    condition_kept() "a write whose condition cannot hold is refused";
    p2_broken() "P2 (no stale write) does not hold there";
    not_examined(why) "not examined: {why}. The next run with --fence examines it";
}

failures! {
    no_sql(kind) Usage "usage"
        { "--print-sql is for PostgreSQL; a store of the kind {kind} needs no SQL" ""
          "Leave out --print-sql, or name a PostgreSQL store" }
    not_a_lease_store(store, why, promise) Config "not_a_lease_store"
        { "{store} is not a lease store: {why}. {promise}" "" "Leasehold refuses it: use another store" }
}

explanations! {
    interrupted() { "interrupted; nothing was left behind" "" "" }
    /// The line about the test records comes before it.
    interrupted_and_left() { "interrupted; test records were left behind, see above" "" "" }
}
