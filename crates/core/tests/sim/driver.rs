//! Carries out the effects of sessions, as `run` would, over a faulty network.

use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::one_shot::OneShotNext;
use leasehold_core::record::{Holder, LeaseRecord};
use leasehold_core::rules::Rules;
use leasehold_core::session::{
    Effect, Input, LeaseChoice, LogPlan, Op, Outcome, Reading, Request as Asked, RequestId, Session,
    SessionPlan, WatchedRecord, Within,
};
use leasehold_core::store::{Cas, Failure, Version};

use crate::checks::WriteKind;
use crate::faults::{Fault, Loss, nanos};
use crate::mutants::{Mutant, tell_mutants};
use crate::store::unreachable;
use crate::world::{Asks, Event, From, Owner, Request, World, trace};

impl<R: Rules> World<R> {
    pub(crate) fn begin(&mut self, w: usize) {
        if self.draining || self.workers[w].session.is_some() {
            return;
        }
        let host = self.workers[w].host;
        if self.now < self.hosts[host].still_until.max(self.workers[w].wrapper_until) {
            let at = self.hosts[host].still_until.max(self.workers[w].wrapper_until);
            return self.at(at, Event::Begin(w));
        }
        self.workers[w].count += 1;
        let owner = (w, self.workers[w].count);
        let mut plan = self.plan(owner);
        self.workers[w].item = None;
        if !plan.by_hand {
            plan.item = self.choose_item(owner, plan.grant);
        }
        let rules = (self.rules)(self.mutant, self.hosts[host].skew);
        let seed = self.rng.wide();
        trace!(self, "w{w}.{} begins, wait {:?}, on host {host}", owner.1, plan.wait);
        let worker = &mut self.workers[w];
        worker.mark = crate::checks::Mark::new(&plan);
        if plan.by_hand {
            self.ledger.by_hand.push(owner);
        }
        if plan.force {
            self.ledger.forcing.push(owner);
        }
        worker.mark.seen.clone_from(&self.hosts[host].seen);
        worker.session = Some(Session::with_rules(plan, seed, rules));
        worker.tree = None;
        worker.armed = None;
        worker.timer_at = None;
        self.step(owner, Input::Start);
    }

    fn plan(&mut self, owner: Owner) -> SessionPlan {
        let (w, count) = owner;
        let host = self.workers[w].host;
        let forgets = self.mutant == Mutant::HostMemoryIgnored;
        let leases = (0..self.names.len())
            .map(|l| LeaseChoice {
                lease: self.names[l].clone(),
                seen: self.hosts[host].seen[l].filter(|_| !forgets),
                watched: self.hosts[host].watched[l],
            })
            .collect();
        let mut timing = self.config.timing;
        match self.mutant {
            Mutant::StopMarginIgnored => (timing.grace, timing.margin) = (Duration::ZERO, Duration::ZERO),
            Mutant::JumpIgnored => timing.clock.jump = Duration::ZERO,
            _ => {}
        }
        let ttl = self.ttl();
        let usual = !self.quiet;
        let by_hand = usual && self.rng.chance(60);
        let force = usual && self.rng.chance(15);
        let patience = if self.rng.chance(200) { 2 * ttl } else { ttl / 2 };
        let wait = if self.rng.chance(600) { 0 } else { self.rng.below(patience) };
        let max_run = (usual && self.rng.chance(100)).then(|| Duration::from_nanos(self.rng.below(2 * ttl)));
        let unusual = [
            (Fault::ByHand, by_hand),
            (Fault::Forced, force),
            (Fault::Waited, wait > 0),
            (Fault::MaxRun, max_run.is_some()),
        ];
        for (fault, is) in unusual {
            if is {
                self.met.add(fault);
            }
        }
        let grant = match self.mutant {
            Mutant::OwnerIsHost => u128::try_from(host).unwrap_or(0) + 1,
            _ => self.rng.wide(),
        };
        SessionPlan {
            leases,
            grant: Grant(grant),
            timing,
            wait: Duration::from_nanos(wait),
            max_run,
            seal: self.config.seals,
            item: None,
            log: LogPlan::Job(None),
            by_hand,
            force,
            lock: (self.config.evidence && !by_hand).then(|| "lock".into()),
            holder: Holder {
                host: format!("h{host}"),
                pid: count,
                run: format!("{w}.{count}"),
                job: "job".into(),
                since: "then".into(),
                slot: None,
            },
            within: Within::default(),
        }
    }

