//! Keeping a lease: sealing, opening the item, starting the job, renewals and doubt.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use super::acquire::{backoff, interrupted};
use super::leave::How;
use super::stop::{OrderedStop, StartedJob};
use super::{
    Effect, Event, NotStarted, Outcome, Phase, Reading, Request, Session, Signal, Stage, Step, StopReason,
};
use crate::ledger::{ItemOpened, Opened};
use crate::record::LeaseRecord;
use crate::rules::{self, ReadBack, Rules};
use crate::store::{Cas, Failure, FailureKind, Version};
use crate::time::BootTime;

/// A lease that this session got.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub record: LeaseRecord,
    pub version: Version,
    /// The lease lasts its TTL from this instant, or longer.
    pub confirmed: BootTime,
    /// A write may have landed or not: read back before writing again.
    pub doubt: bool,
    /// Another run has the lease, or its record is gone: nothing more may be written.
    pub lost: bool,
}

/// A lease that is kept: for its job, or until that has started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub hold: Hold,
    pub renewal: Renewal,
    /// The store's clock at the last confirmed write, if it has one, and when that write was sent.
    pub store_clock: Option<(Duration, BootTime)>,
    pub part: Part,
}

/// Whether the lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Renewal {
    /// The next store call is due at `at`, after `retries` calls that did not renew.
    Due { at: BootTime, retries: u32 },
    /// No more: the deadline has passed, or the lease is revoked or lost.
    Over,
}

/// The phase under the lease, with its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Targets are being sealed. A signal that comes meanwhile takes effect afterwards.
    Sealing { interrupted: Option<Signal> },
    /// The item is being opened. A signal that comes meanwhile takes effect afterwards.
    Opening { interrupted: Option<Signal> },
    /// All is ready, but too little time is left: the job starts with the next renewal.
    Starting,
    /// The job runs.
    Running(StartedJob),
    /// The job is frozen, at most until then, while we ask whether the lease is still ours.
    Napping(StartedJob, BootTime),
    /// The job is being ended.
    Stopping(StartedJob, OrderedStop),
}

impl Part {
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Sealing { .. } => Phase::Sealing,
            Self::Opening { .. } => Phase::Opening,
            Self::Starting => Phase::Starting,
            Self::Running(_) => Phase::Running,
            Self::Napping(..) => Phase::Napping,
            Self::Stopping(..) => Phase::Stopping,
        }
    }

    /// Why the job is being ended.
    pub(super) fn stopped(&self) -> Option<&StopReason> {
        match self {
            Self::Stopping(_, stop) => Some(&stop.why),
            _ => None,
        }
    }
}

impl<R: Rules> Session<R> {
    pub(super) fn on_sealed(&mut self, result: Result<(), String>, step: &mut Step) {
        let (held, signal) = match self.leave_stage() {
            Stage::Holding(held @ Held { part: Part::Sealing { interrupted }, .. }) => (held, interrupted),
            stage => return self.stage = stage,
        };
        match (result, signal) {
            (_, Some(signal)) => {
                let how = How::Unstarted(interrupted(signal, false));
                self.leave_unstarted(held.hold, how, None, step);
            }
            (Err(why), None) => self.leave_unstarted(held.hold, How::Unsealed(why), None, step),
            (Ok(()), None) => self.open_item(held, step),
        }
    }

    /// All targets are sealed. An item is marked as started in its record before the command is executed.
    pub(super) fn open_item(&mut self, held: Held, step: &mut Step) {
        if self.plan.item.is_none() {
            return self.start_job(held, step);
        }
        step.store(Request::OpenItem(self.granted(&held.hold.record)));
        self.stage = Stage::Holding(Held { part: Part::Opening { interrupted: None }, ..held });
    }

