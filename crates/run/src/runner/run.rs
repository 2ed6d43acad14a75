//! `run`: a command under a lease.
//!
//! The main thread is one poll loop over a boot-time timer, the wake-up of the store thread and the signals. It starts the job, keeps
//! the deadline, and never calls the store while a job lives.

mod start;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::ledger::{ItemOpened, ItemRecorded, ItemState, Opened, Subject};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;
use leasehold_core::run_log::{LogEvent, LogId, LogRecord};
use leasehold_core::session::{
    Distance, Event, Granted, Input, JobExit, LogPlan, Outcome, SessionPlan, Signal, StopReason, Within,
};
use leasehold_core::time::BootTime;
use leasehold_core::timing::Timing;

use super::lookup::Program;
use super::signals::{Signals, named, os};
use super::tee::Tee;
use super::tree::ProcessTree;
use super::tree_types::{self, Survivor};
use crate::step_server::StepServer;
use leasehold::backends::gate::Gates;
use leasehold::driver::{Driver, InputSender, ProtectedWork, StepSender};
use leasehold::ledger::{Item, ItemRecorder};
use leasehold::liveness::lock::{HolderLock, new_mark};
use leasehold::other_stores::OtherStores;
use leasehold::run_fences::{Fences, SealReport};
use leasehold::run_log::LogWriter;
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::Store;
use leasehold::{clock, host, random};

/// What to run, and under which leases.
#[derive(Debug)]
pub struct RunSpec {
    /// Leases in order of preference; never empty.
    pub leases: Vec<Name>,
    /// The name of the job.
    pub job: Name,
    /// The id of this run; unique.
    pub run_id: String,
    /// The timing of the lease.
    pub timing: Timing,
    /// How long to wait if all leases are held.
    pub wait: Duration,
    /// The runs that this one is part of.
    pub within: Within,
    /// The job is stopped after this long.
    pub max_run: Option<Duration>,
    /// The program of the command.
    pub program: Program,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables of the job's environment, besides those of [`super::environment`].
    pub env: Vec<(OsString, OsString)>,
    /// The store, without a password.
    pub store: Option<String>,
    /// Standard input is a terminal: the job stays in its foreground group.
    pub foreground: bool,
    /// Its item: work that is done once.
    pub item: Option<Item>,
    /// With a slot: the key that is done with it.
    pub key: Option<Item>,
    /// Where this machine remembers items, in case the same item is run on another store.
    pub seen: Option<OtherStores>,
    /// Its output passes through this process. If it fails, the end of the output is recorded.
    pub tail: bool,
    /// The run log has a record of how the run ended.
    pub history: bool,
    /// Writes the run log.
    pub log: LogWriter,
    /// The private directory for the socket of its steps and gates.
    pub sockets: Option<PathBuf>,
    /// The gates of the run, if it has any.
    pub gates: Option<Gates>,
}

impl RunSpec {
    /// A run of this command that keeps its history. Everything else is off.
    pub fn new(
        leases: Vec<Name>,
        job: Name,
        run_id: String,
        timing: Timing,
        program: Program,
        args: Vec<OsString>,
    ) -> Self {
        Self {
            leases,
            job,
            run_id,
            timing,
            program,
            args,
            wait: Duration::ZERO,
            within: Within::default(),
            max_run: None,
            env: Vec::new(),
            store: None,
            foreground: false,
            item: None,
            key: None,
            seen: None,
            tail: false,
            history: true,
            log: LogWriter::without_state(),
            sockets: None,
            gates: None,
        }
    }

    /// This run as others see it.
    fn holder(&self) -> Holder {
        let slot = match self.item.as_ref().map(|item| &item.subject) {
            Some(Subject::Slot { id, .. }) => Some(id.clone()),
            _ => None,
        };
        Holder { slot, ..host::holder(&self.run_id, &self.job) }
    }

    /// The recorder of its item, which is not started yet.
    pub fn book(&self) -> Option<ItemRecorder> {
        let book = ItemRecorder::new(self.item.clone()?, self.key.clone(), self.job.clone(), self.holder());
        Some(book.noted_in(self.seen.clone()))
    }

    /// What the run log says about its end.
    fn logged(&self) -> LogPlan {
        let subject = self.item.as_ref().map(|item| item.subject.clone());
        match self.history {
            true => LogPlan::Job(subject.filter(|subject| !matches!(subject, Subject::Latest(_)))),
            false => LogPlan::Nothing,
        }
    }

