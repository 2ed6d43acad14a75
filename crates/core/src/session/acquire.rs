//! From the first look to the grant.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::hold::{Held, Hold, Part, Renewal};
use super::leave::How;
use super::{
    Busy, Effect, Event, Granted, LeaseChoice, NotStarted, Op, Outcome, Phase, Reading, Request, RequestId,
    Session, Signal, Stage, Step, StopReason, What,
};
use crate::forgotten::Forgotten;
use crate::record::{BadRecord, Holder, LeaseRecord};
use crate::rules::{self, Claim, ClaimDecision, ReadBack, Refusal, Rules, SeenToken, View};
use crate::session::types::WatchedRecord;
use crate::store::{Cas, Failure, FailureKind, Landed, Stored, Version};
use crate::time::{BootTime, utc};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How often to read the lease although the store reports its changes: a report may get lost.
const PUSH_RETRY: Duration = Duration::from_secs(2);

/// How long to wait before try number `tries`. It doubles with each try, up to a bound. `jitter` spreads
/// waiters that lost at the same time, so that they do not come back at the same time.
pub(super) fn backoff(tries: u32, jitter: u128) -> Duration {
    let base = FIRST_RETRY.saturating_mul(1 << tries.min(10)).min(LAST_RETRY);
    let spread = u32::try_from(jitter % 512).unwrap_or(0);
    base / 2 + base * spread / 1024
}

/// The failure of a store that reports a conflict although the record has not changed.
fn conflict_without_change() -> Failure {
    Failure::new(
        FailureKind::Unreachable,
        "the store reports a conflict, but the record has not changed. Check whether something protects its \
         records (a lease or a hold on the object, row level security), or whether reads come from a copy (a \
         cache, a replica)",
    )
}

pub(super) fn interrupted(signal: Signal, in_doubt: bool) -> Outcome {
    Outcome::NotStarted(NotStarted::Interrupted { signal, in_doubt })
}

/// A search for a lease that can be taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seek {
    wait_until: BootTime,
    /// How many pauses there were so far: each is longer than the one before.
    pauses: u32,
    /// [`Event::Waiting`] was sent.
    waiting_told: bool,
    /// The first holder that was found: it is reported if no lease is free.
    busy: Option<Busy>,
    /// Whether the lease that is tried was forgotten on purpose; none: nobody has asked.
    forgotten: Option<bool>,
    part: Seeking,
}

#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Seeking {
    /// The lease is being read. `unanswered`: the read before failed, while this run was waiting.
    Reading { unanswered: bool },
    /// All leases are held, or the store does not answer.
    Waiting {
        until: BootTime,
        /// The store was asked to report when the lease changes.
        watch: Option<RequestId>,
        /// The last read failed.
        unanswered: bool,
    },
    /// The lease has no record although this host has seen one: what says that it was forgotten is being read.
    Asking {
        found: ReadLease,
        /// Since when a claim is in doubt that may still land here.
        doubt_since: Option<BootTime>,
    },
    /// This machine is asked whether the holder is gone.
    Probing {
        found: ReadLease,
        busy: Busy,
        /// Since when a claim is in doubt that may still land here.
        doubt_since: Option<BootTime>,
    },
    /// The claim is being written, or read back.
    Claiming {
        /// Since when it is in doubt, or one before it that may still land here.
        doubt_since: Option<BootTime>,
        /// Why it got no answer, or a bad one, until it is known whether it landed.
        failed: Option<Failure>,
        /// When to read it back again, while no call is under way.
        again_at: Option<BootTime>,
        /// A signal that came meanwhile.
        interrupted: Option<Signal>,
    },
}

/// What was read of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReadLease {
    stored: Option<(LeaseRecord, Version)>,
    age: Option<Duration>,
    instance: alloc::string::String,
    pushes: bool,
    read_sent: BootTime,
}

impl ReadLease {
    fn of(reading: Reading, choice: &LeaseChoice, read_sent: BootTime) -> Result<Self, BadRecord> {
        let Reading { stored, instance, pushes } = reading;
        let age = stored.as_ref().and_then(|stored| stored.age);
        let decoded =
            |stored: Stored| Ok((LeaseRecord::decode(&choice.lease, &stored.body)?, stored.version));
        let stored = stored.map(decoded).transpose()?;
        Ok(Self { stored, age, instance, pushes, read_sent })
    }

