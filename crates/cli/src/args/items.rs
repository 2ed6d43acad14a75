//! The flags of work that is done once.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold_run::duration;

use super::CommandArgs;

/// Below the flags of `daemon`.
pub const DAEMON_HELP: &str = "\
Signals: TERM or Ctrl-C starts nothing more and ends when what runs has ended (exit code 0); once more, \
and it goes on to what runs. HUP reads the file again, which it also does when the file changes. Killed, its \
runs go on and report by themselves.

Off a terminal it says what is new, failed, was skipped or dropped; with -v also what it starts; with --json \
all of it as objects. If the store does not answer, nothing is started until it does.

What the file may say: leasehold help leasehold.toml";

/// Below those of `tick`.
pub const TICK_HELP: &str = "\
Exit code: 0 if all went well or nothing was due; 1 if a run failed, was lost or could not be started, or the \
store did not answer on the way; 64, 69, 77 or 78 if it could not begin.

What becomes due while it waits for its runs is for the next tick. Ticks may overlap, on one machine or many. \
A signal goes on to its runs, and it ends with them.

What the file may say: leasehold help leasehold.toml";

/// How often an item may fail, unless somebody says another number.
pub const ATTEMPTS: u32 = 3;

/// How an item of work is gone about.
#[derive(Clone, Copy, Debug, Args)]
pub struct ItemArgs {
    /// What to do if a run began it and never reported: `refuse` leaves it to you (79), `retry` runs it again,
    /// until ten runs in a row (or --attempts, if that is more) never reported
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub if_unknown: IfUnknownArg,
    /// With --if-unknown retry: only while the other side still knows the key, this long after the first time
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub provider_keeps: Option<Duration>,
    /// How often it may fail before it waits for you (79) and `leasehold retry` [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub attempts: Option<u32>,
    /// Forget that it was done after this long [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub keep: Option<Duration>,
    /// Keep the last lines of what the command prints; if it fails they are in history. Its stdout and stderr then
    /// pass through us
    #[arg(long)]
    pub tail: bool,
    #[command(flatten)]
    pub new_here: NewHereArgs,
}

/// `--new-here`
#[derive(Clone, Copy, Debug, Args)]
pub struct NewHereArgs {
    /// All keys and slots that this machine saw on another store are new on this one, and may be done again; said once,
    /// it is not asked again
    #[arg(long = "new-here")]
    pub said: bool,
}

/// What to do about a run that never reported.
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

If the command fails it is tried again by the next call, at most --attempts times. If a run began and never \
reported (its machine died), nobody knows whether it did its work: the exit code is 79, until you look and say \
`leasehold retry KEY`, or if you said --if-unknown retry. The command gets LEASEHOLD_KEY: give it to the other \
side as the idempotency key, and a retry cannot do it twice.

This machine remembers what was done on which store: on another store it is refused (78) until you say --new-here. A home \
that is thrown away after the run remembers nothing.")]
pub struct OnceArgs {
    /// What is to be done once; {date} and {date@Zone} are filled in
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

A step whose command exits with 0 is recorded, and not done again when the item is retried. One that was under way \
when its machine died is done again, with the same LEASEHOLD_KEY: the key of the item, a slash and the name of the \
step. If a later run has gone over the item, the exit code is 76.")]
pub struct StepArgs {
    /// What it is called within its item
    pub name: String,
    /// Keep what the command prints (up to 8 KiB of text), and print it again where the step is skipped
    #[arg(long)]
    pub keep_output: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `history`
#[derive(Debug, Args)]
#[command(after_help = "\
Of each lease, how the last 8 runs without a key or a slot ended is kept, in the lease's own record: `released` is a lease \
that was given back by hand or by a program, `unsealed` a run that ran nothing because a target could not be sealed, `unknown` one whose holder never reported, noted by whoever took over. \
A run that finds the lease held writes nothing, with --slot too, so its skip is not here. \
The slots that a daemon or a tick skips are here, and those whose --key was done already.")]
pub struct HistoryArgs {
    /// Only this lease, job, key or slot
    pub name: Option<String>,
    /// Only what ended, or began, less than this ago by the clocks of the machines
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub since: Option<Duration>,
    /// Only these: ok, failed, skipped, dropped, lost, killed, unknown, unsealed, released, started, planned
    #[arg(long, value_name = "OUTCOME", value_delimiter = ',')]
    pub only: Vec<String>,
}

/// `why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A job, a lease or a key
    pub name: String,
    /// Only this time, for example 2026-11-16T05:45Z, 03:00 or "yesterday 03:00"; without an offset it is one of the
    /// job's time zone, or else of this machine's
    pub time: Option<String>,
}

/// `retry`
#[derive(Debug, Args)]
pub struct RetryArgs {
    /// The key, or JOB@SLOT for a slot, as `leasehold history` shows them
    pub key: String,
    /// It was done all the same, or on another store on which this machine saw it: record it so, with who said it, and
    /// never run it again
    #[arg(long)]
    pub done: bool,
}

/// `plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Only this job
    pub job: Option<String>,
    /// Show so many of the next slots of each job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub next: u8,
}

/// `pause` and `resume`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The job, as leasehold.toml calls it
    pub job: String,
}
