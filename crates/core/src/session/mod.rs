//! One run of one lease, as a state machine without I/O.
//!
//! `run`, the async API, the simulator and the model checker all step this one type. It takes an
//! [`Input`] and the time and answers with [`Effect`]s; whoever drives it carries them out and
//! decides nothing.
//!
//! ```text
//! Looking ─ read ─▶ held? ──▶ Probing ──▶ skip, wait or next lease
//!    │                free, expired or holder gone
//!    ▼
//!  Taking ─ cas, read back in doubt ─▶ Sealing ─▶ Running ─▶ Stopping ─▶ Releasing ─▶ Over
//!                                                   │  ▲
//!                                              nap  ▼  │ still ours
//!                                                 Napping
//! ```

mod acquire;
mod hold;
mod stop;
mod types;

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Grant, Ids, WriteId};
use crate::past::End;
use crate::record::LeaseRecord;
use crate::rules::{Attempt, Rules, Standard};
use crate::store::{Cas, Failure, FailureKind, Version};
use crate::time::{BootTime, Now};
pub use types::*;

/// How far boot time must run ahead of awake time before we call it a nap.
const NAP: Duration = Duration::from_millis(200);

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not started.
    New,
    /// Reading a lease, or waiting to read it again.
    Looking,
    /// Asking whether a neighbour's holder is gone.
    Probing,
    /// The conditional write of our claim is under way or in doubt.
    Taking,
    /// Granted; targets are being sealed.
    Sealing,
    /// The job runs.
    Running,
    /// The machine slept past the deadline: the job is frozen while we ask whether it is still ours.
    Napping,
    /// The job is being ended.
    Stopping,
    /// The job is gone and the lease is being given back.
    Releasing,
    /// Nothing more will happen.
    Over,
}

/// A store call under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    id: RequestId,
    sent: BootTime,
    what: What,
}

/// What a store call is for.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    /// A first look at a lease.
    Look,
    /// Looking for our own write ids after a doubtful answer.
    ReadBack,
    /// A claim, renewal or release of this record.
    Write(LeaseRecord),
}

/// What was read of the lease we are looking at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Found {
    record: Option<LeaseRecord>,
    version: Option<Version>,
    age: Option<Duration>,
    instance: String,
    pushes: bool,
    read_sent: BootTime,
}

/// A lease that is, or was, ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holding {
    record: LeaseRecord,
    version: Option<Version>,
    instance: String,
    /// The instant from which the lease surely runs.
    confirmed: BootTime,
    /// When the next store call is due.
    renew_at: BootTime,
    /// A write's fate is open: read back before writing again.
    doubt: bool,
    /// Somebody else's, or vanished: nothing more may be written.
    lost: bool,
    /// The store's clock at the last confirmed write, and when that write was sent.
    store_clock: Option<(Duration, BootTime)>,
}

/// The job, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Job {
    NotStarted,
    Running { since: BootTime },
    Exited { status: i32 },
}

/// An ordered end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stop {
    why: StopReason,
    kill_at: BootTime,
    killed: Option<BootTime>,
    unconfirmed: bool,
}

/// One run of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session<R: Rules = Standard> {
    rules: R,
    plan: Plan,
    ids: Ids,
    phase: Phase,
    /// Boot time minus awake time at the last step.
    slept: Option<Duration>,
    requests: u32,
    pending: Option<Pending>,
    /// Which of the plan's leases is being tried.
    at: usize,
    retry_at: Option<BootTime>,
    /// What was found of the lease, if the store can say when that changes.
    tells: Option<Version>,
    /// The store was asked to say when the lease we wait for changes.
    watching: Option<RequestId>,
    wait_until: BootTime,
    retries: u32,
    /// When the claim first fell into doubt.
    doubt_since: Option<BootTime>,
    /// Why the last claim got no answer, or no good one, until it is known whether it landed.
    claim_failed: Option<Failure>,
    /// A claim was sent of which nobody said that it came to nothing: it may land late.
    claim_open: bool,
    /// The last look of one who waits was not answered.
    unheard: bool,
    busy: Option<Busy>,
    found: Option<Found>,
    /// The holder our claim replaces, if it left a lock file.
    predecessor: Option<Grant>,
    /// What was sent and may be stored, or may yet land, on whichever lease.
    attempts: Vec<Attempt>,
    hold: Option<Holding>,
    job: Job,
    tree_empty: bool,
    /// All is ready for the job but there is too little time left: it starts with the next renewal.
    start_renewed: bool,
    stop: Option<Stop>,
    /// Until when a job frozen after a nap may still turn out to be ours.
    nap_until: Option<BootTime>,
    /// How the hold ended, if that is to be kept in the record.
    end: Option<End>,
    release_tries: u32,
    /// A release was sent and never answered: it may have landed.
    release_open: bool,
    /// The job was gone before D: what becomes of the lease after that takes nothing from it.
    ended_in_time: bool,
    /// How the session ends once the lease is given back, if the job was never started.
    unstarted: Option<Outcome>,
    interrupted: Option<Signal>,
    interrupts: u32,
}