    fn record(&self) -> Option<&LeaseRecord> {
        self.stored.as_ref().map(|(record, _)| record)
    }

    /// How long this process has seen the version unchanged.
    fn watched(&self, known: Option<WatchedRecord>) -> Duration {
        match (self.record(), known) {
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
            pauses: 0,
            waiting_told: false,
            busy: None,
            forgotten: None,
            part: Seeking::Reading { unanswered: false },
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.part {
            Seeking::Reading { .. } | Seeking::Waiting { .. } | Seeking::Asking { .. } => Phase::Looking,
            Seeking::Probing { .. } => Phase::Probing,
            Seeking::Claiming { .. } => Phase::Taking,
        }
    }

    /// When something has to happen without any other input.
    pub(super) fn due(&self) -> Option<BootTime> {
        match self.part {
            Seeking::Waiting { until, .. } => Some(until),
            Seeking::Claiming { again_at, .. } => again_at,
            Seeking::Reading { .. } | Seeking::Asking { .. } | Seeking::Probing { .. } => None,
        }
    }

    fn interrupted(&self) -> Option<Signal> {
        match self.part {
            Seeking::Claiming { interrupted, .. } => interrupted,
            _ => None,
        }
    }

    fn doubt_since(&self) -> Option<BootTime> {
        match self.part {
            Seeking::Claiming { doubt_since, .. }
            | Seeking::Probing { doubt_since, .. }
            | Seeking::Asking { doubt_since, .. } => doubt_since,
            _ => None,
        }
    }

    /// The store has answered before, and there is time left to wait.
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
        let unanswered = matches!(seek.part, Seeking::Waiting { unanswered: true, .. });
        self.stage = Stage::Seeking(Seek { part: Seeking::Reading { unanswered }, ..seek });
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

    /// The lease was read: at first, after a wait, or after a claim.
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
        let unanswered = matches!(seek.part, Seeking::Reading { unanswered: true });
        if unanswered && result.is_ok() {
            step.tell(Event::AnsweredAgain);
        }
        match result {
            Err(failure) => self.on_no_answer(seek, unanswered, failure, step),
            // A claim of an earlier round may have landed since: look for it.
            Ok(reading) if self.may_land_here() => {
                self.on_claim_read_back(seek, None, sent, Ok(reading), step);
            }
            Ok(reading) => match ReadLease::of(reading, &self.plan.leases[self.at], sent) {
                Ok(found) => self.decide(seek, found, false, None, step),
                Err(bad) => self.refuse(Refusal::Bad(bad), step),
            },
        }
    }

