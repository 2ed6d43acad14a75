//! One run of one lease, as a state machine without I/O.
//!
//! `run`, the async API, the simulator and the model checker all step this one type. It takes an
//! [`Input`] and the time and answers with [`Effect`]s. Its driver carries them out and decides
//! nothing. Each phase owns its data.
//!
//! ```text
//! Looking ─ read ─▶ held? ──▶ Probing ──▶ skip, wait or next lease
//!    │                free, expired or holder gone
//!    │                gone, and seen here before ─▶ Looking, for what says that it was forgotten
//!    ▼
//!  Taking ─ cas, read back in doubt ─▶ Sealing ─▶ Opening ─▶ Running ─▶ Stopping ─▶ Recording ─▶ Releasing ─▶ Over
//!                                                              │  ▲
//!                                             machine slept    ▼  │ still ours
//!                                                            Napping
//! ```

mod acquire;
mod hold;
mod leave;
mod stop;
mod types;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Ids, WriteId};
use crate::record::LeaseRecord;
use crate::rules::{Attempt, Rules, Standard};
use crate::run_log::LogRecord;
use crate::store::{Cas, Failure, FailureKind, Version};
use crate::time::{BootTime, Now};
use acquire::Seek;
use hold::{Held, Hold};
pub use leave::NEAR_PATIENCE;
use leave::{LeftHold, Releasing};
pub use types::*;

/// The machine has slept if boot time has gained more than this on awake time.
const NAP: Duration = Duration::from_millis(200);

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not started.
    New,
    /// Reading a lease, or waiting to read it again.
    Looking,
    /// Asking this machine whether the holder is gone.
    Probing,
    /// The conditional write of our claim is under way or in doubt.
    Taking,
    /// The lease is ours; targets are being sealed.
    Sealing,
    /// The item is being opened.
    Opening,
    /// All is ready, but too little time is left: the job starts with the next renewal.
    Starting,
    /// The job runs.
    Running,
    /// The machine slept past the deadline: the job is frozen while we ask whether it is still ours.
    Napping,
    /// The job is being ended.
    Stopping,
    /// The job has ended and the end of its item is being recorded.
    Recording,
    /// The lease is being given back.
    Releasing,
    /// Nothing more will happen.
    Over,
}

/// The phases with their data.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    New,
    /// Looking, Probing, Taking.
    Seeking(Seek),
    /// From Sealing to Stopping.
    Holding(Held),
    /// The end of the item is being recorded, at most until then.
    Recording(LeftHold, BootTime),
    Releasing(LeftHold, Releasing),
    Over,
}

/// The store call under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingCall {
    id: RequestId,
    sent: BootTime,
    what: What,
}

/// The purpose of a store call.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    /// Reads the record, at first or to look for our own write ids after an answer that left a doubt.
    Read,
    /// Reads what says that the lease was forgotten on purpose.
    Forgotten,
    /// Writes this record: a claim, a renewal or a release.
    Write(LeaseRecord),
}

/// One step: its time, and its effects so far.
struct Step {
    now: BootTime,
    /// By the wall clock, for people to read.
    wall: Duration,
    out: Vec<Effect>,
}

impl Step {
    fn push(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    fn store(&mut self, request: Request) {
        self.out.push(Effect::Store(request));
    }

    fn tell(&mut self, event: Event) {
        self.out.push(Effect::Tell(event));
    }
}

/// One run of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session<R: Rules = Standard> {
    rules: R,
    plan: SessionPlan,
    ids: Ids,
    requests: u32,
    /// Boot time minus awake time at the last step; none before the first.
    slept: Option<Duration>,
    /// The store call under way.
    pending: Option<PendingCall>,
    /// The index of the lease in the plan that is tried, or held.
    at: usize,
    /// Writes that were sent and may be stored, or may still land, on any of the leases.
    attempts: Vec<Attempt>,
    stage: Stage,
}

impl Session<Standard> {
    /// A session under the production rules. `seed` must be random.
    pub fn new(plan: SessionPlan, seed: u128) -> Self {
        Self::with_rules(plan, seed, Standard)
    }
}

impl<R: Rules> Session<R> {
    /// A session under other rules, for the mutants of the simulator.
    pub fn with_rules(plan: SessionPlan, seed: u128, rules: R) -> Self {
        Self {
            rules,
            plan,
            ids: Ids::new(seed),
            requests: 0,
            slept: None,
            pending: None,
            at: 0,
            attempts: Vec::new(),
            stage: Stage::New,
        }
    }

