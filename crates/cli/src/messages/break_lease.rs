//! `leasehold break`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "break_lease", about: "`leasehold break`.", entries: &[NOTES, FAILURES, EXPLANATIONS] };

notes! {
    asked(holder, token, ttl) "asked {holder} (token {token}) to stop; its lease ends in {ttl} at the latest";
    nobody(found) "there is no holder to ask: {found}";
    free(lease) "{lease} is free";
    stopped(lease, holder, token)
        "{lease} is broken: {holder} (token {token}) has stopped. A waiting run takes the lease now, or else \
         the next run does";
    expired(lease, holder, token, old_job)
        "{lease} is broken: {holder} (token {token}) did not answer, and its lease expired. A waiting run \
         takes the lease now, or else the next run does. {old_job}";
    released(lease, old_job)
        "{lease} is broken: it was taken from its holder and released. A waiting run takes it now, or else the \
         next run does. {old_job}";
    still_held(lease, holder, token, request) "{lease} is still held by {holder} (token {token}). {request}";
    /// With `--take`, or `--now`.
    still(lease, held) "{lease} is still {held}";
    still_and_asked(lease, held, request) "{lease} is still {held}. {request}";
    taken_at_once(lease, old_job) "{lease} was taken from its holder at once. {old_job}";
    yours(lease, token, time)
        "{lease} is yours: nobody else can run it until you release it (leasehold release {lease} --token {token}) or it \
         expires in {time}";

    old_job() "Its old job may still be running: only a fence at the target protects you from it";
    request() "The request remains: the holder stops at its next renewal";
    /// What it means if the command ends before the holder has answered.
    holder_asked() "The holder was asked to stop, and will stop at its next renewal";
}

failures! {
    unknown(lease, store) Usage "usage"
        { "there is no lease {lease} on {store}" "Nothing was changed" "See: leasehold status" }
    not_released(lease, time, old_job) Unreachable "store_unreachable"
        { "{lease} was taken from its holder, but could not be released: it is free in {time}" "{old_job}" "" }
}

explanations! {
    interrupted(request) { "interrupted" "{request}" "" }
}
