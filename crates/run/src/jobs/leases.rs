//! The leases of a job, and what happens to a slot if they are held.

use std::time::Duration;

use leasehold_core::name::Name;

use super::{CATCH_UP_MOST, JobTable};
use crate::config_file::{BadFile, Section};

/// What happens to a slot whose lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfBusy {
    /// It is skipped.
    Skip,
    /// It waits this long, then it is skipped.
    Wait(Duration),
    /// It stays open until the lease is free. So it is with a `catch_up` of 2 or more: every slot counts. `on_busy` or
    /// `wait` in the same table, or in the job's own, wins over it.
    Open,
}

const WORDS: [&str; 3] = ["skip", "wait", "switch"];

/// Refuses a table that contradicts itself.
fn check(section: &Section<'_>) -> Result<(), BadFile> {
    let skips = section.choice("on_busy", &WORDS)? == Some("skip");
    if skips && every_slot_counts(section)? {
        let why = "on_busy = \"skip\" skips a slot whose lease is held, but catch_up of 2 or more says that every slot \
                   counts. Leave out on_busy to keep such a slot open until the lease is free, or write catch_up = 1 to \
                   skip it";
        return Err(section.bad("on_busy", why));
    }
    if skips && section.has("wait") {
        return Err(section.bad("wait", NO_WAIT));
    }
    Ok(())
}

const NO_WAIT: &str = "wait needs on_busy = \"wait\" or \"switch\"; add on_busy, or leave out wait";

fn every_slot_counts(section: &Section<'_>) -> Result<bool, BadFile> {
    Ok(section.count("catch_up", 0, CATCH_UP_MOST)?.is_some_and(|most| most >= 2))
}

/// Checks the defaults by themselves.
pub fn check_defaults(defaults: &Section<'_>) -> Result<(), BadFile> {
    check(defaults)
}

/// The leases it may take, and what happens if none is free.
pub fn leases(said: &JobTable<'_>, name: &Name) -> Result<(Vec<Name>, IfBusy), BadFile> {
    let JobTable { own, defaults, .. } = said;
    check(own)?;
    let on_busy = said.either(|section| section.choice("on_busy", &WORDS))?;
    let leases = named(own, on_busy, name)?;
    let waits = matches!(on_busy, Some("wait" | "switch"));
    if !waits && own.has("wait") {
        return Err(own.bad("wait", NO_WAIT));
    }
    // A job that sets on_busy does not need the wait of the defaults.
    if on_busy.is_none() && defaults.has("wait") {
        return Err(defaults.bad("wait", NO_WAIT));
    }
    let wait = said.duration("wait")?;
    if on_busy == Some("wait") && wait.is_none() {
        let place = if own.has("on_busy") { own } else { defaults };
        return Err(place.bad("on_busy", "on_busy = \"wait\" does not say how long; add wait = \"2m\""));
    }
    Ok((leases, busy(said, wait.filter(|_| waits))?))
}

fn busy(said: &JobTable<'_>, wait: Option<Duration>) -> Result<IfBusy, BadFile> {
    let otherwise = |section: &Section<'_>| section.has("on_busy") || section.has("wait");
    let (own, defaults) = (&said.own, said.defaults);
    // Only the table with catch_up counts, and the job's own.
    let open = match own.has("catch_up") {
        true => every_slot_counts(own)? && !otherwise(own),
        false => every_slot_counts(defaults)? && !otherwise(own) && !otherwise(defaults),
    };
    Ok(match (open, wait) {
        (true, _) => IfBusy::Open,
        (false, Some(wait)) => IfBusy::Wait(wait),
        (false, None) => IfBusy::Skip,
    })
}

fn named(own: &Section<'_>, on_busy: Option<&str>, name: &Name) -> Result<Vec<Name>, BadFile> {
    let switch = on_busy == Some("switch");
    match (own.texts("resources")?, own.name("lease")?) {
        (Some(_), Some(_)) => Err(own.bad("resources", "lease and resources are both set; keep one")),
        (Some(several), None) if switch => {
            let mut leases: Vec<Name> = Vec::new();
            for text in &several {
                let lease = Name::new(text).map_err(|e| own.bad("resources", &e.to_string()))?;
                if leases.contains(&lease) {
                    return Err(own.bad("resources", &format!("{lease} is named twice in resources; name it once")));
                }
                leases.push(lease);
            }
            match leases.len() {
                0 | 1 => {
                    let why = "resources must name two or more leases to switch between; for one, write lease = \"site\"";
                    Err(own.bad("resources", why))
                }
                _ => Ok(leases),
            }
        }
        (Some(_), None) => {
            Err(own.bad("resources",
                "resources needs on_busy = \"switch\"; add on_busy = \"switch\", or write lease"))
        }
        (None, _) if switch => Err(own.bad(
            "on_busy",
            "on_busy = \"switch\" has nothing to switch to; add resources = [\"a\", \"b\"], or write on_busy = \"skip\"",
        )),
        (None, lease) => Ok(vec![lease.unwrap_or_else(|| name.clone())]),
    }
}
