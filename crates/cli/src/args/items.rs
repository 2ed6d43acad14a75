//! The flags of work that is done once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold_run::duration;

use super::CommandArgs;

/// Below the flags of `daemon`.
pub const DAEMON_HELP: &str = "\
Signals: after TERM or Ctrl-C it starts nothing more, and exits with 0 when its runs have ended; a second one \
is passed on to the runs. On HUP, or when the file changes, it reads the file again. If the daemon is killed, its \
runs go on and record how they end.

Without a terminal it prints a line for each job that is new, and for each slot that failed, was skipped or was \
dropped. With -v it also prints what it starts. With --json it prints all of this as objects. While the store does \
not answer, nothing is started.

The keys of the file: leasehold help leasehold.toml";

/// Below those of `tick`.
pub const TICK_HELP: &str = "\
Exit code: 0 if all went well or nothing was due; 1 if a run failed, was lost or could not be started, or the \
store stopped answering; 64, 69, 77 or 78 if it could not start.

A slot that becomes due while the tick waits for its runs is left to the next tick. Ticks may overlap, on one \
machine or many. A signal is passed on to the runs, and the tick ends with them.

The keys of the file: leasehold help leasehold.toml";

/// How often an item may fail by default.
pub const ATTEMPTS: u32 = 3;

/// The flags of items.
#[derive(Clone, Copy, Debug, Args)]
pub struct ItemArgs {
    /// What to do if the outcome of the last run is unknown. `refuse` runs nothing and asks you (79). `retry` runs it
    /// again, until ten runs in a row (or --attempts runs, if that is more) have never reported how they ended
    #[arg(long, value_name = "WHAT", default_value = "refuse", hide_possible_values = true)]
    pub if_unknown: IfUnknownArg,
    /// With --if-unknown retry: retry only within this time of the first run, while the provider still knows the key
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub provider_keeps: Option<Duration>,
    /// After this many failures it waits for your `leasehold retry` (79) [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub attempts: Option<u32>,
    /// Forget after this long that the key or slot is done [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub keep: Option<Duration>,
    /// If the command fails, keep the last lines of its output for history; all output passes through
    /// leasehold
    #[arg(long)]
    pub tail: bool,
    #[command(flatten)]
    pub new_here: NewHereArgs,
}

/// `--new-here`
#[derive(Clone, Copy, Debug, Args)]
pub struct NewHereArgs {
    /// Allow keys and slots that this machine saw on another store to be done again on this one; needed only once
    #[arg(long = "new-here")]
    pub said: bool,
}

/// What to do about a run whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum IfUnknownArg {
    Refuse,
    Retry,
}

/// `once`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold once invoice-4711 -- ./charge.sh 4711        again: does nothing, exit code 0
  leasehold once report-{date} -- ./report.sh            once a day, by the date in UTC

If the command fails, the next call tries again, until it has failed --attempts times. If a run started and never \
reported how it ended (its machine died), its outcome is unknown: the exit code is 79 until you look and type \
`leasehold retry KEY`. With --if-unknown retry the next call tries again. The command gets LEASEHOLD_KEY: pass it to \
the provider as the idempotency key, and a retry cannot do the work twice.

