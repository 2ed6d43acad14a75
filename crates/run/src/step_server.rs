//! Steps of an item, and gates. The job's processes never open the store: over a private socket they ask the wrapper
//! whether a step is done, tell it when it is, and ask whether a command may start at a gate.
//!
//! One connection is one step: a request, an answer, and a second request when the step is done. A connection that ends
//! before that leaves the step undone. The step's command holds the connection too, so it ends when both processes have
//! ended, or when the one that asked shuts it down. At a gate there is one request and one answer.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;

use leasehold_core::fence::Bearer;
use leasehold_core::ids::Grant;
use leasehold_core::ledger::{Amended, STEP_NAME_MAX, StepStands};
use leasehold_core::name::Name;
use leasehold_core::store::{Failure, FailureKind};
use leasehold_core::time::BootTime;
use rustix::event::{self, PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use leasehold::backends::gate::Gates;
use leasehold::driver::StepSender;
use leasehold::poll;
use leasehold::store_thread::StepTask;
use leasehold::targets::{Refused, TargetError};
use leasehold::{clock, run_files};

/// The variable with the path of the socket.
pub const SOCKET: &str = "LEASEHOLD_SOCKET";
/// Most that is kept of a step's output.
pub const OUTPUT_MAX: usize = 8 * 1024;
/// Longest line over the socket.
const LINE_MAX: u64 = 64 * 1024;

/// A request of a process of the job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum StepRequest {
    /// Must this step be done?
    Begin {
        /// The step.
        step: String,
        /// The run that the asking process belongs to.
        grant: Grant,
    },
    /// The step is done.
    Done {
        /// Its output, if that is kept.
        output: Option<String>,
    },
    /// May a command start at this gate now?
    Enter {
        /// The gate.
        gate: Name,
        /// The run that the asking process belongs to.
        grant: Grant,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum StepAnswer {
    /// Do it.
    Begin,
    /// It is done already.
    Done {
        /// The token of the run that did it.
        token: u64,
        /// Its output, if that was kept.
        output: Option<String>,
    },
    /// Another process of this run is doing it.
    Busy,
    /// It is recorded as done.
    Recorded {
        /// There was no room for its output.
        #[serde(default)]
        left_out: bool,
    },
    /// Do not do it: there is no room to record it.
    Full,
    /// Do not do it: it cannot be recorded under such a name.
    BadName,
    /// Do not do it: the run has no item.
    NoItem,
    /// Do not do it: another run has replaced this one's record of the item.
    Superseded,
    /// It is done, but perhaps not recorded.
    Failed {
        /// Why, in one sentence.
        message: String,
    },
    /// Start the command.
    Entered {
        /// Before this, on the boot-time clock: from then on another run may hold the lease. `None`: there is no limit.
        by: Option<Duration>,
        /// The gate would have refused, but only observes.
        let_in: Option<Refused>,
    },
    /// Do not start it: the gate refuses.
    Barred {
        /// Why.
        refused: Refused,
    },
    /// Do not start it: this run has named no gate.
    NoGate,
    /// Do not start it: the store did not say that it may.
    Unentered {
        /// Why.
        failure: Failure,
    },
    /// Do not start it: the store did not answer before the lease may have ended.
    Late,
    /// Do not start it: the gate's record cannot be read.
    BadFence {
        /// The record.
        fence: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The socket of one run and the threads that answer there. Both end with the run.
#[derive(Debug)]
pub struct StepServer {
    place: PathBuf,
    /// A directory that was made for the socket alone, if its usual path is too long.
    own: Option<PathBuf>,
    path: PathBuf,
    /// Held while the run lives: a socket whose lock is free is a dead run's.
    _lock: Option<File>,
    /// When this is dropped, its other end stops the threads.
    _open: UnixStream,
    /// Until when the lease is surely ours.
    ours_until: OursUntil,
}

/// Until when the lease is surely ours; `None` if the run has not set it.
type OursUntil = Arc<Mutex<Option<BootTime>>>;

impl Drop for StepServer {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let _ = std::fs::remove_file(&self.path).and_then(|()| std::fs::remove_dir(own));
        }
        remove(&self.place);
    }
}

impl StepServer {
    /// Listens in this private directory and answers with the responder.
    pub fn listen(dir: &Path, responder: StepResponder) -> io::Result<Self> {
        sweep(dir);
        let (open, over) = UnixStream::pair()?;
        let (place, lock) = place(dir);
        let (listener, own) = bind(&place).inspect_err(|_| remove(&place))?;
        let path = own.as_ref().map_or_else(|| place.clone(), |own| own.join(ALONE));
        let ours_until = Arc::clone(&responder.ours_until);
        let steps = Self { place, own, path, _lock: lock, _open: open, ours_until };
        let answer = move || answer(&listener, &over, &responder);
        std::thread::Builder::new().name("steps".into()).stack_size(128 * 1024).spawn(answer)?;
        Ok(steps)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets until when the lease is surely ours. No command starts at a gate later than that.
    pub fn ours_until(&self, at: BootTime) {
        *self.ours_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}

/// Each connection has a thread. At the end of the run all connections are shut down, even if a process still holds one.
fn answer(listener: &UnixListener, over: &UnixStream, responder: &StepResponder) {
    let mut connected: Vec<Weak<UnixStream>> = Vec::new();
    while poll::wait(&[listener.as_fd(), over.as_fd()]).is_ok_and(|ready| !ready.has(1)) {
        let Ok((stream, _)) = listener.accept() else {
            // The connection still waits, for example because no descriptor is left. To try at once would be of no use.
            let _ = event::poll(&mut [PollFd::new(over, PollFlags::IN)], Some(&ACCEPT_AGAIN));
            continue;
        };
        let stream = Arc::new(stream);
        connected.retain(|known| known.strong_count() > 0);
        connected.push(Arc::downgrade(&stream));
        // A gate calls the store here, which needs more stack. For a step the store thread calls it.
        let stack = if responder.gates.is_some() { 2048 * 1024 } else { 256 * 1024 };
        let responder = responder.clone();
        let serve = move || drop(responder.serve(&stream));
        let _ = std::thread::Builder::new().name("step".into()).stack_size(stack).spawn(serve);
    }
    for stream in connected.iter().filter_map(Weak::upgrade) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Pause after a connection that could not be accepted.
const ACCEPT_AGAIN: event::Timespec = event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The name of a socket in a directory of its own.
const ALONE: &str = "steps";
/// The length of a name.
const DIGITS: usize = 16;

/// A path for a socket in `dir`, and its lock, which is taken before the socket is made. Without locks on that file system
/// there is none, and old sockets stay.
fn place(dir: &Path) -> (PathBuf, Option<File>) {
    match run_files::own_fresh(DIGITS, || Ok(dir.into())) {
        Ok((path, lock)) => (path, Some(lock)),
        Err(_) => (dir.join(run_files::fresh_name(DIGITS)), None),
    }
}

/// Makes the socket at its place, or in a directory of its own if its path is too long.
fn bind(place: &Path) -> io::Result<(UnixListener, Option<PathBuf>)> {
    match UnixListener::bind(place) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let own = elsewhere(place);
            DirBuilder::new().mode(0o700).create(&own)?;
            Ok((UnixListener::bind(own.join(ALONE))?, Some(own)))
        }
        bound => Ok((bound?, None)),
    }
}

/// The directory of a socket whose path is too long.
fn elsewhere(place: &Path) -> PathBuf {
    PathBuf::from("/tmp").join(format!("leasehold-{}", place.file_name().unwrap_or_default().display()))
}

/// Removes the sockets of wrappers that were killed. The lock tells: a wrapper that is stopped would not answer.
fn sweep(dir: &Path) {
    run_files::sweep(dir, DIGITS, remove);
}

/// Removes a socket, then its lock: a socket without a lock would stay. The name is random, and in another user's directory
/// nothing can be removed.
fn remove(place: &Path) {
    let own = elsewhere(place);
    if std::fs::remove_file(own.join(ALONE)).is_ok() {
        let _ = std::fs::remove_dir(own);
    }
    match std::fs::remove_file(place) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {}
        _ => drop(std::fs::remove_file(run_files::lock_of(place))),
    }
}

/// Answers requests.
#[derive(Clone, Debug)]
pub struct StepResponder {
    /// The run that it answers for.
    run: Bearer,
    ours_until: OursUntil,
    steps: Option<ItemSteps>,
    gates: Option<Gates>,
    /// How long to ask the store about a gate.
    gate_patience: Duration,
}

impl StepResponder {
    /// A responder for this run, without an item or gates.
    pub fn new(run: Bearer) -> Self {
        let (ours_until, gate_patience) = (OursUntil::default(), Duration::ZERO);
        Self { run, ours_until, steps: None, gates: None, gate_patience }
    }

    /// Adds the steps of an item, which the store thread records. If the store does not answer when a step is done, it is asked
    /// again for `patience`.
    #[must_use]
    pub fn with_steps(self, store_thread: StepSender, patience: Duration) -> Self {
        let (grant, under_way) = (self.run.grant, Arc::default());
        Self { steps: Some(ItemSteps { grant, store_thread, patience, under_way }), ..self }
    }

    /// Adds gates that the run has fenced. Their store is asked for `patience`.
    #[must_use]
    pub fn with_gates(self, gates: Gates, patience: Duration) -> Self {
        Self { gates: Some(gates), gate_patience: patience, ..self }
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream);
        match (receive(&mut lines)?, &self.steps) {
            (StepRequest::Begin { step, grant }, Some(steps)) => steps.serve(&step, grant, lines),
            (StepRequest::Begin { .. }, None) => send(stream, &StepAnswer::NoItem),
            (StepRequest::Enter { gate, grant }, _) => send(stream, &self.enter(&gate, grant)),
            (StepRequest::Done { .. }, _) => Ok(()),
        }
    }

    /// Asks the gate whether this run's token is still the newest.
    fn enter(&self, gate: &Name, grant: Grant) -> StepAnswer {
        let Some(gates) = self.gates.as_ref().filter(|_| grant == self.run.grant) else {
            return StepAnswer::NoGate;
        };
        let entered = gates.gate(gate).enter(&self.run, self.gate_patience);
        // Read after the call: the lease may have been renewed meanwhile.
        let by = *self.ours_until.lock().unwrap_or_else(PoisonError::into_inner);
        match entered {
            Ok(entered) => StepAnswer::Entered { by: by.map(|by| by.0), let_in: entered.let_in },
            Err(TargetError::Refused(refused)) => StepAnswer::Barred { refused: *refused },
            // This process was paused during the call; the store did nothing wrong.
            Err(_) if by.is_some_and(|by| clock::boot_time() >= by) => StepAnswer::Late,
            Err(TargetError::Remote { failure, .. }) => StepAnswer::Unentered { failure },
            Err(TargetError::BadFence { fence, why, .. }) => StepAnswer::BadFence { fence, why },
            Err(other) => {
                StepAnswer::Unentered { failure: Failure::new(FailureKind::Unreachable, other.to_string()) }
            }
        }
    }
}

/// Answers requests about the steps of an item.
#[derive(Clone, Debug)]
struct ItemSteps {
    grant: Grant,
    store_thread: StepSender,
    /// How long a silent store is asked again. Renewals wait meanwhile.
    patience: Duration,
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

/// A process is doing a step, until this is dropped.
struct StepGuard<'a> {
    steps: &'a ItemSteps,
    step: &'a str,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.steps.under_way().remove(self.step);
    }
}

