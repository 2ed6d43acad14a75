//! `leasehold demo --git`: a publishing script on two machines, by itself and under a fence.
//!
//! The script does what such scripts do: fetch, see whether this slot is published, commit, push; if the
//! push is rejected, rebase and push again. Who does which step when is fixed here, and so is the lease's
//! clock; the repository, git, the fence and `leasehold push` are real.

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
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

const LEASE: &str = "site";

/// What happens to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Alone,
    Overlap,
    Refire,
    Frozen,
}

/// Two days and a half.
const SLOTS: [Fate; 8] = [
    Fate::Alone,
    Fate::Overlap,
    Fate::Refire,
    Fate::Frozen,
    Fate::Overlap,
    Fate::Alone,
    Fate::Frozen,
    Fate::Refire,
];

impl Fate {
    fn words(self) -> &'static str {
        match self {
            Self::Alone => "one machine runs it",
            Self::Overlap => "both machines start at the same moment",
            Self::Refire => "the other machine starts it again, later",
            Self::Frozen => "one is frozen just before its push, the other takes over, the first wakes",
        }
    }
}

/// What one side came to.
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

/// Tells the story and checks it.
pub fn run(out: &Out) -> Result<u8, Failed> {
    let screen = Screen::new(!out.json && !out.quiet);
    let began = clock::boot_time();
    let (with, without) = both(screen).map_err(|trouble| match trouble {
        DemoError::Signal(number) => {
            let code = u8::try_from(128 + number).unwrap_or(u8::MAX);
            Failed::new(
                FailKind::Interrupted(code),
                "interrupted",
                "interrupted; nothing of the demo is left",
            )
        }
        DemoError::System(e) => {
            let message = format!("git could not be run: {e}. Nothing of the demo is left");
            Failed::new(FailKind::Unreachable, "system", message)
        }
        DemoError::Different(what) => Failed::new(FailKind::NeedsYou, "demo_differs", differs(&what)),
    })?;
    let right = (with.twice(), with.missing(), with.retries) == (0, 0, 0) && with.refused > 0;
    let ok = right && without.twice() > 0 && without.retries > 0;
    if out.json {
        out.object(&json!({"v": 1, "ok": ok, "with": with.object(), "without": without.object()}));
    }
    if !ok {
        return Err(Failed::new(
            FailKind::NeedsYou,
            "demo_differs",
            differs(&format!("{with:?}, {without:?}")),
        ));
    }
    farewell(screen, &with, clock::boot_time().since(began));
    Ok(exit::OK)
}

fn differs(what: &str) -> String {
    format!("the demo went otherwise than it should: {what}. If it stays so, please report it")
}

fn both(screen: Screen) -> Result<(Facts, Facts), DemoError> {
    screen.say(&plain(
        "A real git repository and two clones of it, the machines, in a directory that is removed at the end. A \
         script on both publishes a post for every slot: fetch, look whether it is there, commit, push; if the \
         push is rejected, rebase and push again.",
    ));
    screen.titles("with leasehold", "without");
    let mut sides = [GitSide::set(true)?, GitSide::set(false)?];
    for (slot, fate) in SLOTS.into_iter().enumerate() {
        let before = sides.each_ref().map(|side| side.facts.refused);
        for side in &mut sides {
            side.slot(slot, fate)?;
        }
        screen.heading(&format!("Slot {}: {}.", slot + 1, fate.words()));
        let [with, without] = &sides;
        let times = |side: &GitSide| side.facts.published[slot];
        let mut left =
            vec![if times(with) == 1 { good("Published once.") } else { bad("Not published once.") }];
        if with.facts.refused > before[0] && with.facts.refused == 1 {
            left.extend([plain("The one that woke was refused:"), quoted(with.facts.refusal.clone())]);
        } else if with.facts.refused > before[0] {
            left.push(plain("The one that woke was refused."));
        }
        let right = if times(without) == 1 { plain("Published once.") } else { bad("Published twice.") };
        screen.step(&left, &[right]);
    }
    let [with, without] = sides.each_mut().map(|side| std::mem::take(&mut side.facts));
    Ok((with, without))
}

fn farewell(screen: Screen, with: &Facts, elapsed: Duration) {
    screen.heading("Type next, in a clone of yours:");
    screen.command("leasehold run site --fence git:origin -- ./publish.sh", "  git push in it is fenced");
    screen.gap();
    screen.say(&plain(format!(
        "({} runs were skipped, {} refused; that took {}; every file of it is gone.)",
        with.skipped,
        with.refused,
        HumanDuration(elapsed)
    )));
}

/// One side: a repository and two machines. Dropped: gone.
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
    fn set(leasehold: bool) -> Result<Self, DemoError> {
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

    /// Runs it and listens for an interrupt, which reaches git as well.
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
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(DemoError::Different(format!("git {}: {said}", args.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn bearer(token: u64) -> Option<Bearer> {
        let (lease, token) = (Name::new(LEASE).ok()?, Token::new(token)?);
        Some(Bearer { lease, epoch: Epoch::first(1), token, grant: Grant(u128::from(token.get())) })
    }

    /// Starts a run; whether it goes on. Seal, then read.
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
        let bearer = Self::bearer(self.token).ok_or_else(|| DemoError::Different("no token".into()))?;
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
                    let said = String::from_utf8_lossy(&output.stderr);
                    let place = self.dir.join("r.git").display().to_string();
                    self.facts.refusal = said.trim().replace(&place, "the repository");
                    return Ok(());
                }
                _ => self.facts.retries += 1,
            }
            self.git(&clone, &["fetch", "--quiet", "origin", "main"])?;
            self.git(&clone, &["rebase", "--quiet", "FETCH_HEAD"])?;
        }
        Ok(())
    }

    /// `leasehold push` as a job of that run would call it.
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

    fn slot(&mut self, slot: usize, fate: Fate) -> Result<(), DemoError> {
        let (first, other) = (slot % 2, 1 - slot % 2);
        match fate {
            Fate::Alone => self.whole(first, slot, false)?,
            Fate::Refire => {
                self.whole(first, slot, false)?;
                self.whole(other, slot, false)?;
            }
            Fate::Overlap => {
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
            Fate::Frozen => {
                let going = self.start(first, false)? && self.prepare(first, slot)?;
                // Silent for longer than its lease lasts.
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
