//! What the tests share: a place, bearers, and processes run under strace.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::backends::file::tree::{self, TreeTarget};
use leasehold::backends::file::{FileTarget, digest};
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::targets::{Content, Target, TargetError, Written};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use crate::role::{OVER, READY, ROLE};

/// What is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Tree,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> Self {
        if path.ends_with("site") { Self::Tree } else { Self::File }
    }

    pub(crate) fn open(self, path: &Path) -> Box<dyn Target> {
        match self {
            Self::File => Box::new(FileTarget::open(path).unwrap()),
            Self::Tree => Box::new(TreeTarget::open_with(path, Duration::ZERO).unwrap()),
        }
    }

    /// The same for somebody without patience.
    pub(crate) fn hasty(self, path: &Path) -> Box<dyn Target> {
        let soon = Duration::from_millis(30);
        match self {
            Self::File => Box::new(FileTarget::open(path).unwrap().with_patience(soon)),
            Self::Tree => Box::new(TreeTarget::open(path).unwrap().with_patience(soon)),
        }
    }

    /// Hands this text on as such a thing; a tree's lies in `drafts`.
    pub(crate) fn with<T>(self, text: &str, drafts: &Path, then: impl FnOnce(Content<'_>) -> T) -> T {
        match self {
            Self::File => then(Content::Bytes(text.as_bytes())),
            Self::Tree => {
                let draft = drafts.join(format!("draft-{:x}", Sha256::digest(text.as_bytes())));
                fs::create_dir_all(draft.join("deep")).unwrap();
                fs::write(draft.join("page"), text).unwrap();
                fs::write(draft.join("deep/page"), text).unwrap();
                then(Content::Directory(&draft))
            }
        }
    }
}

