//! The async API: a future that runs under a lease.
//!
//! Each lease has a thread, `lease`, that renews it. So it works on any runtime, and a caller that blocks its
//! runtime does not stop the renewals. The library installs no signal handlers and starts no processes.

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
    Busy, Event, Granted, Input, JobExit, LogPlan, NotStarted, Outcome, Release, SessionPlan, Signal,
    StopReason, Within,
};
use leasehold_core::time::BootTime;
use leasehold_core::timing::TimingWishes;
use thiserror::Error;

use crate::backends::gate::Gates;
use crate::backends::memory::MemoryStore;
use crate::backends::{Reach, name_in_store, store_of};
use crate::driver::{Driver, InputSender, ProtectedWork};
use crate::run_fences::Fences;
use crate::run_log::Retention;
use crate::seen_tokens::SeenTokens;
use crate::stores::{self, Failure, OpenError, Store};
use crate::targets::{Target, TargetError, open as open_target};
use crate::{clock, host, random};

type Opener = dyn Fn() -> Result<Box<dyn Store>, OpenError> + Send + Sync;

/// A store to take leases on. Cheap to clone; every lease opens its own connection.
#[derive(Clone)]
pub struct Leases {
    open: Arc<Opener>,
    memory: SeenTokens,
}

/// Opens the store that `url` names, for example `sqlite:jobs.db` or `dir:/srv/leases`.
pub fn open(url: &str) -> Result<Leases, OpenError> {
    let store = stores::open(url)?;
    let kind = store_of(url);
    // The full path, because a relative one would name another store in another directory. Any other URL stays as it is,
    // because the shown one lacks its password.
    let a_path = kind.is_some_and(|kind| kind.path.is_some());
    let url = if a_path { store.facts().url } else { url.to_owned() };
    if kind.is_some_and(|kind| kind.reach == Reach::Process) {
        // All leases must share one memory.
        let store = MemoryStore::new().map_err(OpenError::Store)?;
        return Ok(Leases::on(move || Ok(Box::new(store.clone()))));
    }
    Ok(Leases::on(move || stores::open(&url)))
}

impl Leases {
    /// Leases on your own store.
    pub fn on(open: impl Fn() -> Result<Box<dyn Store>, OpenError> + Send + Sync + 'static) -> Self {
        Self { open: Arc::new(open), memory: SeenTokens::none() }
    }

    /// Remembers seen tokens there, as the command line does.
    pub fn remember_in(mut self, memory: SeenTokens) -> Self {
        self.memory = memory;
        self
    }

    /// A request for a lease. Its name is the name of the thing to work on.
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

/// A request for a lease.
#[must_use = "a request does nothing until `acquire` is awaited"]
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

/// Why the request failed. A lease that is held by another run is no error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The name, the job label or the timing is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A target cannot be opened.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The store did not answer, its record is unusable, or a target could not be fenced.
    #[error("the lease was not acquired: {0}")]
    NotAcquired(NotStarted),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The lease is lost; stop working.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// The lease is lost: not renewed in time, taken over, or broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the lease is lost: {why}")]
pub struct Lost {
    /// The reason.
    pub why: Box<StopReason>,
}

/// The answer to a request.
#[must_use = "a lease that is dropped is released at once"]
#[derive(Debug)]
pub enum Acquired {
    /// The lease, until you release or lose it.
    Lease(Lease),
    /// Another run holds it. Not an error.
    Busy(Busy),
}

impl Acquired {
    /// The lease, if it was acquired.
    pub fn lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Busy(_) => None,
        }
    }
}

