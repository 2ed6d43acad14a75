//! The running job and its end: deadlines, signals, TERM, KILL, and the proof that no process is left.

use alloc::vec::Vec;
use core::time::Duration;

use super::acquire::interrupted;
use super::hold::{Held, Part};
use super::leave::How;
use super::{Effect, Event, JobExit, Outcome, Session, Signal, Stage, Step, StopReason};
use crate::rules::Rules;
use crate::time::BootTime;

/// How long a job stays frozen, after the machine slept, while we ask whether the lease is still ours.
const NAP_PATIENCE: Duration = Duration::from_secs(30);
/// KILL is sent again after this time, until the tree is empty: processes can start others while we kill.
const KILL_AGAIN: Duration = Duration::from_millis(100);
/// The pause between two KILLs grows up to this while a process is stuck.
const KILL_AGAIN_LAST: Duration = Duration::from_secs(5);
/// A tree that outlives KILL by this much is reported: a process is stuck in the kernel.
const UNCONFIRMED_AFTER: Duration = Duration::from_secs(10);

/// A job that was started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StartedJob {
    pub since: BootTime,
    /// No process of it is left. This may be known before the exit is.
    pub tree_empty: bool,
    /// The signals that asked it to end, while it ran.
    pub asked: Vec<Signal>,
    /// How many INT came.
    interrupts: u32,
}

impl StartedJob {
    pub(super) fn new(since: BootTime) -> Self {
        Self { since, tree_empty: false, asked: Vec::new(), interrupts: 0 }
    }
}

/// A stop that this session ordered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OrderedStop {
    pub why: StopReason,
    kill: Kill,
    /// How the main process ended, once it has.
    exited: Option<JobExit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kill {
    /// KILL is sent at this time, or when the grace of the lease ends.
    At(BootTime),
    /// KILL was sent. `stuck`: it was reported that the tree outlives it.
    Sent { first: BootTime, again_at: BootTime, stuck: bool },
}

impl<R: Rules> Session<R> {
    pub(super) fn pass_stop_deadlines(&mut self, napped: bool, step: &mut Step) {
        let held = match self.leave_stage() {
            Stage::Holding(held) => held,
            Stage::Recording(left, until) if step.now >= until => return self.release(left, step),
            stage => return self.stage = stage,
        };
        let due = step.now >= self.stop_time(&held.hold);
        match &held.part {
            Part::Running(_) if due && napped => self.freeze(held, step),
            Part::Running(_) | Part::Sealing { .. } | Part::Opening { .. } | Part::Starting if due => {
                self.stop_job(held, StopReason::Deadline, step);
            }
            Part::Napping(_, until) if step.now >= *until => {
                self.stop_job(held, StopReason::Deadline, step);
            }
            Part::Running(job) if self.max_run_at(job).is_some_and(|at| step.now >= at) => {
                self.stop_job(held, StopReason::MaxRun, step);
            }
            Part::Stopping(..) => self.kill_if_due(held, step),
            _ => self.stage = Stage::Holding(held),
        }
    }

    fn max_run_at(&self, job: &StartedJob) -> Option<BootTime> {
        self.plan.max_run.map(|most| job.since.plus(most))
    }

    /// The machine slept past the deadline. The job is frozen until a conditional write of our own record has
    /// shown that the lease is still ours.
    fn freeze(&mut self, mut held: Held, step: &mut Step) {
        held.part = match held.part {
            Part::Running(job) => Part::Napping(job, step.now.plus(NAP_PATIENCE)),
            part => part,
        };
        step.push(Effect::Freeze);
        step.tell(Event::Napped);
        held.renew_now(step);
        // A call that was under way when the machine fell asleep may or may not have landed.
        held.hold.doubt |= self.pending.take().is_some();
        self.stage = Stage::Holding(held);
    }

