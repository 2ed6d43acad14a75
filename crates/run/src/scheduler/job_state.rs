//! One job in a scheduler.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leasehold_core::timing::DEFAULT_TTL;

use super::start::{EndedRun, RunningSlot};
use super::{Millis, SchedulerMode};
use crate::handoff::{NotBegun, SlotOutcome};
use crate::job_records::{SlotToStart, Terms, Tried};
use crate::jobs::Job;
use crate::schedule::Slot;

/// A slot that was tried in vain is tried again after this long, then after twice as long, and so on.
const AGAIN_MS: Millis = 1_000;
/// … up to this.
const AGAIN_MOST_MS: Millis = 60_000;
/// `tick` does not wait for better times: it tries so often.
const TRIES_AT_ONCE: u32 = 3;

/// One job, and what this process has just done about it.
pub struct JobState {
    pub job: Job,
    pub terms: Terms,
    /// Its slots start this much later than they are due: a part of `stagger`, the same on all machines.
    pub delay: Millis,
    /// When to look at it next.
    pub wake: Option<Millis>,
    pub running: Option<RunningSlot>,
    /// It is not in the configuration any more; a run of it goes on.
    pub retired: bool,
    /// It waits until fewer runs make up for something.
    pub queued: bool,
    /// Something of it was run since its old records were looked at.
    pub ran: bool,
    pub tried: Tried,
    /// Slots that were tried in vain.
    again: BTreeMap<i64, Again>,
    /// The lease was found held, so often in a row: the other slots of the job would find it so too.
    held: Again,
    /// The last run began nothing, and the next one would not either.
    in_vain: bool,
    /// The last run was of a slot that had been begun before: now it is the turn of the others.
    made_up: bool,
}

/// How often something was tried, and when it may be tried once more.
#[derive(Clone, Copy)]
struct Again {
    tries: u32,
    at: Millis,
}

impl Again {
    const NEVER: Again = Again { tries: 0, at: Millis::MIN };

    /// After one more try.
    fn then(self, now: Millis) -> Self {
        Self { tries: self.tries + 1, at: now + (AGAIN_MS << self.tries.min(6)).min(AGAIN_MOST_MS) }
    }
}

impl JobState {
    /// For a job, looked at now.
    pub fn new(job: Job, now: Millis) -> Self {
        let (terms, delay) = (job.terms(), delay(&job));
        Self {
            job,
            terms,
            delay,
            wake: Some(now),
            running: None,
            retired: false,
            queued: false,
            ran: false,
            tried: Tried::Nothing,
            again: BTreeMap::new(),
            held: Again::NEVER,
            in_vain: false,
            made_up: false,
        }
    }

    /// What was known of it before the file was read again.
    pub fn inherit(&mut self, old: JobState) {
        (self.running, self.ran, self.tried, self.again) = (old.running, old.ran, old.tried, old.again);
        (self.held, self.made_up) = (old.held, old.made_up);
    }

    /// The same without a job.
    pub fn retired(self) -> Self {
        Self { retired: true, wake: None, ..self }
    }

    /// When the next slot is to be started.
    pub fn next_due(&self, now: Millis) -> Option<Millis> {
        let after = Timestamp::from_millisecond(now - self.delay).ok()?;
        Some(self.job.schedule.next_after(after)?.due().as_millisecond() + self.delay)
    }

    /// How long something that another process is at is left alone.
    pub fn patience(&self) -> Millis {
        let ttl = self.job.wishes.ttl.unwrap_or(DEFAULT_TTL);
        i64::try_from(ttl.as_millis() / 3).unwrap_or(i64::MAX).clamp(500, 30_000)
    }

    /// When a slot may be tried; nothing: not any more.
    pub fn not_before(&self, start: &SlotToStart, mode: SchedulerMode) -> Option<Millis> {
        // A slot that gives way is tried once, whatever the others found.
        let held = if start.free || self.terms.skips { Again::NEVER } else { self.held };
        let own = self.again.get(&start.slot.number()).copied().unwrap_or(Again::NEVER);
        let over =
            mode == SchedulerMode::Once && (own.tries >= TRIES_AT_ONCE || held.tries > 0 || self.in_vain);
        (!over).then_some(own.at.max(held.at))
    }

    /// The one to start of those that may be: the oldest, but slots that were begun before take turns with the others.
    pub fn first<'s>(&self, ready: &[&'s SlotToStart]) -> Option<&'s SlotToStart> {
        let others = ready.iter().find(|start| !start.again).filter(|_| self.made_up);
        others.or(ready.first()).copied()
    }

    /// What this process has just done.
    pub fn tried(&self) -> Tried {
        self.running.as_ref().map_or(self.tried, |running| Tried::Running(running.slot().number()))
    }

    /// The run, if it has ended.
    pub fn reap(&mut self) -> Option<EndedRun> {
        let ended = self.running.as_mut()?.ended()?;
        self.running = None;
        Some(ended)
    }

    /// A run of it has ended: looked at again at once.
    pub fn ended(&mut self, slot: &Slot, outcome: SlotOutcome, now: Millis) {
        self.stumbled(slot, now);
        let not_begun = match outcome {
            SlotOutcome::Begun(_) => None,
            SlotOutcome::NotBegun(why) => Some(why),
        };
        self.in_vain = not_begun == Some(NotBegun::InVain);
        if let Some(again) = self.again.get_mut(&slot.number())
            && matches!(not_begun, Some(NotBegun::InVain | NotBegun::NeedsYou))
        {
            *again = Again { tries: TRIES_AT_ONCE.max(again.tries), at: now + AGAIN_MOST_MS };
        }
        self.held = if not_begun.is_none() { Again::NEVER } else { self.held.then(now) };
        (self.ran, self.wake) = (true, Some(now));
    }

    /// One was started.
    pub fn started(&mut self, running: RunningSlot, again: bool) {
        (self.running, self.made_up) = (Some(running), again);
    }

    /// A slot was tried. If it has to be tried once more, then later.
    pub fn stumbled(&mut self, slot: &Slot, now: Millis) {
        let slot = slot.number();
        let again = self.again.get(&slot).copied().unwrap_or(Again::NEVER).then(now);
        self.again.insert(slot, again);
        (self.tried, self.wake) = (Tried::This(slot), Some(again.at));
        // Of those that were tried long ago nobody speaks any more.
        self.again.retain(|_, again| now - again.at < 10 * AGAIN_MOST_MS);
    }
}

