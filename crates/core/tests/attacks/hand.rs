//! A session driven by hand: one answer at a time, at times the test chooses.

use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::name::Name;
use leasehold_core::record::{Hold, Holder, LeaseRecord};
use leasehold_core::session::{
    Effect, Event, Input, LeaseChoice, LogPlan, Op, Outcome, Reading, Request, RequestId, Session,
    SessionPlan, StopReason, Within,
};
use leasehold_core::store::{Cas, Failure, FailureKind, Stored, Version};
use leasehold_core::time::{BootTime, Now};
use leasehold_core::timing::{StoreClock, Timing, TimingWishes};

pub(crate) fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(crate) fn site() -> Name {
    Name::new("site").unwrap()
}

/// A 90 s lease on a store with this clock, renewed every 30 s.
pub(crate) fn plan(grant: u128, clock: StoreClock) -> SessionPlan {
    SessionPlan {
        leases: vec![LeaseChoice { lease: site(), seen: None, watched: None }],
        grant: Grant(grant),
        timing: Timing::new(TimingWishes::default(), clock).unwrap(),
        wait: Duration::ZERO,
        max_run: None,
        seal: false,
        item: None,
        log: LogPlan::Nothing,
        by_hand: false,
        force: false,
        lock: None,
        holder: Holder {
            host: format!("h{grant}"),
            pid: 1,
            run: "r".into(),
            job: "j".into(),
            since: "then".into(),
            slot: None,
        },
        within: Within::default(),
    }
}

#[derive(Clone)]
pub(crate) struct Hand {
    pub(crate) session: Session,
    pub(crate) now: Duration,
    asked: Option<(RequestId, Name, Op)>,
    pub(crate) told: Vec<Effect>,
}

impl Hand {
    pub(crate) fn new(plan: SessionPlan) -> Self {
        let seed = plan.grant.0 << 64;
        Self { session: Session::new(plan, seed), now: secs(1_000), asked: None, told: Vec::new() }
    }

    /// A session that took an absent lease at second 1000 and runs its job.
    pub(crate) fn holding(plan: SessionPlan) -> (Self, LeaseRecord) {
        let mut hand = Self::new(plan);
        hand.step(Input::Start);
        hand.finds(None, None);
        let record = hand.sent();
        hand.written(None);
        (hand, record)
    }

    pub(crate) fn at(&mut self, second: u64) -> &mut Self {
        self.now = secs(second);
        self
    }

    pub(crate) fn step(&mut self, input: Input) -> &mut Self {
        let now = Now { boot: BootTime(self.now), awake: self.now, wall: self.now };
        for effect in self.session.step(input, now) {
            if let Effect::Store(Request::Ask { id, lease, op }) = &effect {
                self.asked = Some((*id, lease.clone(), op.clone()));
            }
            self.told.push(effect);
        }
        self
    }

    pub(crate) fn timer(&mut self) -> &mut Self {
        self.step(Input::Timer)
    }

    fn id(&self) -> RequestId {
        self.asked.as_ref().expect("nothing was asked").0
    }

    pub(crate) fn reads(&self) -> bool {
        matches!(self.asked, Some((_, _, Op::Read)))
    }

    /// The record of the write under way.
    pub(crate) fn sent(&self) -> LeaseRecord {
        match &self.asked {
            Some((_, lease, Op::Cas { body, .. })) => LeaseRecord::decode(lease, body).unwrap(),
            other => panic!("no write under way: {other:?}"),
        }
    }

    pub(crate) fn expects(&self) -> Option<Version> {
        match &self.asked {
            Some((_, _, Op::Cas { expected, .. })) => expected.clone(),
            other => panic!("no write under way: {other:?}"),
        }
    }

    /// The read under way finds this.
    pub(crate) fn finds(&mut self, record: Option<&LeaseRecord>, age: Option<Duration>) -> &mut Self {
        self.finds_in("i", record, age)
    }

