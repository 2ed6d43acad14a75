//! The flags of commands about the store itself.

use std::time::Duration;

use clap::Args;
use leasehold_run::duration;

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

/// `forget`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold forget pr-4711 --older-than 7d
  leasehold forget pr/ --older-than 30d --dry-run

A lease is removed if it is free, a key if it is done or not to be run, each with its run log. What is held, was not \
given back, failed, or is unknown is left and listed. How old a record is, the store says. Other machines that have \
used a name accept that it is gone, and begin again with token 1. A key that was forgotten can be done again. Its \
targets may need `leasehold fence reset`.")]
pub struct ForgetArgs {
    /// A lease or a key; with a slash at its end: all whose names begin with it
    pub name: String,
    /// Only what has not changed for this long, by the store's clock; at least 1h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub older_than: Duration,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `uninstall`
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// List what there is, with the commands that remove it. Removes nothing
    #[arg(long)]
    pub show: bool,
}
