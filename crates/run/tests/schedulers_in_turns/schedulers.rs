//! Schedulers, the operator and the sweeper, each a thread that takes turns. As `daemon` and `tick` do, a scheduler looks
//! at its jobs, starts the slot that [`Retry`] chooses, and looks again when that run has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::core::ledger::{Amended, Amending, Entry, ItemState, Subject, retry};
use leasehold::ledger::{alive, amend, entry, key_of};
use leasehold::random;
use leasehold::stores::Store as _;
use leasehold_run::handoff::{NotBegun, SlotOutcome};
use leasehold_run::job_records::{self, DueNow, Terms, Tried};
use leasehold_run::scheduler::SchedulerMode;
use leasehold_run::scheduler::retry::Retry;
use pollster::block_on;

use crate::flaws::Flaw;
use crate::plan::Plan;
use crate::runs::{Spec, run};
use crate::store::Turned;
use crate::turns::{Me, Role, Stage, State as World};

/// Daemons and ticks that are started in place of those that were killed or have ended.
const REPLACED: usize = 5;

/// One job in a scheduler.
struct Lane {
    job: usize,
    terms: Terms,
    ttl: u64,
    wait: u64,
    wake: Option<u64>,
    running: Option<(usize, Subject, i64)>,
    retry: Retry,
    /// All slots that it has tried.
    tried: BTreeSet<i64>,
}

impl Lane {
    fn next_due(&self, now: u64) -> Option<u64> {
        let after = jiff::Timestamp::from_second(now.cast_signed()).unwrap();
        Some(self.terms.schedule.next_after(after)?.number().unsigned_abs())
    }
}

struct Scheduler<'a> {
    me: &'a Me,
    store: Turned,
    lanes: Vec<Lane>,
    edition: u32,
    /// How far its clock is off, in seconds.
    skew: i64,
    /// A tick: it looks as of this time, and ends.
    began: Option<u64>,
    flaw: Flaw,
}

fn millis(seconds: u64) -> i64 {
    seconds.cast_signed() * 1000
}

/// Starts daemons and ticks where there are too few.
pub fn replace(stage: &Arc<Stage>, state: &mut World) {
    if state.living(Role::Daemon) < state.plan.daemons && state.count(Role::Daemon) < REPLACED {
        stage.spawn(state, Role::Daemon, None, daemon);
    } else if state.living(Role::Tick) == 0 && state.count(Role::Tick) < REPLACED {
        stage.spawn(state, Role::Tick, None, tick);
    }
}

pub fn daemon(me: &Me) {
    scheduler(me, false);
}

pub fn tick(me: &Me) {
    scheduler(me, true);
}

fn scheduler(me: &Me, once: bool) {
    let (flaw, clock, as_of) = {
        let state = me.stage.lock();
        (state.flaw, state.clock, state.as_of)
    };
    let skew = if as_of.is_some() { 0 } else { [-1, 0, 0, 1][me.below(4) as usize] };
    let began = once.then_some(as_of.unwrap_or_else(|| clock.saturating_add_signed(skew)));
    let (lanes, edition, store) = (Vec::new(), 0, me.store());
    let mut scheduler = Scheduler { me, store, lanes, edition, skew, began, flaw };
    while scheduler.step() {}
}

