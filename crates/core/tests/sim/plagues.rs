//! The large faults: crashes, pauses, sleep, partitions, and a store that breaks its promises.

use leasehold_core::one_shot::{OneShot, OneShotVerb};
use leasehold_core::rules::Rules;
use leasehold_core::session::{Input, Signal};

use crate::checks::End;
use crate::faults::{AgeMode, Fault, Loss, nanos};
use crate::world::{Event, From, World, trace};

/// The faults that any world may have. Likelier ones are listed more than once.
const ANYWHERE: &[Fault] = &[
    Fault::Partition,
    Fault::Partition,
    Fault::Partition,
    Fault::Outage,
    Fault::Failover,
    Fault::StepForward,
    Fault::StepBack,
    Fault::Suspend,
    Fault::Suspend,
    Fault::MachineFreeze,
    Fault::PauseAll,
    Fault::PauseAll,
    Fault::PauseWrapper,
    Fault::Crash,
    Fault::Crash,
    Fault::CrashOrphan,
    Fault::Reboot,
    Fault::SignalTerm,
    Fault::SignalTwice,
    Fault::ErrandRenew,
    Fault::ErrandRenew,
    Fault::ErrandRelease,
    Fault::ErrandRevoke,
    Fault::ErrandRevoke,
];

impl<R: Rules> World<R> {
    pub(crate) fn choose_plague(&mut self) -> Fault {
        if self.config.wild && self.rng.chance(300) {
            return Fault::WildStep;
        }
        let breaks = match self.config.loss {
            Loss::Keeps => None,
            Loss::Restarts => Some(Fault::Restart),
            Loss::Rewinds => Some(Fault::Rewind),
            Loss::Vanishes => Some(Fault::Vanish),
        };
        match breaks {
            Some(fault) if self.rng.chance(500) => fault,
            _ => ANYWHERE[usize::try_from(self.rng.below(ANYWHERE.len() as u64)).unwrap_or(0)],
        }
    }

    /// Counts the kind of this world.
    pub(crate) fn meet_shape(&mut self) {
        let c = &self.config;
        let shared = c.hosts.windows(2).any(|pair| pair[0] == pair[1]);
        let shape = [
            (Fault::NoAge, c.age == AgeMode::Never),
            (Fault::CoarseAge, c.age == AgeMode::Coarse),
            (Fault::WildDrift, c.wild),
            (Fault::SharedHost, shared),
            (Fault::TwoLeases, c.leases > 1),
        ];
        for (fault, is) in shape {
            if is {
                self.met.add(fault);
            }
        }
    }

    pub(crate) fn plague(&mut self, fault: Fault) {
        if self.quiet {
            return;
        }
        trace!(self, "fault: {fault:?}");
        let before = self.met.0[fault as usize];
        let w = usize::try_from(self.rng.below(self.workers.len() as u64)).unwrap_or(0);
        match fault {
            Fault::Partition | Fault::Outage => self.cut(fault, w),
            Fault::Restart | Fault::Failover | Fault::Rewind | Fault::Vanish => self.break_store(fault),
            Fault::StepForward | Fault::StepBack | Fault::WildStep => self.step_store_clock(fault),
            Fault::Suspend | Fault::MachineFreeze => self.stand_still(fault, self.workers[w].host),
            Fault::PauseAll | Fault::PauseWrapper => self.pause(fault, w),
            Fault::Crash | Fault::CrashOrphan => self.crash(w, fault == Fault::CrashOrphan),
            Fault::Reboot => self.reboot(self.workers[w].host),
            Fault::SignalTerm | Fault::SignalTwice => self.signal(fault, w),
            _ => self.run_errand(fault),
        }
        if before == self.met.0[fault as usize] {
            trace!(self, "(nothing to do)");
        }
    }