impl LeaseRequest {
    /// The TTL: how long the lease lasts after its last renewal. The lease is renewed after every third of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.wishes.ttl = Some(ttl);
        self
    }

    /// How long to wait while another run holds it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Writes no record of the run log, so `leasehold history` does not show this lease.
    pub fn no_history(mut self) -> Self {
        self.history = false;
        self
    }

    /// The name of the work in `leasehold status`.
    pub fn job(mut self, label: &str) -> Self {
        self.job = Some(label.into());
        self
    }

    /// The id of the run, if it has one already.
    pub fn run_id(mut self, id: &str) -> Self {
        self.run_id = Some(id.into());
        self
    }

    /// Asks for the lease. Starts the thread `lease`.
    pub async fn acquire(self) -> Result<Acquired, Error> {
        let (reply, answer) = oneshot::channel();
        // Opening a store may block, so this thread does it.
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

    /// Fences this target before `acquire` returns, so that every earlier holder is refused there. Can be
    /// repeated. `gate:NAME` is a record in the store of this lease.
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
            let Some(name) = name_in_store(url) else { return Ok(open_target(url)?) };
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
            log: if self.history { LogPlan::Release } else { LogPlan::Nothing },
            by_hand: false,
            force: false,
            lock: None,
            holder: host::holder(&self.run_id.unwrap_or_else(|| host::fresh_run_id(None)), &job),
            within: Within::default(),
        };
        let log = self.leases.memory.log_writer(Retention::default());
        let mut driver = Driver::new(plan, store, self.leases.memory, None, log)?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut work = Work {
            reply: reply.take(),
            shared: shared.clone(),
            inputs: driver.sender(),
            fences,
            granted: None,
            gone: None,
        };
        let outcome = driver.drive(&mut work, |driver, work| {
            // The deadline first, so that a lease never lacks one.
            lock(&shared).stop_at = driver.stop_at();
            work.hand_over();
            !work.is_abandoned()
        })?;
        work.ended(&outcome);
        driver.finish(&outcome);
        Ok(())
    }
}

/// State that the lease's thread shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    /// When work must stop unless a renewal is confirmed.
    stop_at: Option<BootTime>,
    lost: Option<StopReason>,
    released: Option<oneshot::Sender<Release>>,
}

impl Shared {
    /// Fails once the lease may have expired.
    fn check(&self) -> Result<(), Lost> {
        let why = match (&self.lost, self.stop_at) {
            (None, Some(at)) if clock::boot_time() < at => return Ok(()),
            (Some(why), _) => why.clone(),
            _ => StopReason::Deadline,
        };
        Err(Lost { why: Box::new(why) })
    }
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
    /// A grant that the owner has not got yet.
    granted: Option<Granted>,
    /// Dropped when the lease is lost, which tells the owner.
    gone: Option<oneshot::Sender<()>>,
}

impl Work {
    /// Whether the owner dropped the request before it was answered.
    fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_canceled)
    }

    /// Answers the request or the release that is still open.
    fn ended(&mut self, outcome: &Outcome) {
        let (answer, release) = match outcome.clone() {
            Outcome::Busy(busy) => (Ok(Acquired::Busy(busy)), Release::AlreadyGone),
            Outcome::NotStarted(why) => (Err(Error::NotAcquired(why)), Release::AlreadyGone),
            Outcome::Lost { why, .. } => {
                self.lose(why.clone());
                (Err(Error::Lost(Lost { why: Box::new(why) })), Release::AlreadyGone)
            }
            // Not reached: a session of this API is not by hand, and one that finished had answered its request.
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

    /// Gives a new lease to its owner. If the owner is gone, the lease is dropped, which releases it.
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

    // `Event::Stopping` cancels the work. It comes in the same step and has the reason, which the work would lack if it
    // were woken here.
    fn term(&mut self) {}
    fn kill(&mut self) {}

    // A future cannot be paused. `token()` fails meanwhile, because the deadline has passed.
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _signal: Signal) {}

    fn tell(&mut self, event: &Event) {
        if let Event::Stopping(why) = event {
            self.lose(why.clone());
        }
    }
}

/// A lease that you hold. Dropping it releases it. If the store does not answer then, the lease expires.
#[must_use = "a lease that is dropped is released at once"]
#[derive(Debug)]
pub struct Lease {
    granted: Granted,
    shared: Arc<Mutex<Shared>>,
    inputs: InputSender,
    lost: Option<oneshot::Receiver<()>>,
}

impl Lease {
    /// The fencing token, to send with each write. Fails once the lease may have expired.
    pub fn token(&self) -> Result<Token, Lost> {
        self.check().map(|()| self.granted.token)
    }

    /// The whole grant.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Fails once the lease may have expired.
    pub fn check(&self) -> Result<(), Lost> {
        lock(&self.shared).check()
    }

    /// Does the work while the lease is held, then releases the lease. If the lease is lost, the work is dropped
    /// at its next `await`, and the answer is [`Error::Lost`].
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
        // Work that ended after the deadline was not protected to its end.
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

    /// Releases the lease and waits for the answer.
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

/// The lease, as the work inside [`Lease::run`] sees it.
#[derive(Clone, Debug)]
pub struct LeaseHandle {
    granted: Granted,
    shared: Arc<Mutex<Shared>>,
}

impl LeaseHandle {
    /// The fencing token. Fails once the lease may have expired.
    pub fn token(&self) -> Result<Token, Lost> {
        lock(&self.shared).check().map(|()| self.granted.token)
    }

    /// The whole grant.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }
}