    /// Takes one input at this time and returns what to do.
    pub fn step(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let napped = self.notice_nap(now);
        // The first effect: the stop timer is armed before anything else is tried.
        let mut step = Step { now: now.boot, wall: now.wall, out: vec![Effect::Arm(None)] };
        self.pass_deadlines(napped, &mut step);
        self.take(input, &mut step);
        self.pass_deadlines(false, &mut step);
        step.out[0] = Effect::Arm(self.next_deadline());
        step.out
    }

    fn take(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::Start => self.start(step),
            Input::Read { id, result } => {
                if let Some(pending) = self.take_pending(id) {
                    self.on_read(&pending, result, step);
                }
            }
            Input::Forgotten { id, result } => {
                if self.take_pending(id).is_some() {
                    self.on_forgotten(result, step);
                }
            }
            Input::Cas { id, result } => {
                if let Some(pending) = self.take_pending(id) {
                    self.on_cas(pending, result, step);
                }
            }
            Input::Probed { gone } => self.on_probed(gone, step),
            Input::Changed { id } => self.on_changed(id, step),
            Input::Sealed(result) => self.on_sealed(result, step),
            Input::ItemOpened(opened) => self.on_item_opened(opened, step),
            Input::ItemRecorded(recorded) => self.on_item_recorded(recorded, step),
            Input::JobExited { exit, tree_empty } => self.on_exit(exit, tree_empty, step),
            Input::TreeEmpty => self.on_tree_empty(step),
            Input::Signal(signal) => self.on_signal(signal, step),
            Input::Timer => {}
        }
    }

    /// Where the session is.
    pub fn phase(&self) -> Phase {
        match &self.stage {
            Stage::New => Phase::New,
            Stage::Seeking(seek) => seek.phase(),
            Stage::Holding(held) => held.part.phase(),
            Stage::Recording(..) => Phase::Recording,
            Stage::Releasing(..) => Phase::Releasing,
            Stage::Over => Phase::Over,
        }
    }

    fn hold(&self) -> Option<&Hold> {
        match &self.stage {
            Stage::Holding(held) => Some(&held.hold),
            Stage::Recording(left, _) | Stage::Releasing(left, _) => Some(&left.hold),
            Stage::New | Stage::Seeking(_) | Stage::Over => None,
        }
    }

    /// The record we hold, as last confirmed.
    pub fn record(&self) -> Option<&LeaseRecord> {
        self.hold().filter(|hold| !hold.lost).map(|hold| &hold.record)
    }

    /// When the session starts to stop the job unless a renewal is confirmed (`D`).
    pub fn stop_at(&self) -> Option<BootTime> {
        self.hold().map(|hold| self.stop_time(hold))
    }

    /// Why the session ends the job, or has ended it.
    pub fn stopped(&self) -> Option<&StopReason> {
        match &self.stage {
            Stage::Holding(held) => held.part.stopped(),
            Stage::Recording(left, _) | Stage::Releasing(left, _) => left.stopped(),
            Stage::New | Stage::Seeking(_) | Stage::Over => None,
        }
    }

    /// `D` of a lease that we hold.
    fn stop_time(&self, hold: &Hold) -> BootTime {
        self.plan.timing.stop_at(hold.confirmed)
    }

    /// The call under way, if this is its answer. Answers to calls that were given up are ignored.
    fn take_pending(&mut self, id: RequestId) -> Option<PendingCall> {
        self.pending.take_if(|p| p.id == id)
    }

    fn notice_nap(&mut self, now: Now) -> bool {
        let slept = now.boot.0.saturating_sub(now.awake);
        let before = self.slept.replace(slept).unwrap_or(slept);
        slept.saturating_sub(before) > NAP
    }

    /// Takes the phase out. The caller puts the next one in.
    fn leave_stage(&mut self) -> Stage {
        core::mem::replace(&mut self.stage, Stage::Over)
    }

    fn ask(&mut self, what: What, op: Op, step: &mut Step) {
        let id = self.fresh_request();
        self.pending = Some(PendingCall { id, sent: step.now, what });
        let lease = self.plan.leases[self.at].lease.clone();
        step.store(Request::Ask { id, lease, op });
    }

    fn fresh_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn ask_read(&mut self, step: &mut Step) {
        self.ask(What::Read, Op::Read, step);
    }

    /// Writes the lease. `replaces`: the hold that this claim takes over. `log`: a record of the run log that is
    /// written with it.
    fn ask_write(
        &mut self,
        record: LeaseRecord,
        expected: Option<Version>,
        replaces: Option<Box<LeaseRecord>>,
        log: Option<Box<LogRecord>>,
        step: &mut Step,
    ) {
        let (at, write, sent) = (self.at, record.write, step.now);
        let in_doubt = false;
        self.attempts.push(Attempt { at, write, sent, expected: expected.clone(), replaces, in_doubt });
        let op = Op::Cas { expected, write, body: record.encode(), log };
        self.ask(What::Write(record), op, step);
    }

    fn fresh_write(&mut self) -> WriteId {
        WriteId(self.ids.fresh())
    }

    fn done(&mut self, outcome: Outcome, step: &mut Step) {
        self.stage = Stage::Over;
        self.pending = None;
        step.push(Effect::Done(outcome));
    }

    fn on_read(&mut self, pending: &PendingCall, result: Result<Reading, Failure>, step: &mut Step) {
        match self.leave_stage() {
            Stage::Seeking(seek) => self.on_lease_read(seek, pending.sent, result, step),
            Stage::Holding(held) => self.on_read_back(held, result, step),
            // The release reads it again.
            Stage::Recording(mut left, until) => {
                left.hold.doubt = true;
                self.stage = Stage::Recording(left, until);
            }
            Stage::Releasing(left, releasing) => self.on_release_read_back(left, releasing, result, step),
            stage => self.stage = stage,
        }
    }

    fn on_cas(&mut self, pending: PendingCall, result: Cas, step: &mut Step) {
        let What::Write(record) = pending.what else { return };
        match self.leave_stage() {
            Stage::Seeking(seek) => self.on_claim_written(seek, record, result, step),
            Stage::Holding(held) => self.on_written(held, record, result, step),
            // A renewal was under way when the job ended. If it is in doubt, it is read back before the release.
            Stage::Recording(mut left, until) => {
                match result {
                    Cas::Written { version, .. } => self.adopt(&mut left.hold, record, version),
                    Cas::Conflict | Cas::Unknown(_) => left.hold.doubt = true,
                }
                self.stage = Stage::Recording(left, until);
            }
            Stage::Releasing(left, releasing) => {
                self.on_release_written(left, releasing, record, result, step);
            }
            stage => self.stage = stage,
        }
    }

    /// Treats a store call that took too long as one whose answer was lost.
    fn give_up_on_slow_call(&mut self, step: &mut Step) {
        let timeout = self.plan.timing.timeout;
        let Some(pending) = self.pending.take_if(|p| step.now >= p.sent.plus(timeout)) else { return };
        let failure = Failure::new(
            FailureKind::Unreachable,
            alloc::format!(
                "no answer within {}; check that the store runs and that its address is right",
                crate::human_duration::HumanDuration(timeout)
            ),
        );
        match pending.what {
            What::Write(_) => self.on_cas(pending, Cas::Unknown(failure), step),
            What::Read => self.on_read(&pending, Err(failure), step),
            What::Forgotten => self.on_forgotten(Err(failure), step),
        }
    }

    fn pass_deadlines(&mut self, napped: bool, step: &mut Step) {
        self.pass_stop_deadlines(napped, step);
        self.give_up_on_slow_call(step);
        if self.pending.is_some() {
            return;
        }
        match self.leave_stage() {
            Stage::Seeking(seek) => self.look_if_due(seek, step),
            Stage::Holding(held) => self.renew_if_due(held, step),
            stage => self.stage = stage,
        }
    }

    /// The earliest time at which something has to happen without any other input.
    fn next_deadline(&self) -> Option<BootTime> {
        let call = self.pending.as_ref().map(|p| p.sent.plus(self.plan.timing.timeout));
        let phase = match &self.stage {
            Stage::New | Stage::Releasing(..) | Stage::Over => None,
            Stage::Seeking(seek) => seek.due(),
            Stage::Holding(held) => self.next_hold_deadline(held),
            Stage::Recording(_, until) => Some(*until),
        };
        [call, phase].into_iter().flatten().min()
    }
}