impl Session<Standard> {
    /// A session under the production rules. `seed` must be random.
    pub fn new(plan: Plan, seed: u128) -> Self {
        Self::with_rules(plan, seed, Standard)
    }
}

impl<R: Rules> Session<R> {
    /// A session under other rules; only the simulator's mutants need this.
    pub fn with_rules(plan: Plan, seed: u128, rules: R) -> Self {
        Self {
            rules,
            plan,
            ids: Ids::new(seed),
            phase: Phase::New,
            slept: None,
            requests: 0,
            pending: None,
            at: 0,
            retry_at: None,
            tells: None,
            watching: None,
            wait_until: BootTime::default(),
            retries: 0,
            doubt_since: None,
            claim_failed: None,
            claim_open: false,
            unheard: false,
            busy: None,
            found: None,
            predecessor: None,
            attempts: Vec::new(),
            hold: None,
            job: Job::NotStarted,
            tree_empty: true,
            start_renewed: false,
            stop: None,
            nap_until: None,
            end: None,
            release_tries: 0,
            release_open: false,
            ended_in_time: false,
            unstarted: None,
            interrupted: None,
            interrupts: 0,
        }
    }

    /// Takes one input at this time and says what to do.
    pub fn step(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let mut out = Vec::new();
        let napped = self.notice_nap(now);
        let now = now.boot;
        self.pass_deadlines(napped, now, &mut out);
        match input {
            Input::Start => self.start(now, &mut out),
            Input::Read { id, result } => {
                if let Some(pending) = self.take_pending(id) {
                    self.on_read(pending, result, now, &mut out);
                }
            }
            Input::Cas { id, result } => {
                if let Some(pending) = self.take_pending(id) {
                    self.on_cas(pending, result, now, &mut out);
                }
            }
            Input::Probed { gone } => self.on_probed(gone, now, &mut out),
            Input::Changed { id } => self.on_changed(id, now, &mut out),
            Input::Sealed(result) => self.on_sealed(result, now, &mut out),
            Input::JobExited { status, tree_empty } => {
                self.on_exit(status, tree_empty, now, &mut out);
            }
            Input::TreeEmpty => self.on_tree_empty(now, &mut out),
            Input::Signal(signal) => self.on_signal(signal, now, &mut out),
            Input::Timer => {}
        }
        self.pass_deadlines(false, now, &mut out);
        // First in line: the stop timer is armed before anything else is tried.
        out.insert(0, Effect::Arm(self.next_deadline()));
        out
    }

    /// How the hold ended, for people: the release puts it into the record. Nothing else comes of it.
    pub fn ends(&mut self, end: Option<End>) {
        self.end = end;
    }

    /// What time it is by the wall, for people: a claim that is made from now on says so.
    pub fn dated(&mut self, since: String) {
        self.plan.holder.since = since;
    }

    /// Whether the job is started once all is sealed: it was neither interrupted meanwhile, nor is it too late.
    pub fn is_to_start(&self) -> bool {
        self.phase == Phase::Sealing && self.interrupted.is_none()
    }

