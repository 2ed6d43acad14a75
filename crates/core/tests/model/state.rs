//! One state of the model and the steps that lead out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, RefusalReason, verdict};
use leasehold_core::forgotten::{Forgotten, Names};
use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::name::Name;
use leasehold_core::record::{Holder, LeaseRecord};
use leasehold_core::rules::{Rules, SeenToken};
use leasehold_core::session::{
    Distance, Effect, Event, Granted, Input, JobExit, LeaseChoice, LogPlan, NotStarted, Op, Outcome, Phase,
    Reading, Request, RequestId, Session, SessionPlan, Within,
};
use leasehold_core::store::{Cas, Failure, FailureKind, Stored, Version};
use leasehold_core::time::{BootTime, Now};
use leasehold_core::timing::{StoreClock, Timing};

use crate::Leases;
use crate::item::{Item, Task};

const TTL: u64 = 2;
const INSTANCE: &str = "i";

/// A flaw outside of the rules, as a negative control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    ConflictIsWin,
    ClaimByPut,
    ReleaseBlind,
    CheckThenWrite,
    NoSeal,
    /// The command is executed before its item is started.
    StartsFirst,
    /// The lease is given back before the end is recorded.
    RecordsLast,
    /// The end is written without comparing versions.
    ClosesBlind,
    /// An item with an unknown outcome is run again.
    RetriesUnknown,
    /// A lease is removed, and no record says that it was forgotten.
    ForgetsSilently,
    /// A lease is removed without comparing versions.
    ForgetsBlind,
}

/// An action that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Tick,
    Begin(usize),
    /// The request at this place reaches the store.
    Land(usize),
    /// The sender gives up on a write, which may still land: its answer was lost or late.
    GiveUp(usize),
    Timer(usize),
    Seal(usize),
    Write(usize),
    Commit(usize),
    Exit(usize),
    Crash(usize),
    /// The item is read and decided on.
    Open(usize),
    /// A write of the item lands.
    ItemLands(usize),
    /// It is said that the lease, which is free, is forgotten.
    Announce,
    /// Its record is removed, if it is still the one that was announced.
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    client: usize,
    id: RequestId,
    op: Op,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Job {
    granted: Granted,
    grant: usize,
    acked: u64,
    left: u8,
    /// Only under check-then-write: the write that was checked and comes next.
    checked: Option<Fence>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client<R: Rules> {
    session: Option<Session<R>>,
    begun: bool,
    armed: Option<BootTime>,
    waiting: Option<RequestId>,
    sealing: Option<Granted>,
    pub(crate) task: Task,
    job: Option<Job>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    body: Vec<u8>,
    version: Version,
    stamp: u64,
    record: LeaseRecord,
}

/// What really happened. No client sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    pub(crate) grants: Vec<(Epoch, Token, usize)>,
    told: Vec<(Epoch, Token, usize)>,
    /// The newest grant that the target was sealed for: older ones must not write.
    high: usize,
    pub(crate) two_grants: bool,
    pub(crate) token_back: bool,
    pub(crate) stale_write: bool,
    pub(crate) foreign_release: bool,
    pub(crate) early_release: bool,
    /// A client was refused, although the record was removed on purpose.
    pub(crate) refused: bool,
    /// A record that said held was removed.
    pub(crate) held_removed: bool,
}

