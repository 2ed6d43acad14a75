//! Which store is used, and the files and variables that name it.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::{explanations, notes};

use super::failures;

/// What is said of the configuration.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "config",
    about: "The variables and files that name the store.",
    entries: &[NOTES, FAILURES, EXPLANATIONS],
};

notes! {
    /// Said once for each store that only this machine uses.
    ran_elsewhere(lease, store, here)
        "{lease} ran on {store} before. No store is set now, so it runs on {here}. To go on there: leasehold use {store}";
    with_password() ", with the password in place of ***";
    this_machine_only() " (this machine only)";

    two_stores() "store and store_file are both set; keep one";
    new_here_without_store() "new_here needs a store in the same file, and the file names none";
    project_key(key)
        "{key} belongs in the leasehold.toml of a project; the user's configuration names only a store";
}

failures! {
    empty_variable(variable) Config "config"
        { "{variable} is set but empty: was a secret not passed on?" "Nothing was run" "Set it to the store, or unset it" }
    not_text(variable) Config "config" { "{variable} is not valid UTF-8" "Nothing was run" "" }
    masked(origin, store) Config "config"
        { "{origin} is {store}: the run that this command is part of masked its password" "Nothing was run"
          "Put the URL into a file that only you can read and name that file in LEASEHOLD_STORE_FILE, or run: \
           leasehold use URL" }
    bad_url(why) Config "bad_url" { "cannot use the store: {why}" "Nothing was run" "" }
    unreadable_secret(path, origin, why) Config "config" { "cannot read {path} ({origin}): {why}" "" "" }
    empty_secret(path, origin) Config "config" { "{path} ({origin}) is empty" "" "" }
    /// The lease ran on a store that machines share, and this run would use the store of this machine.
    wrong_store(lease, store, password, embedded) Config "wrong_store"
        { "{lease} ran on {store} before, and no store is set now (cron does not read your shell's profile)"
          "Nothing was run: another machine could run it at the same time"
          "To go on there: leasehold use {store}{password}. To use this machine alone from now on: leasehold use {embedded}" }
}

explanations! {
    /// A mistyped path or a share that is not mounted must not become a second store.
    no_store(store, typed)
        { "{store} is not a leasehold store yet (is the share mounted?)" "Nothing was run" "First time? leasehold use {typed}" }
    not_opened(why) { "cannot open the store: {why}" "Nothing was run" "" }
}
