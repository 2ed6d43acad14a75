//! Keeping a lease: renewals, doubt, naps and giving it back.

use alloc::vec::Vec;
use core::time::Duration;

use super::acquire::{backoff, interrupted};
use super::{
    Effect, Event, Granted, Holding, Job, NotStarted, Outcome, Phase, Reading, Release, Session, StopReason,
    What,
};
use crate::past;
use crate::record::LeaseRecord;
use crate::rules::{self, Rules, Settled};
use crate::store::{Cas, Failure, Version};
use crate::time::BootTime;

/// How often a release is sent, at most, before it is left to expiry.
const RELEASE_TRIES: u32 = 3;

impl<R: Rules> Session<R> {
    pub(super) fn on_sealed(
        &mut self,
        result: Result<(), alloc::string::String>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let Some(hold) = self.hold.as_ref().filter(|_| self.phase == Phase::Sealing) else { return };
        let granted = Granted {
            lease: hold.record.lease.clone(),
            epoch: hold.record.epoch,
            token: hold.record.token,
            grant: self.plan.grant,
            ttl: self.plan.timing.ttl,
        };
        match (result, self.interrupted) {
            (_, Some(signal)) => {
                self.release_unstarted(interrupted(signal, false), now, out);
            }
            (Err(why), None) => {
                // What the release comes to is filled in when it is known.
                let seal = NotStarted::Seal { why, release: Release::Unconfirmed };
                self.release_unstarted(Outcome::NotStarted(seal), now, out);
            }
            (Ok(()), None) => self.start_job(granted, now, out),
        }
    }

    /// The last look at the clock before anything is started: a grant can arrive late. A job that a single
    /// lost answer would end waits for a renewal first.
    pub(super) fn start_job(&mut self, granted: Granted, now: BootTime, out: &mut Vec<Effect>) {
        let Some(at) = self.stop_at().filter(|at| now < *at) else {
            let late = Outcome::Lost { why: StopReason::Deadline, status: None };
            return self.release_unstarted(late, now, out);
        };
        if at.since(now) < self.plan.timing.least_to_start() {
            self.phase = Phase::Sealing;
            self.start_renewed = true;
            if let Some(hold) = self.hold.as_mut() {
                hold.renew_at = now;
            }
            return;
        }
        self.phase = Phase::Running;
        self.job = Job::Running { since: now };
        self.tree_empty = false;
        out.push(Effect::Start(granted));
    }

    pub(super) fn renew_if_due(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        let Some(hold) = self.hold.as_ref() else { return };
        if hold.lost || now < hold.renew_at {
            return;
        }
        if hold.doubt {
            return self.ask_read(What::ReadBack, now, out);
        }
        // Never past the deadline, except for a frozen job after a nap.
        if self.phase != Phase::Napping && self.stop_at().is_none_or(|at| now >= at) {
            return self.renew_no_more();
        }
        let (record, version) = (hold.record.clone(), hold.version.clone());
        let write = self.fresh_write();
        let renewed = self.rules.renew(&record, write);
        self.ask_write(renewed, version, now, out);
    }

    pub(super) fn on_renewed(
        &mut self,
        record: LeaseRecord,
        result: Cas,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let sent = self.attempts.iter().find(|a| a.write == record.write).cloned();
        match result {
            Cas::Written { version, store_time } => {
                let from = sent.map(|a| self.rules.counts_from(&a, now));
                self.adopt(record, Some(version));
                return self.confirm(from, store_time, now, out);
            }
            Cas::Conflict => {}
            Cas::Unknown(failure) => self.tell_failed(&failure, now, out),
        }
        if let Some(hold) = self.hold.as_mut() {
            hold.doubt = true;
        }
        self.ask_read(What::ReadBack, now, out);
    }

    fn renew_no_more(&mut self) {
        if let Some(hold) = self.hold.as_mut() {
            hold.renew_at = BootTime(Duration::MAX);
        }
    }

    fn adopt(&mut self, record: LeaseRecord, version: Option<Version>) {
        rules::prune(&mut self.attempts, self.at, version.as_ref(), Some(record.write));
        if let Some(hold) = self.hold.as_mut() {
            hold.record = record;
            hold.version = version;
            hold.doubt = false;
        }
    }

