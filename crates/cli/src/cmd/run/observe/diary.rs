//! The file in which runs that only observe note what they do, and read about each other.
//!
//! Each run adds a line when it starts and one when it has ended. Lines are never removed, so their order says which
//! runs overlapped, without any clock: a line of another run after our first line means that it ran beside us.

use std::path::Path;

use leasehold::host;
use leasehold_run::runner::run::RunSpec;
use serde_json::{Map, Value, json};

use super::super::watch::{Observation, Observed, TargetTraces};
use crate::cmd::fence::anywhere;
use crate::config::Chosen;
use crate::messages::observe as say;

/// The outcome in the first line of a run.
pub const STARTED: &str = "started";

/// A line of this run.
pub fn line(spec: &RunSpec, chosen: Option<&Chosen>, outcome: &str) -> Value {
    json!({
        "v": 1,
        "time": host::utc(leasehold::clock::wall().as_secs()),
        "observed": true,
        "outcome": outcome,
        "job": spec.job.as_str(),
        "lease": spec.leases[0].as_str(),
        "store": chosen.map(|chosen| &chosen.shown),
        "host": host::name(),
        "holder": format!("{}/{}", host::name(), std::process::id()),
        "run_id": spec.run_id,
    })
}

/// The lines of a file. Those that cannot be read are left out.
pub fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The targets that this run changed, with the fingerprint of their content now.
pub fn wrote(left: &[TargetTraces]) -> Map<String, Value> {
    let changed = left.iter().filter(|left| left.now != left.before);
    let named = changed.filter_map(|left| Some((anywhere(&left.shown)?, left.now.as_deref()?.into())));
    named.collect()
}

/// Other runs of the same lease that ran beside this one.
pub struct Beside {
    /// The last line of each that started or ended since this run started, in order.
    last: Vec<Value>,
    /// The ids of those that started after this run.
    newer: Vec<Value>,
}

impl Beside {
    /// Reads them from the file. `me` is a line of this run.
    pub fn read(path: &Path, me: &Value) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let since = lines(&text).skip_while(|line| line["run_id"] != me["run_id"]);
        let others: Vec<Value> = since
            .filter(|line| line["run_id"] != me["run_id"])
            .filter(|line| line["lease"] == me["lease"] && line["store"] == me["store"])
            .collect();
        let ended =
            |run: &Value| others.iter().any(|line| line["run_id"] == *run && line["outcome"] != STARTED);
        let (started, mut last): (Vec<Value>, Vec<Value>) =
            others.iter().cloned().partition(|line| line["outcome"] == STARTED);
        last.extend(started.iter().filter(|line| !ended(&line["run_id"])).cloned());
        Self { last, newer: started.into_iter().map(|line| line["run_id"].clone()).collect() }
    }

    /// Whether this run wrote over the work of a run that started after it.
    pub fn overwrote_newer(&self, left: &[TargetTraces]) -> bool {
        left.iter().filter_map(|left| self.overwriting(left)).any(|(_, which)| which == Overwritten::Newer)
    }

    /// The run that wrote the target last, if this run or that one wrote over the other's work.
    fn overwriting(&self, left: &TargetTraces) -> Option<(&Value, Overwritten)> {
        let name = anywhere(&left.shown)?;
        let line = self.last.iter().rev().find(|line| line["wrote"][&name].is_string())?;
        let theirs = line["wrote"][&name].as_str();
        match (self.newer.contains(&line["run_id"]), theirs == left.now.as_deref()) {
            (true, false) => Some((line, Overwritten::Newer)),
            (false, true) => Some((line, Overwritten::Ours)),
            _ => None,
        }
    }

    /// What to note about them. The run that held the lease is noted already.
    pub fn seen(&self, left: &[TargetTraces], held_by: Option<&str>) -> Vec<Observation> {
        let text = |line: &Value, key: &str| line[key].as_str().unwrap_or("?").to_owned();
        let unnoted = self.last.iter().filter(|line| line["run_id"].as_str() != held_by);
        let overlap = |line: &Value| {
            let (lease, holder) = (text(line, "lease"), text(line, "holder"));
            (Observed::Overlap, say::ran_beside(lease, holder))
        };
        let overwritten = left.iter().filter_map(|left| {
            let (line, which) = self.overwriting(left)?;
            let (shown, holder) = (&left.shown, text(line, "holder"));
            Some(match which {
                Overwritten::Newer => say::overwrote(shown, holder),
                Overwritten::Ours => say::overwritten(shown, holder),
            })
        });
        unnoted.map(overlap).chain(overwritten.map(|text| (Observed::Overwritten, text))).collect()
    }
}

/// Whose work was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overwritten {
    /// That of a newer run, by this one.
    Newer,
    /// That of this run, by an older one.
    Ours,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two machines may have one name, and a number comes again.
    #[test]
    fn runs_are_told_apart_by_their_ids() {
        let line = |run: &str| json!({"run_id": run, "lease": "site", "holder": "box/7"});
        let beside = Beside { last: vec![line("a"), line("b")], newer: Vec::new() };
        assert_eq!(beside.seen(&[], Some("a")).len(), 1);
        assert_eq!(beside.seen(&[], None).len(), 2);
    }
}
