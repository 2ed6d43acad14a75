//! Whether a store can be trusted with leases, found out on the store itself.
//!
//! Every store claims to compare-and-set. The doctor makes it show that: with stale and late writers, with
//! many writers at once, by what it says of time, and by what it says of itself. It works in a corner of
//! the store under a name of its own, so that a store in use is not disturbed, and sweeps it afterwards.
//! Nothing is printed here: whoever asks is told of each examination as it ends.

mod checks;
mod first_use;
mod measure;
mod paths;
mod scratch;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use first_use::{FirstUse, FirstUseNotes, Tell};
use leasehold_core::time::BootTime;
use scratch::Scratch;

use crate::clock::boot_time;
use crate::poll::{self, Timer};
use crate::stores::{Examine, Failure, FailureKind, RemarkLevel, StoreFacts};

/// How further handles on a store are opened. Called from several threads.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Examine>, Failure> + Send + Sync>;

/// How long any call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How thorough to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// A few calls and a short race: before the first run on a store.
    Probe,
    /// Every rule, and short races.
    Quick,
    /// Everything, with figures.
    Full,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// In a word.
    pub about: &'static str,
    /// How it was found.
    pub verdict: RemarkLevel,
    /// The promise that does not hold, if the verdict is [`RemarkLevel::Unsafe`].
    pub breaks: Option<&'static str>,
    /// One sentence.
    pub text: String,
    /// How long it took to find out.
    pub took: Duration,
    /// Several writers won one race, which says most of all that can go wrong.
    pub many_winners: bool,
}

/// How an examination goes on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// This is looked at now.
    Begun(&'static str),
    /// This was found.
    Found(&'a Finding),
}

/// Half of the calls took no longer than `p50`, all but a hundredth no longer than `p99`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The middle.
    pub p50: Duration,
    /// The slow end.
    pub p99: Duration,
}

/// What was measured, as far as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Of reading a record.
    pub read: Option<Latency>,
    /// Of a conditional write.
    pub cas: Option<Latency>,
    /// The smallest step in which ages were seen to move.
    pub resolution: Option<Duration>,
    /// From a write to a waiter that was told of it; the middle of several.
    pub push: Option<Duration>,
    /// The shortest lease that these figures allow.
    pub least_ttl: Option<Duration>,
    /// How far this machine's wall clock is ahead of the store's, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExaminationEnd {
    /// Leases can be kept there.
    Usable,
    /// They must not be.
    Refused {
        /// The promise that does not hold.
        breaks: &'static str,
        /// One sentence: what shows it.
        why: String,
    },
    /// It could not be told, because a call failed.
    Failed(Failure),
    /// Whoever asked had it stopped.
    Interrupted,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// How it ended.
    pub ended: ExaminationEnd,
    /// What was looked at, in order.
    pub findings: Vec<Finding>,
    /// What the store says of itself, once it has answered.
    pub facts: Option<StoreFacts>,
    /// What was measured.
    pub figures: Figures,
    /// Keys that could not be removed again.
    pub left: Vec<String>,
}

impl Diagnosis {
    /// The worst that was found.
    pub fn verdict(&self) -> RemarkLevel {
        self.findings.iter().map(|f| f.verdict).max().unwrap_or(RemarkLevel::Good)
    }

    /// What could not be removed again, in one sentence.
    pub fn left_behind(&self) -> Option<String> {
        let first = self.left.first()?;
        let corner: Vec<&str> = first.split('/').take(2).collect();
        let corner = if self.left.len() == 1 { first.clone() } else { format!("{}/", corner.join("/")) };
        let count = match self.left.len() {
            1 => "a test record".to_owned(),
            n => format!("{n} test records"),
        };
        Some(format!(
            "{count} could not be removed again: this user may not delete there, or the store has no conditional \
             delete, or failed. Nothing reads them; to be rid of them, remove what begins with {corner}"
        ))
    }
}

/// Examines a store; `also` is a second way to it, if there is one. `stop` ends it early, and even then nothing
/// is left behind.
pub fn examine(
    open: Opener,
    also: Option<Opener>,
    depth: Depth,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Diagnosis {
    let mut visit = Visit {
        corner: Scratch::new(open, Arc::clone(stop), PATIENCE),
        also,
        depth,
        begun: boot_time(),
        since: boot_time(),
        tell,
        diagnosis: Diagnosis {
            ended: ExaminationEnd::Usable,
            findings: Vec::new(),
            facts: None,
            figures: Figures::default(),
            left: Vec::new(),
        },
    };
    let seen = checks::all(&mut visit);
    let Visit { corner, mut diagnosis, .. } = visit;
    diagnosis.left = corner.sweep();
    if depth == Depth::Full && seen.is_ok() {
        corner.sweep_forgotten();
    }
    diagnosis.ended = match seen {
        _ if stop.load(Ordering::SeqCst) => ExaminationEnd::Interrupted,
        // What was found stands, whatever failed afterwards.
        Err(failure) => match refusal(&diagnosis.findings) {
            ExaminationEnd::Usable => ExaminationEnd::Failed(failure),
            refused => refused,
        },
        Ok(()) => refusal(&diagnosis.findings),
    };
    diagnosis
}

/// Refused if anything was unsafe. That several won one race says most; stale reads and versions that come
/// again explain whatever else went wrong.
fn refusal(findings: &[Finding]) -> ExaminationEnd {
    let bad = || findings.iter().filter(|f| f.verdict == RemarkLevel::Unsafe);
    let cause =
        || ["reads", "recreated", "versions"].iter().find_map(|cause| bad().find(|f| f.about == *cause));
    let worst = bad().find(|f| f.many_winners).or_else(cause).or_else(|| bad().next());
    match worst {
        None => ExaminationEnd::Usable,
        Some(f) => ExaminationEnd::Refused { breaks: f.breaks.unwrap_or("P1"), why: f.text.clone() },
    }
}

/// One examination of one store.
struct Visit<'a> {
    corner: Scratch,
    also: Option<Opener>,
    depth: Depth,
    begun: BootTime,
    /// When what is looked at now was begun.
    since: BootTime,
    tell: &'a mut dyn FnMut(Progress<'_>),
    diagnosis: Diagnosis,
}

impl Visit<'_> {
    fn begin(&mut self, about: &'static str) {
        self.since = boot_time();
        (self.tell)(Progress::Begun(about));
    }

    fn found(&mut self, about: &'static str, verdict: RemarkLevel, text: impl Into<String>) {
        self.found_in_race(about, verdict, text, false);
    }

    fn found_in_race(
        &mut self,
        about: &'static str,
        verdict: RemarkLevel,
        text: impl Into<String>,
        many_winners: bool,
    ) {
        let breaks = (verdict == RemarkLevel::Unsafe).then_some(checks::promise(about));
        let took = boot_time().since(self.since);
        let finding = Finding { about, verdict, breaks, text: text.into(), took, many_winners };
        (self.tell)(Progress::Found(&finding));
        self.diagnosis.findings.push(finding);
        self.since = boot_time();
    }
}

/// Waits, unless stopped. What is waited for is the store's clock: there is no event to wait for.
fn pause(time: Duration, stop: &AtomicBool) {
    let until = boot_time().plus(time);
    let Ok(timer) = Timer::new() else { return };
    while boot_time() < until && !stop.load(Ordering::SeqCst) {
        let next = boot_time().plus(Duration::from_millis(50)).min(until);
        if timer.arm(next).is_err() || poll::wait(&[timer.as_fd()]).is_err() {
            return;
        }
    }
}

/// A failure of the kind that nothing can be done about here.
fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}
