//! One change of a lease by hand: renew, release, or ask the holder to stop.
//!
//! It follows the rules of a session, but has no job: read, decide, write conditionally, and read back if in
//! doubt.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Grant, Token, WriteId};
use crate::ledger::Alive;
use crate::name::Name;
use crate::record::{BadRecord, Hold, Holder, LeaseRecord};
use crate::rules::{LeaseStanding, Rules, Standard, View};
use crate::session::{Op, Reading};
use crate::store::{Cas, Failure};
use crate::timing::StoreClock;
use crate::update::{self, Update, UpdateDecision, UpdateOutcome};

/// The change to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneShotVerb {
    /// Renew the lease, if this grant still holds it.
    Renew(Grant),
    /// Release the lease, if this grant still holds it.
    Release(Grant),
    /// Ask the holder to stop.
    Revoke,
}

/// The result of a change.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneShotOutcome {
    /// The change is made.
    Done {
        /// The new record.
        record: LeaseRecord,
        /// The lease had expired before it was released, and no other run had taken it.
        late: bool,
    },
    /// The lease is not ours any more: it is free or expired, or another run holds it.
    NotOurs(FoundInstead),
    /// The lease is ours, but a person asked us to stop.
    Revoked(LeaseRecord),
    /// There is no holder to ask: the lease is free or expired.
    Idle(FoundInstead),
    /// The record must not be acted on.
    Bad(BadRecord),
    /// The store did not answer.
    Failed {
        /// The failure.
        failure: Failure,
        /// Whether the change may have landed, or may still land.
        sent: bool,
    },
}

/// The state of a lease that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundInstead {
    /// There is no record.
    Absent,
    /// It is free. With its last token.
    Free(Token),
    /// It has expired. With its token.
    Expired(Token),
    /// Another run holds it. With its token.
    Held(Token, Holder),
}

/// The next step of the driver.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneShotNext {
    /// Call the store, and report the answer.
    Ask(Op),
    /// Finished.
    Done(OneShotOutcome),
}

/// One change of one lease.
#[derive(Clone, Debug)]
pub struct OneShot {
    verb: OneShotVerb,
    lease: Name,
    clock: StoreClock,
    update: Update<LeaseRecord>,
    /// The attempts that release a lease which had expired.
    late: Vec<WriteId>,
}

impl update::Record for LeaseRecord {
    fn write(&self) -> WriteId {
        self.write
    }
}

impl OneShot {
    /// A change; `seed` must be random.
    pub fn new(verb: OneShotVerb, lease: Name, clock: StoreClock, seed: u128) -> Self {
        Self { verb, lease, clock, update: Update::new(seed), late: Vec::new() }
    }

    /// The first call to make.
    pub fn start(&self) -> Op {
        Op::Read
    }

    /// A read was answered.
    pub fn on_read(&mut self, result: Result<Reading, Failure>) -> OneShotNext {
        let (stored, instance) = match result {
            Ok(reading) => (Ok(reading.stored), reading.instance),
            Err(failure) => (Err(failure), String::new()),
        };
        let decode = |stored| update::FoundRecord::of(stored, |body| LeaseRecord::decode(&self.lease, body));
        let found = match self.update.look(stored.map(|stored| stored.map(decode))) {
            Ok(found) => found,
            Err(next) => return self.next(next),
        };
        let Some(found) = found else { return OneShotNext::Done(self.nothing(FoundInstead::Absent)) };
        let record = match found.record {
            Ok(record) => record,
            Err(bad) => return OneShotNext::Done(OneShotOutcome::Bad(bad)),
        };
        let view = View::at_a_glance(&record, found.age, self.clock.resolution, &instance);
        let standing = Standard.standing(&record, &view);
        let write = self.update.fresh();
        match self.decide(&record, standing, write) {
            UpdateDecision::Write(next) => {
                if matches!(self.verb, OneShotVerb::Release(_)) && standing == LeaseStanding::Expired {
                    self.late.push(write);
                }
                let next = self.update.offer(Some(found.version), next);
                self.next(next)
            }
            UpdateDecision::Stop(outcome) => OneShotNext::Done(outcome),
        }
    }

    /// A conditional write was answered.
    pub fn on_cas(&mut self, result: Cas) -> OneShotNext {
        let next = self.update.on_cas(result);
        self.next(next)
    }