    /// Hands an input to a session, once its process can run.
    pub(crate) fn deliver(&mut self, owner: Owner, input: Input) {
        if self.workers[owner.0].count != owner.1 || self.workers[owner.0].session.is_none() {
            return;
        }
        let blocked = self.blocked_until(owner.0);
        if blocked > self.now {
            let at = blocked + self.rng.below(self.config.lag);
            return self.at(at, Event::Input(owner, Box::new(input)));
        }
        let newest = self.workers[owner.0].last_request;
        let input = match (self.mutant, input) {
            (Mutant::StaleReplyTaken, Input::Read { result, .. }) => Input::Read { id: newest, result },
            (Mutant::StaleReplyTaken, Input::Cas { result, .. }) => Input::Cas { id: newest, result },
            // Lost without reading back: the read-back finds no record, even if there is one.
            (Mutant::ConflictIsLoss, Input::Cas { id, result }) => {
                self.workers[owner.0].conflicted = result == Cas::Conflict;
                Input::Cas { id, result }
            }
            (Mutant::ConflictIsLoss, Input::Read { id, result: Ok(reading) })
                if std::mem::take(&mut self.workers[owner.0].conflicted) =>
            {
                Input::Read { id, result: Ok(Reading { stored: None, ..reading }) }
            }
            (_, input) => input,
        };
        self.step(owner, input);
    }

    pub(crate) fn blocked_until(&self, w: usize) -> u64 {
        self.hosts[self.workers[w].host].still_until.max(self.workers[w].wrapper_until)
    }

    pub(crate) fn timer(&mut self, w: usize, count: u32) {
        if self.workers[w].count != count || self.workers[w].session.is_none() {
            return;
        }
        let blocked = self.blocked_until(w);
        if blocked > self.now {
            let at = blocked + self.rng.below(self.config.lag);
            self.workers[w].timer_at = Some(at);
            return self.at(at, Event::Timer(w, count));
        }
        self.workers[w].timer_at = None;
        let Some(armed) = self.workers[w].armed else { return };
        if self.boot_now(w).boot >= armed {
            self.step((w, count), Input::Timer);
        } else {
            self.schedule_timer(w);
        }
    }

    pub(crate) fn boot_now(&self, w: usize) -> leasehold_core::time::Now {
        let mut now = self.hosts[self.workers[w].host].clock.now(self.now);
        if self.mutant == Mutant::NapIgnored {
            now.boot = leasehold_core::time::BootTime(now.awake);
        }
        now
    }

    fn schedule_timer(&mut self, w: usize) {
        let Some(armed) = self.workers[w].armed else { return };
        let clock = &self.hosts[self.workers[w].host].clock;
        // On the wrong clock the timer comes later, too: by the time that the machine slept.
        let behind = match self.mutant {
            Mutant::NapIgnored => clock.now(self.now).boot.0 - clock.now(self.now).awake,
            _ => Duration::ZERO,
        };
        let due = clock.real_at(armed.plus(behind)).max(self.now);
        if self.workers[w].timer_at.is_some_and(|at| at <= due && at >= self.now) {
            return;
        }
        let late = if self.rng.chance(300) { self.rng.below(self.config.lag) } else { 0 };
        self.workers[w].timer_at = Some(due + late);
        let count = self.workers[w].count;
        self.at(due + late, Event::Timer(w, count));
    }

    fn step(&mut self, owner: Owner, input: Input) {
        let w = owner.0;
        self.count_step();
        let now = self.boot_now(w);
        trace!(self, "w{w}.{} <- {}", owner.1, crate::trace::brief_input(&input));
        let Some(session) = self.workers[w].session.as_mut() else { return };
        tell_mutants(now.boot);
        let effects = session.step(input, now);
        self.check_effects(owner, &effects);
        for effect in effects {
            trace!(self, "w{w}.{}   -> {}", owner.1, crate::trace::brief(&effect));
            self.carry_out(owner, effect);
            if self.violation.is_some() {
                return;
            }
        }
        self.check_deadline(owner);
        if self.workers[w].session.is_some() {
            self.schedule_timer(w);
        }
    }

