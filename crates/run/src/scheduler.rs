//! Starts a process for each slot that is due, for `daemon` and `tick`.
//!
//! The store keeps what is due and how it ended; a scheduler remembers only what it has just tried. So any number of
//! schedulers with the same jobs may run, and any of them may be killed at any time.

mod clocks;
mod job_state;
pub mod retry;
mod start;

use std::collections::BTreeMap;
use std::time::Duration;

use clocks::{Clocks, NoComparison};
use job_state::JobState;
use leasehold::clock_offset::clock_ahead;
use leasehold::run_log::LogWriter;
use leasehold::stores::{Failure, FailureKind, Store};
use leasehold::{clock, ledger, random};
use leasehold_core::ledger::{Entry, ItemState};
use leasehold_core::name::Name;
pub use start::{EndedRun, StartError, Starter};

use crate::handoff::{NotBegun, SlotOutcome, SlotRecord};
use crate::job_records::{self, DueNow, JobNote, LookFailed, SlotToStart};
use crate::jobs::Job;
use crate::notify::AlertSettings;
use crate::schedule::Slot;

/// With a clock that is further off, nothing is started.
const CLOCK_OFF_MS: i64 = 300_000;
/// The most runs of missed slots at a time: after an outage all would start at once.
const LATE_MAX: usize = 4;
/// Schedulers look at a slot up to this much apart, so that they do not all ask at once.
const JITTER_MS: u128 = 50;
/// Old records are removed this often.
const SWEEP_MS: i64 = 3_600_000;

/// Milliseconds since 1970.
pub type Millis = i64;

/// When a scheduler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerMode {
    /// When it is told to: `daemon`.
    Stays,
    /// When everything that is due now is done: `tick`.
    Once,
}

/// An event that people should know of.
#[derive(Debug)]
pub enum SchedulerEvent<'a> {
    /// The jobs were registered in the store. These are new, or had this other schedule before.
    Registered(&'a [(Name, Option<String>)]),
    /// A look found something about a job. Each look repeats it.
    Noted(&'a Name, &'a JobNote),
    /// The records of a job cannot be used. Each look repeats it.
    Unusable(&'a Name, &'a Failure),
    /// A run was started.
    Started(&'a Name, &'a SlotToStart),
    /// A run was not started.
    NotStarted(&'a Name, &'a Slot, &'a StartError),
    /// A run has ended.
    Ended(&'a Name, &'a RunEnded<'a>),
    /// The store does not answer: nothing is started until it does.
    StoreSilent(&'a Failure),
    /// The store answers again.
    StoreAnswers,
    /// Nothing is started until the clock is known to be right.
    ClockWrong(&'a ClockError),
}

/// A run that has ended, and its slot.
#[derive(Debug)]
pub struct RunEnded<'a> {
    /// The run.
    pub ended: &'a EndedRun,
    /// The record of the slot, if there is one.
    pub record: Result<Option<SlotRecord>, Failure>,
    /// The outcome for the slot.
    pub became: SlotFate,
}

/// The outcome for a slot whose run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFate {
    /// The run did not start it. A record, if there is one, is another run's.
    NotBegun,
    /// The store did not answer.
    NotKnown,
    /// The run started it and died.
    Silent,
    /// As recorded.
    Stands(SlotRecord),
}

impl<'a> RunEnded<'a> {
    fn new(ended: &'a EndedRun, found: Result<Option<Entry>, Failure>) -> Self {
        let ours = found.as_ref().is_ok_and(|entry| entry.as_ref().is_some_and(|entry| ended.left(entry)));
        let record = found.map(|entry| entry.as_ref().map(SlotRecord::from));
        let became = became(ended, ours, &record);
        Self { ended, record, became }
    }

    /// For a run that has handed back its record.
    fn told(ended: &'a EndedRun, recorded: SlotRecord) -> Self {
        let record = Ok(Some(recorded));
        let became = became(ended, true, &record);
        Self { ended, record, became }
    }

    /// Whether all is well.
    pub fn went_well(&self) -> bool {
        match self.became {
            SlotFate::NotBegun | SlotFate::NotKnown => self.ended.status.success(),
            SlotFate::Silent => false,
            SlotFate::Stands(recorded) => matches!(recorded.state, ItemState::Ok | ItemState::Skipped),
        }
    }
}

fn became(ended: &EndedRun, ours: bool, record: &Result<Option<SlotRecord>, Failure>) -> SlotFate {
    let recorded = match record {
        Ok(Some(recorded)) => *recorded,
        Ok(None) => return SlotFate::NotBegun,
        Err(_) => return SlotFate::NotKnown,
    };
    let waits = ended.outcome == Some(SlotOutcome::NotBegun(NotBegun::NeedsYou));
    match recorded.state {
        ItemState::Ok | ItemState::Skipped => SlotFate::Stands(recorded),
        ItemState::Started if ours => SlotFate::Silent,
        // Another run works on it, or a person lets it be tried again: there is nothing to say of this run.
        ItemState::Started | ItemState::Planned => SlotFate::NotBegun,
        ItemState::Failed | ItemState::Lost | ItemState::Killed | ItemState::Unknown if ours || waits => {
            SlotFate::Stands(recorded)
        }
        // Another run recorded it, and this run had another reason not to start.
        ItemState::Failed | ItemState::Lost | ItemState::Killed | ItemState::Unknown => SlotFate::NotBegun,
    }
}

/// Why this machine's clock cannot be used for schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockError {
    /// It is this many milliseconds ahead of the store's.
    Off(Millis),
    /// The store did not tell the time.
    Store(Failure),
}

/// Why jobs were not registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The clock was set or is wrong, so new jobs would count from a wrong time.
    Clock,
    /// The store did not take them.
    Store(Failure),
}

