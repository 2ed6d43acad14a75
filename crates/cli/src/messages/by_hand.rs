//! `leasehold acquire`, `renew` and `release`. `break --take` takes a lease in the same way.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "by_hand",
    about: "`leasehold acquire`, `leasehold renew` and `leasehold release`.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    busy(lease, held) "{lease} is {held}";
    /// The run or the script around `acquire` holds the lease.
    busy_around(lease, held)
        "{lease} is {held}. That is the run or the script that started this command: you already have the \
         lease, so waiting for it would never end";
    taken(lease, time, token, heartbeat)
        "{lease} is yours for {time}, and nothing renews it. Renew it every {heartbeat} (leasehold renew {lease} \
         --token {token}), or use \"leasehold run\", which renews for you";
    renewed(lease, token, ttl) "renewed {lease} (token {token}) for {ttl}";
    renewed_by_run(lease, token)
        "the run that this command is part of holds {lease} (token {token}) and renews it";
    released(lease, token) "released {lease} (token {token})";
    released_late(lease, token)
        "released {lease} (token {token}). It had already expired, so another run could have taken it. Renew \
         it more often";
    already_released(lease, found) "{lease} was no longer yours: {found}";

    /// What became of a lease whose token nobody got.
    given_back() "It was released";
    not_given_back(time) "It could not be released, and expires in {time}";
}

failures! {
    token_unprinted(lease, token, end) Config "output"
        { "{lease} was taken (token {token}), but the token could not be printed" "{end}" "" }
    /// The lease was taken, but not for long enough to use it.
    lost_at_once(lease) Lost "lost"
        { "{lease} was taken, but it expired or was broken before the store's answer came" "It was released" "Try again" }
    broken(lease, token) Lost "revoked"
        { "somebody broke {lease} (token {token})" ""
          "Stop your work, then run: leasehold release {lease} --token {token}" }
    lost(lease, found) Lost "lost"
        { "{lease} is no longer yours: {found}" "Another run may be doing your work" "Stop your work" }
    /// `release` inside the run that holds the lease.
    runs(lease) Usage "usage"
        { "the run that this command is part of holds {lease} and is still at work"
          "Nothing was changed" "The lease is released when the run ends" }
    no_token(lease) Usage "usage"
        { "the token of {lease} is missing" "Nothing was changed"
          "Add --token N, as \"leasehold acquire {lease}\" printed it, or set LEASEHOLD_TOKEN" }
    another_leases_token(lease, other) Usage "usage"
        { "the token of {lease} is missing: LEASEHOLD_TOKEN belongs to the lease {other} \
           (LEASEHOLD_LEASE)" "Nothing was changed"
          "Add --token N, as \"leasehold acquire {lease}\" printed it" }
    bad_token(why) Usage "usage" { "LEASEHOLD_TOKEN: {why}" "Nothing was changed" "" }
    token_not_taken(token, lease, last, store) Usage "usage"
        { "this user on this machine did not take token {token} of {lease}; the last one that it took is \
           {last} ({store})"
          "Nothing was changed" "" }
    never_taken(lease, store) Usage "usage"
        { "this user on this machine did not take {lease} on {store}" "Nothing was changed"
          "Run this on the machine that took the lease, as the same user and on the same store" }
}

explanations! {
    unkept(lease, token, path, why, end)
        { "{lease} was taken (token {token}), but {path} cannot be written: {why}. Without that file no later command \
           can renew or release the lease"
          "{end}" "Free some disk space, or give this user write permission there" }
}
