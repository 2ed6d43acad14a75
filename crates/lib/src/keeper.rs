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
use leasehold_core::ledger::{Amended, Ending, State};
use leasehold_core::name::Name;
use leasehold_core::record::Holder;
use leasehold_core::rules::Seen;
use leasehold_core::session::{Granted, Input, Op, Reading, RequestId, Watched, lease_key};
use leasehold_core::time::BootTime;

use crate::clock;
use crate::ledger::Book;
use crate::memory::Memory;
use crate::runner::evidence::{self, Probe};
use crate::runner::lock;
use crate::stores::{Cas, Failure, FailureKind, Store, Stored, Version};
use crate::update::{Between, nothing};

/// Work for the keeper, done in order.
#[derive(Debug)]
pub enum Work {
    /// Call the store.
    Ask {
        /// To be sent back.
        id: RequestId,
        /// The lease.
        lease: Name,
        /// The call.
        op: Op,
    },
    /// Let the store wait for a change.
    Watch {
        /// To be sent back.
        id: RequestId,
        /// The lease.
        lease: Name,
        /// What was found there.
        version: Option<Version>,
        /// When to give up.
        until: BootTime,
    },
    /// Begin an item of work under this grant; answered as what a seal comes to.
    Open {
        /// The item.
        book: Book,
        /// The lease.
        granted: Granted,
        /// For people.
        holder: Holder,
    },
    /// Record that a step of it is done, and tell.
    Step {
        /// The item.
        book: Book,
        /// The step.
        name: String,
        /// What it printed, if that is kept.
        output: Option<String>,
        /// How long a store that does not answer is asked again.
        until: BootTime,
        /// Who waits for it.
        told: Sender<Amended>,
    },
    /// Record how it ended.
    Close {
        /// The item.
        book: Book,
        /// In a word.
        state: State,
        /// And in full.
        ending: Ending,
        /// How long a store that does not answer is asked again.
        until: BootTime,
    },
    /// Record that it was never executed, if it was begun.
    TakeBack {
        /// The item.
        book: Book,
        /// When, and that nothing came of it.
        ending: Ending,
        /// How long a store that does not answer is asked again.
        until: BootTime,
    },
    /// Look whether a holder on this machine is gone.
    Probe {
        /// Its acquisition.
        grant: Grant,
        /// Its run id.
        run: String,
        /// The evidence it left.
        lock: String,
    },
    /// Remove the lock file of a holder whose lease was taken over.
    Discard(Grant),
    /// Write to this host's memory.
    Remember {
        /// The lease.
        lease: Name,
        /// The highest token seen.
        seen: Option<Seen>,
        /// A version being watched.
        watched: Option<Watched>,
    },
}

/// What the work is done with.
struct Desk {
    store: Box<dyn Store>,
    memory: Memory,
}

impl Desk {
    fn perform(&mut self, work: Work, between: Between<'_>) -> Option<Input> {
        match work {
            Work::Ask { id, lease, op } => Some(ask(self.store.as_mut(), id, &lease, op)),
            Work::Watch { id, lease, version, until } => {
                let at_most = until.since(clock::boot_time());
                let key = lease_key(&lease);
                let wait = self.store.wait_change(&key, version.as_ref(), at_most);
                pollster::block_on(wait).then_some(Input::Changed { id })
            }
            Work::Open { book, granted, holder } => Some(book.open(self.store.as_mut(), &granted, &holder)),
            Work::Step { book, name, output, until, told } => {
                // Whoever asked may have gone.
                let _ = told.send(book.step(self.store.as_mut(), &name, output, until, between));
                None
            }
            Work::Close { book, state, ending, until } => {
                book.close(self.store.as_mut(), state, &ending, until);
                None
            }
            Work::TakeBack { book, ending, until } => {
                book.take_back(self.store.as_mut(), ending, until);
                None
            }
            Work::Probe { grant, run, lock } => {
                Some(Input::Probed { gone: probe(self.store.as_ref(), grant, &run, &lock) })
            }
            Work::Discard(grant) => {
                if let Some(dir) = self.store.facts().lock_dir {
                    // Best effort: a file that stays behind misleads nobody.
                    let _ = lock::discard(&dir, grant);
                }
                None
            }
            Work::Remember { lease, seen, watched } => {
                self.memory.remember(&lease, seen, watched);
                None
            }
        }
    }
}

type Reply = Box<dyn Fn(Input) + Send>;

enum Place {
    /// Not yet on a thread; with what is left to be done when there is time for it.
    Here(Desk, Reply, Vec<Work>),
    Away(Sender<Work>, JoinHandle<()>),
}

