//! What goes into a session and what comes out of it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::ledger::{Ending, ItemOpened, ItemRecorded, ItemState};
use crate::name::Name;
use crate::record::Holder;
use crate::rules::{Refusal, SeenToken};
use crate::store::{Cas, Failure, Stored, Version};
use crate::time::BootTime;
use crate::timing::Timing;

/// The store key of a lease.
pub fn lease_key(lease: &Name) -> String {
    alloc::format!("{LEASE_PREFIX}{lease}")
}

/// All lease keys start with this.
pub const LEASE_PREFIX: &str = "leases/";

/// A record that was seen without a usable age, and since when it has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchedRecord {
    /// The version watched.
    pub write: WriteId,
    /// When we first saw it, on our own clock.
    pub since: BootTime,
}

/// One lease that would do, with what this host remembers of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseChoice {
    /// The lease.
    pub lease: Name,
    /// The highest token seen here.
    pub seen: Option<SeenToken>,
    /// A version watched by an earlier run.
    pub watched: Option<WatchedRecord>,
}

/// What a session is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionPlan {
    /// Leases in order of preference; the first free one is taken. Never empty.
    pub leases: Vec<LeaseChoice>,
    /// The acquisition's identity; random, fresh for every session.
    pub grant: Grant,
    /// Checked timing.
    pub timing: Timing,
    /// How long to wait when all are held; zero: not at all.
    pub wait: Duration,
    /// Stop the job after this long.
    pub max_run: Option<Duration>,
    /// Raise fences before the job starts.
    pub seal: bool,
    /// Open an item of work before the job starts, and record its end before the lease is given back.
    pub item: Option<Distance>,
    /// What of the end is kept in the lease's record.
    pub history: HistoryPolicy,
    /// End with the grant: someone else renews and releases.
    pub by_hand: bool,
    /// Take it even while held. The old job may still run.
    pub force: bool,
    /// Evidence of life to put into the record.
    pub lock: Option<String>,
    /// For people to read. A claim says itself since when.
    pub holder: Holder,
    /// What this was started under.
    pub within: Within,
}

/// How far away the store is, which says how long to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distance {
    /// On this machine: it answers soon, or not at all.
    Near,
    /// Behind a network.
    Far,
}

/// What of a hold's end is kept in the lease's record, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistoryPolicy {
    /// Nothing.
    Nothing,
    /// Only that nothing was run, because a target could not be sealed.
    Unsealed,
    /// How the job ended.
    Job,
    /// That the lease was given back: how the work went is its owner's business.
    Release,
}

/// The runs, and the lease held by hand, that something was started under. They wait for it, so it never waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Within {
    /// Identities of runs, as in [`Holder::run`].
    pub runs: Vec<String>,
    /// Of a lease that was taken by hand.
    pub grant: Option<Grant>,
}

impl Within {
    /// Whether the holder is one of them.
    pub fn holds(&self, busy: &Busy) -> bool {
        self.grant == Some(busy.grant) || self.runs.contains(&busy.holder.run)
    }
}

/// Names a store call, so that a late answer is not taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// What a read gave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The stored body, if any.
    pub stored: Option<Stored>,
    /// The store instance that answered.
    pub instance: String,
    /// The store can tell when the record changes.
    pub pushes: bool,
}

/// Signals a wrapper passes on.
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
    /// Whether it asks to end.
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
    /// By itself, with this code.
    Code(i32),
    /// Of a signal.
    Signal(i32),
    /// It could not be executed.
    Failed(i32),
    /// It was not executed, because by then the lease was not surely ours.
    TooLate(i32),
}

