//! Leases by hand: acquire, renew, release and revoke without a job. For scripts and operators.

use std::time::Duration;

use leasehold_core::ids::Grant;
use leasehold_core::name::Name;
use leasehold_core::one_shot::{OneShot, OneShotOutcome, OneShotVerb};
use leasehold_core::record::LeaseRecord;
use leasehold_core::run_log::{LogEvent, LogId, LogRecord};
use leasehold_core::session::{
    Event, Granted, JobExit, LogPlan, Outcome, SessionPlan, Signal, Within, lease_key,
};
use leasehold_core::time::BootTime;
use leasehold_core::timing::Timing;

use crate::driver::{Driver, InputSender, ProtectedWork};
use crate::run_log::LogWriter;
use crate::seen_tokens::SeenTokens;
use crate::store_thread::reading;
use crate::stores::Store;
use crate::update::{NextCall, StoreAnswer, drive};
use crate::{clock, host, random};

/// A lease to acquire by hand.
#[derive(Debug)]
pub struct AcquireRequest {
    /// The lease.
    pub lease: Name,
    /// The name of the work.
    pub job: Name,
    /// Checked timing.
    pub timing: Timing,
    /// How long to wait while it is held.
    pub wait: Duration,
    /// Take it even while held.
    pub force: bool,
    /// The runs that this command was started by. Their leases are never waited for.
    pub within: Within,
}

/// Acquires a lease that is not renewed: [`Outcome::Granted`], [`Outcome::Busy`] or [`Outcome::NotStarted`].
pub fn acquire(ask: &AcquireRequest, store: Box<dyn Store>, memory: SeenTokens) -> std::io::Result<Outcome> {
    let mut driver = session(ask, store, memory)?;
    let outcome = driver.drive(&mut NoJob, |_, _| true)?;
    driver.finish(&outcome);
    Ok(outcome)
}

/// The session for [`acquire`], not started yet; its job is [`NoJob`].
pub fn session(ask: &AcquireRequest, store: Box<dyn Store>, memory: SeenTokens) -> std::io::Result<Driver> {
    Driver::new(plan(ask, &memory), store, memory, None, LogWriter::without_state())
}

fn plan(ask: &AcquireRequest, memory: &SeenTokens) -> SessionPlan {
    SessionPlan {
        leases: vec![memory.recall(&ask.lease)],
        grant: Grant(random::seed()),
        timing: ask.timing,
        wait: ask.wait,
        max_run: None,
        seal: false,
        item: None,
        log: LogPlan::Nothing,
        by_hand: true,
        force: ask.force,
        lock: None,
        holder: host::holder(&host::fresh_run_id(None), &ask.job),
        within: ask.within.clone(),
    }
}

/// Renews, releases or revokes.
pub fn one_shot(verb: OneShotVerb, lease: &Name, store: &mut dyn Store) -> OneShotOutcome {
    let mut one_shot = OneShot::new(verb, lease.clone(), store.facts().store_clock(), random::seed());
    let outcome = drive(store, &lease_key(lease), NextCall::Read, None, |store, answer| {
        NextCall::from(match answer {
            StoreAnswer::Read(read) => one_shot.on_read(read.map(|stored| reading(store, stored))),
            StoreAnswer::Cas(cas) => one_shot.on_cas(cas),
        })
    });
    outcome.unwrap_or_else(|failure| OneShotOutcome::Failed { failure, sent: true })
}

/// The record of the run log about a lease that was released by hand. Its duration is by the holder's wall clock.
pub fn released(record: &LeaseRecord, grant: Grant) -> Option<LogRecord> {
    let now = clock::wall();
    let holder = record.holder.clone();
    let since = holder.since.parse::<jiff::Timestamp>().ok();
    let since = since.and_then(|since| u64::try_from(since.as_second()).ok()).map(Duration::from_secs);
    let job = Name::new(&holder.job).ok()?;
    Some(LogRecord {
        lease: Some(record.lease.clone()),
        token: Some(record.token),
        took: since.and_then(|since| now.checked_sub(since)),
        ..LogRecord::new(now, LogEvent::Released, job, LogId::of(grant.0), holder)
    })
}

/// The job of a session by hand: none. The session ends with the grant.
#[derive(Debug)]
pub struct NoJob;

impl ProtectedWork for NoJob {
    fn start(&mut self, _granted: &Granted, _: BootTime) -> Result<(), JobExit> {
        Err(JobExit::Failed(126))
    }
    // By hand no target is named, so this is never called.
    fn seal(&mut self, _granted: &Granted, _session: InputSender) {}
    fn term(&mut self) {}
    fn kill(&mut self) {}
    fn freeze(&mut self) {}
    fn thaw(&mut self) {}
    fn forward(&mut self, _signal: Signal) {}
    fn tell(&mut self, _event: &Event) {}
}
