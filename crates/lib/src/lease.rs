//! The async API: a lease around a future.
//!
//! A thread of its own keeps each lease, so a caller that blocks its runtime cannot starve the
//! renewal, and it works on any runtime. The library never owns the process: no signals, no children.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_channel::oneshot;
use leasehold_core::ids::{Grant, Token};
use leasehold_core::name::Name;
use leasehold_core::session::{
    Busy, Event, Granted, HistoryPolicy, Input, JobExit, NotStarted, Outcome, Release, SessionPlan, Signal,
    StopReason, Within,
};
use leasehold_core::time::BootTime;
use leasehold_core::timing::TimingWishes;
use thiserror::Error;

use crate::backends::gate::{Gates, named};
use crate::backends::memory::MemoryStore;
use crate::backends::{Reach, store_of};
use crate::driver::{Driver, InputSender, ProtectedWork};
use crate::run_fences::Fences;
use crate::seen_tokens::SeenTokens;
use crate::stores::{self, Failure, OpenError, Store};
use crate::targets::{Target, TargetError, open as open_target};
use crate::{clock, host, random};

type Opener = dyn Fn() -> Result<Box<dyn Store>, OpenError> + Send + Sync;

/// A store to take leases on. Cheap to clone; every lease opens a connection of its own.
#[derive(Clone)]
pub struct Leases {
    open: Arc<Opener>,
    memory: SeenTokens,
}

/// Opens the store that `url` names, for example `sqlite:jobs.db` or `dir:/srv/leases`.
pub fn open(url: &str) -> Result<Leases, OpenError> {
    let store = stores::open(url)?;
    let kind = store_of(url);
    // By its full name from now on: a relative path would be another store in another directory. Any other URL is full
    // already, and how it is shown lacks its password.
    let a_path = kind.is_some_and(|kind| kind.path.is_some());
    let url = if a_path { store.facts().url } else { url.to_owned() };
    if kind.is_some_and(|kind| kind.reach == Reach::Process) {
        // Every lease must meet in the same memory.
        let store = MemoryStore::new().map_err(OpenError::Store)?;
        return Ok(Leases::on(move || Ok(Box::new(store.clone()))));
    }
    Ok(Leases::on(move || stores::open(&url)))
}

impl Leases {
    /// Leases on a store of your own making.
    pub fn on(open: impl Fn() -> Result<Box<dyn Store>, OpenError> + Send + Sync + 'static) -> Self {
        Self { open: Arc::new(open), memory: SeenTokens::none() }
    }

    /// Remembers tokens seen and versions watched there, as the command line does.
    pub fn remember_in(mut self, memory: SeenTokens) -> Self {
        self.memory = memory;
        self
    }

    /// A lease to ask for. The name is the thing that must not be touched twice.
    pub fn lease(&self, name: &str) -> LeaseRequest {
        LeaseRequest {
            leases: self.clone(),
            name: name.into(),
            wishes: TimingWishes::default(),
            wait: Duration::ZERO,
            job: None,
            run_id: None,
            fences: Vec::new(),
            history: true,
        }
    }
}

/// A lease about to be asked for.
#[must_use = "nothing is asked for until `acquire` is awaited"]
#[derive(Clone)]
pub struct LeaseRequest {
    leases: Leases,
    name: String,
    wishes: TimingWishes,
    wait: Duration,
    job: Option<String>,
    run_id: Option<String>,
    fences: Vec<String>,
    history: bool,
}

/// Why a lease could not even be asked for, or the asking failed. Busy is not among these.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a lease name, a job label, or timing that can keep the promise.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What was to be fenced cannot be.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The store did not answer, its content must not be acted on, or a target could not be sealed.
    #[error("the lease was not acquired: {0}")]
    NotAcquired(NotStarted),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The lease is lost; stop working.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// The lease is lost: not renewed in time, taken over, or asked back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the lease is lost: {why}")]
pub struct Lost {
    /// How.
    pub why: Box<StopReason>,
}

/// What asking came to.
#[must_use = "a lease that is dropped is given back at once"]
#[derive(Debug)]
pub enum Acquired {
    /// Yours until you let go of it or lose it.
    Lease(Lease),
    /// Somebody else's. Not an error.
    Busy(Busy),
}

impl Acquired {
    /// The lease, if it is yours.
    pub fn lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Busy(_) => None,
        }
    }
}

