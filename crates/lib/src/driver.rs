//! The driver of a session: it makes the calls and waits that the session asks for, and decides nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, Sender};

use leasehold_core::ledger::ItemState;
use leasehold_core::run_log::LogRecord;
use leasehold_core::session::{
    Effect, Event, Granted, Input, JobExit, Op, Outcome, Release, Request, Session, SessionPlan, Signal,
    StopReason,
};
use leasehold_core::time::BootTime;

use crate::ledger::ItemRecorder;
use crate::poll::{self, Timer, Wake};
use crate::run_log::LogWriter;
use crate::seen_tokens::SeenTokens;
use crate::store_thread::{StepTask, StoreThread, Task};
use crate::stores::Store;
use crate::{clock, random};

/// The work under a lease, as a session starts and stops it: a process tree or a future.
pub trait ProtectedWork {
    /// Starts it before `by`, or not at all.
    fn start(&mut self, granted: &Granted, by: BootTime) -> Result<(), JobExit>;
    /// Starts to seal the run's targets. The session renews the lease and waits for [`Input::Sealed`].
    fn seal(&mut self, granted: &Granted, session: InputSender);
    /// The text to keep in its item's record: its last output, or why it could not be executed.
    fn printed(&mut self, _state: ItemState) -> String {
        String::new()
    }
    /// The text to keep with its record in the run log.
    fn logged(&mut self, _record: &LogRecord) -> String {
        String::new()
    }
    /// Asks all its processes to end.
    fn term(&mut self);
    /// Kills all its processes.
    fn kill(&mut self);
    /// Pauses it.
    fn freeze(&mut self);
    /// Resumes it.
    fn thaw(&mut self);
    /// Passes a signal on.
    fn forward(&mut self, signal: Signal);
    /// Takes an event of the session.
    fn tell(&mut self, event: &Event);
}

/// A session with its store thread, its alarm on the boot-time clock, and its inbox.
#[derive(Debug)]
pub struct Driver {
    session: Session,
    store_thread: StoreThread,
    /// The job runs, so it may have to be stopped in time.
    job_lives: bool,
    alarm: Option<BootTime>,
    timer: Timer,
    wake: Wake,
    inbox: Receiver<Input>,
    inputs: InputSender,
    /// Requests of steps to the store thread, from other threads.
    steps: Receiver<StepTask>,
    step_sender: StepSender,
}

/// Sends requests of steps to a driver's store thread, from another thread.
#[derive(Clone, Debug)]
pub struct StepSender {
    steps: Sender<StepTask>,
    wake: Wake,
}

impl StepSender {
    /// A sender without a driver, and the receiver.
    pub fn alone() -> io::Result<(Self, Receiver<StepTask>)> {
        let (steps, inbox) = mpsc::channel();
        Ok((Self { steps, wake: Wake::new()? }, inbox))
    }

    /// Sends one request. A driver that has ended ignores it.
    pub fn send(&self, step: StepTask) {
        let _ = self.steps.send(step);
        self.wake.wake();
    }
}

/// Sends inputs to a driver from another thread.
#[derive(Clone, Debug)]
pub struct InputSender {
    inputs: Sender<Input>,
    wake: Wake,
}

impl InputSender {
    /// A sender without a driver, and the receiver.
    #[cfg(test)]
    pub(crate) fn alone() -> io::Result<(Self, Receiver<Input>)> {
        let (inputs, inbox) = mpsc::channel();
        Ok((Self { inputs, wake: Wake::new()? }, inbox))
    }

    /// Sends one input. A driver that has ended ignores it.
    pub fn send(&self, input: Input) {
        let _ = self.inputs.send(input);
        self.wake.wake();
    }
}

impl Driver {
    /// A session that is not started yet, and its store thread.
    pub fn new(
        plan: SessionPlan,
        mut store: Box<dyn Store>,
        memory: SeenTokens,
        recorder: Option<ItemRecorder>,
        log: LogWriter,
    ) -> io::Result<Self> {
        store.limit_calls(plan.timing.timeout);
        let (timer, wake) = (Timer::new()?, Wake::new()?);
        let (inputs, inbox) = mpsc::channel();
        let inputs = InputSender { inputs, wake: wake.clone() };
        let replies = inputs.clone();
        let store_thread = StoreThread::new(store, memory, recorder, log, move |input| replies.send(input));
        let (sender, steps) = mpsc::channel();
        let step_sender = StepSender { steps: sender, wake: wake.clone() };
        let session = Session::new(plan, random::seed());
        let (job_lives, alarm) = (false, None);
        Ok(Self { session, store_thread, job_lives, alarm, timer, wake, inbox, inputs, steps, step_sender })
    }

