//! The flags of commands about the store itself.

use clap::Args;

use super::NewHereArgs;

/// `use`
#[derive(Debug, Args)]
pub struct UseArgs {
    /// The store, for example dir:/srv/leases (made if new); `sqlite:` without a path is the default store
    pub url: String,
    #[command(flatten)]
    pub new_here: NewHereArgs,
}

/// `adopt`
#[derive(Debug, Args)]
#[command(after_help = "\
If a backup of the store was restored, or the record of a lease was removed, this machine refuses the lease, because \
it has seen a newer record. First make sure that no job of the lease still runs, on any machine: the store cannot show \
that. Leasehold searches this machine for such jobs, and refuses to adopt (11) while one runs. Type adopt on each \
machine that refuses the lease.")]
pub struct AdoptArgs {
    /// The lease
    pub name: String,
}
