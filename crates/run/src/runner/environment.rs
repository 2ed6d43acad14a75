//! Every variable that a run sets for its job, or removes. All others are inherited.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use leasehold::backends::shown;
use leasehold::host;
use leasehold_core::fence::Bearer;
use leasehold_core::ledger::Subject;

use super::run::RunSpec;
use crate::step_server::SOCKET;

/// The store of the run's lease, without a password. A lease of the same name on another store is another lease.
pub const RUN_STORE: &str = "LEASEHOLD_RUN_STORE";
const STORE: &str = "LEASEHOLD_STORE";

/// A variable and its value; `None` removes it.
pub type Variable = (OsString, Option<OsString>);

/// All variables of a run. One without a lease only observes. `attempt` counts the runs of its item, its steps and gates
/// ask at `socket`, and `targets` is what [`leasehold::targets::Target::environment`] gives.
pub fn variables(
    spec: &RunSpec,
    lease: Option<&Bearer>,
    attempt: Option<u32>,
    socket: Option<&Path>,
    targets: Vec<(OsString, OsString)>,
) -> Vec<Variable> {
    let set = |(name, value)| (name, Some(value));
    let mut all: Vec<Variable> = spec.env.iter().cloned().map(set).collect();
    all.extend(without_password(std::env::var_os(STORE)));
    all.extend(lease.into_iter().flat_map(|lease| of_lease(spec, lease)).map(set));
    all.extend(targets.into_iter().map(set));
    all.extend(of_item(spec, attempt, socket));
    all
}

/// A job gets no store credentials. The rest of the URL stays: without it a run inside this one would use another store.
fn without_password(store: Option<OsString>) -> Option<Variable> {
    // A text that is not UTF-8 cannot be masked.
    store.map(|url| (STORE.into(), url.to_str().map(|url| shown(url).into())))
}

/// Targets and runs inside the job know the run by these.
fn of_lease(spec: &RunSpec, lease: &Bearer) -> Vec<(OsString, OsString)> {
    let values = [
        ("LEASEHOLD_LEASE", Some(lease.lease.to_string())),
        ("LEASEHOLD_JOB", Some(spec.job.to_string())),
        ("LEASEHOLD_TOKEN", Some(lease.token.to_string())),
        ("LEASEHOLD_GRANT", Some(host::grant_text(lease))),
        (host::SUPERVISOR, Some(host::supervisor_text(lease.grant))),
        (host::RUN_ID, Some(spec.run_id.clone())),
        (host::RUN_CHAIN, Some(host::run_chain(&spec.run_id))),
        (RUN_STORE, spec.store.clone()),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into()))).collect()
}

/// What an outer run set is removed, also if this one has no item: the job would take that key for its own, and do its
/// steps in the outer run's name.
fn of_item(spec: &RunSpec, attempt: Option<u32>, socket: Option<&Path>) -> [Variable; 5] {
    let (mut key, mut slot) = (None, None);
    for item in spec.item.iter().chain(&spec.key) {
        match &item.subject {
            Subject::Key(text) => key = Some(text.into()),
            Subject::Slot { id, .. } => slot = Some(id.into()),
            Subject::Latest(_) => {}
        }
    }
    [
        ("LEASEHOLD_KEY".into(), key),
        ("LEASEHOLD_SLOT".into(), slot),
        ("LEASEHOLD_ATTEMPT".into(), attempt.map(|attempt| attempt.to_string().into())),
        ("LEASEHOLD_STEP".into(), None),
        (SOCKET.into(), socket.map(Into::into)),
    ]
}

/// Sets and removes them for a command.
pub(super) fn apply(command: &mut Command, all: &[Variable]) {
    for (name, value) in all {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use leasehold::ledger::Item;
    use leasehold_core::ids::{Epoch, Grant, Token};
    use leasehold_core::ledger::IfUnknown;
    use leasehold_core::name::Name;
    use leasehold_core::timing::{StoreClock, Timing, TimingWishes};

    use super::*;
    use crate::runner::lookup::Program;

    fn spec() -> RunSpec {
        let name = Name::new("site").unwrap();
        let timing = Timing::new(
            TimingWishes { ttl: Some(Duration::from_secs(90)), heartbeat: None, grace: None },
            StoreClock::default(),
        );
        let program = Program { name: "true".into(), path: PathBuf::from("/bin/true") };
        let leases = vec![name.clone()];
        RunSpec::new(leases, name, "mac-1-a".into(), timing.unwrap(), program, Vec::new())
    }

    fn item(subject: Subject) -> Option<Item> {
        Some(Item { subject, if_unknown: IfUnknown::Refuse, attempts: 1, keep: None })
    }

    fn names(all: &[Variable], is_set: bool) -> Vec<&str> {
        let chosen = all.iter().filter(|(name, value)| value.is_some() == is_set && name != STORE);
        chosen.filter_map(|(name, _)| name.to_str()).collect()
    }

    #[test]
    fn a_run_sets_and_removes_these_and_no_others() {
        let slot =
            Subject::Slot { job: Name::new("site").unwrap(), at: 0, id: "1970-01-01T00:00:00Z".into() };
        let spec = RunSpec {
            env: vec![("OF_THE_JOB".into(), "1".into())],
            store: Some("dir:/srv/leases".into()),
            item: item(slot),
            key: item(Subject::Key("invoice-1".into())),
            ..spec()
        };
        let lease =
            Bearer { lease: spec.job.clone(), token: Token::FIRST, epoch: Epoch::first(1), grant: Grant(1) };
        let targets = vec![("OF_A_TARGET".into(), "1".into())];
        let all = variables(&spec, Some(&lease), Some(2), Some(Path::new("/run/socket")), targets);
        let set = [
            "OF_THE_JOB",
            "LEASEHOLD_LEASE",
            "LEASEHOLD_JOB",
            "LEASEHOLD_TOKEN",
            "LEASEHOLD_GRANT",
            "LEASEHOLD_SUPERVISOR",
            "LEASEHOLD_RUN_ID",
            "LEASEHOLD_RUN_CHAIN",
            "LEASEHOLD_RUN_STORE",
            "OF_A_TARGET",
            "LEASEHOLD_KEY",
            "LEASEHOLD_SLOT",
            "LEASEHOLD_ATTEMPT",
            "LEASEHOLD_SOCKET",
        ];
        assert_eq!(names(&all, true), set);
        assert_eq!(names(&all, false), ["LEASEHOLD_STEP"]);
    }

    #[test]
    fn the_item_of_an_outer_run_is_removed() {
        let removed =
            ["LEASEHOLD_KEY", "LEASEHOLD_SLOT", "LEASEHOLD_ATTEMPT", "LEASEHOLD_STEP", "LEASEHOLD_SOCKET"];
        let all = variables(&spec(), None, None, None, Vec::new());
        assert_eq!((names(&all, true), names(&all, false)), (Vec::new(), removed.to_vec()));
    }

    #[test]
    fn a_job_gets_no_password_of_the_store() {
        let value = |text: &str| without_password(Some(text.into())).and_then(|(_, value)| value).unwrap();
        assert_eq!(value("sqlite:/srv/leases.db"), "sqlite:/srv/leases.db");
        assert!(!value("postgres://me:secret@db/ops").to_str().unwrap().contains("secret"));
        assert_eq!(without_password(None), None);
    }
}
