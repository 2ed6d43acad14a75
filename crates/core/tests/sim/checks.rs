//! The checks: things that must never happen. They judge what really happened, not what a session believes.

use leasehold_core::fence::Bearer;
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::{Rules, SeenToken};
use leasehold_core::session::{
    Effect, Event, NotStarted, Outcome, Release, SessionPlan, StopReason, WatchedRecord,
};
use leasehold_core::time::BootTime;
use leasehold_core::timing::Timing;

use crate::faults::{Fault, Loss, nanos};
use crate::mutants::Mutant;
use crate::world::{From, Owner, Request, World, trace};

/// How a grant really ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    ReleasedByHand,
    Taken,
    Vanished,
}

/// A grant that landed in the store.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    pub(crate) owner: Owner,
    pub(crate) lease: usize,
    pub(crate) epoch: Epoch,
    pub(crate) token: Token,
    pub(crate) grant: Grant,
    pub(crate) by_hand: bool,
    landed_at: u64,
    /// The owner's clock when its record last landed with a full TTL, and whether a change by hand wrote it.
    applied: BootTime,
    by_errand: bool,
    end: Option<End>,
    /// Its record was given back and then forgotten. A run that slept in between cannot tell that from a loss.
    forgotten: bool,
    /// It was taken by force while held: P3 is waived.
    pub(crate) forced_off: bool,
    /// It was decided before the store lost writes and landed after that: no promise covers it.
    exempt: bool,
}

/// The newest seal of a target, which is promised to be safe from older grants.
#[derive(Clone, Debug)]
struct High {
    index: usize,
    epoch: Epoch,
    token: Token,
    owner: Owner,
    seq: u64,
}

pub(crate) struct Ledger {
    pub(crate) grants: Vec<Landed>,
    told: Vec<(usize, Epoch, Token, Owner)>,
    high: Vec<Option<High>>,
    current: Vec<Option<usize>>,
    /// The store has kept its promises so far.
    pub(crate) faith: bool,
    /// Sessions that take a lease by hand or by force. Their claims may land after they have ended.
    pub(crate) by_hand: Vec<Owner>,
    pub(crate) forcing: Vec<Owner>,
    held_since_quiet: bool,
}

impl Ledger {
    pub(crate) fn new(leases: usize) -> Self {
        Self {
            grants: Vec::new(),
            told: Vec::new(),
            high: vec![None; leases],
            current: vec![None; leases],
            faith: true,
            by_hand: Vec::new(),
            forcing: Vec::new(),
            held_since_quiet: false,
        }
    }

    pub(crate) fn index_of(&self, owner: Owner, lease: usize) -> Option<usize> {
        self.grants.iter().rposition(|g| g.owner == owner && g.lease == lease)
    }

    pub(crate) fn current(&self, lease: usize) -> Option<&Landed> {
        self.current[lease].map(|i| &self.grants[i])
    }

    pub(crate) fn end_current(&mut self, lease: usize, end: End) {
        if let Some(i) = self.current[lease].take() {
            self.grants[i].end.get_or_insert(end);
        }
    }

    /// Its record was removed on purpose.
    pub(crate) fn forget(&mut self, lease: usize) {
        self.end_current(lease, End::Vanished);
        let released = |g: &&mut Landed| g.lease == lease && g.end == Some(End::Released);
        self.grants.iter_mut().filter(released).for_each(|g| g.forgotten = true);
    }

    /// Whether the same lease was granted to another session later.
    pub(crate) fn superseded(&self, index: usize) -> bool {
        let Some(mine) = self.grants.get(index) else { return false };
        self.grants[index..].iter().any(|g| g.lease == mine.lease && g.owner != mine.owner)
    }
}

/// The facts about one session while it lasts.
#[derive(Default)]
pub(crate) struct Mark {
    timing: Option<Timing>,
    pub(crate) seen: Vec<Option<SeenToken>>,
    started: bool,
    done: bool,
    stop_at: Option<BootTime>,
    /// When a fault hit the session, and how badly: two faults excuse a lost lease.
    troubles: Vec<(u64, u32)>,
    pub(crate) clock_broken: bool,
    pub(crate) read_in: u32,
    pub(crate) doubled_release: bool,
}