    /// Whether the lease is about to be given back, or is ours no more.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Releasing | Phase::Over)
    }

    /// Why the job is being ended, or was, if it did not end by itself.
    pub fn stopped(&self) -> Option<&StopReason> {
        self.stop.as_ref().map(|stop| &stop.why)
    }

    /// Where the session is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The record we hold, as last confirmed.
    pub fn record(&self) -> Option<&LeaseRecord> {
        self.hold.as_ref().filter(|h| !h.lost).map(|h| &h.record)
    }

    /// When the job must begin to stop unless a renewal is confirmed (`D`).
    pub fn stop_at(&self) -> Option<BootTime> {
        self.hold.as_ref().map(|h| self.plan.timing.stop_at(h.confirmed))
    }

    /// Replies to requests that were given up on are ignored.
    fn take_pending(&mut self, id: RequestId) -> Option<Pending> {
        self.pending.take_if(|p| p.id == id)
    }

    fn notice_nap(&mut self, now: Now) -> bool {
        let slept = now.boot.0.saturating_sub(now.awake);
        let before = self.slept.replace(slept).unwrap_or(slept);
        slept.saturating_sub(before) > NAP
    }

    fn ask(&mut self, what: What, op: Op, now: BootTime, out: &mut Vec<Effect>) {
        let id = self.fresh_request();
        self.pending = Some(Pending { id, sent: now, what });
        let lease = self.plan.leases[self.at].lease.clone();
        out.push(Effect::Ask { id, lease, op });
    }

    fn fresh_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn ask_read(&mut self, what: What, now: BootTime, out: &mut Vec<Effect>) {
        self.ask(what, Op::Read, now, out);
    }

    fn ask_write(
        &mut self,
        record: LeaseRecord,
        expected: Option<Version>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        self.attempts.push(Attempt {
            at: self.at,
            write: record.write,
            sent: now,
            expected: expected.clone(),
        });
        let op = Op::Cas { expected, write: record.write, body: record.encode() };
        self.ask(What::Write(record), op, now, out);
    }

    fn fresh_write(&mut self) -> WriteId {
        WriteId(self.ids.fresh())
    }

    fn done(&mut self, outcome: Outcome, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        self.pending = None;
        self.retry_at = None;
        out.push(Effect::Done(outcome));
    }

    fn on_read(
        &mut self,
        pending: Pending,
        result: Result<Reading, Failure>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        match self.phase {
            Phase::Looking => self.on_look(pending.sent, result, now, out),
            Phase::Taking => self.on_claim_read_back(pending.sent, result, now, out),
            Phase::Releasing => self.on_release_read_back(result, now, out),
            Phase::Sealing | Phase::Running | Phase::Napping | Phase::Stopping => {
                self.on_hold_read_back(result, now, out);
            }
            Phase::New | Phase::Probing | Phase::Over => {}
        }
    }

    fn on_cas(&mut self, pending: Pending, result: Cas, now: BootTime, out: &mut Vec<Effect>) {
        let What::Write(record) = pending.what else { return };
        match self.phase {
            Phase::Taking => self.on_claim_written(record, result, now, out),
            Phase::Releasing => self.on_release_written(record, result, now, out),
            Phase::Sealing | Phase::Running | Phase::Napping | Phase::Stopping => {
                self.on_renewed(record, result, now, out);
            }
            Phase::New | Phase::Looking | Phase::Probing | Phase::Over => {}
        }
    }

    /// A store call that took too long is treated as one whose answer was lost.
    fn give_up_on_slow_call(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        let timeout = self.plan.timing.timeout;
        let Some(pending) = self.pending.take_if(|p| now >= p.sent.plus(timeout)) else { return };
        let failure = Failure::new(
            FailureKind::Unreachable,
            alloc::format!(
                "no answer within {}; see that the store runs and that its address is right",
                crate::stop::Text(timeout)
            ),
        );
        match pending.what {
            What::Write(_) => self.on_cas(pending, Cas::Unknown(failure), now, out),
            What::Look | What::ReadBack => self.on_read(pending, Err(failure), now, out),
        }
    }

    fn pass_deadlines(&mut self, napped: bool, now: BootTime, out: &mut Vec<Effect>) {
        self.pass_stop_deadlines(napped, now, out);
        self.give_up_on_slow_call(now, out);
        if self.pending.is_some() {
            return;
        }
        match self.phase {
            Phase::Looking if self.retry_at.is_some_and(|at| now >= at) => self.look(now, out),
            Phase::Taking if self.retry_at.is_some_and(|at| now >= at) => {
                self.retry_at = None;
                self.ask_read(What::ReadBack, now, out);
            }
            Phase::Sealing | Phase::Running | Phase::Napping | Phase::Stopping => self.renew_if_due(now, out),
            _ => {}
        }
    }

    /// The earliest instant at which something has to happen without any other input.
    fn next_deadline(&self) -> Option<BootTime> {
        if self.phase == Phase::Over {
            return None;
        }
        let call = self.pending.as_ref().map(|p| p.sent.plus(self.plan.timing.timeout));
        [call, self.retry_at, self.next_hold_deadline(), self.next_stop_deadline()]
            .into_iter()
            .flatten()
            .min()
    }
}