    pub(super) fn on_item_opened(&mut self, opened: Box<ItemOpened>, step: &mut Step) {
        let late = self.hold().is_some();
        let (held, signal) = match self.leave_stage() {
            Stage::Holding(held @ Held { part: Part::Opening { interrupted }, .. }) => (held, interrupted),
            stage => {
                // This comes too late to matter, but is reported.
                if late {
                    step.tell(Event::ItemOpened(opened));
                }
                return self.stage = stage;
            }
        };
        let (ours, to_start) = (opened.is_ours(), opened.is_to_start());
        let skipped = opened.held_off().and_then(Opened::skip_word);
        step.tell(Event::ItemOpened(opened));
        match signal {
            None if to_start => self.start_job(held, step),
            signal => {
                let unstarted =
                    signal.map_or(Outcome::NotStarted(NotStarted::Item), |s| interrupted(s, false));
                match ours {
                    true => self.take_back(held.hold, unstarted, step),
                    false => self.leave_unstarted(held.hold, How::Unstarted(unstarted), skipped, step),
                }
            }
        }
    }

    /// Checks the time before the job is started: a grant can arrive late. If so little time is left that one
    /// lost answer would end the job, it starts after a renewal.
    fn start_job(&mut self, mut held: Held, step: &mut Step) {
        let by = self.stop_time(&held.hold);
        if step.now >= by {
            let late = Outcome::Lost { why: StopReason::Deadline, status: None };
            return self.take_back(held.hold, late, step);
        }
        if by.since(step.now) < self.plan.timing.least_to_start() {
            held.part = Part::Starting;
            held.renew_now(step);
        } else {
            held.part = Part::Running(StartedJob::new(step.now));
            step.push(Effect::Start { granted: self.granted(&held.hold.record), by });
        }
        self.stage = Stage::Holding(held);
    }

    pub(super) fn renew_if_due(&mut self, mut held: Held, step: &mut Step) {
        if !matches!(held.renewal, Renewal::Due { at, .. } if step.now >= at) {
            return self.stage = Stage::Holding(held);
        }
        if held.hold.doubt {
            self.ask_read(step);
        } else if !matches!(held.part, Part::Napping(..)) && step.now >= self.stop_time(&held.hold) {
            // Never past the deadline, except for a frozen job after a nap.
            held.renewal = Renewal::Over;
        } else {
            let write = self.fresh_write();
            let renewed = self.rules.renew(&held.hold.record, write);
            self.ask_write(renewed, Some(held.hold.version.clone()), None, None, step);
        }
        self.stage = Stage::Holding(held);
    }

    /// A renewal was answered.
    pub(super) fn on_written(&mut self, mut held: Held, record: LeaseRecord, result: Cas, step: &mut Step) {
        match result {
            Cas::Written { version, store_time } => {
                let sent = self.attempts.iter().find(|a| a.write == record.write);
                let from = sent.map(|a| self.rules.counts_from(a));
                self.adopt(&mut held.hold, record, version);
                return self.confirm(held, from, store_time, step);
            }
            Cas::Conflict => {}
            Cas::Unknown(failure) => self.tell_failed(&held.hold, &failure, step),
        }
        held.hold.doubt = true;
        self.stage = Stage::Holding(held);
        self.ask_read(step);
    }

    pub(super) fn adopt(&mut self, hold: &mut Hold, record: LeaseRecord, version: Version) {
        rules::prune(&mut self.attempts, self.at, Some(&version), Some(record.write));
        hold.record = record;
        hold.version = version;
        hold.doubt = false;
    }

    /// The lease is still ours: moves the deadline, never back, and checks the store's clock against ours.
    fn confirm(
        &mut self,
        mut held: Held,
        from: Option<BootTime>,
        store_time: Option<Duration>,
        step: &mut Step,
    ) {
        let timing = self.plan.timing;
        let fresh = from.is_some_and(|from| from > held.hold.confirmed);
        if let (Some(from), true) = (from, fresh) {
            held.hold.confirmed = from;
            held.renewal = Renewal::Due { at: from.plus(timing.heartbeat), retries: 0 };
            step.tell(Event::Renewed);
        } else if from.is_none() {
            // Another process wrote under our grant: renew on top of it at once.
            held.renew_now(step);
        } else {
            // Still ours, but our write has not landed. It is sent again after a pause: a store may be readable
            // but not writable.
            self.retry(&mut held, 0, step);
        }
        let before = held.store_clock;
        if let (Some(store), Some(from)) = (store_time, from) {
            held.store_clock = Some((store, from));
            if let Some((store_before, from_before)) = before
                && timing.store_ran_ahead(store.saturating_sub(store_before), step.now.since(from_before))
            {
                return self.stop_job(held, StopReason::StoreClock, step);
            }
        }
        match held.part {
            Part::Napping(running, _) if step.now < timing.stop_at(held.hold.confirmed) => {
                held.part = Part::Running(running);
                step.push(Effect::Thaw);
                step.tell(Event::Resumed);
            }
            Part::Starting if fresh => return self.start_job(held, step),
            part => held.part = part,
        }
        self.stage = Stage::Holding(held);
    }