    /// The record about a run whose item was not to be run; none if it logs nothing.
    pub fn skipped(&self, found: &Opened) -> Option<LogRecord> {
        let word = found.skip_word().filter(|_| self.history)?;
        let id = LogId::of(random::seed());
        let record = LogRecord::new(clock::wall(), LogEvent::Skipped, self.job.clone(), id, self.holder());
        Some(LogRecord {
            reason: Some(word.into()),
            lease: Some(self.leases[0].clone()),
            item: self.item.as_ref().map(|item| item.subject.clone()),
            ..record
        })
    }

    /// A variable as the command would have it, before this run sets its own.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let own = self.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        own.or_else(|| std::env::var_os(name))
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunResult {
    /// How it ended.
    pub outcome: Outcome,
    /// The grant, if there was one.
    pub granted: Option<Granted>,
    /// Processes that outlived the command and had to be ended.
    pub survivors: Vec<Survivor>,
    /// Why the command was not executed, although it was found.
    pub spawn_error: Option<String>,
    /// Why the system kept us from watching over the job, so that it was killed and its lease left to expire.
    pub gave_up: Option<String>,
    /// How long the job ran.
    pub lasted: Duration,
    /// What happened at its targets.
    pub fences: SealReport,
    /// The result of opening its item, if it was opened.
    pub opened: Option<ItemOpened>,
    /// The result of recording the end of its item.
    pub recorded: Option<ItemRecorded>,
    /// Why a part of the job's output was not passed on.
    pub unwritten: Option<String>,
}

/// The caller, while the job runs.
pub trait Listener {
    /// Something happened.
    fn event(&mut self, event: &Event);
    /// These processes outlived the command and are now ended.
    fn survivors(&mut self, survivors: &[Survivor]);
    /// These processes should have ended, and cannot be: they run as another user.
    fn untouchable(&mut self, processes: &[Survivor]);
}

/// Runs the command under the lease. Owns the process: signals, children, everything.
pub fn run(
    spec: &RunSpec,
    store: Box<dyn Store>,
    memory: SeenTokens,
    fences: Fences,
    listener: &mut dyn Listener,
) -> io::Result<RunResult> {
    let signals = Signals::install()?;
    if signals.deaf() {
        let why = "this process was started with SIGCHLD or SIGTERM blocked, so it could not see the end of \
                   the job";
        return Err(io::Error::other(why));
    }
    if !ProcessTree::can_see() {
        let why = "/proc is missing or shows another container's processes, so this process could not end the \
                   job";
        return Err(io::Error::other(why));
    }
    let grant = Grant(random::seed());
    // Locked before the claim is sent, so that no other process of this machine sees the claim with a free lock.
    let (lock_dir, near) = (store.facts().lock_dir, store.facts().this_machine_only);
    let lock = lock_dir.and_then(|dir| HolderLock::create(&dir, grant).ok());
    let plan = SessionPlan {
        leases: spec.leases.iter().map(|lease| memory.recall(lease)).collect(),
        grant,
        timing: spec.timing,
        wait: spec.wait,
        max_run: spec.max_run,
        seal: !fences.is_empty(),
        item: spec.item.as_ref().map(|_| if near { Distance::Near } else { Distance::Far }),
        log: spec.logged(),
        by_hand: false,
        force: false,
        lock: lock.as_ref().map(|lock| lock.describe().to_owned()),
        holder: spec.holder(),
        within: spec.within.clone(),
    };
    let driver = Driver::new(plan, store, memory, spec.book(), spec.log.clone())?;
    let job = Process {
        spec,
        // Also on a shared store: this process finds what the job leaves behind by it.
        mark: new_mark(grant),
        lock,
        fences,
        store_thread: driver.step_sender(),
        listener,
        granted: None,
        opened: None,
        running: None,
        spawn_error: None,
        said: None,
        survivors: Vec::new(),
        recorded: None,
    };
    Loop { driver, job, signals }.run()
}

/// The one loop.
struct Loop<'a> {
    driver: Driver,
    job: Process<'a>,
    signals: Signals,
}

