//! The keeper makes every store call of a session: on a thread of its own, so that a call that hangs
//! does not keep the thread that owns the job from stopping it in time.
//!
//! While no job lives there is nothing to stop. Then a store on this machine is called where we are,
//! and a run that ends before its first renewal never starts the thread. The keeper decides nothing
//! and holds no deadline.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::ledger::{Amended, ItemOpened, ItemRecorded, Opened, StepStands};
use leasehold_core::name::Name;
use leasehold_core::session::{Input, Op, Reading, Request, RequestId, lease_key};
use leasehold_core::time::BootTime;

use crate::clock;
use crate::ledger::ItemRecorder;
use crate::liveness::lock;
use crate::liveness::{self, Probe};
use crate::seen_tokens::SeenTokens;
use crate::stores::{Cas, Failure, FailureKind, Store, Stored};
use crate::update::{Between, nothing};

/// What the keeper does, in order.
#[derive(Debug)]
pub enum Task {
    /// What a session asks for.
    Request(Request),
    /// What a step of its item asks for.
    Step(StepTask),
}

/// What a step of an item asks for, and who waits for the answer.
#[derive(Debug)]
pub enum StepTask {
    /// How it stands; nothing: there is no item.
    Stands {
        /// The step.
        name: String,
        /// Who waits.
        told: Sender<Option<StepStands>>,
    },
    /// Record that it is done.
    Done {
        /// The step.
        name: String,
        /// What it printed, if that is kept.
        output: Option<String>,
        /// How long a store that does not answer is asked again.
        until: BootTime,
        /// Who waits.
        told: Sender<Amended>,
    },
}

/// What the work is done with.
struct Worker {
    store: Box<dyn Store>,
    memory: SeenTokens,
    book: Option<ItemRecorder>,
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
            Request::Ask { id, lease, op } => Some(ask(self.store.as_mut(), id, &lease, op)),
            Request::Watch { id, lease, version, until } => {
                let at_most = until.since(clock::boot_time());
                let key = lease_key(&lease);
                let wait = self.store.wait_change(&key, version.as_ref(), at_most);
                pollster::block_on(wait).then_some(Input::Changed { id })
            }
            Request::OpenItem(granted) => {
                let book = self.book.as_mut()?;
                Some(Input::ItemOpened(Box::new(book.open(self.store.as_mut(), &granted))))
            }
            Request::RecordItem { state, ending, until } => {
                let book = self.book.as_mut()?;
                let recorded = book.record(self.store.as_mut(), state, ending, until);
                Some(Input::ItemRecorded(Box::new(recorded)))
            }
            Request::Probe { grant, run, lock } => {
                Some(Input::Probed { gone: probe(self.store.as_ref(), grant, &run, &lock) })
            }
            Request::Discard(grant) => {
                if let Some(dir) = self.store.facts().lock_dir {
                    // Best effort: a file that stays behind misleads nobody.
                    let _ = lock::discard(&dir, grant);
                }
                None
            }
            Request::Remember { lease, seen, watched } => {
                self.memory.remember(&lease, seen, watched);
                None
            }
        }
    }

    /// Whoever asked may have gone.
    fn step(&mut self, step: StepTask, between: Between<'_>) {
        match (step, self.book.as_mut()) {
            (StepTask::Stands { name, told }, book) => {
                let _ = told.send(book.and_then(|book| book.step_stands(&name)));
            }
            (StepTask::Done { name, output, until, told }, Some(book)) => {
                let _ = told.send(book.step(self.store.as_mut(), &name, output, until, between));
            }
            (StepTask::Done { told, .. }, None) => drop(told.send(Amended::Superseded(None))),
        }
    }
}

type SendInput = Box<dyn Fn(Input) + Send>;

#[allow(clippy::large_enum_variant)] // there is one of them
enum Location {
    /// Not yet on a thread; with what is left to be done when there is time for it.
    Here(Worker, SendInput, Vec<Task>),
    Away(Sender<Task>, JoinHandle<()>),
}

/// The keeper of one session.
pub struct StoreThread {
    /// Nothing only while it is being changed.
    place: Option<Location>,
    /// The store is on this machine, so that a call takes no longer than its files do.
    near: bool,
}

impl StoreThread {
    /// A keeper without a thread yet; `reply` gets what the thread answers.
    pub fn new(
        store: Box<dyn Store>,
        memory: SeenTokens,
        book: Option<ItemRecorder>,
        reply: impl Fn(Input) + Send + 'static,
    ) -> Self {
        let near = store.facts().this_machine_only;
        Self {
            place: Some(Location::Here(Worker { store, memory, book }, Box::new(reply), Vec::new())),
            near,
        }
    }

