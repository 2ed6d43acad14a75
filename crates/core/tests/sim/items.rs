//! Items of work: opened under the lease before the job, recorded after it, in the same store and over the
//! same network.
//!
//! An item here may be executed once: no item is run again without a person's request.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::ids::Grant;
use leasehold_core::ledger::{
    Alive, Amended, Amending, Ending, Entry, IfUnknown, ItemCall, ItemClaim, ItemNext, ItemOpened,
    ItemRecorded, ItemRequest, ItemState, LeaseSeen, Opened, Opening, Subject, alive, finish,
};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;
use leasehold_core::rules::Rules;
use leasehold_core::session::{Distance, Granted, Input, Phase};
use leasehold_core::store::{Cas, Failure, Stored, Version};
use leasehold_core::time::BootTime;

use crate::faults::{Fault, Rng, nanos};
use crate::mutants::Mutant;
use crate::store::unreachable;
use crate::world::{Event, Owner, World, trace};

/// The pause after a call that was not answered.
const PAUSE: u64 = 50_000_000;
/// A session gives up recording this many timeouts after the record was due.
const HANGING_CALLS: u32 = 4;

/// The records of items, and what really happened to the items.
pub(crate) struct Items {
    /// Separate random numbers, so that worlds without items do not change.
    rng: Rng,
    pub(crate) on: bool,
    calls: u64,
    rows: BTreeMap<u64, (Entry, Version)>,
    /// The sessions that wrote `started`, and those that wrote an end.
    started: BTreeSet<(u64, Grant)>,
    ended: BTreeSet<(u64, Grant)>,
    executed: BTreeMap<u64, Vec<Owner>>,
    /// The sessions whose command ended well.
    well: BTreeSet<Owner>,
}

impl Items {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6974_656d);
        let on = rng.chance(500);
        let (rows, executed) = (BTreeMap::new(), BTreeMap::new());
        let (started, ended, well) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { rng, on, calls: 0, rows, started, ended, executed, well }
    }
}

/// One run's progress with its item.
pub(crate) struct Task {
    item: u64,
    grant: Grant,
    /// The call under way.
    waiting: u64,
    work: Work,
    ours: Option<(Entry, Version)>,
    /// The end to record once the item is opened.
    then: Option<(ItemState, Ending, BootTime)>,
    executed: bool,
    /// How long the session waits for the record, and whether it got the answer.
    record_by: Option<BootTime>,
    answered: bool,
}

enum Work {
    Opening(Box<Opening>),
    Recording(Box<Amending>, BootTime),
    Idle,
}

#[derive(Clone)]
pub(crate) enum Op {
    Read,
    Lease(Name, Grant),
    Cas(Option<Version>, Box<Entry>),
}

pub(crate) enum Answer {
    Read(Result<Option<Stored>, Failure>),
    Lease(Result<Alive, Failure>),
    Cas(Cas),
}

impl Answer {
    fn is_silence(&self) -> bool {
        matches!(self, Self::Read(Err(_)) | Self::Lease(Err(_)) | Self::Cas(Cas::Unknown(_)))
    }
}

fn subject(item: u64) -> Subject {
    Subject::Key(format!("item-{item}"))
}

fn silent(op: &Op) -> Answer {
    match op {
        Op::Read => Answer::Read(Err(unreachable())),
        Op::Lease(..) => Answer::Lease(Err(unreachable())),
        Op::Cas(..) => Answer::Cas(Cas::Unknown(unreachable())),
    }
}

impl<R: Rules> World<R> {
    /// The item of a session that is about to start.
    pub(crate) fn choose_item(&mut self, owner: Owner, grant: Grant) -> Option<Distance> {
        if !self.items.on {
            return None;
        }
        // There are always new ones, and several sessions try some of them.
        let item = self.now / (2 * self.ttl()) * 2 + self.items.rng.below(2);
        self.workers[owner.0].item = Some(Task {
            item,
            grant,
            waiting: 0,
            work: Work::Idle,
            ours: None,
            then: None,
            executed: false,
            record_by: None,
            answered: false,
        });
        Some(if self.items.rng.chance(300) { Distance::Near } else { Distance::Far })
    }

    pub(crate) fn open_item(&mut self, owner: Owner, granted: &Granted) {
        let seed = self.items.rng.wide();
        let Some(task) = self.workers[owner.0].item.as_mut() else { return };
        let holder = Holder {
            host: format!("h{}", owner.0),
            pid: owner.1,
            run: format!("{}.{}", owner.0, owner.1),
            job: "job".into(),
            since: String::new(),
            slot: None,
        };
        let claim = ItemClaim {
            lease: granted.lease.clone(),
            epoch: granted.epoch,
            token: granted.token,
            grant: granted.grant,
            holder,
        };
        let if_unknown = match self.mutant {
            Mutant::UnknownRetried => IfUnknown::Retry,
            _ => IfUnknown::Refuse,
        };
        let (subject, job) = (subject(task.item), granted.lease.clone());
        let ask = ItemRequest { subject, job, claim, if_unknown, attempts: 1, keep: None };
        task.work = Work::Opening(Box::new(Opening::new(ask, seed)));
        self.send_item(owner, Op::Read, 0);
    }