impl Scheduler<'_> {
    fn now(&self) -> u64 {
        self.me.clock().saturating_add_signed(self.skew)
    }

    /// Does what is due, and waits. False: nothing is left to do.
    fn step(&mut self) -> bool {
        let (edition, calm) = {
            let state = self.me.stage.lock();
            (state.plan.edition, state.calm)
        };
        let once = self.began.is_some();
        let draining = calm && !once;
        if edition != self.edition && !draining && (!once || self.edition == 0) && !self.load() {
            // Without the store nothing can be done; a tick is for another time.
            let again = self.now() + 2;
            if once {
                return false;
            }
            self.me.idle(again);
            return true;
        }
        for n in 0..self.lanes.len() {
            self.reap(n);
            let now = self.now();
            if !draining && self.lanes[n].wake.is_some_and(|at| at <= now) && !self.visit(n) {
                self.lanes[n].wake = Some(now + 1).filter(|_| !once);
            }
        }
        let busy = self.lanes.iter().any(|lane| lane.running.is_some());
        let wake = self.lanes.iter().filter_map(|lane| lane.wake).min().filter(|_| !draining);
        if !busy && wake.is_none() {
            return false;
        }
        let skew = self.skew;
        self.me.idle(wake.map_or(u64::MAX, |at| at.saturating_add_signed(-skew)));
        true
    }

    /// Reads the file, and tells the store.
    fn load(&mut self) -> bool {
        let plan = self.me.stage.lock().plan.clone();
        let now = self.now();
        let lane = |(job, of): (usize, &crate::plan::Job)| {
            let (terms, retry, tried) = (of.terms(), Retry::default(), BTreeSet::new());
            Lane { job, terms, ttl: of.ttl, wait: of.wait, wake: Some(now), running: None, retry, tried }
        };
        let mut lanes: Vec<Lane> = plan.jobs.iter().enumerate().map(lane).collect();
        let terms: Vec<&Terms> = lanes.iter().map(|lane| &lane.terms).collect();
        if job_records::register(&mut self.store, &terms, now.cast_signed()).is_err() {
            return false;
        }
        for (lane, old) in lanes.iter_mut().zip(std::mem::take(&mut self.lanes)) {
            (lane.running, lane.retry, lane.tried) = (old.running, old.retry, old.tried);
        }
        (self.lanes, self.edition) = (lanes, plan.edition);
        true
    }

    /// Sees whether a run has ended.
    fn reap(&mut self, n: usize) {
        let Some((run, subject, at)) = self.lanes[n].running.clone() else { return };
        if !self.me.stage.lock().is_over(run) {
            return;
        }
        let found = entry(&mut self.store, &subject).ok().flatten();
        let outcome = self.me.stage.lock().outcomes.get(&run).copied();
        // One that was killed has handed nothing back: then the record says it.
        let outcome = outcome.unwrap_or(match found {
            Some(entry) if entry.claim.holder.pid as usize == run => SlotOutcome::Begun(None),
            _ => SlotOutcome::NotBegun(NotBegun::Failed),
        });
        let now = self.now();
        let lane = &mut self.lanes[n];
        lane.running = None;
        lane.retry.ended(at, outcome, millis(now));
        lane.tried.insert(at);
        lane.wake = Some(now);
    }

    fn visit(&mut self, n: usize) -> bool {
        self.lanes[n].wake = None;
        let upto = self.began.unwrap_or_else(|| self.now()).cast_signed();
        let lane = &self.lanes[n];
        let tried = lane.running.as_ref().map_or(lane.retry.last(), |(_, _, at)| Tried::Running(*at));
        let mut terms = lane.terms.clone();
        if self.flaw == Flaw::CatchesUpAll {
            (terms.catch_up, terms.max_age) = (terms.catch_up + 4, None);
        }
        match job_records::due_now(&mut self.store, &terms, upto, tried) {
            Ok(look) => {
                self.follow(n, &look, upto);
                true
            }
            Err(_) => false,
        }
    }

    fn follow(&mut self, n: usize, look: &DueNow, upto: i64) {
        let (now, once) = (self.now(), self.began.is_some());
        let lane = &mut self.lanes[n];
        let idle = lane.running.is_none();
        if !once {
            let again = (look.unsettled && idle).then(|| now + lane.ttl / 3);
            lane.wake = again.into_iter().chain(lane.next_due(now)).min();
        }
        if !idle {
            return;
        }
        let mode = if once { SchedulerMode::Once } else { SchedulerMode::Stays };
        let mut offered = look.start.clone();
        if self.flaw == Flaw::NewestFirst {
            offered.reverse();
        }
        let start = match lane.retry.choose(&offered, lane.terms.skips, mode, millis(now), |_| false) {
            Ok(start) => *start,
            Err(later) => {
                let later = later.map(|at| at.div_euclid(1000).unsigned_abs());
                lane.wake = lane.wake.into_iter().chain(later).min();
                return;
            }
        };
        lane.retry.started(&start);
        let (at, subject) = (start.slot.number(), lane.terms.subject(&start.slot));
        let (job, terms, ttl, wait) = (lane.job, lane.terms.clone(), lane.ttl, lane.wait);
        let tried: Vec<i64> = lane.tried.iter().copied().collect();
        let spec = Spec { job, terms, subject: subject.clone(), at, ttl, wait };
        let mut state = self.me.stage.lock();
        let World { watch, plan, .. } = &mut *state;
        watch.starts(&plan.jobs[job], &lane.terms, job, at, upto, &tried);
        let id =
            self.me.stage.spawn(&mut state, Role::Run(job, at), Some(self.me.id), move |me| run(me, &spec));
        state.watch.run(id, job, at);
        lane.running = Some((id, subject, at));
        lane.wake = lane.next_due(now).filter(|_| !once);
    }
}

