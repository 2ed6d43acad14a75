//! Starts a supervisor, talks to it, and cleans up by recorded pid whatever happens.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use leasehold::clock;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::role::{DIR, ROLE, RUN};

/// Long enough for a loaded machine; only a failure ever waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process seen alive once: its number and when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    start: u64,
}

fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

impl Seen {
    pub(crate) fn now(pid: i32) -> Option<Self> {
        let start = stat_fields(pid)?.get(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    fn fields(self) -> Option<Vec<String>> {
        (Self::now(self.pid) == Some(self)).then(|| stat_fields(self.pid))?
    }

    pub(crate) fn alive(self) -> bool {
        self.fields().is_some_and(|f| !matches!(f[0].as_str(), "Z" | "X") || f[17] != "1")
    }

    pub(crate) fn stopped(self) -> bool {
        self.fields().is_some_and(|f| f[0] == "T")
    }

    pub(crate) fn kill(self) {
        let handle = Pid::from_raw(self.pid).map(|p| pidfd_open(p, PidfdFlags::empty()));
        if let Some(Ok(handle)) = handle
            && Self::now(self.pid) == Some(self)
        {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }

    /// Waits for its end, an event, and says whether it came.
    pub(crate) fn ends(self) -> bool {
        let Ok(handle) = pidfd_open(Pid::from_raw(self.pid).unwrap(), PidfdFlags::empty()) else {
            return true;
        };
        if !self.alive() {
            return true;
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&handle, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&patience)).unwrap() == 1
    }
}

/// Looks again and again until it is so; says whether it became so in time.
pub(crate) fn eventually(mut so: impl FnMut() -> bool) -> bool {
    let (_keep, never) = channel::<()>();
    let end = clock::boot_time().plus(PATIENCE);
    while !so() {
        if clock::boot_time() > end {
            return false;
        }
        let _ = never.recv_timeout(Duration::from_millis(1));
    }
    true
}

/// A run id (also used as grant) never used before.
pub(crate) fn new_run() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = clock::wall().as_nanos() as u64;
    format!("{now:016x}{:08x}{count:08x}", std::process::id())
}

/// This binary in another role.
pub(crate) fn supervisor(role: &str, run: &str, dir: Option<&Path>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, role).env(RUN, run);
    if let Some(dir) = dir {
        command.env(DIR, dir);
    }
    command
}

pub(crate) struct Driven {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    backlog: VecDeque<String>,
    pub(crate) main: i32,
    pub(crate) text: String,
    pub(crate) run: String,
    pub(crate) up: Vec<(String, Seen)>,
}

impl Driven {
    pub(crate) fn job(dir: Option<&Path>, argv: &[&str]) -> Self {
        let run = new_run();
        let mut command = supervisor("driven", &run, dir);
        command.args(argv);
        Self::from(command, run)
    }

    pub(crate) fn shell(dir: Option<&Path>, script: &str) -> Self {
        Self::job(dir, &["sh", "-c", script])
    }

    pub(crate) fn from(mut command: Command, run: String) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let (send, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut driven = Self {
            stdin: child.stdin.take(),
            child,
            lines,
            backlog: VecDeque::new(),
            main: 0,
            text: String::new(),
            run,
            up: Vec::new(),
        };
        let started = driven.expect("started ");
        let (pid, text) = started["started ".len()..].split_once(' ').unwrap();
        driven.main = pid.parse().unwrap();
        driven.text = text.to_owned();
        driven
    }

    /// Waits for a line that begins so; others are kept for later.
    pub(crate) fn expect(&mut self, prefix: &str) -> String {
        if let Some(at) = self.backlog.iter().position(|l| l.starts_with(prefix)) {
            return self.backlog.remove(at).unwrap();
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|e| panic!("no {prefix:?}: {e}; {:?}", self.backlog));
            if line.starts_with(prefix) {
                return line;
            }
            self.backlog.push_back(line);
        }
    }

    /// Waits until the job's process of that name has printed `up NAME PID`.
    pub(crate) fn up(&mut self, name: &str) -> Seen {
        let line = self.expect(&format!("up {name} "));
        let pid = line.rsplit(' ').next().unwrap().parse().unwrap();
        let seen = Seen::now(pid).unwrap_or_else(|| panic!("{line} is gone"));
        self.up.push((name.to_owned(), seen));
        seen
    }

    pub(crate) fn send(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Sends a command and returns the numbers of its answer.
    pub(crate) fn ask(&mut self, command: &str) -> Vec<String> {
        self.send(command);
        let answer = self.expect("done ");
        answer.split(' ').skip(2).map(str::to_owned).collect()
    }

    pub(crate) fn survivors(&mut self) -> Vec<String> {
        self.send("survivors");
        self.expect("done survivors");
        let (found, rest) = std::mem::take(&mut self.backlog)
            .into_iter()
            .partition::<Vec<_>, _>(|l| l.starts_with("survivor "));
        self.backlog = rest.into();
        found
    }

    /// Kills the tree and returns the microseconds until it was empty.
    pub(crate) fn kill_all(&mut self) -> u128 {
        let begun: u128 = self.ask("kill")[0].parse().unwrap();
        let empty = self.expect("tree empty ");
        for (name, seen) in &self.up {
            assert!(!seen.alive(), "{name} {} lives in an empty tree", seen.pid);
        }
        empty["tree empty ".len()..].parse::<u128>().unwrap() - begun
    }

    /// KILLs the supervisor alone, as the out-of-memory killer would.
    pub(crate) fn murder(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // Closing its standard input makes a living supervisor kill its tree and exit.
        drop(self.stdin.take());
        let _ = self.child.wait();
        for (_, seen) in &self.up {
            seen.kill();
        }
    }
}

/// A directory of its own for one test, removed at the end.
pub(crate) struct Dir(pub(crate) std::path::PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-{}", new_run()));
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
