//! The flags of leases that are taken by hand.

use std::time::Duration;

use clap::Args;
use leasehold::core::ids::Token;
use leasehold_run::duration;

use crate::messages::help::bad_token;

/// `acquire`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  T=$(leasehold acquire NAME) || exit               exit code 11: the lease is held
  eval \"$(leasehold acquire NAME --eval)\" || exit   sets LEASEHOLD_TOKEN and more
  leasehold renew NAME --token \"$T\"
  leasehold release NAME --token \"$T\"

Nothing renews the lease for you: renew it before the TTL has passed, or use `leasehold run`.")]
pub struct AcquireArgs {
    /// The lease: names the thing that only one run may work on at a time
    pub name: String,
    /// How long the lease lasts unless renewed
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "90s")]
    pub ttl: Duration,
    /// Wait this long for a lease that is held
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Name of this work in status [default: NAME]
    #[arg(long, value_name = "LABEL")]
    pub job: Option<String>,
    /// Print export lines for the shell instead of the token
    #[arg(long, conflicts_with = "json")]
    pub eval: bool,
}

/// `renew` and `release`
#[derive(Debug, Args)]
pub struct ManualArgs {
    /// The lease
    pub name: String,
    /// The token that acquire printed [env: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "N", value_parser = token)]
    pub token: Option<Token>,
}

/// A token as `acquire` printed it.
pub fn token(text: &str) -> Result<Token, String> {
    let token = text.parse().ok().and_then(Token::new);
    token.ok_or_else(|| bad_token(format!("{text:?}")))
}

/// `break`
#[derive(Debug, Args)]
#[command(after_help = "\
The holder is asked to stop: at its next renewal it stops its job and releases the lease. If it does not answer, \
its lease expires. Then the lease is free, and the exit code is 0; with --take it is yours, as if acquired by hand. \
With --now the command does not wait, and the old job may still be running: only a fence at the target protects you \
then.")]
pub struct BreakArgs {
    /// The lease
    pub name: String,
    /// Take the lease afterwards, and print the token
    #[arg(long)]
    pub take: bool,
    /// With --take: how long your lease lasts unless renewed
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "90s", requires = "take")]
    pub ttl: Duration,
    /// Wait at most this long for the holder [default: until its lease has expired]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Do not wait for the holder
    #[arg(long, conflicts_with = "wait")]
    pub now: bool,
}