    /// Does the work now and answers, if nothing has to be stopped in time; hands it over otherwise.
    /// What nobody waits for is left until there is other work, or the end: nothing depends on it.
    pub fn give(&mut self, work: Task, job_lives: bool) -> Option<Input> {
        match self.place.take()? {
            Location::Here(desk, reply, mut notes) if job_lives && work.is_note() => {
                notes.push(work);
                self.place = Some(Location::Here(desk, reply, notes));
                None
            }
            Location::Here(mut desk, reply, notes) if self.near && !job_lives => {
                notes.into_iter().for_each(|note| drop(desk.perform(note, &mut nothing)));
                let answer = desk.perform(work, &mut nothing);
                self.place = Some(Location::Here(desk, reply, Vec::new()));
                answer
            }
            Location::Here(desk, reply, notes) => self.go_away(desk, reply, notes, work),
            Location::Away(thread, handle) => {
                let _ = thread.send(work);
                self.place = Some(Location::Away(thread, handle));
                None
            }
        }
    }

    /// Starts the thread. If the system refuses one, the call is answered so, and tried again next time.
    fn go_away(&mut self, desk: Worker, reply: SendInput, notes: Vec<Task>, work: Task) -> Option<Input> {
        let (sender, inbox) = mpsc::channel();
        let (hand, over) = mpsc::channel::<(Worker, SendInput)>();
        // TLS and HTTP go deep; files do not.
        let stack = if self.near { 256 * 1024 } else { 4 * 1024 * 1024 };
        let builder = thread::Builder::new().name("keeper".into()).stack_size(stack);
        let spawned = builder.spawn(move || {
            let Ok((mut desk, reply)) = over.recv() else { return };
            let mut later = VecDeque::new();
            while let Some(work) = later.pop_front().or_else(|| inbox.recv().ok()) {
                let mut between = |store: &mut dyn Store, pause| {
                    renew_meanwhile(store, pause, &inbox, &reply, &mut later);
                };
                if let Some(input) = desk.perform(work, &mut between) {
                    reply(input);
                }
            }
        });
        match spawned {
            Ok(handle) => {
                let _ = hand.send((desk, reply));
                notes.into_iter().chain([work]).for_each(|work| drop(sender.send(work)));
                self.place = Some(Location::Away(sender, handle));
                None
            }
            Err(e) => {
                self.place = Some(Location::Here(desk, reply, notes));
                work.refused(&format!("no thread could be started to call the store ({e})"))
            }
        }
    }

    /// Lets the keeper finish what it was given, unless it hangs in a call.
    pub fn finish(self, wait: bool) {
        match self.place {
            Some(Location::Away(work, thread)) => {
                drop(work);
                if wait {
                    let _ = thread.join();
                }
            }
            Some(Location::Here(mut desk, _, notes)) => {
                notes.into_iter().for_each(|note| drop(desk.perform(note, &mut nothing)))
            }
            None => {}
        }
    }
}

/// While a step waits for a store that does not answer, its lease is renewed all the same.
fn renew_meanwhile(
    store: &mut dyn Store,
    pause: Duration,
    inbox: &Receiver<Task>,
    reply: &SendInput,
    later: &mut VecDeque<Task>,
) {
    let end = clock::boot_time().plus(pause);
    loop {
        let left = end.since(clock::boot_time());
        match inbox.recv_timeout(left) {
            Ok(Task::Request(Request::Ask { id, lease, op })) => reply(ask(store, id, &lease, op)),
            Ok(task) => later.push_back(task),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => return nothing(store, left),
        }
    }
}

impl Task {
    /// Nobody waits for an answer to it.
    fn is_note(&self) -> bool {
        matches!(self, Self::Request(Request::Discard(_) | Request::Remember { .. }))
    }

    /// The answer when it cannot be done at all.
    fn refused(self, why: &str) -> Option<Input> {
        let failure = Failure::new(FailureKind::Unreachable, why);
        let Self::Request(request) = self else { return None };
        match request {
            Request::Ask { id, op: Op::Read, .. } => Some(Input::Read { id, result: Err(failure) }),
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
            // The timer comes all the same.
            Request::Watch { .. } | Request::Discard(_) | Request::Remember { .. } => None,
        }
    }
}

impl std::fmt::Debug for StoreThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("near", &self.near).finish_non_exhaustive()
    }
}

/// Makes one store call for a lease.
fn ask(store: &mut dyn Store, id: RequestId, lease: &Name, op: Op) -> Input {
    let key = lease_key(lease);
    match op {
        Op::Read => {
            let stored = pollster::block_on(store.read(&key));
            Input::Read { id, result: stored.map(|stored| reading(store, stored)) }
        }
        Op::Cas { expected, write, body } => {
            let cas = store.cas(&key, expected.as_ref(), write, &body);
            Input::Cas { id, result: pollster::block_on(cas) }
        }
    }
}

/// What was read of a lease, with what the store is known by then.
pub(crate) fn reading(store: &dyn Store, stored: Option<Stored>) -> Reading {
    let facts = store.facts();
    Reading { stored, instance: facts.instance, pushes: facts.pushes }
}

fn probe(store: &dyn Store, grant: Grant, run: &str, text: &str) -> bool {
    let Some(dir) = store.facts().lock_dir else { return false };
    liveness::probe(&dir, grant, run, text) == Probe::Gone
}
