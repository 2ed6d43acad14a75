//! From the first look to the grant.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{
    Busy, Choice, Effect, Event, Found, Granted, Holding, NotStarted, Outcome, Phase, Reading, RequestId,
    Session, Signal, StopReason, What,
};
use crate::ids::Grant;
use crate::record::{BadRecord, LeaseRecord};
use crate::rules::{self, Claim, Decision, Refusal, Rules, Seen, Settled, View};
use crate::session::types::Watched;
use crate::store::{Cas, Failure, FailureKind, Landed, Version};
use crate::time::BootTime;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How often to look all the same while the store is to tell of changes: its word may get lost.
const PUSH_RETRY: Duration = Duration::from_secs(2);

/// How long to wait before try number `tries`: doubling, capped, and spread by `jitter` so that
/// waiters that lost together do not come back together.
pub(super) fn backoff(tries: u32, jitter: u128) -> Duration {
    let base = FIRST_RETRY.saturating_mul(1 << tries.min(10)).min(LAST_RETRY);
    let spread = u32::try_from(jitter % 512).unwrap_or(0);
    base / 2 + base * spread / 1024
}

/// What a store did that answers a conflict where nothing has changed.
fn unopposed() -> Failure {
    Failure::new(
        FailureKind::Unreachable,
        "the store refuses a write that nothing opposes, as if the record had changed, and it has not. See \
                  whether something guards its records (a lease or a hold on the object, row level security) or \
                  answers reads from a copy (a cache, a replica)",
    )
}

pub(super) fn interrupted(signal: Signal, in_doubt: bool) -> Outcome {
    Outcome::NotStarted(NotStarted::Interrupted { signal, in_doubt })
}

impl<R: Rules> Session<R> {
    pub(super) fn start(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        if self.phase != Phase::New {
            return;
        }
        self.wait_until = now.plus(self.plan.wait);
        self.look(now, out);
    }

    pub(super) fn look(&mut self, now: BootTime, out: &mut Vec<Effect>) {
        self.phase = Phase::Looking;
        self.retry_at = None;
        self.watching = None;
        self.found = None;
        self.ask_read(What::Look, now, out);
    }

