//! Work that this machine saw on another store: it is not repeated on this one, unless somebody asks for it.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "other_stores",
    about: "Keys and slots that this machine saw on another store: every command that runs them, `use` and `adopt`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    /// The store failed when it was asked for the item: what that means.
    perhaps_done(name) "Nothing was run: {name} may be done already";
    unnoted(name, why)
        "this machine could not save the outcome of {name}: {why}. On another store {name} would be run again";
    key() "1 key";
    keys(count) "{count} keys";
    slots_of_a_job() "slots of 1 job";
    slots(jobs) "slots of {jobs} jobs";
    keys_and_slots(keys, slots) "{keys} and {slots}";
}

failures! {
    /// A key or a slot is not run, because of what this machine saw on another store.
    seen_there(name, there, here, retry, new_here) Config "other_store"
        { "this machine saw {name} started or done on {there}, and {here} does not record it as done"
          "Nothing was run: it could be done twice"
          "If it was done there, record that: leasehold retry --done {retry}. If all work of that store may be \
           done again here, add --new-here to the command once, or write this line beside store in leasehold.toml: \
           new_here = [{new_here}]" }
    /// `--new-here` and `new_here`.
    new_here_unnoted(others, here, why) Config "state"
        { "this machine could not save the permission to do the work of {others} again on {here}: {why}"
          "Nothing was run"
          "Free some disk space in the state directory, or give this user write permission there" }
    loss_unnoted(store, why) Config "state"
        { "this machine could not save the note that {store} may have lost records: {why}"
          "" "Free some disk space in the state directory, or give this user write permission there" }
}
