//! The flags of commands that tell how things stand: `stats`, `check`, `metrics`; and `trigger`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_run::duration;

/// `stats`
#[derive(Debug, Args)]
#[command(after_help = "\
A skip is not a failure: skips are counted separately, with their reasons and their share of all runs. p50, p95 and \
worst are the times of ok runs. With at least 10 of these, the advice says which TTL fits, and why.")]
pub struct StatsArgs {
    /// Only this job, or all jobs below this prefix (PREFIX/)
    pub name: Option<String>,
    /// How far to look back, by the clocks of the machines
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "7d")]
    pub since: Duration,
}

/// `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0 if nothing needs your attention, 1 if something does; 69, 77 or 78 if the check itself failed. Each line \
says what is wrong and which command to type. Skips are never listed. Run it in the directory of your \
leasehold.toml: elsewhere it does not know which jobs are overdue.")]
pub struct CheckArgs {
    /// Only this job, lease or key
    pub name: Option<String>,
    /// How far to look back for runs and refused writes
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1d")]
    pub since: Duration,
    /// Send an alert for each new problem and each recovery, as [alerts] in the configuration says
    #[arg(long, conflicts_with = "name")]
    pub alert: bool,
}

/// `metrics`
#[derive(Debug, Args)]
#[command(after_help = "\
The counters are totals of the run log, which keeps records for a limited time (keep_log). They fall when old records \
are removed; rate() and increase() treat that as a restart. Skips are counted in leasehold_skips_total, never as \
failures.

For node_exporter: leasehold metrics --textfile /var/lib/node_exporter/leasehold.prom")]
pub struct MetricsArgs {
    /// Write to this file, which is replaced as a whole, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<PathBuf>,
}

/// `trigger`
#[derive(Debug, Args)]
#[command(after_help = "\
The slot is run as a daemon would run it: with the leases, targets, key and time limits of leasehold.toml. The exit \
code is that of `run`. A slot that was dropped, skipped or failed is run again; one that is done is not. If its \
outcome is unknown, the exit code is 79, and you decide with `leasehold retry`. A paused job stays paused.")]
pub struct TriggerArgs {
    /// The job, as leasehold.toml calls it
    pub job: String,
    /// The slot, for example 2026-11-16T05:45Z, 03:00 or "yesterday 03:00" [default: the newest that is due]
    pub slot: Option<String>,
}
