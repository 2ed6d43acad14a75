//! The inputs of a session and its effects.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::ledger::{Ending, ItemOpened, ItemRecorded, ItemState, SettleReason, Subject};
use crate::name::Name;
use crate::record::{Holder, LeaseRecord};
use crate::rules::{Refusal, SeenToken};
use crate::run_log::{LogEvent, LogId, LogRecord};
use crate::store::{Cas, Failure, Stored, Version};
use crate::time::BootTime;
use crate::timing::Timing;

/// The store key of a lease.
pub fn lease_key(lease: &Name) -> String {
    alloc::format!("{LEASE_PREFIX}{lease}")
}

/// All lease keys start with this.
pub const LEASE_PREFIX: &str = "leases/";

/// A record without a usable age, and since when this host has seen it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchedRecord {
    /// The write id of the watched version.
    pub write: WriteId,
    /// When we first saw it, on our own clock.
    pub since: BootTime,
}

/// One lease of the plan, with what this host remembers of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseChoice {
    /// The lease.
    pub lease: Name,
    /// The highest token seen here.
    pub seen: Option<SeenToken>,
    /// A version watched by an earlier run.
    pub watched: Option<WatchedRecord>,
}

/// The task of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionPlan {
    /// Leases, in order; the session takes the first free one. Never empty.
    pub leases: Vec<LeaseChoice>,
    /// The identity of this acquisition: random, new for every session.
    pub grant: Grant,
    /// Checked timing.
    pub timing: Timing,
    /// How long to wait while all are held; zero: not at all.
    pub wait: Duration,
    /// Stop the job after this long.
    pub max_run: Option<Duration>,
    /// Fence the targets before the job starts.
    pub seal: bool,
    /// Open an item before the job starts, and record its end before the lease is given back.
    pub item: Option<Distance>,
    /// What the run log says about the end.
    pub log: LogPlan,
    /// End with the grant: another process renews and releases.
    pub by_hand: bool,
    /// Take the lease even while it is held. The old job may still run.
    pub force: bool,
    /// Where this machine can see whether the holder lives; put into the record.
    pub lock: Option<String>,
    /// The holder as the record names it. Each claim sets `since`.
    pub holder: Holder,
    /// The runs that started this one.
    pub within: Within,
}

/// How far away the store is. It decides how long to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distance {
    /// The store is on this machine: it answers soon, or not at all.
    Near,
    /// The store is behind a network.
    Far,
}

/// What the run log says about the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogPlan {
    /// Nothing.
    Nothing,
    /// How the job ended. With the item that it was run for.
    Job(Option<Subject>),
    /// That the lease was given back, without the outcome of the work.
    Release,
}

impl LogPlan {
    /// The record about a run that found its lease held.
    pub(super) fn skipped(&self, plan: &SessionPlan, busy: &Busy, wall: Duration) -> Option<Box<LogRecord>> {
        let Self::Job(item) = self else { return None };
        let (job, holder) = (Name::new(&plan.holder.job).ok()?, plan.holder.clone());
        let record = LogRecord::new(wall, LogEvent::Skipped, job, LogId::of(plan.grant.0), holder);
        Some(Box::new(LogRecord {
            reason: Some(SettleReason::Overlap.word().into()),
            lease: Some(busy.lease.clone()),
            token: Some(busy.token),
            item: item.clone(),
            said: alloc::string::ToString::to_string(&busy.holder),
            ..record
        }))
    }

    /// The record about a run whose lease was taken over before it released the lease. If that run lives, it
    /// also writes a record itself.
    pub(super) fn taken_over(&self, taken: &LeaseRecord, wall: Duration) -> Option<Box<LogRecord>> {
        let hold = taken.hold.as_ref().filter(|_| *self != Self::Nothing)?;
        let (job, holder) = (Name::new(&taken.holder.job).ok()?, taken.holder.clone());
        let record = LogRecord::new(wall, LogEvent::Unknown, job, LogId::of(hold.grant.0), holder);
        Some(Box::new(LogRecord { lease: Some(taken.lease.clone()), token: Some(taken.token), ..record }))
    }
}