/// A part of `stagger` that depends on nothing but the job's name.
fn delay(job: &Job) -> Millis {
    let most = i64::try_from(job.stagger.as_millis()).unwrap_or(0);
    // FNV-1a: the same on every machine and in every version.
    let hash = job.name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1).unwrap_or(0).checked_rem(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::path::Path;

    use leasehold::clock::boot_time;

    use super::*;

    const JOBS: usize = 10_000;
    const TURNS: usize = 25;

    fn took(act: impl FnOnce()) -> u128 {
        let begun = boot_time();
        act();
        boot_time().since(begun).as_nanos()
    }

    /// When ten thousand jobs are due next, as the scheduler asks, against the bare patterns; in turns, the best of
    /// each. benches/next-due runs it with an optimised build.
    #[test]
    fn next_due_costs_what_the_patterns_cost() {
        let job = |n: usize| {
            let pattern = format!("{} {} * * {}", n % 60, n / 60 % 24, ["*", "MON-FRI", "5L", "1#2"][n % 4]);
            format!("[[job]]\nname = \"j{n}\"\ncron = \"{pattern}\"\nrun = [\"true\"]\n")
        };
        let text = String::from("timezone = \"Europe/Berlin\"\n") + &(0..JOBS).map(job).collect::<String>();
        let jobs = crate::jobs::parse(&text, Path::new("/srv/leasehold.toml"), |_| None).unwrap_or_default();
        let now: Millis = 1_800_000_000_000;
        let bare: Vec<_> = jobs.iter().map(|job| job.schedule.clone()).collect();
        let mut jobs: Vec<JobState> = jobs.into_iter().map(|job| JobState::new(job, now)).collect();
        assert_eq!(jobs.len(), JOBS);
        let at = Timestamp::from_millisecond(now).unwrap_or_default();
        let (mut raw, mut ours) = (u128::MAX, u128::MAX);
        for _ in 0..TURNS {
            raw = raw.min(took(|| {
                for schedule in &bare {
                    black_box(schedule.next_after(black_box(at)));
                }
            }));
            ours = ours.min(took(|| {
                jobs.iter_mut().for_each(|state| state.wake = state.next_due(black_box(now)));
                black_box(jobs.iter().filter_map(|state| state.wake).min());
            }));
        }
        let ratio = ours as f64 / raw as f64;
        println!(
            "next due of {JOBS} jobs: {} us, the bare patterns: {} us, {ratio:.2} times",
            ours / 1000,
            raw / 1000
        );
        // Without optimisation the small parts cost as much as the large ones.
        let bar = if cfg!(debug_assertions) { 2.0 } else { 1.2 };
        assert!(ratio <= bar, "{ratio:.2} times, at most {bar}");
    }

    #[test]
    fn what_a_run_says_of_its_slot_decides_when_that_is_tried_again() {
        const NOW: Millis = 1_800_000_000_000;
        let text = "[[job]]\nname = \"a\"\nevery = \"1m\"\nrun = [\"true\"]\ncatch_up = 2\n";
        let job = crate::jobs::parse(text, Path::new("/srv/leasehold.toml"), |_| None).unwrap().remove(0);
        let start =
            |at| SlotToStart { slot: Slot::due_at(at).unwrap(), late: false, again: false, free: false };
        let (this, other) = (start(60), start(120));
        // When that slot and another one may be tried: by one that stays, and by one that does not.
        let again = |outcome| {
            let mut state = JobState::new(job.clone(), NOW);
            state.ended(&this.slot, outcome, NOW);
            let wait = |start, mode| state.not_before(start, mode).map(|at| at.saturating_sub(NOW).max(-1));
            [&this, &other].map(|start| (wait(start, SchedulerMode::Stays), wait(start, SchedulerMode::Once)))
        };
        let (soon, late) = (Some(AGAIN_MS), Some(AGAIN_MOST_MS));
        assert_eq!(again(SlotOutcome::Begun(None)), [(soon, soon), (Some(-1), Some(-1))]);
        for why in [NotBegun::Skipped, NotBegun::Failed] {
            assert_eq!(again(SlotOutcome::NotBegun(why)), [(soon, None), (soon, None)], "{why:?}");
        }
        for why in [NotBegun::NeedsYou, NotBegun::InVain] {
            assert_eq!(again(SlotOutcome::NotBegun(why)), [(late, None), (soon, None)], "{why:?}");
        }
    }
}
