//! Alerts: one message for each change, to a URL or a command. The record of a job in the store says what was told last,
//! so of several machines one tells it.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::core::alert::{ALERT_PREFIX, AlertKind, AlertRecord};
use leasehold::core::ledger::ItemState;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::core::update::{FoundRecord, Update, UpdateDecision, UpdateOutcome};
use leasehold::run_log::{Scope, Window, newest};
use leasehold::stores::{Failure, Store, each_stored};
use leasehold::update::{NextCall, Patience, StoreAnswer, drive, nothing};
use leasehold::{backends, clock, host, random};
use leasehold_run::notify::{AlertSettings, SecretUrl};
use serde_json::{Value, json};

use super::RunEnd;
use crate::config::{self, Chosen};
use crate::exit::NEEDS_YOU;
use crate::messages::{notify as say, refusals};
use crate::out::Out;

/// How long the store may take for one call.
const STORE_PATIENCE: Duration = Duration::from_secs(1);
/// How long the command of an alert may take: a mail server may be slow.
const COMMAND_PATIENCE: Duration = Duration::from_secs(10);
/// How far back the last run of a job is looked for.
const BACK: Duration = Duration::from_secs(90 * 86_400);

/// How a job stands now, for an alert.
pub struct Standing<'a> {
    pub job: &'a Name,
    /// What is wrong; nothing if all is well.
    pub kind: Option<AlertKind>,
    pub text: String,
}

/// The target that refused a write of this run, and why, as the run log has it.
pub fn refused(chosen: &Chosen, end: &RunEnd, lasted: Duration) -> Option<(String, String)> {
    let (job, run_id) = (end.job.as_ref()?, end.run_id.as_ref()?);
    let mut store = config::opener(chosen)().ok()?;
    store.limit_calls(STORE_PATIENCE);
    // The clocks of one machine: a minute is enough for what came before the command.
    let window = Window::last(lasted + Duration::from_secs(60));
    let is_refusal = |entry: &leasehold::run_log::LogEntry| entry.line.event() == Some(LogEvent::Refused);
    let (found, _) = newest(store.as_mut(), Scope::Job(job), window, 20, is_refusal).ok()?;
    found.into_iter().find_map(|mut entry| {
        entry.fill(store.as_mut()).ok()?;
        let record = entry.record.filter(|record| record.holder.run == *run_id)?;
        let target = backends::shown(&record.target?.target);
        let why = refusals::because(record.reason.as_deref(), &target);
        Some((target, why))
    })
}

/// Tells how a run ended, if that is a change. A skip is none, nor is a run that somebody interrupted.
pub fn of_run(settings: &AlertSettings, chosen: &Chosen, end: &RunEnd, out: &Out) {
    let Some(job) = &end.job else { return };
    let kind = match end.outcome {
        ItemState::Skipped | ItemState::Planned | ItemState::Started => return,
        ItemState::Killed if end.reason.as_deref() == Some("interrupted") => return,
        ItemState::Lost => Some(AlertKind::Lost),
        _ if end.refused.is_some() => Some(AlertKind::Refused),
        _ if end.exit == NEEDS_YOU && end.reason.is_some() => Some(AlertKind::Unknown),
        ItemState::Unknown => Some(AlertKind::Unknown),
        ItemState::Failed | ItemState::Killed => Some(AlertKind::Failed),
        ItemState::Ok => None,
    };
    // `why` knows a key by its own name.
    let name = job.as_str().strip_suffix(".once").unwrap_or(job.as_str());
    let text = match (kind, &end.refused) {
        (None, _) => say::well_again(name),
        (Some(AlertKind::Refused), Some((target, why))) if !target.is_empty() => {
            say::run_refused(name, target, why)
        }
        _ => say::run_ended(name, end.in_words()),
    };
    let Ok(mut store) = config::opener(chosen)() else { return };
    tell(settings, store.as_mut(), &Standing { job, kind, text }, out);
}

