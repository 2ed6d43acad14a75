//! The end of a session: the end of its item is recorded, then the lease is given back.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use super::hold::Hold;
use super::stop::StartedJob;
use super::{
    Distance, Event, JobExit, LogPlan, NotStarted, Outcome, Reading, Release, Request, Session, Stage, Step,
    StopReason,
};
use crate::ledger::{Ending, ItemRecorded, ItemState, classify};
use crate::name::Name;
use crate::record::LeaseRecord;
use crate::rules::{ReadBack, Rules};
use crate::run_log::{LogEvent, LogId, LogRecord};
use crate::store::{Cas, Failure};
use crate::time::{BootTime, utc};

/// A release is sent at most this often. After that the lease is left to expire.
const RELEASE_TRIES: u32 = 3;
/// How long a store on this machine is asked to record an end: it answers soon, or not at all.
pub const NEAR_PATIENCE: Duration = Duration::from_secs(3);
/// The same for a store behind a network, regardless of the TTL.
const FAR_PATIENCE: Duration = Duration::from_secs(60);
/// After that time, up to this many calls that hang are waited for.
const HANGING_CALLS: u32 = 4;

/// A hold that has ended, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeftHold {
    pub hold: Hold,
    how: How,
    /// It ended before D, so the job was never without its lease.
    in_time: bool,
    /// The record of the run log about it, until it is written.
    log: Option<Box<LogRecord>>,
}

#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum How {
    /// No job was started.
    Unstarted(Outcome),
    /// No job was started, because a target could not be sealed: why.
    Unsealed(String),
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
            How::Unstarted(_) | How::Unsealed(_) => None,
        }
    }
}

impl<R: Rules> Session<R> {
    /// No job was started, and no item was marked as started. `skipped`: the reason, if the item is the
    /// reason.
    pub(super) fn leave_unstarted(
        &mut self,
        hold: Hold,
        how: How,
        skipped: Option<&'static str>,
        step: &mut Step,
    ) {
        let log = self.unstarted(&hold, &how, skipped, step);
        let left = self.left(hold, how, log, step);
        self.release(left, step);
    }

    /// The record about a hold without a job.
    fn unstarted(
        &self,
        hold: &Hold,
        how: &How,
        skipped: Option<&'static str>,
        step: &Step,
    ) -> Option<Box<LogRecord>> {
        let (event, reason) = match (how, skipped) {
            (How::Unsealed(_), _) => (LogEvent::Unsealed, None),
            (How::Unstarted(Outcome::Lost { why, .. }), _) => (LogEvent::Lost, Some(why.word())),
            (_, Some(word)) => (LogEvent::Skipped, Some(word)),
            _ => return None,
        };
        let log = self.log_record(hold, event, step)?;
        Some(Box::new(LogRecord { reason: reason.map(Into::into), ..*log }))
    }

    /// No job was started. The item, if there is one, may be marked as started: it is left to the next run.
    pub(super) fn take_back(&mut self, hold: Hold, outcome: Outcome, step: &mut Step) {
        let how = How::Unstarted(outcome);
        let log = self.unstarted(&hold, &how, None, step);
        let left = self.left(hold, how, log, step);
        self.record_item(left, ItemState::Planned, None, Duration::ZERO, step);
    }

    /// The job has ended, with every process that it started. `stopped`: why we ended it, if we did.
    pub(super) fn end_job(
        &mut self,
        hold: Hold,
        job: &StartedJob,
        exit: JobExit,
        stopped: Option<StopReason>,
        step: &mut Step,
    ) {
        let state = classify(exit, stopped.as_ref(), &job.asked);
        let took = step.now.since(job.since);
        let event = match self.plan.log {
            LogPlan::Release if state != ItemState::Lost => LogEvent::Released,
            _ => LogEvent::of(state),
        };
        let reason = stopped.as_ref().filter(|_| state != ItemState::Ok).map(|why| why.word().into());
        let log = self.log_record(&hold, event, step).map(|log| {
            let exit = (event != LogEvent::Released).then(|| exit.status());
            Box::new(LogRecord { reason, exit, took: Some(took), ..*log })
        });
        let left = self.left(hold, How::Ended { exit, state, stopped }, log, step);
        match exit {
            // The item is left as if no run had tried it.
            JobExit::TooLate(_) => self.record_item(left, ItemState::Planned, None, Duration::ZERO, step),
            _ => self.record_item(left, state, Some(exit.status()), took, step),
        }
    }

    fn left(&self, hold: Hold, how: How, log: Option<Box<LogRecord>>, step: &Step) -> LeftHold {
        let in_time = step.now < self.stop_time(&hold);
        LeftHold { hold, how, in_time, log }
    }

    /// A record of the run log about this hold; none if the plan wants none.
    pub(super) fn log_record(&self, hold: &Hold, event: LogEvent, step: &Step) -> Option<Box<LogRecord>> {
        let item = match &self.plan.log {
            LogPlan::Nothing => return None,
            LogPlan::Job(item) => item.clone(),
            LogPlan::Release => None,
        };
        let holder = hold.record.holder.clone();
        let job = Name::new(&holder.job).ok()?;
        let record = LogRecord::new(step.wall, event, job, LogId::of(self.plan.grant.0), holder);
        let (lease, token) = (Some(hold.record.lease.clone()), Some(hold.record.token));
        Some(Box::new(LogRecord { lease, token, item, ..record }))
    }