impl LeaseRequest {
    /// How long a silent holder keeps it; renewed every third of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.wishes.ttl = Some(ttl);
        self
    }

    /// How long to wait while somebody else holds it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Does not keep in the lease's record that it was held and given back: `leasehold history` will not show it.
    pub fn no_history(mut self) -> Self {
        self.history = false;
        self
    }

    /// What the work is called in `leasehold status`.
    pub fn job(mut self, label: &str) -> Self {
        self.job = Some(label.into());
        self
    }

    /// What the run is called that it is for, if that has a name of its own already.
    pub fn run_id(mut self, id: &str) -> Self {
        self.run_id = Some(id.into());
        self
    }

    /// Asks for it.
    pub async fn acquire(self) -> Result<Acquired, Error> {
        let (reply, answer) = oneshot::channel();
        // Opening a store may block; so it happens on the lease's own thread.
        thread::Builder::new().name("lease".into()).spawn(move || {
            let mut reply = Some(reply);
            if let Err(error) = self.keep(&mut reply)
                && let Some(reply) = reply
            {
                let _ = reply.send(Err(error));
            }
        })?;
        // The thread always answers, unless it panicked.
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Raises the fence of this target before the lease is handed over, so that every earlier holder is
    /// refused there. Repeatable. A gate by its name is a record in the store of this lease.
    pub fn fence(mut self, target: &str) -> Self {
        self.fences.push(target.into());
        self
    }

    fn keep(self, reply: &mut Option<oneshot::Sender<Result<Acquired, Error>>>) -> Result<(), Error> {
        let invalid = |e: &dyn std::fmt::Display| Error::Invalid(e.to_string());
        let lease = Name::new(&self.name).map_err(|e| invalid(&e))?;
        let job =
            self.job.as_deref().map_or_else(|| Ok(lease.clone()), Name::new).map_err(|e| invalid(&e))?;
        let store = (self.leases.open)()?;
        let timing = stores::timing(self.wishes, store.as_ref()).map_err(|e| invalid(&e))?;
        let mut fences = Fences::none();
        let open = Arc::clone(&self.leases.open);
        let gates = Gates::new(Arc::new(move || open().map_err(Failure::from)));
        let target = |url: &String| -> Result<Box<dyn Target>, Error> {
            let Some(name) = named(url) else { return Ok(open_target(url)?) };
            Ok(Box::new(gates.gate(&Name::new(name).map_err(|e| invalid(&e))?)))
        };
        fences.add(lease.clone(), self.fences.iter().map(target).collect::<Result<_, _>>()?);
        let open = Arc::clone(&self.leases.open);
        fences.keep_in(move || open().ok());
        let plan = SessionPlan {
            leases: vec![self.leases.memory.recall(&lease)],
            grant: Grant(random::seed()),
            timing,
            wait: self.wait,
            max_run: None,
            seal: !fences.is_empty(),
            item: None,
            history: if self.history { HistoryPolicy::Release } else { HistoryPolicy::Nothing },
            by_hand: false,
            force: false,
            lock: None,
            holder: host::holder(&self.run_id.unwrap_or_else(|| host::fresh_run_id(None)), &job),
            within: Within::default(),
        };
        let mut shell = Driver::new(plan, store, self.leases.memory, None)?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut work = Work {
            reply: reply.take(),
            shared: shared.clone(),
            inputs: shell.sender(),
            fences,
            granted: None,
            gone: None,
        };
        let outcome = shell.drive(&mut work, |shell, work| {
            // The deadline first: a lease must not be seen without one.
            lock(&shared).stop_at = shell.stop_at();
            work.hand_over();
            !work.forsaken()
        })?;
        work.ended(&outcome);
        shell.finish(&outcome);
        Ok(())
    }
}

/// What the lease's thread and its owner both see.
#[derive(Debug, Default)]
struct Shared {
    /// When work must stop unless a renewal is confirmed.
    stop_at: Option<BootTime>,
    lost: Option<StopReason>,
    released: Option<oneshot::Sender<Release>>,
}

fn gone() -> Error {
    Error::System(std::io::ErrorKind::Other.into())
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The owner's work, as a session's job.
struct Work {
    reply: Option<oneshot::Sender<Result<Acquired, Error>>>,
    shared: Arc<Mutex<Shared>>,
    inputs: InputSender,
    fences: Fences,
    /// A grant that the owner has not heard of yet.
    granted: Option<Granted>,
    /// Tells the owner that the lease is lost, by being dropped.
    gone: Option<oneshot::Sender<()>>,
}

impl Work {
    /// Whoever asked has gone away without waiting for the answer.
    fn forsaken(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_canceled)
    }

    /// The last word, whichever question is still open.
    fn ended(&mut self, outcome: &Outcome) {
        let (answer, release) = match outcome.clone() {
            Outcome::Busy(busy) => (Ok(Acquired::Busy(busy)), Release::AlreadyGone),
            Outcome::NotStarted(why) => (Err(Error::NotAcquired(why)), Release::AlreadyGone),
            Outcome::Lost { why, .. } => {
                self.lose(why.clone());
                (Err(Error::Lost(Lost { why: Box::new(why) })), Release::AlreadyGone)
            }
            // A session of this API is never by hand, and one that finished has handed its lease over.
            Outcome::Finished { release, .. } => (Err(gone()), release),
            Outcome::Granted(_) => (Err(gone()), Release::AlreadyGone),
        };
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(answer);
        }
        if let Some(released) = lock(&self.shared).released.take() {
            let _ = released.send(release);
        }
    }

    /// Gives a new lease to whoever asked. If nobody waits for it any more, dropping it gives it back.
    fn hand_over(&mut self) {
        let Some(granted) = self.granted.take() else { return };
        let Some(reply) = self.reply.take() else { return };
        let (gone, lost) = oneshot::channel();
        self.gone = Some(gone);
        let (shared, inputs) = (self.shared.clone(), self.inputs.clone());
        let _ = reply.send(Ok(Acquired::Lease(Lease { granted, shared, inputs, lost: Some(lost) })));
    }

    fn lose(&mut self, why: StopReason) {
        lock(&self.shared).lost.get_or_insert(why);
        self.gone = None;
    }
}