impl ItemSteps {
    fn serve(&self, step: &str, grant: Grant, mut lines: BufReader<&UnixStream>) -> io::Result<()> {
        let stream = *lines.get_ref();
        let reserved = match self.begin(step, grant) {
            Ok(reserved) => reserved,
            Err(answer) => return send(stream, &answer),
        };
        send(stream, &StepAnswer::Begin)?;
        let StepRequest::Done { output } = receive(&mut lines)? else { return Ok(()) };
        let answer = self.done(step, output);
        // Before the answer: a process that has it may ask again.
        drop(reserved);
        send(stream, &answer)
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the step for the asking process, or gives another answer.
    fn begin<'a>(&'a self, step: &'a str, grant: Grant) -> Result<StepGuard<'a>, StepAnswer> {
        if grant != self.grant {
            return Err(StepAnswer::Superseded);
        }
        if step.is_empty() || step.len() > STEP_NAME_MAX {
            return Err(StepAnswer::BadName);
        }
        // Reserved before the look, so that the look sees what an earlier process has recorded.
        let nobody_else = self.under_way().insert(step.into());
        let reserved = nobody_else.then(|| StepGuard { steps: self, step });
        let (told, answer) = mpsc::channel();
        self.store_thread.send(StepTask::Stands { name: step.into(), told });
        match answer.recv().map_err(|_| ended())?.ok_or(StepAnswer::NoItem)? {
            StepStands::Full => Err(StepAnswer::Full),
            StepStands::Done(done) => Err(StepAnswer::Done { token: done.token.get(), output: done.output }),
            StepStands::Open => reserved.ok_or(StepAnswer::Busy),
            StepStands::Unrecorded(_) if reserved.is_none() => Err(StepAnswer::Busy),
            StepStands::Unrecorded(done) => Err(match self.done(step, done.output.clone()) {
                StepAnswer::Recorded { .. } => {
                    StepAnswer::Done { token: done.token.get(), output: done.output }
                }
                other => other,
            }),
        }
    }

    fn done(&self, step: &str, output: Option<String>) -> StepAnswer {
        let (told, answer) = mpsc::channel();
        let to_keep = output.is_some();
        // The time counts from here, so that steps that wait together take no longer than one.
        let until = clock::boot_time().plus(self.patience);
        self.store_thread.send(StepTask::Done { name: step.into(), output, until, told });
        match answer.recv() {
            Ok(Amended::Done(entry, _)) => {
                let kept = entry.steps.iter().any(|done| done.name == step && done.output.is_some());
                StepAnswer::Recorded { left_out: to_keep && !kept }
            }
            Ok(Amended::Superseded(_)) => StepAnswer::Superseded,
            Ok(Amended::Failed(failure)) => StepAnswer::Failed { message: failure.message },
            Err(_) => ended(),
        }
    }
}

fn ended() -> StepAnswer {
    StepAnswer::Failed { message: "the run has ended".into() }
}

/// One line from the other side.
pub fn receive<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    from.take(LINE_MAX).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// One line to the other side.
pub fn send(mut to: impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}
