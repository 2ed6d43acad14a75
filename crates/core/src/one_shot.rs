//! By hand: renew, release and revoke as one-off errands, for scripts and operators.
//!
//! Read, decide, write conditionally, and in doubt read back: the same rules as a session's, without
//! a job.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::history::{self, End};
use crate::ids::{Grant, Token, WriteId};
use crate::name::Name;
use crate::record::{BadRecord, Hold, Holder, LeaseRecord};
use crate::rules::{Rules, Standard, Standing, View};
use crate::session::{Op, Reading};
use crate::store::{Cas, Failure};
use crate::timing::StoreClock;
use crate::update::{self, Decision, Done, Update};

/// What to do with the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
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
pub enum ErrandOutcome {
    /// Done.
    Done {
        /// The record as it now is.
        record: LeaseRecord,
        /// It had run out before it was given back, and nobody had taken it.
        late: bool,
    },
    /// Not ours any more: free, expired, or somebody else's.
    NotOurs(Found),
    /// Ours, but someone asked us to stop.
    Revoked(LeaseRecord),
    /// Nothing to revoke: free or expired.
    Idle(Found),
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
pub enum Found {
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
pub enum Next {
    /// Call the store and answer.
    Ask(Op),
    /// Finished.
    Done(ErrandOutcome),
}

/// One errand.
#[derive(Clone, Debug)]
pub struct Errand {
    verb: Verb,
    lease: Name,
    clock: StoreClock,
    /// How the hold ended, should this give it back; for people.
    end: Option<End>,
    update: Update<LeaseRecord>,
    /// The writes that give back what had run out.
    late: Vec<WriteId>,
}

impl update::Record for LeaseRecord {
    fn write(&self) -> WriteId {
        self.write
    }
}

impl Errand {
    /// An errand; `seed` must be random.
    pub fn new(verb: Verb, lease: Name, clock: StoreClock, seed: u128) -> Self {
        Self { verb, lease, clock, end: None, update: Update::new(seed), late: Vec::new() }
    }

    /// How the hold ended, for people: a release puts it into the record.
    pub fn ends(&mut self, end: End) {
        self.end = Some(end);
    }

    /// The first call to make.
    pub fn start(&self) -> Op {
        Op::Read
    }

    /// A read was answered.
    pub fn on_read(&mut self, result: Result<Reading, Failure>) -> Next {
        let (stored, instance) = match result {
            Ok(reading) => (Ok(reading.stored), reading.instance),
            Err(failure) => (Err(failure), String::new()),
        };
        let decode = |stored| update::Found::of(stored, |body| LeaseRecord::decode(&self.lease, body));
        let found = match self.update.look(stored.map(|stored| stored.map(decode))) {
            Ok(found) => found,
            Err(next) => return self.next(next),
        };
        let Some(found) = found else { return Next::Done(self.nothing(Found::Absent)) };
        let record = match found.record {
            Ok(record) => record,
            Err(bad) => return Next::Done(ErrandOutcome::Bad(bad)),
        };
        let view = View::at_a_glance(&record, found.age, self.clock.resolution, &instance);
        let standing = Standard.standing(&record, &view);
        let write = self.update.fresh();
        match self.decide(&record, standing, write) {
            Decision::Write(next) => {
                if matches!(self.verb, Verb::Release(_)) && standing == Standing::Expired {
                    self.late.push(write);
                }
                let next = self.update.offer(Some(found.version), next);
                self.next(next)
            }
            Decision::Stop(outcome) => Next::Done(outcome),
        }
    }

    /// A conditional write was answered.
    pub fn on_cas(&mut self, result: Cas) -> Next {
        let next = self.update.on_cas(result);
        self.next(next)
    }

    fn next(&self, next: update::Next<LeaseRecord, ErrandOutcome>) -> Next {
        match next {
            update::Next::Read => Next::Ask(Op::Read),
            update::Next::Cas { expected, record } => {
                Next::Ask(Op::Cas { expected, write: record.write, body: record.encode() })
            }
            update::Next::Done(Done::Landed { record, .. }) => {
                let late = self.late.contains(&record.write);
                Next::Done(ErrandOutcome::Done { record, late })
            }
            update::Next::Done(Done::Stopped(outcome)) => Next::Done(outcome),
            update::Next::Done(Done::Failed { failure, open }) => {
                Next::Done(ErrandOutcome::Failed { failure, sent: open })
            }
        }
    }

    fn nothing(&self, found: Found) -> ErrandOutcome {
        match self.verb {
            Verb::Renew(_) | Verb::Release(_) => ErrandOutcome::NotOurs(found),
            Verb::Revoke => ErrandOutcome::Idle(found),
        }
    }

    fn decide(
        &self,
        record: &LeaseRecord,
        standing: Standing,
        write: WriteId,
    ) -> Decision<LeaseRecord, ErrandOutcome> {
        let stop = Decision::Stop;
        let Some(hold) = &record.hold else { return stop(self.nothing(Found::Free(record.token))) };
        let expired = standing == Standing::Expired;
        match self.verb {
            Verb::Renew(grant) | Verb::Release(grant) if hold.grant != grant => {
                stop(self.nothing(Found::Held(record.token, record.holder.clone())))
            }
            Verb::Renew(_) | Verb::Revoke if expired => stop(self.nothing(Found::Expired(record.token))),
            Verb::Renew(_) if hold.revoke => stop(ErrandOutcome::Revoked(record.clone())),
            Verb::Renew(_) => Decision::Write(Standard.renew(record, write)),
            Verb::Release(_) => {
                Decision::Write(history::noted(Standard.release(record, write), self.end.as_ref()))
            }
            Verb::Revoke if hold.revoke => stop(ErrandOutcome::Done { record: record.clone(), late: false }),
            Verb::Revoke => Decision::Write(revoked(record, hold, standing, self.clock, write)),
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
    standing: Standing,
    clock: StoreClock,
    write: WriteId,
) -> LeaseRecord {
    let left = match standing {
        Standing::Held { ends_in: Some(left) } => left.saturating_add(clock.jump),
        Standing::Held { ends_in: None } | Standing::Free | Standing::Expired => hold.ttl,
    };
    let ttl = left.clamp(Duration::from_millis(1), hold.ttl);
    let hold = Hold { revoke: true, ttl, ..hold.clone() };
    LeaseRecord { write, hold: Some(hold), ..record.clone() }
}

/// A sentence for people about what was found instead.
pub fn describe(found: &Found) -> String {
    match found {
        Found::Absent => "the store has no such lease".into(),
        Found::Free(token) => alloc::format!("it is free (last token {token})"),
        Found::Expired(token) => alloc::format!("token {token} has expired"),
        Found::Held(token, holder) => {
            alloc::format!("{}/{} holds it now (token {token})", holder.host, holder.pid)
        }
    }
}
