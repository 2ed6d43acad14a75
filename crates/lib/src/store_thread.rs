//! The thread that makes every store call of a session. So a call that hangs does not keep the main thread
//! from stopping the job in time.
//!
//! While no job runs there is nothing to stop. Then a store on this machine is called on the main thread,
//! and a run that ends before its first renewal never starts this one. It decides nothing and holds no
//! deadline.

use std::collections::VecDeque;
use std::mem;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::ledger::{Amended, ItemOpened, ItemRecorded, Opened, StepStands};
use leasehold_core::name::Name;
use leasehold_core::session::{Input, Op, Reading, Request, RequestId, lease_key};
use leasehold_core::time::BootTime;

use crate::clock;
use crate::forget;
use crate::ledger::ItemRecorder;
use crate::liveness::lock;
use crate::liveness::{self, Probe};
use crate::run_log::{LOG_PATIENCE, LogWriter};
use crate::seen_tokens::SeenTokens;
use crate::stores::{BatchWrite, Cas, Failure, FailureKind, Store, Stored};
use crate::update::{Between, nothing};

/// A task of the store thread. Tasks are done in order.
#[derive(Debug)]
pub enum Task {
    /// A request of the session.
    Request(Request),
    /// A request of a step of its item.
    Step(StepTask),
}

/// A request of a step, with the channel for the answer.
#[derive(Debug)]
pub enum StepTask {
    /// The state of the step; nothing: there is no item.
    Stands {
        /// The step.
        name: String,
        /// Takes the answer.
        told: Sender<Option<StepStands>>,
    },
    /// Record that it is done.
    Done {
        /// The step.
        name: String,
        /// What it printed, if that is kept.
        output: Option<String>,
        /// How long to try again while the store does not answer.
        until: BootTime,
        /// Takes the answer.
        told: Sender<Amended>,
    },
}

/// The part that makes the calls.
struct Worker {
    store: Box<dyn Store>,
    memory: SeenTokens,
    recorder: Option<ItemRecorder>,
    log: LogWriter,
}

impl Worker {
    fn perform(&mut self, task: Task, between: Between<'_>) -> Option<Input> {
        match task {
            Task::Request(request) => self.request(request),
            Task::Step(step) => {
                self.step(step, between);
                None
            }
        }
    }

    fn request(&mut self, request: Request) -> Option<Input> {
        match request {
            Request::Ask { id, lease, op } => Some(ask(self.store.as_mut(), &self.log, id, &lease, op)),
            Request::Watch { id, lease, version, until } => {
                let at_most = until.since(clock::boot_time());
                let key = lease_key(&lease);
                let wait = self.store.wait_change(&key, version.as_ref(), at_most);
                pollster::block_on(wait).then_some(Input::Changed { id })
            }
            Request::OpenItem(granted) => {
                let recorder = self.recorder.as_mut()?;
                Some(Input::ItemOpened(Box::new(recorder.open(self.store.as_mut(), &granted))))
            }
            Request::RecordItem { state, ending, until } => {
                let recorder = self.recorder.as_mut()?;
                let recorded = recorder.record(self.store.as_mut(), state, ending, until);
                Some(Input::ItemRecorded(Box::new(recorded)))
            }
            Request::Probe { grant, run, lock } => {
                Some(Input::Probed { gone: probe(self.store.as_ref(), grant, &run, &lock) })
            }
            Request::Discard(grant) => {
                if let Some(dir) = self.store.facts().lock_dir {
                    // Best effort: a file that stays does no harm.
                    let _ = lock::discard(&dir, grant);
                }
                None
            }
            Request::Log(record) => {
                self.log.write(self.store.as_mut(), &record);
                None
            }
            Request::Remember { lease, seen, watched } => {
                self.memory.remember(&lease, seen, watched);
                None
            }
        }
    }

