//! `leasehold pause` and `leasehold resume`.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `pause` and `resume` say.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "pause",
    about: "`leasehold pause` and `leasehold resume`.",
    entries: &[NOTES, FAILURES],
};

notes! {
    paused(job, by, at)
        "{job} is paused (by {by} at {at}): its slots are dropped until you type leasehold resume {job}; a run \
         that has started goes on";
    resumed(job, back) "{job} goes on with the slots that are due from now on{back}";
    set_back(now, upto)
        " ({now} by this machine's clock). A wrong clock had recorded its slots up to {upto} as over";
}

failures! {
    not_loaded(job, store) Usage "usage"
        { "no machine has loaded a job {job} on {store}" ""
          "pause and resume work on the jobs of a leasehold.toml that a daemon or a tick has loaded. See: leasehold plan" }
    not_set_back(job, upto, schedule) Config "config"
        { "a wrong clock recorded the slots of {job} up to {upto} as over. That could not be corrected: the \
           leasehold.toml here has no job {job} with the schedule {schedule}"
          "None of these slots is run"
          "Run this command in the directory of that file, or with --config FILE. If the file has changed \
           since, run `leasehold tick` there first" }
}
