//! The end of a session: the end of its item is recorded, then the lease is given back.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use super::hold::{Held, Part};
use super::{
    Distance, Event, JobExit, LogPlan, NotStarted, Outcome, Release, Request, Session, Stage, Step,
    StopReason,
};
use crate::ledger::{Ending, ItemRecorded, ItemState, classify};
use crate::name::Name;
use crate::record::LeaseRecord;
use crate::rules::{ReadBack, Rules};
use crate::run_log::{LogEvent, LogId, LogRecord};
use crate::store::{Cas, Failure, Version};
use crate::time::{BootTime, utc};

/// A release is sent at most this often. After that the lease is left to expire.
const RELEASE_TRIES: u32 = 3;
/// How long a store on this machine is asked to record an end: it answers soon, or not at all.
const NEAR_PATIENCE: Duration = Duration::from_secs(3);
/// The same for a store behind a network, regardless of the TTL.
const FAR_PATIENCE: Duration = Duration::from_secs(60);
/// After that time, up to this many calls that hang are waited for.
const HANGING_CALLS: u32 = 4;

/// How the hold ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeftHold {
    how: How,
    /// It ended before D, so the job was never without its lease.
    in_time: bool,
    /// The record of the run log about it, until it is written.
    log: Option<Box<LogRecord>>,
}

#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum How {
    /// No job was started.
    Unstarted(Outcome),
    /// The job ended. `stopped`: why we ended it, if we did.
    Ended { exit: JobExit, state: ItemState, stopped: Option<StopReason> },
}

/// Giving the lease back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Releasing {
    tries: u32,
    /// A release was sent and not answered: it may have landed.
    open: bool,
}

impl LeftHold {
    pub(super) fn stopped(&self) -> Option<&StopReason> {
        match &self.how {
            How::Ended { stopped, .. } => stopped.as_ref(),
            How::Unstarted(_) => None,
        }
    }
}

impl<R: Rules> Session<R> {
    /// No job was started, and no item was marked as started. `skipped`: the reason, if the item is the
    /// reason.
    pub(super) fn leave_unstarted(
        &mut self,
        held: Held,
        outcome: Outcome,
        skipped: Option<&'static str>,
        step: &mut Step,
    ) {
        let log = self.unstarted(&held, &outcome, skipped, step);
        let left = self.left(&held, How::Unstarted(outcome), log, step);
        self.release(held.recording(left, step.now), step);
    }

    /// The record about a hold without a job.
    fn unstarted(
        &self,
        held: &Held,
        outcome: &Outcome,
        skipped: Option<&'static str>,
        step: &Step,
    ) -> Option<Box<LogRecord>> {
        let (event, reason) = match (outcome, skipped) {
            (Outcome::NotStarted(NotStarted::Seal { .. }), _) => (LogEvent::Unsealed, None),
            (Outcome::Lost { why, .. }, _) => (LogEvent::Lost, Some(why.word())),
            (_, Some(word)) => (LogEvent::Skipped, Some(word)),
            _ => return None,
        };
        let log = self.log_record(held, event, step)?;
        Some(Box::new(LogRecord { reason: reason.map(Into::into), ..*log }))
    }

    /// No job was started. The item, if there is one, may be marked as started: it is left to the next run.
    pub(super) fn take_back(&mut self, held: Held, outcome: Outcome, step: &mut Step) {
        let log = self.unstarted(&held, &outcome, None, step);
        let left = self.left(&held, How::Unstarted(outcome), log, step);
        self.record_item(held, left, ItemState::Planned, None, Duration::ZERO, step);
    }

