//! The command line. Help texts here are the documentation people read first.

mod fence;
mod items;
mod manual;
mod store;
mod typed;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use self::fence::{FenceArgs, FenceVerb, GateArgs};
pub use self::manual::{AcquireArgs, BreakArgs, ManualArgs, token};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use items::{
    ATTEMPTS, HistoryArgs, IfUnknownArg, ItemArgs, NewHereArgs, OnceArgs, PauseArgs, PlanArgs, RetryArgs,
    StepArgs, WhyArgs,
};
use items::{DAEMON_HELP, TICK_HELP};
use leasehold::backends;
use leasehold_run::{duration, handoff};
pub use store::{AdoptArgs, UseArgs};
pub use typed::parse;

const AFTER_HELP: &str = "\
Examples:
  leasehold run site -- ./publish.sh      run it, unless it already runs somewhere
  leasehold once invoice-7 -- ./charge    run it to success once, wherever it is asked for
  leasehold tick                          run what is due of the jobs in ./leasehold.toml
  leasehold status                        who holds what
  leasehold doctor                        whether the store can be trusted with leases
  leasehold demo                          what it protects you from, in a few seconds
  leasehold help exit-codes               what the exit codes mean
  leasehold help leasehold.toml           what the file of jobs may say
  leasehold man | completions SHELL       the manual, and completions for your shell, on stdout

NAME is the thing that must not be touched twice (a repo, a site, a table), not the task.";

/// Run scheduled work once, on whichever machine gets there first.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    about,
    after_help = AFTER_HELP,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    propagate_version = true
)]
pub struct Cli {
    #[command(flatten)]
    pub everywhere: Everywhere,
    #[command(subcommand)]
    pub command: Command,
}

/// Where leases are kept, by all kinds of store there are.
fn store_help() -> String {
    let kinds = backends::store_kinds().join(", ");
    format!("Where leases are kept: {kinds} [env: LEASEHOLD_STORE, LEASEHOLD_STORE_FILE]")
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub struct Everywhere {
    /// Where leases are kept
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere", help = store_help())]
    pub store: Option<String>,
    /// Read this configuration instead of ./leasehold.toml
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    pub config: Option<PathBuf>,
    /// One JSON object per line on stdout
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
    /// Say nothing unless something is wrong
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Everywhere")]
    pub quiet: bool,
    /// Say more
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub verbose: bool,
    /// Colour: auto, always or never (NO_COLOR is honoured)
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        help_heading = "Everywhere"
    )]
    pub color: Color,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Color {
    Auto,
    Always,
    Never,
}

/// The commands, in the order a newcomer needs them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command while holding a lease
    Run(RunArgs),
    /// Run a command to success once for a key, ever, on whichever machine
    Once(OnceArgs),
    /// Write a file or an object, fenced: refused (76) if this run has lost its lease
    Write(WriteArgs),
    /// Who holds what (--watch for live)
    Status(StatusArgs),
    /// What ran, and what came of it: every key and slot, and the last runs of each lease
    History(HistoryArgs),
    /// Does this store really compare-and-set? Races, clocks, durability, latency; and the TTL it supports
    Doctor(DoctorArgs),
    /// git push, fenced: refused (76) if this run has lost its lease
    Push(PushArgs),
    /// Inside a run with a key or a slot: a part of it that a retry does not do again
    Step(StepArgs),
    /// Why a job did or did not run, in sentences
    Why(WhyArgs),
    /// Let an item run again that failed too often, or that never reported
    Retry(RetryArgs),
    /// Stay up and start the jobs of leasehold.toml when they are due, each slot once on whichever machine
    #[command(after_help = DAEMON_HELP)]
    Daemon(NewHereArgs),
    /// Start what is due of leasehold.toml, wait for it, and exit: for cron, CI and sandboxes
    #[command(after_help = TICK_HELP)]
    Tick(NewHereArgs),
    /// The jobs of leasehold.toml: what ran last, what is due next, what is overdue or stuck
    Plan(PlanArgs),
    /// Run no slot of a job until `leasehold resume`; what runs goes on
    Pause(PauseArgs),
    /// Let a paused job go on with the slots that are due from now on
    Resume(PauseArgs),
    /// Take a lease by hand, for scripts: prints the token
    Acquire(AcquireArgs),
    /// Keep a lease that was acquired by hand
    Renew(ManualArgs),
    /// Give back a lease that was acquired by hand
    Release(ManualArgs),
    /// Stop the holder and leave the lease free (--take: hold it)
    Break(BreakArgs),
    /// Start a command only if this run's token is current at a gate
    Gate(GateArgs),
    /// Read a target as it is now: an object by its pointer, a file, a Redis key, a Firestore document
    Read(ReadArgs),
    /// Targets and their fences: who may write there
    Fence(FenceArgs),
    /// Fence a table of a database, for the SQL that jobs write anyway
    Guard(crate::cmd::guard::GuardArgs),
    /// Examine a store (a new directory is made) and write it to your configuration, so that cron sees it too
    Use(UseArgs),
    /// Accept what the store has of a lease, after it lost what this machine had seen there (79)
    Adopt(AdoptArgs),
    /// Let sandboxes without credentials use this store, over HTTP
    #[cfg(feature = "http")]
    Serve(ServeArgs),
    /// See it work: a job frozen past its lease wakes up, and its write is refused
    Demo(DemoArgs),
    /// Help for a command, `help exit-codes` or `help leasehold.toml`
    Help(HelpArgs),
    /// Print shell completions
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Print the manual page
    #[command(hide = true)]
    Man(ManArgs),
    /// Run a slot as the scheduler that started us describes it
    #[command(name = handoff::COMMAND, hide = true)]
    RunSlot(RunSlotArgs),
    /// A process of the demo
    #[command(hide = true)]
    DemoActor(DemoActorArgs),
}

