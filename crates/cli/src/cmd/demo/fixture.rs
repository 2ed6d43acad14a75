//! The demo's directory and processes, and the waiting for what these do.
//!
//! Dropping an [`Actor`] ends its processes, by their numbers; dropping the [`Fixture`] removes the directory.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::backends;
use leasehold::core::time::BootTime;
use leasehold::poll::{self, Timer};
use leasehold::{clock, random};
use leasehold_run::runner::signals::Signals;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::messages::demo as say;

/// The demo takes a few seconds; something hangs if this is not enough.
const PATIENCE: Duration = Duration::from_secs(45);

/// The TTL of the lease.
pub const TTL: &str = "3s";
/// The lease.
pub const LEASE: &str = "site";
/// The file that all runs of a side write; each side has a directory.
pub const ARTEFACT: &str = "today.txt";

/// Runs the job and prints its exit code; `leasehold run` exits with the outcome of the run.
const SCRIPT: &str = r#""$@"; code=$?; echo "exit $code"; exit $code"#;

/// Variables that would make the demo's runs part of another run, or use another store.
const REMOVED_VARIABLES: [&str; 9] = [
    "LEASEHOLD_STORE",
    "LEASEHOLD_STORE_FILE",
    "LEASEHOLD_LEASE",
    "LEASEHOLD_JOB",
    "LEASEHOLD_TOKEN",
    "LEASEHOLD_GRANT",
    "LEASEHOLD_SUPERVISOR",
    "LEASEHOLD_RUN_STORE",
    "XDG_CONFIG_HOME",
];

/// Why the demo ended early.
#[derive(Debug)]
pub enum DemoError {
    /// A process did not do what it should.
    Different(String),
    /// A signal ended it: the number.
    Signal(i32),
    /// A system call failed.
    System(io::Error),
}

impl<E: Into<io::Error>> From<E> for DemoError {
    fn from(e: E) -> Self {
        Self::System(e.into())
    }
}

/// The two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    With,
    Without,
}

impl Side {
    fn dir(self) -> &'static str {
        match self {
            Self::With => "with",
            Self::Without => "without",
        }
    }
}

/// A `leasehold run` with its job; without Leasehold, the job alone.
#[derive(Debug)]
pub struct Actor {
    label: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Output that was not used yet.
    output: Vec<u8>,
    /// The end of its output was read.
    at_end: bool,
    /// The job's process group while it runs; a job ends only when we tell it to.
    group: Option<Pid>,
    files: PathBuf,
}

impl Actor {
    /// The process that we started: `leasehold run`, or the job alone.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Freezes all its processes, as a closed lid or a stalled VM would.
    pub fn freeze(&self) -> Result<(), DemoError> {
        self.signal_wrapper(Signal::STOP)?;
        self.signal_job(Signal::STOP)
    }

    /// Lets the job continue, but not `leasehold run`.
    pub fn thaw_job(&self) -> Result<(), DemoError> {
        self.signal_job(Signal::CONT)
    }

    /// Lets the process that we started continue.
    pub fn thaw_wrapper(&self) -> Result<(), DemoError> {
        self.signal_wrapper(Signal::CONT)
    }