    /// Answers a step. The receiver may be gone.
    fn step(&mut self, step: StepTask, between: Between<'_>) {
        match (step, self.recorder.as_mut()) {
            (StepTask::Stands { name, told }, recorder) => {
                let _ = told.send(recorder.and_then(|recorder| recorder.step_stands(&name)));
            }
            (StepTask::Done { name, output, until, told }, Some(recorder)) => {
                let _ = told.send(recorder.step(self.store.as_mut(), &name, output, until, between));
            }
            (StepTask::Done { told, .. }, None) => drop(told.send(Amended::Superseded(None))),
        }
    }
}

type SendInput = Box<dyn Fn(Input) + Send>;

#[allow(clippy::large_enum_variant)] // there is one of them
enum Place {
    /// On the main thread, with the tasks that were put off.
    Inline(Worker, SendInput, Vec<Task>),
    /// With a receiver that is closed when the thread ends.
    Thread(Sender<Task>, Receiver<()>, JoinHandle<()>),
}

/// The store thread of one session.
pub struct StoreThread {
    place: Place,
    /// The store is on this machine, so its calls are short.
    near: bool,
    log: LogWriter,
}

impl StoreThread {
    /// Without a thread yet; `reply` takes the answers of the thread.
    pub fn new(
        store: Box<dyn Store>,
        memory: SeenTokens,
        recorder: Option<ItemRecorder>,
        log: LogWriter,
        reply: impl Fn(Input) + Send + 'static,
    ) -> Self {
        let near = store.facts().this_machine_only;
        Self {
            log: log.clone(),
            place: Place::Inline(Worker { store, memory, recorder, log }, Box::new(reply), Vec::new()),
            near,
        }
    }

    /// Does the task now and gives the answer, if no job has to be stopped in time; otherwise gives it to the
    /// thread. A task without an answer is put off until there is another one, or the end: nothing depends on it.
    pub fn give(&mut self, work: Task, job_lives: bool) -> Option<Input> {
        if let Task::Request(Request::Log(record)) = &work {
            self.log.begin(record);
        }
        match &mut self.place {
            Place::Inline(_, _, notes) if job_lives && work.is_note() => {
                notes.push(work);
                None
            }
            Place::Inline(worker, _, notes) if self.near && !job_lives => {
                notes.drain(..).for_each(|note| drop(worker.perform(note, &mut nothing)));
                worker.perform(work, &mut nothing)
            }
            Place::Inline(..) => self.start_thread(work),
            Place::Thread(thread, ..) => {
                let _ = thread.send(work);
                None
            }
        }
    }

    /// Starts the thread. If the system refuses, the task fails, and the next one tries again.
    fn start_thread(&mut self, work: Task) -> Option<Input> {
        let (sender, inbox) = mpsc::channel();
        let (parts, received) = mpsc::channel::<(Worker, SendInput)>();
        let (ending, ended) = mpsc::channel();
        // TLS and HTTP need a large stack; files do not.
        let stack = if self.near { 256 * 1024 } else { 4 * 1024 * 1024 };
        let builder = thread::Builder::new().name("store".into()).stack_size(stack);
        let spawned = builder.spawn(move || {
            let _ending: Sender<()> = ending;
            let Ok((mut worker, reply)) = received.recv() else { return };
            let mut later = VecDeque::new();
            while let Some(work) = later.pop_front().or_else(|| inbox.recv().ok()) {
                let log = worker.log.clone();
                let mut between = |store: &mut dyn Store, pause| {
                    renew_meanwhile(store, &log, pause, &inbox, &reply, &mut later);
                };
                if let Some(input) = worker.perform(work, &mut between) {
                    reply(input);
                }
            }
        });
        let handle = match spawned {
            Ok(handle) => handle,
            Err(e) => return work.refused(&format!("no thread could be started to call the store ({e})")),
        };
        let before = mem::replace(&mut self.place, Place::Thread(sender.clone(), ended, handle));
        if let Place::Inline(worker, reply, notes) = before {
            let _ = parts.send((worker, reply));
            notes.into_iter().for_each(|note| drop(sender.send(note)));
        }
        let _ = sender.send(work);
        None
    }

