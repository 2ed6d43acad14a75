//! Targets of a run that only observes. They are asked on a thread, for as long as the job may be held up by them.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::human_duration::HumanDuration;
use leasehold::targets::Target;

use crate::cmd::target_args;

/// How long the job, or its end, waits for its targets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something worth a note: in a word, and in a sentence.
pub type TargetNote = (&'static str, String);

/// A target that answered.
pub struct WatchedTarget {
    pub target: Box<dyn Target>,
    /// How many writes it had let in only because it watches.
    let_in: u64,
    /// What was there.
    before: Option<String>,
}

/// What a run found at a target, and left there.
pub struct TargetTraces {
    pub shown: String,
    pub before: Option<String>,
    pub now: Option<String>,
}

/// What the targets tell of the time before, and what they would have said to this run.
pub fn before(all: Vec<Box<dyn Target>>, bearer: Option<Bearer>) -> (Vec<WatchedTarget>, Vec<TargetNote>) {
    in_time(all.is_empty(), move || {
        let mut seen = Vec::new();
        let look = |mut target: Box<dyn Target>| {
            look(target.as_mut(), bearer.as_ref(), &mut seen);
            let (let_in, before) = (let_in(target.as_mut()), target.fingerprint());
            WatchedTarget { target, let_in, before }
        };
        let watched = all.into_iter().map(look).collect();
        (watched, seen)
    })
}

/// What they let in while the job ran; and what is there now is noted there.
pub fn after(all: Vec<WatchedTarget>, bearer: Option<Bearer>) -> (Vec<TargetTraces>, Vec<TargetNote>) {
    in_time(all.is_empty(), move || {
        let (mut all_left, mut seen) = (Vec::new(), Vec::new());
        for WatchedTarget { mut target, let_in: had_let_in, before } in all {
            let more = let_in(target.as_mut()).saturating_sub(had_let_in);
            if more > 0 {
                let (shown, writes) = (target.shown(), if more == 1 { "write" } else { "writes" });
                let text = format!("{shown} let in {more} {writes} meanwhile that would have been refused");
                seen.push(("refused", text));
            }
            let now = target.fingerprint();
            if let (Some(bearer), Some(now)) = (&bearer, &now) {
                // A fence that does not take it says so to whoever looks next.
                let _ = target.remember(bearer, now);
            }
            all_left.push(TargetTraces { shown: target.shown().into(), before, now });
        }
        (all_left, seen)
    })
}

/// What came of it, or nothing and a note that it took too long.
fn in_time<T: Default + Send + 'static>(
    nothing_to_do: bool,
    work: impl FnOnce() -> (T, Vec<TargetNote>) + Send + 'static,
) -> (T, Vec<TargetNote>) {
    if nothing_to_do {
        return work();
    }
    let (done, waiting) = mpsc::channel();
    let begun = thread::Builder::new().name("targets".into()).spawn(move || drop(done.send(work())));
    let answer = begun.ok().and_then(|_| waiting.recv_timeout(PATIENCE).ok());
    answer.unwrap_or_else(|| {
        let text = format!(
            "the targets did not answer within {}; this run goes on without them",
            HumanDuration(PATIENCE)
        );
        (T::default(), vec![("target", text)])
    })
}

fn look(target: &mut dyn Target, bearer: Option<&Bearer>, seen: &mut Vec<TargetNote>) {
    let (shown, now) = (target.shown().to_owned(), target.fingerprint());
    let noted = target.show().ok().flatten().filter(|record| record.fence.seq > 0);
    if let (Some(noted), Some(now)) = (noted, now)
        && noted.fence.digest != now
    {
        let token = noted.fence.token;
        seen.push(("changed", format!("{shown} changed since the run with token {token} left it")));
    }
    match bearer.map(|bearer| target.seal(bearer, FenceMode::Observe)) {
        Some(Ok(sealed)) => seen.extend(
            sealed
                .let_in
                .map(|refused| ("refused", format!("this run {}", target_args::would_be_refused(&refused)))),
        ),
        Some(Err(error)) => seen.push(("refused", error.to_string())),
        None => {}
    }
}

fn let_in(target: &mut dyn Target) -> u64 {
    target.show().ok().flatten().map_or(0, |record| record.fence.let_in)
}