/// Pauses, resumes, has slots tried again and changes the file.
pub fn operator(me: &Me) {
    let mut store = me.store();
    let (one_shots, jobs, unit) = {
        let state = me.stage.lock();
        (state.plan.one_shots, state.plan.jobs.len() as u64, state.plan.unit)
    };
    for _ in 0..one_shots {
        let then = me.clock() + 1 + me.below(unit * 3);
        me.idle(then);
        let job = me.below(jobs) as usize;
        let name = me.stage.lock().plan.jobs[job].name.clone();
        let now = me.clock().cast_signed();
        match me.below(7) {
            0..=1 => drop(job_records::pause(&mut store, &name)),
            2..=3 => drop(job_records::resume(&mut store, &name, None, now)),
            4..=5 => again(me, &mut store, job, None),
            _ => change(&mut me.stage.lock(), job),
        }
    }
}

/// In the end, completes what an operator left half done.
pub fn settle(me: &Me) {
    let mut store = me.store();
    let plan: Plan = me.stage.lock().plan.clone();
    for (n, job) in plan.jobs.iter().enumerate() {
        job_records::resume(&mut store, &job.name, None, me.clock().cast_signed()).unwrap();
        let promised = me.stage.lock().watch.planned(n);
        promised.into_iter().for_each(|at| again(me, &mut store, n, Some(at)));
    }
}

fn change(state: &mut World, job: usize) {
    let job = &mut state.plan.jobs[job];
    (job.due, job.other) = (job.other, job.due);
    state.plan.edition += 1;
    state.nudge_all();
}

/// As `leasehold retry` does it: the record first, then the list.
fn again(me: &Me, store: &mut Turned, job: usize, at: Option<i64>) {
    let (at, name) = {
        let mut state = me.stage.lock();
        let some = state.watch.retryable(job);
        let some = if some.is_empty() { None } else { Some(state.dice.one_of(&some)) };
        (at.or(some), state.plan.jobs[job].name.clone())
    };
    let Some(slot) = at.and_then(leasehold_run::schedule::Slot::due_at) else { return };
    let subject = Subject::Slot { job: name.clone(), at: slot.number(), id: slot.due().to_string() };
    let Ok(Some(stored)) = block_on(store.read(&key_of(&subject))) else { return };
    let Ok(found) = Entry::decode_of(&subject, &stored.body) else { return };
    let Ok(lives) = alive(store, &found.claim.lease, found.claim.grant) else { return };
    let listed = match retry(&found, lives != leasehold::core::ledger::Alive::No) {
        Some(next) => {
            matches!(amend(store, Amending::new(stored.version, next, random::seed())), Amended::Done(..))
        }
        None => found.state == ItemState::Planned,
    };
    if listed {
        let _ = job_records::again(store, &name, slot.number());
    }
}

/// Removes old records now and then, until nothing goes wrong any more.
pub fn sweeper(me: &Me) {
    let mut store = me.store();
    let unit = me.stage.lock().plan.unit;
    while !me.stage.lock().calm {
        let then = me.clock() + unit * (1 + me.below(3));
        me.idle(then);
        let plan = me.stage.lock().plan.clone();
        for job in &plan.jobs {
            let _ = job_records::sweep(&mut store, &job.terms(), me.clock().cast_signed());
        }
    }
}