    pub(crate) fn record_item(&mut self, owner: Owner, state: ItemState, ending: Ending, until: BootTime) {
        let timeout = self.config.timing.timeout;
        let Some(task) = self.workers[owner.0].item.as_mut() else { return };
        task.record_by = Some(until.plus(timeout * HANGING_CALLS));
        if state == ItemState::Planned {
            self.met.add(Fault::ItemTakenBack);
        }
        let Some(task) = self.workers[owner.0].item.as_mut() else { return };
        task.then = Some((state, ending, until));
        if let Work::Idle = task.work {
            self.go_on_recording(owner);
        }
    }

    /// One thread makes the calls, so recording waits until the item is opened.
    fn go_on_recording(&mut self, owner: Owner) {
        let seed = self.items.rng.wide();
        let Some(task) = self.workers[owner.0].item.as_mut() else { return };
        let Some((state, ending, until)) = task.then.take() else { return };
        let Some((entry, version)) = task.ours.take() else {
            return self.tell_recorded(owner, ItemRecorded::default());
        };
        let state = if self.mutant == Mutant::SkipIsOk && state == ItemState::Planned {
            ItemState::Ok
        } else {
            state
        };
        let mut amending = Amending::by_run(version, finish(&entry, state, ending), seed);
        let ItemCall::Cas { expected, entry } = amending.start() else { return };
        task.work = Work::Recording(Box::new(amending), until);
        let late = self.mutant == Mutant::RecordedAfterRelease;
        if late {
            self.input_after(0, owner, Input::ItemRecorded(Box::default()));
        }
        self.send_item(
            owner,
            Op::Cas(expected, Box::new(entry)),
            if late { self.config.latency * 8 } else { 0 },
        );
    }

    fn tell_recorded(&mut self, owner: Owner, recorded: ItemRecorded) {
        if let Some(task) = self.workers[owner.0].item.as_mut() {
            task.work = Work::Idle;
            task.answered = true;
        }
        self.deliver(owner, Input::ItemRecorded(Box::new(recorded)));
    }

    fn tell_opened(&mut self, owner: Owner, item: Opened) {
        match &item {
            Opened::Begun(..) => self.met.add(Fault::ItemBegun),
            Opened::Done(_) => self.met.add(Fault::ItemDone),
            Opened::InProgress(_) => self.met.add(Fault::ItemInProgress),
            Opened::Unknown(..) => self.met.add(Fault::ItemUnknown),
            _ => {}
        }
        let (key, other_store, unnoted, recorded) = (None, None, Vec::new(), None);
        self.deliver(
            owner,
            Input::ItemOpened(Box::new(ItemOpened { item, key, other_store, unnoted, recorded })),
        );
        self.go_on_recording(owner);
    }

    /// Sends a call, with the same network faults as other calls.
    fn send_item(&mut self, owner: Owner, op: Op, wait: u64) {
        self.items.calls += 1;
        let id = self.items.calls;
        let w = owner.0;
        let Some(task) = self.workers[w].item.as_mut() else { return };
        task.waiting = id;
        if let (Mutant::StartedAfterExec, Op::Cas(_, entry), Work::Opening(_)) =
            (self.mutant, &op, &task.work)
        {
            let (entry, version) = ((**entry).clone(), Version(entry.write.to_string()));
            task.ours = Some((entry.clone(), version.clone()));
            let begun = Opened::Begun(entry, version);
            let (key, other_store, unnoted, recorded) = (None, None, Vec::new(), None);
            let opened = ItemOpened { item: begun, key, other_store, unnoted, recorded };
            self.input_after(0, owner, Input::ItemOpened(Box::new(opened)));
        }
        let latency = self.config.latency;
        let there = wait + self.items.rng.between(latency / 20, latency);
        let back = there + self.items.rng.between(latency / 20, latency);
        let timeout = nanos(self.config.timing.timeout);
        let item = self.workers[w].item.as_ref().map_or(0, |task| task.item);
        let silence = Event::ItemAnswer(owner, id, Box::new(silent(&op)));
        if self.workers[w].cut_until > self.now || self.store.down_until > self.now {
            self.trouble_worker(w, 2, self.now);
            return self.after(there.min(timeout), silence);
        }
        let noisy = !self.quiet && self.items.rng.chance(self.config.noise);
        if !noisy {
            return self.after(there, Event::ItemLands(owner, id, item, Box::new(op), Some(back - there)));
        }
        self.trouble_worker(w, 2, self.now);
        self.after(timeout, silence);
        match self.items.rng.below(3) {
            // It never arrives.
            0 => {}
            // Its answer never arrives.
            1 => self.after(there, Event::ItemLands(owner, id, item, Box::new(op), None)),
            // It arrives after its session gave it up.
            _ => {
                let far = self.items.rng.between(timeout, 3 * self.ttl());
                let far = far.min(self.config.quiet_at.saturating_sub(self.now));
                self.after(far, Event::ItemLands(owner, id, item, Box::new(op), None));
            }
        }
    }

