//! A world of its own for one test: a private home, no settings of whoever runs the tests, and
//! whatever was started in it is gone when it ends.
#![allow(dead_code)] // each test file uses its own part of it

pub use leasehold_testkit::messages;
pub mod places;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::poll::{self, Timer};
use rustix::process::{Pid, Signal};

/// How long anything may take before a test fails: long, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn binary() -> PathBuf {
    std::env::var_os("LEASEHOLD_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_leasehold").into()).into()
}

pub fn long() -> bool {
    std::env::var_os("LEASEHOLD_LONG").is_some()
}

/// Asks again and again until there is an answer.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = boot_time().plus(PATIENCE);
    // Most questions start a process: what goes on for long is not asked as often as at first.
    let mut time = Duration::from_millis(5);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(boot_time() < end, "in vain: {what}");
        pause(time);
        time = (time * 5 / 4).min(Duration::from_millis(50));
    }
}

/// Between two questions.
pub fn pause(time: Duration) {
    let timer = Timer::new().unwrap();
    timer.arm(boot_time().plus(time)).unwrap();
    poll::wait(&[timer.as_fd()]).unwrap();
}

pub struct World {
    dir: PathBuf,
    /// What every command finds in its environment, beside a home and a path.
    pub variables: Vec<(String, String)>,
}

/// What a command came to.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self::new(output.status, &output.stdout, &output.stderr)
    }
}

/// As a shell would say it.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl Ended {
    fn new(status: ExitStatus, out: &[u8], err: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ended = Self { code: code(status), out: text(out), err: text(err) };
        messages::note_seen(&ended.err);
        messages::note_seen(&ended.out);
        ended
    }

    /// What it said names these: tokens, files, numbers. Not for words of a sentence.
    #[track_caller]
    pub fn names(self, facts: &[impl AsRef<str>]) -> Self {
        let sentence = facts.iter().map(AsRef::as_ref).find(|fact| fact.split_whitespace().count() > 6);
        assert_eq!(sentence, None, "a sentence: assert the name of its message");
        let missing: Vec<_> =
            facts.iter().map(AsRef::as_ref).filter(|fact| !self.err.contains(*fact)).collect();
        assert!(missing.is_empty(), "should name {missing:?}: {self:#?}");
        self
    }

    /// Exit code, and which message of `docs/messages.md` was said on stderr, perhaps within a line; or a fact in it.
    #[track_caller]
    pub fn is(self, code: i32, message: &str) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        if messages::is_name(message) {
            let said = messages::named(self.err.lines());
            assert!(messages::hears(&self.err, message), "should say {message}, said {said:?}: {self:#?}");
            return self;
        }
        self.names(&[message])
    }

    /// It did not say this message of `docs/messages.md`, not even within a line, or this fact.
    #[track_caller]
    pub fn lacks(self, what: &str) -> Self {
        if messages::is_name(what) {
            assert!(!messages::hears(&self.err, what), "should not say {what}: {self:#?}");
            return self;
        }
        assert!(!messages::is_meant_as_name(what), "no message has the name {what}");
        assert!(what.split_whitespace().count() <= 6, "a sentence: name its message");
        assert!(!self.err.contains(what), "should not say {what:?}: {self:#?}");
        self
    }

    /// It went well, and said nothing of its own.
    #[track_caller]
    pub fn quiet(self) -> Self {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:#?}");
        self
    }

    /// The one line of JSON on stdout.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.out.lines().count(), 1, "{self:#?}");
        let value: serde_json::Value = serde_json::from_str(&self.out).unwrap();
        assert_eq!(value["v"], 1, "{self:#?}");
        value
    }

    /// The first object: of `history`, the newest; of `why`, the item.
    #[track_caller]
    pub fn first(&self) -> serde_json::Value {
        let line = self.out.lines().next().unwrap_or_else(|| panic!("nothing: {self:#?}"));
        serde_json::from_str(line).unwrap()
    }

    /// Every object.
    #[track_caller]
    pub fn objects(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    pub fn token(&self) -> u64 {
        assert_eq!(self.code, 0, "{self:#?}");
        self.out.trim().parse().unwrap_or_else(|_| panic!("no token: {self:#?}"))
    }
}