    pub(crate) fn finds_in(
        &mut self,
        instance: &str,
        record: Option<&LeaseRecord>,
        age: Option<Duration>,
    ) -> &mut Self {
        assert!(self.reads(), "no read under way: {:?}", self.asked);
        let result = Ok(reading(instance, record, age));
        let id = self.id();
        self.step(Input::Read { id, result })
    }

    /// These forgotten-records are found.
    pub(crate) fn forgotten(&mut self, bodies: Vec<Vec<u8>>) -> &mut Self {
        assert!(matches!(self.asked, Some((_, _, Op::Forgotten))), "not asked: {:?}", self.asked);
        let id = self.id();
        self.step(Input::Forgotten { id, result: Ok(bodies) })
    }

    /// The read under way is not answered.
    pub(crate) fn silence(&mut self) -> &mut Self {
        let (id, result) = (self.id(), Err(silence()));
        self.step(Input::Read { id, result })
    }

    /// Nobody says whether the lease was forgotten.
    pub(crate) fn unanswered(&mut self) -> &mut Self {
        let (id, result) = (self.id(), Err(silence()));
        self.step(Input::Forgotten { id, result })
    }

    /// The read under way finds this on a store that reports changes.
    pub(crate) fn finds_pushing(&mut self, record: &LeaseRecord, age: Duration) -> &mut Self {
        let reading = Reading { pushes: true, ..reading("i", Some(record), Some(age)) };
        let (id, result) = (self.id(), Ok(reading));
        self.step(Input::Read { id, result })
    }

    /// The watch under way, with its end.
    pub(crate) fn watches(&self) -> Option<(RequestId, BootTime)> {
        self.told.iter().rev().find_map(|e| match e {
            Effect::Store(Request::Watch { id, until, .. }) => Some((*id, *until)),
            _ => None,
        })
    }

    pub(crate) fn asks(&self) -> usize {
        self.told.iter().filter(|e| matches!(e, Effect::Store(Request::Ask { .. }))).count()
    }

    pub(crate) fn written(&mut self, store_time: Option<Duration>) -> &mut Self {
        let version = Version(self.sent().write.to_string());
        let (id, result) = (self.id(), Cas::Written { version, store_time });
        self.step(Input::Cas { id, result })
    }

    pub(crate) fn conflict(&mut self) -> &mut Self {
        let (id, result) = (self.id(), Cas::Conflict);
        self.step(Input::Cas { id, result })
    }

    pub(crate) fn unknown(&mut self) -> &mut Self {
        let (id, result) = (self.id(), Cas::Unknown(silence()));
        self.step(Input::Cas { id, result })
    }

    /// The second from which the deadline counts.
    pub(crate) fn counts_from(&self) -> Duration {
        let timing = Timing::new(TimingWishes::default(), StoreClock::default()).unwrap();
        self.session.stop_at().unwrap().0 - timing.trusted_for()
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.told.iter().find_map(|e| match e {
            Effect::Done(outcome) => Some(outcome),
            _ => None,
        })
    }

    pub(crate) fn stopping(&self) -> Option<&StopReason> {
        self.told.iter().find_map(|e| match e {
            Effect::Tell(Event::Stopping(why)) => Some(why),
            _ => None,
        })
    }

    pub(crate) fn did(&self, effect: &Effect) -> bool {
        self.told.contains(effect)
    }

    pub(crate) fn started(&self) -> bool {
        self.told.iter().any(|e| matches!(e, Effect::Start { .. }))
    }
}

pub(crate) fn silence() -> Failure {
    Failure::new(FailureKind::Unreachable, "silence")
}

pub(crate) fn reading(instance: &str, record: Option<&LeaseRecord>, age: Option<Duration>) -> Reading {
    let stored = record.map(|r| Stored { body: r.encode(), version: Version(r.write.to_string()), age });
    Reading { stored, instance: instance.into(), pushes: false }
}

/// The same record, asked to stop.
pub(crate) fn revoked(record: &LeaseRecord, ttl: Duration) -> LeaseRecord {
    let hold = record.hold.clone().map(|h| Hold { revoke: true, ttl, ..h });
    LeaseRecord { hold, write: leasehold_core::ids::WriteId(7), ..record.clone() }
}