    /// Has the end of the item recorded, if there is one.
    fn record_item(
        &mut self,
        left: LeftHold,
        state: ItemState,
        exit: Option<i32>,
        took: Duration,
        step: &mut Step,
    ) {
        let Some(reach) = self.plan.item else {
            return self.release(left, step);
        };
        let until = self.record_until(&left.hold, reach, step.now);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let ending = Ending { exit, took_ms, at: utc(step.wall), reason: None, said: String::new() };
        step.store(Request::RecordItem { state, ending, until });
        let give_up_at = until.plus(self.plan.timing.timeout * HANGING_CALLS);
        self.stage = Stage::Recording(left, give_up_at);
    }

    /// How long a store that does not answer is asked to record the end. The lease is given back after that,
    /// so this ends while the lease is still ours.
    fn record_until(&self, hold: &Hold, reach: Distance, now: BootTime) -> BootTime {
        match reach {
            Distance::Near => now.plus(NEAR_PATIENCE),
            Distance::Far => {
                let still_ours = self.stop_time(hold).min(now.plus(FAR_PATIENCE));
                still_ours.max(now.plus(self.plan.timing.timeout))
            }
        }
    }

    pub(super) fn on_item_recorded(&mut self, recorded: Box<ItemRecorded>, step: &mut Step) {
        if self.hold().is_some() {
            step.tell(Event::ItemRecorded(recorded));
        }
        match self.leave_stage() {
            Stage::Recording(left, _) => self.release(left, step),
            stage => self.stage = stage,
        }
    }

    /// Nothing is left to record: give the lease back.
    pub(super) fn release(&mut self, left: LeftHold, step: &mut Step) {
        if left.hold.lost {
            return self.finish(left, Release::AlreadyGone, step);
        }
        // A renewal is under way: wait for its answer, so that one write follows the other.
        if self.pending.is_some() {
            return self.stage = Stage::Releasing(left, Releasing::default());
        }
        self.send_release(left, Releasing::default(), step);
    }

    fn send_release(&mut self, left: LeftHold, mut releasing: Releasing, step: &mut Step) {
        releasing.tries += 1;
        if releasing.tries > RELEASE_TRIES {
            return self.finish(left, Release::Unconfirmed, step);
        }
        if left.hold.doubt {
            self.ask_read(step);
        } else {
            let (log, version) = (left.log.clone(), left.hold.version.clone());
            let write = self.fresh_write();
            let freed = self.rules.release(&left.hold.record, write);
            self.ask_write(freed, Some(version), None, log, step);
        }
        self.stage = Stage::Releasing(left, releasing);
    }

    pub(super) fn on_release_written(
        &mut self,
        mut left: LeftHold,
        mut releasing: Releasing,
        record: LeaseRecord,
        result: Cas,
        step: &mut Step,
    ) {
        let freed = record.hold.is_none();
        match result {
            Cas::Written { .. } if freed => {
                left.log = None; // it was written with the release
                self.finish(left, Release::Done, step);
            }
            // The answer to a renewal that was under way when the tree became empty.
            Cas::Written { version, .. } => {
                self.adopt(&mut left.hold, record, version);
                self.send_release(left, releasing, step);
            }
            doubtful @ (Cas::Conflict | Cas::Unknown(_)) => {
                releasing.open |= freed && matches!(doubtful, Cas::Unknown(_));
                left.hold.doubt = true;
                self.stage = Stage::Releasing(left, releasing);
                self.ask_read(step);
            }
        }
    }

    pub(super) fn on_release_read_back(
        &mut self,
        mut left: LeftHold,
        releasing: Releasing,
        result: Result<Reading, Failure>,
        step: &mut Step,
    ) {
        let (found, version) = match self.decode_reading(result) {
            Ok(Some(found)) => found,
            Ok(None) => return self.finish(left, Release::AlreadyGone, step),
            // The store does not answer and the job has ended: the lease may expire.
            Err(_) => return self.finish(left, Release::Unconfirmed, step),
        };
        if found.hold.is_none() && self.attempts.iter().any(|a| a.write == found.write) {
            return self.finish(left, Release::Done, step);
        }
        let late = step.now >= self.stop_time(&left.hold);
        let may_be_given_back = releasing.open || late && left.in_time;
        match self.rules.settle(&found, self.plan.grant, &self.attempts) {
            // Our release may have landed, and another run may have taken the lease since. Before D no other
            // run could take it without our release. After D it may have expired: no loss to a job that ended
            // before D.
            ReadBack::NotOurs if found.token > left.hold.record.token && may_be_given_back => {
                let release = if late { Release::Unconfirmed } else { Release::Done };
                self.finish(left, release, step);
            }
            ReadBack::NotOurs => self.finish(left, Release::AlreadyGone, step),
            ReadBack::Ours { .. } => {
                self.adopt(&mut left.hold, found, version);
                self.send_release(left, releasing, step);
            }
        }
    }

    fn finish(&mut self, left: LeftHold, release: Release, step: &mut Step) {
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
            How::Unstarted(outcome) => outcome,
            How::Unsealed(why) => Outcome::NotStarted(NotStarted::Seal { why, release }),
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