    fn signal_wrapper(&self, signal: Signal) -> Result<(), DemoError> {
        // We have not waited for it, so no other process has its number.
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    fn signal_job(&self, signal: Signal) -> Result<(), DemoError> {
        self.group.map_or(Ok(()), |group| Ok(kill_process_group(group, signal)?))
    }

    /// Tells the job to write. A frozen job reads this when it wakes up.
    pub fn go(&mut self) -> Result<(), DemoError> {
        let line = format!("{}\n", super::actor::GO);
        self.stdin.as_mut().map_or(Ok(()), |stdin| Ok(stdin.write_all(line.as_bytes())?))
    }

    /// The object that `leasehold run --report` wrote.
    pub fn report(&self) -> serde_json::Value {
        let text = fs::read(self.files.with_extension("report")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// The standard error of it and its job.
    pub fn printed(&self) -> String {
        let text = fs::read(self.files.with_extension("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    fn line(&mut self) -> Option<String> {
        let end = self.output.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.output.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }

    fn read(&mut self) -> Result<(), DemoError> {
        let mut block = [0; 1024];
        match self.stdout.read(&mut block) {
            Ok(0) => self.at_end = true,
            Ok(n) => self.output.extend_from_slice(&block[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Reads the line of a job that is ready: keeps its process group, returns its token.
    pub fn ready(&mut self, line: &str) -> Result<u64, DemoError> {
        let words: Vec<&str> = line.split(' ').collect();
        let ready = match words[..] {
            [super::actor::READY, group, token] => {
                group.parse().ok().and_then(Pid::from_raw).zip(token.parse().ok())
            }
            _ => None,
        };
        let Some((group, token)) = ready else { return Err(self.different(line)) };
        self.group = Some(group);
        Ok(token)
    }

    /// The job has ended: from now on another process may have its number.
    pub fn job_ended(&mut self) {
        self.group = None;
    }

    /// It did not do what it should.
    pub fn different(&self, what: &str) -> DemoError {
        let printed = Some(self.printed()).filter(|printed| !printed.is_empty());
        DemoError::Different(say::unexpected(&self.label, what, printed.unwrap_or_else(say::nothing)))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // A waiting job ends at the end of its input. A frozen one must be killed.
        drop(self.stdin.take());
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.signal_job(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory, the signals and the time limit of the demo.
#[derive(Debug)]
pub struct Fixture {
    dir: PathBuf,
    exe: PathBuf,
    signals: Signals,
    timer: Timer,
    started: BootTime,
    count: u32,
}

impl Fixture {
    /// Makes the directory. From now on an interrupt does not end this process at once.
    pub fn new() -> Result<Self, DemoError> {
        let exe = std::env::current_exe()?;
        let signals = Signals::install()?;
        let timer = Timer::new()?;
        let started = clock::boot_time();
        timer.arm(started.plus(PATIENCE))?;
        let dir = std::env::temp_dir().join(format!("leasehold-demo-{:016x}", random::seed() as u64));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let fixture = Self { dir, exe, signals, timer, started, count: 0 };
        for side in [Side::With, Side::Without] {
            fs::create_dir(fixture.dir.join(side.dir()))?;
        }
        // Made here: a run does not make a store.
        backends::open_store(&fixture.store()).map_err(std::io::Error::other)?;
        Ok(fixture)
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        clock::boot_time().since(self.started)
    }

    /// The content of the file of one side.
    pub fn artefact(&self, side: Side) -> Option<String> {
        fs::read_to_string(self.dir.join(side.dir()).join(ARTEFACT)).ok()
    }

    fn store(&self) -> String {
        backends::store_at(&self.dir.join("leases"))
    }

    /// Starts a run that will publish `content`.
    pub fn start(&mut self, side: Side, label: &str, content: &str, wait: bool) -> Result<Actor, DemoError> {
        self.count += 1;
        let files = self.dir.join(format!("process-{}", self.count));
        let mut command = Command::new(&self.exe);
        if side == Side::With {
            command.args(["run", LEASE, "--ttl", TTL, "--store"]).arg(self.store());
            command.arg("--report").arg(files.with_extension("report"));
            if wait {
                command.args(["--wait", "30s"]);
            }
            command.args(["--", "sh", "-c", SCRIPT, "sh"]).arg(&self.exe);
        }
        command.args(["demo-actor", ARTEFACT, content]);
        if side == Side::Without {
            command.arg("--unprotected");
        }
        for name in REMOVED_VARIABLES {
            command.env_remove(name);
        }
        command.env("HOME", &self.dir).env("XDG_STATE_HOME", self.dir.join("state"));
        command.current_dir(self.dir.join(side.dir()));
        // Another process group: an interrupt from the terminal reaches only us, and we end them all.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(files.with_extension("stderr"))?);
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(DemoError::Different(say::no_pipes()));
        };
        let (label, stdin) = (label.to_owned(), Some(stdin));
        Ok(Actor { label, child, stdin, stdout, output: Vec::new(), at_end: false, group: None, files })
    }

    /// The first line that one of them prints, and its index. No line: the output of that one has ended.
    pub fn next_line(&mut self, actors: &mut [&mut Actor]) -> Result<(usize, Option<String>), DemoError> {
        loop {
            for (who, actor) in actors.iter_mut().enumerate() {
                if let Some(line) = actor.line() {
                    return Ok((who, Some(line)));
                }
                if actor.at_end {
                    return Ok((who, None));
                }
            }
            let fds: Vec<BorrowedFd<'_>> = actors.iter().map(|actor| actor.stdout.as_fd()).collect();
            let ready = self.wait(&fds, actors)?;
            for (who, actor) in actors.iter_mut().enumerate() {
                if ready.contains(&who) {
                    actor.read()?;
                }
            }
        }
    }

    /// The next line of an actor, which must start with `prefix`.
    pub fn expect(&mut self, actor: &mut Actor, prefix: &str) -> Result<String, DemoError> {
        match self.next_line(&mut [actor])?.1 {
            Some(line) if line.starts_with(prefix) => Ok(line),
            other => Err(actor.different(&other.unwrap_or_else(|| say::ended_without(prefix.trim())))),
        }
    }

    /// Waits until it has ended; its exit code, as a shell has it.
    pub fn end(&mut self, actor: &mut Actor) -> Result<i32, DemoError> {
        loop {
            if let Some(status) = actor.child.try_wait()? {
                actor.job_ended();
                return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
            }
            self.wait(&[], &[&mut *actor])?;
        }
    }

    /// Waits until one of these is ready, or a child has changed.
    fn wait(&mut self, fds: &[BorrowedFd<'_>], actors: &[&mut Actor]) -> Result<Vec<usize>, DemoError> {
        let mut all = fds.to_vec();
        all.extend([self.timer.as_fd(), self.signals.as_fd()]);
        let ready = poll::wait(&all)?;
        if ready.has(fds.len() + 1) {
            let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
            let pending = self.signals.pending();
            if let Some(signal) = pending.forward.iter().find(|signal| ends.contains(signal)) {
                return Err(DemoError::Signal(signal.as_raw()));
            }
        }
        if ready.has(fds.len()) {
            let late = say::too_slow(PATIENCE.as_secs());
            return Err(actors
                .first()
                .map_or_else(|| DemoError::Different(late.clone()), |a| a.different(&late)));
        }
        Ok((0..fds.len()).filter(|n| ready.has(*n)).collect())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
