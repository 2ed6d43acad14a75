//! What the bars share: a home of its own for each round, processes watched by handle, the record
//! as the store has it.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::lease_key;
use leasehold::core::time::BootTime;
use leasehold::poll::{Timer, wait};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Long enough for a loaded machine; only a failure ever waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The lease all rounds use; each has a store of its own.
pub(crate) const LEASE: &str = "thing";

/// More rounds than a commit should wait for, when asked.
pub(crate) fn rounds(usual: usize, long: usize) -> usize {
    if std::env::var_os("LEASEHOLD_LONG").is_some() { long } else { usual }
}

/// One bar at a time: they measure, and would measure each other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn binary() -> PathBuf {
    std::env::var_os("LEASEHOLD_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_leasehold")), PathBuf::from)
}

/// The interpreter itself: `python3` may be a script in front of it.
pub(crate) fn python() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let said = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        String::from_utf8(said.expect("python3 runs").stdout).unwrap().trim().to_owned()
    })
}

/// Rests until that instant.
pub(crate) fn until(at: BootTime) {
    let timer = Timer::new().unwrap();
    timer.arm(at).unwrap();
    wait(&[std::os::fd::AsFd::as_fd(&timer)]).unwrap();
}

/// A directory that serves as a user's home, gone when the round is.
pub(crate) struct Home(pub(crate) PathBuf);

impl Home {
    pub(crate) fn new() -> Self {
        Self::under(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub(crate) fn under(base: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("leasehold-bars-{}-{number}", std::process::id()));
        // Left by an earlier process that was killed and had the same number.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("state/leasehold/leases.db")
    }

    /// `program`, started as from a crontab: next to nothing in its environment.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", &self.0).current_dir(&self.0);
        command.env("XDG_STATE_HOME", self.0.join("state")).stdin(Stdio::null());
        command
    }

    pub(crate) fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = self.command(binary());
        command.args(args);
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process seen alive, by a handle that no other process can get into.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) pid: i32,
    handle: OwnedFd,
}

impl Seen {
    pub(crate) fn now(name: &str, pid: i32) -> Self {
        let handle = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty());
        Self { name: name.into(), pid, handle: handle.unwrap_or_else(|e| panic!("{name} {pid}: {e}")) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    pub(crate) fn alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Waits for its end, an event, and says whether it came.
    pub(crate) fn ends_within(&self, patience: Duration) -> bool {
        let until = boot_time().plus(patience);
        loop {
            let left = until.since(boot_time());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(n) => return n == 1,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// A command under way, its lines, and what it said it started (`up NAME PID`).
pub(crate) struct Started {
    child: Child,
    pub(crate) wrapper: Seen,
    lines: Receiver<(String, BootTime)>,
    errors: PathBuf,
    pub(crate) up: Vec<Seen>,
}

impl Started {
    pub(crate) fn new(command: Command, home: &Home) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let errors = home.0.join(format!("stderr-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::create(&errors).unwrap();
        Self::with_stderr(command, file.into(), errors)
    }

    pub(crate) fn with_stderr(mut command: Command, stderr: Stdio, errors: PathBuf) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let (send, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send((line, boot_time())).is_err() {
                    return;
                }
            }
        });
        let wrapper = Seen::now("wrapper", child.id() as i32);
        Self { child, wrapper, lines, errors, up: Vec::new() }
    }

    /// Waits for the next line on stdout, and notes when it came.
    pub(crate) fn line(&self) -> Result<(String, BootTime), String> {
        let line = self.lines.recv_timeout(PATIENCE);
        line.map_err(|e| format!("nothing came up: {e}; it said: {}", self.said()))
    }

    /// Waits for the next process of the job to name itself.
    pub(crate) fn one_up(&mut self) -> Result<(), String> {
        let (line, _) = self.line()?;
        let mut words = line.split(' ');
        let (Some("up"), Some(name), Some(pid)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("not understood: {line}"));
        };
        self.up.push(Seen::now(name, pid.parse().unwrap()));
        Ok(())
    }

    /// What it said on stderr so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Waits for its end; the exit code.
    pub(crate) fn end(&mut self) -> Result<ExitStatus, String> {
        if !self.wrapper.ends_within(PATIENCE) {
            return Err(format!("it does not end; it said: {}", self.said()));
        }
        self.child.wait().map_err(|e| e.to_string())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for seen in std::iter::once(&self.wrapper).chain(&self.up) {
            seen.signal(Signal::CONT);
            seen.signal(Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Notes when each process ended; all of them, or as many as end within the patience.
pub(crate) fn deaths(seen: &[Seen]) -> Vec<Option<BootTime>> {
    let until = boot_time().plus(PATIENCE);
    let mut ended = vec![None; seen.len()];
    while ended.iter().any(Option::is_none) && boot_time() < until {
        let open: Vec<usize> = (0..seen.len()).filter(|i| ended[*i].is_none()).collect();
        let mut fds: Vec<PollFd<'_>> =
            open.iter().map(|i| PollFd::new(&seen[*i].handle, PollFlags::IN)).collect();
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut fds, Some(&second));
        let now = boot_time();
        for (fd, i) in fds.iter().zip(&open) {
            if !fd.revents().is_empty() {
                ended[*i] = Some(now);
            }
        }
    }
    ended
}

/// Whoever carries this run id in its environment and lives, found without our own code.
pub(crate) fn carriers(run_id: &str) -> Vec<String> {
    let wanted = format!("LEASEHOLD_RUN_ID={run_id}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        if read("environ").split(|b| *b == 0).any(|variable| variable == wanted.as_bytes()) {
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push(format!("{} {command}", entry.file_name().display()));
        }
    }
    found
}

/// The lease's record, and the instant of the write that stored it, not later than it was.
pub(crate) fn record(url: &str) -> (LeaseRecord, BootTime) {
    let lease = Name::new(LEASE).unwrap();
    let mut store = leasehold::stores::open(url).unwrap();
    let before = boot_time();
    let stored = pollster::block_on(store.read(&lease_key(&lease))).unwrap().expect("a record");
    let written = before.minus(stored.age.expect("an age"));
    (LeaseRecord::decode(&lease, &stored.body).unwrap(), written)
}

pub(crate) fn sqlite_url(home: &Home) -> String {
    format!("sqlite:{}", home.database().display())
}

/// A run id that nobody has used.
pub(crate) fn fresh_run_id() -> String {
    format!("bars-{}", leasehold::host::fresh_run_id(None))
}

/// Notes when this machine keeps a thread waiting that only wants to wake up.
pub(crate) struct Stalls(Arc<Mutex<Vec<(BootTime, Duration)>>>);

impl Stalls {
    /// Watches until dropped.
    pub(crate) fn watch() -> Self {
        let log: Arc<Mutex<Vec<(BootTime, Duration)>>> = Arc::default();
        let seen = Arc::downgrade(&log);
        std::thread::spawn(move || {
            while let Some(log) = seen.upgrade() {
                let due = boot_time().plus(Duration::from_millis(5));
                until(due);
                let late = boot_time().since(due);
                if late > Duration::from_millis(20) {
                    log.lock().unwrap().push((due, late));
                }
            }
        });
        Self(log)
    }

    /// The longest of those that began after `start`.
    pub(crate) fn longest_since(&self, start: BootTime) -> Duration {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(at, _)| *at >= start).map(|(_, late)| *late).max().unwrap_or_default()
    }
}
