//! The shell around a session: carries out its effects and decides nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, Sender};

use leasehold_core::past::End;
use leasehold_core::session::{
    Effect, Event, Granted, Input, Outcome, Phase, Plan, Release, Session, Signal, StopReason,
};
use leasehold_core::time::BootTime;

use crate::keeper::{Keeper, Work};
use crate::memory::Memory;
use crate::runner::poll::{self, Timer, Wake};
use crate::stores::Store;
use crate::{clock, host, random};

/// What a session can do to the work it protects. Two things are: a process tree and a future.
pub trait Job {
    /// Starts it, by then or not at all. An error is its exit status, as a shell would say it.
    fn start(&mut self, granted: &Granted, by: Option<BootTime>) -> Result<(), i32>;
    /// Begins to raise the fences of the targets named beforehand; it may take as long as the lease is
    /// renewed. The session waits for [`Input::Sealed`].
    fn seal(&mut self, granted: &Granted, session: InputSender);
    /// What is to be done in place of telling the session this: the item is begun when all is sealed and it is to start.
    /// The answer is what the session hears.
    fn instead(&mut self, _input: &Input, _to_start: bool) -> Option<Work> {
        None
    }
    /// What is to be done before the lease is given back: how it ended is recorded, or that it was never started. The
    /// session has heard of the end by then: however long this takes, it ended when it did.
    /// `stop_at`: until when the lease is surely ours. `stopped`: why it had to be ended, if it had to.
    fn before_release(&mut self, _stop_at: Option<BootTime>, _stopped: Option<&StopReason>) -> Option<Work> {
        None
    }
    /// How it ended, for people, once it has or cannot begin: kept in the lease's record. Nothing: that is not to be kept.
    fn end(&mut self) -> Option<End> {
        None
    }
    /// Asks all of it to end.
    fn term(&mut self);
    /// Ends all of it.
    fn kill(&mut self);
    /// Stops its execution.
    fn freeze(&mut self);
    /// Lets it go on.
    fn thaw(&mut self);
    /// Passes a signal on.
    fn forward(&mut self, signal: Signal);
    /// Hears what happens.
    fn tell(&mut self, event: &Event);
}

/// A session with its keeper and what wakes it: a boot-time alarm and an inbox.
#[derive(Debug)]
pub struct Shell {
    session: Session,
    keeper: Keeper,
    /// Something may have to be stopped in time.
    job_lives: bool,
    alarm: Option<BootTime>,
    timer: Timer,
    wake: Wake,
    inbox: Receiver<Input>,
    inputs: InputSender,
    /// Work for the keeper from other threads.
    works: Receiver<Work>,
    work: WorkSender,
}

/// Hands work to a shell's keeper from another thread.
#[derive(Clone, Debug)]
pub struct WorkSender {
    works: Sender<Work>,
    wake: Wake,
}

impl WorkSender {
    /// One without a shell, and what it is sent.
    #[cfg(test)]
    pub(crate) fn alone() -> io::Result<(Self, Receiver<Work>)> {
        let (works, inbox) = mpsc::channel();
        Ok((Self { works, wake: Wake::new()? }, inbox))
    }

    /// Sends some. A shell that has ended does not do it.
    pub fn send(&self, work: Work) {
        let _ = self.works.send(work);
        self.wake.wake();
    }
}

/// Hands inputs to a shell from another thread.
#[derive(Clone, Debug)]
pub struct InputSender {
    inputs: Sender<Input>,
    wake: Wake,
}

impl InputSender {
    /// One without a shell, and what it is sent.
    #[cfg(test)]
    pub(crate) fn alone() -> io::Result<(Self, Receiver<Input>)> {
        let (inputs, inbox) = mpsc::channel();
        Ok((Self { inputs, wake: Wake::new()? }, inbox))
    }

    /// Sends one. A shell that has ended does not hear it.
    pub fn send(&self, input: Input) {
        let _ = self.inputs.send(input);
        self.wake.wake();
    }
}

impl Shell {
    /// A session about to start, and the keeper of its store.
    pub fn new(plan: Plan, mut store: Box<dyn Store>, memory: Memory) -> io::Result<Self> {
        store.limit_calls(plan.timing.timeout);
        let (timer, wake) = (Timer::new()?, Wake::new()?);
        let (inputs, inbox) = mpsc::channel();
        let inputs = InputSender { inputs, wake: wake.clone() };
        let replies = inputs.clone();
        let keeper = Keeper::new(store, memory, move |input| replies.send(input));
        let (sender, works) = mpsc::channel();
        let work = WorkSender { works: sender, wake: wake.clone() };
        let session = Session::new(plan, random::seed());
        Ok(Self { session, keeper, job_lives: false, alarm: None, timer, wake, inbox, inputs, works, work })
    }