impl ProtectedWork for Work {
    fn start(&mut self, granted: &Granted, _: BootTime) -> Result<(), JobExit> {
        self.granted = Some(granted.clone());
        Ok(())
    }

    fn seal(&mut self, granted: &Granted, session: InputSender) {
        self.fences.seal(granted, session);
    }

    // The work is cancelled by `Event::Stopping`, which comes in the same step and knows why: woken
    // before it, the work would have to guess.
    fn term(&mut self) {}
    fn kill(&mut self) {}

    // A future cannot be frozen; `token()` fails meanwhile, because its deadline has passed.
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _signal: Signal) {}

    fn tell(&mut self, event: &Event) {
        if let Event::Stopping(why) = event {
            self.lose(why.clone());
        }
    }
}

/// A lease that is yours. Dropping it gives it back as best it can; expiry is what counts.
#[must_use = "a lease that is dropped is given back at once"]
#[derive(Debug)]
pub struct Lease {
    granted: Granted,
    shared: Arc<Mutex<Shared>>,
    inputs: InputSender,
    lost: Option<oneshot::Receiver<()>>,
}

impl Lease {
    /// The fencing token, to hand to whatever is written. Fails once the lease may have expired.
    pub fn token(&self) -> Result<Token, Lost> {
        self.check().map(|()| self.granted.token)
    }

    /// The whole grant.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Whether it is still safe to work.
    pub fn check(&self) -> Result<(), Lost> {
        let shared = lock(&self.shared);
        if let Some(why) = shared.lost.clone() {
            return Err(Lost { why: Box::new(why) });
        }
        match shared.stop_at {
            Some(at) if clock::boot_time() < at => Ok(()),
            _ => Err(Lost { why: Box::new(StopReason::Deadline) }),
        }
    }

    /// Does the work while the lease is held, then gives it back. If the lease is lost the work is
    /// dropped where it awaits, and the answer is [`Error::Lost`].
    pub async fn run<T, F>(mut self, work: impl FnOnce(LeaseHandle) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let mut lost = self.lost.take();
        let handle = LeaseHandle { granted: self.granted.clone(), shared: self.shared.clone() };
        let done = {
            let mut work = pin!(work(handle));
            poll_fn(|cx| {
                if let Some(lost) = lost.as_mut()
                    && pin!(lost).as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(None);
                }
                work.as_mut().poll(cx).map(Some)
            })
            .await
        };
        // Work that ended after the deadline ended without protection.
        let verdict = self.check();
        match (done, verdict) {
            (Some(value), Ok(())) => {
                self.release().await;
                Ok(value)
            }
            (_, Err(lost)) => Err(lost.into()),
            (None, Ok(())) => Err(Lost { why: Box::new(StopReason::Deadline) }.into()),
        }
    }

    /// Gives it back and waits for the answer.
    pub async fn release(self) -> Release {
        let (sender, released) = oneshot::channel();
        lock(&self.shared).released = Some(sender);
        drop(self);
        released.await.unwrap_or(Release::AlreadyGone)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inputs.send(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
    }
}

/// What the work inside [`Lease::run`] sees of its lease.
#[derive(Clone, Debug)]
pub struct LeaseHandle {
    granted: Granted,
    shared: Arc<Mutex<Shared>>,
}

impl LeaseHandle {
    /// The fencing token. Fails once the lease may have expired.
    pub fn token(&self) -> Result<Token, Lost> {
        let shared = lock(&self.shared);
        match (&shared.lost, shared.stop_at) {
            (None, Some(at)) if clock::boot_time() < at => Ok(self.granted.token),
            (Some(why), _) => Err(Lost { why: Box::new(why.clone()) }),
            _ => Err(Lost { why: Box::new(StopReason::Deadline) }),
        }
    }

    /// The whole grant.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }
}
