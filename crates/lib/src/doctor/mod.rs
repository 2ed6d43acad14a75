//! Tests whether a store can be trusted with leases.
//!
//! Every store claims to compare-and-set. The doctor tests that with stale and late writers and with many
//! writers at once. It also checks the ages that the store gives, and its settings. It works under its own
//! prefix, so that a store in use is not disturbed, and removes what it wrote. It prints nothing: the caller
//! hears of each check as it ends.

mod checks;
mod first_use;
mod measure;
pub mod messages;
mod paths;
mod scratch;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checks::Check;
pub use first_use::{FirstUse, FirstUseNotes, Tell};
use leasehold_core::time::BootTime;
use messages as say;
use scratch::Scratch;
use serde::Serialize;

use crate::clock::boot_time;
use crate::poll::{self, Timer};
use crate::stores::{Examine, Failure, FailureKind, RemarkLevel, StoreFacts};

/// Opens another handle on a store. Called from several threads.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Examine>, Failure> + Send + Sync>;

/// Longest time for one call.
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

/// A promise of docs/guarantees.md that a store can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Promise {
    /// One token, one holder.
    P1,
    /// Stopped in time.
    P3,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    check: Check,
    /// The check, in a word.
    pub about: &'static str,
    /// The result.
    pub verdict: RemarkLevel,
    /// The promise that does not hold, if the verdict is [`RemarkLevel::Unsafe`].
    pub breaks: Option<Promise>,
    /// One sentence.
    pub text: String,
    /// How long the check took.
    pub took: Duration,
    /// Several writers won one race: the clearest sign that leases are not exclusive.
    pub many_winners: bool,
}

/// A step of an examination.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// This check starts.
    Begun(&'static str),
    /// A check ended.
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

/// Measured figures; nothing where a figure was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Of reading a record.
    pub read: Option<Latency>,
    /// Of a conditional write.
    pub cas: Option<Latency>,
    /// The smallest step in which ages were seen to move.
    pub resolution: Option<Duration>,
    /// Time between a write and the notice to a waiter; the middle of several.
    pub push: Option<Duration>,
    /// The shortest lease that these figures allow.
    pub least_ttl: Option<Duration>,
    /// How far this machine's wall clock is ahead of the store's, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
}

/// How an examination ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExaminationEnd {
    /// The store can keep leases.
    Usable,
    /// It must not keep leases.
    Refused {
        /// The promise that does not hold.
        breaks: Promise,
        /// One sentence: what shows it.
        why: String,
    },
    /// A call failed, so the store may be good or bad.
    Failed(Failure),
    /// The caller stopped it.
    Interrupted,
}

/// The result of an examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// How it ended.
    pub ended: ExaminationEnd,
    /// The result of each check, in order.
    pub findings: Vec<Finding>,
    /// The facts that the store declares, once it has answered.
    pub facts: Option<StoreFacts>,
    /// Measured figures.
    pub figures: Figures,
    /// Keys that could not be removed.
    pub left: Vec<String>,
}

impl Diagnosis {
    /// The worst result.
    pub fn verdict(&self) -> RemarkLevel {
        self.findings.iter().map(|f| f.verdict).max().unwrap_or(RemarkLevel::Good)
    }

    /// Which test records could not be removed, in one sentence.
    pub fn left_behind(&self) -> Option<String> {
        let first = self.left.first()?;
        let parts: Vec<&str> = first.split('/').take(2).collect();
        let place = if self.left.len() == 1 { first.clone() } else { format!("{}/", parts.join("/")) };
        let count = match self.left.len() {
            1 => say::one_record(),
            n => say::records(n),
        };
        Some(say::left_behind(count, place))
    }

    /// Whether the store was raced with success. A store that accepted too few connections was not tested.
    fn was_raced(&self) -> bool {
        self.findings.iter().any(|f| f.check == Check::Races && f.verdict == RemarkLevel::Good)
    }
}

/// Examines a store. `also` is a second path to it, if there is one. `stop` ends the examination early; its records
/// are removed even then.
pub fn examine(
    open: Opener,
    also: Option<Opener>,
    depth: Depth,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Diagnosis {
    let mut visit = Visit {
        scratch: Scratch::new(open, Arc::clone(stop), PATIENCE),
        also,
        depth,
        started: boot_time(),
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
    let Visit { scratch, mut diagnosis, .. } = visit;
    diagnosis.left = scratch.sweep();
    if depth == Depth::Full && seen.is_ok() {
        scratch.sweep_forgotten();
    }
    diagnosis.ended = match seen {
        _ if stop.load(Ordering::SeqCst) => ExaminationEnd::Interrupted,
        // A bad result stands even if a later call failed.
        Err(failure) => match refusal(&diagnosis.findings) {
            ExaminationEnd::Usable => ExaminationEnd::Failed(failure),
            refused => refused,
        },
        Ok(()) => refusal(&diagnosis.findings),
    };
    diagnosis
}

/// Refused if any check found the store unsafe. The reason is a race with several winners; else stale reads or
/// versions that come again, because they explain the other results.
fn refusal(findings: &[Finding]) -> ExaminationEnd {
    let bad = || findings.iter().filter(|f| f.verdict == RemarkLevel::Unsafe);
    let causes = [Check::Reads, Check::Recreated, Check::Versions];
    let cause = || causes.iter().find_map(|cause| bad().find(|f| f.check == *cause));
    let worst = bad().find(|f| f.many_winners).or_else(cause).or_else(|| bad().next());
    match worst {
        None => ExaminationEnd::Usable,
        Some(f) => ExaminationEnd::Refused { breaks: f.check.promise(), why: f.text.clone() },
    }
}

/// One examination of one store.
struct Visit<'a> {
    scratch: Scratch,
    also: Option<Opener>,
    depth: Depth,
    started: BootTime,
    /// When the current check started.
    since: BootTime,
    tell: &'a mut dyn FnMut(Progress<'_>),
    diagnosis: Diagnosis,
}

impl Visit<'_> {
    fn begin(&mut self, check: Check) {
        self.since = boot_time();
        (self.tell)(Progress::Begun(check.word()));
    }

    fn found(&mut self, check: Check, verdict: RemarkLevel, text: impl Into<String>) {
        self.found_in_race(check, verdict, text, false);
    }

    fn found_in_race(
        &mut self,
        check: Check,
        verdict: RemarkLevel,
        text: impl Into<String>,
        many_winners: bool,
    ) {
        let breaks = (verdict == RemarkLevel::Unsafe).then_some(check.promise());
        let took = boot_time().since(self.since);
        let (about, text) = (check.word(), text.into());
        let finding = Finding { check, about, verdict, breaks, text, took, many_winners };
        (self.tell)(Progress::Found(&finding));
        self.diagnosis.findings.push(finding);
        self.since = boot_time();
    }
}

/// Waits, unless stopped. The doctor waits for the store's clock to move, and no event reports that.
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

/// A failure that no second try can help.
fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}