    /// Moves the deadline, never back; checks the store's clock against ours.
    fn confirm(
        &mut self,
        from: Option<BootTime>,
        store_time: Option<Duration>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let timing = self.plan.timing;
        let Some(hold) = self.hold.as_mut() else { return };
        let fresh = from.is_some_and(|from| from > hold.confirmed);
        if let (Some(from), true) = (from, fresh) {
            hold.confirmed = from;
            hold.renew_at = from.plus(timing.heartbeat);
            self.retries = 0;
            out.push(Effect::Tell(Event::Renewed));
        } else if from.is_none() {
            // Somebody else's write under our grant: ours goes on top of it at once.
            hold.renew_at = now;
        } else {
            // Still ours, but what we sent has not landed: send it again, and not without end in a store
            // that can be read and not written.
            let pause = backoff(self.retries, self.ids.fresh()).min(timing.heartbeat / 2);
            self.retries += 1;
            hold.renew_at = now.plus(pause);
        }
        let before = hold.store_clock;
        if let (Some(store), Some(from)) = (store_time, from) {
            hold.store_clock = Some((store, from));
            if let Some((store_before, from_before)) = before
                && timing.store_ran_ahead(store.saturating_sub(store_before), now.since(from_before))
            {
                return self.stop_job(StopReason::StoreClock, now, out);
            }
        }
        if self.phase == Phase::Napping && self.stop_at().is_some_and(|at| now < at) {
            self.phase = Phase::Running;
            out.push(Effect::Thaw);
            out.push(Effect::Tell(Event::Resumed));
        }
        if fresh && core::mem::take(&mut self.start_renewed) {
            self.on_sealed(Ok(()), now, out);
        }
    }

    fn tell_failed(&mut self, failure: &Failure, now: BootTime, out: &mut Vec<Effect>) {
        let left = self.stop_at().map_or(Duration::ZERO, |at| at.since(now));
        let message = failure.message.clone();
        out.push(Effect::Tell(Event::RenewFailed { message, left }));
    }

    pub(super) fn on_hold_read_back(
        &mut self,
        result: Result<Reading, Failure>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let Some((found, version)) = (match self.decode_reading(result) {
            Ok(found) => found,
            Err(failure) => return self.try_again_later(&failure, now, out),
        }) else {
            return self.lose(StopReason::Gone, now, out);
        };
        match self.rules.settle(&found, self.plan.grant, &self.attempts) {
            Settled::NotOurs => {
                let (token, holder) = (found.token, found.holder.clone());
                let taken = found.hold.is_some();
                let why = if taken { StopReason::Taken { token, holder } } else { StopReason::Gone };
                self.lose(why, now, out);
            }
            Settled::Ours { from, revoked } => {
                self.adopt(found, Some(version));
                if revoked {
                    // The deadline stays where it was: we are leaving.
                    self.renew_no_more();
                    return self.stop_job(StopReason::Revoked, now, out);
                }
                self.confirm(from, None, now, out);
            }
        }
    }

    /// What a read gave: our lease's record if there is one. A record we cannot read is a failure to
    /// be waited out, not proof of loss.
    fn decode_reading(
        &mut self,
        result: Result<Reading, Failure>,
    ) -> Result<Option<(LeaseRecord, Version)>, Failure> {
        let reading = result?;
        if let Some(hold) = self.hold.as_mut() {
            hold.instance = reading.instance;
        }
        let Some(stored) = reading.stored else {
            return Ok(None);
        };
        let lease = &self.plan.leases[self.at].lease;
        let record = LeaseRecord::decode(lease, &stored.body)
            .map_err(|bad| Failure::new(crate::store::FailureKind::Unusable, alloc::format!("{bad}")))?;
        Ok(Some((record, stored.version)))
    }

    fn try_again_later(&mut self, failure: &Failure, now: BootTime, out: &mut Vec<Effect>) {
        self.tell_failed(failure, now, out);
        let pause = backoff(self.retries + 2, self.ids.fresh()).min(self.plan.timing.heartbeat / 2);
        self.retries += 1;
        if let Some(hold) = self.hold.as_mut() {
            hold.renew_at = now.plus(pause);
        }
    }

    fn lose(&mut self, why: StopReason, now: BootTime, out: &mut Vec<Effect>) {
        if let Some(hold) = self.hold.as_mut() {
            hold.lost = true;
        }
        self.stop_job(why, now, out);
    }

    /// Gives the lease back before any job was started, then ends with `outcome`.
    pub(super) fn release_unstarted(&mut self, outcome: Outcome, now: BootTime, out: &mut Vec<Effect>) {
        self.unstarted = Some(outcome);
        self.start_renewed = false;
        self.begin_release(now, out);
    }

    /// The tree is empty (or was never there): hand the lease over early.
    pub(super) fn begin_release(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        if !self.rules.may_release(self.tree_empty) {
            return;
        }
        self.phase = Phase::Releasing;
        self.ended_in_time = self.stop_at().is_some_and(|at| now < at);
        let lost = self.stop.as_ref().is_some_and(|stop| stop.why.is_loss());
        if let Some(end) = self.end.as_mut().filter(|_| lost) {
            end.outcome = past::LOST;
        }
        match &self.hold {
            Some(hold) if hold.lost => self.finish(Release::AlreadyGone, out),
            None => self.finish(Release::AlreadyGone, out),
            // A renewal is still out: its answer comes first, so that one write follows the other.
            Some(_) if self.pending.is_some() => {}
            Some(_) => self.send_release(now, out),
        }
    }

