//! Runs git with the user's own settings, without our URL rewriting, and with a time limit.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::time::BootTime;

use super::run_dir::{PREFIX, RunDir, VARIABLE};
use super::{FALLBACK_REF, FENCE_REF, repo_url};
use crate::targets::Variables;
use crate::text::one_line;
use crate::{clock, random};

/// How long sealing or listing may take. They move a few kilobytes, so after this time something hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The variables that bind a git process to one repository.
pub(super) const LOCAL: [&str; 11] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// The result of a git process.
#[derive(Debug)]
pub(super) struct GitOutput {
    pub(super) ok: bool,
    pub(super) out: Vec<u8>,
    /// Without the secrets of the URL.
    pub(super) err: String,
    /// It was killed because it took too long.
    pub(super) late: bool,
}

impl GitOutput {
    /// Its error messages, on one line.
    pub(super) fn complaint(&self) -> String {
        if self.late {
            return "git did not end in time (the server, or one of its hooks, hangs)".into();
        }
        let is_error =
            |line: &&str| !line.is_empty() && !line.starts_with("hint:") && !line.starts_with("To ");
        let lines: Vec<&str> = self.err.lines().map(str::trim).filter(is_error).collect();
        let text = lines.join("; ");
        if text.is_empty() { "git failed without a message".into() } else { text }
    }
}

/// The name of the remote for the repository, whose URL is set in git's environment. A URL may hold a secret, and
/// every user of this machine can read command lines.
pub(super) const THERE: &str = "leasehold-there";

/// A git command with the repository at `url` as the remote [`THERE`].
pub(super) fn knowing(url: &str) -> Command {
    let mut command = without_detour("git");
    let number = settings(&|name| std::env::var_os(name));
    command.env("GIT_CONFIG_COUNT", (number + 1).to_string());
    command.env(format!("GIT_CONFIG_KEY_{number}"), format!("remote.{THERE}.url"));
    command.env(format!("GIT_CONFIG_VALUE_{number}"), url);
    command
}

/// Git for one repository.
#[derive(Clone, Debug)]
pub(super) struct Git {
    pub(super) run_dir: Arc<RunDir>,
    pub(super) url: String,
    /// The settings of the clone around us, which often have credentials and headers.
    config: Option<PathBuf>,
    /// The end of the time for several commands together.
    pub(super) until: Option<BootTime>,
}

impl Git {
    pub(super) fn new(run_dir: Arc<RunDir>, url: &str) -> Self {
        Self { run_dir, url: url.into(), config: clone_config(), until: None }
    }

    /// A git command in our own repository.
    pub(super) fn apart(&self) -> Command {
        let mut command = knowing(&self.url);
        for name in LOCAL {
            command.env_remove(name);
        }
        command.arg(flag("--git-dir=", &self.run_dir.fences())).args(["-c", "core.hooksPath=/dev/null"]);
        if let Some(config) = &self.config {
            command.arg("-c").arg(flag("include.path=", config));
        }
        command
    }

    /// A git command in the user's repository that also finds our fences.
    pub(super) fn inside(&self) -> Command {
        let mut command = knowing(&self.url);
        let mut objects = self.run_dir.fences().join("objects").into_os_string();
        if let Some(more) = std::env::var_os("GIT_ALTERNATE_OBJECT_DIRECTORIES") {
            objects.push(":");
            objects.push(more);
        }
        command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", objects);
        command
    }

    /// An option for a push to a repository on this machine. The receiving git is our child, and housekeeping in its
    /// background would be killed with the job. Git clears our settings in its environment, so they are set here.
    pub(super) fn other_end(&self) -> Option<&'static str> {
        repo_url::local(&self.url)
            .map(|_| "--receive-pack=git -c gc.autoDetach=false -c maintenance.autoDetach=false receive-pack")
    }

    /// Runs a command until it ends or its time is over.
    pub(super) fn run(&self, mut command: Command, input: &[u8]) -> io::Result<GitOutput> {
        let now = clock::boot_time();
        let end = self.until.unwrap_or(now.plus(PATIENCE));
        // The time is over: another command would hang in the server too.
        if end <= now {
            return Ok(GitOutput { ok: false, out: Vec::new(), err: String::new(), late: true });
        }
        // Files instead of pipes: a daemon that git leaves behind may never close a pipe.
        let number = random::seed();
        let file = |what: &str| self.run_dir.path().join(format!("{what}-{number:032x}"));
        let (out, err) = (file("out"), file("err"));
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let ended = command.spawn().and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input)?;
            }
            end_of(&mut child, end)
        });
        let read = |path: &Path| {
            let bytes = std::fs::read(path).unwrap_or_default();
            let _ = std::fs::remove_file(path);
            bytes
        };
        let (out, err) = (read(&out), read(&err));
        let (ok, late) = ended?;
        Ok(GitOutput { ok, out, err: self.hidden(&err), late })
    }

    /// Runs the user's own push or fetch without a time limit, and shows git's messages.
    pub(super) fn run_shown(&self, mut command: Command) -> io::Result<GitOutput> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let shower = self.clone();
        let shown = std::thread::spawn(move || stderr.map_or_else(String::new, |stderr| shower.show(stderr)));
        let mut out = Vec::new();
        if let Some(mut stdout) = stdout {
            stdout.read_to_end(&mut out)?;
        }
        let ok = child.wait()?.success();
        Ok(GitOutput { ok, out, err: shown.join().unwrap_or_default(), late: false })
    }

    /// Shows lines as they come, also those that a progress bar overwrites.
    fn show(&self, mut from: impl Read) -> String {
        let (mut all, mut line, mut block) = (String::new(), Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = from.read(&mut block) {
            for byte in &block[..n] {
                line.push(*byte);
                if matches!(byte, b'\n' | b'\r') {
                    let text = self.hidden(&line);
                    // Errors are shown later, when the outcome is known.
                    let complaint = ["error:", "fatal:", "hint:", "send-pack:"];
                    let raced = text.contains("cannot lock ref")
                        && [FENCE_REF, FALLBACK_REF].iter().any(|fence| text.contains(fence));
                    if !raced && !complaint.iter().any(|word| text.starts_with(word)) {
                        let end = char::from(*byte);
                        let shown = one_line(text.strip_suffix(end).unwrap_or(&text));
                        let _ = io::stderr().write_all(format!("{shown}{end}").as_bytes());
                    }
                    all.push_str(&text);
                    line.clear();
                }
            }
        }
        all.push_str(&self.hidden(&line));
        all
    }

    pub(super) fn hidden(&self, bytes: &[u8]) -> String {
        repo_url::hidden(&String::from_utf8_lossy(bytes), &self.url)
    }
}

