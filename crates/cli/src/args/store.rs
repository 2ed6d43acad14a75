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
This machine refuses a store that has lost records which this machine has seen there: a backup was restored, or the \
record was removed. First make sure that no job of the lease runs any more, on any machine: the store does not show \
it. On this machine Leasehold searches for such jobs, and refuses to adopt (11) while one runs. Type adopt on each \
machine that refuses the store.")]
pub struct AdoptArgs {
    /// The lease
    pub name: String,
}