    /// Ends the thread after its tasks. Waits until they are done; if a call may hang, no longer than a record of the run
    /// log may take.
    pub fn finish(self, may_hang: bool) {
        match self.place {
            Place::Thread(work, ended, thread) => {
                drop(work);
                if may_hang {
                    let _ = ended.recv_timeout(LOG_PATIENCE);
                    self.log.give_up();
                } else {
                    let _ = thread.join();
                }
            }
            Place::Inline(mut worker, _, notes) => {
                notes.into_iter().for_each(|note| drop(worker.perform(note, &mut nothing)))
            }
        }
    }
}

/// Pauses between two tries of a step, and makes the lease's calls meanwhile, so that it is renewed.
fn renew_meanwhile(
    store: &mut dyn Store,
    log: &LogWriter,
    pause: Duration,
    inbox: &Receiver<Task>,
    reply: &SendInput,
    later: &mut VecDeque<Task>,
) {
    let end = clock::boot_time().plus(pause);
    loop {
        let left = end.since(clock::boot_time());
        match inbox.recv_timeout(left) {
            Ok(Task::Request(Request::Ask { id, lease, op })) => reply(ask(store, log, id, &lease, op)),
            Ok(task) => later.push_back(task),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => return nothing(store, left),
        }
    }
}

impl Task {
    /// Whether it has no answer.
    fn is_note(&self) -> bool {
        matches!(self, Self::Request(Request::Discard(_) | Request::Log(_) | Request::Remember { .. }))
    }

    /// The answer to a task that cannot be done.
    fn refused(self, why: &str) -> Option<Input> {
        let failure = Failure::new(FailureKind::Unreachable, why);
        let Self::Request(request) = self else { return None };
        match request {
            Request::Ask { id, op: Op::Read, .. } => Some(Input::Read { id, result: Err(failure) }),
            Request::Ask { id, op: Op::Forgotten, .. } => Some(Input::Forgotten { id, result: Err(failure) }),
            Request::Ask { id, op: Op::Cas { .. }, .. } => {
                Some(Input::Cas { id, result: Cas::Unknown(failure) })
            }
            Request::Probe { .. } => Some(Input::Probed { gone: false }),
            Request::OpenItem(_) => {
                let item = Opened::Failed { failure, sent: false };
                let (key, other_store, unnoted, recorded) = (None, None, Vec::new(), None);
                let opened = ItemOpened { item, key, other_store, unnoted, recorded };
                Some(Input::ItemOpened(Box::new(opened)))
            }
            Request::RecordItem { .. } => {
                let item = Some(Amended::Failed(failure));
                Some(Input::ItemRecorded(Box::new(ItemRecorded { item, ..ItemRecorded::default() })))
            }
            // The session has a timer for this.
            Request::Watch { .. } | Request::Discard(_) | Request::Log(_) | Request::Remember { .. } => None,
        }
    }
}

impl std::fmt::Debug for StoreThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("near", &self.near).finish_non_exhaustive()
    }
}

/// Makes one store call for a lease.
fn ask(store: &mut dyn Store, log: &LogWriter, id: RequestId, lease: &Name, op: Op) -> Input {
    let key = lease_key(lease);
    match op {
        Op::Read => {
            let stored = pollster::block_on(store.read(&key));
            Input::Read { id, result: stored.map(|stored| reading(store, stored)) }
        }
        Op::Forgotten => Input::Forgotten { id, result: forget::records(store, lease) },
        Op::Cas { expected, write, body, log: None } => {
            let cas = store.cas(&key, expected.as_ref(), write, &body);
            Input::Cas { id, result: pollster::block_on(cas) }
        }
        Op::Cas { expected, write, body, log: Some(record) } => {
            let lease = BatchWrite { key, expected, write, body };
            Input::Cas { id, result: log.write_with(store, &lease, &record) }
        }
    }
}

/// The result of a read, with the facts that the store knows after it.
pub(crate) fn reading(store: &dyn Store, stored: Option<Stored>) -> Reading {
    let facts = store.facts();
    Reading { stored, instance: facts.instance, pushes: facts.pushes }
}

fn probe(store: &dyn Store, grant: Grant, run: &str, text: &str) -> bool {
    let Some(dir) = store.facts().lock_dir else { return false };
    liveness::probe(&dir, grant, run, text) == Probe::Gone
}
