//! `leasehold uninstall`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "uninstall", about: "`leasehold uninstall --show`.", entries: &[NOTES, FAILURES] };

notes! {
    records(store, counts) "records on {store}: {counts}";
    no_records() "none";
    not_counted(why) "cannot count the records of the store: {why}";
    nothing_removed()
        "nothing was removed. First stop everything that starts jobs, on every machine; then remove the rest in the \
         order listed (docs/remove.md explains each step)";
    edit_crontab() "crontab -e";
    edit_file(path) "sudoedit {path}";
    disable_unit(unit) "systemctl disable --now {unit}, and delete the file";
    remove_guard(target) "leasehold guard remove {target}";
    reset_fence(target) "leasehold fence reset {target}";
    goes_with_store() "removed with the store";
    by_provider() "the provider's own tools (docs/remove.md)";
}

failures! {
    only_shows() Usage "usage"
        { "this version only lists what is there and removes nothing" "" "Run: leasehold uninstall --show" }
}
