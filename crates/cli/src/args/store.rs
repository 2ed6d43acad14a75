//! The flags of commands about the store itself.

use clap::Args;

use super::NewHereArgs;

/// `use`
#[derive(Debug, Args)]
pub struct UseArgs {
    /// The store, for example dir:/srv/leases; sqlite: alone is the one of this machine
    pub url: String,
    #[command(flatten)]
    pub new_here: NewHereArgs,
}

/// `adopt`
#[derive(Debug, Args)]
#[command(after_help = "\
This machine refuses a store that says less than it has seen there: a backup was put back, or the record was removed. \
First make sure that no job of the lease runs any more, on any machine: the store does not know of it. Jobs on this \
machine are looked for, and adopt is refused (11) while there is one. Each machine that is refused adopts for itself.")]
pub struct AdoptArgs {
    /// The lease
    pub name: String,
}