/// The runs, and the lease held by hand, that started this run. They wait for this run, so it must not wait
/// for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Within {
    /// Run ids, as in [`Holder::run`].
    pub runs: Vec<String>,
    /// The grant of a lease that was taken by hand.
    pub grant: Option<Grant>,
}

impl Within {
    /// Whether one of them holds this lease.
    pub fn holds(&self, busy: &Busy) -> bool {
        self.grant == Some(busy.grant) || self.runs.contains(&busy.holder.run)
    }
}

/// Names a store call, so that a late answer is not taken for the answer to another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// The answer to a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The stored record, if there is one.
    pub stored: Option<Stored>,
    /// The store instance that answered.
    pub instance: String,
    /// The store can report when the record changes.
    pub pushes: bool,
}

/// The signals that `run` passes on to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Signal {
    Int,
    Term,
    Hup,
    Quit,
    Usr1,
    Usr2,
}

impl Signal {
    /// Whether it asks a process to end.
    pub fn ends(self) -> bool {
        self.ending_number().is_some()
    }

    /// The number of a signal that asks to end; every Unix has the same.
    pub fn ending_number(self) -> Option<u8> {
        match self {
            Self::Hup => Some(1),
            Self::Int => Some(2),
            Self::Quit => Some(3),
            Self::Term => Some(15),
            Self::Usr1 | Self::Usr2 => None,
        }
    }
}

/// How the job's main process ended. The number is the exit status that a shell would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobExit {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It could not be executed.
    Failed(i32),
    /// It was not executed, because by then the lease was not surely ours.
    TooLate(i32),
}

impl JobExit {
    /// The exit status that a shell would give.
    pub fn status(self) -> i32 {
        match self {
            Self::Code(status) | Self::Signal(status) | Self::Failed(status) | Self::TooLate(status) => {
                status
            }
        }
    }
}

/// An event that the driver reports to the session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Start. The first input.
    Start,
    /// A read was answered.
    Read {
        /// The call.
        id: RequestId,
        /// The answer.
        result: Result<Reading, Failure>,
    },
    /// The forgotten-records that may be about a lease were read: those that there are.
    Forgotten {
        /// The call.
        id: RequestId,
        /// Their bodies.
        result: Result<Vec<Vec<u8>>, Failure>,
    },
    /// A conditional write was answered.
    Cas {
        /// The call.
        id: RequestId,
        /// The answer.
        result: Cas,
    },
    /// Whether the holder and every process that it started are proved to be gone.
    Probed {
        /// False if in doubt.
        gone: bool,
    },
    /// A watched record changed, or may have.
    Changed {
        /// The watch.
        id: RequestId,
    },
    /// The targets are sealed, or why not.
    Sealed(Result<(), String>),
    /// The result of opening the item.
    ItemOpened(Box<ItemOpened>),
    /// The result of recording its end.
    ItemRecorded(Box<ItemRecorded>),
    /// The main process ended, or was never executed.
    JobExited {
        /// How it ended.
        exit: JobExit,
        /// No process that it started is left.
        tree_empty: bool,
    },
    /// No process of the job is left.
    TreeEmpty,
    /// `run` got a signal.
    Signal(Signal),
    /// The armed time has come.
    Timer,
}

/// A store call to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read the lease.
    Read,
    /// Read the forgotten-records that may be about the lease ([`crate::forgotten::Names::covering`]).
    Forgotten,
    /// Write the lease if its version is the expected one.
    Cas {
        /// None: the lease must be absent.
        expected: Option<Version>,
        /// The id of this attempt.
        write: WriteId,
        /// The record to store.
        body: Vec<u8>,
        /// A record of the run log to store with it, if it is written.
        log: Option<Box<LogRecord>>,
    },
}

/// A granted lease, as the job and its targets see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The lease.
    pub lease: Name,
    /// The epoch of its record.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// The identity of the acquisition.
    pub grant: Grant,
    /// The TTL.
    pub ttl: Duration,
}