/// Sights on the way. They are not part of the state, which they would multiply.
#[derive(Default)]
pub(crate) struct Sights {
    pub(crate) refused_stale: AtomicBool,
    pub(crate) recovered: AtomicBool,
    pub(crate) landed_late: AtomicBool,
    pub(crate) passed_on: AtomicBool,
    pub(crate) began_again: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<R: Rules> {
    tick: u64,
    // Shared until changed: a state differs little from the one before.
    clients: Vec<Arc<Client<R>>>,
    network: Vec<Arc<Message>>,
    row: Option<Arc<Row>>,
    fence: Option<Fence>,
    lost_left: u8,
    crashes_left: u8,
    forgets_left: u8,
    /// What says that the lease was forgotten.
    forgotten: Vec<Forgotten>,
    /// The version that is to be removed.
    to_remove: Option<Version>,
    /// The token that the clients, which share a host, have seen last.
    seen: Option<SeenToken>,
    pub(crate) item: Item,
    pub(crate) ghost: Ghost,
}

fn lease() -> Name {
    Name::new("site").expect("a valid name")
}

pub(crate) fn grant_of(client: usize) -> Grant {
    Grant(100 + client as u128)
}

fn plan(client: usize, item: bool, seen: Option<SeenToken>) -> SessionPlan {
    let second = Duration::from_secs(1);
    let timing = Timing {
        ttl: second * u32::try_from(TTL).unwrap_or(1),
        // One client that renews is enough; the leases of the others expire.
        heartbeat: if client == 0 { second } else { second * 100 },
        grace: Duration::ZERO,
        margin: Duration::ZERO,
        // Giving up is a step of the model, not a matter of time.
        timeout: second * 1_000,
        clock: StoreClock::default(),
    };
    let holder = Holder {
        host: "h".into(),
        pid: u32::try_from(client).unwrap_or(0),
        run: String::new(),
        job: String::new(),
        since: String::new(),
        slot: None,
    };
    SessionPlan {
        leases: vec![LeaseChoice { lease: lease(), seen, watched: None }],
        grant: grant_of(client),
        timing,
        wait: Duration::ZERO,
        max_run: None,
        seal: !item,
        item: item.then_some(Distance::Far),
        log: LogPlan::Nothing,
        by_hand: false,
        force: false,
        lock: None,
        holder,
        within: Within::default(),
    }
}

fn bearer(granted: &Granted) -> Bearer {
    Bearer { lease: granted.lease.clone(), epoch: granted.epoch, token: granted.token, grant: granted.grant }
}

impl<R: Rules> State<R> {
    pub(crate) fn new(model: &Leases<R>) -> Self {
        let client = Client {
            session: None,
            begun: false,
            armed: None,
            waiting: None,
            sealing: None,
            task: Task::None,
            job: None,
        };
        Self {
            tick: 1,
            clients: (0..model.clients).map(|_| Arc::new(client.clone())).collect(),
            network: Vec::new(),
            row: None,
            fence: None,
            lost_left: model.lost,
            crashes_left: model.crashes,
            forgets_left: model.forgets,
            forgotten: Vec::new(),
            to_remove: None,
            seen: None,
            item: Item::default(),
            ghost: Ghost::default(),
        }
    }

    pub(crate) fn client(&mut self, c: usize) -> &mut Client<R> {
        Arc::make_mut(&mut self.clients[c])
    }

    fn now(&self) -> Now {
        let now = Duration::from_secs(self.tick);
        Now { boot: BootTime(now), awake: now, wall: Duration::ZERO }
    }

    pub(crate) fn actions(&self, model: &Leases<R>, actions: &mut Vec<Act>) {
        if self.tick < model.ticks {
            actions.push(Act::Tick);
        }
        // Clients differ only in their ids, so they begin in order.
        if let Some(c) = self.clients.iter().position(|c| !c.begun) {
            actions.push(Act::Begin(c));
        }
        // No message that creates the record is under way: the record has been free for an hour.
        let creates = |m: &Arc<Message>| matches!(m.op, Op::Cas { expected: None, .. });
        let free = self.row.as_ref().is_some_and(|row| row.record.hold.is_none());
        if self.forgets_left > 0 && free && !self.network.iter().any(creates) {
            actions.push(Act::Announce);
        }
        if self.to_remove.is_some() {
            actions.push(Act::Remove);
        }
        for (at, message) in self.network.iter().enumerate() {
            actions.push(Act::Land(at));
            let awaited = self.clients[message.client].waiting == Some(message.id);
            let write = matches!(message.op, Op::Cas { .. });
            if write && awaited && self.lost_left > 0 && message.client < model.fragile {
                actions.push(Act::GiveUp(at));
            }
        }
        for (c, client) in self.clients.iter().enumerate() {
            let due = client.armed.is_some_and(|at| at <= self.now().boot);
            if due && client.session.is_some() {
                actions.push(Act::Timer(c));
            }
            if client.sealing.is_some() {
                actions.push(Act::Seal(c));
            }
            match client.task {
                Task::Open(_) => actions.push(Act::Open(c)),
                Task::Write(..) | Task::Record(..) => actions.push(Act::ItemLands(c)),
                Task::None | Task::Ours(_) => {}
            }
            if let Some(job) = &client.job {
                match job.checked {
                    Some(_) => actions.push(Act::Commit(c)),
                    None if job.left > 0 => actions.push(Act::Write(c)),
                    None => {}
                }
                if client.session.is_some() {
                    actions.push(Act::Exit(c));
                }
            }
            // Without a job, a crash is the same as a pause without end.
            if self.crashes_left > 0 && client.session.is_some() && client.job.is_some() {
                actions.push(Act::Crash(c));
            }
        }
    }

