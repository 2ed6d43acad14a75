//! The command line. Its help texts are the documentation that people read first.

mod fence;
mod guard;
mod items;
mod manual;
mod seeing;
mod store;
mod typed;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use self::fence::{FenceArgs, FenceVerb, GateArgs};
pub use self::guard::{GuardArgs, GuardVerb};
pub use self::manual::{AcquireArgs, BreakArgs, ManualArgs, token};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use items::{
    ATTEMPTS, HistoryArgs, IfUnknownArg, ItemArgs, NewHereArgs, OnceArgs, PauseArgs, PictureArgs, PlanArgs,
    RetryArgs, StepArgs, WhyArgs,
};
use items::{DAEMON_HELP, TICK_HELP};
use leasehold::backends;
use leasehold_run::notify::SecretUrl;
use leasehold_run::{duration, handoff};
pub use seeing::{CheckArgs, MetricsArgs, StatsArgs, TriggerArgs};
pub use store::{AdoptArgs, ForgetArgs, UninstallArgs, UseArgs};
pub use typed::parse;

const AFTER_HELP: &str = "\
Examples:
  leasehold run site -- ./publish.sh      run it, unless it already runs somewhere
  leasehold once invoice-7 -- ./charge    run it until it succeeds, then never again
  leasehold tick                          run the jobs of ./leasehold.toml that are due
  leasehold status                        who holds what
  leasehold doctor                        can the store be trusted with leases?
  leasehold demo                          see what it protects you from, in a few seconds
  leasehold help exit-codes               what the exit codes mean
  leasehold help leasehold.toml           the keys of the file of jobs
  leasehold man | completions SHELL       the manual, and completions for your shell, on stdout

NAME is the lease: it names the thing that only one run may work on at a time (a repo, a site,
a table), not the task.";

/// Stops scheduled jobs and agents from running, or writing, twice
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
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

/// The help of `--store`, with every kind of store.
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
        hide_possible_values = true,
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
    /// Run a command until it has succeeded once for a key, on any machine
    Once(OnceArgs),
    /// Write a file or an object, unless this run has lost its lease (76)
    Write(WriteArgs),
    /// Show who holds what (--watch for live)
    Status(StatusArgs),
    /// Show what ran and how it ended: every key and slot, and the last runs of each lease
    History(HistoryArgs),
    /// Test a store: compare-and-set, races, clocks, durability, latency, shortest TTL
    Doctor(DoctorArgs),
    /// git push, unless this run has lost its lease (76)
    Push(PushArgs),
    /// Run a named part of an item; once it is done, a retry of the item skips it
    Step(StepArgs),
    /// Say why a job did or did not run, in sentences
    Why(WhyArgs),
    /// List everything that needs your attention: exit code 1 if there is anything, else 0
    Check(CheckArgs),
    /// Show counts, skip rate and run times, and recommend a TTL
    Stats(StatsArgs),
    /// Allow an item to run again after too many failures or an unknown outcome
    Retry(RetryArgs),
    /// Stay up and start the jobs of leasehold.toml when they are due, each slot on one machine
    #[command(after_help = DAEMON_HELP)]
    Daemon(NewHereArgs),
    /// Start the jobs that are due, wait for them, and exit: for cron, CI and sandboxes
    #[command(after_help = TICK_HELP)]
    Tick(NewHereArgs),
    /// Show the jobs of leasehold.toml: what ran last, what is due next, overdue or stuck
    Plan(PlanArgs),
    /// Run a job of leasehold.toml now: its newest slot, or one that you name
    Trigger(TriggerArgs),
    /// Run no slot of a job until `leasehold resume`; a run that has started goes on
    Pause(PauseArgs),
    /// Resume a paused job with the slots that are due from now on
    Resume(PauseArgs),
    /// Take a lease by hand, for scripts: prints the token
    Acquire(AcquireArgs),
    /// Renew a lease that was taken by hand
    Renew(ManualArgs),
    /// Release a lease that was taken by hand
    Release(ManualArgs),
    /// Stop the holder and free the lease (--take: hold it)
    Break(BreakArgs),
    /// Start a command only if this run's token is the newest at a gate
    Gate(GateArgs),
    /// Read a target: a file, an object by its pointer, a Redis key, a Firestore document
    Read(ReadArgs),
    /// Show and change the fences of targets
    Fence(FenceArgs),
    /// Guard a database table, so that it refuses the SQL of overtaken runs
    Guard(GuardArgs),
    /// Test a store and name it in your configuration, so that cron sees it too
    Use(UseArgs),
    /// Accept the record of a lease after the store lost a newer one (79)
    Adopt(AdoptArgs),
    /// Print counters of the run log for Prometheus, as OpenMetrics
    Metrics(MetricsArgs),
    /// Remove the records of names no longer in use: free leases, finished keys and their log
    Forget(ForgetArgs),
    /// List everything that Leasehold keeps here, in its store and at its targets (--show)
    Uninstall(UninstallArgs),
    /// Show this store in a browser, or serve it over HTTP to sandboxes without credentials
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
    /// Run the slot that a scheduler describes
    #[command(name = handoff::COMMAND, hide = true)]
    RunSlot(RunSlotArgs),
    /// A process of the demo
    #[command(hide = true)]
    DemoActor(DemoActorArgs),
}