/// A request to the part of the driver that has the store. Requests are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Call the store and send the answer.
    Ask {
        /// Sent back with the answer.
        id: RequestId,
        /// The lease.
        lease: Name,
        /// The call.
        op: Op,
    },
    /// Let the store wait until the lease has another version than this, and send [`Input::Changed`] then. Send
    /// nothing if it does not change in time.
    Watch {
        /// Sent back with the report.
        id: RequestId,
        /// The lease.
        lease: Name,
        /// The version that was found there.
        version: Option<Version>,
        /// When to give up. The timer comes at the same time.
        until: BootTime,
    },
    /// Find out whether this holder is gone, and send [`Input::Probed`].
    Probe {
        /// The holder's grant.
        grant: Grant,
        /// The holder's run id.
        run: String,
        /// Where it can be seen, as the record says.
        lock: String,
    },
    /// Open the item under this grant, and send [`Input::ItemOpened`].
    OpenItem(Granted),
    /// Record how the item ended, and send [`Input::ItemRecorded`].
    RecordItem {
        /// The outcome. Planned: the command was never executed, and the next run starts it.
        state: ItemState,
        /// The details. The driver adds what the job printed.
        ending: Ending,
        /// A store that does not answer is asked again until this time.
        until: BootTime,
    },
    /// Write this record of the run log. Best effort: nothing waits for it.
    Log(Box<LogRecord>),
    /// Remember this for later runs on this host.
    Remember {
        /// The lease.
        lease: Name,
        /// The highest token seen.
        seen: Option<SeenToken>,
        /// A version being watched.
        watched: Option<WatchedRecord>,
    },
    /// Remove the lock file of this earlier holder: its lease is ours now.
    Discard(Grant),
}

/// An action for the driver. Actions are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send [`Input::Timer`] at this time. Replaces the last timer; none: no timer.
    Arm(Option<BootTime>),
    /// Hand this to the part of the driver that has the store.
    Store(Request),
    /// Seal every target for this grant and send [`Input::Sealed`].
    Seal(Granted),
    /// Start the job, before `by` or not at all.
    Start {
        /// The grant that the job runs under.
        granted: Granted,
        /// From this time on another run may have the lease.
        by: BootTime,
    },
    /// Send TERM to the whole process tree.
    Term,
    /// Send KILL to the whole tree.
    Kill,
    /// Freeze the whole tree.
    Freeze,
    /// Let a frozen tree go on.
    Thaw,
    /// Pass this signal on to the job.
    Forward(Signal),
    /// Report this event.
    Tell(Event),
    /// The session is over.
    Done(Outcome),
}

/// An event that is reported to people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The lease is ours.
    Granted(Granted),
    /// Waiting for a lease that is held. Sent once.
    Waiting(Busy),
    /// While waiting, the store did not answer a read. The read is tried again.
    Unanswered {
        /// The failure.
        message: String,
    },
    /// The store answers again.
    AnsweredAgain,
    /// A renewal was confirmed.
    Renewed,
    /// A renewal failed. It is tried again until the deadline.
    RenewFailed {
        /// The failure of the store.
        message: String,
        /// How long until the job must be stopped.
        left: Duration,
    },
    /// The machine slept past the deadline, and the job is frozen.
    Napped,
    /// The lease is still ours after that, and the job goes on.
    Resumed,
    /// The job is being ended.
    Stopping(StopReason),
    /// The job's main process ended and left other processes, which are being ended.
    Survivors,
    /// KILL was sent, and processes are still left.
    StopUnconfirmed,
    /// The record has another epoch than the one that this host saw last.
    EpochChanged,
    /// The result of opening the item.
    ItemOpened(Box<ItemOpened>),
    /// The result of recording its end.
    ItemRecorded(Box<ItemRecorded>),
}

