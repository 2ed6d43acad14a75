//! One job in a scheduler.

use jiff::Timestamp;
use leasehold_core::timing::DEFAULT_TTL;

use super::Millis;
use super::retry::Retry;
use super::start::{EndedRun, RunningSlot};
use crate::handoff::SlotOutcome;
use crate::job_records::{Terms, Tried};
use crate::jobs::Job;
use crate::schedule::Slot;

/// One job, and what this process has done about it.
pub struct JobState {
    pub job: Job,
    pub terms: Terms,
    /// Its slots start this much later than they are due: a part of `stagger`, the same on every machine.
    pub delay: Millis,
    /// The time of the next look.
    pub wake: Option<Millis>,
    pub running: Option<RunningSlot>,
    /// It is gone from the configuration, but a run of it goes on.
    pub retired: bool,
    /// It waits until fewer missed slots are being run.
    pub queued: bool,
    /// A run of it has ended since its old records were removed.
    pub ran: bool,
    pub retry: Retry,
}

impl JobState {
    /// A job that is looked at now.
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
            retry: Retry::default(),
        }
    }

    /// Takes over what was known of it before the file was read again.
    pub fn inherit(&mut self, old: JobState) {
        (self.running, self.ran, self.retry) = (old.running, old.ran, old.retry);
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

    /// How long to wait before the next look, if another process works on a slot.
    pub fn patience(&self) -> Millis {
        let ttl = self.job.wishes.ttl.unwrap_or(DEFAULT_TTL);
        i64::try_from(ttl.as_millis() / 3).unwrap_or(i64::MAX).clamp(500, 30_000)
    }

    /// The slot that this process tried last.
    pub fn tried(&self) -> Tried {
        self.running.as_ref().map_or(self.retry.last(), |running| Tried::Running(running.slot().number()))
    }

    /// The run, if it has ended.
    pub fn reap(&mut self) -> Option<EndedRun> {
        let ended = self.running.as_mut()?.ended()?;
        self.running = None;
        Some(ended)
    }

    /// A run of it has ended. The job is looked at again at once.
    pub fn ended(&mut self, slot: &Slot, outcome: SlotOutcome, now: Millis) {
        self.retry.ended(slot.number(), outcome, now);
        (self.ran, self.wake) = (true, Some(now));
    }
}

/// A part of `stagger` that depends only on the job's name.
fn delay(job: &Job) -> Millis {
    let most = i64::try_from(job.stagger.as_millis()).unwrap_or(0);
    // FNV-1a: the same on every machine and in every version.
    let hash = job.name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::try_from(hash >> 1).unwrap_or(0).checked_rem(most).unwrap_or(0)
}