/// Timing of a lease.
#[derive(Clone, Copy, Debug, Args)]
pub struct TimingArgs {
    /// How long a holder may be silent before others may take over
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "90s")]
    pub ttl: Duration,
    /// Time between renewals [default: a third of the ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub heartbeat: Option<Duration>,
    /// Time between TERM and KILL when the job must stop [default: 5s, less for a short ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub grace: Option<Duration>,
}

/// How a command is run, whatever it is for.
#[derive(Clone, Debug, Args)]
pub struct CommandArgs {
    #[command(flatten)]
    pub timing: TimingArgs,
    /// End the command after this long (it then exits with 143 or 137); `none` for no limit
    #[arg(long, value_name = "DURATION", default_value = "6h")]
    pub max_run: String,
    /// Wait this long for a busy lease, then skip
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// What this work is called in status and history [default: as the lease]
    #[arg(long, value_name = "LABEL")]
    pub job: Option<String>,
    /// Exit with this code when skipped
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 0)]
    pub skip_exit: u8,
    /// Raise the fence of this target before the command starts, so that no earlier run can write it any
    /// more; repeatable. For example file:/srv/site/today.json; {lease}, {job}, {date}, {date@Zone} and, with
    /// --slot, {slot} are filled in
    #[arg(long, value_name = "TARGET")]
    pub fence: Vec<String>,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// Where it is written what happened.
#[derive(Clone, Debug, Default, Args)]
pub struct ReportArgs {
    /// Write what happened to this file, as JSON. A skip is written only if the file is empty or not there, so that
    /// the report of the last run stays
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Add what happened to this file, as one line of JSON for each run and each skip
    #[arg(long, value_name = "FILE")]
    pub report_append: Option<PathBuf>,
}

/// `run`
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
If somebody holds the lease the command is not run and the exit code is 0: a skip is not a failure. \
With --json, what happened is one object, the last line on stdout, below whatever the command printed. \
The command gets LEASEHOLD_LEASE, _JOB, _TOKEN, _GRANT and _RUN_ID, and with --key also _KEY, with --slot \
_SLOT, with either _ATTEMPT. If the lease is lost, the command \
and all it started are ended before anyone else can hold it, and the exit code is 75.")]
pub struct RunArgs {
    /// The thing that must not be touched twice
    pub name: String,
    #[command(flatten)]
    pub manner: CommandArgs,
    /// Other leases that would do: the first free one is taken, its name is in LEASEHOLD_LEASE
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub or: Vec<String>,
    /// A label for this run's identity; a random part is added [default: host and pid]
    #[arg(long, value_name = "ID")]
    pub run_id: Option<String>,
    /// Take notes and stop nothing: run even if the lease is busy, the key or slot is done, or the store is down.
    /// `leasehold fence observed` shows overlaps, what would have been skipped, newer work that was overwritten, and
    /// targets that changed between two runs
    #[arg(long, conflicts_with = "or")]
    pub observe: bool,
    /// Do not keep how this run ended, for history; that it died is noted all the same, by whoever takes over
    #[arg(long)]
    pub no_history: bool,
    /// Do nothing if this is done already, on whichever machine; {lease}, {job}, {date}, {date@Zone} and,
    /// with --slot, {slot} are filled in. The command gets it as LEASEHOLD_KEY
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The slot of a schedule that this run is for: a time as 2026-11-16T05:45Z, or now/15m for the multiple
    /// of 15 minutes that is nearest, with a crontab line */15. A slot runs once; with --key, both are done once
    #[arg(long, value_name = "TIME")]
    pub slot: Option<String>,
    /// Skip if the last good run of this job ended less than this ago, by the store's clock
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["key", "slot"])]
    pub cooldown: Option<Duration>,
    #[command(flatten)]
    pub doing: ItemArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `write`