impl Mark {
    pub(crate) fn new(plan: &SessionPlan) -> Self {
        Self { timing: Some(plan.timing), ..Self::default() }
    }
}

/// The purpose of a write that lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    Claim,
    Renew,
    Release,
    Errand,
}

impl WriteKind {
    pub(crate) fn is_blind_under(self, mutant: Mutant) -> bool {
        matches!(
            (self, mutant),
            (Self::Release, Mutant::ReleaseUnconditional)
                | (Self::Claim, Mutant::AcquireByPut)
                | (Self::Renew, Mutant::RenewUnconditional)
        )
    }
}

impl<R: Rules> World<R> {
    pub(crate) fn promises_p3(&self) -> bool {
        !self.config.wild && self.ledger.faith
    }

    pub(crate) fn write_kind(&self, request: &Request, record: &LeaseRecord) -> WriteKind {
        let From::Session(owner, _) = request.from else { return WriteKind::Errand };
        if record.hold.is_none() {
            return WriteKind::Release;
        }
        let known = self.ledger.index_of(owner, request.lease);
        match known.map(|i| self.ledger.grants[i].token) {
            Some(token) if token == record.token => WriteKind::Renew,
            _ => WriteKind::Claim,
        }
    }

    /// A write is about to be stored.
    pub(crate) fn check_landing(&mut self, request: &Request, record: &LeaseRecord) {
        let lease = request.lease;
        let by_errand = matches!(request.from, From::Errand(_));
        let Some(hold) = &record.hold else {
            if let From::Session(owner, _) = request.from
                && self.trees.iter().any(|t| t.owner == owner && t.alive() && !t.loose)
            {
                self.violate(format!("released by w{}.{} while its tree lives", owner.0, owner.1));
            }
            let end = if by_errand { End::ReleasedByHand } else { End::Released };
            return self.ledger.end_current(lease, end);
        };
        let before = self.store.rows[lease].as_ref().map(|row| &row.record);
        let same = before
            .is_some_and(|b| b.token == record.token && b.epoch == record.epoch && b.held_by(hold.grant));
        if same {
            if let Some(i) = self.ledger.current[lease] {
                let applied = self.clock_of(self.ledger.grants[i].owner.0);
                let grant = &mut self.ledger.grants[i];
                if hold.ttl == self.config.timing.ttl {
                    (grant.applied, grant.by_errand) = (applied, by_errand);
                }
            }
        } else if let From::Session(owner, _) = request.from {
            self.check_grant(owner, lease, record, hold.grant);
        }
        if self.quiet && !by_errand && !self.ledger.held_since_quiet {
            self.ledger.held_since_quiet = true;
            self.drain();
        }
    }

    fn clock_of(&self, w: usize) -> BootTime {
        let host = &self.hosts[self.workers[w].host];
        match self.mutant {
            Mutant::NapIgnored => BootTime(host.clock.now(self.now).awake),
            _ => host.clock.boot_time(self.now),
        }
    }

