//! The run that this command was started in, if there is one.

use leasehold::core::session::Within;
use leasehold::host::{self, Enclosing};
use leasehold_run::runner::environment::RUN_STORE;

/// The runs around this process, and the lease that the script around it took by hand.
pub fn within() -> Within {
    let by_hand = Enclosing::from_env(|name| std::env::var(name).ok());
    Within { runs: host::outer_runs(), grant: by_hand.map(|outer| outer.grant) }
}

/// Whether a store is that of the outer run; also if the run does not say which it uses.
pub fn is_on_the_runs_store(shown: &str) -> bool {
    std::env::var(RUN_STORE).map_or(true, |its| its == shown)
}