/// Timing of a lease.
#[derive(Clone, Copy, Debug, Args)]
pub struct TimingArgs {
    /// How long a dead holder blocks others. A run renews its lease, so 90s is enough even for long jobs
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "90s")]
    pub ttl: Duration,
    /// Time between renewals [default: a third of the TTL]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub heartbeat: Option<Duration>,
    /// Time between TERM and KILL when the job is stopped [default: 5s, less for a short TTL]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub grace: Option<Duration>,
}

/// The flags of `run` and `once`.
#[derive(Clone, Debug, Args)]
pub struct CommandArgs {
    #[command(flatten)]
    pub timing: TimingArgs,
    /// Stop the command after this long (exit code 143 or 137); `none` for no limit
    #[arg(long, value_name = "DURATION", default_value = "6h")]
    pub max_run: String,
    /// Wait this long for a lease that is held, then skip
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Name of this work in status and history [default: that of the lease]
    #[arg(long, value_name = "LABEL")]
    pub job: Option<String>,
    /// Exit with this code when skipped
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 0)]
    pub skip_exit: u8,
    /// Fence this target before the command starts, so that no earlier run can write it; repeatable.
    /// For example file:/srv/site/today.json; {lease}, {job}, {date}, {date@Zone} and, with --slot,
    /// {slot} are filled in
    #[arg(long, value_name = "TARGET")]
    pub fence: Vec<String>,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Request URL/start when the run starts and URL/EXITCODE when it ends, as Healthchecks expects; for a skip,
    /// URL/log. With @FILE the URL is read from that file, so that no list of processes shows it
    #[arg(long, value_name = "URL", value_parser = SecretUrl::typed)]
    pub ping: Option<SecretUrl>,
}

/// Where reports are written.
#[derive(Clone, Debug, Default, Args)]
pub struct ReportArgs {
    /// Write to this file how the run ended, as JSON; a skip does not replace the report of a run
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Add a line of JSON to this file for each run and each skip
    #[arg(long, value_name = "FILE")]
    pub report_append: Option<PathBuf>,
}

/// `run`
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
If the lease is held, the command is not run and the exit code is 0: a skip is not a failure. With --json, \
the last line on stdout is an object that says what happened. The command gets the variables LEASEHOLD_LEASE, \
_JOB, _TOKEN, _GRANT and _RUN_ID; with --key also _KEY, with --slot _SLOT, with either _ATTEMPT. If the lease is \
lost, the command and all its processes are ended before another run can take the lease, and the exit code \
is 75.")]
pub struct RunArgs {
    /// The lease: names the thing that only one run may work on at a time
    pub name: String,
    #[command(flatten)]
    pub manner: CommandArgs,
    /// Other leases to try: the first free one is taken, and LEASEHOLD_LEASE names it
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub or: Vec<String>,
    /// A label for the id of this run; a random part is added [default: host and pid]
    #[arg(long, value_name = "ID")]
    pub run_id: Option<String>,
    /// Take notes and stop nothing: run even if the lease is held, the item is done, or the store is down.
    /// `leasehold fence observed` shows the notes
    #[arg(long, conflicts_with = "or")]
    pub observe: bool,
    /// Do not record how this run ended; if it dies, the next run records that all the same
    #[arg(long)]
    pub no_history: bool,
    /// Skip if this key is already done, on any machine; {lease}, {job}, {date}, {date@Zone} and, with
    /// --slot, {slot} are filled in
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The slot that this run is for: a time such as 2026-11-16T05:45Z, or now/15m for the nearest multiple
    /// of 15 minutes (crontab: */15). A slot runs once; with --key, both are done once
    #[arg(long, value_name = "TIME")]
    pub slot: Option<String>,
    /// Skip if the last successful run of this job ended less than this long ago, by the store's clock
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
Use it inside a run that names the target:
  leasehold run site --fence file:today.json -- leasehold write file:today.json -- ./report

The target is replaced as a whole or not at all. If the command fails, nothing is written, and the exit code is \
that of the command. A pipe does not show whether its writer failed: if the writer dies halfway, half of its output is \
written. If a later run has fenced the target, nothing is written and the exit code is 76.")]
pub struct WriteArgs {
    /// What to write, for example file:/srv/site/today.json
    pub target: String,
    /// Write this file or directory instead of standard input
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    pub from: Option<PathBuf>,
    /// Run this command and, if it exits with 0, write its output instead of standard input
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `push`
#[derive(Debug, Args)]
#[command(after_help = "\
Use it inside a run that names the repository. It takes the arguments of git push:
  leasehold run site --fence git:origin -- sh -c './build && git commit -am new && leasehold push -u origin main'

All refs move together with the fence in one atomic push, or none does. Inside such a run a plain `git push` is \
fenced as well. When a push is refused, this command exits with 76; git exits with 1, or with 128 if it finds out \
before it sends. On a server of your own, --install-hook makes the repository refuse pushes without a fence.")]
pub struct PushArgs {
    /// Make the repository in this directory refuse pushes without a fence, and do nothing else
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub install_hook: Option<PathBuf>,
    /// The arguments of git push: options, a remote, refspecs
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "REMOTE] [REFSPEC")]
    pub args: Vec<OsString>,
}