    fn carry_out(&mut self, owner: Owner, effect: Effect) {
        let w = owner.0;
        match effect {
            Effect::Arm(at) => self.workers[w].armed = at,
            Effect::Store(request) => self.ask_store(owner, request),
            Effect::Seal(granted) => {
                let lease = self.lease_index(&granted.lease);
                self.send_seal(owner, lease);
            }
            Effect::Start { granted, .. } => self.start_job(owner, granted),
            Effect::Term => self.term(owner),
            Effect::Kill => self.kill(owner),
            Effect::Freeze => self.set_frozen(owner, true),
            Effect::Thaw => self.set_frozen(owner, false),
            Effect::Forward(_) => self.forward(owner),
            Effect::Tell(event) => self.on_event(owner, &event),
            Effect::Done(outcome) => self.on_done(owner, outcome),
        }
    }

    fn ask_store(&mut self, owner: Owner, request: Asked) {
        let w = owner.0;
        match request {
            Asked::Ask { id, lease, op } => {
                let lease = self.lease_index(&lease);
                self.workers[w].last_request = id;
                self.workers[w].sent = self.boot_now(w).boot;
                if frees(&op) {
                    self.check_recorded(owner);
                }
                self.send(From::Session(owner, id), lease, op);
            }
            Asked::Watch { id, .. } => self.watch(owner, id),
            Asked::Probe { run, .. } => self.probe(owner, &run),
            Asked::Remember { lease, seen, watched } => {
                let (lease, host) = (self.lease_index(&lease), self.workers[w].host);
                let watched = watched.map(|x| self.watched_from(w, x));
                if let Some(watched) = watched {
                    self.check_watched(w, lease, watched);
                }
                self.remember(host, lease, seen, watched);
            }
            // Of Discard only a file is removed; here the evidence is the processes themselves.
            Asked::Discard(_) | Asked::Log(_) => {}
            Asked::OpenItem(granted) => self.open_item(owner, &granted),
            Asked::RecordItem { state, ending, until } => self.record_item(owner, state, ending, until),
        }
    }

    /// The store's report of a change may come at any time, right or wrong, twice or not at all.
    fn watch(&mut self, owner: Owner, id: RequestId) {
        self.met.add(Fault::Pushed);
        let often = self.rng.below(3);
        for _ in 0..often {
            let wait = self.rng.below(self.ttl());
            self.input_after(wait, owner, Input::Changed { id });
        }
    }

    fn watched_from(&self, w: usize, watched: WatchedRecord) -> WatchedRecord {
        match self.mutant {
            // The clock is read before the request instead of after the answer.
            Mutant::WatchedFromSend => WatchedRecord { since: self.workers[w].sent, ..watched },
            _ => watched,
        }
    }

    fn on_done(&mut self, owner: Owner, outcome: Outcome) {
        let w = owner.0;
        self.check_outcome(owner, &outcome);
        if let Outcome::Granted(granted) = outcome {
            self.start_hand_job(owner, granted);
        }
        self.workers[w].session = None;
        self.workers[w].armed = None;
        let gap = if self.quiet { nanos(self.config.timing.heartbeat) / 2 } else { self.ttl() };
        let wait = self.rng.below(gap);
        self.after(wait, Event::Begin(w));
    }

    pub(crate) fn lease_index(&self, name: &leasehold_core::name::Name) -> usize {
        self.names.iter().position(|n| n == name).unwrap_or(0)
    }

    fn latency(&mut self) -> u64 {
        let most = self.config.latency;
        self.rng.between(most / 20, most)
    }

