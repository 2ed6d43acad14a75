//! The names of this host and run, for people and for the environment of a job.

use leasehold_core::fence::Bearer;
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;

use crate::{clock, random};

/// This machine's name.
pub fn name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// A unique run id: host and pid or the user's label, and always a random part. Processes that carry it
/// count as the run's and are ended with it, so a label alone is not enough.
pub fn fresh_run_id(label: Option<&str>) -> String {
    let pid = rustix::process::getpid().as_raw_nonzero();
    let label = label.map_or_else(|| format!("{}-{pid}", name()), str::to_owned);
    format!("{label}-{:016x}", random::seed() as u64)
}

/// The variable that marks every process of a run.
pub const RUN_ID: &str = "LEASEHOLD_RUN_ID";

/// A shorter run id might not be unique.
pub const RUN_ID_SHORTEST: usize = 16;

/// The variable with the ids of the enclosing runs, outermost first, then this one. An inner run replaces
/// [`RUN_ID`], and its processes must still be recognised as part of the outer run.
pub const RUN_CHAIN: &str = "LEASEHOLD_RUN_CHAIN";

/// The ids of the runs that this process was started under, outermost first.
pub fn outer_runs() -> Vec<String> {
    let outer = std::env::var(RUN_CHAIN).or_else(|_| std::env::var(RUN_ID)).unwrap_or_default();
    outer.split(' ').filter(|run| !run.is_empty()).map(str::to_owned).collect()
}

/// The value of [`RUN_CHAIN`] for a run started from this environment.
pub fn run_chain(run_id: &str) -> String {
    let mut chain = outer_runs();
    chain.push(run_id.to_owned());
    chain.join(" ")
}

/// This process as the holder of a lease.
pub fn holder(run_id: &str, job: &Name) -> Holder {
    Holder {
        host: name(),
        pid: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        run: run_id.into(),
        job: job.as_str().into(),
        since: utc(clock::wall().as_secs()),
        slot: None,
    }
}

/// Seconds since 1970 as `2026-11-15T14:02:11Z`, for people to read.
pub fn utc(secs: u64) -> String {
    leasehold_core::time::utc(std::time::Duration::from_secs(secs))
}

/// The value of LEASEHOLD_GRANT: opaque to the job, and enough for a write to act for this run.
pub fn grant_text(bearer: &Bearer) -> String {
    format!("{}.{}", bearer.epoch, bearer.grant)
}

/// Reads [`grant_text`].
pub fn parse_grant_text(text: &str) -> Option<(Epoch, Grant)> {
    let (epoch, grant) = text.split_once('.')?;
    Some((Epoch::parse(epoch)?, Grant::parse(grant)?))
}

/// The variable that names the process that renews a grant: opaque to the job.
pub const SUPERVISOR: &str = "LEASEHOLD_SUPERVISOR";

/// The value of [`SUPERVISOR`], for a grant that this process renews.
pub fn supervisor_text(grant: Grant) -> String {
    format!("{}.{grant}", rustix::process::getpid().as_raw_nonzero())
}

/// Reads [`supervisor_text`]: the process, and the grant that it renews.
pub fn parse_supervisor_text(text: &str) -> Option<(i32, Grant)> {
    let (pid, grant) = text.split_once('.')?;
    Some((pid.parse().ok()?, Grant::parse(grant)?))
}

/// The run this process is part of, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enclosing {
    /// Its lease.
    pub lease: Name,
    /// Its token.
    pub token: Token,
    /// The epoch of the lease's record.
    pub epoch: Epoch,
    /// Its acquisition.
    pub grant: Grant,
}

impl Enclosing {
    /// Reads LEASEHOLD_LEASE, _TOKEN and _GRANT.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let (epoch, grant) = parse_grant_text(&env("LEASEHOLD_GRANT")?)?;
        let token = Token::new(env("LEASEHOLD_TOKEN")?.parse().ok()?)?;
        Some(Self { lease: Name::new(&env("LEASEHOLD_LEASE")?).ok()?, token, epoch, grant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grant_survives_the_environment() {
        let (epoch, grant) = (Epoch::first(3), Grant(9));
        let lease = Name::new("a").unwrap();
        let token = Token::new(4).unwrap();
        let text = grant_text(&Bearer { lease, epoch, token, grant });
        assert_eq!(parse_grant_text(&text), Some((epoch, grant)));
        assert_eq!(parse_grant_text("x"), None);
    }
}
