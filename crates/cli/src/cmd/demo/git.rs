//! `leasehold demo --git`: a publishing script on two machines, without and with a fence.
//!
//! The script fetches, looks whether this slot is published, commits and pushes; if the push is rejected, it
//! rebases and pushes again. The order of the steps and the clock of the lease are fixed here; the repository,
//! git, the fence and `leasehold push` are real.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use leasehold::backends::git::GitTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::state::StateDir;
use leasehold::targets::Target;
use leasehold::{clock, host, random};
use leasehold_run::runner::signals::Signals;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::columns::{Screen, bad, good, plain, quoted};
use super::fixture::DemoError;
use crate::exit::{self, Failed};
use crate::messages::demo as say;
use crate::out::Out;

const LEASE: &str = "site";

/// What happens to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotCase {
    Alone,
    Overlap,
    Repeated,
    Frozen,
}

const SLOTS: [SlotCase; 8] = [
    SlotCase::Alone,
    SlotCase::Overlap,
    SlotCase::Repeated,
    SlotCase::Frozen,
    SlotCase::Overlap,
    SlotCase::Alone,
    SlotCase::Frozen,
    SlotCase::Repeated,
];

impl SlotCase {
    fn words(self) -> String {
        match self {
            Self::Alone => say::slot_alone(),
            Self::Overlap => say::slot_overlap(),
            Self::Repeated => say::slot_repeated(),
            Self::Frozen => say::slot_frozen(),
        }
    }
}

/// What happened on one side.
#[derive(Debug, Default)]
struct Facts {
    published: Vec<usize>,
    retries: u32,
    refused: u32,
    skipped: u32,
    refusal: String,
}

impl Facts {
    fn twice(&self) -> usize {
        self.published.iter().filter(|times| **times > 1).count()
    }

    fn missing(&self) -> usize {
        self.published.iter().filter(|times| **times == 0).count()
    }

    fn object(&self) -> Value {
        json!({
            "published_twice": self.twice(), "missing": self.missing(), "conflict_retries": self.retries,
            "refused": self.refused, "skipped": self.skipped, "refusal": self.refusal,
        })
    }
}

/// Shows the demo and checks it.
pub fn run(out: &Out) -> Result<u8, Failed> {
    let screen = Screen::new(!out.json && !out.quiet);
    let started = clock::boot_time();
    let (with, without) = both(screen).map_err(|error| match error {
        DemoError::Signal(number) => super::interrupted(number),
        DemoError::System(e) => say::no_git(e),
        DemoError::Different(what) => say::differs(what),
    })?;
    let right = (with.twice(), with.missing(), with.retries) == (0, 0, 0) && with.refused > 0;
    let ok = right && without.twice() > 0 && without.retries > 0;
    if out.json {
        out.object(&json!({"v": 1, "ok": ok, "with": with.object(), "without": without.object()}));
    }
    if !ok {
        return Err(say::differs(say::wrong_git(with.object(), without.object())));
    }
    next_steps(screen, &with, clock::boot_time().since(started));
    Ok(exit::OK)
}

fn both(screen: Screen) -> Result<(Facts, Facts), DemoError> {
    screen.say(&plain(say::git_about()));
    screen.titles();
    let mut sides = [GitSide::new(true)?, GitSide::new(false)?];
    for (slot, case) in SLOTS.into_iter().enumerate() {
        let before = sides.each_ref().map(|side| side.facts.refused);
        for side in &mut sides {
            side.slot(slot, case)?;
        }
        screen.heading(&say::slot(slot + 1, case.words()));
        let [with, without] = &sides;
        let times = |side: &GitSide| side.facts.published[slot];
        let mut left =
            vec![if times(with) == 1 { good(say::published_once()) } else { bad(say::not_published_once()) }];
        if with.facts.refused > before[0] && with.facts.refused == 1 {
            left.extend([plain(say::woken_refused_with()), quoted(with.facts.refusal.clone())]);
        } else if with.facts.refused > before[0] {
            left.push(plain(say::woken_refused()));
        }
        let right =
            if times(without) == 1 { plain(say::published_once()) } else { bad(say::published_twice()) };
        screen.step(&left, &[right]);
    }
    let [with, without] = sides.each_mut().map(|side| std::mem::take(&mut side.facts));
    Ok((with, without))
}

