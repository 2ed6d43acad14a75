//! What all commands say that write targets or fence them.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What they share.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "fenced",
    about: "Shared by `run --fence`, `write`, `read`, `push`, `gate`, `fence` and `guard`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    fences(target, class) "fences {target} ({class})";
    fences_gate(target) "fences {target} (gate): the next run does not wait for a command that has passed it";
    fences_lock_file(target) "fences {target} (gate, on this machine only)";
    /// A gate by its path, while the leases are shared.
    lock_file_alone(target)
        "{target} is a lock file, which works on this machine only, but other machines share the store. To \
         include them, use gate:NAME";
    /// A file on a network mount, or the like.
    checked_before(target)
        "{target} is not on a local file system, so the token is checked just before the write (class gate). A \
         run that is paused in between can still write";
    /// The end of a sentence: `this write …`.
    would_be_refused(reason, why)
        "would have been refused ({reason}): {why}. It was accepted, because the fence only observes";
    accepted(count) " ({count} accepted that would have been refused)";

    nothing_run() "Nothing was run";
    not_run_released() "Nothing was run, and the lease was released";
    reset_command(target) "leasehold fence reset {target}";
}

failures! {
    /// `LEASEHOLD_GRANT` is set, and the three variables make no sense together.
    bad_run_variables() Usage "usage"
        { "LEASEHOLD_LEASE, LEASEHOLD_TOKEN and LEASEHOLD_GRANT do not belong together, so it is unclear which \
           run this is"
          "Nothing was written" "Pass on all three unchanged" }
    outside_a_run(command) Usage "usage"
        { "this command is not part of a run, so it has no token" "Nothing was written"
          "Start a run that names the target: \
           leasehold run NAME --fence TARGET -- leasehold {command} TARGET -- COMMAND" }
    no_content(target, why) Usage "content" { "{target}: {why}" "" "" }
    /// The store gave a token that the fence has seen already.
    store_rewound(target, newer, token, lease, reset) NeedsYou "store_rewound"
        { "{target} was fenced with token {newer}, but the store has just given token {token} for {lease}: the \
           store was rewound (restored from a backup, or it lost writes)"
          "Nothing was run, because tokens would repeat"
          "Find out what happened to the store before anything writes again. When no older run is left: {reset}" }
}
