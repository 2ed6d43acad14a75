//! From the first look to the grant.

use core::time::Duration;

use super::hold::{Held, Part};
use super::{
    Busy, Effect, Event, Granted, LeaseChoice, NotStarted, Outcome, Phase, Reading, Request, RequestId,
    Session, Signal, Stage, Step, StopReason,
};
use crate::ids::Grant;
use crate::record::{BadRecord, Holder, LeaseRecord};
use crate::rules::{self, Claim, ClaimDecision, ReadBack, Refusal, Rules, SeenToken, View};
use crate::session::types::WatchedRecord;
use crate::store::{Cas, Failure, FailureKind, Landed, Version};
use crate::time::{BootTime, utc};

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

/// A search for a lease that may be taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seek {
    wait_until: BootTime,
    retries: u32,
    /// The last look of one who waits was not answered.
    unheard: bool,
    /// The holder that is told, once one was met.
    busy: Option<Busy>,
    /// When the claim first fell into doubt, if it is.
    doubt_since: Option<BootTime>,
    /// A claim's outcome is unknown; it may still be applied.
    claim_open: bool,
    /// The holder that the last claim replaces, if it left a lock file.
    predecessor: Option<Grant>,
    /// A signal that came while a claim was under way.
    interrupted: Option<Signal>,
    part: Seeking,
}

#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Seeking {
    /// The lease is being read.
    Reading,
    /// All leases are held.
    Waiting {
        until: BootTime,
        /// The store was asked to say when the lease changes.
        watch: Option<RequestId>,
    },
    /// A neighbour's holder is looked for.
    Probing {
        found: ReadLease,
        /// The version that was found, if the store can say when it changes.
        tells: Option<Version>,
    },
    /// The claim is written, or read back.
    Claiming {
        /// Why it got no answer, or no good one, until it is known whether it landed.
        failed: Option<Failure>,
        /// When to read it back again, while no call is under way.
        again_at: Option<BootTime>,
    },
}

/// What was read of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReadLease {
    record: Option<LeaseRecord>,
    version: Option<Version>,
    age: Option<Duration>,
    instance: alloc::string::String,
    pushes: bool,
    read_sent: BootTime,
}

impl ReadLease {
    fn of(reading: Reading, choice: &LeaseChoice, read_sent: BootTime) -> Result<Self, BadRecord> {
        let (instance, pushes) = (reading.instance, reading.pushes);
        let Some(stored) = reading.stored else {
            return Ok(Self { record: None, version: None, age: None, instance, pushes, read_sent });
        };
        let record = Some(LeaseRecord::decode(&choice.lease, &stored.body)?);
        Ok(Self { record, version: Some(stored.version), age: stored.age, instance, pushes, read_sent })
    }

    /// How long the version found has been unchanged before our eyes.
    fn watched(&self, known: Option<WatchedRecord>) -> Duration {
        match (&self.record, known) {
            (Some(record), Some(watched)) if watched.write == record.write => {
                self.read_sent.since(watched.since)
            }
            _ => Duration::ZERO,
        }
    }
}

impl Seek {
    fn new(wait_until: BootTime) -> Self {
        Self {
            wait_until,
            retries: 0,
            unheard: false,
            busy: None,
            doubt_since: None,
            claim_open: false,
            predecessor: None,
            interrupted: None,
            part: Seeking::Reading,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.part {
            Seeking::Reading | Seeking::Waiting { .. } => Phase::Looking,
            Seeking::Probing { .. } => Phase::Probing,
            Seeking::Claiming { .. } => Phase::Taking,
        }
    }

    /// When something has to happen without any other input.
    pub(super) fn due(&self) -> Option<BootTime> {
        match self.part {
            Seeking::Waiting { until, .. } => Some(until),
            Seeking::Claiming { again_at, .. } => again_at,
            Seeking::Reading | Seeking::Probing { .. } => None,
        }
    }

    /// The store answered before, and there is patience left.
    fn may_ask_again(&self, failure: &Failure, now: BootTime) -> bool {
        failure.kind == FailureKind::Unreachable && self.busy.is_some() && now < self.wait_until
    }
}

impl<R: Rules> Session<R> {
    pub(super) fn start(&mut self, step: &mut Step) {
        if self.stage == Stage::New {
            self.look(Seek::new(step.now.plus(self.plan.wait)), step);
        }
    }

