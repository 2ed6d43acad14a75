//! Ending a job: deadlines, signals, TERM, KILL, and the proof that nothing is left.

use alloc::vec::Vec;
use core::time::Duration;

use super::acquire::interrupted;
use super::{Effect, Event, Job, Outcome, Phase, Session, Signal, Stop, StopReason};
use crate::rules::Rules;
use crate::time::BootTime;

/// How long a job stays frozen after a nap while we ask whether the lease is still ours.
const NAP_PATIENCE: Duration = Duration::from_secs(30);
/// KILL is sent again this often until the tree is empty: processes can be born while we kill.
const KILL_AGAIN: Duration = Duration::from_millis(100);
/// … and less and less often, while something is stuck.
const KILL_AGAIN_LAST: Duration = Duration::from_secs(5);
/// A tree that outlives KILL by this much is worth telling: something is stuck in the kernel.
const UNCONFIRMED_AFTER: Duration = Duration::from_secs(10);

impl<R: Rules> Session<R> {
    pub(super) fn pass_stop_deadlines(&mut self, napped: bool, now: BootTime, out: &mut Vec<Effect>) {
        let due = self.stop_at().is_some_and(|at| now >= at);
        match self.phase {
            Phase::Running if due && napped => self.freeze(now, out),
            Phase::Running | Phase::Sealing if due => self.stop_job(StopReason::Deadline, now, out),
            Phase::Napping if self.nap_until.is_some_and(|at| now >= at) => {
                self.stop_job(StopReason::Deadline, now, out);
            }
            Phase::Running if self.max_run_at().is_some_and(|at| now >= at) => {
                self.stop_job(StopReason::MaxRun, now, out);
            }
            Phase::Stopping => self.kill_if_due(now, out),
            _ => {}
        }
    }

    fn max_run_at(&self) -> Option<BootTime> {
        match self.job {
            Job::Running { since } => self.plan.max_run.map(|most| since.plus(most)),
            Job::NotStarted | Job::Exited { .. } => None,
        }
    }

    /// The machine slept past the deadline. Nobody can say what the job would do next, so it does
    /// nothing until one conditional write of our own record has shown that it is still ours.
    fn freeze(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        out.push(Effect::Freeze);
        out.push(Effect::Tell(Event::Napped));
        self.phase = Phase::Napping;
        self.nap_until = Some(now.plus(NAP_PATIENCE));
        if let Some(hold) = self.hold.as_mut() {
            hold.renew_at = now;
            // A call that was out when the machine fell asleep may or may not have landed.
            hold.doubt |= self.pending.take().is_some();
        }
    }

    /// Begins to end the job, or ends it at once where waiting would let two run.
    pub(super) fn stop_job(&mut self, why: StopReason, now: BootTime, out: &mut Vec<Effect>) {
        let frozen = self.phase == Phase::Napping;
        match self.phase {
            Phase::Sealing => {
                let lost = Outcome::Lost { why, status: None };
                return self.release_unstarted(lost, now, out);
            }
            Phase::Stopping => return self.hurry(&why, now, out),
            Phase::Running | Phase::Napping => {}
            _ => return,
        }
        self.phase = Phase::Stopping;
        let told = Effect::Tell(Event::Stopping(why.clone()));
        let end = self.stop_at().unwrap_or(now).plus(self.plan.timing.grace);
        let somebody_else = self.hold.as_ref().is_none_or(|h| h.lost);
        let at_once = frozen || somebody_else || why == StopReason::Interrupted;
        let kill_at = if at_once { now } else { now.plus(self.plan.timing.grace).min(end) };
        if kill_at > now {
            out.push(Effect::Term);
        }
        self.stop = Some(Stop { why, kill_at, killed: None, unconfirmed: false });
        self.kill_if_due(now, out);
        out.push(told);
    }

