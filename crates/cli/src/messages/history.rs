//! `leasehold history`; and a name that nothing knows, for `status` and `why` too.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `history` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "history",
    about: "`leasehold history`; and a name that nothing knows, in `status` and `why` too.",
    entries: &[NOTES, FAILURES],
};

notes! {
    nothing(store, scope) "nothing is recorded on {store}{scope}";
    nothing_like_that(store, scope) "nothing of that kind is recorded on {store}{scope}";
    /// A record that cannot be read.
    unreadable(record, why) "{record}: {why}";
    /// In the last column.
    refused(target, fence) "{target} has token {fence}";
    held_by(holder) "held by {holder}";
    done_by(who) "by {who}";
    /// The last lines.
    observed(runs, overlapped, overwrote)
        "of {runs} runs {overlapped} overlapped another, and {overwrote} of these overwrote newer work";
    rest(count, limit, kept)
        "{count} older ones are not shown: --limit {limit} shows more, --since and --until choose a time; {kept}";
    at_least(count) "{count} or more";
    kept_for(time) "records are kept for {time}";
    kept_for_good() "records are kept for good";
    meant(word) ", did you mean {word}?";
    meant_name(name) "Did you mean {name}?";
    no_jobs() "no daemon and no tick has loaded a job there";
    jobs(names) "jobs there: {names}";
    some_jobs(names, more) "jobs there: {names} and {more} more";
}

failures! {
    bad_outcome(word, meant, known) Usage "usage" { "{word} is no outcome{meant}" "" "They are: {known}" }
    unknown_name(name, store, scope, jobs, meant) Usage "unknown_name"
        { "nothing is known of {name} on {store}{scope}; {jobs}" "" "{meant}" }
}