impl World {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-cli-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        // Whoever asks for the real path gets this one.
        Self { dir: dir.canonicalize().unwrap(), variables: Vec::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// As text, for arguments.
    pub fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn state(&self) -> PathBuf {
        self.path(".local/state/leasehold")
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn script(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.write(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Any program, in this world.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", &self.dir).env("PATH", std::env::var_os("PATH").unwrap());
        command.env("TZ", "UTC").envs(self.variables.iter().map(|(k, v)| (k, v)));
        command.current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// The binary under test with these arguments.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(binary());
        command.args(args);
        command
    }

    /// A program that hears every signal, although the tests may run where some are ignored: `nohup`,
    /// or in the background of a script.
    pub fn hearing(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.program("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM,USR1,USR2").arg(program);
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        self.command(args).output().unwrap().into()
    }

    /// A shell line, in which `leasehold` is the binary under test.
    pub fn sh(&self, line: &str) -> Ended {
        let line = format!("leasehold() {{ \"$LEASEHOLD_BIN\" \"$@\"; }}; {line}");
        self.program("bash").args(["-c", &line]).env("LEASEHOLD_BIN", binary()).output().unwrap().into()
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::new(self.command(args))
    }

    /// A store of this kind, made: a run makes none where a mistyped path could become a second one.
    pub fn store(&self, scheme: &str) -> String {
        let url = format!("{scheme}:{}", self.at("store"));
        if scheme == "dir" {
            leasehold::stores::open(&url).unwrap_or_else(|e| panic!("{e}"));
        }
        url
    }

    /// The lease's row of `status --json`.
    pub fn status(&self, store: &[&str], lease: &str) -> serde_json::Value {
        let mut args = store.to_vec();
        args.extend(["--json", "status", lease]);
        self.run(&args).json()
    }

    /// Everything below `name`: kind, owner, mode and content. SQLite's shared memory is left out, for
    /// readers change it too.
    pub fn snapshot(&self, name: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        walk(&self.path(name), &mut found);
        found
    }

    /// What `act` gives; it must leave everything as it was.
    #[track_caller]
    pub fn unchanged(&self, act: impl FnOnce() -> Ended) -> Ended {
        let before = self.snapshot("");
        let ended = act();
        let after = self.snapshot("");
        let changed: Vec<_> =
            before.keys().chain(after.keys()).filter(|path| before.get(*path) != after.get(*path)).collect();
        assert!(changed.is_empty(), "changed: {changed:?}: {ended:#?}");
        ended
    }
}

fn walk(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return };
    if path.to_string_lossy().ends_with("-shm") {
        return;
    }
    let content = if meta.is_symlink() {
        format!("{:?}", std::fs::read_link(path).unwrap())
    } else if meta.is_file() {
        let bytes = std::fs::read(path).unwrap();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        format!("{} bytes, {:x}", bytes.len(), hasher.finish())
    } else {
        String::new()
    };
    found.insert(path.into(), format!("{:o} {} {content}", meta.mode(), meta.uid()));
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            walk(&entry.unwrap().path(), found);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A command that runs beside the test and ends with it.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Running {
    pub fn new(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin, out: Vec::new(), err: Vec::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub fn type_in(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until its output contains a whole line; gives that line.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.line_or_end().unwrap_or_else(|| panic!("it ended: {}", String::from_utf8_lossy(&self.out)))
    }

    /// A whole line of its output, or nothing if it has closed it.
    #[track_caller]
    pub fn line_or_end(&mut self) -> Option<String> {
        let timer = Timer::new().unwrap();
        timer.arm(boot_time().plus(PATIENCE)).unwrap();
        loop {
            if let Some(end) = self.out.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.out.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let stdout = self.child.stdout.as_mut().unwrap();
            let ready = poll::wait(&[stdout.as_fd(), timer.as_fd()]).unwrap();
            assert!(ready.has(0), "no line in time");
            let mut bytes = [0; 4096];
            match stdout.read(&mut bytes).unwrap() {
                0 => return None,
                n => self.out.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Waits until it has said this message of `docs/messages.md`, or this fact, on stderr.
    #[track_caller]
    pub fn said(&mut self, what: &str) {
        let timer = Timer::new().unwrap();
        timer.arm(boot_time().plus(PATIENCE)).unwrap();
        while !messages::says(&String::from_utf8_lossy(&self.err), what) {
            let stderr = self.child.stderr.as_mut().unwrap();
            let ready = poll::wait(&[stderr.as_fd(), timer.as_fd()]).unwrap();
            let mut bytes = [0; 4096];
            let n = if ready.has(0) { stderr.read(&mut bytes).unwrap() } else { 0 };
            assert_ne!(n, 0, "never said {what:?}: {}", String::from_utf8_lossy(&self.err));
            self.err.extend_from_slice(&bytes[..n]);
        }
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Ended {
        self.stdin = None;
        let (mut out, mut err) = (self.child.stdout.take().unwrap(), self.child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            text
        });
        let status = until("the end of a command", || self.child.try_wait().unwrap());
        let _ = out.read_to_end(&mut self.out);
        self.err.extend(reader.join().unwrap());
        Ended::new(status, &self.out, &self.err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Whether the process is there and is no zombie.
pub fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// What it is doing: `R` it runs, `S` it waits, `T` it is stopped.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}
