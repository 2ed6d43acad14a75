//! The lines of the doctor: what each check found.

use crate::messages::Catalogue;
use crate::notes;

/// What `leasehold doctor`, `leasehold use` and the first run on a store say of it.
pub const CATALOGUE: Catalogue = Catalogue {
    name: "doctor",
    about: "The checks of a store, by `leasehold doctor`, `leasehold use` and the first run on a store.",
    entries: &[NOTES],
};

notes! {
    compares() "it compares and sets";
    reached(first, far) "answers and can be written; first answer after {first}{far}";
    /// After [`reached`].
    far() ": far away, so fewer calls are made";
    nameless() "The store answered, but does not say which store it is.";
    /// After the number of connections that were opened.
    few_connections(accepted, wanted, why)
        "only {accepted} of {wanted} connections were accepted, so only {accepted} writers race: {why}";
    create() "a record is created only where there is none";
    stale() "an update of a replaced version is refused";
    late() "a write that lands late changes nothing";
    recreated() "a write meant for a removed record does not reach the record made in its place";
    versions() "equal bodies get different versions";
    reads() "an acknowledged write is read back at once, on every connection";
    one_winner() "one winner each time";
    races(writers, created, updated)
        "{writers} writers raced {created} times to create and {updated} times to update: one winner each time";
    not_raced(why) "no race was run, because the store accepted too few connections{why}";
    updates(writers) "{writers} writers added lines to one record, and no line was lost";
    no_settings(why) "The store could not be asked about its settings: {why}";
    refused_write() "The store refused a write although nobody else wrote.";
    panicked(check) "the check {check} of the doctor panicked";
    thread_panicked() "a thread of the doctor panicked";
    interrupted() "the examination was interrupted";

    paths() "a write through one path is seen through the other at once";
    other_identity() "the two paths have different identities";
    creation() "a new record";
    change() "a change";
    removal() "a removal";
    unseen(change, late) "{change} made through one path was {late} through the other";
    seen_late(after) "seen only after {after}";
    never_seen(within) "not seen within {within}";
    caching_mount(unseen)
        "{unseen}. Either a mount caches names (its warning names the mount options that prevent this), or these are \
         two directories";
    two_stores(unseen) "{unseen}: they are two stores";

    no_age() "the store has no clock: a run takes an abandoned lease only after watching it for a full TTL";
    undeclared_age() "the store declares that it has no clock, but gives ages";
    missing_age() "the store declares a clock, but does not always give an age";
    renewed_too_old(ago, age)
        "the store says that a record renewed {ago} ago is {age} old: leases would end early";
    too_old(ago, age) "the store says that a record written {ago} ago is {age} old: leases would end early";
    too_young(ago, age)
        "the store says that a record written {ago} ago is {age} old: the age stands still or goes back";
    age_stands(at) "an age stands still at {at}: leases would never end";
    age_went_back(from, to) "an age went back from {from} to {to}";
    coarse_age(step, declared)
        "ages move in steps of {step}, coarser than the {declared} declared: leases would end early";
    age(coarse) "moves forward by the store's own clock{coarse}";
    /// After [`age`].
    age_step(step) ", in steps of {step}";
    latency(read50, read99, write50, write99) "read {read50} p50, {read99} p99; write {write50} p50, {write99} p99";
    clock_agrees() "this machine and the store agree about the time";
    clock_ahead(by)
        "this machine's clock is {by} ahead of the store's: only the times that people read are wrong, and no \
         lease is affected";
    clock_behind(by)
        "this machine's clock is {by} behind the store's: only the times that people read are wrong, and no \
         lease is affected";
    no_push() "the store does not report changes, so waiting runs ask again, less and less often";
    push(after) "waiting runs learn of a change {after} later";
    push_missed(within)
        "a waiting run did not learn of a change within {within}, so waiting runs keep asking instead";
    ttl(least, default) "{least} or more; the default of {default} leaves room";
    ttl_longer(least) "use --ttl {least} or more: calls are slow here";
    no_ttl(slowest) "calls take up to {slowest}, too long to renew any lease in time";

    one_record() "a test record";
    records(count) "{count} test records";
    left_behind(count, place)
        "{count} could not be removed: this user may not delete there, the store has no conditional delete, or \
         it failed. Nothing reads them; to remove them, delete every key that begins with {place}";
    not_trusted(why)
        "This store cannot be trusted with leases: {why}. Two runs could hold one lease, so it is not used. See: \
         leasehold doctor";
}
