//! Jobs, as process trees, and the fenced target that they write to.

use leasehold_core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, RefusalReason, verdict};
use leasehold_core::rules::{Rules, SeenToken};
use leasehold_core::session::{Granted, Input, JobExit, WatchedRecord};

use crate::faults::{Fault, nanos};
use crate::mutants::Mutant;
use crate::world::{Event, Owner, World, trace};

/// A job with every process that it started.
pub(crate) struct Tree {
    pub(crate) owner: Owner,
    pub(crate) lease: usize,
    pub(crate) granted: Granted,
    /// The index of its grant in the ledger.
    pub(crate) index: usize,
    pub(crate) main: bool,
    pub(crate) others: bool,
    pub(crate) frozen: bool,
    /// P3 does not apply to it until this time.
    pub(crate) excused: u64,
    /// It has no supervisor: it was started by hand, or has escaped from a crashed run.
    pub(crate) loose: bool,
    obeys: bool,
    survivors: bool,
    dying: bool,
    acked: u64,
    writes_left: u32,
}

impl Tree {
    pub(crate) fn alive(&self) -> bool {
        self.main || self.others
    }

    fn bearer(&self) -> Bearer {
        let g = &self.granted;
        Bearer { lease: g.lease.clone(), epoch: g.epoch, token: g.token, grant: g.grant }
    }
}

impl<R: Rules> World<R> {
    pub(crate) fn executing(&self, tree: &Tree) -> bool {
        let worker = &self.workers[tree.owner.0];
        let still = self.hosts[worker.host].still_until > self.now;
        let paused = worker.job_until > self.now && worker.count == tree.owner.1;
        tree.alive() && !tree.frozen && !still && !paused
    }

    fn spawn(&mut self, owner: Owner, granted: Granted, loose: bool) -> usize {
        let lease = self.lease_index(&granted.lease);
        let index = self.ledger.index_of(owner, lease);
        if index.is_none() && self.promises_p3() {
            self.violate(format!("P1: w{}.{} started a job without a stored grant", owner.0, owner.1));
        }
        let usual = !self.quiet;
        let outside = index.is_some_and(|i| self.ledger.grants[i].forced_off)
            || self.workers[owner.0].mark.clock_broken;
        let tree = Tree {
            owner,
            lease,
            granted,
            index: index.unwrap_or(0),
            main: true,
            others: self.rng.chance(400),
            frozen: false,
            excused: if loose || outside { u64::MAX } else { 0 },
            loose,
            obeys: self.rng.chance(600),
            survivors: usual && self.rng.chance(150),
            dying: false,
            acked: 0,
            writes_left: u32::try_from(self.rng.between(1, 6)).unwrap_or(1),
        };
        self.trees.push(tree);
        self.trees.len() - 1
    }

    pub(crate) fn start_job(&mut self, owner: Owner, granted: Granted) {
        self.check_executed(owner);
        let tree = self.spawn(owner, granted, false);
        self.workers[owner.0].tree = Some(tree);
        let most = if self.draining { self.ttl() / 4 } else { 4 * self.ttl() };
        let lasts = self.rng.below(most);
        self.after(lasts, Event::JobEnds(tree));
        if self.config.seals {
            let wait = self.rng.below(self.ttl() / 3);
            self.after(wait, Event::Write(tree));
        }
        self.check_overlap(self.trees[tree].lease);
    }

    /// A script under `acquire`: it seals, writes, and runs for any time.
    pub(crate) fn start_hand_job(&mut self, owner: Owner, granted: Granted) {
        let tree = self.spawn(owner, granted, true);
        let lasts = self.rng.below(2 * self.ttl());
        self.after(lasts, Event::JobEnds(tree));
        if self.config.seals {
            self.offer(tree, &FenceOffer::Seal(FenceMode::Enforce));
            self.after(self.config.latency, Event::Write(tree));
        }
    }

    fn supervised(&self, owner: Owner) -> Option<usize> {
        self.workers[owner.0].tree.filter(|t| self.trees[*t].owner == owner && !self.trees[*t].loose)
    }

    pub(crate) fn term(&mut self, owner: Owner) {
        let Some(t) = self.supervised(owner) else { return };
        if self.trees[t].obeys {
            let takes = self.rng.below(nanos(self.config.timing.grace) * 2);
            self.after(takes, Event::Dies(t));
        } else {
            self.met.add(Fault::IgnoresTerm);
        }
    }

    pub(crate) fn kill(&mut self, owner: Owner) {
        let Some(t) = self.supervised(owner) else { return };
        if self.mutant == Mutant::KillsMainOnly {
            return self.kill_main_only(t);
        }
        if !self.trees[t].dying {
            self.trees[t].dying = true;
            let takes = self.rng.below(self.config.lag);
            self.after(takes, Event::Dies(t));
        }
    }