impl Loop<'_> {
    fn run(mut self) -> io::Result<RunResult> {
        let mut ended = self.driver.step(Input::Start, &mut self.job);
        let outcome = loop {
            if let Some(outcome) = ended {
                break outcome;
            }
            let inputs = match self.inputs() {
                Ok(inputs) => inputs,
                Err(e) => return self.give_up(e),
            };
            for input in inputs {
                ended = self.driver.step(input, &mut self.job);
                if ended.is_some() {
                    break;
                }
            }
        };
        self.driver.finish(&outcome);
        // Last, because the lease is released by now: a reader that stands still blocks nobody.
        let tail = self.job.running.as_mut().and_then(|running| running.tail.take());
        let unwritten = tail.and_then(|tail| tail.finish(&mut self.signals));
        // The process ends next. To remove the handlers one by one would cost 3 % of a short run.
        std::mem::forget(self.signals);
        Ok(RunResult { unwritten, ..self.job.ran(outcome) })
    }

    fn inputs(&mut self) -> io::Result<Vec<Input>> {
        let steps = self.job.running.as_ref().and_then(|running| running.steps.as_ref());
        if let (Some(steps), Some(at)) = (steps, self.driver.stop_at()) {
            steps.ours_until(at);
        }
        let (mut inputs, signalled) = self.driver.wait(Some(self.signals.as_fd()))?;
        let mut reap = self.job.running.as_ref().is_some_and(|running| running.kill_sent);
        if signalled {
            let pending = self.signals.pending();
            inputs.extend(pending.forward.into_iter().filter_map(named).map(Input::Signal));
            reap |= pending.child;
        }
        // Also after KILL: a process that was not our child ends without SIGCHLD.
        if reap {
            // The next holder must not meet them. After a clean end they may go on.
            let stopped = self.driver.stopped().is_some_and(|why| *why != StopReason::Survivors);
            if let Some(running) = self.job.running.as_mut().filter(|_| stopped) {
                running.tree.await_strays();
            }
            inputs.extend(self.job.reap()?);
        }
        Ok(inputs)
    }

    /// A system call failed, so nobody can watch over the job any more: kills it and leaves the lease to expire. The system
    /// may lack descriptors, so no new loop or timer is made.
    fn give_up(mut self, error: io::Error) -> io::Result<RunResult> {
        if self.job.running.is_none() {
            return Err(error);
        }
        let mut status = KILLED;
        loop {
            ProtectedWork::kill(&mut self.job);
            match self.job.reap() {
                Ok(Some(Input::JobExited { exit, tree_empty })) => {
                    status = exit.status();
                    if tree_empty {
                        break;
                    }
                }
                Ok(Some(_)) => break,
                Ok(None) | Err(_) => {}
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        let lost = Outcome::Lost { why: StopReason::Interrupted, status: Some(status) };
        Ok(RunResult { gave_up: Some(format!("the system refused: {error}")), ..self.job.ran(lost) })
    }
}

/// The exit code of a job that KILL ended.
const KILLED: i32 = 128 + 9;

/// The job as a process tree.
struct Process<'a> {
    spec: &'a RunSpec,
    lock: Option<HolderLock>,
    /// The mark in `/proc` that tells whose job a process is, if it can be set.
    mark: Option<u64>,
    fences: Fences,
    /// Sends steps to the store thread, which records them.
    store_thread: StepSender,
    listener: &'a mut dyn Listener,
    /// From when the lease is taken.
    granted: Option<Granted>,
    /// From when its item is opened.
    opened: Option<ItemOpened>,
    /// From when the command is started.
    running: Option<RunningProcess>,
    /// Why it was not executed.
    spawn_error: Option<String>,
    /// The text about its end, once it was asked for.
    said: Option<String>,
    survivors: Vec<Survivor>,
    /// From when the end of its item is recorded.
    recorded: Option<ItemRecorded>,
}

/// A job that was started.
struct RunningProcess {
    tree: ProcessTree,
    since: BootTime,
    /// The server of its steps and gates, if it has any.
    steps: Option<StepServer>,
    /// Its output, if that passes through this process, until all of it is written.
    tail: Option<Tee>,
    kill_sent: bool,
    /// KILL could not reach these: they run as another user.
    refused: Vec<Survivor>,
}