    fn next(&self, next: update::UpdateNext<LeaseRecord, OneShotOutcome>) -> OneShotNext {
        match next {
            update::UpdateNext::Read => OneShotNext::Ask(Op::Read),
            update::UpdateNext::Cas { expected, record } => {
                OneShotNext::Ask(Op::Cas { expected, write: record.write, body: record.encode(), log: None })
            }
            update::UpdateNext::Done(UpdateOutcome::Landed { record, .. }) => {
                let late = self.late.contains(&record.write);
                OneShotNext::Done(OneShotOutcome::Done { record, late })
            }
            update::UpdateNext::Done(UpdateOutcome::Stopped(outcome)) => OneShotNext::Done(outcome),
            update::UpdateNext::Done(UpdateOutcome::Failed { failure, open }) => {
                OneShotNext::Done(OneShotOutcome::Failed { failure, sent: open })
            }
        }
    }

    fn nothing(&self, found: FoundInstead) -> OneShotOutcome {
        match self.verb {
            OneShotVerb::Renew(_) | OneShotVerb::Release(_) => OneShotOutcome::NotOurs(found),
            OneShotVerb::Revoke => OneShotOutcome::Idle(found),
        }
    }

    fn decide(
        &self,
        record: &LeaseRecord,
        standing: LeaseStanding,
        write: WriteId,
    ) -> UpdateDecision<LeaseRecord, OneShotOutcome> {
        let stop = UpdateDecision::Stop;
        let Some(hold) = &record.hold else { return stop(self.nothing(FoundInstead::Free(record.token))) };
        let expired = standing == LeaseStanding::Expired;
        match self.verb {
            OneShotVerb::Renew(grant) | OneShotVerb::Release(grant) if hold.grant != grant => {
                stop(self.nothing(FoundInstead::Held(record.token, record.holder.clone())))
            }
            OneShotVerb::Renew(_) | OneShotVerb::Revoke if expired => {
                stop(self.nothing(FoundInstead::Expired(record.token)))
            }
            OneShotVerb::Renew(_) if hold.revoke => stop(OneShotOutcome::Revoked(record.clone())),
            OneShotVerb::Renew(_) => UpdateDecision::Write(Standard.renew(record, write)),
            OneShotVerb::Release(_) => UpdateDecision::Write(Standard.release(record, write)),
            OneShotVerb::Revoke if hold.revoke => {
                stop(OneShotOutcome::Done { record: record.clone(), late: false })
            }
            OneShotVerb::Revoke => UpdateDecision::Write(revoked(record, hold, standing, self.clock, write)),
        }
    }

    /// The lease that is changed.
    pub fn lease(&self) -> &Name {
        &self.lease
    }
}

/// The record with a request to stop. Writing it restarts its age, so its TTL is cut to the time that is
/// left: a request must not prolong the lease of a holder that is dead. The time is never too short, or
/// another run could get the lease before the holder stops.
fn revoked(
    record: &LeaseRecord,
    hold: &Hold,
    standing: LeaseStanding,
    clock: StoreClock,
    write: WriteId,
) -> LeaseRecord {
    let left = match standing {
        LeaseStanding::Held { ends_in: Some(left) } => left.saturating_add(clock.jump),
        LeaseStanding::Held { ends_in: None } | LeaseStanding::Free | LeaseStanding::Expired => hold.ttl,
    };
    let ttl = left.clamp(Duration::from_millis(1), hold.ttl);
    let hold = Hold { revoke: true, ttl, ..hold.clone() };
    LeaseRecord { write, hold: Some(hold), ..record.clone() }
}

/// How long to wait for the end of a lease if its holder may not answer: a little longer than the lease can
/// last, so that the last look finds it expired.
pub fn latest_end(ttl: Duration, resolution: Duration) -> Duration {
    ttl + Duration::from_secs(2) + resolution * 2
}

/// Whether a holder has lost its lease. `waited`: the holder has changed nothing for [`latest_end`]. A store
/// without a clock cannot say that a lease has expired; there, silence for that long means that it has.
pub fn has_ended(alive: Alive, waited: bool) -> bool {
    match alive {
        Alive::No => true,
        Alive::Perhaps => waited,
        Alive::Yes => false,
    }
}

/// A sentence for people about the state of the lease.
pub fn describe(found: &FoundInstead) -> String {
    match found {
        FoundInstead::Absent => "the store has no such lease".into(),
        FoundInstead::Free(token) => alloc::format!("it is free (last token {token})"),
        FoundInstead::Expired(token) => alloc::format!("token {token} has expired"),
        FoundInstead::Held(token, holder) => alloc::format!("{holder} holds it now (token {token})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_holder_has_ended_only_after_all_its_time() {
        let second = Duration::from_secs(1);
        assert_eq!(
            latest_end(second * 90, second),
            second * 94,
            "two looks of a coarse clock, and two seconds"
        );
        for (alive, at_first, at_the_end) in
            [(Alive::No, true, true), (Alive::Perhaps, false, true), (Alive::Yes, false, false)]
        {
            assert_eq!(
                (has_ended(alive, false), has_ended(alive, true)),
                (at_first, at_the_end),
                "{alive:?}"
            );
        }
    }
}
