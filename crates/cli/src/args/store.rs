//! The flags of commands about the store itself.

use clap::Args;

use super::NewHereArgs;

/// `use`
#[derive(Debug, Args)]
pub struct UseArgs {
    /// The store, for example dir:/srv/leases (made if new); sqlite: alone is the one of this machine
    pub url: String,
    #[command(flatten)]
    pub new_here: NewHereArgs,
}

/// `adopt`
#[derive(Debug, Args)]
#[command(after_help = "\
This machine refuses a store that knows less than this machine has seen there: a backup was restored, or the record \
was removed. First make sure that no job of the lease runs any more, on any machine: the store cannot say so. Jobs on \
this machine are looked for, and adopt is refused (11) while one runs. Each machine that refuses the store needs its \
own adopt.")]
pub struct AdoptArgs {
    /// The lease
    pub name: String,
}