impl JobExit {
    /// As a shell would say it.
    pub fn status(self) -> i32 {
        match self {
            Self::Code(status) | Self::Signal(status) | Self::Failed(status) | Self::TooLate(status) => {
                status
            }
        }
    }
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Begin.
    Start,
    /// A read was answered.
    Read {
        /// Which.
        id: RequestId,
        /// How.
        result: Result<Reading, Failure>,
    },
    /// A conditional write was answered.
    Cas {
        /// Which.
        id: RequestId,
        /// How.
        result: Cas,
    },
    /// Whether the holder and all it started are provably gone.
    Probed {
        /// In doubt: false.
        gone: bool,
    },
    /// A watched record changed, or may have.
    Changed {
        /// Which watch.
        id: RequestId,
    },
    /// Targets are sealed, or why not.
    Sealed(Result<(), String>),
    /// What came of opening the item.
    ItemOpened(Box<ItemOpened>),
    /// What came of recording its end.
    ItemRecorded(Box<ItemRecorded>),
    /// The main process ended, or was never executed.
    JobExited {
        /// How.
        exit: JobExit,
        /// Nothing it started is left.
        tree_empty: bool,
    },
    /// Nothing of the job is left.
    TreeEmpty,
    /// A signal for the wrapper.
    Signal(Signal),
    /// The armed time came.
    Timer,
}

/// A store call to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read the lease.
    Read,
    /// Write it if its version is the expected one.
    Cas {
        /// Nothing: it must be absent.
        expected: Option<Version>,
        /// This attempt.
        write: WriteId,
        /// What to store.
        body: Vec<u8>,
    },
}

/// A grant, as the job and its targets see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The lease that was free.
    pub lease: Name,
    /// Its life.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// The acquisition.
    pub grant: Grant,
    /// The lease's duration.
    pub ttl: Duration,
}

/// Something for whoever has the store to do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Call the store and send the answer.
    Ask {
        /// To be sent back with the answer.
        id: RequestId,
        /// Which lease.
        lease: Name,
        /// What to call.
        op: Op,
    },
    /// Let the store wait until the lease has another version than this, and send [`Input::Changed`] then;
    /// nothing if it does not change in time.
    Watch {
        /// To be sent back.
        id: RequestId,
        /// Which lease.
        lease: Name,
        /// What was found there.
        version: Option<Version>,
        /// When to give up: the timer comes then.
        until: BootTime,
    },
    /// Find out whether that holder is gone and send [`Input::Probed`].
    Probe {
        /// The holder's acquisition.
        grant: Grant,
        /// The holder's run id.
        run: String,
        /// The evidence it left.
        lock: String,
    },
    /// Open the item under this grant, and send [`Input::ItemOpened`].
    OpenItem(Granted),
    /// Record how the item ended, and send [`Input::ItemRecorded`].
    RecordItem {
        /// In a word. Planned: the command was never executed, and the next run begins it.
        state: ItemState,
        /// In full. Whoever ran the job adds what it printed.
        ending: Ending,
        /// How long a store that does not answer is asked again.
        until: BootTime,
    },
    /// Remember this for later runs on this host.
    Remember {
        /// Of which lease.
        lease: Name,
        /// The highest token seen.
        seen: Option<SeenToken>,
        /// A version being watched.
        watched: Option<WatchedRecord>,
    },
    /// The lock file of this earlier holder has served its purpose: its lease is ours now.
    Discard(Grant),
}

/// Something for the driver to do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send [`Input::Timer`] at this time; replaces the last. Nothing: no timer.
    Arm(Option<BootTime>),
    /// Hand this to whoever has the store.
    Store(Request),
    /// Raise every fence to this grant and send [`Input::Sealed`].
    Seal(Granted),
    /// Start the job, by then or not at all.
    Start {
        /// Under this grant.
        granted: Granted,
        /// From then on the lease may be another's.
        by: BootTime,
    },
    /// Ask the whole tree to end.
    Term,
    /// End the whole tree.
    Kill,
    /// Stop the whole tree's execution.
    Freeze,
    /// Let it go on.
    Thaw,
    /// Pass a signal on to the job.
    Forward(Signal),
    /// Something worth telling.
    Tell(Event),
    /// The session is over.
    Done(Outcome),
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The lease is ours.
    Granted(Granted),
    /// Waiting for a held lease.
    Waiting(Busy),
    /// While waiting, the store could not be asked; it will be tried again.
    Unheard {
        /// What it said.
        message: String,
    },
    /// It answers again.
    Heard,
    /// A renewal was confirmed.
    Renewed,
    /// A renewal failed; it will be tried again until the deadline.
    RenewFailed {
        /// What the store said.
        message: String,
        /// How long until the job must be stopped.
        left: Duration,
    },
    /// The machine slept past the deadline; the job is frozen.
    Napped,
    /// The lease survived the nap.
    Resumed,
    /// The job is being ended.
    Stopping(StopReason),
    /// Processes survive the job's main process and are being ended.
    Survivors,
    /// Killed, and yet not confirmed to be gone.
    StopUnconfirmed,
    /// The record's life changed since this host last saw it.
    EpochChanged,
    /// What came of opening the item.
    ItemOpened(Box<ItemOpened>),
    /// What came of recording its end.
    ItemRecorded(Box<ItemRecorded>),
}

