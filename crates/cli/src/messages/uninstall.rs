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
    not_counted(why) "the store was not looked at: {why}";
    nothing_removed()
        "nothing was removed. Stop what starts jobs first, on every machine, and take the rest in this order; what each \
         step means: docs/remove.md";
    edit_crontab() "crontab -e";
    edit_file(path) "sudoedit {path}";
    disable_unit(unit) "systemctl disable --now {unit}, and delete the file";
    remove_guard(target) "leasehold guard remove {target}";
    reset_fence(target) "leasehold fence reset {target}";
    goes_with_store() "it goes with the store";
    by_provider() "the provider's own tools (docs/remove.md)";
}

failures! {
    only_shows() Usage "usage"
        { "this version shows what there is, and removes nothing by itself" "" "Run: leasehold uninstall --show" }
}