    /// For inputs from elsewhere.
    pub fn sender(&self) -> InputSender {
        self.inputs.clone()
    }

    /// For the keeper's work from elsewhere.
    pub fn work_sender(&self) -> WorkSender {
        self.work.clone()
    }

    /// When the job must begin to stop unless a renewal is confirmed.
    pub fn stop_at(&self) -> Option<BootTime> {
        self.session.stop_at()
    }

    /// Why the job is being ended, if it is.
    pub fn stopped(&self) -> Option<&StopReason> {
        self.session.stopped()
    }

    /// Sleeps until there is something to step with; `also` is another descriptor to wake for.
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
        // Who waited for a lease has it since now, not since it began to wait.
        if self.session.phase() == Phase::Looking {
            self.session.dated(host::utc(clock::wall().as_secs()));
        }
        let mut inputs = Vec::new();
        if ready.has(0) && self.timer.take() {
            inputs.push(Input::Timer);
        }
        if ready.has(1) {
            self.wake.take();
            inputs.extend(self.inbox.try_iter());
            let works: Vec<Work> = self.works.try_iter().collect();
            inputs.extend(works.into_iter().filter_map(|work| self.give(work)));
        }
        Ok((inputs, ready.has(2)))
    }

    /// Steps the session and carries out what it says; the outcome once it is over.
    pub fn step(&mut self, input: Input, job: &mut dyn Job) -> Option<Outcome> {
        let mut inputs = VecDeque::from([input]);
        let mut outcome = None;
        while let Some(input) = inputs.pop_front() {
            if let Input::JobExited { tree_empty: true, .. } | Input::TreeEmpty = input {
                self.job_lives = false;
            }
            if let Some(work) = job.instead(&input, self.session.is_to_start()) {
                inputs.extend(self.give(work));
                continue;
            }
            if matches!(input, Input::JobExited { .. } | Input::TreeEmpty | Input::Sealed(Err(_))) {
                self.session.ends(job.end());
            }
            let effects = self.session.step(input, clock::now());
            if self.session.is_ending() {
                let first = job.before_release(self.session.stop_at(), self.session.stopped());
                first.map(|work| self.give(work));
            }
            for effect in effects {
                match effect {
                    Effect::Arm(at) => self.alarm = at,
                    Effect::Ask { id, lease, op } => inputs.extend(self.give(Work::Ask { id, lease, op })),
                    Effect::Watch { id, lease, version, until } => {
                        inputs.extend(self.give(Work::Watch { id, lease, version, until }));
                    }
                    Effect::Probe { grant, run, lock } => {
                        inputs.extend(self.give(Work::Probe { grant, run, lock }));
                    }
                    Effect::Remember { lease, seen, watched } => {
                        inputs.extend(self.give(Work::Remember { lease, seen, watched }));
                    }
                    Effect::Discard(grant) => inputs.extend(self.give(Work::Discard(grant))),
                    Effect::Seal(granted) => job.seal(&granted, self.sender()),
                    Effect::Start(granted) => {
                        self.job_lives = true;
                        if let Err(status) = job.start(&granted, self.session.stop_at()) {
                            inputs.push_back(Input::JobExited { status, tree_empty: true });
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

    /// Has the keeper do it; the answer, if it is there at once.
    pub fn give(&mut self, work: Work) -> Option<Input> {
        self.keeper.give(work, self.job_lives)
    }

    /// Runs the session to its end. `each` sees the shell and the job after every step that did not
    /// end it; if it says no, the session is interrupted.
    pub fn drive<J: Job>(
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

    /// Ends the keeper; waits for it, unless the outcome says that a store call may hang.
    pub fn finish(self, outcome: &Outcome) {
        let answered = match outcome {
            Outcome::Busy(_) | Outcome::Granted(_) => true,
            Outcome::Finished { release, .. } => *release != Release::Unconfirmed,
            Outcome::Lost { .. } | Outcome::NotStarted(_) => false,
        };
        self.keeper.finish(answered);
    }

    /// The same when the store has answered since: what was given up on, as the release of the lease, is done yet.
    pub fn finish_all(self) {
        self.keeper.finish(true);
    }
}