    fn check_grant(&mut self, owner: Owner, lease: usize, record: &LeaseRecord, grant: Grant) {
        let same_session = self.workers[owner.0].count == owner.1;
        let mark = &self.workers[owner.0].mark;
        let by_hand = self.ledger.by_hand.contains(&owner);
        let force = self.ledger.forcing.contains(&owner);
        let exempt = match self.config.loss {
            Loss::Keeps | Loss::Vanishes => false,
            Loss::Restarts => !same_session || mark.read_in != self.store.incarnation,
            Loss::Rewinds => !self.ledger.faith,
        };
        if !exempt {
            let same_life = |g: &&Landed| g.lease == lease && g.epoch == record.epoch;
            // The same request may land again on a store that lost it in between. That grants nothing new.
            let again = |g: &&Landed| g.grant == grant && g.token == record.token;
            let lost = self.config.loss == Loss::Vanishes;
            let mut grants = self.ledger.grants.iter().filter(same_life).filter(|g| !(lost && again(g)));
            let clash = grants.find(|g| g.token >= record.token);
            if let Some(clash) = clash {
                let (w, n) = clash.owner;
                self.violate(format!(
                    "P1: token {} of w{}.{} is not above token {} of w{w}.{n} in one epoch",
                    record.token, owner.0, owner.1, clash.token
                ));
            }
        }
        if let (Some(i), true) = (self.ledger.current[lease], force) {
            self.ledger.grants[i].forced_off = true;
        }
        self.ledger.end_current(lease, End::Taken);
        self.ledger.current[lease] = Some(self.ledger.grants.len());
        self.ledger.grants.push(Landed {
            owner,
            lease,
            epoch: record.epoch,
            token: record.token,
            grant,
            by_hand,
            landed_at: self.now,
            applied: self.clock_of(owner.0),
            by_errand: false,
            end: None,
            forgotten: false,
            forced_off: false,
            exempt,
        });
        if force {
            for tree in &mut self.trees {
                if tree.lease == lease {
                    tree.excused = u64::MAX;
                }
            }
        }
        self.check_overlap(lease);
    }

    /// P3: no process of an old job runs once the lease was granted to another session.
    pub(crate) fn check_overlap(&mut self, lease: usize) {
        if !self.promises_p3() {
            return;
        }
        let overlap = self.trees.iter().find(|t| {
            t.lease == lease && self.now > t.excused && self.executing(t) && self.ledger.superseded(t.index)
        });
        if let Some(tree) = overlap {
            let (w, n) = tree.owner;
            self.violate(format!("P3: the job of w{w}.{n} runs although the lease was granted again"));
        }
    }

    /// P2, for a seal (`seq` 0) or a write that was accepted.
    pub(crate) fn check_accept(&mut self, lease: usize, bearer: &Bearer, owner: Owner, seq: u64) {
        let index = self.ledger.index_of(owner, lease).unwrap_or(0);
        let what = format!("token {} of w{}.{}", bearer.token, owner.0, owner.1);
        if let Some(high) = &self.ledger.high[lease] {
            let same = high.owner == owner;
            let older = match self.ledger.faith {
                true => index < high.index,
                false => bearer.epoch == high.epoch && bearer.token < high.token,
            };
            let fork = bearer.epoch == high.epoch && bearer.token == high.token && !same;
            let order = high.seq + 1;
            let (high_token, (w, n)) = (high.token, high.owner);
            if older {
                return self.violate(format!("P2: {what} was let in after token {high_token} of w{w}.{n}"));
            }
            if fork {
                return self.violate(format!("P2: {what} was let in beside w{w}.{n} with the same token"));
            }
            if same && seq > 0 && seq != order {
                return self.violate(format!("P2: write {seq} of {what} where {order} was due"));
            }
        }
        let (epoch, token) = (bearer.epoch, bearer.token);
        self.ledger.high[lease] = Some(High { index, epoch, token, owner, seq });
    }

    pub(crate) fn check_effects(&mut self, owner: Owner, effects: &[Effect]) {
        let arms = effects.iter().filter(|e| matches!(e, Effect::Arm(_))).count();
        if arms != 1 || !matches!(effects.first(), Some(Effect::Arm(_))) {
            self.violate("effects: the timer is not armed first, or not once".into());
        }
        let starts = effects.iter().filter(|e| matches!(e, Effect::Start { .. })).count();
        let last_done = effects.iter().position(|e| matches!(e, Effect::Done(_)));
        let mark = &mut self.workers[owner.0].mark;
        let after_done = mark.done && effects.len() > 1;
        let twice = starts > 1 || starts == 1 && mark.started;
        mark.started |= starts > 0;
        mark.done |= last_done.is_some();
        if twice {
            self.violate(format!("effects: w{}.{} starts its job twice", owner.0, owner.1));
        }
        if after_done || last_done.is_some_and(|at| at + 1 != effects.len()) {
            self.violate(format!("effects: w{}.{} goes on after it was done", owner.0, owner.1));
        }
    }