/// A directory of its own, gone when the test is.
pub(crate) struct Place {
    path: PathBuf,
    kind: Kind,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::of(Kind::File)
    }

    pub(crate) fn of(kind: Kind) -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")), kind)
    }

    /// In memory where that is to be had: for tests that ask the rule and not the disk.
    pub(crate) fn quick() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory, Kind::File) } else { Self::new() }
    }

    fn below(base: &Path, kind: Kind) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("leasehold-file-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self { path, kind }
    }

    /// The same files somewhere else.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::below(self.path.parent().unwrap(), self.kind);
        let status = Command::new("cp").arg("-a").arg(self.path.join(".")).arg(&copy.path).status();
        assert!(status.unwrap().success());
        copy
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::File => "today.json",
            Kind::Tree => "site",
        }
    }

    /// One of our own files beside the artefact.
    pub(crate) fn beside(&self, what: &str) -> PathBuf {
        self.path.join(format!(".{}.leasehold-{what}", self.name()))
    }

    pub(crate) fn artefact(&self) -> PathBuf {
        self.path.join(self.name())
    }

    pub(crate) fn fence(&self) -> PathBuf {
        self.beside("fence")
    }

    pub(crate) fn target(&self) -> Box<dyn Target> {
        self.kind.open(&self.artefact())
    }

    pub(crate) fn file(&self) -> FileTarget {
        FileTarget::open(self.artefact()).unwrap()
    }

    pub(crate) fn write(&self, token: u64, seq: Option<u64>, text: &str) -> Result<Written, TargetError> {
        let drafts = Place::of(self.kind);
        self.kind.with(text, &drafts.path, |content| self.target().write(&bearer(token), seq, content))
    }

    /// The digest that a fence has for this text.
    pub(crate) fn digest(&self, text: &str) -> String {
        let drafts = Place::of(self.kind);
        self.kind.with(text, &drafts.path, |content| match content {
            Content::Directory(draft) => tree::digest(draft).unwrap(),
            _ => digest(text.as_bytes()),
        })
    }

    /// What is there as a whole; fails if it is torn.
    pub(crate) fn found(&self) -> Option<String> {
        match self.kind {
            Kind::File => fs::read_to_string(self.artefact()).ok(),
            Kind::Tree => {
                let page = fs::read_to_string(self.artefact().join("page")).ok();
                assert_eq!(fs::read_to_string(self.artefact().join("deep/page")).ok(), page, "torn");
                page
            }
        }
    }

    pub(crate) fn content(&self) -> String {
        self.found().unwrap()
    }

    pub(crate) fn stored(&self) -> FenceRecord {
        self.target().show().unwrap().unwrap()
    }

    /// The number in a fence of the naive kind.
    pub(crate) fn naive_fence(&self) -> String {
        fs::read_to_string(self.path.join("today.fence")).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries =
            fs::read_dir(&self.path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    /// Removes those of our own files whose names begin with one of these.
    pub(crate) fn clean(&self, what: &[&str]) {
        for name in self.names() {
            if what.iter().any(|what| name.starts_with(&format!(".{}.leasehold-{what}", self.name()))) {
                let path = self.path.join(name);
                let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
                removed.unwrap();
            }
        }
    }

    /// Nothing but the artefact, its fence and its lock.
    pub(crate) fn assert_tidy(&self) {
        // Of a tree also the current version and, for readers, those before it.
        let versions = format!(".{}.leasehold-v-", self.name());
        let names: Vec<String> = self.names().into_iter().filter(|n| !n.starts_with(&versions)).collect();
        let own = |what| format!(".{}.leasehold-{what}", self.name());
        assert_eq!(names, [own("fence"), own("lock"), self.name().to_owned()]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        // What a process in a role that was killed has left.
        let _ = fs::remove_dir_all(self.path.with_extension("draft"));
    }
}

/// The run with this token; every token has one grant.
pub(crate) fn bearer(token: u64) -> Bearer {
    Bearer {
        lease: Name::new("site").unwrap(),
        epoch: Epoch { generation: 1, id: 7 },
        token: Token::new(token).unwrap(),
        grant: Grant(1000 + u128::from(token)),
    }
}

/// Raises the fence to `token` and writes with it.
pub(crate) fn publish(place: &Place, token: u64, content: &str) {
    place.target().seal(&bearer(token), FenceMode::Enforce).unwrap();
    place.write(token, None, content).unwrap();
}

/// This binary in a role.
pub(crate) fn actor(role: &str, place: &Place, token: u64, content: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    in_role(&mut command, role, place, token, content);
    command
}

pub(crate) fn in_role(command: &mut Command, role: &str, place: &Place, token: u64, content: &str) {
    command.env(ROLE, role).arg(place.artefact()).arg(token.to_string()).arg(content);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// A system call of an attempt: its name, and which call of that name it is in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) nth: usize,
}

/// Calls that change something others can see, or that decide.
pub(crate) const TELLING: [&str; 14] = [
    "openat",
    "flock",
    "write",
    "fsync",
    "renameat",
    "unlinkat",
    "fchmod",
    "rename",
    "read",
    "mkdir",
    "mkdirat",
    "symlink",
    "renameat2",
    "copy_file_range",
];

/// What an attempt is made of.
#[derive(Clone)]
pub(crate) struct Attempt<'a> {
    pub(crate) role: &'a str,
    pub(crate) token: u64,
    pub(crate) content: &'a str,
}

impl Attempt<'_> {
    fn strace(&self, place: &Place, log: &Path, inject: Option<String>) -> Command {
        let mut command = Command::new("strace");
        command.arg("-o").arg(log);
        if let Some(inject) = inject {
            command.arg("-e").arg(format!("inject={inject}"));
        }
        command.arg("--").arg(std::env::current_exe().unwrap());
        in_role(&mut command, self.role, place, self.token, self.content);
        command
    }

    /// Every system call of the attempt, from one that is left alone. `all`: also those that only
    /// look or tidy up; with LEASEHOLD_LONG always.
    pub(crate) fn points(&self, start: &Place, all: bool) -> Vec<Point> {
        let all = all || std::env::var_os("LEASEHOLD_LONG").is_some();
        let (place, logs) = (start.copy(), Place::new());
        let log = logs.dir().join("log");
        let status = self.strace(&place, &log, None).output().unwrap();
        assert!(status.status.success(), "{status:?}");
        let (mut count, mut inside, mut points) = (HashMap::new(), false, Vec::new());
        for line in fs::read_to_string(&log).unwrap().lines() {
            let Some((name, rest)) = line.split_once('(') else { continue };
            let nth = count.entry(name.to_owned()).and_modify(|n| *n += 1).or_insert(1);
            if name == "write" && rest.starts_with(&format!("1, \"{OVER}")) {
                inside = false;
            }
            let memory = matches!(name, "brk" | "mmap" | "munmap" | "mremap" | "madvise");
            if inside && !memory && (all || TELLING.contains(&name)) {
                points.push(Point { name: name.into(), nth: *nth });
            }
            if name == "write" && rest.starts_with(&format!("1, \"{READY}")) {
                inside = true;
            }
        }
        assert!(points.len() >= 5, "{points:?}");
        points
    }

    /// Makes the attempt and kills it on its way into that call.
    pub(crate) fn killed_at(&self, place: &Place, point: &Point) {
        let logs = Place::new();
        let inject = format!("{}:signal=KILL:when={}", point.name, point.nth);
        let output = self.strace(place, &logs.dir().join("log"), Some(inject)).output().unwrap();
        // strace ends itself as its tracee ended.
        assert_eq!(output.status.signal(), Some(9), "{point:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(READY), "{point:?}: too early");
    }

    /// Makes the attempt and lets that call fail: exit code, and what was said.
    pub(crate) fn failing_at(&self, place: &Place, point: &Point, errno: &str) -> (i32, String) {
        let logs = Place::new();
        let inject = format!("{}:error={errno}:when={}", point.name, point.nth);
        let output = self.strace(place, &logs.dir().join("log"), Some(inject)).output().unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{point:?}: {output:?}"));
        (code, String::from_utf8(output.stderr).unwrap())
    }

    /// The same: exit code, and all its system calls, with the paths of descriptors.
    pub(crate) fn log_failing_at(&self, place: &Place, point: &Point, errno: &str) -> (i32, String) {
        let logs = Place::new();
        let log = logs.dir().join("log");
        let inject = format!("{}:error={errno}:when={}", point.name, point.nth);
        let mut strace = Command::new("strace");
        strace.arg("-y").arg("-o").arg(&log).arg("-e").arg(format!("inject={inject}")).arg("--");
        strace.arg(std::env::current_exe().unwrap());
        in_role(&mut strace, self.role, place, self.token, self.content);
        let output = strace.output().unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{point:?}: {output:?}"));
        (code, fs::read_to_string(log).unwrap())
    }

    /// Makes the attempt and freezes it in that call; returns when it is frozen.
    pub(crate) fn frozen_at(&self, place: &Place, point: &Point) -> Frozen {
        let inject = format!("{}:signal=STOP:when={}", point.name, point.nth);
        let log = Path::new("/dev/stderr");
        let mut child = self.strace(place, log, Some(inject)).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        let pid = ready.strip_prefix(READY).and_then(|p| p.trim().parse().ok());
        let pid = pid.unwrap_or_else(|| panic!("{point:?}: {ready:?}"));
        let mut frozen = Frozen { stderr: BufReader::new(child.stderr.take().unwrap()), child, stdout, pid };
        let mut line = String::new();
        while !line.contains("stopped by SIGSTOP") {
            line.clear();
            assert_ne!(frozen.stderr.read_line(&mut line).unwrap(), 0, "{point:?}: never stopped");
        }
        frozen
    }
}

/// A process that stands still, and the strace that watches it.
pub(crate) struct Frozen {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    pub(crate) pid: i32,
}

impl Frozen {
    /// Wakes it and waits for its end: exit code, and all that was said on stderr since.
    pub(crate) fn thaw(mut self) -> (i32, String) {
        kill_process(Pid::from_raw(self.pid).unwrap(), Signal::CONT).unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.stderr, &mut said).unwrap();
        let code = self.child.wait().unwrap().code();
        (code.unwrap_or_else(|| panic!("no exit code; {said}")), said)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Gone already, unless the test failed; a number that was not waited for is not used again.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL);
            let _ = std::io::copy(&mut self.stdout, &mut std::io::sink());
            let _ = self.child.wait();
        }
    }
}
