//! A run of one slot, as `leasehold run --slot` does it: the lease by core's rules, the slot by the ledger.

use std::time::Duration;

use leasehold::core::ids::{Grant, WriteId};
use leasehold::core::ledger::{Amending, Ending, ItemState, Opened, Subject, finish, unknown_slot};
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShot, OneShotNext, OneShotOutcome, OneShotVerb};
use leasehold::core::record::{Holder, LeaseRecord};
use leasehold::core::rules::{Claim, ClaimDecision, Rules, Standard, View};
use leasehold::core::session::{Granted, Op, Reading, lease_key};
use leasehold::core::store::Cas;
use leasehold::core::time::BootTime;
use leasehold::core::timing::StoreClock;
use leasehold::ledger::{Item, ItemRecorder, amend_until, peek};
use leasehold::random;
use leasehold::stores::Store as _;
use leasehold_run::handoff::{NotBegun, SlotOutcome};
use leasehold_run::job_records::Terms;
use pollster::block_on;

use crate::flaws::Flaw;
use crate::store::Turned;
use crate::turns::Me;

/// A lost race for a lease, or a lost answer, is run again so often.
const TRIES: usize = 4;

/// What a run is started with.
#[derive(Clone, Debug)]
pub struct Spec {
    pub job: usize,
    pub terms: Terms,
    pub subject: Subject,
    pub at: i64,
    pub ttl: u64,
    pub wait: u64,
}

struct Run<'a> {
    me: &'a Me,
    spec: &'a Spec,
    flaw: Flaw,
    store: Turned,
    holder: Holder,
}

/// A lease that is ours until then, by our own clock.
struct Held {
    granted: Granted,
    until: u64,
}

pub fn run(me: &Me, spec: &Spec) {
    let Subject::Slot { id, job, .. } = &spec.subject else { return };
    let holder = Holder {
        host: "h".into(),
        pid: me.id as u32,
        run: format!("run-{}", me.id),
        job: job.to_string(),
        since: String::new(),
        slot: Some(id.clone()),
    };
    let flaw = me.stage.lock().flaw;
    let outcome = Run { me, spec, flaw, store: me.store(), holder }.whole();
    me.stage.lock().outcomes.insert(me.id, outcome);
}

