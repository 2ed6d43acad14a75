//! Starts what is due, for `daemon` and `tick`: one lane for each job, one `leasehold run` for each slot.
//!
//! What is due and what became of it is in the store; a lane only remembers what this process has just tried. So
//! any number of schedulers with the same jobs may run, and any of them may be killed at any time.

mod clocks;
mod lane;
pub mod start;
mod voice;

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::core::name::Name;
use leasehold::stores::{Failure, FailureKind, Store};
use leasehold::{clock, clock_offset};
use leasehold_run::job_records::{self, Broken, Look, Note, Start};
use leasehold_run::jobs::Job;

use crate::cmd::{Opened, store_failed};
use crate::config::Chosen;
use crate::exit::{Failed, Kind};
use crate::out::Out;
use clocks::{Clocks, Wrong};
use lane::Lane;
use start::Starter;
use voice::Voice;

/// Nobody schedules by a clock that is further off.
const CLOCK_OFF_MS: i64 = 300_000;
/// Most runs at a time that make up for missed slots: after an outage everything would start at once.
const LATE_MAX: usize = 4;
/// Processes look at a slot up to this much apart.
const JITTER_MS: u128 = 50;
/// Old records are looked for this often.
const SWEEP_MS: i64 = 3_600_000;

/// Milliseconds since 1970.
pub type Millis = i64;

/// When a scheduler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When somebody says so.
    Stays,
    /// When nothing more is to be done about what is due now.
    Once,
}

/// All jobs of one configuration, and what this process is doing about them.
pub struct Scheduler<'a> {
    pub lanes: Vec<Lane>,
    opened: Opened,
    starter: Starter,
    voice: Voice<'a>,
    mode: Mode,
    /// Each process looks a little later than the slots are due, so that not all ask at once for the same.
    jitter: Millis,
    /// With [`Mode::Once`], what is due later is for another time.
    began: Millis,
    clocks: Clocks,
    swept: Millis,
    /// So often in a row the store did not answer.
    silent: u32,
    /// The lane that is looked at first.
    from: usize,
    /// Nothing is looked at before this: the store is silent, or the clock is not to be gone by.
    held: Millis,
    /// Nothing more is to be started.
    pub draining: bool,
    /// A run failed, or was lost.
    pub failed: bool,
}

impl<'a> Scheduler<'a> {
    /// Opens nothing; `opened` has been tried.
    pub fn new(mut opened: Opened, starter: Starter, mode: Mode, out: &'a Out) -> Result<Self, Failed> {
        let ahead = compared(&mut opened)?.unwrap_or(0);
        opened.store.limit_calls(Duration::from_secs(10));
        let voice = Voice::new(out);
        let now = wall_ms() - ahead;
        Ok(Self {
            lanes: Vec::new(),
            opened,
            starter,
            voice,
            mode,
            jitter: i64::try_from(leasehold::random::seed() % JITTER_MS).unwrap_or(0),
            began: now,
            clocks: Clocks::new(ahead, wall_ms()),
            swept: now,
            silent: 0,
            from: 0,
            held: 0,
            draining: false,
            failed: false,
        })
    }

    /// The store that all of it is on.
    pub fn chosen(&self) -> &Chosen {
        &self.opened.chosen
    }

    /// The store itself.
    pub fn store(&self) -> &dyn Store {
        self.opened.store.as_ref()
    }

    /// The time by the store's clock.
    pub fn now(&self) -> Millis {
        wall_ms() - self.clocks.ahead
    }

    /// These are the jobs from now on, if the store can be told. Runs that go on are left alone.
    pub fn take(&mut self, jobs: Vec<Job>) -> Result<(), Failed> {
        self.compare_again();
        if !self.clocks.known {
            // What is new would be due from a wrong time on.
            let why = "this machine's clock was set, or is wrong, and has to agree with the store's first";
            return Err(Failed::new(Kind::Clock, "clock", why));
        }
        let now = self.now();
        let mut lanes: Vec<Lane> = jobs.into_iter().map(|job| Lane::new(job, now)).collect();
        let terms: Vec<_> = lanes.iter().map(|lane| &lane.terms).collect();
        let changed = job_records::register(self.opened.store.as_mut(), &terms, now.div_euclid(1000))
            .map_err(|failure| store_failed(&failure, &self.opened.chosen))?;
        self.voice.registered(&changed, &self.opened.chosen);
        let before = std::mem::take(&mut self.lanes).into_iter();
        let mut before: BTreeMap<Name, Lane> = before.map(|lane| (lane.job.name.clone(), lane)).collect();
        for lane in &mut lanes {
            before.remove(&lane.job.name).into_iter().for_each(|old| lane.inherit(old));
        }
        // Of those that are gone, only what still runs.
        lanes.extend(before.into_values().filter(|lane| lane.running.is_some()).map(Lane::retired));
        self.lanes = lanes;
        Ok(())
    }