    /// Sends inputs from other threads.
    pub fn sender(&self) -> InputSender {
        self.inputs.clone()
    }

    /// Sends requests of steps to the store thread.
    pub fn step_sender(&self) -> StepSender {
        self.step_sender.clone()
    }

    /// When the job must start to stop unless a renewal is confirmed.
    pub fn stop_at(&self) -> Option<BootTime> {
        self.session.stop_at()
    }

    /// Why the job is being stopped, if it is.
    pub fn stopped(&self) -> Option<&StopReason> {
        self.session.stopped()
    }

    /// Sleeps until there are inputs for the session; `also` is another descriptor to wake for.
    pub fn wait(&mut self, also: Option<BorrowedFd<'_>>) -> io::Result<(Vec<Input>, bool)> {
        match self.alarm {
            Some(at) => self.timer.arm(at)?,
            None => self.timer.disarm()?,
        }
        let ours = [self.timer.as_fd(), self.wake.as_fd()];
        let ready = match also {
            Some(also) => poll::wait(&[ours[0], ours[1], also])?,
            None => poll::wait(&ours)?,
        };
        let mut inputs = Vec::new();
        if ready.has(0) && self.timer.take() {
            inputs.push(Input::Timer);
        }
        if ready.has(1) {
            self.wake.take();
            inputs.extend(self.inbox.try_iter());
            let steps: Vec<StepTask> = self.steps.try_iter().collect();
            inputs.extend(steps.into_iter().filter_map(|step| self.give(Task::Step(step))));
        }
        Ok((inputs, ready.has(2)))
    }

    /// Steps the session and carries out its effects; gives the outcome once the session is over.
    pub fn step(&mut self, input: Input, job: &mut dyn ProtectedWork) -> Option<Outcome> {
        let mut inputs = VecDeque::from([input]);
        let mut outcome = None;
        while let Some(input) = inputs.pop_front() {
            if let Input::JobExited { tree_empty: true, .. } | Input::TreeEmpty = input {
                self.job_lives = false;
            }
            for effect in self.session.step(input, clock::now()) {
                match effect {
                    Effect::Arm(at) => self.alarm = at,
                    Effect::Store(mut request) => {
                        match &mut request {
                            Request::RecordItem { state, ending, .. } => ending.said = job.printed(*state),
                            Request::Ask { op: Op::Cas { log: Some(log), .. }, .. } | Request::Log(log)
                                if log.said.is_empty() =>
                            {
                                log.said = job.logged(log);
                            }
                            _ => {}
                        }
                        inputs.extend(self.give(Task::Request(request)));
                    }
                    Effect::Seal(granted) => job.seal(&granted, self.sender()),
                    Effect::Start { granted, by } => {
                        self.job_lives = true;
                        if let Err(exit) = job.start(&granted, by) {
                            inputs.push_back(Input::JobExited { exit, tree_empty: true });
                        }
                    }
                    Effect::Term => job.term(),
                    Effect::Kill => job.kill(),
                    Effect::Freeze => job.freeze(),
                    Effect::Thaw => job.thaw(),
                    Effect::Forward(signal) => job.forward(signal),
                    Effect::Tell(event) => job.tell(&event),
                    Effect::Done(ended) => outcome = Some(ended),
                }
            }
        }
        outcome
    }

    /// Gives a task to the store thread; gives the answer if there is one at once.
    fn give(&mut self, task: Task) -> Option<Input> {
        self.store_thread.give(task, self.job_lives)
    }

    /// Runs the session to its end. `each` sees the driver and the job after every step that did not
    /// end it; if it gives false, the session is interrupted.
    pub fn drive<J: ProtectedWork>(
        &mut self,
        job: &mut J,
        mut each: impl FnMut(&Self, &mut J) -> bool,
    ) -> io::Result<Outcome> {
        let mut inputs = vec![Input::Start];
        loop {
            for input in inputs {
                if let Some(outcome) = self.step(input, job) {
                    return Ok(outcome);
                }
            }
            if !each(self, job)
                && let Some(outcome) = self.step(Input::Signal(Signal::Term), job)
            {
                return Ok(outcome);
            }
            inputs = self.wait(None)?.0;
        }
    }

    /// Ends the store thread; waits for it, unless the outcome says that a store call may hang.
    pub fn finish(self, outcome: &Outcome) {
        let may_hang = match outcome {
            Outcome::Busy(_) | Outcome::Granted(_) => false,
            Outcome::Finished { release, .. } => *release == Release::Unconfirmed,
            Outcome::Lost { .. } | Outcome::NotStarted(_) => true,
        };
        self.store_thread.finish(may_hang);
    }
}