impl Run<'_> {
    fn whole(&mut self) -> SlotOutcome {
        let Spec { terms, subject, .. } = self.spec;
        let (if_unknown, attempts) = (unknown_slot(terms.retry), terms.attempts);
        let item = Item { subject: subject.clone(), if_unknown, attempts, keep: None };
        if let Ok(Some(found)) = peek(&mut self.store, &item) {
            return outcome_of(&found);
        }
        let Some(mut held) = self.take_any() else { return SlotOutcome::NotBegun(NotBegun::Skipped) };
        if self.is_refused_by_its_target() {
            self.one_shot(OneShotVerb::Release(held.granted.grant), &held.granted.lease);
            return SlotOutcome::NotBegun(NotBegun::InVain);
        }
        let mut recorder = ItemRecorder::new(item, None, terms.job.clone(), self.holder.clone());
        if self.flaw == Flaw::ExecutesFirst {
            self.begin(&held);
        }
        let opened = recorder.open(&mut self.store, &held.granted);
        if opened.is_to_start() {
            if self.in_time(&held) {
                self.execute(&mut recorder, &opened.item, &mut held);
            } else {
                // Its command was never begun: it is for the next one.
                let ending = ending(None, String::new());
                recorder.record(&mut self.store, ItemState::Planned, ending, BootTime::default());
            }
        }
        if self.flaw != Flaw::ReleasesFirst {
            self.one_shot(OneShotVerb::Release(held.granted.grant), &held.granted.lease);
        }
        outcome_of(&opened.item)
    }

    /// As long as things go wrong.
    fn is_refused_by_its_target(&self) -> bool {
        let mut state = self.me.stage.lock();
        !state.calm && state.dice.chance(50)
    }

    fn in_time(&self, held: &Held) -> bool {
        self.me.clock() < held.until || self.flaw == Flaw::IgnoresDeadline
    }

    fn begin(&self, held: &Held) {
        let mut state = self.me.stage.lock();
        let clock = state.clock;
        state.watch.begins(self.me.id, self.spec.job, self.spec.at, &held.granted, held.until, clock);
    }

    /// The command, and what becomes of the slot.
    fn execute(&mut self, recorder: &mut ItemRecorder, opened: &Opened, held: &mut Held) {
        if self.flaw != Flaw::ExecutesFirst {
            self.begin(held);
        }
        for _ in 0..self.me.below(3) {
            let (clock, lasts) = (self.me.clock(), self.me.below(6));
            self.me.idle(clock + lasts);
            let sent = self.me.clock();
            if !self.in_time(held) {
                break;
            }
            let renewed = self.one_shot(OneShotVerb::Renew(held.granted.grant), &held.granted.lease);
            // An answer that comes too late finds the command stopped.
            if matches!(renewed, OneShotOutcome::Done { .. }) && self.in_time(held) {
                held.until = sent + self.spec.ttl - 1;
                self.me.stage.lock().watch.renewed(self.me.id, held.until);
            }
        }
        let state = match self.me.below(10) {
            _ if !self.in_time(held) => ItemState::Lost,
            0..=6 => ItemState::Ok,
            7..=8 => ItemState::Failed,
            _ => ItemState::Killed,
        };
        self.me.stage.lock().watch.ends(self.me.id, state);
        let exit = (state == ItemState::Ok).then_some(0);
        if self.flaw == Flaw::ReleasesFirst {
            self.one_shot(OneShotVerb::Release(held.granted.grant), &held.granted.lease);
        }
        let ending = ending(exit, String::new());
        match (opened, self.me.below(2)) {
            // As long as it takes: what Book does where it has the time. Here nothing waits.
            (Opened::Begun(entry, version), 0) => {
                let amending =
                    Amending::by_run(version.clone(), finish(entry, state, ending), random::seed());
                amend_until(&mut self.store, amending, BootTime(Duration::MAX), &mut |_, _| ());
            }
            _ => drop(recorder.record(&mut self.store, state, ending, BootTime::default())),
        }
        self.me.stage.lock().watch.reported(self.me.id);
    }

    /// The first lease that is free, if need be after a while.
    fn take_any(&mut self) -> Option<Held> {
        let patience = self.me.clock() + self.spec.wait;
        loop {
            for lease in &self.spec.terms.leases {
                if let Some(held) = self.take(lease) {
                    return Some(held);
                }
            }
            let now = self.me.clock();
            if now >= patience {
                return None;
            }
            self.me.idle(now + 3);
        }
    }

    fn take(&mut self, lease: &Name) -> Option<Held> {
        let (grant, epoch) = (Grant(random::seed()), random::seed());
        let ttl = Duration::from_secs(self.spec.ttl);
        let mut sent: Vec<(WriteId, u64)> = Vec::new();
        for _ in 0..TRIES {
            let stored = block_on(self.store.read(&lease_key(lease))).ok()?;
            let facts = self.store.facts();
            let record = stored.as_ref().map(|stored| LeaseRecord::decode(lease, &stored.body).unwrap());
            if let Some(record) = record.as_ref().filter(|record| record.held_by(grant)) {
                let (_, at) = *sent.iter().find(|(write, _)| *write == record.write)?;
                return Some(self.held(record, grant, at));
            }
            let mut view = View {
                record: record.as_ref(),
                age: stored.as_ref().and_then(|stored| stored.age),
                resolution: facts.resolution,
                watched: Duration::ZERO,
                holder_gone: false,
                instance: &facts.instance,
                seen: None,
                forgotten: false,
            };
            if self.flaw == Flaw::TakesEarly {
                view.age = Some(ttl * 2);
            }
            let write = WriteId(random::seed());
            let holder = self.holder.clone();
            let claim = Claim { lease: lease.clone(), grant, epoch, write, ttl, lock: None, holder };
            let ClaimDecision::Take(next) = Standard.acquire(&view, &claim) else { return None };
            let version = stored.map(|stored| stored.version);
            // The clock stands still between a call and its sending.
            let answer = block_on(self.store.cas(&lease_key(lease), version.as_ref(), write, &next.encode()));
            let at = self.me.clock();
            sent.push((write, at));
            if matches!(answer, Cas::Written { .. }) {
                return Some(self.held(&next, grant, at));
            }
        }
        None
    }

    fn held(&self, record: &LeaseRecord, grant: Grant, at: u64) -> Held {
        let LeaseRecord { lease, epoch, token, .. } = record.clone();
        let ttl = Duration::from_secs(self.spec.ttl);
        // A second earlier than others may take it.
        Held { granted: Granted { lease, epoch, token, grant, ttl }, until: at + self.spec.ttl - 1 }
    }

    /// Renews or gives back.
    fn one_shot(&mut self, verb: OneShotVerb, lease: &Name) -> OneShotOutcome {
        let mut one_shot = OneShot::new(verb, lease.clone(), StoreClock::default(), random::seed());
        let (key, mut op) = (lease_key(lease), one_shot.start());
        loop {
            let next = match op {
                Op::Read | Op::Forgotten => {
                    let stored = block_on(self.store.read(&key));
                    let instance = self.store.facts().instance;
                    one_shot.on_read(stored.map(|stored| Reading { stored, instance, pushes: false }))
                }
                Op::Cas { expected, write, body, log: _ } => {
                    one_shot.on_cas(block_on(self.store.cas(&key, expected.as_ref(), write, &body)))
                }
            };
            match next {
                OneShotNext::Ask(again) => op = again,
                OneShotNext::Done(outcome) => return outcome,
            }
        }
    }
}

/// What the run hands back.
fn outcome_of(opened: &Opened) -> SlotOutcome {
    match opened {
        Opened::Begun(..) => SlotOutcome::Begun(None),
        Opened::Unknown(..) | Opened::Quarantined(_) | Opened::Bad(_) => {
            SlotOutcome::NotBegun(NotBegun::NeedsYou)
        }
        Opened::Failed { .. } => SlotOutcome::NotBegun(NotBegun::Failed),
        Opened::Done(_) | Opened::Skipped(_) | Opened::InProgress(_) | Opened::Settled => {
            SlotOutcome::NotBegun(NotBegun::Skipped)
        }
    }
}

fn ending(exit: Option<i32>, said: String) -> Ending {
    Ending { exit, took_ms: 1, at: "then".into(), reason: None, said }
}