    /// Starts to end the job. Ends it at once where the grace would let two jobs run.
    pub(super) fn stop_job(&mut self, held: Held, why: StopReason, step: &mut Step) {
        self.stop_tree(held, why, None, step);
    }

    /// The same. `exited`: how the main process ended, if it has.
    fn stop_tree(&mut self, mut held: Held, why: StopReason, exited: Option<JobExit>, step: &mut Step) {
        let lost = held.hold.lost;
        let (job, frozen) = match held.part {
            Part::Running(job) => (job, false),
            Part::Napping(job, _) => (job, true),
            Part::Sealing { .. } => {
                let how = How::Unstarted(Outcome::Lost { why, status: None });
                return self.leave_unstarted(held.hold, how, None, step);
            }
            Part::Opening { .. } | Part::Starting => {
                return self.take_back(held.hold, Outcome::Lost { why, status: None }, step);
            }
            Part::Stopping(job, stop) => {
                held.part = Part::Stopping(job, stop.hurried(why, lost, step.now));
                return self.kill_if_due(held, step);
            }
        };
        let end = self.plan.timing.stop_at(held.hold.confirmed).plus(self.plan.timing.grace);
        let at_once = frozen || lost || why == StopReason::Interrupted;
        let kill_at = if at_once { step.now } else { step.now.plus(self.plan.timing.grace).min(end) };
        if kill_at > step.now {
            step.push(Effect::Term);
        }
        let told = Event::Stopping(why.clone());
        held.part = Part::Stopping(job, OrderedStop { why, kill: Kill::At(kill_at), exited });
        self.kill_if_due(held, step);
        step.tell(told);
    }

    fn kill_if_due(&mut self, mut held: Held, step: &mut Step) {
        let end = self.stop_time(&held.hold).plus(self.plan.timing.grace);
        if let Part::Stopping(_, stop) = &mut held.part {
            stop.kill_if_due(end, step);
        }
        self.stage = Stage::Holding(held);
    }

    pub(super) fn on_exit(&mut self, exit: JobExit, tree_empty: bool, step: &mut Step) {
        let mut held = match self.leave_stage() {
            Stage::Holding(held) if held.part.exited().is_none() => held,
            stage => return self.stage = stage,
        };
        // The two reports may come in either order. An empty tree stays empty.
        let empty = held.part.job().is_some_and(|job| {
            job.tree_empty |= tree_empty;
            job.tree_empty
        });
        let over = self.rules.may_release(empty);
        match held.part {
            Part::Running(job) | Part::Napping(job, _) if over => {
                return self.end_job(held.hold, &job, exit, None, step);
            }
            Part::Stopping(job, stop) if over => {
                return self.end_job(held.hold, &job, exit, Some(stop.why), step);
            }
            Part::Running(_) | Part::Napping(..) => {
                step.tell(Event::Survivors);
                return self.stop_tree(held, StopReason::Survivors, Some(exit), step);
            }
            Part::Stopping(_, ref mut stop) => stop.exited = Some(exit),
            Part::Sealing { .. } | Part::Opening { .. } | Part::Starting => {}
        }
        self.stage = Stage::Holding(held);
    }

    pub(super) fn on_tree_empty(&mut self, step: &mut Step) {
        let mut held = match self.leave_stage() {
            Stage::Holding(held) => held,
            stage => return self.stage = stage,
        };
        if let Some(job) = held.part.job() {
            job.tree_empty = true;
        }
        match held.part {
            Part::Stopping(job, OrderedStop { why, exited: Some(exit), .. }) => {
                self.end_job(held.hold, &job, exit, Some(why), step);
            }
            _ => self.stage = Stage::Holding(held),
        }
    }

