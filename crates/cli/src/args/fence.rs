//! The arguments of `leasehold fence`.

use clap::{Args, Subcommand};

/// `fence`
#[derive(Debug, Args)]
pub struct Fence {
    #[command(subcommand)]
    pub verb: FenceVerb,
}

/// What to do with fences.
#[derive(Debug, Subcommand)]
pub enum FenceVerb {
    /// Show class, lease, token and mode of these targets, or of all that this user has sealed here
    Ls {
        /// Targets, for example file:/srv/site/today.json
        targets: Vec<String>,
    },
    /// What runs with --observe have seen on this machine
    Observed,
    /// Refuse stale writes there from now on
    Enforce {
        /// The target
        target: String,
    },
    /// Forget who sealed it: the next run seals it anew, whichever store its lease is on
    #[command(after_help = "\
For after a move to another store, when no run is left on the old one. Refused while the lease is held on the \
store in use. Until the next run has sealed the target, nobody writes it.")]
    Reset {
        /// The target
        target: String,
    },
    /// Only count stale writes there from now on, and let them in
    Observe {
        /// The target
        target: String,
    },
}
