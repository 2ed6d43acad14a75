//! By hand: renew, release and revoke as one-off errands, for scripts and operators.
//!
//! Read, decide, write conditionally, and in doubt read back: the same rules as a session's, without
//! a job.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{Grant, Ids, Token, WriteId};
use crate::name::Name;
use crate::past::{self, End};
use crate::record::{BadRecord, Hold, Holder, LeaseRecord};
use crate::rules::{Rules, Standard, Standing, View};
use crate::session::{Op, Reading};
use crate::stop::StoreClock;
use crate::store::{Cas, Failure, FailureKind, Version};

/// How often a lost race is run again.
const TRIES: u32 = 8;

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
    ids: Ids,
    /// How the hold ended, should this give it back; for people.
    end: Option<End>,
    /// Every write, and whether what it gives back had run out.
    sent: Vec<(WriteId, bool)>,
    /// The write under way: what it would replace.
    offered: Option<(LeaseRecord, Version)>,
    /// What writes of which nobody said that they came to nothing would replace: they may land while that is there.
    open: Vec<Version>,
    /// Why no more is tried, unless the record turns out to be ours.
    trouble: Option<Failure>,
    tries: u32,
}

impl Errand {
    /// An errand; `seed` must be random.
    pub fn new(verb: Verb, lease: Name, clock: StoreClock, seed: u128) -> Self {
        let ids = Ids::new(seed);
        let (sent, open) = (Vec::new(), Vec::new());
        Self { verb, lease, clock, ids, end: None, sent, offered: None, open, trouble: None, tries: 0 }
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
        let reading = match result {
            Ok(reading) => reading,
            Err(failure) => {
                let failure = self.trouble.take().unwrap_or(failure);
                return self.failed(failure);
            }
        };
        let version = reading.stored.as_ref().map(|stored| &stored.version);
        self.open.retain(|replaces| Some(replaces) == version);
        let Some(stored) = reading.stored else {
            return Next::Done(self.nothing(Found::Absent));
        };
        let record = match LeaseRecord::decode(&self.lease, &stored.body) {
            Ok(record) => record,
            Err(bad) => return Next::Done(ErrandOutcome::Bad(bad)),
        };
        if let Some(&(_, late)) = self.sent.iter().find(|(write, _)| *write == record.write) {
            return Next::Done(ErrandOutcome::Done { record, late });
        }
        let view = View::at_a_glance(&record, stored.age, self.clock.resolution, &reading.instance);
        let standing = Standard.standing(&record, &view);
        let write = WriteId(self.ids.fresh());
        match (self.decide(&record, standing, write, &reading.instance), self.trouble.take()) {
            (Ok(_), Some(failure)) => self.failed(failure),
            (Ok(next), None) => {
                let late = matches!(self.verb, Verb::Release(_)) && standing == Standing::Expired;
                self.offer(next, stored.version, late)
            }
            (Err(outcome), _) => Next::Done(outcome),
        }
    }

    /// A conditional write was answered. Whatever was said of it but that it is there, a look decides.
    pub fn on_cas(&mut self, result: Cas) -> Next {
        let last = self.tries >= TRIES;
        match (result, self.offered.take()) {
            (Cas::Written { .. }, Some((record, _))) => {
                let late = self.sent.last().is_some_and(|(_, late)| *late);
                return Next::Done(ErrandOutcome::Done { record, late });
            }
            (Cas::Unknown(failure), offered) => {
                self.open.extend(offered.filter(|_| !failure.definite()).map(|(_, replaces)| replaces));
                self.trouble = (last || failure.kind != FailureKind::Unreachable).then_some(failure);
            }
            _ => {
                self.trouble = last.then(|| Failure {
                    kind: FailureKind::Unreachable,
                    message: alloc::format!("the record changed {TRIES} times while we tried"),
                });
            }
        }
        Next::Ask(Op::Read)
    }

    fn failed(&self, failure: Failure) -> Next {
        let sent = !self.open.is_empty();
        Next::Done(ErrandOutcome::Failed { failure, sent })
    }

    fn nothing(&self, found: Found) -> ErrandOutcome {
        match self.verb {
            Verb::Renew(_) | Verb::Release(_) => ErrandOutcome::NotOurs(found),
            Verb::Revoke => ErrandOutcome::Idle(found),
        }
    }

    #[allow(clippy::result_large_err)] // not an error, the other outcome
    fn decide(
        &self,
        record: &LeaseRecord,
        standing: Standing,
        write: WriteId,
        instance: &str,
    ) -> Result<LeaseRecord, ErrandOutcome> {
        let Some(hold) = &record.hold else {
            return Err(self.nothing(Found::Free(record.token)));
        };
        let others = || self.nothing(Found::Held(record.token, record.holder.clone()));
        match self.verb {
            Verb::Renew(grant) | Verb::Release(grant) if hold.grant != grant => Err(others()),
            Verb::Renew(_) if standing == Standing::Expired => {
                Err(self.nothing(Found::Expired(record.token)))
            }
            Verb::Renew(_) if hold.revoke => Err(ErrandOutcome::Revoked(record.clone())),
            Verb::Renew(_) => Ok(Standard.renew(record, write, instance)),
            Verb::Release(_) => Ok(past::noted(Standard.release(record, write, instance), self.end.as_ref())),
            Verb::Revoke if standing == Standing::Expired => Err(self.nothing(Found::Expired(record.token))),
            Verb::Revoke if hold.revoke => Err(ErrandOutcome::Done { record: record.clone(), late: false }),
            Verb::Revoke => Ok(revoked(record, hold, standing, self.clock, write)),
        }
    }

    /// The lease this errand is about.
    pub fn lease(&self) -> &Name {
        &self.lease
    }

    fn offer(&mut self, record: LeaseRecord, version: Version, late: bool) -> Next {
        self.tries += 1;
        self.sent.push((record.write, late));
        let op = Op::Cas { expected: Some(version.clone()), write: record.write, body: record.encode() };
        self.offered = Some((record, version));
        Next::Ask(op)
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