fn next_steps(screen: Screen, with: &Facts, elapsed: Duration) {
    screen.heading(&say::git_next());
    screen.command(&say::git_next_run(), &say::git_next_run_does());
    screen.gap();
    screen.say(&plain(say::git_took(with.skipped, with.refused, HumanDuration(elapsed))));
}

/// One side: a repository and two machines, in a directory that is removed when this is dropped.
struct GitSide {
    dir: PathBuf,
    leasehold: bool,
    signals: Signals,
    token: u64,
    holder: Option<usize>,
    tokens: [Option<u64>; 2],
    facts: Facts,
}

impl Drop for GitSide {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl GitSide {
    fn new(leasehold: bool) -> Result<Self, DemoError> {
        let dir = std::env::temp_dir().join(format!("leasehold-demo-{:016x}", random::seed() as u64));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let signals = Signals::install()?;
        let (tokens, facts) = ([None; 2], Facts::default());
        let mut side = Self { dir, leasehold, signals, token: 0, holder: None, tokens, facts };
        side.git(&side.dir.clone(), &["init", "--quiet", "--bare", "--initial-branch=main", "r.git"])?;
        side.git(&side.dir.clone(), &["clone", "--quiet", "r.git", "0"])?;
        side.git(&side.machine(0), &["commit", "--quiet", "--allow-empty", "-m", "the site"])?;
        side.git(&side.machine(0), &["push", "--quiet", "origin", "HEAD:main"])?;
        side.git(&side.dir.clone(), &["clone", "--quiet", "r.git", "1"])?;
        Ok(side)
    }

