//! Steps of an item: the job's processes ask the wrapper, over a private socket, whether a step is done, and tell
//! it when it is. They never open the store themselves.
//!
//! One connection is one step: a line that asks, a line that answers, and if it is to be done, a line when it
//! is. A connection that ends without that leaves the step undone.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::ledger::{Amended, STEP_NAME_MAX, step_fits};
use serde::{Deserialize, Serialize};

use crate::keeper::Work;
use crate::ledger::Book;
use crate::shell::WorkSender;
use crate::{clock, random};

/// Where a job finds the socket.
pub const SOCKET: &str = "LEASEHOLD_SOCKET";
/// Most that is kept of what a step printed.
pub const OUTPUT_MAX: usize = 8 * 1024;
/// Longest line over the socket.
const LINE_MAX: u64 = 64 * 1024;

/// What a step asks, or tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Ask {
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
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
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
    /// Another run has gone over the item: this one's steps count no more.
    Superseded,
    /// It cannot be told; why.
    Failed {
        /// One sentence.
        message: String,
    },
}

/// The socket of one run; gone with it.
#[derive(Debug)]
pub struct Steps {
    path: PathBuf,
    /// A directory that was made for it alone.
    own: Option<PathBuf>,
}

impl Drop for Steps {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = self.own.take().map(std::fs::remove_dir);
    }
}

impl Steps {
    /// Listens in this private directory, for the run that does the item in `book` under `grant`.
    /// A store that does not answer when a step is done is asked again for `patience`.
    pub fn listen(
        dir: &Path,
        book: Book,
        grant: Grant,
        works: WorkSender,
        patience: Duration,
    ) -> io::Result<Self> {
        sweep(dir);
        let (listener, path, own) = bind(dir)?;
        let desk = Desk { book, grant, works, patience, under_way: Arc::default() };
        std::thread::Builder::new().name("steps".into()).stack_size(128 * 1024).spawn(move || {
            for stream in listener.incoming().flatten() {
                let desk = desk.clone();
                let serve = move || drop(desk.serve(&stream));
                let _ = std::thread::Builder::new().name("step".into()).stack_size(256 * 1024).spawn(serve);
            }
        })?;
        Ok(Self { path, own })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A socket in `dir`; or, where its path would be too long for one, in a directory of its own.
fn bind(dir: &Path) -> io::Result<(UnixListener, PathBuf, Option<PathBuf>)> {
    let name = format!("{:016x}", random::seed() as u64);
    let path = dir.join(&name);
    match UnixListener::bind(&path) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let own = PathBuf::from("/tmp").join(format!("leasehold-{name}"));
            DirBuilder::new().mode(0o700).create(&own)?;
            let path = own.join("steps");
            Ok((UnixListener::bind(&path)?, path, Some(own)))
        }
        bound => Ok((bound?, path, None)),
    }
}

/// Removes what wrappers that were killed have left: nobody answers there.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if UnixStream::connect(entry.path()).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Who answers.
#[derive(Clone)]
struct Desk {
    book: Book,
    grant: Grant,
    works: WorkSender,
    /// How long a store that does not answer is asked again: renewals wait meanwhile.
    patience: Duration,
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

impl Desk {
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream);
        let Ask::Begin { step, grant } = receive(&mut lines)? else { return Ok(()) };
        let answer = self.begin(&step, grant);
        send(stream, &answer)?;
        if answer != Answer::Begin {
            return Ok(());
        }
        let told = receive(&mut lines);
        let done = match told {
            Ok(Ask::Done { output }) => Some(self.done(&step, output)),
            _ => None,
        };
        self.under_way().remove(&step);
        done.map_or(Ok(()), |answer| send(stream, &answer))
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, step: &str, grant: Grant) -> Answer {
        let failed = |message: &str| Answer::Failed { message: message.into() };
        if grant != self.grant {
            return Answer::Superseded;
        }
        if step.is_empty() || step.len() > STEP_NAME_MAX {
            return failed("a step has a name of 1 to 128 bytes");
        }
        let Some(entry) = self.book.whole_entry() else { return failed("the run has not begun its item") };
        if !step_fits(&entry, step) {
            return Answer::Full;
        }
        let recorded = self.book.unrecorded(step).is_none();
        if let Some(done) = entry.steps.iter().find(|done| recorded && done.name == step) {
            return Answer::Done { token: done.token.get(), output: done.output.clone() };
        }
        if !self.under_way().insert(step.into()) {
            return Answer::Busy;
        }
        // It is done already, and only its record is not.
        let Some(done) = self.book.unrecorded(step) else { return Answer::Begin };
        let answer = match self.done(step, done.output.clone()) {
            Answer::Recorded { .. } => Answer::Done { token: done.token.get(), output: done.output },
            other => other,
        };
        self.under_way().remove(step);
        answer
    }

    fn done(&self, step: &str, output: Option<String>) -> Answer {
        let (told, answer) = mpsc::channel();
        let to_keep = output.is_some();
        // From here on, so that many together take no longer than one.
        let until = clock::boot_time().plus(self.patience);
        self.works.send(Work::Step { book: self.book.clone(), name: step.into(), output, until, told });
        match answer.recv() {
            Ok(Amended::Done(entry, _)) => {
                let kept = entry.steps.iter().any(|done| done.name == step && done.output.is_some());
                Answer::Recorded { left_out: to_keep && !kept }
            }
            Ok(Amended::Superseded(_)) => Answer::Superseded,
            Ok(Amended::Failed(failure)) => Answer::Failed { message: failure.message },
            Err(_) => Answer::Failed { message: "the run has ended".into() },
        }
    }
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