    /// Does what is due. Gives when there is something to do next, if that is known.
    pub fn step(&mut self) -> Option<Millis> {
        if !self.draining {
            self.compare_again();
        }
        let now = self.now();
        self.dequeue(now);
        // Begun after the one that was not answered for: if only its records fail, the others come by all the same.
        for n in 0..self.lanes.len() {
            let i = (self.from + n) % self.lanes.len();
            if (self.draining || self.may_act(now)) && self.lanes[i].wake.is_some_and(|at| at <= now) {
                self.visit(i, now);
            }
        }
        if self.may_act(now) {
            self.sweep(now);
        }
        self.lanes.retain(|lane| !lane.retired || lane.running.is_some());
        let next = self.lanes.iter().filter_map(|lane| lane.wake).min();
        self.clocks.next(next, self.held, self.draining)
    }

    /// Somebody set this machine's clock.
    pub fn clock_was_set(&mut self) {
        self.clocks.were_set();
    }

    /// Whether the store answers, as far as is known, and the clock is to be gone by.
    fn may_act(&self, now: Millis) -> bool {
        self.clocks.known && now >= self.held
    }

    /// Whether runs of ours go on.
    pub fn busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.running.is_some())
    }

    /// Passes a signal on to all runs.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let running = self.lanes.iter().filter_map(|lane| lane.running.as_ref());
        running.for_each(|running| running.signal(signal));
    }

    /// Sees which runs have ended, and what became of them.
    pub fn reap(&mut self) {
        let now = self.now();
        for i in 0..self.lanes.len() {
            let Some(ended) = self.lanes[i].reap() else { continue };
            let entry = leasehold::ledger::entry(self.opened.store.as_mut(), &ended.subject);
            let begun =
                entry.as_ref().is_ok_and(|entry| entry.as_ref().is_some_and(|entry| ended.left(entry)));
            let went_well = self.voice.ended(&self.lanes[i].job.name, &ended, entry);
            self.failed |= !went_well;
            self.lanes[i].ended(&ended, begun, now);
        }
    }

    /// Wakes as many lanes as there is room for, of those that wait to make up for something.
    fn dequeue(&mut self, now: Millis) {
        if !self.lanes.iter().any(|lane| lane.queued) {
            return;
        }
        let room = LATE_MAX.saturating_sub(self.late());
        for lane in self.lanes.iter_mut().filter(|lane| lane.queued).take(room) {
            (lane.queued, lane.wake) = (false, Some(now));
        }
    }

    /// How many runs make up for something.
    fn late(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.running.as_ref().is_some_and(|run| run.late)).count()
    }

    /// Looks what is due of one job.
    fn visit(&mut self, i: usize, now: Millis) {
        let lane = &mut self.lanes[i];
        lane.wake = None;
        if self.draining || lane.retired {
            return;
        }
        let upto = if self.mode == Mode::Once { self.began } else { now };
        let due = (upto - lane.delay).div_euclid(1000);
        match job_records::look(self.opened.store.as_mut(), &lane.terms, due, lane.tried()) {
            Ok(look) => {
                self.voice.answered(&mut self.silent);
                self.follow(i, &look, now);
            }
            Err(Broken { failure, notes }) => {
                self.tell(i, &notes);
                self.unanswered(i, &failure, now);
            }
        }
    }

    fn tell(&mut self, i: usize, notes: &[Note]) {
        let lane = &mut self.lanes[i];
        notes.iter().for_each(|note| self.voice.note(&lane.job.name, note, &mut lane.told));
    }

    fn follow(&mut self, i: usize, look: &Look, now: Millis) {
        self.tell(i, &look.notes);
        // Counted only where it matters: there may be many lanes.
        let full = look.start.iter().any(|start| start.late) && self.late() >= LATE_MAX;
        let lane = &mut self.lanes[i];
        let idle = lane.running.is_none();
        if self.mode == Mode::Stays {
            let due = lane.next_due(now).map(|at| at + self.jitter);
            let again = (look.unsettled && idle).then(|| now + lane.patience());
            lane.wake = again.into_iter().chain(due).min();
        }
        // What is late may have to wait for others that are. What is due now does not wait for it, unless slots are to be
        // run in their order.
        let crowded = |start: &&Start| start.late && full;
        let passed = |start: &&Start| crowded(start) && (lane.terms.skips || start.again);
        // One that cannot be begun yet must not keep the others from it.
        let ready = |start: &&Start| lane.not_before(start, self.mode).is_some_and(|at| at <= now);
        let ready: Vec<&Start> = look.start.iter().filter(ready).collect();
        let at_once: Vec<&Start> = ready.iter().copied().filter(|start| !passed(start)).collect();
        let Some(start) = lane.first(&at_once).or(ready.first().copied()).filter(|_| idle) else {
            let later = look.start.iter().filter_map(|start| lane.not_before(start, self.mode)).min();
            lane.wake = lane.wake.into_iter().chain(later.filter(|_| idle)).min();
            return;
        };
        if crowded(&start) {
            lane.queued = true;
            return;
        }
        match self.starter.start(&lane.job, &start.slot, start.late) {
            Ok(running) => {
                self.voice.started(&lane.job.name, start);
                lane.started(running, start.again);
                // Others are for when it has ended, or the next slot is due.
                lane.wake =
                    lane.next_due(now).map(|at| at + self.jitter).filter(|_| self.mode == Mode::Stays);
            }
            Err(error) => {
                self.failed = true;
                self.voice.unstarted(&lane.job.name, &start.slot, &error);
                lane.stumbled(&start.slot, now);
            }
        }
    }

    /// Without the store nothing can be started: it is left alone for a while. A record that makes no sense is the trouble
    /// of one job.
    fn unanswered(&mut self, i: usize, failure: &Failure, now: Millis) {
        self.failed = true;
        let lane = &mut self.lanes[i];
        if failure.kind == FailureKind::Unusable {
            lane.wake = lane.next_due(now).filter(|_| self.mode == Mode::Stays);
            if lane.told.insert(failure.message.clone()) {
                self.voice.warn(&format!("{} is not run: {}", lane.job.name, failure.message));
            }
            return;
        }
        if self.silent == 0 {
            self.voice.silent(failure, &self.opened.chosen);
        }
        self.silent = self.silent.saturating_add(1);
        match self.mode {
            Mode::Stays => {
                (self.lanes[i].wake, self.from) = (Some(now), i + 1);
                self.held = now + (500 << self.silent.min(6));
            }
            Mode::Once => self.draining = true,
        }
    }

    /// Compares the clocks now and then, when there is something to do anyway. While this one is too far off, or was set
    /// and nobody knows how far it is off now, nothing is started.
    fn compare_again(&mut self) {
        let wall = wall_ms();
        if !self.clocks.are_due(wall) {
            return;
        }
        let (known, answer) = (self.clocks.known, compared(&mut self.opened));
        let wrong = |failed: &Failed| if failed.kind == Kind::Config { Wrong::Off } else { Wrong::Silent };
        let again = self.clocks.found(answer.as_ref().map_err(wrong).copied(), wall);
        match (answer, again) {
            (Err(failed), Some(again)) => {
                self.held = self.now() + again;
                // A tick does not wait for better times.
                self.failed = true;
                self.draining |= self.mode == Mode::Once;
                let told = wrong(&failed) == Wrong::Silent && self.silent > 0;
                if wrong(&failed) == Wrong::Silent {
                    self.silent = self.silent.saturating_add(1);
                }
                if !told {
                    self.voice.untimed(&failed.message, wrong(&failed));
                }
            }
            (Ok(_), _) if !known => self.held = 0,
            _ => {}
        }
    }

    /// Removes old records of jobs that have run something.
    fn sweep(&mut self, now: Millis) {
        if now - self.swept < SWEEP_MS && (self.mode == Mode::Stays || self.busy()) {
            return;
        }
        self.swept = now;
        for lane in self.lanes.iter_mut().filter(|lane| lane.ran) {
            lane.ran = false;
            // What cannot be removed now is removed next time.
            let _ = job_records::sweep(self.opened.store.as_mut(), &lane.terms, now.div_euclid(1000));
        }
    }
}

fn wall_ms() -> Millis {
    i64::try_from(clock::wall().as_millis()).unwrap_or(i64::MAX)
}

/// How far this machine's clock is ahead of the store's; refused if it is too far.
fn compared(opened: &mut Opened) -> Result<Option<Millis>, Failed> {
    let ahead =
        clock_offset::clock_ahead(opened.store.as_mut()).map_err(|f| store_failed(&f, &opened.chosen))?;
    if let Some(ahead) = ahead.filter(|ahead| ahead.abs() > CLOCK_OFF_MS) {
        let off = leasehold::core::stop::Text(Duration::from_millis(ahead.unsigned_abs()));
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        return Err(Failed::config(format!(
            "this machine's clock is {off} {way} that of {}. Nothing was started: jobs would run at wrong times. Set \
             the clock (timedatectl set-ntp true), then start again",
            opened.chosen.shown
        )));
    }
    Ok(ahead)
}