    pub(super) fn on_look(
        &mut self,
        sent: BootTime,
        result: Result<Reading, Failure>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        if result.is_ok() && core::mem::take(&mut self.unheard) {
            out.push(Effect::Tell(Event::Heard));
        }
        match result {
            // Somebody who waits has time to ask again.
            Err(failure) if self.may_ask_again(&failure, now) => {
                if !core::mem::replace(&mut self.unheard, true) {
                    out.push(Effect::Tell(Event::Unheard { message: failure.message }));
                }
                self.retries += 1;
                let pause = backoff(self.retries, self.ids.fresh());
                self.retry_at = Some(now.plus(pause).min(self.wait_until));
            }
            Err(failure) => {
                let in_doubt = self.claim_open;
                self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), out);
            }
            // A claim of an earlier round may have landed since: look for it.
            Ok(reading) if self.may_land_here() => self.on_claim_read_back(sent, Ok(reading), now, out),
            Ok(reading) => match self.remember_found(sent, reading) {
                Ok(()) => self.decide(false, now, out),
                Err(bad) => self.refuse(Refusal::Bad(bad), out),
            },
        }
    }

    /// The store answered before, and there is patience left.
    fn may_ask_again(&self, failure: &Failure, now: BootTime) -> bool {
        failure.kind == FailureKind::Unreachable && self.busy.is_some() && now < self.wait_until
    }

    fn refuse(&mut self, refusal: Refusal, out: &mut Vec<Effect>) {
        let lease = self.plan.leases[self.at].lease.clone();
        self.done(Outcome::NotStarted(NotStarted::Refused { lease, refusal }), out);
    }

    fn remember_found(&mut self, read_sent: BootTime, reading: Reading) -> Result<(), BadRecord> {
        let (instance, pushes) = (reading.instance, reading.pushes);
        self.found = Some(match reading.stored {
            None => Found { record: None, version: None, age: None, instance, pushes, read_sent },
            Some(stored) => Found {
                record: Some(LeaseRecord::decode(&self.plan.leases[self.at].lease, &stored.body)?),
                version: Some(stored.version),
                age: stored.age,
                instance,
                pushes,
                read_sent,
            },
        });
        Ok(())
    }

    /// How long the version found has been unchanged before our eyes.
    fn watched(&self, found: &Found) -> Duration {
        let known = self.plan.leases[self.at].watched;
        match (&found.record, known) {
            (Some(record), Some(watched)) if watched.write == record.write => {
                found.read_sent.since(watched.since)
            }
            _ => Duration::ZERO,
        }
    }

    fn decide(&mut self, gone: bool, now: BootTime, out: &mut Vec<Effect>) {
        let Some(found) = self.found.take() else { return };
        if let Some(signal) = self.interrupted {
            return self.done(interrupted(signal, self.claim_open), out);
        }
        let Choice { lease, seen, .. } = self.plan.leases[self.at].clone();
        let claim = Claim {
            lease,
            grant: self.plan.grant,
            epoch: self.ids.fresh(),
            write: self.fresh_write(),
            ttl: self.plan.timing.ttl,
            lock: self.plan.lock.clone(),
            holder: self.plan.holder.clone(),
        };
        let view = View {
            record: found.record.as_ref(),
            age: found.age,
            resolution: self.plan.timing.clock.resolution,
            watched: self.watched(&found),
            holder_gone: gone || self.plan.force,
            instance: &found.instance,
            seen,
        };
        match self.rules.acquire(&view, &claim) {
            Decision::Take(record) => {
                self.phase = Phase::Taking;
                self.retry_at = None;
                let before = found.record.as_ref().and_then(|r| r.hold.as_ref());
                self.predecessor = before.filter(|h| h.lock.is_some()).map(|h| h.grant);
                self.ask_write(record, found.version, now, out);
            }
            Decision::Refuse(refusal) => self.refuse(refusal, out),
            Decision::Held { ends_in } => self.on_held(found, ends_in, now, out),
        }
    }

    fn on_held(&mut self, found: Found, ends_in: Option<Duration>, now: BootTime, out: &mut Vec<Effect>) {
        let Some(record) = found.record.clone() else { return };
        let Some(hold) = record.hold.clone() else { return };
        let busy = Busy {
            lease: record.lease.clone(),
            token: record.token,
            grant: hold.grant,
            holder: record.holder.clone(),
            ends_in,
            ttl: hold.ttl,
            evident: hold.lock.is_some(),
        };
        self.tells = found.pushes.then(|| found.version.clone()).flatten();
        if ends_in.is_none() {
            self.watch(&record, now, out);
        }
        let first = self.busy.get_or_insert(busy.clone());
        // Of several, one that others hold: what we were started under is told only if it holds them all.
        let within = &self.plan.within;
        if first.lease == busy.lease || within.holds(first) && !within.holds(&busy) {
            *first = busy.clone();
        }
        match hold.lock {
            Some(lock) if self.phase == Phase::Looking => {
                self.phase = Phase::Probing;
                self.found = Some(found);
                out.push(Effect::Probe { grant: hold.grant, run: record.holder.run, lock });
            }
            _ => self.on_busy(&busy, now, out),
        }
    }

    /// Starts, or goes on, watching a version whose age nobody can tell.
    fn watch(&mut self, record: &LeaseRecord, now: BootTime, out: &mut Vec<Effect>) {
        let choice = &mut self.plan.leases[self.at];
        if choice.watched.is_none_or(|w| w.write != record.write) {
            choice.watched = Some(Watched { write: record.write, since: now });
            let (lease, watched) = (choice.lease.clone(), choice.watched);
            out.push(Effect::Remember { lease, seen: None, watched });
        }
    }

    pub(super) fn on_probed(&mut self, gone: bool, now: BootTime, out: &mut Vec<Effect>) {
        if self.phase != Phase::Probing {
            return;
        }
        if gone {
            self.decide(true, now, out);
        } else if let Some(busy) = self.busy.clone() {
            self.on_busy(&busy, now, out);
        }
    }

    /// Next lease on the list, or wait, or leave it.
    fn on_busy(&mut self, busy: &Busy, now: BootTime, out: &mut Vec<Effect>) {
        self.phase = Phase::Looking;
        self.found = None;
        self.doubt_since = None;
        if self.at + 1 < self.plan.leases.len() {
            self.at += 1;
            return self.look(now, out);
        }
        let for_itself = self.busy.as_ref().is_some_and(|busy| self.plan.within.holds(busy));
        if now >= self.wait_until || for_itself {
            if let Some(first) = self.busy.clone() {
                self.done(Outcome::Busy(first), out);
            }
            return;
        }
        if self.retries == 0 {
            out.push(Effect::Tell(Event::Waiting(busy.clone())));
        }
        let mut pause = backoff(self.retries, self.ids.fresh() ^ self.plan.grant.0);
        // Of several leases only one could be watched, so a list is polled.
        let tells = self.tells.take().filter(|_| self.plan.leases.len() == 1);
        if tells.is_some() {
            pause = PUSH_RETRY.min(busy.ttl / 3);
        }
        if let Some(ends_in) = busy.ends_in {
            pause = pause.min(ends_in + Duration::from_millis(1));
        }
        self.retries += 1;
        self.at = 0;
        let until = now.plus(pause).min(self.wait_until.max(now));
        self.retry_at = Some(until);
        if tells.is_some() {
            let id = self.fresh_request();
            self.watching = Some(id);
            out.push(Effect::Watch { id, lease: busy.lease.clone(), version: tells, until });
        }
    }

    pub(super) fn on_changed(&mut self, id: RequestId, now: BootTime, out: &mut Vec<Effect>) {
        if self.watching == Some(id) && self.phase == Phase::Looking && self.pending.is_none() {
            self.look(now, out);
        }
    }

    pub(super) fn on_claim_written(
        &mut self,
        record: LeaseRecord,
        result: Cas,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let failure = match result {
            Cas::Written { version, store_time } => {
                let attempt = self.attempts.iter().find(|a| a.write == record.write);
                let from = attempt.map_or(now, |a| self.rules.counts_from(a, now));
                return self.on_granted(record, Some(version), from, store_time, now, out);
            }
            Cas::Conflict => unopposed(),
            Cas::Unknown(failure) => {
                self.claim_open |= failure.landed == Landed::Maybe;
                failure
            }
        };
        self.doubt_since.get_or_insert(now);
        self.claim_failed = Some(failure);
        self.ask_read(What::ReadBack, now, out);
    }

    /// A claim on the lease that is being tried was sent, and not seen to have come to nothing.
    fn may_land_here(&self) -> bool {
        self.attempts.iter().any(|a| a.at == self.at)
    }

    pub(super) fn on_claim_read_back(
        &mut self,
        sent: BootTime,
        result: Result<Reading, Failure>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let reading = match result {
            Err(failure) => return self.on_claim_still_in_doubt(failure, now, out),
            Ok(reading) => reading,
        };
        if let Err(bad) = self.remember_found(sent, reading) {
            return self.refuse(Refusal::Bad(bad), out);
        }
        let Some(found) = self.found.clone() else { return };
        let earliest = self.attempts.iter().find(|a| a.at == self.at).map_or(now, |a| a.sent);
        rules::prune(
            &mut self.attempts,
            self.at,
            found.version.as_ref(),
            found.record.as_ref().map(|r| r.write),
        );
        let grant: Grant = self.plan.grant;
        if let Some(record) = found.record {
            match self.rules.settle(&record, grant, &self.attempts) {
                // Somebody rewrote our brand-new record (asked us to stop, say): count from our first try.
                Settled::Ours { from, .. } => {
                    let from = from.unwrap_or(earliest);
                    return self.on_granted(record, found.version, from, None, now, out);
                }
                Settled::NotOurs => {}
            }
        }
        // Nothing changed since our claim: it failed, or is under way, or was refused for another reason than
        // a change. A store that can be read and not written (a full disk, a right that is missing, a guard of
        // its own) must not be asked for ever.
        if let (Some(failure), false) = (self.claim_failed.take(), !self.may_land_here()) {
            return self.on_claim_still_in_doubt(failure, now, out);
        }
        if !self.may_land_here() {
            self.doubt_since = None;
        }
        self.claim_open &= !self.attempts.is_empty();
        // Not ours: what was read is as good as a first look, so decide on it without another.
        self.phase = Phase::Looking;
        self.decide(false, now, out);
    }

    /// The store does not do what a claim asked of it: try again for a while if that may help, then
    /// leave the claim to expire, should it ever land.
    fn on_claim_still_in_doubt(&mut self, failure: Failure, now: BootTime, out: &mut Vec<Effect>) {
        let since = *self.doubt_since.get_or_insert(now);
        if failure.kind != FailureKind::Unreachable || now >= since.plus(self.plan.timing.timeout) {
            let in_doubt = self.claim_open;
            return self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), out);
        }
        self.retries += 1;
        self.retry_at = Some(now.plus(backoff(self.retries, self.ids.fresh())));
    }

    fn on_granted(
        &mut self,
        record: LeaseRecord,
        version: Option<Version>,
        from: BootTime,
        store_time: Option<Duration>,
        now: BootTime,
        out: &mut Vec<Effect>,
    ) {
        let granted = Granted {
            lease: record.lease.clone(),
            epoch: record.epoch,
            token: record.token,
            grant: self.plan.grant,
            ttl: self.plan.timing.ttl,
        };
        let seen = Seen { epoch: record.epoch, token: record.token };
        let known = self.plan.leases[self.at].seen;
        let lease = record.lease.clone();
        if known.is_some_and(|k| k.epoch != record.epoch) {
            out.push(Effect::Tell(Event::EpochChanged));
        }
        self.attempts.retain(|a| a.at == self.at);
        rules::prune(&mut self.attempts, self.at, version.as_ref(), Some(record.write));
        let revoked = record.hold.as_ref().is_some_and(|h| h.revoke);
        let instance: String = record.instance.clone();
        self.hold = Some(Holding {
            record,
            version,
            instance,
            confirmed: from,
            renew_at: from.plus(self.plan.timing.heartbeat),
            doubt: false,
            lost: false,
            store_clock: store_time.map(|t| (t, from)),
        });
        self.retries = 0;
        self.busy = None;
        out.push(Effect::Tell(Event::Granted(granted.clone())));
        // First: from the moment the job works, this host knows its token. A disk that is slow delays the start, which has
        // a time by which it must have happened.
        out.push(Effect::Remember { lease, seen: Some(seen), watched: None });
        let discard = self.predecessor.take().map(Effect::Discard);
        let interrupted = self.interrupted.map(|signal| interrupted(signal, false));
        let revoked = revoked.then_some(Outcome::Lost { why: StopReason::Revoked, status: None });
        if let Some(unstarted) = interrupted.or(revoked) {
            out.extend(discard);
            self.release_unstarted(unstarted, now, out);
        } else if self.plan.by_hand {
            out.extend(discard);
            self.hand_over(granted, from, now, out);
        } else {
            if self.plan.seal {
                self.phase = Phase::Sealing;
                out.push(Effect::Seal(granted));
            } else {
                self.start_job(granted, now, out);
            }
            out.extend(discard);
        }
    }

    /// By hand, with what is left of it: an answer can come late.
    fn hand_over(&mut self, granted: Granted, from: BootTime, now: BootTime, out: &mut Vec<Effect>) {
        let ttl = granted.ttl.saturating_sub(now.since(from));
        if ttl.is_zero() {
            let late = Outcome::Lost { why: StopReason::Deadline, status: None };
            return self.release_unstarted(late, now, out);
        }
        self.done(Outcome::Granted(Granted { ttl, ..granted }), out);
    }
}
