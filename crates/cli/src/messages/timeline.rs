//! The pictures of `leasehold history`: `--timeline`, `--svg` and `--html`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What the pictures say.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "timeline",
    about: "The pictures of `leasehold history`: `--timeline`, `--svg` and `--html`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    wrote(path) "wrote {path}";

    /// Above a picture.
    title() "Timeline of runs";
    between(from, to, zone) "{from} to {to}, {zone}";
    column(time) "One column is {time}. The number beside a run is its token.";
    numbers() "The number beside a run is its token.";
    empty() "No runs in this window.";
    cut() "This window has more records; only the newest are shown.";

    /// Names of lanes and rows.
    machines(count) "{count} other machines";
    jobs(count) "{count} other jobs";
    nobody() "nobody";
    between_runs() "between two runs";
    dropped_slots() "dropped slots";

    /// What a mark means.
    ok() "ok";
    failed() "failed";
    skipped() "skipped";
    lost() "lease lost";
    killed() "stopped";
    unknown() "end unknown";
    released() "held by hand or by a program";
    unfenced() "ran nothing (target not fenced)";
    dropped() "dropped slot";
    refused() "write refused";
    observed() "only observed";
    person() "done by a person";
    other() "from a later version";
    gap() "no run had the lease";
    overtaken() "went on after its lease was lost";

    counted(what, count) "{what}: {count}";

    /// Parts of the words beside a mark.
    lasted(what, job, host, from, to, took) "{what}: {job} on {host}, {from} to {to} ({took})";
    at_once(what, job, host, at) "{what}: {job} on {host}, {at}";
    several(count, what, job, host, from, to) "{count} times {what}: {job} on {host}, {from} to {to}";
    gap_of(job, from, to, took) "No run had the lease of {job} from {from} to {to} ({took})";
    token(token) "token {token}";
    held_by(holder, token) "held by {holder} (token {token})";
    refused_why(why) "write refused ({why})";
    refused_by(token, newer) "write refused: {token} < {newer}";
    older(token, newer) "{token} < {newer}";
    skipped_why(why) "skipped ({why})";
    times(count) "×{count}";
    tokens(low, high) "tokens {low} to {high}";
    fence(token) "fence {token}";
    exit(code) "exit code {code}";
    late_since(at) "after its lease was lost until {at}";
    slots(count) "{count} slots";

    /// In order of time below a picture.
    it_failed(job, host, exit, took) "{job} failed on {host} with exit code {exit} after {took}";
    it_failed_somehow(job, host, took) "{job} failed on {host} after {took}";
    it_lost(job, host, token, took) "{job} on {host} lost its lease (token {token}) and was stopped after {took}";
    it_went_on(job, host, token, since, took)
        "{job} on {host} had lost its lease (token {token}) by {since}, and was stopped {took} later";
    gap_after(took, token) "No run had the lease for {took}, until the run with token {token}";
    it_was_killed(job, host, took) "{job} was stopped on {host} after {took}";
    it_was_stopped(job, host, took, why) "{job} was stopped on {host} after {took}: {why}";
    it_is_unknown(job, host, token)
        "{job} on {host} (token {token}) did not record how it ended: leasehold why {job}";
    it_was_unfenced(job, host) "{job} ran nothing on {host}, because a target could not be fenced";
    it_was_refused(job, host, target, token, newer)
        "{target} refused a write of {job} on {host}: its token is {token}, and the fence is {newer}. Nothing \
         was written";
    it_was_refused_because(job, host, target, token, why)
        "{target} refused a write of {job} on {host} (token {token}): {why}. Nothing was written";
    it_was_refused_there(job, host, token)
        "A write of {job} on {host} (token {token}) was refused. Nothing was written";
    it_was_dropped(job, count, why) "Slots of {job} that were dropped: {count} ({why})";
    it_was_just_dropped(job, count) "Slots of {job} that were dropped: {count}";
    it_observed(job, host, why) "{job} on {host} was only observed: {why}";
    more_notes(count) "and {count} earlier: leasehold history";

    /// In an HTML file.
    what_stands_out() "What stands out";
    nothing_stands_out() "Nothing stands out: no run failed, and no write was refused.";
    all_records() "All records";
    newest_records(shown, all) "The newest {shown} of {all} records";
    when() "when";
    took() "took";
    job() "job";
    machine() "machine";
    outcome() "outcome";
    its_token() "token";
    details() "details";
    reading() "How to read it";
    how_to_read()
        "Time runs from left to right. Each machine has a lane, and each job that it ran has a row there. \
         Within one lease the tokens only rise, even from machine to machine. A skip is normal: another run \
         held the lease, or the work was done. Times are by the machines' own clocks.";
}

failures! {
    unwritable(path, why) Config "picture" { "the picture could not be written to {path}: {why}" "" "" }
    with_json() Usage "usage"
        { "--json lists the records and cannot be used with --timeline, --svg or --html" "" "Leave out one of them" }
}