/// The keeper of one session.
pub struct Keeper {
    /// Nothing only while it is being changed.
    place: Option<Place>,
    /// The store is on this machine, so that a call takes no longer than its files do.
    near: bool,
}

impl Keeper {
    /// A keeper without a thread yet; `reply` gets what the thread answers.
    pub fn new(store: Box<dyn Store>, memory: Memory, reply: impl Fn(Input) + Send + 'static) -> Self {
        let near = store.facts().this_machine_only;
        Self { place: Some(Place::Here(Desk { store, memory }, Box::new(reply), Vec::new())), near }
    }

    /// Does the work now and answers, if nothing has to be stopped in time; hands it over otherwise.
    /// What nobody waits for is left until there is other work, or the end: nothing depends on it.
    pub fn give(&mut self, work: Work, job_lives: bool) -> Option<Input> {
        match self.place.take()? {
            Place::Here(desk, reply, mut notes) if job_lives && work.is_note() => {
                notes.push(work);
                self.place = Some(Place::Here(desk, reply, notes));
                None
            }
            Place::Here(mut desk, reply, notes) if self.near && !job_lives => {
                notes.into_iter().for_each(|note| drop(desk.perform(note, &mut nothing)));
                let answer = desk.perform(work, &mut nothing);
                self.place = Some(Place::Here(desk, reply, Vec::new()));
                answer
            }
            Place::Here(desk, reply, notes) => self.go_away(desk, reply, notes, work),
            Place::Away(thread, handle) => {
                let _ = thread.send(work);
                self.place = Some(Place::Away(thread, handle));
                None
            }
        }
    }

    /// Starts the thread. If the system refuses one, the call is answered so, and tried again next time.
    fn go_away(&mut self, desk: Desk, reply: Reply, notes: Vec<Work>, work: Work) -> Option<Input> {
        let (sender, inbox) = mpsc::channel();
        let (hand, over) = mpsc::channel::<(Desk, Reply)>();
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
                self.place = Some(Place::Away(sender, handle));
                None
            }
            Err(e) => {
                self.place = Some(Place::Here(desk, reply, notes));
                work.refused(&format!("no thread could be started to call the store ({e})"))
            }
        }
    }

    /// Lets the keeper finish what it was given, unless it hangs in a call.
    pub fn finish(self, wait: bool) {
        match self.place {
            Some(Place::Away(work, thread)) => {
                drop(work);
                if wait {
                    let _ = thread.join();
                }
            }
            Some(Place::Here(mut desk, _, notes)) => {
                notes.into_iter().for_each(|note| drop(desk.perform(note, &mut nothing)))
            }
            None => {}
        }
    }
}

/// While a step waits for a store that does not answer, its lease is renewed all the same. How the item ended is recorded
/// before the lease is given back.
fn renew_meanwhile(
    store: &mut dyn Store,
    pause: Duration,
    inbox: &Receiver<Work>,
    reply: &Reply,
    later: &mut VecDeque<Work>,
) {
    let end = clock::boot_time().plus(pause);
    loop {
        let left = end.since(clock::boot_time());
        let closing = later.iter().any(|work| matches!(work, Work::Close { .. } | Work::TakeBack { .. }));
        match inbox.recv_timeout(left) {
            Ok(Work::Ask { id, lease, op }) if !closing => reply(ask(store, id, &lease, op)),
            Ok(work) => later.push_back(work),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => return nothing(store, left),
        }
    }
}

impl Work {
    /// Nobody waits for an answer to it.
    fn is_note(&self) -> bool {
        matches!(self, Self::Discard(_) | Self::Remember { .. })
    }

    /// The answer when it cannot be done at all.
    fn refused(self, why: &str) -> Option<Input> {
        let failure = Failure::new(FailureKind::Unreachable, why);
        match self {
            Self::Ask { id, op: Op::Read, .. } => Some(Input::Read { id, result: Err(failure) }),
            Self::Ask { id, op: Op::Cas { .. }, .. } => {
                Some(Input::Cas { id, result: Cas::Unknown(failure) })
            }
            Self::Probe { .. } => Some(Input::Probed { gone: false }),
            Self::Open { .. } => Some(Input::Sealed(Err(why.into()))),
            // The timer comes all the same.
            Self::Watch { .. }
            | Self::Discard(_)
            | Self::Remember { .. }
            | Self::Close { .. }
            | Self::TakeBack { .. }
            | Self::Step { .. } => None,
        }
    }
}

impl std::fmt::Debug for Keeper {
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
    evidence::probe(&dir, grant, run, text) == Probe::Gone
}
