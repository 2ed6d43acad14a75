//! `leasehold use URL`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

#[cfg(test)]
pub const CATALOGUE: Catalogue =
    Catalogue { name: "use_store", about: "`leasehold use`.", entries: &[NOTES, FAILURES] };

notes! {
    works(store, named) "{store} works (a test record was written and compared); {named}";
    created(store, named) "{store} created; it works (a test record was written and compared); {named}";
    saved(config) "saved to {config}, where cron sees it too";
    /// `XDG_CONFIG_HOME` is set.
    saved_elsewhere(config)
        "saved to {config}. For cron to see it too, set the same XDG_CONFIG_HOME in the crontab";
    named_by_project(config) "{config} names it, and your configuration stays as it is";
    not_used(other) "it is not used here, because {other} comes first";

    before(store, back)
        "before this it was {store}. A lease held there stops no run here, so wait until no job runs there. To \
         go back: leasehold use {back}";
    before_masked(store, back)
        "before this it was {store}. A lease held there stops no run here, so wait until no job runs there. To \
         go back, with the password in place of ***: leasehold use {back}";
    before_in_file(file, config)
        "before this it was the store that {file} names. A lease held there stops no run here, so wait until \
         no job runs there. To go back, replace the store in {config} with: store_file = {file}";
    /// Keys and slots that this machine saw on another store.
    done_elsewhere(work, there, here)
        "this machine saw {work} started or done on {there}. This store does not know that work, so it is refused here \
         (78). To do it again here: leasehold use {here} --new-here";
    fenced(target, reset)
        "this machine has fenced {target}. If a run on another store did that, runs here that fence it are refused (79). \
         When no job runs there any more: {reset}";
    reset(target) "leasehold fence reset {target}";
    fenced_several(count)
        "this machine has fenced {count} targets (leasehold fence ls). If a run on another store fenced one of them, runs \
         here that fence it are refused (79). When no job runs there any more: leasehold fence reset TARGET";

    /// Of every failure before the store is saved: what it means.
    unsaved() "Nothing was written to your configuration";
    /// The same, if something of the store was made.
    partly_made(store)
        "Nothing was written to your configuration. {store} was only partly created; run the same command again to \
         finish it";
    /// The store is saved, but `--new-here` could not be noted.
    not_new_here(store)
        "{store} is used from now on, but --new-here was not saved: keys and slots that were done elsewhere are still \
         refused";
}

failures! {
    not_changeable(config, line) Config "config"
        { "{config} names its store in a way that `leasehold use` cannot change"
          "Nothing was changed"
          "Replace the store there with this line, and add the password if it has one: {line}" }
    not_written(store, config, why) Config "config" { "{store} works, but {config} could not be written: {why}" "" "" }
    not_readable(config, why) Config "config"
        { "{config} cannot be read, so it was not replaced: {why}" "Nothing was changed" "" }
    no_place() Config "config"
        { "neither XDG_CONFIG_HOME nor HOME is set, so there is no configuration to write" "Nothing was changed" "" }
}