    fn a_while(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => self.rng.below(self.ttl()),
            1 => self.rng.below(2 * self.ttl()),
            _ => self.rng.below(5 * self.ttl()),
        }
    }

    fn cut(&mut self, fault: Fault, w: usize) {
        let until = self.now + self.a_while();
        self.met.add(fault);
        if fault == Fault::Outage {
            self.store.down_until = until;
        } else {
            self.workers[w].cut_until = until;
            trace!(self, "w{w} is cut off until {:.3}", until as f64 / 1e9);
        }
    }

    fn break_store(&mut self, fault: Fault) {
        match fault {
            Fault::Restart => {
                // A second loss could undo the skip of tokens that follows the first.
                let forget = if self.ledger.faith { self.rng.between(1, 4) } else { 0 };
                self.store.restart(forget);
                self.ledger.faith = false;
            }
            // A skip of tokens that is lost would be repeated. That is a known limit, which fences cover.
            Fault::Failover if self.config.loss == Loss::Restarts => return,
            Fault::Failover => {
                let most = self.room_for_steps();
                let differs = i64::try_from(self.rng.below(most + 1)).unwrap_or(0);
                self.stepped_on += u64::try_from(differs).unwrap_or(0);
                self.store.fail_over(differs);
            }
            Fault::Rewind => {
                if !self.store.rewind() {
                    self.store.take_snapshot();
                    let wait = self.a_while();
                    return self.after(wait, Event::Plague(Fault::Rewind));
                }
                self.ledger.faith = false;
            }
            _ => {
                self.ledger.faith = false;
                for lease in 0..self.names.len() {
                    self.store.vanish(lease);
                    self.ledger.end_current(lease, End::Vanished);
                }
            }
        }
        self.met.add(fault);
        self.trouble_all(2);
    }

    /// How much further the store's clock may step within its bound.
    fn room_for_steps(&self) -> u64 {
        nanos(self.config.timing.clock.jump).saturating_sub(self.stepped_on)
    }

    fn step_store_clock(&mut self, fault: Fault) {
        let ttl = self.ttl();
        let step = match fault {
            Fault::StepForward => {
                let room = self.room_for_steps();
                if room == 0 {
                    return;
                }
                let step = self.rng.between(room / 2, room);
                self.stepped_on += step;
                i64::try_from(step).unwrap_or(0)
            }
            Fault::StepBack => {
                let step = self.rng.below(2 * ttl);
                self.stepped_back += step;
                -i64::try_from(step).unwrap_or(0)
            }
            _ => i64::try_from(self.rng.below(3 * ttl)).unwrap_or(0),
        };
        self.met.add(fault);
        trace!(self, "store clock steps by {:.3} s", step as f64 / 1e9);
        self.store.offset += step;
    }

    /// The machine sleeps (boot time goes on) or is frozen from outside (its clocks stop, too).
    fn stand_still(&mut self, fault: Fault, host: usize) {
        if self.hosts[host].still_until > self.now {
            return;
        }
        let length = self.a_while().min(self.config.quiet_at - self.now);
        let until = self.now + length;
        let stopped = fault == Fault::MachineFreeze;
        self.met.add(fault);
        trace!(self, "host {host} stands still until {:.3}", until as f64 / 1e9);
        self.hosts[host].still_until = until;
        let margin = nanos(self.config.timing.margin);
        for w in 0..self.workers.len() {
            if self.workers[w].host == host {
                let excuse = if stopped { u64::MAX } else { until + margin };
                self.excuse(w, excuse);
                if stopped {
                    self.workers[w].mark.clock_broken = true;
                }
                self.trouble_worker(w, 2, until);
            }
        }
        self.at(until, Event::Wake(host, length, stopped));
    }

    pub(crate) fn wake(&mut self, host: usize, length: u64, stopped: bool) {
        let clock = &mut self.hosts[host].clock;
        if stopped {
            clock.stood_still(length);
        } else {
            clock.slept(length);
        }
        trace!(self, "host {host} wakes");
        let lag = self.config.lag;
        for w in 0..self.workers.len() {
            // Its timer comes anyway; other inputs are waiting already.
            if self.workers[w].host == host && self.workers[w].session.is_some() {
                let (count, wait) = (self.workers[w].count, self.rng.below(lag));
                self.after(wait, Event::Timer(w, count));
            }
        }
    }

    fn pause(&mut self, fault: Fault, w: usize) {
        if self.workers[w].session.is_none() {
            return;
        }
        let until = self.now + self.a_while();
        self.met.add(fault);
        trace!(self, "w{w} is paused until {:.3}", until as f64 / 1e9);
        self.workers[w].wrapper_until = until;
        if fault == Fault::PauseAll {
            self.workers[w].job_until = until;
        }
        self.excuse(w, until + nanos(self.config.timing.margin));
        self.trouble_worker(w, 2, until);
    }

    /// P3 does not apply to this worker's trees until then.
    fn excuse(&mut self, w: usize, until: u64) {
        for t in 0..self.trees.len() {
            if self.trees[t].owner.0 == w && self.trees[t].alive() {
                self.trees[t].excused = self.trees[t].excused.max(until);
                if until < u64::MAX {
                    let lease = self.trees[t].lease;
                    self.at(until + 1, Event::Overlap(lease));
                }
            }
        }
    }

    /// The run is killed. Its job dies with it, or an escaped part of it lives on.
    fn crash(&mut self, w: usize, orphan: bool) {
        if self.workers[w].session.is_none() || self.hosts[self.workers[w].host].still_until > self.now {
            return;
        }
        self.met.add(if orphan { Fault::CrashOrphan } else { Fault::Crash });
        trace!(self, "w{w} crashes, orphan: {orphan}");
        if let Some(t) = self.workers[w].tree.take().filter(|t| self.trees[*t].alive()) {
            if orphan {
                self.trees[t].excused = u64::MAX;
                self.trees[t].loose = true;
                let lives = self.a_while();
                self.after(lives, Event::Dies(t));
            } else {
                let takes = self.rng.below(self.config.lag);
                self.after(takes, Event::Dies(t));
            }
        }
        self.end_worker(w);
    }

    fn end_worker(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        worker.session = None;
        worker.item = None;
        worker.armed = None;
        worker.wrapper_until = self.now;
        worker.job_until = self.now;
        let wait = self.rng.below(self.ttl());
        self.after(wait, Event::Begin(w));
    }

    fn reboot(&mut self, host: usize) {
        if self.hosts[host].still_until > self.now {
            return;
        }
        self.met.add(Fault::Reboot);
        for t in 0..self.trees.len() {
            if self.workers[self.trees[t].owner.0].host == host {
                (self.trees[t].main, self.trees[t].others) = (false, false);
            }
        }
        for w in 0..self.workers.len() {
            if self.workers[w].host == host && self.workers[w].session.is_some() {
                self.end_worker(w);
            }
        }
        let now = self.now;
        self.hosts[host].clock.reboot(now);
        // A record that was watched before the reboot is forgotten: the state directory names the boot.
        for watched in &mut self.hosts[host].watched {
            *watched = None;
        }
    }

    fn signal(&mut self, fault: Fault, w: usize) {
        if self.workers[w].session.is_none() {
            return;
        }
        self.met.add(fault);
        let owner = (w, self.workers[w].count);
        if fault == Fault::SignalTerm {
            return self.deliver(owner, Input::Signal(Signal::Term));
        }
        self.deliver(owner, Input::Signal(Signal::Int));
        let wait = self.rng.below(self.ttl() / 3);
        self.input_after(wait, owner, Input::Signal(Signal::Int));
    }

    /// `renew`, `release` or `revoke` by hand, on the record in the store.
    fn run_errand(&mut self, fault: Fault) {
        let Some((lease, grant)) = (0..self.names.len()).find_map(|lease| {
            let record = &self.store.rows[lease].as_ref()?.record;
            record.hold.as_ref().map(|hold| (lease, hold.grant))
        }) else {
            return;
        };
        let trees = self.trees.iter();
        let lives = trees.filter(|t| t.granted.grant == grant && t.alive()).any(|t| self.executing(t));
        let supervised = self.trees.iter().any(|t| t.granted.grant == grant && t.alive() && !t.loose);
        let by_hand = self.ledger.current(lease).is_some_and(|g| g.by_hand);
        let verb = match fault {
            // Only a process of the job can renew: no other knows the grant.
            Fault::ErrandRenew if lives || by_hand => OneShotVerb::Renew(grant),
            // A release under a running job would be a mistake of the user.
            Fault::ErrandRelease if by_hand && !supervised => OneShotVerb::Release(grant),
            Fault::ErrandRevoke => OneShotVerb::Revoke,
            _ => return,
        };
        self.met.add(fault);
        trace!(self, "errand {}: {verb:?}", self.one_shots.len());
        let clock = self.config.timing.clock;
        let one_shot = OneShot::new(verb, self.names[lease].clone(), clock, self.rng.wide());
        let op = one_shot.start();
        self.one_shots.push(Some(one_shot));
        self.send(From::Errand(self.one_shots.len() - 1), lease, op);
    }
}