    /// A read failed. It is tried again while this run waits. `unanswered`: so did the one before.
    fn on_no_answer(&mut self, mut seek: Seek, unanswered: bool, failure: Failure, step: &mut Step) {
        if !seek.may_ask_again(&failure, step.now) {
            let in_doubt = self.claim_may_land();
            return self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), step);
        }
        if !unanswered {
            step.tell(Event::Unanswered { message: failure.message });
        }
        seek.pauses += 1;
        let pause = backoff(seek.pauses, self.ids.fresh());
        let until = step.now.plus(pause).min(seek.wait_until);
        seek.part = Seeking::Waiting { until, watch: None, unanswered: true };
        self.stage = Stage::Seeking(seek);
    }

    /// What says that the lease was forgotten was read. The lease is decided on once more, as it was found.
    pub(super) fn on_forgotten(&mut self, result: Result<Vec<Vec<u8>>, Failure>, step: &mut Step) {
        let mut seek = match self.leave_stage() {
            Stage::Seeking(seek) => seek,
            stage => return self.stage = stage,
        };
        let (found, doubt_since) =
            match core::mem::replace(&mut seek.part, Seeking::Reading { unanswered: false }) {
                Seeking::Asking { found, doubt_since } => (found, doubt_since),
                part => return self.stage = Stage::Seeking(Seek { part, ..seek }),
            };
        let bodies = match result {
            Ok(bodies) => bodies,
            Err(failure) => return self.on_no_answer(seek, false, failure, step),
        };
        // One that this version cannot read says nothing, so the lease is refused as before.
        let records: Vec<Forgotten> = bodies.iter().filter_map(|body| Forgotten::decode(body).ok()).collect();
        let LeaseChoice { lease, seen, .. } = &self.plan.leases[self.at];
        seek.forgotten = Some(seen.is_some_and(|seen| self.rules.is_forgotten(lease, seen, &records)));
        self.decide(seek, found, false, doubt_since, step);
    }

    fn refuse(&mut self, refusal: Refusal, step: &mut Step) {
        let lease = self.plan.leases[self.at].lease.clone();
        self.done(Outcome::NotStarted(NotStarted::Refused { lease, refusal }), step);
    }

    /// Takes the lease if the rules allow it. `gone`: its holder is proved to be gone. `doubt_since`: since when a
    /// claim is in doubt that may still land here.
    fn decide(
        &mut self,
        mut seek: Seek,
        found: ReadLease,
        gone: bool,
        doubt_since: Option<BootTime>,
        step: &mut Step,
    ) {
        if let Some(signal) = seek.interrupted() {
            return self.done(interrupted(signal, self.claim_may_land()), step);
        }
        let LeaseChoice { lease, seen, watched } = self.plan.leases[self.at].clone();
        let claim = Claim {
            lease,
            grant: self.plan.grant,
            epoch: self.ids.fresh(),
            write: self.fresh_write(),
            ttl: self.plan.timing.ttl,
            lock: self.plan.lock.clone(),
            // A run that waited holds the lease from now on, not from the start of its wait.
            holder: Holder { since: utc(step.wall), ..self.plan.holder.clone() },
        };
        let view = View {
            record: found.record(),
            age: found.age,
            resolution: self.plan.timing.clock.resolution,
            watched: found.watched(watched),
            holder_gone: gone || self.plan.force,
            instance: &found.instance,
            seen,
            forgotten: seek.forgotten == Some(true),
        };
        match self.rules.acquire(&view, &claim) {
            ClaimDecision::Take(record) => {
                let (failed, again_at, interrupted) = (None, None, None);
                seek.part = Seeking::Claiming { doubt_since, failed, again_at, interrupted };
                self.stage = Stage::Seeking(seek);
                let (found, version) = found.stored.unzip();
                let replaces = found.filter(|found| found.hold.is_some()).map(Box::new);
                self.ask_write(record, version, replaces, None, step);
            }
            ClaimDecision::Refuse(Refusal::Vanished { .. }) if seek.forgotten.is_none() => {
                seek.part = Seeking::Asking { found, doubt_since };
                self.stage = Stage::Seeking(seek);
                self.ask(What::Forgotten, Op::Forgotten, step);
            }
            ClaimDecision::Refuse(refusal) => self.refuse(refusal, step),
            ClaimDecision::Held { ends_in } => self.on_held(seek, found, ends_in, gone, doubt_since, step),
        }
    }

    fn on_held(
        &mut self,
        mut seek: Seek,
        found: ReadLease,
        ends_in: Option<Duration>,
        probed: bool,
        doubt_since: Option<BootTime>,
        step: &mut Step,
    ) {
        let Some((record, hold)) = found.record().and_then(|r| Some((r, r.hold.as_ref()?))) else {
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
        if ends_in.is_none() {
            self.watch(record, step);
        }
        let first = seek.busy.get_or_insert(busy.clone());
        // Of several leases, report one that other runs hold. An outer run is reported only if it holds them
        // all.
        let within = &self.plan.within;
        if first.lease == busy.lease || within.holds(first) && !within.holds(&busy) {
            *first = busy.clone();
        }
        match hold.lock.clone() {
            Some(lock) if !probed => {
                step.store(Request::Probe { grant: hold.grant, run: record.holder.run.clone(), lock });
                let part = Seeking::Probing { found, busy, doubt_since };
                self.stage = Stage::Seeking(Seek { part, ..seek });
            }
            _ => self.on_busy(seek, found, busy, step),
        }
    }

    /// Starts to watch a version whose age is unknown, or goes on with it.
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
        match core::mem::replace(&mut seek.part, Seeking::Reading { unanswered: false }) {
            Seeking::Probing { found, doubt_since, .. } if gone => {
                self.decide(seek, found, true, doubt_since, step);
            }
            Seeking::Probing { found, busy, .. } => self.on_busy(seek, found, busy, step),
            part => self.stage = Stage::Seeking(Seek { part, ..seek }),
        }
    }

    /// Tries the next lease of the list, waits, or gives up.
    fn on_busy(&mut self, mut seek: Seek, found: ReadLease, busy: Busy, step: &mut Step) {
        seek.forgotten = None;
        if self.at + 1 < self.plan.leases.len() {
            self.at += 1;
            return self.look(seek, step);
        }
        let for_itself = seek.busy.as_ref().filter(|busy| self.plan.within.holds(busy));
        if step.now >= seek.wait_until || for_itself.is_some() {
            let busy = seek.busy.unwrap_or(busy);
            if let Some(log) = self.plan.log.skipped(&self.plan, &busy, step.wall) {
                step.store(Request::Log(log));
            }
            return self.done(Outcome::Busy(busy), step);
        }
        if !core::mem::replace(&mut seek.waiting_told, true) {
            step.tell(Event::Waiting(busy.clone()));
        }
        let mut pause = backoff(seek.pauses, self.ids.fresh() ^ self.plan.grant.0);
        // Only one lease can be watched, so a list is polled.
        let pushed = found.pushes && self.plan.leases.len() == 1;
        if pushed {
            pause = PUSH_RETRY.min(busy.ttl / 3);
        }
        if let Some(ends_in) = busy.ends_in {
            pause = pause.min(ends_in + Duration::from_millis(1));
        }
        seek.pauses += 1;
        self.at = 0;
        let until = step.now.plus(pause).min(seek.wait_until.max(step.now));
        let watch = pushed.then(|| {
            let (id, version) = (self.fresh_request(), found.stored.map(|(_, version)| version));
            step.store(Request::Watch { id, lease: busy.lease, version, until });
            id
        });
        seek.part = Seeking::Waiting { until, watch, unanswered: false };
        self.stage = Stage::Seeking(seek);
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
                let from = attempt.map_or(step.now, |a| self.rules.counts_from(a));
                return self.on_granted(seek, record, version, from, store_time, step);
            }
            Cas::Conflict => conflict_without_change(),
            Cas::Unknown(failure) => {
                let attempt = self.attempts.iter_mut().find(|a| a.write == record.write);
                attempt.into_iter().for_each(|a| a.in_doubt = failure.landed == Landed::Maybe);
                failure
            }
        };
        let doubt_since = seek.doubt_since().or(Some(step.now));
        let (failed, interrupted) = (Some(failure), seek.interrupted());
        seek.part = Seeking::Claiming { doubt_since, failed, again_at: None, interrupted };
        self.stage = Stage::Seeking(seek);
        self.ask_read(step);
    }

    /// The outcome of a claim is unknown: it may still land, on this lease or an earlier one of the list.
    fn claim_may_land(&self) -> bool {
        self.attempts.iter().any(|a| a.in_doubt)
    }

    /// A claim on the lease that is being tried was sent, and may still land.
    fn may_land_here(&self) -> bool {
        self.attempts.iter().any(|a| a.at == self.at)
    }

    /// The lease was read after a claim that was not confirmed. `failed`: why, on the first look after it.
    fn on_claim_read_back(
        &mut self,
        seek: Seek,
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
        if let Some((record, version)) = &found.stored
            && let ReadBack::Ours { from, .. } = self.rules.settle(record, self.plan.grant, &self.attempts)
        {
            // If another process rewrote our new record (to ask us to stop, say), count from our first try.
            let first = self.attempts.iter().find(|a| a.at == self.at).map_or(step.now, |a| a.sent);
            let (record, version, from) = (record.clone(), version.clone(), from.unwrap_or(first));
            return self.on_granted(seek, record, version, from, None, step);
        }
        let write = found.record().map(|r| r.write);
        rules::prune(&mut self.attempts, self.at, found.stored.as_ref().map(|(_, version)| version), write);
        // Nothing changed since our claim. It failed, is still under way, or was refused although nothing
        // changed. A store that can be read but not written (a full disk, a missing right, a guard) must not
        // be asked without end.
        if let Some(failure) = failed.filter(|_| self.may_land_here()) {
            return self.on_claim_still_in_doubt(seek, None, failure, step);
        }
        // Not ours: decide on this reading as on a first one.
        let doubt_since = seek.doubt_since().filter(|_| self.may_land_here());
        self.decide(seek, found, false, doubt_since, step);
    }

    /// The store did not confirm a claim: try again for a while if that may help, then give up. A claim that
    /// lands after that expires. `failed` is kept until the claim is read back.
    fn on_claim_still_in_doubt(
        &mut self,
        mut seek: Seek,
        failed: Option<Failure>,
        failure: Failure,
        step: &mut Step,
    ) {
        let since = seek.doubt_since().unwrap_or(step.now);
        if failure.kind != FailureKind::Unreachable || step.now >= since.plus(self.plan.timing.timeout) {
            let in_doubt = self.claim_may_land();
            return self.done(Outcome::NotStarted(NotStarted::Store { failure, in_doubt }), step);
        }
        seek.pauses += 1;
        let again_at = Some(step.now.plus(backoff(seek.pauses, self.ids.fresh())));
        let (doubt_since, interrupted) = (Some(since), seek.interrupted());
        seek.part = Seeking::Claiming { doubt_since, failed, again_at, interrupted };
        self.stage = Stage::Seeking(seek);
    }

    /// A signal before the grant. While a claim is under way its answer is awaited: if the lease turns out to
    /// be ours, it is given back.
    pub(super) fn on_early_signal(&mut self, mut seek: Seek, signal: Signal, step: &mut Step) {
        match &mut seek.part {
            Seeking::Claiming { interrupted, .. } if signal.ends() => *interrupted = Some(signal),
            _ if signal.ends() => return self.done(interrupted(signal, self.claim_may_land()), step),
            _ => {}
        }
        self.stage = Stage::Seeking(seek);
    }

    fn on_granted(
        &mut self,
        seek: Seek,
        record: LeaseRecord,
        version: Version,
        from: BootTime,
        store_time: Option<Duration>,
        step: &mut Step,
    ) {
        let seen = SeenToken { epoch: record.epoch, token: record.token };
        let known = self.plan.leases[self.at].seen.filter(|_| seek.forgotten != Some(true));
        if known.is_some_and(|known| known.epoch != record.epoch) {
            step.tell(Event::EpochChanged);
        }
        self.attempts.retain(|a| a.at == self.at);
        // If another process rewrote our new record, the last of our claims is the one that landed.
        let landed = self.attempts.iter().find(|a| a.write == record.write).or(self.attempts.last());
        let replaced = landed.and_then(|a| a.replaces.clone());
        rules::prune(&mut self.attempts, self.at, Some(&version), Some(record.write));
        let granted = self.granted(&record);
        step.tell(Event::Granted(granted.clone()));
        // This comes first, so that this host knows the token before the job starts. A slow disk delays the
        // start, and a start that comes too late does not happen.
        step.store(Request::Remember { lease: record.lease.clone(), seen: Some(seen), watched: None });
        let replaced = replaced.as_deref();
        let log = replaced.and_then(|taken| self.plan.log.taken_over(taken, step.wall));
        let lock = replaced.and_then(|taken| taken.hold.as_ref()).filter(|hold| hold.lock.is_some());
        let requests = [lock.map(|hold| Request::Discard(hold.grant)), log.map(Request::Log)];
        let afterwards = requests.into_iter().flatten().map(Effect::Store);
        let revoked = record.hold.as_ref().is_some_and(|h| h.revoke);
        let revoked = revoked.then_some(Outcome::Lost { why: StopReason::Revoked, status: None });
        let hold = Hold { record, version, confirmed: from, doubt: false, lost: false };
        if let Some(unstarted) = seek.interrupted().map(|signal| interrupted(signal, false)).or(revoked) {
            step.out.extend(afterwards);
            self.leave_unstarted(hold, How::Unstarted(unstarted), None, step);
        } else if self.plan.by_hand {
            step.out.extend(afterwards);
            self.hand_over(hold, granted, step);
        } else {
            let held = Held {
                hold,
                renewal: Renewal::Due { at: from.plus(self.plan.timing.heartbeat), retries: 0 },
                store_clock: store_time.map(|t| (t, from)),
                part: Part::Sealing { interrupted: None },
            };
            if self.plan.seal {
                self.stage = Stage::Holding(held);
                step.push(Effect::Seal(granted));
            } else {
                self.open_item(held, step);
            }
            step.out.extend(afterwards);
        }
    }

    /// Hands over a lease that was taken by hand, with what is left of its TTL: an answer can come late.
    fn hand_over(&mut self, hold: Hold, granted: Granted, step: &mut Step) {
        let ttl = granted.ttl.saturating_sub(step.now.since(hold.confirmed));
        if ttl.is_zero() {
            let late = Outcome::Lost { why: StopReason::Deadline, status: None };
            return self.leave_unstarted(hold, How::Unstarted(late), None, step);
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