pub(super) fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

/// The user's own GIT_ALLOW_PROTOCOL, because `leasehold push` allows only our protocols: `=` and its value, or
/// empty if it was not set.
pub(super) const ALLOWED: &str = "LEASEHOLD_GIT_ALLOWED";

/// A command without the URL rewriting of the run around us, which would call us again.
pub(super) fn without_detour(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").env_remove("LANGUAGE").env_remove("GIT_EXTERNAL_DIFF");
    for number in detours(&|name| std::env::var_os(name)) {
        command.env(format!("GIT_CONFIG_KEY_{number}"), "leasehold.passed");
    }
    if let Some(allowed) = std::env::var_os(ALLOWED) {
        match allowed.as_bytes().strip_prefix(b"=") {
            Some(allowed) => command.env("GIT_ALLOW_PROTOCOL", OsStr::from_bytes(allowed)),
            None => command.env_remove("GIT_ALLOW_PROTOCOL"),
        };
    }
    command
}

/// The numbers of the settings with which the runs around us rewrite URLs.
pub(super) fn detours(has: Variables<'_>) -> impl Iterator<Item = usize> {
    let ours = has(VARIABLE).map(|run_dir| Path::new(&run_dir).join("config"));
    (0..settings(has)).filter(move |number| {
        let key = has(&format!("GIT_CONFIG_KEY_{number}")).unwrap_or_default();
        let value = has(&format!("GIT_CONFIG_VALUE_{number}")).unwrap_or_default();
        let base = key.as_bytes().strip_prefix(b"url.");
        base.is_some_and(|base| {
            base.starts_with(PREFIX.as_bytes()) || base.starts_with(repo_url::SECRET_PREFIX.as_bytes())
        }) || ours.as_ref().is_some_and(|ours| *ours == Path::new(&value))
    })
}

/// The number of git settings in an environment.
pub(super) fn settings(has: Variables<'_>) -> usize {
    let count = has("GIT_CONFIG_COUNT").and_then(|count| count.into_string().ok());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The settings file of the clone around us.
fn clone_config() -> Option<PathBuf> {
    let dir = match std::env::var_os("GIT_COMMON_DIR").or_else(|| std::env::var_os("GIT_DIR")) {
        Some(dir) if Path::new(&dir).join("config").is_file() => PathBuf::from(dir),
        _ => {
            let said = without_detour("git").args(["rev-parse", "--git-common-dir"]).output().ok()?;
            if !said.status.success() {
                return None;
            }
            PathBuf::from(String::from_utf8(said.stdout).ok()?.trim_end_matches('\n'))
        }
    };
    std::path::absolute(dir.join("config")).ok().filter(|path| path.is_file())
}

/// Whether it succeeded, and whether we had to kill it.
#[cfg(target_os = "linux")]
fn end_of(child: &mut Child, end: BootTime) -> io::Result<(bool, bool)> {
    use rustix::event::{PollFd, PollFlags, Timespec};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = end.since(clock::boot_time());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => {
                child.kill()?;
                child.wait()?;
                return Ok((false, true));
            }
            Ok(_) => return Ok((child.wait()?.success(), false)),
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn end_of(child: &mut Child, _end: BootTime) -> io::Result<(bool, bool)> {
    Ok((child.wait()?.success(), false))
}

/// Git's version, if it can be read.
pub(super) fn version() -> io::Result<Option<(u32, u32)>> {
    let said = without_detour("git").arg("--version").output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut numbers = text.split([' ', '.']).filter_map(|word| word.trim().parse().ok());
    Ok(numbers.next().zip(numbers.next()))
}
