//! What is wrong with the state directory.

use crate::messages::Catalogue;
use crate::{explanations, notes};

/// What may be wrong with the state directory.
pub const CATALOGUE: Catalogue = Catalogue {
    name: "state",
    about: "The state directory: files that one user on one machine keeps between runs.",
    entries: &[EXPLANATIONS, NOTES],
};

explanations! {
    nowhere()
        { "neither XDG_STATE_HOME nor HOME is set to an absolute path, so there is no place to keep state"
          "Nothing was run" "Set HOME, or name a store with --store and set XDG_STATE_HOME" }
    no_root(variable, root)
        { "{variable} names a place in {root}, which does not exist: a state directory made there would be a \
           second, empty store"
          "Nothing was run" "Correct {variable}, or make that directory" }
    /// Another user could write there.
    not_private(path, problem, fix)
        { "{path} {problem}, so another user could forge or remove leases" "Nothing was run" "{fix}" }
    unusable(path, why)
        { "cannot use {path}: {why}" "Nothing was run"
          "Check the permissions and the free space there, or set XDG_STATE_HOME to a directory of your own" }
}

notes! {
    is_a_link() "is a symbolic link";
    is_no_directory() "is not a directory";
    belongs_to(user) "belongs to user {user}";
    is_open() "can be written by others";
    replace_it() "Move it away, or put a directory of your own in its place";
    move_it() "Move it away";
    choose_another() "Set XDG_STATE_HOME to a directory of your own";
    close_it(path) "Close it: chmod 700 {path}";
}
