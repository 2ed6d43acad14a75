//! By hand: renew, release and revoke as one-off errands, for scripts and operators.
//!
//! Read, decide, write conditionally, and in doubt read back: the same rules as a session's, without
//! a job.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::history::{self, HoldEnd};
use crate::ids::{Grant, Token, WriteId};
use crate::ledger::Alive;
use crate::name::Name;
use crate::record::{BadRecord, Hold, Holder, LeaseRecord};
use crate::rules::{LeaseStanding, Rules, Standard, View};
use crate::session::{Op, Reading};
use crate::store::{Cas, Failure};
use crate::timing::StoreClock;
use crate::update::{self, Update, UpdateDecision, UpdateOutcome};

/// What to do with the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneShotVerb {
    /// Keep it for another TTL, if this grant still holds it.
    Renew(Grant),
    /// Give it back, if this grant still holds it.
    Release(Grant),
    /// Ask whoever holds it to stop.
    Revoke,
}

/// What came of it.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneShotOutcome {
    /// Done.
    Done {
        /// The record as it now is.
        record: LeaseRecord,
        /// It had run out before it was given back, and nobody had taken it.
        late: bool,
    },
    /// Not ours any more: free, expired, or somebody else's.
    NotOurs(FoundInstead),
    /// Ours, but someone asked us to stop.
    Revoked(LeaseRecord),
    /// Nothing to revoke: free or expired.
    Idle(FoundInstead),
    /// The record must not be acted on.
    Bad(BadRecord),
    /// The store did not answer. `sent`: the change may have landed, or may yet.
    Failed {
        /// What it said.
        failure: Failure,
        /// Whether anything was written that may still take effect.
        sent: bool,
    },
}

/// What was found instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundInstead {
    /// No record at all.
    Absent,
    /// Free, with its last token.
    Free(Token),
    /// Held by this grant, but expired.
    Expired(Token),
    /// Held by another.
    Held(Token, Holder),
}

/// What the driver does next.
#[allow(clippy::large_enum_variant)] // there is one of them
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneShotNext {
    /// Call the store and answer.
    Ask(Op),
    /// Finished.
    Done(OneShotOutcome),
}

/// One errand.
#[derive(Clone, Debug)]
pub struct OneShot {
    verb: OneShotVerb,
    lease: Name,
    clock: StoreClock,
    /// How the hold ended, should this give it back; for people.
    end: Option<HoldEnd>,
    update: Update<LeaseRecord>,
    /// The writes that give back what had run out.
    late: Vec<WriteId>,
}

impl update::Record for LeaseRecord {
    fn write(&self) -> WriteId {
        self.write
    }
}

impl OneShot {
    /// An errand; `seed` must be random.
    pub fn new(verb: OneShotVerb, lease: Name, clock: StoreClock, seed: u128) -> Self {
        Self { verb, lease, clock, end: None, update: Update::new(seed), late: Vec::new() }
    }

    /// How the hold ended, for people: a release puts it into the record.
    pub fn ends(&mut self, end: HoldEnd) {
        self.end = Some(end);
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
                OneShotNext::Ask(Op::Cas { expected, write: record.write, body: record.encode() })
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
            OneShotVerb::Release(_) => {
                UpdateDecision::Write(history::noted(Standard.release(record, write), self.end.as_ref()))
            }
            OneShotVerb::Revoke if hold.revoke => {
                stop(OneShotOutcome::Done { record: record.clone(), late: false })
            }
            OneShotVerb::Revoke => UpdateDecision::Write(revoked(record, hold, standing, self.clock, write)),
        }
    }

    /// The lease this errand is about.
    pub fn lease(&self) -> &Name {
        &self.lease
    }
}

/// The record with a request to stop. Writing it restarts its age, so only what is left of the TTL is
/// kept: asking must not prolong the lease of a holder that no longer hears. What is left is never
/// understated, or the lease could be granted again before that holder stops.
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

/// How long to wait for a lease to end whose holder may not answer: a little longer than it can last, so that the last
/// look finds it expired.
pub fn latest_end(ttl: Duration, resolution: Duration) -> Duration {
    ttl + Duration::from_secs(2) + resolution * 2
}

/// Whether a holder has lost its lease. `waited`: nothing was seen of it for [`latest_end`]. A store without a clock
/// cannot say that a lease has expired; there a holder that was silent for so long has let it expire.
pub fn has_ended(alive: Alive, waited: bool) -> bool {
    match alive {
        Alive::No => true,
        Alive::Perhaps => waited,
        Alive::Yes => false,
    }
}

/// A sentence for people about what was found instead.
pub fn describe(found: &FoundInstead) -> String {
    match found {
        FoundInstead::Absent => "the store has no such lease".into(),
        FoundInstead::Free(token) => alloc::format!("it is free (last token {token})"),
        FoundInstead::Expired(token) => alloc::format!("token {token} has expired"),
        FoundInstead::Held(token, holder) => {
            alloc::format!("{}/{} holds it now (token {token})", holder.host, holder.pid)
        }
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