    /// D counts from a write that really landed, and no earlier than D assumes.
    pub(crate) fn check_deadline(&mut self, owner: Owner) {
        let Some(session) = &self.workers[owner.0].session else { return };
        let stop_at = session.stop_at();
        let Some(lease) = session.record().map(|r| self.lease_index(&r.lease)) else { return };
        let mark = &mut self.workers[owner.0].mark;
        if stop_at == mark.stop_at {
            return;
        }
        mark.stop_at = stop_at;
        if self.config.wild || !self.ledger.faith || self.workers[owner.0].mark.clock_broken {
            return;
        }
        let (Some(stop_at), Some(timing)) = (stop_at, self.workers[owner.0].mark.timing) else { return };
        let Some(index) = self.ledger.index_of(owner, lease) else {
            return self.violate(format!("D: w{}.{} counts on a grant that never landed", owner.0, owner.1));
        };
        let grant = &self.ledger.grants[index];
        // A change by hand is dated by the store's clock, which may run at another rate.
        let slack = if grant.by_errand { timing.ttl / 500 } else { std::time::Duration::ZERO };
        let most = timing.stop_at(grant.applied.plus(slack));
        if stop_at > most {
            let by = stop_at.since(most);
            self.violate(format!("D: w{}.{} counts {by:?} too far", owner.0, owner.1));
        }
    }

    /// A version is watched only from a moment at which it was stored, or it could expire early.
    pub(crate) fn check_watched(&mut self, w: usize, lease: usize, watched: WatchedRecord) {
        let Some(row) = &self.store.rows[lease] else { return };
        let clock = &self.hosts[self.workers[w].host].clock;
        let nap = self.mutant == Mutant::NapIgnored; // must be caught by its effects
        if !nap && row.record.write == watched.write && clock.boot_time(row.landed) > watched.since {
            self.violate(format!("watched: w{w} counts from before the version was stored"));
        }
    }

    pub(crate) fn on_event(&mut self, owner: Owner, event: &Event) {
        match event {
            Event::Granted(granted) => {
                let lease = self.lease_index(&granted.lease);
                self.check_told(owner, lease, granted.epoch, granted.token);
            }
            Event::Stopping(why) => self.check_stop(owner, why),
            _ => {}
        }
    }

    fn check_told(&mut self, owner: Owner, lease: usize, epoch: Epoch, token: Token) {
        let landed = self.ledger.index_of(owner, lease).map(|i| self.ledger.grants[i].clone());
        // Of two, the one reported later may have landed first, so each of them may be excused.
        let exempt = |who| self.ledger.index_of(who, lease).is_some_and(|i| self.ledger.grants[i].exempt);
        let told = self.ledger.told.iter().filter(|t| t.0 == lease && t.1 == epoch && t.2 == token);
        let other = told.map(|t| t.3).find(|other| *other != owner && !exempt(*other) && !exempt(owner));
        if let Some((w, n)) = other {
            self.violate(format!("P1: w{}.{} and w{w}.{n} were both told token {token}", owner.0, owner.1));
        }
        self.ledger.told.push((lease, epoch, token, owner));
        let seen = self.workers[owner.0].mark.seen.get(lease).copied().flatten();
        if seen.is_some_and(|s| s.epoch == epoch && token <= s.token) {
            self.violate(format!("memory: token {token} granted on a host that has seen it before"));
        }
        match landed {
            None => self.violate(format!("P1: w{}.{} believes in a grant nobody stored", owner.0, owner.1)),
            Some(g) if g.landed_at + nanos(self.config.timing.timeout) < self.now => {
                self.met.add(Fault::LateClaimFound);
            }
            Some(_) => {}
        }
    }