    pub(crate) fn item_lands(&mut self, owner: Owner, id: u64, item: u64, op: Op, reply: Option<u64>) {
        let answer = match op {
            Op::Read => Answer::Read(Ok(self.items.rows.get(&item).map(|(entry, version)| Stored {
                body: entry.encode().unwrap_or_default(),
                version: version.clone(),
                age: None,
            }))),
            Op::Lease(lease, grant) => Answer::Lease(Ok(self.look_at_lease(&lease, grant))),
            Op::Cas(expected, entry) => Answer::Cas(self.land_item(owner, item, expected.as_ref(), *entry)),
        };
        if let Some(reply) = reply {
            self.after(reply, Event::ItemAnswer(owner, id, Box::new(answer)));
        }
    }

    /// Whether a grant holds a lease. Now and then its record is one that this version cannot read.
    ///
    /// A run that is taken for dead although it is surely at work may be executed twice. (One that slept may come back
    /// after the look, and finds its item marked `unknown`: it closes it all the same.)
    fn look_at_lease(&mut self, lease: &Name, grant: Grant) -> Alive {
        let at = self.lease_index(lease);
        let mut reading = self.store.read(at, self.now);
        if self.items.rng.chance(300) {
            self.met.add(Fault::ItemLeaseUnreadable);
            reading.stored = reading.stored.map(|stored| Stored { body: b"?".to_vec(), ..stored });
        }
        let resolution = self.config.timing.clock.resolution;
        let seen = LeaseSeen::of(lease, reading.stored.as_ref(), resolution, &reading.instance);
        let alive = match (self.mutant, &seen) {
            (Mutant::UnreadableIsFree, LeaseSeen::Unreadable) => Alive::No,
            _ => alive(grant, &seen),
        };
        if let Some(live) = self.runs_surely(grant).filter(|_| alive == Alive::No) {
            self.violate(format!("w{}.{} is taken for dead and is surely at work", live.0, live.1));
        }
        alive
    }

    fn land_item(&mut self, owner: Owner, item: u64, expected: Option<&Version>, entry: Entry) -> Cas {
        let before = self.items.rows.get(&item).cloned();
        let ends = entry.state != ItemState::Started && entry.state != ItemState::Unknown;
        let blind = self.mutant == Mutant::StaleClose && ends;
        if !blind && before.as_ref().map(|(_, version)| version) != expected {
            return Cas::Conflict;
        }
        let before = before.map(|(entry, _)| entry);
        trace!(self, "item {item}: {} by w{}.{} lands", entry.state.word(), owner.0, owner.1);
        self.check_item(owner, item, before.as_ref(), &entry);
        let version = Version(entry.write.to_string());
        self.items.rows.insert(item, (entry, version.clone()));
        Cas::Written { version, store_time: None }
    }

    fn check_item(&mut self, owner: Owner, item: u64, before: Option<&Entry>, entry: &Entry) {
        let grant = entry.claim.grant;
        let who = format!("w{}.{}", owner.0, owner.1);
        let others = before.filter(|b| b.state == ItemState::Started && b.claim.grant != grant);
        if let Some(live) = others.and_then(|b| self.runs_surely(b.claim.grant)) {
            self.violate(format!("item {item}: {who} replaces the run of w{}.{}", live.0, live.1));
        }
        match entry.state {
            ItemState::Started => drop(self.items.started.insert((item, grant))),
            ItemState::Unknown => {}
            _ => {
                if !before.is_some_and(|b| b.state.is_open() && b.claim.grant == grant) {
                    self.violate(format!("item {item}: {who} closes what is not its own"));
                }
                self.items.ended.insert((item, grant));
            }
        }
        if entry.state == ItemState::Ok && !self.items.well.contains(&owner) {
            self.violate(format!("item {item}: {who} records ok, and its command did not end well"));
        }
    }

