//! `--report`, `--report-append` and `--json` of `run`: how a run ended, which an exit code alone cannot say.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use leasehold::core::ledger::{ItemState, Opened, SettleReason};
use leasehold::core::session::{Outcome, StopReason};
use leasehold::{host, state};
use leasehold_run::runner::run::{RunResult, RunSpec};
use serde_json::{Value, json};

use crate::args::ReportArgs;
use crate::cmd::item_args;
use crate::cmd::run::ReportOptions;
use crate::exit::Failed;
use crate::messages::report as say;
use crate::out::{self, Out};

/// Checks, before anything is run, that a report can be written.
pub fn check(reports: &ReportArgs) -> Result<(), Failed> {
    reports
        .report
        .iter()
        .chain(&reports.report_append)
        .try_for_each(|path| state::check_writable(path).map_err(|e| say::unwritable(path.display(), e)))
}

/// How a run ended, and the object that says so.
pub struct Report {
    /// The outcome, which the object has as a word.
    pub outcome: ItemState,
    /// What is written.
    pub object: Value,
}

/// Writes the report to each place that was asked for. A report that cannot be written changes no exit code.
pub fn write(reports: &ReportArgs, out: &Out, made: impl FnOnce() -> Report) {
    let ReportArgs { report, report_append } = reports;
    if report.is_none() && report_append.is_none() && !out.json {
        return;
    }
    let Report { outcome, object } = made();
    // A reader that closed the pipe wants no more.
    if out.json && !out.object(&object) && out::lost() {
        out.warn(&say::object_lost(outcome.word()));
    }
    let line = format!("{object}\n");
    let replaced = report.as_ref().map(|path| (path, replace(path, &line, outcome == ItemState::Skipped)));
    let appended = report_append.as_ref().map(|path| (path, append(path, &line)));
    for (path, written) in replaced.into_iter().chain(appended) {
        if let Err(e) = written {
            out.warn(&say::file_lost(outcome.word(), path.display(), e));
        }
    }
}

/// A skip never replaces a report: its reader wants to know how the last run ended.
fn replace(path: &Path, line: &str, skipped: bool) -> io::Result<()> {
    if skipped && fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        return Ok(());
    }
    // A run may have ended since that check: its report is kept.
    if skipped { append(path, line) } else { save(OpenOptions::new().write(true).truncate(true), path, line) }
}

/// In one write, so that lines of several runs do not mix. A line that a full disk cut off is ended first.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let line = if is_cut_off(path) { format!("\n{line}") } else { line.into() };
    save(OpenOptions::new().append(true), path, &line)
}

/// Whether a file ends in the middle of a line. A pipe has no end.
fn is_cut_off(path: &Path) -> bool {
    let last = || {
        let mut file = fs::File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        io::Result::Ok(last)
    };
    fs::metadata(path).is_ok_and(|found| found.is_file()) && last().is_ok_and(|last| last != *b"\n")
}

/// Fails for a pipe without a reader, instead of waiting for one.
fn save(how: &mut OpenOptions, path: &Path, line: &str) -> io::Result<()> {
    let at_once = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    how.create(true).custom_flags(at_once).open(path)?.write_all(line.as_bytes())
}

/// A run that failed before it asked for a lease.
pub fn early(args: &ReportOptions<'_>, failed: &Failed) -> Report {
    let outcome = ItemState::Failed;
    let object = json!({
        "v": 1,
        "time": host::utc(leasehold::clock::wall().as_secs()),
        "job": args.job.unwrap_or(args.lease),
        "lease": args.lease,
        "exit": failed.code(),
        "duration_s": 0.0,
        "outcome": outcome.word(),
        "reason": failed.word,
    });
    Report { outcome, object }
}

/// A run whose item is not run now.
pub fn item(spec: &RunSpec, opened: &Opened, result: &Result<u8, Failed>) -> Report {
    let (outcome, reason) = item_args::outcome(opened);
    let object = json!({
        "v": 1,
        "time": item_args::now(),
        "job": spec.job.as_str(),
        "lease": spec.leases[0].as_str(),
        "run_id": spec.run_id,
        "exit": result.as_ref().map_or_else(|failed| failed.code(), |code| *code),
        "duration_s": 0.0,
        "outcome": outcome.word(),
        "reason": reason,
    });
    Report { outcome, object }
}

/// The outcome of a run.
fn outcome(ran: &RunResult) -> ItemState {
    match &ran.outcome {
        Outcome::Busy(_) => ItemState::Skipped,
        Outcome::Lost { .. } => ItemState::Lost,
        Outcome::Finished { state, .. } => *state,
        Outcome::Granted(_) => ItemState::Ok,
        Outcome::NotStarted(_) => ItemState::Failed,
    }
}

/// A run that asked for a lease.
pub fn record(spec: &RunSpec, ran: &RunResult, result: &Result<u8, Failed>) -> Report {
    let exit = match result {
        Ok(code) => *code,
        Err(failed) => failed.code(),
    };
    let granted = ran.told.granted.as_ref();
    let mut value = json!({
        "v": 1,
        "time": host::utc(leasehold::clock::wall().as_secs()),
        "job": spec.job.as_str(),
        "lease": granted.map_or(spec.leases[0].as_str(), |g| g.lease.as_str()),
        "run_id": spec.run_id,
        "exit": exit,
        "duration_s": ran.lasted.as_secs_f64(),
    });
    if let Some(granted) = granted {
        value["token"] = granted.token.get().into();
    }
    if let Outcome::Busy(busy) = &ran.outcome {
        value["holder"] = busy.holder.to_string().into();
        value["token"] = busy.token.get().into();
        value["expires_in_s"] = busy.ends_in.map(|d| d.as_secs_f64()).into();
    }
    let reason = match &ran.outcome {
        Outcome::Busy(_) => Some(SettleReason::Overlap.word()),
        Outcome::Lost { why, .. } | Outcome::Finished { stopped: Some(why @ StopReason::MaxRun), .. } => {
            Some(why.word())
        }
        Outcome::Finished { state: ItemState::Killed, .. } => Some("interrupted"),
        Outcome::Finished { state: ItemState::Failed, .. } | Outcome::NotStarted(_) => {
            result.as_ref().err().map(|failed| failed.word)
        }
        Outcome::Finished { .. } | Outcome::Granted(_) => None,
    };
    let outcome = outcome(ran);
    value["outcome"] = outcome.word().into();
    if let Some(reason) = reason {
        value["reason"] = reason.into();
    }
    if !ran.fences.went_round.is_empty() {
        value["went_round"] = ran.fences.went_round.clone().into();
    }
    Report { outcome, object: value }
}
