//! The item of a run: what its job hears of it, and how it is left.

use std::ffi::OsString;
use std::time::Duration;

use leasehold_core::ledger::{Ending, State, Subject};
use leasehold_core::past::{End, UNSEALED};
use leasehold_core::session::{Signal, StopReason};
use leasehold_core::time::BootTime;

use super::{KILLED, Loop, Process, signal_number};
use crate::keeper::Work;
use crate::ledger::Book;
use crate::runner::tail::Tail;
use crate::{clock, host, steps};

const NEAR_PATIENCE: Duration = Duration::from_secs(3);
/// One elsewhere may take longer; nobody waits for an hour, however long the lease.
const FAR_PATIENCE: Duration = Duration::from_secs(60);

impl Loop<'_> {
    /// A keeper that may hang is not waited for; what it has to record is, for as long as its calls may take.
    pub(super) fn wait_recorded(&self) {
        let (Some(book), Some(until)) = (&self.job.book, self.job.recorded) else { return };
        let calls = if self.job.spec.key.is_some() { 4 } else { 2 };
        book.wait_closed(until.since(clock::boot_time()) + self.job.spec.timing.timeout * calls);
    }
}

impl Process<'_> {
    /// How its item is left by a job that is gone, once. What the session has heard counts, as it does for what is told.
    pub(super) fn close(&mut self, stop_at: Option<BootTime>, stopped: Option<&StopReason>) -> Option<Work> {
        let book = self.book.clone().filter(|_| self.recorded.is_none() && !self.too_late)?;
        let status = self.status?;
        self.stopping = stopped.cloned();
        let (state, ending) = self.left(status);
        Some(Work::Close { book, state, ending, until: self.record_until(stop_at) })
    }

    /// An item that was begun, or may yet be, although its command never was, is left to the next run.
    pub(super) fn take_back(&mut self, stop_at: Option<BootTime>) -> Option<Work> {
        let never_executed = self.begun && self.started.is_none() && self.recorded.is_none();
        let book = self.book.clone().filter(|book| never_executed && book.page().may_be_ours())?;
        let (until, ending) = (self.record_until(stop_at), self.ending(None, String::new()));
        Some(Work::TakeBack { book, ending, until })
    }

    /// How long a store that does not answer is told how the item ended: while the lease is surely ours, for it is given
    /// back after that. A store on this machine comes back soon, or not at all.
    pub(super) fn record_until(&mut self, stop_at: Option<BootTime>) -> BootTime {
        let now = clock::boot_time();
        let until = match stop_at {
            _ if self.near => now.plus(NEAR_PATIENCE),
            Some(at) => at.min(now.plus(FAR_PATIENCE)).max(now.plus(self.spec.timing.timeout)),
            None => now.plus(self.spec.timing.timeout),
        };
        self.recorded = Some(until);
        until
    }

    /// What the job's environment says about its item. What an outer run said about its own is removed, also if this
    /// one has none: its job would take that key for its own, and do its steps in that run's name.
    pub(super) fn about(&self) -> Vec<(OsString, Option<OsString>)> {
        let entry = self.book.as_ref().and_then(Book::entry);
        let beside = self.spec.key.as_ref().map(|item| &item.subject);
        let (mut key, mut slot) = (None, None);
        for subject in entry.iter().map(|entry| &entry.subject).chain(beside) {
            match subject {
                Subject::Key(text) => key = Some(text.into()),
                Subject::Slot { id, .. } => slot = Some(id.into()),
                Subject::Latest(_) => {}
            }
        }
        let attempt = entry.as_ref().map(|entry| entry.attempt.to_string().into());
        let socket = self.steps.as_ref().map(|steps| steps.path().into());
        let all = [
            ("LEASEHOLD_KEY", key),
            ("LEASEHOLD_SLOT", slot),
            ("LEASEHOLD_ATTEMPT", attempt),
            ("LEASEHOLD_STEP", None),
            (steps::SOCKET, socket),
        ];
        all.map(|(name, value)| (name.into(), value)).into()
    }

    /// How the job ended, for its item's record: in a word.
    fn state(&self, status: i32) -> State {
        match &self.stopping {
            Some(why) if why.is_loss() => State::Lost,
            Some(StopReason::MaxRun | StopReason::Interrupted) => State::Killed,
            _ if status == 0 => State::Ok,
            _ if self.interrupted(status) => State::Killed,
            _ => State::Failed,
        }
    }

    /// Whether it died after it was asked, through us, to end: of a signal, or as a shell says it of what it ran. One that
    /// has an exit code of its own for that has said how it ended. KILL leaves it no time to say anything, be it from a
    /// person or from a kernel that ran out of memory.
    pub(super) fn interrupted(&self, status: i32) -> bool {
        let of = |signal: &Signal| status == 128 + i32::from(signal_number(*signal));
        status == KILLED || !self.asked.is_empty() && (self.by_signal || self.asked.iter().any(of))
    }

    /// How its item is left by a job that is gone.
    pub(super) fn left(&self, status: i32) -> (State, Ending) {
        let state = self.state(status);
        let printed = self.tail.as_ref().map(Tail::stop).filter(|_| state != State::Ok);
        let said = self.spawn_error.clone().or(printed).unwrap_or_default();
        (state, self.ending(Some(status), said))
    }

    /// How it ended, for the lease's record. A key and a slot that were begun have records of their own, and of a cooldown
    /// only the last run has one.
    pub(super) fn told_to_people(&self) -> Option<End> {
        if self.unsealed && self.spec.history {
            let at = host::utc(clock::wall().as_secs());
            return Some(End { outcome: UNSEALED, exit: None, took: None, at });
        }
        let item = self.spec.item.as_ref().map(|item| &item.subject);
        let elsewhere = matches!(item, Some(Subject::Key(_) | Subject::Slot { .. }));
        let status = self.status.filter(|_| self.spec.history && !elsewhere)?;
        let Ending { exit, took_ms, at, .. } = self.ending(Some(status), String::new());
        let took = Some(Duration::from_millis(took_ms));
        Some(End { outcome: self.state(status).word(), exit, took, at })
    }

    /// How it ended in full.
    pub(super) fn ending(&self, exit: Option<i32>, said: String) -> Ending {
        let took = self.started.map_or(Duration::ZERO, |at| clock::boot_time().since(at));
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Ending { exit, took_ms, at: host::utc(clock::wall().as_secs()), reason: None, said }
    }
}