impl Process<'_> {
    fn reap(&mut self) -> io::Result<Option<Input>> {
        let Some(running) = self.running.as_mut() else { return Ok(None) };
        let reaped = running.tree.reap()?;
        let exit = reaped.main.map(|main| match main {
            tree_types::ProcessExit::Signal(_) => JobExit::Signal(main.code().into()),
            tree_types::ProcessExit::Code(_) => JobExit::Code(main.code().into()),
        });
        Ok(match exit {
            Some(exit) => Some(Input::JobExited { exit, tree_empty: reaped.empty }),
            None => reaped.empty.then_some(Input::TreeEmpty),
        })
    }

    /// How many runs have started its item, with this one.
    fn attempt(&self) -> Option<u32> {
        match self.opened.as_ref().map(|opened| &opened.item) {
            Some(Opened::Begun(entry, _)) => Some(entry.attempt),
            _ => None,
        }
    }

    fn ran(self, outcome: Outcome) -> RunResult {
        if let Some(lock) = self.lock {
            let _ = lock.remove();
        }
        let lasted = self.running.map_or(Duration::ZERO, |job| clock::boot_time().since(job.since));
        let Self { granted, survivors, spawn_error, fences, opened, recorded, .. } = self;
        let fences = fences.finish(granted.as_ref());
        let (gave_up, unwritten) = (None, None);
        RunResult {
            outcome,
            granted,
            survivors,
            spawn_error,
            gave_up,
            lasted,
            fences,
            opened,
            recorded,
            unwritten,
        }
    }
}

impl ProtectedWork for Process<'_> {
    fn start(&mut self, granted: &Granted, by: BootTime) -> Result<(), JobExit> {
        let spawned = self.spawn(granted, by).map_err(|(error, exit)| {
            self.spawn_error = Some(error);
            exit
        });
        self.running = Some(spawned?);
        Ok(())
    }

    fn seal(&mut self, granted: &Granted, session: InputSender) {
        self.fences.seal(granted, session);
    }

    fn printed(&mut self, state: ItemState) -> String {
        let tail = self.running.as_ref().and_then(|running| running.tail.as_ref());
        let printed = tail.map(Tee::stop).filter(|_| state != ItemState::Ok);
        self.said = self.spawn_error.clone().or(printed);
        self.said.clone().unwrap_or_default()
    }

    fn logged(&mut self, record: &LogRecord) -> String {
        let own = record.holder.run == self.spec.run_id && record.event.is_run();
        match (own, &self.said) {
            (false, _) => String::new(),
            (true, Some(said)) => said.clone(),
            (true, None) if record.event == LogEvent::Ok => self.printed(ItemState::Ok),
            (true, None) => self.printed(ItemState::Failed),
        }
    }

    // A process that was not reached is reached later: the session repeats KILL until the tree is empty.
    fn term(&mut self) {
        let _ = self.running.as_mut().map(|running| running.tree.terminate());
    }

    fn kill(&mut self) {
        let Some(running) = self.running.as_mut() else { return };
        running.kill_sent = true;
        match running.tree.kill() {
            Ok(sweep) => running.refused = sweep.refused,
            // Without `/proc` the process group can still be reached.
            Err(_) => drop(running.tree.signal_group(rustix::process::Signal::KILL)),
        }
    }

    fn freeze(&mut self) {
        // A job that cannot be frozen must not go on past its lease.
        let still = self.running.as_mut().map(|running| running.tree.freeze());
        if !still.is_some_and(|sweep| sweep.is_ok_and(|sweep| sweep.settled && sweep.refused.is_empty())) {
            self.kill();
        }
    }

    fn thaw(&mut self) {
        let _ = self.running.as_mut().map(|running| running.tree.thaw());
    }

    fn forward(&mut self, signal: Signal) {
        // A terminal sends its own INT and QUIT to the whole foreground group.
        let by_terminal = self.spec.foreground && matches!(signal, Signal::Int | Signal::Quit);
        if let Some(running) = self.running.as_mut().filter(|_| !by_terminal) {
            let _ = running.tree.signal_group(os(signal));
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Granted(granted) => self.granted = Some(granted.clone()),
            Event::ItemOpened(opened) => self.opened = Some((**opened).clone()),
            Event::ItemRecorded(recorded) => self.recorded = Some((**recorded).clone()),
            _ => {}
        }
        if *event == Event::Survivors {
            let survivors = self.running.as_ref().and_then(|running| running.tree.survivors().ok());
            self.survivors = survivors.unwrap_or_default();
            self.listener.survivors(&self.survivors);
        }
        let refused = self.running.as_ref().map_or(&[][..], |running| &running.refused);
        if *event == Event::StopUnconfirmed && !refused.is_empty() {
            return self.listener.untouchable(refused);
        }
        self.listener.event(event);
    }
}