    /// The job has ended, with every process that it started.
    pub(super) fn end_job(&mut self, held: Held, step: &mut Step) {
        let (running, stopped) = match &held.part {
            Part::Running(running) | Part::Napping(running, _) => (running, None),
            Part::Stopping(running, stop) => (running, Some(stop.why.clone())),
            _ => return self.stage = Stage::Holding(held),
        };
        let Some(exit) = running.exited else { return self.stage = Stage::Holding(held) };
        let state = classify(exit, stopped.as_ref(), &running.asked);
        let took = step.now.since(running.since);
        let event = match self.plan.log {
            LogPlan::Release if state != ItemState::Lost => LogEvent::Released,
            _ => LogEvent::of(state),
        };
        let reason = stopped.as_ref().filter(|_| state != ItemState::Ok).map(|why| why.word().into());
        let log = self.log_record(&held, event, step).map(|log| {
            let exit = (event != LogEvent::Released).then(|| exit.status());
            Box::new(LogRecord { reason, exit, took: Some(took), ..*log })
        });
        let left = self.left(&held, How::Ended { exit, state, stopped }, log, step);
        match exit {
            // The item is left as if no run had tried it.
            JobExit::TooLate(_) => {
                self.record_item(held, left, ItemState::Planned, None, Duration::ZERO, step)
            }
            _ => self.record_item(held, left, state, Some(exit.status()), took, step),
        }
    }

    fn left(&self, held: &Held, how: How, log: Option<Box<LogRecord>>, step: &Step) -> LeftHold {
        LeftHold { how, in_time: step.now < self.stop_time(held), log }
    }

    /// A record of the run log about this hold; none if the plan wants none.
    pub(super) fn log_record(&self, held: &Held, event: LogEvent, step: &Step) -> Option<Box<LogRecord>> {
        let item = match &self.plan.log {
            LogPlan::Nothing => return None,
            LogPlan::Job(item) => item.clone(),
            LogPlan::Release => None,
        };
        let holder = held.record.holder.clone();
        let job = Name::new(&holder.job).ok()?;
        let record = LogRecord::new(step.wall, event, job, LogId::of(self.plan.grant.0), holder);
        let (lease, token) = (Some(held.record.lease.clone()), Some(held.record.token));
        Some(Box::new(LogRecord { lease, token, item, ..record }))
    }

    /// Has the end of the item recorded, if there is one.
    fn record_item(
        &mut self,
        held: Held,
        left: LeftHold,
        state: ItemState,
        exit: Option<i32>,
        took: Duration,
        step: &mut Step,
    ) {
        let Some(reach) = self.plan.item else {
            return self.release(held.recording(left, step.now), step);
        };
        let until = self.record_until(&held, reach, step.now);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let ending = Ending { exit, took_ms, at: utc(step.wall), reason: None, said: String::new() };
        step.store(Request::RecordItem { state, ending, until });
        let give_up_at = until.plus(self.plan.timing.timeout * HANGING_CALLS);
        self.stage = Stage::Holding(held.recording(left, give_up_at));
    }

    /// How long a store that does not answer is asked to record the end. The lease is given back after that,
    /// so this ends while the lease is still ours.
    fn record_until(&self, held: &Held, reach: Distance, now: BootTime) -> BootTime {
        match reach {
            Distance::Near => now.plus(NEAR_PATIENCE),
            Distance::Far => {
                let still_ours = self.stop_time(held).min(now.plus(FAR_PATIENCE));
                still_ours.max(now.plus(self.plan.timing.timeout))
            }
        }
    }

    pub(super) fn on_item_recorded(&mut self, recorded: Box<ItemRecorded>, step: &mut Step) {
        match self.leave_stage() {
            Stage::Holding(held) => {
                step.tell(Event::ItemRecorded(recorded));
                match held.part {
                    Part::Recording(..) => self.release(held, step),
                    _ => self.stage = Stage::Holding(held),
                }
            }
            stage => self.stage = stage,
        }
    }

    /// Nothing is left to record: give the lease back.
    pub(super) fn release(&mut self, mut held: Held, step: &mut Step) {
        let Part::Recording(left, _) = held.part else { return };
        held.part = Part::Releasing(left, Releasing::default());
        if held.is_lost() {
            return self.finish(held, Release::AlreadyGone, step);
        }
        // A renewal is under way: wait for its answer, so that one write follows the other.
        if self.pending.is_some() {
            return self.stage = Stage::Holding(held);
        }
        self.send_release(held, step);
    }

    fn send_release(&mut self, mut held: Held, step: &mut Step) {
        let Part::Releasing(left, releasing) = &mut held.part else { return };
        releasing.tries += 1;
        if releasing.tries > RELEASE_TRIES {
            return self.finish(held, Release::Unconfirmed, step);
        }
        if held.doubt {
            self.stage = Stage::Holding(held);
            return self.ask_read(step);
        }
        let log = left.log.clone();
        let write = self.fresh_write();
        let freed = self.rules.release(&held.record, write);
        let version = held.version.clone();
        self.stage = Stage::Holding(held);
        self.ask_write(freed, Some(version), log, step);
    }

