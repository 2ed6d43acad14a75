//! One contender: it runs sessions of the real code until all faults were caused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::core::ids::Grant;
use leasehold::core::session::{
    Event, Granted, Input, JobExit, LogPlan, NotStarted, Outcome, Release, SessionPlan, Signal, Within,
};
use leasehold::core::time::BootTime;
use leasehold::core::timing::{Timing, TimingWishes};
use leasehold::driver::{Driver, InputSender, ProtectedWork};
use leasehold::run_log::LogWriter;
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::{FailureKind, Store};
use leasehold::{host, random};

use super::FaultMode;
use super::aimed::{Aimed, Log, WarmStore};
use super::lane::{FaultRun, Lane};
use super::report::Violation;
use crate::proxy::{Fault, lock};

/// No lease expires during a run, so a lease that is taken while it is held was granted twice.
const TTL: Duration = Duration::from_secs(600);
pub(super) const HEARTBEAT: Duration = Duration::from_millis(10);
/// How long a sender waits for an answer. It is short, because some answers never come.
const TIMEOUT: Duration = Duration::from_secs(10);
const LATE_TIMEOUT: Duration = Duration::from_secs(3);
const RENEWALS: usize = 2;

/// The work under the lease: it checks that no other holder works.
struct Alone {
    lane: Arc<Lane>,
    run: Arc<FaultRun>,
    direct: WarmStore,
    log: Arc<Mutex<Log>>,
    started: bool,
    renewals: usize,
    stopping: Option<String>,
}

impl ProtectedWork for Alone {
    fn start(&mut self, granted: &Granted, _: BootTime) -> Result<(), JobExit> {
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
pub(super) fn plan(lane: &Lane, store: &dyn Store, grant: Grant, heartbeat: Duration) -> SessionPlan {
    let facts = store.facts();
    let wishes = TimingWishes { ttl: Some(TTL), heartbeat: Some(heartbeat), grace: None };
    let timing = Timing::new(wishes, facts.store_clock()).expect("that fits");
    SessionPlan {
        leases: vec![SeenTokens::none().recall(&lane.name)],
        grant,
        timing,
        wait: Duration::ZERO,
        max_run: None,
        seal: false,
        item: None,
        log: LogPlan::Nothing,
        by_hand: false,
        force: false,
        lock: None,
        holder: host::holder("faults", &lane.name),
        within: Within::default(),
    }
}

pub(super) fn work(run: &Arc<FaultRun>, lane: &Arc<Lane>, through: Box<dyn Store>, direct: Box<dyn Store>) {
    let (inner, direct): (WarmStore, WarmStore) =
        (Arc::new(Mutex::new(through)), Arc::new(Mutex::new(direct)));
    while run.goes_on() {
        session(run, lane, &inner, &direct);
    }
}

fn session(run: &Arc<FaultRun>, lane: &Arc<Lane>, inner: &WarmStore, direct: &WarmStore) {
    let grant = Grant(random::seed());
    let log = Arc::new(Mutex::new(Log::new()));
    let mut plan = plan(lane, lock(inner).as_ref(), grant, HEARTBEAT);
    plan.timing.timeout = if run.mode == FaultMode::Late { LATE_TIMEOUT } else { TIMEOUT };
    let trusted_for = plan.timing.trusted_for();
    let (lane, run) = (lane.clone(), run.clone());
    let aimed = Aimed {
        inner: inner.clone(),
        direct: direct.clone(),
        lane: lane.clone(),
        run: run.clone(),
        log: log.clone(),
    };
    let mut shell = Driver::new(plan, Box::new(aimed), SeenTokens::none(), None, LogWriter::without_state())
        .expect("a timer and a pipe");
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
            ended = shell.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true }, &mut job);
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
    run: &FaultRun,
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
        None => run.violated(Violation::Deadline, "a deadline that counts from no attempt".into()),
        Some(sent) if !sent.landed => {
            run.violated(
                Violation::Deadline,
                format!("a deadline that counts from {}, which did not land", sent.write),
            );
        }
        Some(_) => {}
    }
}

fn judge(
    run: &FaultRun,
    lane: &Lane,
    outcome: &Outcome,
    grant: Grant,
    fault: Option<&Fault>,
    direct: &WarmStore,
) {
    match outcome {
        Outcome::Busy(_) => return lane.wait_a_moment(),
        Outcome::Finished { status: 0, stopped: None, release: Release::Done, .. } => {
            if lane.free(run, grant, lock(direct).as_mut()) {
                run.violated(Violation::Answer, format!("{} was given back, and is held", lane.name));
            }
            return;
        }
        // It would expire anyway.
        Outcome::Finished { status: 0, stopped: None, release: Release::Unconfirmed, .. } => {}
        Outcome::Lost { why, .. } => {
            run.violated(Violation::Lost, format!("{}: {why} (after {fault:?})", lane.name))
        }
        // No answer in time, or one that a store may report as a failure while the claim is open.
        Outcome::NotStarted(NotStarted::Store { failure, in_doubt })
            if failure.kind == FailureKind::Unreachable
                || (*in_doubt && matches!(fault, Some(Fault::Answer { .. }))) =>
        {
            run.note(|r| r.gave_up += 1);
        }
        other => run.violated(Violation::Outcome, format!("{other:?} (after {fault:?})")),
    }
    lane.free(run, grant, lock(direct).as_mut());
}
