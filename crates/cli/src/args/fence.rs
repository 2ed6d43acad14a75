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
    /// Show class, lease, token and mode of these targets, or of all that this user has fenced here
    Ls {
        /// Targets, for example file:/srv/site/today.json
        targets: Vec<String>,
    },
    /// Show what runs with --observe have noted on this machine
    Observed,
    /// Refuse stale writes to a target from now on
    Enforce {
        /// The target
        target: String,
    },
    /// Forget the fence of a target: the next run fences it again, even from another store
    #[command(after_help = "\
Use it after a move to another store, when no run is left on the old one. It is refused while the lease is held \
on the store in use. Until the next run has fenced the target, every write with a token is refused. The fence of a \
repository cannot be reset: it is a ref to delete (docs/targets/git.md).")]
    Reset {
        /// The target
        target: String,
    },
    /// Accept stale writes to a target from now on, and only count them
    Observe {
        /// The target
        target: String,
    },
}

/// `gate`
#[derive(Debug, Args)]
#[command(after_help = "\
Use it inside a run that names the gate:
  leasehold run site --fence gate:mail -- sh -c 'leasehold gate mail -- ./send.sh'

A gate with a name is a record in the store of the lease, for all machines that share it. The token is checked \
right before the command starts: if a later run has fenced the gate, nothing is started (76). A command that already \
runs does not delay the next run.

With a lease that was taken by hand (acquire --eval), this command asks the store itself, and fences the gate first.

A gate with a path is a lock file, for this machine only: the next start waits until the command has ended. What \
the command does elsewhere is not checked, so the class is `gate`.")]
pub struct GateArgs {
    /// What the command touches: a name, or a path (/PATH, ./PATH)
    pub resource: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