    /// The run with this grant, if its job runs and it really holds its lease.
    fn runs_surely(&self, grant: Grant) -> Option<Owner> {
        if !self.promises_p3() {
            return None;
        }
        let w = self.workers.iter().position(|w| w.item.as_ref().is_some_and(|task| task.grant == grant))?;
        let worker = &self.workers[w];
        let session = worker.session.as_ref().filter(|s| s.phase() == Phase::Running)?;
        let sure = session.stop_at()? > self.boot_now(w).boot && !worker.mark.clock_broken;
        let forced = self.ledger.grants.iter().any(|g| g.grant == grant && g.forced_off);
        (sure && !forced).then_some((w, worker.count))
    }

    pub(crate) fn item_answer(&mut self, owner: Owner, id: u64, answer: Answer) {
        let w = owner.0;
        if self.workers[w].count != owner.1 || self.workers[w].session.is_none() {
            return;
        }
        let blocked = self.blocked_until(w);
        if blocked > self.now {
            return self.at(blocked, Event::ItemAnswer(owner, id, Box::new(answer)));
        }
        let boot = self.boot_now(w).boot;
        let Some(task) = self.workers[w].item.as_mut().filter(|task| task.waiting == id) else { return };
        task.waiting = 0;
        let silence = answer.is_silence();
        match std::mem::replace(&mut task.work, Work::Idle) {
            Work::Opening(mut opening) => {
                let next = match answer {
                    Answer::Read(read) => opening.on_read(read),
                    Answer::Lease(alive) => opening.on_lease(alive),
                    Answer::Cas(cas) => opening.on_cas(cas),
                };
                match next {
                    ItemNext::Call(call) => {
                        task.work = Work::Opening(opening);
                        self.send_item(owner, op(call), 0);
                    }
                    ItemNext::Done(opened) => {
                        if let Opened::Begun(entry, version) = &opened {
                            task.ours = Some((entry.clone(), version.clone()));
                        }
                        self.tell_opened(owner, opened);
                    }
                }
            }
            Work::Recording(mut amending, until) => {
                let next = match answer {
                    Answer::Read(read) => amending.on_read(read),
                    Answer::Cas(cas) => amending.on_cas(cas),
                    Answer::Lease(_) => return,
                };
                match next {
                    ItemNext::Call(_) if silence && boot >= until => {
                        self.met.add(Fault::ItemGivenUp);
                        let item = Some(Amended::Failed(unreachable()));
                        self.tell_recorded(owner, ItemRecorded { item, ..ItemRecorded::default() });
                    }
                    ItemNext::Call(call) => {
                        task.work = Work::Recording(amending, until);
                        self.send_item(owner, op(call), if silence { PAUSE } else { 0 });
                    }
                    ItemNext::Done(amended) => {
                        let item = Some(amended);
                        self.tell_recorded(owner, ItemRecorded { item, ..ItemRecorded::default() });
                    }
                }
            }
            Work::Idle => {}
        }
    }

    /// The command is about to be executed.
    pub(crate) fn check_executed(&mut self, owner: Owner) {
        let Some(task) = self.workers[owner.0].item.as_mut() else { return };
        task.executed = true;
        let (item, grant) = (task.item, task.grant);
        if !self.items.started.contains(&(item, grant)) {
            self.violate(format!("item {item}: w{}.{} is executed before it is started", owner.0, owner.1));
        }
        let executed = self.items.executed.entry(item).or_default();
        executed.push(owner);
        if executed.len() > 1 {
            let all = format!("{executed:?}");
            self.violate(format!("item {item}: executed by {all}"));
        }
    }

    /// The command ended by itself, with 0.
    pub(crate) fn ended_well(&mut self, owner: Owner) {
        self.items.well.insert(owner);
    }

    /// The lease is about to be given back.
    pub(crate) fn check_recorded(&mut self, owner: Owner) {
        let Some(task) = self.workers[owner.0].item.as_ref().filter(|task| task.executed) else { return };
        let recorded = self.items.ended.contains(&(task.item, task.grant));
        let given_up = task.record_by.is_some_and(|by| self.boot_now(owner.0).boot >= by);
        if !recorded && !task.answered && !given_up {
            let item = task.item;
            self.violate(format!("item {item}: w{}.{} gives its lease back first", owner.0, owner.1));
        }
    }
}

fn op(call: ItemCall) -> Op {
    match call {
        ItemCall::Read => Op::Read,
        ItemCall::ReadLease(lease, grant) => Op::Lease(lease, grant),
        ItemCall::Cas { expected, entry } => Op::Cas(expected, Box::new(entry)),
        ItemCall::ReadSettled(..) | ItemCall::Remove(_) => {
            unreachable!("a key is never settled without a record")
        }
    }
}
