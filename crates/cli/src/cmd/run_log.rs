//! Records of the run log that commands write themselves: what a person did, a refused write, an observed run.

use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::run_log::unlogged::Unlogged;
use leasehold::seen_tokens::SeenTokens;
use leasehold::targets::{Refused, TargetError};
use leasehold::{clock, host, random};
use leasehold_run::runner::environment::RUN_STORE;

use super::OpenedStore;
use crate::args::Everywhere;
use crate::config::{self, Chosen};

/// The user who types a command, for people: `me@mac-mini/8123`.
pub fn who() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user = named.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    format!("{user}@{}/{}", host::name(), std::process::id())
}

/// A record about something that this process did.
pub fn record(event: LogEvent, job: &Name) -> LogRecord {
    let holder = host::holder(&host::fresh_run_id(None), job);
    LogRecord::new(clock::wall(), event, job.clone(), LogId::of(random::seed()), holder)
}

/// Logs what a person did.
pub fn by_person(
    opened: &mut OpenedStore,
    event: LogEvent,
    job: &Name,
    with: impl FnOnce(LogRecord) -> LogRecord,
) {
    let record = with(LogRecord { said: who(), ..record(event, job) });
    opened.log.write(opened.store.as_mut(), &record);
}

/// Logs a record on a store that is opened for it.
pub fn on(flags: &Everywhere, chosen: &Chosen, record: &LogRecord) {
    let Ok(state) = config::state_dir() else { return };
    let log = SeenTokens::new(state, chosen.shown.clone()).log_writer(config::wishes(flags).retention);
    match config::opener(chosen)() {
        Ok(mut store) => log.write(store.as_mut(), record),
        Err(_) => log.keep(record),
    }
}

/// As [`refused`], of any failure of a target.
pub fn if_refused(error: &TargetError) {
    if let TargetError::Refused(refused) = error {
        self::refused(refused);
    }
}

/// Keeps a refusal for the run that this process is part of, which logs it when it ends. A job has no store.
pub fn refused(refused: &Refused) {
    let Ok(state) = config::state_dir() else { return };
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let job = text("LEASEHOLD_JOB").and_then(|job| Name::new(&job).ok());
    let job = job.unwrap_or_else(|| refused.lease.clone());
    let record = record(LogEvent::Refused, &job);
    let mut holder = record.holder.clone();
    holder.run = text(host::RUN_ID).unwrap_or(holder.run);
    Unlogged::new(state, text(RUN_STORE)).keep(&LogRecord {
        reason: Some(refused.reason.word().into()),
        lease: Some(refused.lease.clone()),
        token: Some(refused.token),
        target: Some(RefusedWrite { target: refused.target.clone(), fence: refused.sealed() }),
        holder,
        ..record
    });
}
