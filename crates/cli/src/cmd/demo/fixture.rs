//! The demo's stage: a directory of its own, real processes in it, and waiting for what they do.
//!
//! Whatever happens, dropping it ends the processes, by their numbers, and removes the directory.

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

/// The whole story takes a few seconds; something hangs if this is not enough.
const PATIENCE: Duration = Duration::from_secs(45);

/// How long a silent holder keeps the lease.
pub const TTL: &str = "3s";
/// The lease.
pub const LEASE: &str = "site";
/// The file that both sides fight over, in a directory of its own on each side.
pub const ARTEFACT: &str = "today.txt";

/// Runs what follows and says how it ended: the wrapper's own exit code tells how the run ended.
const SCRIPT: &str = r#""$@"; code=$?; echo "exit $code"; exit $code"#;

/// Variables that would make the demo's runs part of something else.
const NOT_OURS: [&str; 9] = [
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

/// Why the story could not go on.
#[derive(Debug)]
pub enum DemoError {
    /// It went otherwise.
    Different(String),
    /// Somebody ended it: the signal's number.
    Signal(i32),
    /// The system said no.
    System(io::Error),
}

impl<E: Into<io::Error>> From<E> for DemoError {
    fn from(e: E) -> Self {
        Self::System(e.into())
    }
}

/// The two sides of the story.
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

/// A process of the story: a `leasehold run` with its job, or on the other side the job alone.
#[derive(Debug)]
pub struct Actor {
    label: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    heard: Vec<u8>,
    silent: bool,
    /// The job's process group while it lives; a job ends only when we tell it to.
    group: Option<Pid>,
    files: PathBuf,
}

impl Actor {
    /// The process we started: the wrapper, or the bare job.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops everything of it, as a closed lid or a stalled machine would.
    pub fn freeze(&self) -> Result<(), DemoError> {
        self.signal_wrapper(Signal::STOP)?;
        self.signal_job(Signal::STOP)
    }

    /// Lets the job go on, and the wrapper stand still for now.
    pub fn thaw_job(&self) -> Result<(), DemoError> {
        self.signal_job(Signal::CONT)
    }

    /// Lets the wrapper go on.
    pub fn thaw_wrapper(&self) -> Result<(), DemoError> {
        self.signal_wrapper(Signal::CONT)
    }

    fn signal_wrapper(&self, signal: Signal) -> Result<(), DemoError> {
        // Not waited for yet, so the number is still its own.
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    fn signal_job(&self, signal: Signal) -> Result<(), DemoError> {
        self.group.map_or(Ok(()), |group| Ok(kill_process_group(group, signal)?))
    }

    /// Tells the job to write. A frozen one finds it when it wakes.
    pub fn go(&mut self) -> Result<(), DemoError> {
        let line = format!("{}\n", super::actor::GO);
        self.stdin.as_mut().map_or(Ok(()), |stdin| Ok(stdin.write_all(line.as_bytes())?))
    }

    /// What `leasehold run --report` wrote.
    pub fn report(&self) -> serde_json::Value {
        let text = fs::read(self.files.with_extension("report")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// What it and its job said to people.
    pub fn said(&self) -> String {
        let text = fs::read(self.files.with_extension("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    fn line(&mut self) -> Option<String> {
        let end = self.heard.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }

    fn hear(&mut self) -> Result<(), DemoError> {
        let mut block = [0; 1024];
        match self.stdout.read(&mut block) {
            Ok(0) => self.silent = true,
            Ok(n) => self.heard.extend_from_slice(&block[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// The process group and token of a job that says it is ready.
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

    /// The job has ended by itself: its number may belong to somebody else from now on.
    pub fn job_over(&mut self) {
        self.group = None;
    }

    /// It did something that is not in the story.
    pub fn different(&self, what: &str) -> DemoError {
        let said = self.said();
        let said = if said.is_empty() { "nothing".into() } else { said };
        DemoError::Different(format!("{}: {what:?}; it said: {said}", self.label))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // A job that waits sees the end of its input; one that is frozen sees nothing.
        drop(self.stdin.take());
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.signal_job(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where it all happens.
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
    /// A fresh directory; from here on an interrupt is noticed, not obeyed.
    pub fn set() -> Result<Self, DemoError> {
        let exe = std::env::current_exe()?;
        let signals = Signals::install()?;
        let timer = Timer::new()?;
        let started = clock::boot_time();
        timer.arm(started.plus(PATIENCE))?;
        let dir = std::env::temp_dir().join(format!("leasehold-demo-{:016x}", random::seed() as u64));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let stage = Self { dir, exe, signals, timer, started, count: 0 };
        for side in [Side::With, Side::Without] {
            fs::create_dir(stage.dir.join(side.dir()))?;
        }
        // Made here, for a run does not make a store.
        backends::open_store(&stage.store()).map_err(std::io::Error::other)?;
        Ok(stage)
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        clock::boot_time().since(self.started)
    }

    /// What is in the artefact of one side.
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
        for name in NOT_OURS {
            command.env_remove(name);
        }
        command.env("HOME", &self.dir).env("XDG_STATE_HOME", self.dir.join("state"));
        command.current_dir(self.dir.join(side.dir()));
        // A group of its own: an interrupt from the terminal reaches us, and we end them all.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(files.with_extension("stderr"))?);
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(DemoError::Different("a process without pipes".into()));
        };
        let (label, stdin) = (label.to_owned(), Some(stdin));
        Ok(Actor { label, child, stdin, stdout, heard: Vec::new(), silent: false, group: None, files })
    }

    /// The next line of whichever speaks first; nothing: that one will not speak again.
    pub fn next_line(&mut self, actors: &mut [&mut Actor]) -> Result<(usize, Option<String>), DemoError> {
        loop {
            for (who, actor) in actors.iter_mut().enumerate() {
                if let Some(line) = actor.line() {
                    return Ok((who, Some(line)));
                }
                if actor.silent {
                    return Ok((who, None));
                }
            }
            let fds: Vec<BorrowedFd<'_>> = actors.iter().map(|actor| actor.stdout.as_fd()).collect();
            let ready = self.wait(&fds, actors)?;
            for (who, actor) in actors.iter_mut().enumerate() {
                if ready.contains(&who) {
                    actor.hear()?;
                }
            }
        }
    }

    /// The next line of this one, which must begin so.
    pub fn expect(&mut self, actor: &mut Actor, prefix: &str) -> Result<String, DemoError> {
        match self.next_line(&mut [actor])?.1 {
            Some(line) if line.starts_with(prefix) => Ok(line),
            other => Err(actor.different(&other.unwrap_or_else(|| format!("ended without {prefix:?}")))),
        }
    }

    /// Waits until it has ended; its exit code, as a shell would say it.
    pub fn end(&mut self, actor: &mut Actor) -> Result<i32, DemoError> {
        loop {
            if let Some(status) = actor.child.try_wait()? {
                actor.job_over();
                return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
            }
            self.wait(&[], &[&mut *actor])?;
        }
    }

    /// Sleeps until one of these is ready, or a child has changed.
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
            let late = format!("nothing more happened within {} s", PATIENCE.as_secs());
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