/// Tells how the jobs stand, and which are well again.
pub fn of_all(
    settings: &AlertSettings,
    store: &mut dyn Store,
    standings: &[Standing<'_>],
    out: &Out,
) -> Result<(), Failure> {
    for standing in standings {
        tell(settings, store, standing, out);
    }
    let mut open = Vec::new();
    each_stored(store, ALERT_PREFIX, "", |key, stored| {
        let job = key.strip_prefix(ALERT_PREFIX).and_then(|job| Name::new(job).ok());
        let record = job.and_then(|job| AlertRecord::decode(&job, &stored.body));
        open.extend(record.and_then(|record| Some((record.job, record.kind?))));
        true
    })?;
    for (job, kind) in open {
        if standings.iter().all(|standing| *standing.job != job) && is_well(store, &job, kind)? {
            tell(settings, store, &Standing { job: &job, kind: None, text: say::well_again(&job) }, out);
        }
    }
    Ok(())
}

/// Whether nothing is wrong any more. What failed is well again when a run went well, or a person has decided.
fn is_well(store: &mut dyn Store, job: &Name, kind: AlertKind) -> Result<bool, Failure> {
    if kind == AlertKind::Overdue {
        return Ok(true);
    }
    let ends = |event: LogEvent| event.is_run() || matches!(event, LogEvent::Done | LogEvent::Retry);
    let (found, _) =
        newest(store, Scope::Job(job), Window::last(BACK), 1, |entry| entry.line.event().is_some_and(ends))?;
    let last = found.first().and_then(|entry| entry.line.event());
    Ok(matches!(last, Some(LogEvent::Ok | LogEvent::Done | LogEvent::Retry)))
}

/// Sends one message, if it is news.
fn tell(settings: &AlertSettings, store: &mut dyn Store, standing: &Standing<'_>, out: &Out) {
    let Standing { job, kind, text } = standing;
    if kind.is_some_and(|kind| !settings.on.contains(&kind)) {
        return;
    }
    let since = host::utc(clock::wall().as_secs());
    match noted(store, job, *kind, &since) {
        Ok(false) => return,
        Ok(true) => {}
        Err(failure) => return out.note(&say::not_alerted(job, failure.message.trim_end_matches('.'))),
    }
    let word = kind.map_or("ok", AlertKind::word);
    let message = json!({"v": 1, "job": job.as_str(), "kind": word, "since": since, "text": text});
    if let Some(url) = &settings.url
        && let Err((place, why)) = to_url(url, &message)
    {
        out.note(&say::not_alerted(place, why));
    }
    if let Some(program) = settings.command.first()
        && let Err(why) = to_command(&settings.command, &message)
    {
        out.note(&say::not_alerted(say::alert_command(program), why));
    }
}

/// Stores how the job stands. True: it stood otherwise until now, and nobody else tells it.
fn noted(store: &mut dyn Store, job: &Name, kind: Option<AlertKind>, since: &str) -> Result<bool, Failure> {
    let limit = store.limit_calls(STORE_PATIENCE);
    let mut update: Update<AlertRecord> = Update::new(random::seed());
    let decide = |found: Option<FoundRecord<AlertRecord, ()>>, write| {
        // A record that cannot be read is replaced: it decides nothing but who tells.
        let found = found.and_then(|found| found.record.ok());
        match AlertRecord::change(found.as_ref(), job, kind, since, write) {
            Some(next) => UpdateDecision::Write(next),
            None => UpdateDecision::Stop(()),
        }
    };
    let decoded = |body: &[u8]| AlertRecord::decode(job, body).ok_or(());
    let (key, between) = (format!("{ALERT_PREFIX}{job}"), &mut nothing);
    let patience = Patience { until: clock::boot_time().plus(STORE_PATIENCE), between };
    let done = drive(store, &key, NextCall::Read, Some(patience), |_, answer| {
        let next = match answer {
            StoreAnswer::Read(read) => {
                update.on_read(read.map(|found| found.map(|stored| FoundRecord::of(stored, decoded))), decide)
            }
            StoreAnswer::Cas(cas) => update.on_cas(cas),
        };
        NextCall::of(next, |record| Some(record.encode()))
    });
    store.limit_calls(limit);
    match done? {
        UpdateOutcome::Landed { .. } => Ok(true),
        UpdateOutcome::Stopped(()) => Ok(false),
        UpdateOutcome::Failed { failure, .. } => Err(failure),
    }
}

/// The error has the host, if it is known, and never the URL.
#[cfg(feature = "http")]
fn to_url(url: &SecretUrl, message: &Value) -> Result<(), (String, String)> {
    use super::post::{self, Post};
    let nowhere = |why: String| ("url".to_owned(), why);
    let (url, host) = url.read().and_then(|url| post::url(&url)).map_err(nowhere)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| (host.clone(), e.to_string()))?;
    let client = post::client(&url).map_err(|why| (host.clone(), why))?;
    let post = Post { url, kind: "application/json", body: message.to_string() };
    let sent = runtime.block_on(post::send(&client, post));
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    sent.map_err(|why| (host, why))
}

#[cfg(not(feature = "http"))]
fn to_url(_: &SecretUrl, _: &Value) -> Result<(), (String, String)> {
    Err(("url".into(), say::no_http()))
}

/// Runs a command that reads the message. It is ended if it takes too long.
fn to_command(command: &[String], message: &Value) -> Result<(), String> {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read it. The message is smaller than what a pipe holds.
        let _ = stdin.write_all(format!("{message}\n").as_bytes());
    }
    let ended = waited(&mut child).map_err(|e| e.to_string())?;
    match ended {
        None => Err(say::no_answer_in_time()),
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(status.to_string()),
    }
}

fn waited(child: &mut Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    let end = clock::boot_time().plus(COMMAND_PATIENCE);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if clock::boot_time() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
