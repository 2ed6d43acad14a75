//! Targets of a run that only observes. They are asked on a thread, so that the delay of the job has a limit.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::human_duration::HumanDuration;
use leasehold::targets::Target;

use crate::cmd::target_args;
use crate::messages::{observe as say, run};

/// How long the job, or its end, waits for its targets.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a run can observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// There is no lease.
    Store,
    /// Another run of the lease is, or was, at work beside this one.
    Overlap,
    /// The lease was lost.
    Lost,
    /// A run would have been skipped.
    Skipped,
    /// A run would not have started.
    NotRun,
    /// A target cannot be asked.
    Target,
    /// A target changed between two runs.
    Changed,
    /// A target would have refused this run, or accepted what it would have refused.
    Refused,
    /// Newer work was overwritten.
    Overwritten,
}

impl Observed {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Overlap => "overlap",
            Self::Lost => "lost",
            Self::Skipped => "skipped",
            Self::NotRun => "not_run",
            Self::Target => "target",
            Self::Changed => "changed",
            Self::Refused => "refused",
            Self::Overwritten => "overwritten",
        }
    }
}

/// An observation, with a sentence about it.
pub type Observation = (Observed, String);

/// A target that answered.
pub struct WatchedTarget {
    pub target: Box<dyn Target>,
    /// How many stale writes it had accepted before, because it only observes.
    accepted: u64,
    /// The fingerprint of its content before the run.
    before: Option<String>,
}

/// The content of a target before and after a run.
pub struct TargetTraces {
    pub shown: String,
    pub before: Option<String>,
    pub now: Option<String>,
}

/// Asks the targets what changed before this run, and whether they would have refused it.
pub fn before(all: Vec<Box<dyn Target>>, bearer: Option<Bearer>) -> (Vec<WatchedTarget>, Vec<Observation>) {
    in_time(all.is_empty(), move || {
        let mut seen = Vec::new();
        let look = |mut target: Box<dyn Target>| {
            look(target.as_mut(), bearer.as_ref(), &mut seen);
            let (accepted, before) = (accepted(target.as_mut()), target.fingerprint());
            WatchedTarget { target, accepted, before }
        };
        let watched = all.into_iter().map(look).collect();
        (watched, seen)
    })
}

/// Asks the targets what they accepted while the job ran, and notes there what the run left.
pub fn after(all: Vec<WatchedTarget>, bearer: Option<Bearer>) -> (Vec<TargetTraces>, Vec<Observation>) {
    in_time(all.is_empty(), move || {
        let (mut traces, mut seen) = (Vec::new(), Vec::new());
        for WatchedTarget { mut target, accepted: earlier, before } in all {
            let more = accepted(target.as_mut()).saturating_sub(earlier);
            if more > 0 {
                let text = match more {
                    1 => say::accepted_write(target.shown()),
                    _ => say::accepted_writes(target.shown(), more),
                };
                seen.push((Observed::Refused, text));
            }
            let now = target.fingerprint();
            if let (Some(bearer), Some(now)) = (&bearer, &now) {
                // If the fence does not accept the note, the next run reports that.
                let _ = target.remember(bearer, now);
            }
            traces.push(TargetTraces { shown: target.shown().into(), before, now });
        }
        (traces, seen)
    })
}

/// The result, or an empty one and a note that it took too long.
fn in_time<T: Default + Send + 'static>(
    nothing_to_do: bool,
    work: impl FnOnce() -> (T, Vec<Observation>) + Send + 'static,
) -> (T, Vec<Observation>) {
    if nothing_to_do {
        return work();
    }
    let (done, waiting) = mpsc::channel();
    let started = thread::Builder::new().name("targets".into()).spawn(move || drop(done.send(work())));
    let answer = started.ok().and_then(|_| waiting.recv_timeout(PATIENCE).ok());
    answer
        .unwrap_or_else(|| (T::default(), vec![(Observed::Target, say::no_answer(HumanDuration(PATIENCE)))]))
}

fn look(target: &mut dyn Target, bearer: Option<&Bearer>, seen: &mut Vec<Observation>) {
    let (shown, now) = (target.shown().to_owned(), target.fingerprint());
    let noted = target.show().ok().flatten().filter(|record| record.fence.seq > 0);
    if let (Some(noted), Some(now)) = (noted, now)
        && noted.fence.digest != now
    {
        seen.push((Observed::Changed, say::changed(shown, noted.fence.token)));
    }
    match bearer.map(|bearer| target.seal(bearer, FenceMode::Observe)) {
        Some(Ok(sealed)) => seen.extend(sealed.let_in.map(|refused| {
            (Observed::Refused, run::would_be_refused(target_args::would_be_refused(&refused)))
        })),
        Some(Err(error)) => seen.push((Observed::Refused, error.to_string())),
        None => {}
    }
}

/// How many stale writes the target has accepted.
fn accepted(target: &mut dyn Target) -> u64 {
    target.show().ok().flatten().map_or(0, |record| record.fence.let_in)
}