/// Why the job is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// No renewal was confirmed in time.
    Deadline,
    /// Somebody else holds the lease.
    Taken {
        /// The token found.
        token: Token,
        /// By whom.
        holder: Holder,
    },
    /// The record was freed by someone, or is gone, or belongs to another life.
    Gone,
    /// Someone asked for it back.
    Revoked,
    /// The store's clock ran ahead: the lease may end early.
    StoreClock,
    /// The job ran too long.
    MaxRun,
    /// The main process ended and left others behind.
    Survivors,
    /// The user insisted.
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
            Self::Revoked => write!(f, "somebody asked for it back"),
            Self::StoreClock => write!(f, "the store's clock ran ahead"),
            Self::MaxRun => write!(f, "it ran too long"),
            Self::Survivors => write!(f, "its main process ended"),
            Self::Interrupted => write!(f, "it was interrupted"),
        }
    }
}

impl StopReason {
    /// Whether the lease was lost, as opposed to ended in good order.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Deadline | Self::Taken { .. } | Self::Gone | Self::Revoked | Self::StoreClock => true,
            Self::MaxRun | Self::Survivors | Self::Interrupted => false,
        }
    }
}

/// A lease that somebody else holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// Which.
    pub lease: Name,
    /// The holder's token.
    pub token: Token,
    /// The holder's acquisition.
    pub grant: Grant,
    /// Who.
    pub holder: Holder,
    /// Until when unless renewed; nothing when only watching can tell.
    pub ends_in: Option<Duration>,
    /// The lease's duration.
    pub ttl: Duration,
    /// The record says how to find out on the holder's machine whether anything of it lives.
    pub evident: bool,
}

/// What became of giving the lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// Free for the next.
    Done,
    /// It was not ours any more.
    AlreadyGone,
    /// The store did not answer: it will expire.
    Unconfirmed,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Held by somebody else, to the end of our patience.
    Busy(Busy),
    /// Granted, by hand.
    Granted(Granted),
    /// The job ran and ended while the lease was ours.
    Finished {
        /// Exit status.
        status: i32,
        /// How it ended, in a word.
        state: ItemState,
        /// If we ended it: why.
        stopped: Option<StopReason>,
        /// What became of the lease.
        release: Release,
    },
    /// The lease was lost and the job ended.
    Lost {
        /// How.
        why: StopReason,
        /// The job's exit status; nothing: it was never started.
        status: Option<i32>,
    },
    /// The job was not started.
    NotStarted(NotStarted),
}

/// Why the job was not started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotStarted {
    /// The store did not answer. `in_doubt`: a claim may land late and block others for one TTL.
    Store {
        /// What it said.
        failure: Failure,
        /// Whether a claim of ours may still land.
        in_doubt: bool,
    },
    /// The store's content must not be acted on.
    Refused {
        /// Which lease.
        lease: Name,
        /// Why.
        refusal: Refusal,
    },
    /// A target could not be sealed.
    Seal {
        /// What it said.
        why: String,
        /// What giving the lease back came to: still ours, or gone before. A fence that is ahead of a
        /// lease which was ours to the end has seen tokens that the store has forgotten.
        release: Release,
    },
    /// The item is not to be run now: [`Event::ItemOpened`] says why.
    Item,
    /// A signal came first.
    Interrupted {
        /// Which.
        signal: Signal,
        /// Whether a claim of ours may still land.
        in_doubt: bool,
    },
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { failure, .. } => write!(f, "{}", failure.message),
            Self::Refused { lease, refusal } => write!(f, "{lease}: {refusal}"),
            Self::Seal { why, .. } => write!(f, "{why}"),
            Self::Item => write!(f, "this item is not to be run now"),
            Self::Interrupted { .. } => write!(f, "interrupted"),
        }
    }
}