#[derive(Debug, Args)]
#[command(after_help = "\
It works inside a run that named the target:
  leasehold run site --fence file:today.json -- leasehold write file:today.json -- ./report

What is written is there as a whole or not at all. If the command does not end with exit code 0, nothing is written \
and its code is ours. A pipe into standard input cannot tell that: if what writes into it dies half-way, half is \
written. If a later run has sealed the target, nothing is written and the exit code is 76.")]
pub struct WriteArgs {
    /// What to write, for example file:/srv/site/today.json
    pub target: String,
    /// Read it from this file or directory instead of standard input
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    pub from: Option<PathBuf>,
    /// Run this and write what it prints, if it ends with exit code 0; instead of standard input
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `push`
#[derive(Debug, Args)]
#[command(after_help = "\
It works inside a run that named the repository, and takes what git push takes:
  leasehold run site --fence git:origin -- sh -c './build && git commit -am new && leasehold push -u origin main'

All refs move together with the fence in one atomic push, or none does. Inside such a run a plain `git push` is \
fenced as well; this command exits with 76 when refused, where git knows only 1 (128 if it finds out before it sends). \
For a server of your own, --install-hook has it refuse whoever pushes without a fence.")]
pub struct PushArgs {
    /// Have the repository in this directory refuse pushes without a fence, and do nothing else
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub install_hook: Option<PathBuf>,
    /// As for git push: options, a remote, refspecs
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "REMOTE] [REFSPEC")]
    pub args: Vec<OsString>,
}

/// `read`
#[derive(Debug, Args)]
#[command(after_help = "\
It needs no lease and changes nothing. An object in a bucket is read by its pointer, and its content is checked \
against the digest there: you get one whole version, or an error. Plain tools see the pointer.")]
pub struct ReadArgs {
    /// What to read, for example s3://bucket/site/today.json
    pub target: String,
    /// Write it to this file, which is replaced as a whole, instead of standard output
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

/// `status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this lease
    pub name: Option<String>,
    /// Show it again every second until interrupted
    #[arg(short, long)]
    pub watch: bool,
}

/// `doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
It works in a corner of the store under a name of its own, disturbs no lease, and removes all it wrote. \
Each line says ok, weak (it works, with less than could be had) or UNSAFE (a promise does not hold there: \
exit code 78). With --json: one object per examination, and one for the whole.")]
pub struct DoctorArgs {
    /// The store [default: the one that a run here would use]
    pub url: Option<String>,
    /// Examine a target instead: does its server refuse a stale write? Needs no lease, and changes nothing
    #[arg(long, value_name = "TARGET", conflicts_with = "url")]
    pub target: Option<String>,
    /// A second path to the same store, as another mount of its directory: finds out what one does not see of the other
    #[arg(long, value_name = "URL")]
    pub also: Option<String>,
    /// Print the SQL that makes PostgreSQL ready, for a role that may not create tables, and do nothing else
    #[arg(long)]
    pub print_sql: bool,
}

/// `serve`
#[cfg(feature = "http")]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold --store postgres://... serve --store-api --tokens tokens
  leasehold use http://127.0.0.1:7717               on the other side, with LEASEHOLD_AUTH_FILE

The tokens file has lines of TOKEN PREFIX [admin]: a secret of at least 16 characters, what names must \
begin with (* for every name), and whether its bearer may take a lease from a living holder. Nobody \
else may be able to read the file. A write that the rules of a lease could not have made is refused.")]
pub struct ServeArgs {
    /// Serve the store itself: clients use it as http://ADDRESS
    #[arg(long)]
    pub store_api: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7717")]
    pub listen: std::net::SocketAddr,
    /// Who may come [default: everybody on this machine]
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

/// `help`
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command, `exit-codes` or `leasehold.toml`
    pub topic: Vec<String>,
}

/// `completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    pub shell: clap_complete::Shell,
}

/// `man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Only this command's
    pub name: Vec<String>,
}

/// `demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The same for git: a publishing script on two machines, by itself and under a fence
    #[arg(long)]
    pub git: bool,
}

/// `run-slot`: for whoever looks at a list of processes. What is run is said by the scheduler.
#[derive(Debug, Args)]
pub struct RunSlotArgs {
    /// The job
    pub job: String,
    /// The slot
    pub slot: String,
}

/// `demo-actor`
#[derive(Debug, Args)]
pub struct DemoActorArgs {
    /// What to write
    pub file: PathBuf,
    /// With what
    pub content: String,
    /// As it is done without Leasehold
    #[arg(long)]
    pub unprotected: bool,
}