    fn kill_main_only(&mut self, t: usize) {
        let owner = self.trees[t].owner;
        self.trees[t].main = false;
        self.input_after(0, owner, Input::JobExited { exit: JobExit::Signal(137), tree_empty: true });
    }

    pub(crate) fn set_frozen(&mut self, owner: Owner, frozen: bool) {
        let Some(t) = self.supervised(owner) else { return };
        self.trees[t].frozen = frozen;
        if !frozen {
            self.met.add(Fault::NapSurvived);
            self.check_overlap(self.trees[t].lease);
        }
    }

    pub(crate) fn forward(&mut self, owner: Owner) {
        let Some(t) = self.supervised(owner) else { return };
        if self.rng.chance(700) {
            let takes = self.rng.below(self.ttl() / 4);
            self.after(takes, Event::JobEnds(t));
        }
    }

    /// The main process ends by itself, and may leave other processes.
    pub(crate) fn job_ends(&mut self, t: usize) {
        if !self.trees[t].main {
            return;
        }
        if !self.executing(&self.trees[t]) {
            let wait = nanos(self.config.timing.heartbeat);
            return self.after(wait, Event::JobEnds(t));
        }
        let tree = &mut self.trees[t];
        tree.main = false;
        tree.others &= tree.survivors && !tree.loose;
        let (owner, left, loose) = (tree.owner, tree.others, tree.loose);
        trace!(self, "job of w{}.{} ends, others left: {left}", owner.0, owner.1);
        if loose {
            return;
        }
        if left {
            self.met.add(Fault::LeavesSurvivors);
        }
        self.ended_well(owner);
        let takes = self.rng.below(self.config.lag);
        self.input_after(takes, owner, Input::JobExited { exit: JobExit::Code(0), tree_empty: !left });
    }

    /// The tree was killed, or it ended when asked to: no process is left.
    pub(crate) fn tree_dies(&mut self, t: usize) {
        if !self.trees[t].alive() {
            return;
        }
        let still = self.hosts[self.workers[self.trees[t].owner.0].host].still_until;
        if still > self.now {
            return self.at(still, Event::Dies(t));
        }
        let tree = &mut self.trees[t];
        let (owner, main) = (tree.owner, tree.main);
        (tree.main, tree.others) = (false, false);
        trace!(self, "tree of w{}.{} is gone", owner.0, owner.1);
        let input = if main {
            Input::JobExited { exit: JobExit::Signal(137), tree_empty: true }
        } else {
            Input::TreeEmpty
        };
        self.input_after(0, owner, input);
    }

    /// Whether a session on the asking host can prove that this run is over.
    pub(crate) fn probe(&mut self, owner: Owner, run: &str) {
        let asked: Option<Owner> =
            run.split_once('.').and_then(|(w, count)| Some((w.parse().ok()?, count.parse().ok()?)));
        let mut gone = false;
        if let Some((w, count)) = asked {
            let same_host = self.workers[w].host == self.workers[owner.0].host;
            let supervised = self.workers[w].count == count && self.workers[w].session.is_some();
            let lives = self.trees.iter().any(|t| t.owner == (w, count) && t.alive());
            gone = same_host && !supervised && !lives && !self.rng.chance(100);
        }
        self.met.add(if gone { Fault::ProbedGone } else { Fault::ProbedAlive });
        let wait = self.rng.below(self.config.latency);
        self.input_after(wait, owner, Input::Probed { gone });
    }

    pub(crate) fn remember(
        &mut self,
        host: usize,
        lease: usize,
        seen: Option<SeenToken>,
        watched: Option<WatchedRecord>,
    ) {
        let host = &mut self.hosts[host];
        if let Some(new) = seen {
            let known = host.seen[lease].filter(|old| old.epoch == new.epoch && old.token > new.token);
            host.seen[lease] = Some(known.unwrap_or(new));
        }
        if watched.is_some() {
            host.watched[lease] = watched;
        }
    }

    pub(crate) fn send_seal(&mut self, owner: Owner, lease: usize) {
        let wait = if !self.quiet && self.rng.chance(100) {
            self.met.add(Fault::SealSlow);
            self.rng.below(2 * self.ttl())
        } else {
            self.config.latency
        };
        self.after(wait, Event::Sealing(owner, lease));
    }