/// `read`
#[derive(Debug, Args)]
#[command(after_help = "\
It needs no lease and changes nothing. It reads an object in a bucket through its pointer, and checks the \
content against the digest there: you get one whole version, or an error. Other tools see only the pointer.")]
pub struct ReadArgs {
    /// What to read, for example s3://bucket/site/today.json
    pub target: String,
    /// Write to this file, which is replaced as a whole, instead of standard output
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

/// `status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this lease, or all leases below this prefix (PREFIX/)
    pub name: Option<String>,
    /// Only leases that are held now
    #[arg(long)]
    pub held: bool,
    /// Show it again every second until interrupted
    #[arg(short, long)]
    pub watch: bool,
}

/// `doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
It writes test records beside the leases, and removes them again. No lease is touched. Each line says ok, weak (it \
works, but could be better) or UNSAFE (a promise does not hold there: exit code 78). With --json it prints one object \
per test, and one for the overall result.")]
pub struct DoctorArgs {
    /// The store [default: the one that a run here would use]
    pub url: Option<String>,
    /// Test a target instead: does its server refuse a stale write? Changes nothing
    #[arg(long, value_name = "TARGET", conflicts_with = "url")]
    pub target: Option<String>,
    /// Another path to the same store, such as another mount: does each see what the other writes?
    #[arg(long, value_name = "URL")]
    pub also: Option<String>,
    /// Print the SQL that prepares PostgreSQL for a role that may not create tables, and do nothing else
    #[arg(long)]
    pub print_sql: bool,
}

/// `serve`
#[cfg(feature = "http")]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold serve                                   then open http://127.0.0.1:7717 in a browser
  ssh -L 7717:127.0.0.1:7717 HOST                   the same from another machine
  leasehold --store postgres://... serve --store-api --tokens tokens
  leasehold use http://127.0.0.1:7717               where the jobs run, with LEASEHOLD_AUTH_FILE

The dashboard shows who holds what, what is due, and what ran; nothing can be changed there. GET /api/v1/now and the \
other answers for programs are described by GET /api/openapi.json. With --tokens it needs a bearer whose prefix is *.

The tokens file has lines of TOKEN PREFIX [admin]: a secret of at least 16 characters, the prefix of the names \
that a client with this secret may use (* for every name), and whether it may take a lease from a living holder. \
No other user may be able to read the file. A write that breaks the rules of leases is refused.")]
pub struct ServeArgs {
    /// Serve the store itself, too: clients use it as http://ADDRESS
    #[arg(long)]
    pub store_api: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7717")]
    pub listen: std::net::SocketAddr,
    /// The secrets of the clients [default: everybody on this machine may connect]
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
    /// Only the page of this command
    pub name: Vec<String>,
}

/// `demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The same for git: a publishing script on two machines, with and without a fence
    #[arg(long)]
    pub git: bool,
}

/// `run-slot`: arguments for people who read a list of processes. The scheduler describes the run on a socket.
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
    /// The file to write
    pub file: PathBuf,
    /// Its content
    pub content: String,
    /// Without Leasehold
    #[arg(long)]
    pub unprotected: bool,
}