/// Why the job is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// No renewal was confirmed in time.
    Deadline,
    /// Another run holds the lease.
    Taken {
        /// The token found.
        token: Token,
        /// The other run.
        holder: Holder,
    },
    /// The record was freed by another process, is gone, or has another epoch.
    Gone,
    /// A person asked for the lease back.
    Revoked,
    /// The store's clock ran ahead: the lease may end early.
    StoreClock,
    /// The job ran too long.
    MaxRun,
    /// The main process ended and left other processes.
    Survivors,
    /// The user sent Ctrl-C twice.
    Interrupted,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => write!(f, "no renewal was confirmed in time"),
            Self::Taken { token, holder } => {
                write!(f, "{}/{} took it over (token {token})", holder.host, holder.pid)
            }
            Self::Gone => write!(f, "its record was freed or replaced"),
            Self::Revoked => write!(f, "somebody broke it"),
            Self::StoreClock => write!(f, "the store's clock jumped ahead"),
            Self::MaxRun => write!(f, "it ran too long"),
            Self::Survivors => write!(f, "its main process ended"),
            Self::Interrupted => write!(f, "it was interrupted"),
        }
    }
}

impl StopReason {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Taken { .. } => "taken",
            Self::Gone => "gone",
            Self::Revoked => "revoked",
            Self::StoreClock => "store-clock",
            Self::MaxRun => "max-run",
            Self::Survivors => "survivors",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether the lease was lost.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Deadline | Self::Taken { .. } | Self::Gone | Self::Revoked | Self::StoreClock => true,
            Self::MaxRun | Self::Survivors | Self::Interrupted => false,
        }
    }
}

/// A lease that another run holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// The lease.
    pub lease: Name,
    /// The holder's token.
    pub token: Token,
    /// The holder's grant.
    pub grant: Grant,
    /// The holder.
    pub holder: Holder,
    /// How long it lasts unless renewed; none if only watching can tell.
    pub ends_in: Option<Duration>,
    /// Its TTL.
    pub ttl: Duration,
    /// The record says how to find out, on the holder's machine, whether a process of it lives.
    pub evident: bool,
}

/// The result of giving the lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// The lease is free.
    Done,
    /// The lease was not ours any more.
    AlreadyGone,
    /// The store did not confirm it: the lease will expire.
    Unconfirmed,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Another run held the lease, to the end of the wait.
    Busy(Busy),
    /// The lease was granted, to be kept by hand.
    Granted(Granted),
    /// The job ran and ended while the lease was ours.
    Finished {
        /// The exit status.
        status: i32,
        /// The outcome.
        state: ItemState,
        /// Why the session ended the job, if it did.
        stopped: Option<StopReason>,
        /// Whether the lease was given back.
        release: Release,
    },
    /// The lease was lost and the job ended.
    Lost {
        /// Why it was lost.
        why: StopReason,
        /// The job's exit status; none: it was never started.
        status: Option<i32>,
    },
    /// The job was not started.
    NotStarted(NotStarted),
}

/// Why the job was not started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotStarted {
    /// The store did not answer. If `in_doubt`, a claim may land late and block others for one TTL.
    Store {
        /// The failure.
        failure: Failure,
        /// Whether a claim of this session may still land.
        in_doubt: bool,
    },
    /// The record must not be acted on.
    Refused {
        /// The lease.
        lease: Name,
        /// Why not.
        refusal: Refusal,
    },
    /// A target could not be sealed.
    Seal {
        /// The failure.
        why: String,
        /// Whether the lease was still ours when it was given back. If it was, and the fence has a newer
        /// token, the store has forgotten tokens.
        release: Release,
    },
    /// The item is not run now: [`Event::ItemOpened`] says why.
    Item,
    /// A signal came first.
    Interrupted {
        /// The signal.
        signal: Signal,
        /// Whether a claim of this session may still land.
        in_doubt: bool,
    },
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { failure, .. } => write!(f, "{}", failure.message),
            Self::Refused { lease, refusal } => write!(f, "{lease}: {refusal}"),
            Self::Seal { why, .. } => write!(f, "{why}"),
            Self::Item => write!(f, "this item is not run now"),
            Self::Interrupted { .. } => write!(f, "interrupted"),
        }
    }
}