    pub(crate) fn act(&mut self, model: &Leases<R>, act: Act) {
        match act {
            Act::Tick => self.tick += 1,
            Act::Begin(c) => {
                let seed = (c as u128 + 1) << 64;
                self.client(c).begun = true;
                self.client(c).session =
                    Some(Session::with_rules(plan(c, model.item, self.seen), seed, model.rules.clone()));
                self.step(model, c, Input::Start);
            }
            Act::Land(at) => self.land(model, at),
            Act::GiveUp(at) => self.give_up(model, at),
            Act::Timer(c) => self.step(model, c, Input::Timer),
            Act::Seal(c) => self.seal(model, c),
            Act::Write(c) => self.write(model, c),
            Act::Commit(c) => self.commit(c),
            Act::Exit(c) => {
                self.client(c).job = None;
                self.step(model, c, Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
            }
            Act::Open(c) => self.open_item(model, c),
            Act::ItemLands(c) => self.item_lands(model, c),
            Act::Announce => self.announce(model),
            Act::Remove => self.remove(model),
            Act::Crash(c) => {
                // Its job lives on: only the fence can stop it.
                self.crashes_left -= 1;
                self.end(c);
            }
        }
    }

    fn end(&mut self, c: usize) {
        let client = self.client(c);
        client.session = None;
        client.armed = None;
        client.waiting = None;
        client.sealing = None;
        // A write of the item may land late; nothing else does.
        if let Task::Open(_) | Task::Ours(_) = client.task {
            client.task = Task::None;
        }
        // Reads of a session that is over can change nothing.
        self.network.retain(|m| m.client != c || matches!(m.op, Op::Cas { .. }));
        self.forget_hopeless();
    }

    pub(crate) fn step(&mut self, model: &Leases<R>, c: usize, input: Input) {
        let now = self.now();
        let Some(session) = self.client(c).session.as_mut() else { return };
        let effects = session.step(input, now);
        for effect in effects {
            self.carry_out(model, c, effect);
        }
    }

    fn carry_out(&mut self, model: &Leases<R>, c: usize, effect: Effect) {
        match effect {
            Effect::Arm(at) => self.client(c).armed = at,
            Effect::Store(Request::Ask { id, op, .. }) => {
                // The session ignores answers to calls that it gave up; only late writes matter.
                self.network.retain(|m| m.client != c || matches!(m.op, Op::Cas { .. }));
                self.client(c).waiting = Some(id);
                self.network.push(Arc::new(Message { client: c, id, op }));
                self.network.sort_by_key(|m| (m.client, m.id));
                self.forget_hopeless();
            }
            Effect::Store(Request::OpenItem(granted)) => self.client(c).task = Task::Open(granted),
            Effect::Store(Request::RecordItem { state, ending, .. }) => {
                self.record_item(model, c, state, ending);
            }
            Effect::Seal(granted) => self.client(c).sealing = Some(granted),
            Effect::Start { granted, .. } => {
                if model.item {
                    self.executes(c);
                }
                let mine = (granted.epoch, granted.token, c);
                let grant = self.ghost.grants.iter().position(|g| *g == mine).unwrap_or(0);
                let left = u8::from(c < model.writers);
                self.client(c).job = Some(Job { granted, grant, acked: 0, left, checked: None });
            }
            Effect::Kill if self.client(c).job.take().is_some() => {
                self.step(model, c, Input::JobExited { exit: JobExit::Signal(137), tree_empty: true });
            }
            Effect::Tell(Event::Granted(granted)) => self.told(model, c, &granted),
            Effect::Done(outcome) => {
                let refused = matches!(outcome, Outcome::NotStarted(NotStarted::Refused { .. }));
                self.ghost.refused |= refused;
                self.end(c);
            }
            _ => {}
        }
    }

    fn told(&mut self, model: &Leases<R>, c: usize, granted: &Granted) {
        let same = |t: &(Epoch, Token, usize)| t.0 == granted.epoch && t.1 == granted.token && t.2 != c;
        self.ghost.two_grants |= self.ghost.told.iter().any(same);
        self.ghost.told.push((granted.epoch, granted.token, c));
        if model.forgets > 0 {
            if self.seen.is_some_and(|seen| seen.epoch != granted.epoch) {
                model.sights.began_again.store(true, Ordering::Relaxed);
            }
            self.seen = Some(SeenToken { epoch: granted.epoch, token: granted.token });
        }
        if self.ghost.told.len() > 1 {
            model.sights.passed_on.store(true, Ordering::Relaxed);
        }
        if self.lost_left < model.lost {
            model.sights.recovered.store(true, Ordering::Relaxed);
        }
    }

    fn land(&mut self, model: &Leases<R>, at: usize) {
        let Message { client: c, id, op } = Arc::unwrap_or_clone(self.network.remove(at));
        let input = match op {
            Op::Read => {
                let stored = self.row.as_ref().map(|row| Stored {
                    body: row.body.clone(),
                    version: row.version.clone(),
                    age: Some(Duration::from_secs(self.tick - row.stamp)),
                });
                Input::Read { id, result: Ok(Reading { stored, instance: INSTANCE.into(), pushes: false }) }
            }
            Op::Forgotten => {
                let bodies = self.forgotten.iter().map(Forgotten::encode).collect();
                Input::Forgotten { id, result: Ok(bodies) }
            }
            Op::Cas { expected, body, .. } => {
                let result = self.land_cas(model, c, expected.as_ref(), body);
                if matches!(result, Cas::Written { .. }) && self.clients[c].waiting != Some(id) {
                    model.sights.landed_late.store(true, Ordering::Relaxed);
                }
                Input::Cas { id, result }
            }
        };
        if self.clients[c].waiting == Some(id) {
            // There is no step for a late answer: a session that acts later sees the same, and an answer that
            // comes too late is a lost one.
            self.step(model, c, input);
        }
        self.forget_hopeless();
    }

    fn give_up(&mut self, model: &Leases<R>, at: usize) {
        let Message { client, id, .. } = *self.network[at];
        self.lost_left -= 1;
        self.client(client).waiting = None;
        let failure = Failure::new(FailureKind::Unreachable, String::new());
        self.step(model, client, Input::Cas { id, result: Cas::Unknown(failure) });
        self.forget_hopeless();
    }

    /// A version never comes back, so a write that expects an older one can only be refused. That makes no
    /// difference unless a session waits for the refusal.
    fn forget_hopeless(&mut self) {
        let version = self.row.as_ref().map(|r| &r.version);
        let clients = &self.clients;
        self.network.retain(|m| match &m.op {
            Op::Read | Op::Forgotten => true,
            Op::Cas { expected, .. } => {
                expected.as_ref() == version || clients[m.client].waiting == Some(m.id)
            }
        });
    }

    fn announce(&mut self, model: &Leases<R>) {
        let Some(row) = &self.row else { return };
        self.forgets_left -= 1;
        self.to_remove = Some(row.version.clone());
        if model.flaw != Flaw::ForgetsSilently {
            let last = SeenToken { epoch: row.record.epoch, token: row.record.token };
            let record = self.forgotten.pop().unwrap_or_else(|| Forgotten::new(Names::One(lease())));
            self.forgotten.push(record.with(Some(last)));
        }
    }

    fn remove(&mut self, model: &Leases<R>) {
        let version = self.to_remove.take();
        let Some(row) = &self.row else { return };
        if Some(&row.version) == version.as_ref() || model.flaw == Flaw::ForgetsBlind {
            self.ghost.held_removed |= row.record.hold.is_some();
            self.row = None;
            self.forget_hopeless();
        }
    }

    fn land_cas(&mut self, model: &Leases<R>, c: usize, expected: Option<&Version>, body: Vec<u8>) -> Cas {
        let record = LeaseRecord::decode(&lease(), &body).expect("a body the session wrote");
        let before = self.row.as_ref().map(|r| &r.record);
        let claim = record.held_by(grant_of(c)) && before.is_none_or(|b| b.token != record.token);
        let blind = match model.flaw {
            Flaw::ClaimByPut => claim,
            Flaw::ReleaseBlind => record.hold.is_none(),
            _ => false,
        };
        if !blind && self.row.as_ref().map(|r| &r.version) != expected {
            return match model.flaw {
                Flaw::ConflictIsWin => {
                    Cas::Written { version: Version(record.write.to_string()), store_time: None }
                }
                _ => Cas::Conflict,
            };
        }
        self.judge(c, &record);
        let version = Version(record.write.to_string());
        self.row = Some(Arc::new(Row { body, version: version.clone(), stamp: self.tick, record }));
        Cas::Written { version, store_time: None }
    }

    /// Compares the new record with the stored one.
    fn judge(&mut self, c: usize, record: &LeaseRecord) {
        let before = self.row.as_ref().map(|r| &r.record);
        let ghost = &mut self.ghost;
        if record.hold.is_none() {
            ghost.foreign_release |= !before.is_some_and(|b| b.held_by(grant_of(c)));
            let session = self.clients[c].session.is_some();
            ghost.early_release |= session && self.clients[c].job.is_some();
            self.releases(c);
        } else if !before.is_some_and(|b| b.token == record.token && b.held_by(grant_of(c))) {
            let clash = ghost.grants.iter().find(|g| g.0 == record.epoch && g.1 >= record.token);
            ghost.two_grants |= clash.is_some_and(|g| g.1 == record.token);
            ghost.token_back |= clash.is_some_and(|g| g.1 > record.token);
            ghost.grants.push((record.epoch, record.token, c));
        }
    }

    fn seal(&mut self, model: &Leases<R>, c: usize) {
        let Some(granted) = self.client(c).sealing.take() else { return };
        let result =
            match verdict(self.fence.as_ref(), &bearer(&granted), &FenceOffer::Seal(FenceMode::Enforce)) {
                _ if model.flaw == Flaw::NoSeal => Ok(()),
                FenceVerdict::Accept(fence) => {
                    self.fence = Some(fence);
                    Ok(())
                }
                FenceVerdict::Repeat => Ok(()),
                // This target enforces, so it never only counts.
                FenceVerdict::Refuse(reason) | FenceVerdict::LetIn(reason, _) => {
                    Err(reason.word().to_owned())
                }
            };
        if result.is_ok() {
            let mine = (granted.epoch, granted.token, c);
            let index = self.ghost.grants.iter().position(|g| *g == mine).unwrap_or(0);
            self.let_in(index);
        }
        // A session that lost its lease meanwhile ignores this.
        if self.clients[c].session.as_ref().is_some_and(|s| s.phase() == Phase::Sealing) {
            self.step(model, c, Input::Sealed(result));
        }
    }

    fn let_in(&mut self, grant: usize) {
        self.ghost.stale_write |= grant < self.ghost.high;
        self.ghost.high = self.ghost.high.max(grant);
    }

    fn write(&mut self, model: &Leases<R>, c: usize) {
        let fence = self.fence.clone();
        let Some(job) = self.client(c).job.as_mut() else { return };
        let offer = FenceOffer::Write { seq: job.acked + 1, digest: "d".into() };
        job.left -= 1;
        let grant = job.grant;
        match verdict(fence.as_ref(), &bearer(&job.granted), &offer) {
            FenceVerdict::Accept(fence) if model.flaw == Flaw::CheckThenWrite => job.checked = Some(fence),
            FenceVerdict::Accept(fence) => {
                job.acked += 1;
                self.fence = Some(fence);
                self.let_in(grant);
            }
            FenceVerdict::Repeat => {}
            FenceVerdict::Refuse(reason) | FenceVerdict::LetIn(reason, _) => {
                if reason == RefusalReason::Stale {
                    model.sights.refused_stale.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn commit(&mut self, c: usize) {
        let Some(job) = self.client(c).job.as_mut() else { return };
        let grant = job.grant;
        if let Some(fence) = job.checked.take() {
            self.fence = Some(fence);
            self.let_in(grant);
        }
    }
}
