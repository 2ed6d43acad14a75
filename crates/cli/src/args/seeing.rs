//! The flags of commands that tell how things stand: `stats`, `check`, `metrics`; and `trigger`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_run::duration;

/// `stats`
#[derive(Debug, Args)]
#[command(after_help = "\
A skip is no failure: it is counted apart, with its reason, and as a part of all runs. p50, p95 and worst are the \
times of runs that were ok. The advice says which TTL fits, and why; with fewer than 10 such runs there is none.")]
pub struct StatsArgs {
    /// Only this job; or all whose names begin so, if it ends with a slash
    pub name: Option<String>,
    /// Runs of this long, by the clocks of the machines
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "7d")]
    pub since: Duration,
}

/// `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0 if nothing needs you, 1 if something does; 69, 77 or 78 if that could not be found out. Each line says \
what is wrong and which command to type. A skip is never in the list. Run it where the leasehold.toml is: only \
there it knows which jobs are overdue.")]
pub struct CheckArgs {
    /// Only this job, lease or key
    pub name: Option<String>,
    /// Runs and refused writes of this long count
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1d")]
    pub since: Duration,
    /// Send what is new, and what is well again, as [alerts] in the configuration says
    #[arg(long, conflicts_with = "name")]
    pub alert: bool,
}

/// `metrics`
#[derive(Debug, Args)]
#[command(after_help = "\
The counters add up the run log as long as it is kept (keep_log), so they fall when old records are removed; \
rate() and increase() take that for a restart. A skip is in leasehold_skips_total, and never a failure.

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
code is that of `run`. A slot that is done is not run again; one that was dropped, skipped or failed is. If nobody \
knows how it ended, the exit code is 79, and you decide with `leasehold retry`. A paused job stays paused.")]
pub struct TriggerArgs {
    /// The job, as leasehold.toml calls it
    pub job: String,
    /// The slot, for example 2026-11-16T05:45Z, 03:00 or "yesterday 03:00" [default: the newest that is due]
    pub slot: Option<String>,
}