    fn send_release(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        let Some(doubt) = self.hold.as_ref().map(|hold| hold.doubt) else { return };
        self.release_tries += 1;
        if self.release_tries > RELEASE_TRIES {
            return self.finish(Release::Unconfirmed, out);
        }
        if doubt {
            return self.ask_read(What::ReadBack, now, out);
        }
        let write = self.fresh_write();
        let Some(hold) = self.hold.as_ref() else { return };
        let freed = self.rules.release(&hold.record, write);
        let (freed, version) = (past::noted(freed, self.end.as_ref()), hold.version.clone());
        self.ask_write(freed, version, now, out);
    }

    pub(super) fn on_release_written(
        &mut self,
        record: LeaseRecord,
        result: Cas,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let freed = record.hold.is_none();
        match result {
            Cas::Written { .. } if freed => self.finish(Release::Done, out),
            // The answer to a renewal that was still out when the tree became empty.
            Cas::Written { version, .. } => {
                self.adopt(record, Some(version));
                self.send_release(now, out);
            }
            doubtful @ (Cas::Conflict | Cas::Unknown(_)) => {
                self.release_open |= freed && matches!(doubtful, Cas::Unknown(_));
                if let Some(hold) = self.hold.as_mut() {
                    hold.doubt = true;
                }
                self.ask_read(What::ReadBack, now, out);
            }
        }
    }

    pub(super) fn on_release_read_back(
        &mut self,
        result: Result<Reading, Failure>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let Some((found, version)) = (match self.decode_reading(result) {
            Ok(found) => found,
            // The store is silent and the job is gone: expiry will do.
            Err(_) => return self.finish(Release::Unconfirmed, out),
        }) else {
            return self.finish(Release::AlreadyGone, out);
        };
        let token = self.hold.as_ref().map_or(found.token, |h| h.record.token);
        let ours = found.hold.is_none() && self.attempts.iter().any(|a| a.write == found.write);
        if ours {
            return self.finish(Release::Done, out);
        }
        let late = self.stop_at().is_none_or(|at| now >= at);
        match self.rules.settle(&found, self.plan.grant, &self.attempts) {
            // Our release may have landed and the next one been quick. Before D nobody could take the
            // lease without it. After D it may just have run out, which is no loss to a job that was gone by then.
            Settled::NotOurs if found.token > token && (self.release_open || late && self.ended_in_time) => {
                self.finish(if late { Release::Unconfirmed } else { Release::Done }, out);
            }
            Settled::NotOurs => self.finish(Release::AlreadyGone, out),
            Settled::Ours { .. } => {
                self.adopt(found, Some(version));
                self.send_release(now, out);
            }
        }
    }

    fn finish(&mut self, release: Release, out: &mut Vec<Effect>) {
        let outcome = match (self.unstarted.take(), self.job) {
            (Some(Outcome::NotStarted(NotStarted::Seal { why, .. })), _) => {
                Outcome::NotStarted(NotStarted::Seal { why, release })
            }
            (Some(outcome), _) => outcome,
            (None, Job::Exited { status }) => self.ended(status, release),
            (None, Job::NotStarted | Job::Running { .. }) => {
                let why = self.stop.as_ref().map_or(StopReason::Gone, |s| s.why.clone());
                Outcome::Lost { why, status: None }
            }
        };
        self.done(outcome, out);
    }

    fn ended(&self, status: i32, release: Release) -> Outcome {
        let stopped = self.stop.as_ref().map(|s| s.why.clone());
        match stopped {
            Some(why) if why.is_loss() => Outcome::Lost { why, status: Some(status) },
            // Nobody told us, but it was not ours to give back: protection had ended.
            _ if release == Release::AlreadyGone => {
                Outcome::Lost { why: StopReason::Gone, status: Some(status) }
            }
            stopped => Outcome::Finished { status, stopped, release },
        }
    }

    pub(super) fn next_hold_deadline(&self) -> Option<BootTime> {
        let hold: &Holding = self.hold.as_ref()?;
        let active = matches!(self.phase, Phase::Sealing | Phase::Running | Phase::Napping | Phase::Stopping);
        let renews = active && !hold.lost && self.pending.is_none() && hold.renew_at.0 < Duration::MAX;
        renews.then_some(hold.renew_at)
    }
}
