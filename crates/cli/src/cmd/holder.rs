//! Who holds a lease, for people.

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::session::Busy;
use leasehold::host;
use leasehold_run::runner;
use leasehold_run::runner::tree_types::Survivor;

use super::times::held_for;
use crate::messages::run as say;

/// "held by mac-mini/8123 (token 42) for 38s, lease ends in 71s if not renewed"
pub fn held_by(busy: &Busy) -> String {
    let holder = &busy.holder;
    let since = held_for(&holder.since).filter(|d| !d.is_zero());
    let since = since.map(|d| format!(" for {}", HumanDuration(d))).unwrap_or_default();
    let ends = match busy.ends_in {
        Some(left) => say::held_until(HumanDuration(left)),
        None => say::held_unchanged(HumanDuration(busy.ttl)),
    };
    let run_of_this_machine = busy.evident && holder.host == host::name();
    let orphans = if run_of_this_machine { runner::orphans(holder.pid, &holder.run) } else { Vec::new() };
    let orphans = match &orphans[..] {
        [] => String::new(),
        orphans => say::held_by_orphans(names(orphans)),
    };
    say::held_by(holder, busy.token, since, ends, orphans)
}

/// The first few processes, by number and command.
pub fn names(processes: &[Survivor]) -> String {
    const MOST: usize = 8;
    let named = processes.iter().take(MOST).map(|s| match s.command.is_empty() {
        true => format!("process {}", s.pid),
        false => format!("{} ({})", s.pid, s.command),
    });
    let mut names: Vec<String> = named.collect();
    // They ended before their names could be read.
    if names.is_empty() {
        names.push("an unnamed process".into());
    }
    if processes.len() > MOST {
        names.push(format!("{} more", processes.len() - MOST));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_is_named() {
        let survivor = |pid, command: &str| Survivor { pid, command: command.into() };
        assert_eq!(names(&[survivor(7, "sleep 9"), survivor(8, "")]), "7 (sleep 9), process 8");
        assert!(!names(&[]).is_empty());
    }
}