    fn machine(&self, number: usize) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn command(&self, program: impl AsRef<Path>, dir: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "demo").env(format!("GIT_{who}_EMAIL"), "demo@localhost");
        }
        command.env("XDG_STATE_HOME", self.dir.join("state"));
        command.env("GIT_TERMINAL_PROMPT", "0").stdin(std::process::Stdio::null());
        command
    }

    /// Runs a command; an interrupt reaches git too, and ends the demo.
    fn output(&mut self, mut command: Command) -> Result<Output, DemoError> {
        let output = command.output()?;
        let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
        match self.signals.pending().forward.iter().find(|signal| ends.contains(signal)) {
            Some(signal) => Err(DemoError::Signal(signal.as_raw())),
            None => Ok(output),
        }
    }

    fn git(&mut self, dir: &Path, args: &[&str]) -> Result<String, DemoError> {
        let mut command = self.command("git", dir);
        command.args(args);
        let output = self.output(command)?;
        if !output.status.success() {
            let printed = String::from_utf8_lossy(&output.stderr);
            return Err(DemoError::Different(say::git_failed(args.join(" "), printed.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn bearer(token: u64) -> Option<Bearer> {
        let (lease, token) = (Name::new(LEASE).ok()?, Token::new(token)?);
        Some(Bearer { lease, epoch: Epoch::first(1), token, grant: Grant(u128::from(token.get())) })
    }

    /// Starts a run, which fences the repository first. Whether it goes on.
    fn start(&mut self, machine: usize, expired: bool) -> Result<bool, DemoError> {
        if !self.leasehold {
            return Ok(true);
        }
        if self.holder.is_some() && !expired {
            self.facts.skipped += 1;
            return Ok(false);
        }
        self.token += 1;
        (self.holder, self.tokens[machine]) = (Some(machine), Some(self.token));
        let different = |e: &dyn std::fmt::Display| DemoError::Different(e.to_string());
        let bearer = Self::bearer(self.token).ok_or_else(|| DemoError::Different(say::no_token()))?;
        let url = self.dir.join("r.git").display().to_string();
        let target = GitTarget::open(&url).map_err(|e| different(&e))?;
        let mut target = target.keeping_in(StateDir::at(self.dir.join("state/leasehold")));
        target.seal(&bearer, FenceMode::Enforce).map_err(|e| different(&e))?;
        Ok(true)
    }

    fn prepare(&mut self, machine: usize, slot: usize) -> Result<bool, DemoError> {
        let (clone, subject) = (self.machine(machine), format!("slot {}", slot + 1));
        self.git(&clone, &["fetch", "--quiet", "origin", "main"])?;
        self.git(&clone, &["checkout", "--quiet", "-B", "main", "FETCH_HEAD"])?;
        if self.git(&clone, &["log", "--format=%s"])?.lines().any(|line| line == subject) {
            return Ok(false);
        }
        let message = format!("{subject}\n\nby machine {machine}");
        self.git(&clone, &["commit", "--quiet", "--allow-empty", "-m", &message])?;
        Ok(true)
    }

    fn push(&mut self, machine: usize) -> Result<(), DemoError> {
        let clone = self.machine(machine);
        for _ in 0..3 {
            let command = match self.tokens[machine].and_then(Self::bearer) {
                Some(bearer) => self.fenced(&clone, &bearer)?,
                None => {
                    let mut command = self.command("git", &clone);
                    command.args(["push", "--quiet", "origin", "main"]);
                    command
                }
            };
            let output = self.output(command)?;
            match output.status.code() {
                Some(0) => return Ok(()),
                Some(code) if code == i32::from(exit::REFUSED) => {
                    self.facts.refused += 1;
                    // The path of the directory would fill the column.
                    let printed = String::from_utf8_lossy(&output.stderr);
                    self.facts.refusal = printed.trim().replace(&format!("{}/", self.dir.display()), "");
                    return Ok(());
                }
                _ => self.facts.retries += 1,
            }
            self.git(&clone, &["fetch", "--quiet", "origin", "main"])?;
            self.git(&clone, &["rebase", "--quiet", "FETCH_HEAD"])?;
        }
        Ok(())
    }

    /// `leasehold push`, with the variables that a job of that run has.
    fn fenced(&self, clone: &Path, bearer: &Bearer) -> Result<Command, DemoError> {
        let mut command = self.command(std::env::current_exe()?, clone);
        command.args(["push", "--quiet", "origin", "main"]).env("LEASEHOLD_LEASE", bearer.lease.as_str());
        command
            .env("LEASEHOLD_TOKEN", bearer.token.to_string())
            .env("LEASEHOLD_GRANT", host::grant_text(bearer));
        Ok(command)
    }

    fn end(&mut self, machine: usize) {
        self.tokens[machine] = None;
        self.holder = self.holder.filter(|holder| *holder != machine);
    }

    fn whole(&mut self, machine: usize, slot: usize, expired: bool) -> Result<(), DemoError> {
        if self.start(machine, expired)? {
            if self.prepare(machine, slot)? {
                self.push(machine)?;
            }
            self.end(machine);
        }
        Ok(())
    }

    fn slot(&mut self, slot: usize, case: SlotCase) -> Result<(), DemoError> {
        let (first, other) = (slot % 2, 1 - slot % 2);
        match case {
            SlotCase::Alone => self.whole(first, slot, false)?,
            SlotCase::Repeated => {
                self.whole(first, slot, false)?;
                self.whole(other, slot, false)?;
            }
            SlotCase::Overlap => {
                let mut ready = Vec::new();
                for machine in [first, other] {
                    ready.extend(
                        (self.start(machine, false)? && self.prepare(machine, slot)?).then_some(machine),
                    );
                }
                for machine in ready {
                    self.push(machine)?;
                    self.end(machine);
                }
            }
            SlotCase::Frozen => {
                let going = self.start(first, false)? && self.prepare(first, slot)?;
                // Frozen for longer than the TTL.
                self.whole(other, slot, true)?;
                if going {
                    self.push(first)?;
                }
                self.end(first);
            }
        }
        let log = self.git(&self.dir.join("r.git"), &["log", "--format=%s", "main"])?;
        let subject = format!("slot {}", slot + 1);
        self.facts.published.push(log.lines().filter(|line| *line == subject).count());
        Ok(())
    }
}
