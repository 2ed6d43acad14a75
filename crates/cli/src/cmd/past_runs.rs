//! How runs ended, in sentences: for `why`.

use leasehold::core::human_duration::HumanDuration;
use leasehold::core::run_log::LogEvent;

use super::history::Line;
use super::times;
use crate::messages::{refusals, why as say};

impl Line {
    /// For `why`, about a time.
    pub fn told_with_its_time(&self) -> String {
        let time = times::local_text(&self.when());
        let job = self.job_beside();
        match self.event {
            Some(LogEvent::Skipped) => say::past_skip(&self.lease, job, &self.holder, time, self.because()),
            Some(LogEvent::Refused) => self.refusal(time),
            _ => {
                let took = self.took.map(|took| say::run_after(HumanDuration(took))).unwrap_or_default();
                let token = self.token.unwrap_or(0);
                say::past_run(&self.lease, job, self.outcome(), &self.holder, token, time, took)
            }
        }
    }

    /// For `why`, of the last one.
    pub fn sentence(&self) -> String {
        let (lease, token, holder) = (&self.lease, self.token.unwrap_or(0), &self.holder);
        let (job, ago, took) = (self.job_beside(), self.ago(), self.took.map(HumanDuration));
        match self.event {
            Some(LogEvent::Unknown) => say::last_unknown(lease, job, holder, token, ago),
            Some(LogEvent::Unsealed) => say::last_not_fenced(lease, job, holder, token, ago),
            Some(LogEvent::Skipped) => say::last_skipped(lease, job, holder, ago, self.because()),
            Some(LogEvent::Refused) => self.refusal(ago),
            Some(LogEvent::Released) => {
                let took = took.map(say::after).unwrap_or_default();
                say::last_released(lease, job, holder, token, ago, took)
            }
            _ => {
                let took = took.map(say::took).unwrap_or_default();
                say::last_run(lease, job, self.outcome(), holder, token, ago, took)
            }
        }
    }

    fn refusal(&self, time: String) -> String {
        let target = self.target.clone().unwrap_or_default();
        let reason = self.reason.as_deref();
        let why = match self.fence.filter(|_| refusals::is_stale(reason)) {
            Some(fence) => say::fence_has(fence),
            None => refusals::because(reason, &target),
        };
        say::refused(&self.lease, self.token.unwrap_or(0), target, time, why)
    }

    /// Why it was skipped: the reason, and who had the lease.
    fn because(&self) -> String {
        let reason = self.reason.clone().unwrap_or_default();
        match (self.held_by(), self.token) {
            (Some(holder), Some(token)) => say::skipped_held(reason, holder, token),
            _ => reason,
        }
    }

    fn outcome(&self) -> String {
        let exit = self.exit.filter(|code| *code != 0).map(say::exit).unwrap_or_default();
        format!("{}{exit}", self.word)
    }

    /// The job, if its name is not that of the lease.
    fn job_beside(&self) -> String {
        if self.job == self.lease { String::new() } else { say::of_job(&self.job) }
    }
}
