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

A lease is removed if it is free, a key if it is done or will not be run; the run log of each goes with it. Names \
that are held, were never released, failed, or have an unknown outcome stay, and are listed. The store's clock decides \
how old a record is. Other machines accept that a forgotten lease is gone: it begins again with token 1. A forgotten \
key can be done again. Targets of a forgotten lease may need `leasehold fence reset`.")]
pub struct ForgetArgs {
    /// A lease or a key, or a prefix that ends with a slash: all names that begin with it
    pub name: String,
    /// Only records that have not changed for this long, by the store's clock; at least 1h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub older_than: Duration,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `uninstall`
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// List everything, with the commands that remove it; nothing is removed
    #[arg(long)]
    pub show: bool,
}