    /// Chooses the network's fault for a request, if any, and sends it.
    pub(crate) fn send(&mut self, from: From, lease: usize, op: Op) {
        let there = self.latency();
        let back = self.latency();
        let incarnation = self.store.incarnation;
        let asks = Asks::of(&op);
        let write = asks == Asks::Write;
        let mut request =
            Request { from, lease, op, incarnation, reply: Some(back), again: None, muffled: false };
        let cut = match from {
            From::Session((w, _), _) => self.workers[w].cut_until > self.now,
            From::Errand(_) => false,
        };
        if cut || self.store.down_until > self.now {
            self.trouble(from, 2);
            if self.rng.chance(500) {
                self.after(there, Event::Refused(from, asks));
            } else if matches!(from, From::Errand(_)) {
                self.after(self.ttl(), Event::Refused(from, asks));
            }
            return;
        }
        if self.quiet || !self.rng.chance(self.config.noise) {
            return self.after(there, Event::Land(Box::new(request)));
        }
        self.trouble(from, 1);
        let far = self.far();
        let fault = self.choose_noise(write);
        self.met.add(fault);
        trace!(self, "network: {fault:?} for {from:?}");
        match fault {
            Fault::ReplyLost => request.reply = self.errand_reply(from, far),
            Fault::ReplyLate => request.reply = Some(far),
            Fault::ReplyTwice => request.again = Some(back + self.config.latency * 3),
            Fault::UnknownButLanded => request.muffled = true,
            Fault::LandLate => return self.after(far, Event::Land(Box::new(request))),
            Fault::RequestTwice => {
                if let (From::Session((w, _), _), true) = (from, frees(&request.op)) {
                    self.workers[w].mark.doubled_release = true;
                }
                let first = Request { reply: None, ..request.clone() };
                self.after(there, Event::Land(Box::new(first)));
                // Where leases are forgotten, a repeated message may come as late as any.
                let later = if self.forgets.on { far } else { self.config.latency };
                return self.after(there + later, Event::Land(Box::new(request)));
            }
            _ => {
                if let From::Errand(_) = from {
                    self.after(far, Event::Refused(from, asks));
                }
                return;
            }
        }
        self.after(there, Event::Land(Box::new(request)));
    }

    /// A change by hand has no timeout: its driver turns a lost answer into an unknown one.
    fn errand_reply(&self, from: From, far: u64) -> Option<u64> {
        matches!(from, From::Errand(_)).then_some(far)
    }

    fn far(&mut self) -> u64 {
        let timeout = nanos(self.config.timing.timeout);
        let far = match self.rng.below(3) {
            0 => self.rng.between(timeout / 2, 2 * timeout),
            1 => self.rng.between(timeout, self.ttl()),
            _ => self.rng.between(timeout, 3 * self.ttl()),
        };
        // Requests under way must have landed when the faults stop.
        far.min(self.config.quiet_at.saturating_sub(self.now)).min(self.longest_delay())
    }

    fn choose_noise(&mut self, write: bool) -> Fault {
        const ANY: [Fault; 5] =
            [Fault::ReplyLost, Fault::RequestLost, Fault::ReplyLate, Fault::LandLate, Fault::ReplyTwice];
        match (write, self.rng.below(10)) {
            (true, 0..=1) => Fault::RequestTwice,
            (true, 2) => Fault::UnknownButLanded,
            _ => ANY[usize::try_from(self.rng.below(5)).unwrap_or(0)],
        }
    }

    pub(crate) fn land(&mut self, request: Request) {
        if request.incarnation != self.store.incarnation {
            return self.answer_unreachable(request.from, Asks::of(&request.op));
        }
        let mut input = match request.op {
            Op::Read => {
                if let From::Session((w, count), _) = request.from
                    && self.workers[w].count == count
                {
                    self.workers[w].mark.read_in = self.store.incarnation;
                }
                self.land_read(request.lease)
            }
            Op::Forgotten => {
                let records = &self.forgets.records[request.lease];
                if !records.is_empty() {
                    self.met.add(Fault::ForgottenMet);
                }
                let bodies = records.iter().map(leasehold_core::forgotten::Forgotten::encode).collect();
                Input::Forgotten { id: RequestId(0), result: Ok(bodies) }
            }
            Op::Cas { ref expected, ref body, ref log, .. } => {
                let Ok(record) = LeaseRecord::decode(&self.names[request.lease], body) else {
                    return self.violate("a body that cannot be read back was written".into());
                };
                // A store that lost the record may take an older claim of the same run afterwards. The run
                // releases that one, and its record says the token that its job had.
                let lost = self.config.loss != Loss::Keeps;
                let other = |token| token != Some(record.token) && !(lost && token > Some(record.token));
                if log.as_ref().is_some_and(|log| record.hold.is_some() || other(log.token)) {
                    self.violate("the run log has the end of a hold before its release".into());
                }
                let result = self.land_cas(&request, expected.clone(), body.clone(), record);
                Input::Cas { id: RequestId(0), result }
            }
        };
        if request.muffled {
            input = Input::Cas { id: RequestId(0), result: Cas::Unknown(unreachable()) };
        }
        if let Some(again) = request.again {
            self.after(again, answer(request.from, input.clone()));
        }
        if let Some(reply) = request.reply {
            self.after(reply, answer(request.from, input));
        }
    }