    pub(crate) fn seal_lands(&mut self, owner: Owner, lease: usize) {
        if !self.quiet && self.rng.chance(30) {
            self.met.add(Fault::SealFails);
            let why = Err("the target did not answer".into());
            return self.input_after(0, owner, Input::Sealed(why));
        }
        let Some(grant) = self.ledger.index_of(owner, lease).map(|i| self.ledger.grants[i].clone()) else {
            return;
        };
        let (lease_name, epoch) = (self.names[lease].clone(), grant.epoch);
        let bearer = Bearer { lease: lease_name, epoch, token: grant.token, grant: grant.grant };
        let result = match self.target_verdict(lease, &bearer, &FenceOffer::Seal(FenceMode::Enforce)) {
            _ if self.mutant == Mutant::SealSkipped => Ok(()),
            FenceVerdict::Accept(fence) => {
                self.fences[lease] = Some(fence);
                Ok(())
            }
            FenceVerdict::Repeat => Ok(()),
            // This target enforces, so it never only counts.
            FenceVerdict::Refuse(reason) | FenceVerdict::LetIn(reason, _) => Err(reason.word().to_owned()),
        };
        trace!(self, "target: seal of w{}.{} token {}: {result:?}", owner.0, owner.1, bearer.token);
        if result.is_ok() {
            self.check_accept(lease, &bearer, owner, 0);
        }
        self.input_after(self.config.latency, owner, Input::Sealed(result));
    }

    fn target_verdict(&self, lease: usize, bearer: &Bearer, offer: &FenceOffer) -> FenceVerdict {
        let stored = self.fences[lease].as_ref();
        let given = verdict(stored, bearer, offer);
        match (self.mutant, &given, stored) {
            (Mutant::ForkAccepted, FenceVerdict::Refuse(RefusalReason::Fork), Some(fence)) => {
                let as_if = Fence { grant: bearer.grant, ..fence.clone() };
                verdict(Some(&as_if), bearer, offer)
            }
            (Mutant::StaleAccepted, FenceVerdict::Refuse(RefusalReason::Stale), Some(fence)) => {
                FenceVerdict::Accept(fence.clone())
            }
            (Mutant::RetryWritesAgain, FenceVerdict::Repeat, Some(fence)) => {
                FenceVerdict::Accept(fence.clone())
            }
            _ => given,
        }
    }

    fn offer(&mut self, t: usize, offer: &FenceOffer) -> bool {
        let (bearer, owner, lease) = (self.trees[t].bearer(), self.trees[t].owner, self.trees[t].lease);
        let given = self.target_verdict(lease, &bearer, offer);
        trace!(self, "target: {offer:?} of w{}.{} token {}: {given:?}", owner.0, owner.1, bearer.token);
        match given {
            FenceVerdict::Refuse(_) | FenceVerdict::LetIn(..) => false,
            FenceVerdict::Repeat => true,
            FenceVerdict::Accept(fence) => {
                let seq = fence.seq;
                if self.mutant == Mutant::CheckThenWrite && seq > 0 {
                    let gap = self.rng.below(self.ttl());
                    self.after(gap, Event::WriteCommits(t, Box::new(fence), seq));
                } else {
                    self.fences[lease] = Some(fence);
                    self.check_accept(lease, &bearer, owner, seq);
                }
                true
            }
        }
    }

    /// Used only by the check-then-write mutant.
    pub(crate) fn write_commits(&mut self, t: usize, fence: Fence, seq: u64) {
        let (bearer, owner, lease) = (self.trees[t].bearer(), self.trees[t].owner, self.trees[t].lease);
        self.fences[lease] = Some(fence);
        self.check_accept(lease, &bearer, owner, seq);
    }

    pub(crate) fn job_writes(&mut self, t: usize) {
        if !self.trees[t].alive() || self.trees[t].writes_left == 0 {
            return;
        }
        if !self.executing(&self.trees[t]) {
            let wait = nanos(self.config.timing.heartbeat);
            return self.after(wait, Event::Write(t));
        }
        let tree = &self.trees[t];
        if self.ledger.superseded(tree.index) {
            self.met.add(Fault::ZombieWrite);
        }
        let seq = tree.acked + 1;
        let mut there = self.config.latency;
        let mut reply = Some(self.config.latency);
        if !self.quiet && self.rng.chance(100) {
            self.met.add(Fault::WriteLate);
            there = self.rng.below(2 * self.ttl());
        } else if !self.quiet && self.rng.chance(100) {
            self.met.add(Fault::WriteReplyLost);
            reply = None;
            let wait = self.ttl() / 5;
            self.after(wait, Event::Write(t));
        }
        self.after(there, Event::WriteLands(t, seq, reply));
    }

    pub(crate) fn write_lands(&mut self, t: usize, seq: u64, reply: Option<u64>) {
        let accepted = self.offer(t, &FenceOffer::Write { seq, digest: format!("d{seq}") });
        if let Some(reply) = reply {
            self.after(reply, Event::WriteAnswered(t, seq, accepted));
        }
    }

    pub(crate) fn write_answered(&mut self, t: usize, seq: u64, accepted: bool) {
        if accepted {
            self.trees[t].acked = self.trees[t].acked.max(seq);
        } else if self.rng.chance(500) {
            self.trees[t].writes_left = 0;
        }
        self.trees[t].writes_left = self.trees[t].writes_left.saturating_sub(1);
        let wait = self.rng.below(self.ttl());
        self.after(wait, Event::Write(t));
    }
}
