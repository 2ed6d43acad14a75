//! The arguments of `leasehold fence` and `leasehold gate`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// `fence`
#[derive(Debug, Args)]
pub struct FenceArgs {
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

/// `gate`
#[derive(Debug, Args)]
#[command(after_help = "\
It works inside a run that named the gate:
  leasehold run site --fence gate:mail -- sh -c 'leasehold gate mail -- ./send.sh'

A gate by its name is a record in the store of the lease, for all machines that share it. It is compared and set \
right before the command starts; if a later run has sealed it, nothing is started (76). A command that runs already \
does not delay the next run.

With a lease that was taken by hand (acquire --eval), the command asks the store itself and seals the gate on the way.

A gate by its path is a lock file, for this machine only: the next start waits until the command has ended. What \
the command does elsewhere is not part of the check, so the class is `gate`.")]
pub struct GateArgs {
    /// What the command touches: a name, or a path (/PATH, ./PATH)
    pub resource: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