This machine remembers what was done on which store: on another store the key is refused (78) until you say \
--new-here. A home directory that is thrown away after the run remembers nothing.")]
pub struct OnceArgs {
    /// The name of work that is done once; {date} and {date@Zone} are filled in
    pub key: String,
    #[command(flatten)]
    pub manner: CommandArgs,
    #[command(flatten)]
    pub doing: ItemArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `step`
#[derive(Debug, Args)]
#[command(after_help = "\
It works inside a run with a key or a slot:
  leasehold once order-7 -- sh -c 'leasehold step charge -- ./charge && leasehold step mail -- ./mail'

A step whose command exits with 0 is recorded, and skipped when the item is run again. A step that was running \
when its machine died is run again, with the same LEASEHOLD_KEY: the key of the item, a slash and the name of the \
step. If a later run has taken over the item, the exit code is 76.")]
pub struct StepArgs {
    /// The name of the step within its item
    pub name: String,
    /// Keep the command's output (up to 8 KiB of text), and print it again when the step is skipped
    #[arg(long)]
    pub keep_output: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `history`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold history --since yesterday                    who ran, what was skipped and why, what was refused
  leasehold history site --only skipped,failed           the newest 50 of one job, or of one lease
  leasehold history team-a/ --since 7d --json            all jobs below team-a/, for a program
  leasehold history --observed --since 7d                what `run --observe` saw, and the totals

The newest record comes first. There is a line for each run, each skip with its reason, each lost lease, each refused \
write with both tokens, each range of dropped slots, and each command by which a person stepped in (break, retry, \
pause). Each attempt at a key has a line of its own. A key or slot whose state is started or unknown appears only if \
you name it or its job. To see who holds a lease now: leasehold status --held.

Records are kept for 90d by the store's clock, or for the time that keep_log in leasehold.toml sets. A run with \
--no-history leaves no record. `released`: a person or a program released a lease. `unsealed`: a run started nothing, \
because it could not fence a target. `unknown`: a run never reported how it ended; the next run records that.")]
pub struct HistoryArgs {
    /// Only this job, lease or key, this slot (JOB@SLOT), or all jobs below this prefix (PREFIX/)
    pub name: Option<String>,
    /// Only records after this: a time (03:00, "yesterday 03:00", 2026-11-16T05:45Z), or how long ago (2d)
    #[arg(long, value_name = "D|TIME", value_parser = crate::cmd::times::instant)]
    pub since: Option<Duration>,
    /// Only records before this
    #[arg(long, value_name = "D|TIME", value_parser = crate::cmd::times::instant)]
    pub until: Option<Duration>,
    /// Only these: ok, failed, skipped, dropped, lost, killed, unknown, refused, `unsealed`, released, observed, started,
    /// planned, break, retry, done, pause, resume, forget
    #[arg(long, value_name = "OUTCOME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Show at most this many lines [default: 50; all with --json]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Only runs with --observe, and at the end the number that overlapped or overwrote newer work
    #[arg(long, conflicts_with = "only")]
    pub observed: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
}

/// Pictures of the run log.
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// Draw the records in the terminal: a lane for each machine, runs as bars with their tokens, skips, refused
    /// writes. Covers the last 24h unless you give --since
    #[arg(long)]
    pub timeline: bool,
    /// Write the same picture to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the same picture to this file, as a page of HTML with a table
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl HistoryArgs {
    /// Whether no kind of record and no time was asked for.
    pub fn is_unfiltered(&self) -> bool {
        self.only.is_empty() && self.since.is_none() && self.until.is_none() && !self.observed
    }
}

impl PictureArgs {
    /// Whether a picture was asked for.
    pub fn any(&self) -> bool {
        self.timeline || self.svg.is_some() || self.html.is_some()
    }
}

/// `why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A job, a lease or a key
    pub name: String,
    /// Only this time, for example 2026-11-16T05:45Z, 03:00 or "yesterday 03:00". A time without an offset is in
    /// the job's time zone if it has one, else in this machine's
    pub time: Option<String>,
}

/// `retry`
#[derive(Debug, Args)]
pub struct RetryArgs {
    /// The key, or JOB@SLOT for a slot, as `leasehold history` shows them
    pub key: String,
    /// Record it as done, by you, so that it is never run again; this works even if this machine saw it only on
    /// another store
    #[arg(long)]
    pub done: bool,
}

/// `plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Only this job
    pub job: Option<String>,
    /// Show this many of the next slots of each job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub next: u8,
}

/// `pause` and `resume`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The job, as leasehold.toml calls it
    pub job: String,
}