    /// A job is ended for loss only if the lease was lost, or two things went wrong since it was confirmed.
    fn check_stop(&mut self, owner: Owner, why: &StopReason) {
        if self.config.wild || !self.ledger.faith {
            return;
        }
        match why {
            StopReason::Taken { .. } | StopReason::Gone => self.check_loss(owner),
            // A machine that stood still sees all other clocks run ahead, and must stop.
            StopReason::StoreClock if self.workers[owner.0].mark.clock_broken => {}
            // These two mutants must be caught by their effects.
            StopReason::StoreClock if matches!(self.mutant, Mutant::NapIgnored | Mutant::JumpIgnored) => {}
            StopReason::StoreClock => {
                self.violate("liveness: stopped for a store clock that kept within its bounds".into());
            }
            StopReason::Deadline => {
                let mark = &self.workers[owner.0].mark;
                let (Some(at), Some(timing)) = (mark.stop_at, mark.timing) else { return };
                let confirmed = at.minus(timing.trusted_for());
                let since = self.hosts[self.workers[owner.0].host].clock.real_at(confirmed);
                let weight: u32 = mark.troubles.iter().filter(|t| t.0 >= since).map(|t| t.1).sum();
                if weight < 2 {
                    self.violate(format!(
                        "liveness: w{}.{} gave up a lease that one lost message cannot cost",
                        owner.0, owner.1
                    ));
                }
            }
            _ => {}
        }
    }

    fn check_loss(&mut self, owner: Owner) {
        let mut grants = self.ledger.grants.iter().filter(|g| g.owner == owner);
        let ours =
            grants.next_back().is_some_and(|g| matches!(g.end, None | Some(End::Released)) && !g.forgotten);
        // If a library repeats a write, the answer may be "conflict" although it landed. Drivers turn that off.
        let doubled = self.workers[owner.0].mark.doubled_release;
        if ours && !doubled && self.ledger.faith && !self.config.wild {
            self.violate(format!(
                "liveness: w{}.{} reports its lease lost, which nobody took",
                owner.0, owner.1
            ));
        }
    }

    pub(crate) fn check_outcome(&mut self, owner: Owner, outcome: &Outcome) {
        let lives = self.trees.iter().any(|t| t.owner == owner && t.alive() && !t.loose);
        if lives {
            self.violate(format!("w{}.{} is over while its tree lives", owner.0, owner.1));
        }
        match outcome {
            Outcome::Lost { why: StopReason::Taken { .. } | StopReason::Gone, .. } => self.check_loss(owner),
            Outcome::Finished { release: Release::Done, .. }
                if self.promises_p3() && !self.workers[owner.0].mark.clock_broken =>
            {
                let mine = |g: &&Landed| g.owner == owner;
                let ended = |g: &Landed| g.end == Some(End::Released) || g.forced_off;
                let released = self.ledger.grants.iter().filter(mine).any(ended);
                if !released {
                    self.violate(format!("w{}.{} reports a release that never was", owner.0, owner.1));
                }
            }
            Outcome::NotStarted(NotStarted::Refused { refusal, .. }) => {
                self.met.add(Fault::HostRefuses);
                if self.ledger.faith {
                    self.violate(format!("liveness: refused without cause: {refusal:?}"));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn check_held(&mut self) {
        if self.ledger.held_since_quiet {
            return;
        }
        if self.promises_p3() {
            return self
                .violate("liveness: nobody holds the lease although nothing stands in the way".into());
        }
        self.drain();
    }

    pub(crate) fn check_end(&mut self) {
        if let Some(w) = self.workers.iter().position(|w| w.session.is_some()) {
            self.violate(format!("liveness: the session of w{w} never ends"));
        }
        if let Some(tree) = self.trees.iter().find(|t| t.alive() && !t.loose) {
            let (w, n) = tree.owner;
            self.violate(format!("the tree of w{w}.{n} outlives everything"));
        }
        trace!(self, "end");
    }

    pub(crate) fn trouble(&mut self, from: From, weight: u32) {
        if let From::Session((w, _), _) = from {
            self.trouble_worker(w, weight, self.now);
        }
    }

    pub(crate) fn trouble_worker(&mut self, w: usize, weight: u32, until: u64) {
        self.workers[w].mark.troubles.push((until, weight));
    }

    pub(crate) fn trouble_all(&mut self, weight: u32) {
        for w in 0..self.workers.len() {
            self.trouble_worker(w, weight, self.now);
        }
    }
}
