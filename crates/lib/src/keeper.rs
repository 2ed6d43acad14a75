//! The keeper: one thread that makes every store call of a session.
//!
//! It decides nothing and holds no deadline. If a call hangs, the thread that owns the job still
//! stops it in time.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use leasehold_core::ids::Grant;
use leasehold_core::name::Name;
use leasehold_core::rules::Seen;
use leasehold_core::session::{Input, Op, Reading, RequestId, Watched, lease_key};

use crate::memory::Memory;
use crate::runner::evidence::{self, Probe};
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

/// A running keeper.
#[derive(Debug)]
pub struct Keeper {
    work: Sender<Work>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread; `reply` gets every answer.
    pub fn start(
        mut store: Box<dyn Store>,
        memory: Memory,
        reply: impl Fn(Input) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (work, inbox) = mpsc::channel();
        let thread =
            thread::Builder::new().name("keeper".into()).stack_size(256 * 1024).spawn(move || {
                for work in inbox {
                    match work {
                        Work::Ask { id, lease, op } => reply(ask(store.as_mut(), id, &lease, op)),
                        Work::Probe { grant, run, lock } => {
                            reply(Input::Probed { gone: probe(store.as_ref(), grant, &run, &lock) });
                        }
                        Work::Remember { lease, seen, watched } => memory.remember(&lease, seen, watched),
                    }
                }
            })?;
        Ok(Self { work, thread })
    }

    /// Hands over work. A keeper that died answers nothing, and the session's deadlines do the rest.
    pub fn give(&self, work: Work) {
        let _ = self.work.send(work);
    }

    /// Lets the keeper finish what it was given, unless it hangs in a call.
    pub fn finish(self, wait: bool) {
        drop(self.work);
        if wait {
            let _ = self.thread.join();
        }
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