    fn land_read(&mut self, lease: usize) -> Input {
        let mut reading: Reading = self.store.read(lease, self.now);
        if self.mutant == Mutant::InstanceIgnored {
            reading.instance = "always".into();
        }
        if reading.stored.as_ref().is_some_and(|s| s.age.is_none())
            && self.config.age != crate::faults::AgeMode::Never
        {
            self.met.add(Fault::AgeLost);
        }
        Input::Read { id: RequestId(0), result: Ok(reading) }
    }

    fn land_cas(
        &mut self,
        request: &Request,
        expected: Option<Version>,
        body: Vec<u8>,
        record: LeaseRecord,
    ) -> Cas {
        let kind = self.write_kind(request, &record);
        let blind = kind.is_blind_under(self.mutant);
        if !blind && !self.store.matches(request.lease, expected.as_ref()) {
            trace!(self, "store: conflict for {:?} ({kind:?})", request.from);
            if self.mutant == Mutant::ConflictIsWin && kind != WriteKind::Errand {
                return Cas::Written { version: Version(record.write.to_string()), store_time: None };
            }
            return Cas::Conflict;
        }
        let (body, record) = match kind {
            WriteKind::Renew | WriteKind::Release if self.mutant == Mutant::InstanceHidden => {
                let record = LeaseRecord { instance: self.store.instance.clone(), ..record };
                (record.encode(), record)
            }
            _ => (body, record),
        };
        trace!(self, "store: {kind:?} {:?} token {} lands", request.from, record.token);
        self.check_legal(request, &body, &record);
        self.check_landing(request, &record);
        let version = self.store.put(request.lease, body, record.clone(), self.now);
        if self.mutant == Mutant::ReleaseDeletes && record.hold.is_none() {
            self.store.vanish(request.lease);
        }
        Cas::Written { version, store_time: self.store.tells(self.now) }
    }

    pub(crate) fn answer_unreachable(&mut self, from: From, asks: Asks) {
        let failure: Failure = unreachable();
        let id = RequestId(0);
        let input = match asks {
            Asks::Write => Input::Cas { id, result: Cas::Unknown(failure) },
            Asks::Forgotten => Input::Forgotten { id, result: Err(failure) },
            Asks::Read => Input::Read { id, result: Err(failure) },
        };
        self.after(0, answer(from, input));
    }

    pub(crate) fn errand_input(&mut self, index: usize, input: Input) {
        let Some(one_shot) = self.one_shots[index].as_mut() else { return };
        let next = match input {
            Input::Read { result, .. } => one_shot.on_read(result),
            Input::Cas { result, .. } => one_shot.on_cas(result),
            _ => return,
        };
        let lease = one_shot.lease().clone();
        match next {
            OneShotNext::Done(outcome) => {
                trace!(self, "errand {index}: {outcome:?}");
                self.one_shots[index] = None;
            }
            OneShotNext::Ask(op) => {
                let lease = self.lease_index(&lease);
                self.send(From::Errand(index), lease, op);
            }
        }
    }
}

/// The answer as an event, with the id of the request it belongs to.
fn answer(from: From, input: Input) -> Event {
    match (from, input) {
        (From::Errand(one_shot), input) => Event::ErrandInput(one_shot, Box::new(input)),
        (From::Session(owner, id), Input::Read { result, .. }) => {
            Event::Input(owner, Box::new(Input::Read { id, result }))
        }
        (From::Session(owner, id), Input::Forgotten { result, .. }) => {
            Event::Input(owner, Box::new(Input::Forgotten { id, result }))
        }
        (From::Session(owner, id), Input::Cas { result, .. }) => {
            Event::Input(owner, Box::new(Input::Cas { id, result }))
        }
        (From::Session(owner, _), input) => Event::Input(owner, Box::new(input)),
    }
}

fn frees(op: &Op) -> bool {
    let Op::Cas { body, .. } = op else { return false };
    body.windows(14).any(|w| w == b"\"state\":\"free\"")
}
