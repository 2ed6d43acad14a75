//! Steps of an item, and gates: the job's processes ask the wrapper, over a private socket, whether a step is done,
//! and tell it when it is; or whether a command may start at a gate. They never open the store themselves.
//!
//! One connection is one step: a line that asks, a line that answers, and if it is to be done, a line when it
//! is. A connection that ends without that leaves the step undone. The step's command has the connection too: it
//! ends when neither is left, or when the one that asked says so. At a gate it is one line and one answer.

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
use leasehold::{clock, random, run_files};

/// Where a job finds the socket.
pub const SOCKET: &str = "LEASEHOLD_SOCKET";
/// Most that is kept of what a step printed.
pub const OUTPUT_MAX: usize = 8 * 1024;
/// Longest line over the socket.
const LINE_MAX: u64 = 64 * 1024;

/// What a process of the job asks, or tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum StepRequest {
    /// Is this step to be done?
    Begin {
        /// Which.
        step: String,
        /// The run that the asker believes to be part of.
        grant: Grant,
    },
    /// It is done.
    Done {
        /// What it printed, if that is to be kept.
        output: Option<String>,
    },
    /// May a command start at this gate now?
    Enter {
        /// Which.
        gate: Name,
        /// The run that the asker believes to be part of.
        grant: Grant,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum StepAnswer {
    /// Do it.
    Begin,
    /// It is done already.
    Done {
        /// The token of the run that did it.
        token: u64,
        /// What it printed, if that was kept.
        output: Option<String>,
    },
    /// Another process of this run is at it.
    Busy,
    /// It is recorded as done.
    Recorded {
        /// What it printed was to be kept, and there was no room for it.
        #[serde(default)]
        left_out: bool,
    },
    /// It must not be done: there is no room to record it.
    Full,
    /// It cannot be recorded under such a name: it must not be done.
    BadName,
    /// It must not be done: there is no item that it is a part of.
    NoItem,
    /// Another run has gone over the item: this one's steps count no more.
    Superseded,
    /// It is done, and it cannot be told whether that is recorded; why.
    Failed {
        /// One sentence.
        message: String,
    },
    /// Start the command.
    Entered {
        /// Before this, on the boot-time clock: from then on the lease may be another's. Nothing: nobody is kept out.
        by: Option<Duration>,
        /// It is started only because the gate watches.
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
        /// Which record.
        fence: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The socket of one run; gone with it, and so is who answers there.
#[derive(Debug)]
pub struct StepServer {
    place: PathBuf,
    /// A directory that was made for it alone, if it is not at its place.
    own: Option<PathBuf>,
    path: PathBuf,
    /// Held as long as the run lives: a socket whose lock is free is a dead run's.
    _lock: Option<File>,
    /// Its other end sees when this is dropped.
    _open: UnixStream,
    /// Until when the lease is surely ours.
    ours_until: OursUntil,
}

/// Until when the lease is surely ours, as the run that keeps it says; nothing: it is not said.
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
    /// Listens in this private directory, and answers what is asked at this desk.
    pub fn listen(dir: &Path, desk: StepResponder) -> io::Result<Self> {
        sweep(dir);
        let (open, over) = UnixStream::pair()?;
        let (place, lock) = place(dir);
        let (listener, own) = bind(&place).inspect_err(|_| remove(&place))?;
        let path = own.as_ref().map_or_else(|| place.clone(), |own| own.join(ALONE));
        let ours_until = Arc::clone(&desk.ours_until);
        let steps = Self { place, own, path, _lock: lock, _open: open, ours_until };
        let answer = move || answer(&listener, &over, &desk);
        std::thread::Builder::new().name("steps".into()).stack_size(128 * 1024).spawn(answer)?;
        Ok(steps)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lease is surely ours until then: no command starts at a gate later than that.
    pub fn ours_until(&self, at: BootTime) {
        *self.ours_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}

/// Everybody who comes has a thread, until the run is over: whatever still holds a connection then keeps none.
fn answer(listener: &UnixListener, over: &UnixStream, desk: &StepResponder) {
    let mut connected: Vec<Weak<UnixStream>> = Vec::new();
    while poll::wait(&[listener.as_fd(), over.as_fd()]).is_ok_and(|ready| !ready.has(1)) {
        let Ok((stream, _)) = listener.accept() else {
            // Whoever comes is still there: out of descriptors, say. Nobody is served by asking at once again.
            let _ = event::poll(&mut [PollFd::new(over, PollFlags::IN)], Some(&ACCEPT_AGAIN));
            continue;
        };
        let stream = Arc::new(stream);
        connected.retain(|known| known.strong_count() > 0);
        connected.push(Arc::downgrade(&stream));
        // Whoever calls a store needs more than a step, which has the keeper call it.
        let stack = if desk.gates.is_some() { 2048 * 1024 } else { 256 * 1024 };
        let desk = desk.clone();
        let serve = move || drop(desk.serve(&stream));
        let _ = std::thread::Builder::new().name("step".into()).stack_size(stack).spawn(serve);
    }
    for stream in connected.iter().filter_map(Weak::upgrade) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// How long it is left alone if nobody could be let in.
const ACCEPT_AGAIN: event::Timespec = event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// What a socket is called in a directory of its own.
const ALONE: &str = "steps";
/// How long a name is.
const DIGITS: usize = 16;
/// How often a name is looked for beside others who sweep there.
const TRIES: u32 = 100;

/// A place for a socket in `dir`, and its lock, which is held before there is a socket. Where nothing can be locked there
/// is none, and what is left behind there stays.
fn place(dir: &Path) -> (PathBuf, Option<File>) {
    let mut path = PathBuf::new();
    for _ in 0..TRIES {
        path = dir.join(format!("{:0DIGITS$x}", random::seed() as u64));
        match run_files::own(&path) {
            Ok(Some(lock)) => return (path, Some(lock)),
            Ok(None) => {}
            Err(_) => break,
        }
    }
    let _ = std::fs::remove_file(run_files::lock_of(&path));
    (path, None)
}

/// A socket at its place; or, where its path would be too long for one, in a directory of its own.
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

/// Where a socket lies whose path would be too long.
fn elsewhere(place: &Path) -> PathBuf {
    PathBuf::from("/tmp").join(format!("leasehold-{}", place.file_name().unwrap_or_default().display()))
}

/// Removes what wrappers that were killed have left. Nobody is asked: one that is stopped would not answer.
fn sweep(dir: &Path) {
    run_files::sweep(dir, DIGITS, remove);
}

/// A socket and its lock, in this order: a socket without a lock would stay for ever. The name was drawn at random, and in
/// a directory that is not ours nothing can be removed.
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

/// Who answers.
#[derive(Clone, Debug)]
pub struct StepResponder {
    /// Whose run it is.
    run: Bearer,
    ours_until: OursUntil,
    steps: Option<ItemSteps>,
    gates: Option<Gates>,
    /// How long the store is asked about a gate.
    gate_patience: Duration,
}

impl StepResponder {
    /// For this run, which has neither an item nor a gate yet.
    pub fn new(run: Bearer) -> Self {
        let (ours_until, gate_patience) = (OursUntil::default(), Duration::ZERO);
        Self { run, ours_until, steps: None, gates: None, gate_patience }
    }

    /// It does an item, which its keeper has. A store that does not answer when a step is done is asked again for
    /// `patience`.
    #[must_use]
    pub fn with_steps(self, keeper: StepSender, patience: Duration) -> Self {
        let (grant, under_way) = (self.run.grant, Arc::default());
        Self { steps: Some(ItemSteps { grant, keeper, patience, under_way }), ..self }
    }

    /// It has sealed gates. Their store is asked for so long.
    #[must_use]
    pub fn with_gates(self, gates: Gates, patience: Duration) -> Self {
        Self { gates: Some(gates), gate_patience: patience, ..self }
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream);
        match (receive(&mut lines)?, &self.steps) {
            (StepRequest::Begin { step, grant }, Some(desk)) => desk.serve(&step, grant, lines),
            (StepRequest::Begin { .. }, None) => send(stream, &StepAnswer::NoItem),
            (StepRequest::Enter { gate, grant }, _) => send(stream, &self.enter(&gate, grant)),
            (StepRequest::Done { .. }, _) => Ok(()),
        }
    }

    /// Compares and sets the gate.
    fn enter(&self, gate: &Name, grant: Grant) -> StepAnswer {
        let Some(gates) = self.gates.as_ref().filter(|_| grant == self.run.grant) else {
            return StepAnswer::NoGate;
        };
        let entered = gates.gate(gate).enter(&self.run, self.gate_patience);
        // Known only now: the lease may have been renewed meanwhile.
        let by = *self.ours_until.lock().unwrap_or_else(PoisonError::into_inner);
        match entered {
            Ok(entered) => StepAnswer::Entered { by: by.map(|by| by.0), let_in: entered.let_in },
            Err(TargetError::Refused(refused)) => StepAnswer::Barred { refused: *refused },
            // Paused in the middle of the call: the store is not to blame.
            Err(_) if by.is_some_and(|by| clock::boot_time() >= by) => StepAnswer::Late,
            Err(TargetError::Remote { failure, .. }) => StepAnswer::Unentered { failure },
            Err(TargetError::BadFence { fence, why, .. }) => StepAnswer::BadFence { fence, why },
            Err(other) => {
                StepAnswer::Unentered { failure: Failure::new(FailureKind::Unreachable, other.to_string()) }
            }
        }
    }
}

/// Who answers about the steps of an item.
#[derive(Clone, Debug)]
struct ItemSteps {
    grant: Grant,
    keeper: StepSender,
    /// How long a store that does not answer is asked again: renewals wait meanwhile.
    patience: Duration,
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

/// Somebody is at a step, until this is dropped.
struct StepGuard<'a> {
    desk: &'a ItemSteps,
    step: &'a str,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.desk.under_way().remove(self.step);
    }
}

impl ItemSteps {
    fn serve(&self, step: &str, grant: Grant, mut lines: BufReader<&UnixStream>) -> io::Result<()> {
        let stream = *lines.get_ref();
        let at_it = match self.begin(step, grant) {
            Ok(at_it) => at_it,
            Err(answer) => return send(stream, &answer),
        };
        send(stream, &StepAnswer::Begin)?;
        let StepRequest::Done { output } = receive(&mut lines)? else { return Ok(()) };
        let answer = self.done(step, output);
        // Before the answer: whoever has heard it may ask again.
        drop(at_it);
        send(stream, &answer)
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step is the asker's to do; or what else is to be answered.
    fn begin<'a>(&'a self, step: &'a str, grant: Grant) -> Result<StepGuard<'a>, StepAnswer> {
        if grant != self.grant {
            return Err(StepAnswer::Superseded);
        }
        if step.is_empty() || step.len() > STEP_NAME_MAX {
            return Err(StepAnswer::BadName);
        }
        // First, and only then it is looked at: whoever was at it before has left it as it is now.
        let nobody_else = self.under_way().insert(step.into());
        let at_it = nobody_else.then(|| StepGuard { desk: self, step });
        let (told, answer) = mpsc::channel();
        self.keeper.send(StepTask::Stands { name: step.into(), told });
        match answer.recv().map_err(|_| ended())?.ok_or(StepAnswer::NoItem)? {
            StepStands::Full => Err(StepAnswer::Full),
            StepStands::Done(done) => Err(StepAnswer::Done { token: done.token.get(), output: done.output }),
            StepStands::Open => at_it.ok_or(StepAnswer::Busy),
            StepStands::Unrecorded(_) if at_it.is_none() => Err(StepAnswer::Busy),
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
        // From here on, so that many together take no longer than one.
        let until = clock::boot_time().plus(self.patience);
        self.keeper.send(StepTask::Done { name: step.into(), output, until, told });
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