    /// Delays the next call: longer with each retry, and by `more` extra steps.
    fn retry(&mut self, held: &mut Held, more: u32, step: &Step) {
        if let Renewal::Due { at, retries } = &mut held.renewal {
            let pause = backoff(*retries + more, self.ids.fresh()).min(self.plan.timing.heartbeat / 2);
            (*at, *retries) = (step.now.plus(pause), *retries + 1);
        }
    }

    fn tell_failed(&self, hold: &Hold, failure: &Failure, step: &mut Step) {
        let left = self.stop_time(hold).since(step.now);
        step.tell(Event::RenewFailed { message: failure.message.clone(), left });
    }

    /// The lease was read after a renewal that was not confirmed.
    pub(super) fn on_read_back(&mut self, mut held: Held, result: Result<Reading, Failure>, step: &mut Step) {
        let (found, version) = match self.decode_reading(result) {
            Ok(Some(found)) => found,
            Ok(None) => return self.lose(held, StopReason::Gone, step),
            Err(failure) => {
                self.tell_failed(&held.hold, &failure, step);
                self.retry(&mut held, 2, step);
                return self.stage = Stage::Holding(held);
            }
        };
        match self.rules.settle(&found, self.plan.grant, &self.attempts) {
            ReadBack::NotOurs if found.hold.is_some() => {
                let (token, holder) = (found.token, found.holder);
                self.lose(held, StopReason::Taken { token, holder }, step);
            }
            ReadBack::NotOurs => self.lose(held, StopReason::Gone, step),
            ReadBack::Ours { from, revoked } => {
                self.adopt(&mut held.hold, found, version);
                if revoked {
                    // The deadline stays: the job is stopped now.
                    held.renewal = Renewal::Over;
                    return self.stop_job(held, StopReason::Revoked, step);
                }
                self.confirm(held, from, None, step);
            }
        }
    }

    /// Our lease's record, if there is one. A record that we cannot decode is a failure that may pass; it
    /// does not prove that the lease is lost.
    pub(super) fn decode_reading(
        &self,
        result: Result<Reading, Failure>,
    ) -> Result<Option<(LeaseRecord, Version)>, Failure> {
        let Some(stored) = result?.stored else { return Ok(None) };
        let record = LeaseRecord::decode(&self.plan.leases[self.at].lease, &stored.body)
            .map_err(|bad| Failure::new(FailureKind::Unusable, alloc::format!("{bad}")))?;
        Ok(Some((record, stored.version)))
    }

    fn lose(&mut self, mut held: Held, why: StopReason, step: &mut Step) {
        held.hold.lost = true;
        self.stop_job(Held { renewal: Renewal::Over, ..held }, why, step);
    }

    pub(super) fn next_hold_deadline(&self, held: &Held) -> Option<BootTime> {
        let renewal = match held.renewal {
            Renewal::Due { at, .. } if self.pending.is_none() => Some(at),
            _ => None,
        };
        let stop = self.next_stop_deadline(held);
        Some(renewal.map_or(stop, |at| at.min(stop)))
    }
}

impl Held {
    pub(super) fn renew_now(&mut self, step: &Step) {
        if let Renewal::Due { at, .. } = &mut self.renewal {
            *at = step.now;
        }
    }
}