    fn look(&mut self, seek: Seek, step: &mut Step) {
        self.stage = Stage::Seeking(Seek { part: Seeking::Reading, ..seek });
        self.ask_read(step);
    }

    pub(super) fn look_if_due(&mut self, mut seek: Seek, step: &mut Step) {
        let due = seek.due().is_some_and(|at| step.now >= at);
        match &mut seek.part {
            Seeking::Waiting { .. } if due => return self.look(seek, step),
            Seeking::Claiming { again_at, .. } if due => {
                *again_at = None;
                self.ask_read(step);
            }
            _ => {}
        }
        self.stage = Stage::Seeking(seek);
    }

    /// The lease was read, for whichever reason.
    pub(super) fn on_lease_read(
        &mut self,
        mut seek: Seek,
        sent: BootTime,
        result: Result<Reading, Failure>,
        step: &mut Step,
    ) {
        if let Seeking::Claiming { failed, .. } = &mut seek.part {
            let failed = failed.take();
            return self.on_claim_read_back(seek, failed, sent, result, step);
        }
        if result.is_ok() && core::mem::take(&mut seek.unheard) {
            step.tell(Event::Heard);
        }
        match result {
            // Somebody who waits has time to ask again.
            Err(failure) if seek.may_ask_again(&failure, step.now) => {
                if !core::mem::replace(&mut seek.unheard, true) {
                    step.tell(Event::Unheard { message: failure.message });
                }
                seek.retries += 1;
                let pause = backoff(seek.retries, self.ids.fresh());
                let until = step.now.plus(pause).min(seek.wait_until);
                self.stage = Stage::Seeking(Seek { part: Seeking::Waiting { until, watch: None }, ..seek });
            }
            Err(failure) => {
                let in_doubt = seek.claim_open;
                self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), step);
            }
            // A claim of an earlier round may have landed since: look for it.
            Ok(reading) if self.may_land_here() => {
                self.on_claim_read_back(seek, None, sent, Ok(reading), step);
            }
            Ok(reading) => match ReadLease::of(reading, &self.plan.leases[self.at], sent) {
                Ok(found) => self.decide(seek, found, false, step),
                Err(bad) => self.refuse(Refusal::Bad(bad), step),
            },
        }
    }

    fn refuse(&mut self, refusal: Refusal, step: &mut Step) {
        let lease = self.plan.leases[self.at].lease.clone();
        self.done(Outcome::NotStarted(NotStarted::Refused { lease, refusal }), step);
    }

    /// Takes the lease, or not. `gone`: its holder is provably gone.
    fn decide(&mut self, mut seek: Seek, found: ReadLease, gone: bool, step: &mut Step) {
        if let Some(signal) = seek.interrupted {
            return self.done(interrupted(signal, seek.claim_open), step);
        }
        let LeaseChoice { lease, seen, watched } = self.plan.leases[self.at].clone();
        let claim = Claim {
            lease,
            grant: self.plan.grant,
            epoch: self.ids.fresh(),
            write: self.fresh_write(),
            ttl: self.plan.timing.ttl,
            lock: self.plan.lock.clone(),
            // Whoever waited holds it since now, not since it began to wait.
            holder: Holder { since: utc(step.wall), ..self.plan.holder.clone() },
        };
        let view = View {
            record: found.record.as_ref(),
            age: found.age,
            resolution: self.plan.timing.clock.resolution,
            watched: found.watched(watched),
            holder_gone: gone || self.plan.force,
            instance: &found.instance,
            seen,
        };
        match self.rules.acquire(&view, &claim) {
            ClaimDecision::Take(record) => {
                let before = found.record.as_ref().and_then(|r| r.hold.as_ref());
                seek.predecessor = before.filter(|h| h.lock.is_some()).map(|h| h.grant);
                seek.part = Seeking::Claiming { failed: None, again_at: None };
                self.stage = Stage::Seeking(seek);
                self.ask_write(record, found.version, step);
            }
            ClaimDecision::Refuse(refusal) => self.refuse(refusal, step),
            ClaimDecision::Held { ends_in } => self.on_held(seek, found, ends_in, gone, step),
        }
    }

    fn on_held(
        &mut self,
        mut seek: Seek,
        found: ReadLease,
        ends_in: Option<Duration>,
        probed: bool,
        step: &mut Step,
    ) {
        let Some((record, hold)) = found.record.as_ref().and_then(|r| Some((r, r.hold.as_ref()?))) else {
            return;
        };
        let busy = Busy {
            lease: record.lease.clone(),
            token: record.token,
            grant: hold.grant,
            holder: record.holder.clone(),
            ends_in,
            ttl: hold.ttl,
            evident: hold.lock.is_some(),
        };
        let tells = found.version.clone().filter(|_| found.pushes);
        if ends_in.is_none() {
            self.watch(record, step);
        }
        let first = seek.busy.get_or_insert(busy.clone());
        // Of several, one that others hold: what we were started under is told only if it holds them all.
        let within = &self.plan.within;
        if first.lease == busy.lease || within.holds(first) && !within.holds(&busy) {
            *first = busy.clone();
        }
        match hold.lock.clone() {
            Some(lock) if !probed => {
                step.store(Request::Probe { grant: hold.grant, run: record.holder.run.clone(), lock });
                self.stage = Stage::Seeking(Seek { part: Seeking::Probing { found, tells }, ..seek });
            }
            _ => self.on_busy(seek, &busy, tells, step),
        }
    }

    /// Starts, or goes on, watching a version whose age nobody can tell.
    fn watch(&mut self, record: &LeaseRecord, step: &mut Step) {
        let choice = &mut self.plan.leases[self.at];
        if choice.watched.is_none_or(|w| w.write != record.write) {
            choice.watched = Some(WatchedRecord { write: record.write, since: step.now });
            let (lease, watched) = (choice.lease.clone(), choice.watched);
            step.store(Request::Remember { lease, seen: None, watched });
        }
    }

    pub(super) fn on_probed(&mut self, gone: bool, step: &mut Step) {
        let mut seek = match self.leave_stage() {
            Stage::Seeking(seek) => seek,
            stage => return self.stage = stage,
        };
        match (core::mem::replace(&mut seek.part, Seeking::Reading), seek.busy.clone()) {
            (Seeking::Probing { found, .. }, _) if gone => self.decide(seek, found, true, step),
            (Seeking::Probing { tells, .. }, Some(busy)) => self.on_busy(seek, &busy, tells, step),
            (part, _) => self.stage = Stage::Seeking(Seek { part, ..seek }),
        }
    }

    /// Next lease on the list, or wait, or leave it.
    fn on_busy(&mut self, mut seek: Seek, busy: &Busy, tells: Option<Version>, step: &mut Step) {
        seek.doubt_since = None;
        if self.at + 1 < self.plan.leases.len() {
            self.at += 1;
            return self.look(seek, step);
        }
        let for_itself = seek.busy.as_ref().filter(|busy| self.plan.within.holds(busy));
        if step.now >= seek.wait_until || for_itself.is_some() {
            let first = seek.busy.unwrap_or_else(|| busy.clone());
            return self.done(Outcome::Busy(first), step);
        }
        if seek.retries == 0 {
            step.tell(Event::Waiting(busy.clone()));
        }
        let mut pause = backoff(seek.retries, self.ids.fresh() ^ self.plan.grant.0);
        // Of several leases only one could be watched, so a list is polled.
        let tells = tells.filter(|_| self.plan.leases.len() == 1);
        if tells.is_some() {
            pause = PUSH_RETRY.min(busy.ttl / 3);
        }
        if let Some(ends_in) = busy.ends_in {
            pause = pause.min(ends_in + Duration::from_millis(1));
        }
        seek.retries += 1;
        self.at = 0;
        let until = step.now.plus(pause).min(seek.wait_until.max(step.now));
        let watch = tells.map(|version| {
            let id = self.fresh_request();
            let lease = busy.lease.clone();
            step.store(Request::Watch { id, lease, version: Some(version), until });
            id
        });
        self.stage = Stage::Seeking(Seek { part: Seeking::Waiting { until, watch }, ..seek });
    }

    pub(super) fn on_changed(&mut self, id: RequestId, step: &mut Step) {
        match self.leave_stage() {
            Stage::Seeking(seek) if matches!(seek.part, Seeking::Waiting { watch, .. } if watch == Some(id)) =>
            {
                self.look(seek, step);
            }
            stage => self.stage = stage,
        }
    }

    pub(super) fn on_claim_written(
        &mut self,
        mut seek: Seek,
        record: LeaseRecord,
        result: Cas,
        step: &mut Step,
    ) {
        let failure = match result {
            Cas::Written { version, store_time } => {
                let attempt = self.attempts.iter().find(|a| a.write == record.write);
                let from = attempt.map_or(step.now, |a| self.rules.counts_from(a, step.now));
                return self.on_granted(seek, record, Some(version), from, store_time, step);
            }
            Cas::Conflict => unopposed(),
            Cas::Unknown(failure) => {
                seek.claim_open |= failure.landed == Landed::Maybe;
                failure
            }
        };
        seek.doubt_since.get_or_insert(step.now);
        seek.part = Seeking::Claiming { failed: Some(failure), again_at: None };
        self.stage = Stage::Seeking(seek);
        self.ask_read(step);
    }

    /// A claim on the lease that is being tried was sent, and not seen to have come to nothing.
    fn may_land_here(&self) -> bool {
        self.attempts.iter().any(|a| a.at == self.at)
    }

    /// The lease was read after a claim that was not confirmed. `failed`: why, unless that was told before.
    fn on_claim_read_back(
        &mut self,
        mut seek: Seek,
        failed: Option<Failure>,
        sent: BootTime,
        result: Result<Reading, Failure>,
        step: &mut Step,
    ) {
        let reading = match result {
            Err(failure) => return self.on_claim_still_in_doubt(seek, failed, failure, step),
            Ok(reading) => reading,
        };
        let found = match ReadLease::of(reading, &self.plan.leases[self.at], sent) {
            Ok(found) => found,
            Err(bad) => return self.refuse(Refusal::Bad(bad), step),
        };
        let earliest = self.attempts.iter().find(|a| a.at == self.at).map_or(step.now, |a| a.sent);
        let write = found.record.as_ref().map(|r| r.write);
        rules::prune(&mut self.attempts, self.at, found.version.as_ref(), write);
        if let Some(record) = &found.record {
            match self.rules.settle(record, self.plan.grant, &self.attempts) {
                // Somebody rewrote our brand-new record (asked us to stop, say): count from our first try.
                ReadBack::Ours { from, .. } => {
                    let (record, from) = (record.clone(), from.unwrap_or(earliest));
                    return self.on_granted(seek, record, found.version, from, None, step);
                }
                ReadBack::NotOurs => {}
            }
        }
        // Nothing changed since our claim: it failed, or is under way, or was refused for another reason than
        // a change. A store that can be read and not written (a full disk, a right that is missing, a guard of
        // its own) must not be asked for ever.
        if let Some(failure) = failed.filter(|_| self.may_land_here()) {
            return self.on_claim_still_in_doubt(seek, None, failure, step);
        }
        if !self.may_land_here() {
            seek.doubt_since = None;
        }
        seek.claim_open &= !self.attempts.is_empty();
        // Not ours: what was read is as good as a first look, so decide on it without another.
        self.decide(seek, found, false, step);
    }

    /// The store does not do what a claim asked of it: try again for a while if that may help, then
    /// leave the claim to expire, should it ever land. `failed` is kept until the claim is read back.
    fn on_claim_still_in_doubt(
        &mut self,
        mut seek: Seek,
        failed: Option<Failure>,
        failure: Failure,
        step: &mut Step,
    ) {
        let since = *seek.doubt_since.get_or_insert(step.now);
        if failure.kind != FailureKind::Unreachable || step.now >= since.plus(self.plan.timing.timeout) {
            let in_doubt = seek.claim_open;
            return self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), step);
        }
        seek.retries += 1;
        let again_at = Some(step.now.plus(backoff(seek.retries, self.ids.fresh())));
        self.stage = Stage::Seeking(Seek { part: Seeking::Claiming { failed, again_at }, ..seek });
    }

    /// A signal before the grant. One that comes while a claim is under way waits for its answer: if the lease turns
    /// out to be ours it is given back.
    pub(super) fn on_early_signal(&mut self, mut seek: Seek, signal: Signal, step: &mut Step) {
        if signal.ends() && seek.phase() != Phase::Taking {
            return self.done(interrupted(signal, seek.claim_open), step);
        }
        if signal.ends() {
            seek.interrupted = Some(signal);
        }
        self.stage = Stage::Seeking(seek);
    }

    fn on_granted(
        &mut self,
        seek: Seek,
        record: LeaseRecord,
        version: Option<Version>,
        from: BootTime,
        store_time: Option<Duration>,
        step: &mut Step,
    ) {
        let seen = SeenToken { epoch: record.epoch, token: record.token };
        if self.plan.leases[self.at].seen.is_some_and(|known| known.epoch != record.epoch) {
            step.tell(Event::EpochChanged);
        }
        self.attempts.retain(|a| a.at == self.at);
        rules::prune(&mut self.attempts, self.at, version.as_ref(), Some(record.write));
        let granted = self.granted(&record);
        step.tell(Event::Granted(granted.clone()));
        // First: from the moment the job works, this host knows its token. A disk that is slow delays the start, which has
        // a time by which it must have happened.
        step.store(Request::Remember { lease: record.lease.clone(), seen: Some(seen), watched: None });
        let discard = seek.predecessor.map(|grant| Effect::Store(Request::Discard(grant)));
        let revoked = record.hold.as_ref().is_some_and(|h| h.revoke);
        let revoked = revoked.then_some(Outcome::Lost { why: StopReason::Revoked, status: None });
        let held = Held {
            record,
            version,
            confirmed: from,
            renew_at: from.plus(self.plan.timing.heartbeat),
            retries: 0,
            doubt: false,
            lost: false,
            store_clock: store_time.map(|t| (t, from)),
            part: Part::Sealing { interrupted: None },
        };
        if let Some(unstarted) = seek.interrupted.map(|signal| interrupted(signal, false)).or(revoked) {
            step.out.extend(discard);
            self.leave_unstarted(held, unstarted, step);
        } else if self.plan.by_hand {
            step.out.extend(discard);
            self.hand_over(held, granted, from, step);
        } else {
            if self.plan.seal {
                self.stage = Stage::Holding(held);
                step.push(Effect::Seal(granted));
            } else {
                self.open_item(held, step);
            }
            step.out.extend(discard);
        }
    }

    /// By hand, with what is left of it: an answer can come late.
    fn hand_over(&mut self, held: Held, granted: Granted, from: BootTime, step: &mut Step) {
        let ttl = granted.ttl.saturating_sub(step.now.since(from));
        if ttl.is_zero() {
            let late = Outcome::Lost { why: StopReason::Deadline, status: None };
            return self.leave_unstarted(held, late, step);
        }
        self.done(Outcome::Granted(Granted { ttl, ..granted }), step);
    }

    pub(super) fn granted(&self, record: &LeaseRecord) -> Granted {
        Granted {
            lease: record.lease.clone(),
            epoch: record.epoch,
            token: record.token,
            grant: self.plan.grant,
            ttl: self.plan.timing.ttl,
        }
    }
}