    pub(super) fn on_release_written(
        &mut self,
        mut held: Held,
        record: LeaseRecord,
        result: Cas,
        step: &mut Step,
    ) {
        let freed = record.hold.is_none();
        match result {
            Cas::Written { .. } if freed => {
                if let Part::Releasing(left, _) = &mut held.part {
                    left.log = None; // it was written with the release
                }
                self.finish(held, Release::Done, step);
            }
            // The answer to a renewal that was under way when the tree became empty.
            Cas::Written { version, .. } => {
                self.adopt(&mut held, record, version);
                self.send_release(held, step);
            }
            doubtful @ (Cas::Conflict | Cas::Unknown(_)) => {
                if let Part::Releasing(_, releasing) = &mut held.part {
                    releasing.open |= freed && matches!(doubtful, Cas::Unknown(_));
                }
                held.doubt = true;
                self.stage = Stage::Holding(held);
                self.ask_read(step);
            }
        }
    }

    pub(super) fn on_release_read_back(
        &mut self,
        mut held: Held,
        found: Result<Option<(LeaseRecord, Version)>, Failure>,
        step: &mut Step,
    ) {
        let (found, version) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return self.finish(held, Release::AlreadyGone, step),
            // The store does not answer and the job has ended: the lease may expire.
            Err(_) => return self.finish(held, Release::Unconfirmed, step),
        };
        if found.hold.is_none() && self.attempts.iter().any(|a| a.write == found.write) {
            return self.finish(held, Release::Done, step);
        }
        let late = step.now >= self.stop_time(&held);
        let (open, in_time) = match &held.part {
            Part::Releasing(left, releasing) => (releasing.open, left.in_time),
            _ => (false, false),
        };
        match self.rules.settle(&found, self.plan.grant, &self.attempts) {
            // Our release may have landed, and another run may have taken the lease since. Before D no other
            // run could take it without our release. After D it may have expired: no loss to a job that ended
            // before D.
            ReadBack::NotOurs if found.token > held.record.token && (open || late && in_time) => {
                let release = if late { Release::Unconfirmed } else { Release::Done };
                self.finish(held, release, step);
            }
            ReadBack::NotOurs => self.finish(held, Release::AlreadyGone, step),
            ReadBack::Ours { .. } => {
                self.adopt(&mut held, found, version);
                self.send_release(held, step);
            }
        }
    }

    fn finish(&mut self, held: Held, release: Release, step: &mut Step) {
        let Part::Releasing(left, _) = held.part else { return };
        // The release did not write it, or its answer was lost.
        if let Some(log) = left.log {
            let gone = release == Release::AlreadyGone && log.event != LogEvent::Unsealed;
            let (event, reason) = match log.event {
                LogEvent::Lost => (LogEvent::Lost, log.reason),
                _ if gone => (LogEvent::Lost, Some(StopReason::Gone.word().into())),
                event => (event, log.reason),
            };
            step.store(Request::Log(Box::new(LogRecord { event, reason, ..*log })));
        }
        let outcome = match left.how {
            How::Unstarted(Outcome::NotStarted(NotStarted::Seal { why, .. })) => {
                Outcome::NotStarted(NotStarted::Seal { why, release })
            }
            How::Unstarted(outcome) => outcome,
            How::Ended { exit, stopped: Some(why), .. } if why.is_loss() => {
                Outcome::Lost { why, status: Some(exit.status()) }
            }
            // The lease was lost and no call had shown it before: the job was unprotected at the end.
            How::Ended { exit, .. } if release == Release::AlreadyGone => {
                Outcome::Lost { why: StopReason::Gone, status: Some(exit.status()) }
            }
            How::Ended { exit, state, stopped } => {
                Outcome::Finished { status: exit.status(), state, stopped, release }
            }
        };
        self.done(outcome, step);
    }
}

impl Held {
    fn recording(self, left: LeftHold, give_up_at: BootTime) -> Self {
        Self { part: Part::Recording(left, give_up_at), ..self }
    }
}