    /// A second, worse reason while already stopping: a loss overrides and shortens the grace.
    fn hurry(&mut self, why: &StopReason, now: BootTime, out: &mut Vec<Effect>) {
        let lost = self.hold.as_ref().is_none_or(|h| h.lost);
        if let Some(stop) = self.stop.as_mut() {
            if why.is_loss() && !stop.why.is_loss() {
                stop.why = why.clone();
            }
            if lost {
                stop.kill_at = now;
            }
        }
        self.kill_if_due(now, out);
    }

    fn kill_if_due(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        let end = self.stop_at().map(|at| at.plus(self.plan.timing.grace));
        let Some(stop) = self.stop.as_mut() else { return };
        let due = stop.kill_at.min(end.unwrap_or(stop.kill_at));
        if now < due && stop.killed.is_none() {
            return;
        }
        if stop.killed.is_some() && now < stop.kill_at {
            return;
        }
        out.push(Effect::Kill);
        let first = *stop.killed.get_or_insert(now);
        stop.kill_at = now.plus((now.since(first) / 2).clamp(KILL_AGAIN, KILL_AGAIN_LAST));
        if !stop.unconfirmed && now.since(first) >= UNCONFIRMED_AFTER {
            stop.unconfirmed = true;
            out.push(Effect::Tell(Event::StopUnconfirmed));
        }
    }

    pub(super) fn on_exit(&mut self, status: i32, tree_empty: bool, now: BootTime, out: &mut Vec<Effect>) {
        let Job::Running { .. } = self.job else { return };
        self.job = Job::Exited { status };
        // The news may come in either order; an empty tree stays empty.
        self.tree_empty |= tree_empty;
        if self.tree_empty {
            return self.begin_release(now, out);
        }
        if matches!(self.phase, Phase::Running | Phase::Napping) {
            out.push(Effect::Tell(Event::Survivors));
            self.stop_job(StopReason::Survivors, now, out);
        }
        self.begin_release(now, out);
    }

    pub(super) fn on_tree_empty(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        self.tree_empty = true;
        if let (Job::Exited { .. }, Phase::Running | Phase::Napping | Phase::Stopping) =
            (self.job, self.phase)
        {
            self.begin_release(now, out);
        }
    }

    pub(super) fn on_signal(&mut self, signal: Signal, now: BootTime, out: &mut Vec<Effect>) {
        let ends = signal.ends();
        match self.phase {
            Phase::New | Phase::Looking | Phase::Probing if ends => {
                self.done(interrupted(signal, self.claim_open), out);
            }
            Phase::Sealing if ends && self.start_renewed => {
                self.release_unstarted(interrupted(signal, false), now, out);
            }
            // A claim or a seal is under way: if it is soon known to be ours the lease is given back.
            Phase::Taking | Phase::Sealing if ends => self.interrupted = Some(signal),
            Phase::Running | Phase::Napping | Phase::Stopping => {
                if signal == Signal::Int {
                    self.interrupts += 1;
                }
                if self.interrupts >= 2 {
                    return self.insist(now, out);
                }
                out.push(Effect::Forward(signal));
            }
            _ => {}
        }
    }

    /// A second Ctrl-C.
    fn insist(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        if self.phase != Phase::Stopping {
            self.stop_job(StopReason::Interrupted, now, out);
        }
        if let Some(stop) = self.stop.as_mut().filter(|s| s.killed.is_none()) {
            stop.kill_at = now;
        }
        self.kill_if_due(now, out);
    }

    pub(super) fn next_stop_deadline(&self) -> Option<BootTime> {
        match self.phase {
            Phase::Sealing => self.stop_at(),
            Phase::Running => [self.stop_at(), self.max_run_at()].into_iter().flatten().min(),
            Phase::Napping => self.nap_until,
            Phase::Stopping => {
                let stop = self.stop.as_ref()?;
                let end = self.stop_at().map(|at| at.plus(self.plan.timing.grace));
                let first = stop.killed.is_none();
                let hard = end.filter(|_| first).unwrap_or(stop.kill_at);
                Some(stop.kill_at.min(hard))
            }
            _ => None,
        }
    }
}
