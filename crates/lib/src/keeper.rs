//! The keeper makes every store call of a session: on a thread of its own, so that a call that hangs
//! does not keep the thread that owns the job from stopping it in time.
//!
//! While no job lives there is nothing to stop. Then a store on this machine is called where we are,
//! and a run that ends before its first renewal never starts the thread. The keeper decides nothing
//! and holds no deadline.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use leasehold_core::ids::Grant;
use leasehold_core::name::Name;
use leasehold_core::rules::Seen;
use leasehold_core::session::{Input, Op, Reading, RequestId, Watched, lease_key};

use crate::memory::Memory;
use crate::runner::evidence::{self, Probe};
use crate::runner::lock;
use crate::stores::Store;

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
    fn perform(&mut self, work: Work) -> Option<Input> {
        match work {
            Work::Ask { id, lease, op } => Some(ask(self.store.as_mut(), id, &lease, op)),
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

enum State {
    /// Not yet on a thread.
    Here(Desk, Reply),
    Away(Sender<Work>, JoinHandle<()>),
    /// The thread could not be started: nothing is answered any more.
    Gone,
}

/// The keeper of one session.
pub struct Keeper {
    state: State,
    /// The store is on this machine, so that a call takes no longer than its files do.
    near: bool,
}

impl Keeper {
    /// A keeper without a thread yet; `reply` gets what the thread answers.
    pub fn new(store: Box<dyn Store>, memory: Memory, reply: impl Fn(Input) + Send + 'static) -> Self {
        let near = store.facts().this_machine_only;
        Self { state: State::Here(Desk { store, memory }, Box::new(reply)), near }
    }

    /// Does the work now and answers, if nothing has to be stopped in time; hands it over otherwise.
    /// A keeper that died answers nothing, and the session's deadlines do the rest.
    pub fn give(&mut self, work: Work, job_lives: bool) -> Option<Input> {
        if let State::Here(desk, _) = &mut self.state
            && self.near
            && !job_lives
        {
            return desk.perform(work);
        }
        self.state = match std::mem::replace(&mut self.state, State::Gone) {
            State::Here(desk, reply) => away(desk, reply).unwrap_or(State::Gone),
            begun => begun,
        };
        if let State::Away(thread, _) = &self.state {
            let _ = thread.send(work);
        }
        None
    }

    /// Lets the keeper finish what it was given, unless it hangs in a call.
    pub fn finish(self, wait: bool) {
        if let State::Away(work, thread) = self.state {
            drop(work);
            if wait {
                let _ = thread.join();
            }
        }
    }
}

fn away(mut desk: Desk, reply: Reply) -> std::io::Result<State> {
    let (work, inbox) = mpsc::channel();
    let thread = thread::Builder::new().name("keeper".into()).stack_size(256 * 1024).spawn(move || {
        for work in inbox {
            if let Some(input) = desk.perform(work) {
                reply(input);
            }
        }
    })?;
    Ok(State::Away(work, thread))
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("near", &self.near).finish_non_exhaustive()
    }
}

fn ask(store: &mut dyn Store, id: RequestId, lease: &Name, op: Op) -> Input {
    let key = lease_key(lease);
    pollster::block_on(async {
        match op {
            Op::Read => {
                let result = store.read(&key).await;
                let result = result.map(|stored| Reading { stored, instance: store.facts().instance });
                Input::Read { id, result }
            }
            Op::Cas { expected, write, body } => {
                let result = store.cas(&key, expected.as_ref(), write, &body).await;
                Input::Cas { id, result }
            }
        }
    })
}

fn probe(store: &dyn Store, grant: Grant, run: &str, text: &str) -> bool {
    let Some(dir) = store.facts().lock_dir else { return false };
    evidence::probe(&dir, grant, run, text) == Probe::Gone
}