/// All jobs of one configuration, and the runs of this process.
pub struct Scheduler<'a> {
    jobs: Vec<JobState>,
    store: Box<dyn Store>,
    log: LogWriter,
    starter: Starter,
    tell: Box<dyn FnMut(&SchedulerEvent<'_>) + 'a>,
    mode: SchedulerMode,
    /// This scheduler looks this much later than a slot is due.
    jitter: Millis,
    /// With [`SchedulerMode::Once`], only slots that were due by then are started.
    began: Millis,
    clocks: Clocks,
    swept: Millis,
    /// How often in a row the store did not answer.
    silent: u32,
    /// The job that is looked at first.
    from: usize,
    /// Nothing is done before this: the store is silent, or the clock cannot be trusted.
    held: Millis,
    /// Nothing more is started.
    pub draining: bool,
    /// A run failed, or was lost.
    pub failed: bool,
}

impl<'a> Scheduler<'a> {
    /// Compares the clocks. It has no jobs yet.
    pub fn new(
        mut store: Box<dyn Store>,
        log: LogWriter,
        starter: Starter,
        mode: SchedulerMode,
        tell: impl FnMut(&SchedulerEvent<'_>) + 'a,
    ) -> Result<Self, ClockError> {
        let ahead = compared(store.as_mut())?.unwrap_or(0);
        store.limit_calls(Duration::from_secs(10));
        let now = wall_ms() - ahead;
        Ok(Self {
            jobs: Vec::new(),
            store,
            log,
            starter,
            tell: Box::new(tell),
            mode,
            jitter: i64::try_from(random::seed() % JITTER_MS).unwrap_or(0),
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

    /// Who is told from now on if a run goes wrong.
    pub fn alerts(&mut self, alerts: Option<AlertSettings>) {
        self.starter.alerts = alerts;
    }

    /// The store itself.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// The time by the store's clock.
    pub fn now(&self) -> Millis {
        wall_ms() - self.clocks.ahead
    }

    /// Replaces the jobs, if the store takes them. Runs that go on are left alone.
    pub fn take(&mut self, jobs: Vec<Job>) -> Result<(), TakeError> {
        self.compare_again();
        if !self.clocks.known {
            return Err(TakeError::Clock);
        }
        let now = self.now();
        let mut jobs: Vec<JobState> = jobs.into_iter().map(|job| JobState::new(job, now)).collect();
        let terms: Vec<_> = jobs.iter().map(|state| &state.terms).collect();
        let changed = job_records::register(self.store.as_mut(), &terms, now.div_euclid(1000))
            .map_err(TakeError::Store)?;
        (self.tell)(&SchedulerEvent::Registered(&changed));
        let before = std::mem::take(&mut self.jobs).into_iter();
        let mut before: BTreeMap<Name, JobState> =
            before.map(|state| (state.job.name.clone(), state)).collect();
        for state in &mut jobs {
            before.remove(&state.job.name).into_iter().for_each(|old| state.inherit(old));
        }
        // A job that is gone is kept while a run of it goes on.
        jobs.extend(before.into_values().filter(|state| state.running.is_some()).map(JobState::retired));
        self.jobs = jobs;
        Ok(())
    }

    /// Does what is due. Gives the time of the next step, if that is known.
    pub fn step(&mut self) -> Option<Millis> {
        if !self.draining {
            self.compare_again();
        }
        let now = self.now();
        self.dequeue(now);
        // Starts after the job whose look failed last: if only its records fail, the others still have their turn.
        for n in 0..self.jobs.len() {
            let i = (self.from + n) % self.jobs.len();
            if (self.draining || self.may_act(now)) && self.jobs[i].wake.is_some_and(|at| at <= now) {
                self.visit(i, now);
            }
        }
        if self.may_act(now) {
            self.sweep(now);
        }
        self.jobs.retain(|state| !state.retired || state.running.is_some());
        let next = self.jobs.iter().filter_map(|state| state.wake).min();
        self.clocks.next(next, self.held, self.draining)
    }

    /// Notes that this machine's clock was set.
    pub fn clock_was_set(&mut self) {
        self.clocks.were_set();
    }

    /// True if the store was last reachable and the clock is trusted.
    fn may_act(&self, now: Millis) -> bool {
        self.clocks.known && now >= self.held
    }

    /// Whether runs of ours go on.
    pub fn busy(&self) -> bool {
        self.jobs.iter().any(|state| state.running.is_some())
    }

    /// Passes a signal on to all runs.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let running = self.jobs.iter().filter_map(|state| state.running.as_ref());
        running.for_each(|running| running.signal(signal));
    }

    /// Takes the runs that have ended. If a run has not handed back its record, the store is read.
    pub fn reap(&mut self) {
        let now = self.now();
        for state in &mut self.jobs {
            let Some(ended) = state.reap() else { continue };
            let (told, outcome) = match ended.outcome {
                Some(outcome @ SlotOutcome::Begun(Some(recorded))) => {
                    (RunEnded::told(&ended, recorded), outcome)
                }
                _ => {
                    let found = ledger::entry(self.store.as_mut(), &ended.subject);
                    let outcome = ended.slot_outcome(found.as_ref().ok().and_then(Option::as_ref));
                    (RunEnded::new(&ended, found), outcome)
                }
            };
            (self.tell)(&SchedulerEvent::Ended(&state.job.name, &told));
            self.failed |= !told.went_well();
            state.ended(&ended.slot, outcome, now);
        }
    }

    /// Wakes as many jobs with missed slots as there is room for.
    fn dequeue(&mut self, now: Millis) {
        if !self.jobs.iter().any(|state| state.queued) {
            return;
        }
        let room = LATE_MAX.saturating_sub(self.late());
        for state in self.jobs.iter_mut().filter(|state| state.queued).take(room) {
            (state.queued, state.wake) = (false, Some(now));
        }
    }

    /// How many runs are of missed slots.
    fn late(&self) -> usize {
        self.jobs.iter().filter(|state| state.running.as_ref().is_some_and(|run| run.late)).count()
    }

    /// Looks at one job.
    fn visit(&mut self, i: usize, now: Millis) {
        let state = &mut self.jobs[i];
        state.wake = None;
        if self.draining || state.retired {
            return;
        }
        let upto = if self.mode == SchedulerMode::Once { self.began } else { now };
        let due = (upto - state.delay).div_euclid(1000);
        match job_records::due_now(self.store.as_mut(), &state.terms, due, state.tried()) {
            Ok(look) => {
                if std::mem::take(&mut self.silent) > 0 {
                    (self.tell)(&SchedulerEvent::StoreAnswers);
                }
                self.follow(i, &look, now);
            }
            Err(LookFailed { failure, notes }) => {
                self.note(i, &notes);
                self.unanswered(i, &failure, now);
            }
        }
    }

    fn note(&mut self, i: usize, notes: &[JobNote]) {
        let (name, tried) = (&self.jobs[i].job.name, self.jobs[i].tried());
        notes.iter().for_each(|note| (self.tell)(&SchedulerEvent::Noted(name, note)));
        for record in notes.iter().filter_map(|note| note.logged(name, tried)) {
            self.log.write(self.store.as_mut(), &record);
        }
    }

    fn follow(&mut self, i: usize, look: &DueNow, now: Millis) {
        self.note(i, &look.notes);
        // Counted only where it matters: there may be many jobs.
        let full = look.start.iter().any(|start| start.late) && self.late() >= LATE_MAX;
        let state = &mut self.jobs[i];
        let idle = state.running.is_none();
        if self.mode == SchedulerMode::Stays {
            let due = state.next_due(now).map(|at| at + self.jitter);
            let again = (look.unsettled && idle).then(|| now + state.patience());
            state.wake = again.into_iter().chain(due).min();
        }
        // A missed slot may have to wait for those of other jobs. A slot that is due now does not wait for it, unless the
        // slots must run in order.
        let crowded = |start: &SlotToStart| start.late && full;
        let put_off = |start: &SlotToStart| crowded(start) && (state.terms.skips || start.again);
        if !idle {
            return;
        }
        let chosen = state.retry.choose(&look.start, state.terms.skips, self.mode, now, put_off);
        let start = match chosen {
            Ok(start) => start,
            Err(later) => {
                state.wake = state.wake.into_iter().chain(later).min();
                return;
            }
        };
        if crowded(start) {
            state.queued = true;
            return;
        }
        match self.starter.start(&state.job, &start.slot, start.late) {
            Ok(running) => {
                (self.tell)(&SchedulerEvent::Started(&state.job.name, start));
                state.running = Some(running);
                state.retry.started(start);
                // The other slots wait until it has ended, or the next slot is due.
                state.wake = state
                    .next_due(now)
                    .map(|at| at + self.jitter)
                    .filter(|_| self.mode == SchedulerMode::Stays);
            }
            Err(error) => {
                self.failed = true;
                (self.tell)(&SchedulerEvent::NotStarted(&state.job.name, &start.slot, &error));
                state.wake = Some(state.retry.tried(start.slot.number(), now));
            }
        }
    }

    /// Without the store nothing can be started, so it is asked again later. A record that cannot be used stops only its
    /// own job.
    fn unanswered(&mut self, i: usize, failure: &Failure, now: Millis) {
        self.failed = true;
        let state = &mut self.jobs[i];
        if failure.kind == FailureKind::Unusable {
            state.wake = state.next_due(now).filter(|_| self.mode == SchedulerMode::Stays);
            (self.tell)(&SchedulerEvent::Unusable(&state.job.name, failure));
            return;
        }
        if self.silent == 0 {
            (self.tell)(&SchedulerEvent::StoreSilent(failure));
        }
        self.silent = self.silent.saturating_add(1);
        match self.mode {
            SchedulerMode::Stays => {
                (self.jobs[i].wake, self.from) = (Some(now), i + 1);
                self.held = now + (500 << self.silent.min(6));
            }
            SchedulerMode::Once => self.draining = true,
        }
    }

    /// Compares the clocks from time to time. Nothing is started while this one is too far off, or was set and not yet
    /// compared.
    fn compare_again(&mut self) {
        let wall = wall_ms();
        if !self.clocks.are_due(wall) {
            return;
        }
        let (known, answer) = (self.clocks.known, compared(self.store.as_mut()));
        let wrong = |error: &ClockError| match error {
            ClockError::Off(_) => NoComparison::Off,
            ClockError::Store(_) => NoComparison::Silent,
        };
        let again = self.clocks.found(answer.as_ref().map_err(wrong).copied(), wall);
        match (answer, again) {
            (Err(error), Some(again)) => {
                self.held = self.now() + again;
                // A tick does not wait for the store.
                self.failed = true;
                self.draining |= self.mode == SchedulerMode::Once;
                let told = wrong(&error) == NoComparison::Silent && self.silent > 0;
                if wrong(&error) == NoComparison::Silent {
                    self.silent = self.silent.saturating_add(1);
                }
                if !told {
                    (self.tell)(&SchedulerEvent::ClockWrong(&error));
                }
            }
            (Ok(_), _) if !known => self.held = 0,
            _ => {}
        }
    }

    /// Removes old records of jobs that have run something.
    fn sweep(&mut self, now: Millis) {
        if now - self.swept < SWEEP_MS && (self.mode == SchedulerMode::Stays || self.busy()) {
            return;
        }
        self.swept = now;
        for state in self.jobs.iter_mut().filter(|state| state.ran) {
            state.ran = false;
            // If that fails, the next sweep removes them.
            let _ = job_records::sweep(self.store.as_mut(), &state.terms, now.div_euclid(1000));
        }
    }
}

fn wall_ms() -> Millis {
    i64::try_from(clock::wall().as_millis()).unwrap_or(i64::MAX)
}

/// How far this machine's clock is ahead of the store's, or an error if that is too far.
fn compared(store: &mut dyn Store) -> Result<Option<Millis>, ClockError> {
    match clock_ahead(store).map_err(ClockError::Store)? {
        Some(ahead) if ahead.abs() > CLOCK_OFF_MS => Err(ClockError::Off(ahead)),
        ahead => Ok(ahead),
    }
}

#[cfg(test)]
mod tests;
