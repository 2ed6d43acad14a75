//! `leasehold history`; and a name that nothing knows, for `status` and `why` too.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `history` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "history",
    about: "`leasehold history`; also what `status` and `why` say of an unknown name.",
    entries: &[NOTES, FAILURES],
};

notes! {
    nothing(store, scope) "there are no records on {store}{scope}";
    nothing_like_that(store, scope) "no records on {store}{scope} match";
    /// A record that cannot be read.
    unreadable(record, why) "{record}: {why}";
    /// In the last column.
    refused(target, fence) "{target} has token {fence}";
    held_by(holder) "held by {holder}";
    done_by(who) "by {who}";
    /// The last lines.
    observed(runs, overlapped, overwrote)
        "{overlapped} of {runs} runs overlapped another run, and {overwrote} of these overwrote newer work";
    rest(count, limit, kept)
        "{count} older records are not shown: use --limit {limit} for more, or --since and --until for another \
         period; {kept}";
    at_least(count) "{count} or more";
    kept_for(time) "records are kept for {time}";
    kept_for_good() "records are never removed";
    meant(word) ", did you mean {word}?";
    meant_name(name) "Did you mean {name}?";
    no_jobs() "no daemon or tick has loaded a job there";
    jobs(names) "jobs there: {names}";
    some_jobs(names, more) "jobs there: {names} and {more} more";
}

failures! {
    bad_outcome(word, meant, known) Usage "usage" { "{word} is not an outcome{meant}" ""
        "The outcomes are: {known}" }
    unknown_name(name, store, scope, jobs, meant) Usage "unknown_name"
        { "there is no record of {name} on {store}{scope}; {jobs}" "" "{meant}" }
}