    pub(super) fn on_signal(&mut self, signal: Signal, step: &mut Step) {
        let mut held = match self.leave_stage() {
            Stage::New if signal.ends() => return self.done(interrupted(signal, false), step),
            Stage::Seeking(seek) => return self.on_early_signal(seek, signal, step),
            Stage::Holding(held) => held,
            stage => return self.stage = stage,
        };
        let exited = held.part.exited().is_some();
        let again = match &mut held.part {
            Part::Starting if signal.ends() => {
                return self.take_back(held.hold, interrupted(signal, false), step);
            }
            // The lease is given back when the call under way has ended.
            Part::Sealing { interrupted } | Part::Opening { interrupted } => {
                *interrupted = interrupted.or(Some(signal).filter(|signal| signal.ends()));
                false
            }
            Part::Running(job) | Part::Napping(job, _) | Part::Stopping(job, _) => {
                job.interrupts += u32::from(signal == Signal::Int);
                if job.interrupts < 2 {
                    job.asked.extend((signal.ends() && !exited).then_some(signal));
                    step.push(Effect::Forward(signal));
                }
                job.interrupts >= 2
            }
            Part::Starting => false,
        };
        self.stage = Stage::Holding(held);
        if again {
            self.insist(step);
        }
    }

    /// A second Ctrl-C.
    fn insist(&mut self, step: &mut Step) {
        let mut held = match self.leave_stage() {
            Stage::Holding(held) => held,
            stage => return self.stage = stage,
        };
        match &mut held.part {
            Part::Stopping(_, stop) => {
                stop.kill_now(step.now);
                self.kill_if_due(held, step);
            }
            _ => self.stop_job(held, StopReason::Interrupted, step),
        }
    }

    pub(super) fn next_stop_deadline(&self, held: &Held) -> BootTime {
        let stop_at = self.stop_time(&held.hold);
        match &held.part {
            Part::Sealing { .. } | Part::Opening { .. } | Part::Starting => stop_at,
            Part::Running(job) => self.max_run_at(job).map_or(stop_at, |at| at.min(stop_at)),
            Part::Napping(_, until) => *until,
            Part::Stopping(_, stop) => stop.due(stop_at.plus(self.plan.timing.grace)),
        }
    }
}

impl Part {
    fn job(&mut self) -> Option<&mut StartedJob> {
        match self {
            Self::Running(job) | Self::Napping(job, _) | Self::Stopping(job, _) => Some(job),
            Self::Sealing { .. } | Self::Opening { .. } | Self::Starting => None,
        }
    }

    /// How the main process ended, if it has and others of the job are left.
    fn exited(&self) -> Option<JobExit> {
        match self {
            Self::Stopping(_, stop) => stop.exited,
            _ => None,
        }
    }
}

impl OrderedStop {
    /// A second reason while the job is being stopped: a loss replaces other reasons and ends the grace.
    fn hurried(mut self, why: StopReason, lost: bool, now: BootTime) -> Self {
        if why.is_loss() && !self.why.is_loss() {
            self.why = why;
        }
        if lost {
            self.kill_now(now);
        }
        self
    }

    fn kill_now(&mut self, now: BootTime) {
        if let Kill::At(at) = &mut self.kill {
            *at = now;
        }
    }

    /// When KILL is sent next; the first one no later than `end`.
    fn due(&self, end: BootTime) -> BootTime {
        match self.kill {
            Kill::At(at) => at.min(end),
            Kill::Sent { again_at, .. } => again_at,
        }
    }

    fn kill_if_due(&mut self, end: BootTime, step: &mut Step) {
        if step.now < self.due(end) {
            return;
        }
        step.push(Effect::Kill);
        let (first, reported) = match self.kill {
            Kill::At(_) => (step.now, false),
            Kill::Sent { first, stuck, .. } => (first, stuck),
        };
        let since = step.now.since(first);
        let stuck = since >= UNCONFIRMED_AFTER;
        if stuck && !reported {
            step.tell(Event::StopUnconfirmed);
        }
        let again_at = step.now.plus((since / 2).clamp(KILL_AGAIN, KILL_AGAIN_LAST));
        self.kill = Kill::Sent { first, again_at, stuck };
    }
}
