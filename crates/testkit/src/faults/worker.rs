//! One contender: session after session of the real code, until the faults are used up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::core::ids::Grant;
use leasehold::core::session::{
    Event, Exit, Granted, History, Input, NotStarted, Outcome, Plan, Release, Signal, Within,
};
use leasehold::core::time::BootTime;
use leasehold::core::timing::{StoreClock, Timing, Wishes};
use leasehold::driver::{InputSender, Job, Shell};
use leasehold::seen_tokens::Memory;
use leasehold::stores::{FailureKind, Store};
use leasehold::{host, random};

use super::Mode;
use super::aimed::{Aimed, Kept, Log};
use super::lane::{Lane, Run};
use super::report::Kind;
use crate::proxy::{Fault, lock};

/// Nothing expires in a run, so whoever takes a lease that is held has been given it twice.
const TTL: Duration = Duration::from_secs(600);
pub(super) const HEARTBEAT: Duration = Duration::from_millis(10);
/// How long a sender waits for an answer; one that never comes should not take long.
const TIMEOUT: Duration = Duration::from_secs(10);
const LATE_TIMEOUT: Duration = Duration::from_secs(3);
const RENEWALS: usize = 2;

/// The work under the lease: it sees that it is alone.
struct Alone {
    lane: Arc<Lane>,
    run: Arc<Run>,
    direct: Kept,
    log: Arc<Mutex<Log>>,
    started: bool,
    renewals: usize,
    stopping: Option<String>,
}

impl Job for Alone {
    fn start(&mut self, granted: &Granted, _: BootTime) -> Result<(), Exit> {
        lock(&self.log).granted = true;
        self.started = true;
        self.lane.enter(&self.run, granted, lock(&self.direct).as_mut());
        Ok(())
    }
    fn seal(&mut self, _: &Granted, _: InputSender) {}
    fn term(&mut self) {}
    fn kill(&mut self) {}
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _: Signal) {}
    fn tell(&mut self, event: &Event) {
        match event {
            Event::Renewed => self.renewals += 1,
            Event::Stopping(why) => self.stopping = Some(why.to_string()),
            _ => {}
        }
    }
}

/// A plan for one lease, as the command line would make it.
pub(super) fn plan(lane: &Lane, store: &dyn Store, grant: Grant, heartbeat: Duration) -> Plan {
    let facts = store.facts();
    let store_clock = StoreClock { resolution: facts.resolution, jump: facts.jump };
    let wishes = Wishes { ttl: Some(TTL), heartbeat: Some(heartbeat), grace: None };
    let timing = Timing::new(wishes, store_clock).expect("that fits");
    Plan {
        leases: vec![Memory::none().recall(&lane.name)],
        grant,
        timing,
        wait: Duration::ZERO,
        max_run: None,
        seal: false,
        item: None,
        history: History::Nothing,
        by_hand: false,
        force: false,
        lock: None,
        holder: host::holder("faults", &lane.name),
        within: Within::default(),
    }
}

pub(super) fn work(run: &Arc<Run>, lane: &Arc<Lane>, through: Box<dyn Store>, direct: Box<dyn Store>) {
    let (inner, direct): (Kept, Kept) = (Arc::new(Mutex::new(through)), Arc::new(Mutex::new(direct)));
    while run.goes_on() {
        session(run, lane, &inner, &direct);
    }
}

fn session(run: &Arc<Run>, lane: &Arc<Lane>, inner: &Kept, direct: &Kept) {
    let grant = Grant(random::seed());
    let log = Arc::new(Mutex::new(Log::new()));
    let mut plan = plan(lane, lock(inner).as_ref(), grant, HEARTBEAT);
    plan.timing.timeout = if run.mode == Mode::Late { LATE_TIMEOUT } else { TIMEOUT };
    let trusted_for = plan.timing.trusted_for();
    let (lane, run) = (lane.clone(), run.clone());
    let aimed = Aimed {
        inner: inner.clone(),
        direct: direct.clone(),
        lane: lane.clone(),
        run: run.clone(),
        log: log.clone(),
    };
    let mut shell = Shell::new(plan, Box::new(aimed), Memory::none(), None).expect("a timer and a pipe");
    let mut job = Alone {
        lane: lane.clone(),
        run: run.clone(),
        direct: direct.clone(),
        log: log.clone(),
        started: false,
        renewals: 0,
        stopping: None,
    };
    let mut deadline = None;
    let mut ended = shell.step(Input::Start, &mut job);
    while ended.is_none() {
        check_deadline(&run, &log, &mut deadline, shell.stop_at(), trusted_for);
        if job.started && (job.renewals >= RENEWALS || job.stopping.is_some()) {
            lane.leave(grant);
            ended = shell.step(Input::JobExited { exit: Exit::Code(0), tree_empty: true }, &mut job);
            job.started = false;
            continue;
        }
        for input in shell.wait(None).expect("poll").0 {
            ended = ended.or(shell.step(input, &mut job));
        }
    }
    let outcome = ended.expect("it ended");
    shell.finish(&outcome);
    lane.leave(grant);
    let fault = lock(&log).fault.take();
    judge(&run, &lane, &outcome, grant, fault.as_ref(), direct);
    lane.leave_behind(std::mem::take(&mut lock(&log).late));
}

/// The deadline moves by the send time of an attempt that landed, and by no other.
fn check_deadline(
    run: &Run,
    log: &Mutex<Log>,
    known: &mut Option<BootTime>,
    stop_at: Option<BootTime>,
    trusted_for: Duration,
) {
    let Some(at) = stop_at.filter(|at| Some(*at) != *known) else { return };
    *known = Some(at);
    run.note(|r| r.deadlines += 1);
    let from = at.minus(trusted_for);
    let log = lock(log);
    let sent = log.attempts.iter().find(|a| a.after <= from && from <= a.entered);
    match sent {
        None => run.violated(Kind::Deadline, "a deadline that counts from no attempt".into()),
        Some(sent) if !sent.landed => {
            run.violated(
                Kind::Deadline,
                format!("a deadline that counts from {}, which did not land", sent.write),
            );
        }
        Some(_) => {}
    }
}

fn judge(run: &Run, lane: &Lane, outcome: &Outcome, grant: Grant, fault: Option<&Fault>, direct: &Kept) {
    match outcome {
        Outcome::Busy(_) => return lane.wait_a_moment(),
        Outcome::Finished { status: 0, stopped: None, release: Release::Done, .. } => {
            if lane.free(run, grant, lock(direct).as_mut()) {
                run.violated(Kind::Answer, format!("{} was given back, and is held", lane.name));
            }
            return;
        }
        // It would expire by itself.
        Outcome::Finished { status: 0, stopped: None, release: Release::Unconfirmed, .. } => {}
        Outcome::Lost { why, .. } => {
            run.violated(Kind::Lost, format!("{}: {why} (after {fault:?})", lane.name))
        }
        // Silent for too long; or an answer that a store may take for the end of it, with its claim open.
        Outcome::NotStarted(NotStarted::Store { failure, in_doubt })
            if failure.kind == FailureKind::Unreachable
                || (*in_doubt && matches!(fault, Some(Fault::Answer { .. }))) =>
        {
            run.note(|r| r.gave_up += 1);
        }
        other => run.violated(Kind::Outcome, format!("{other:?} (after {fault:?})")),
    }
    lane.free(run, grant, lock(direct).as_mut());
}
