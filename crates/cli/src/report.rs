//! `--report` and `--json` of `run`: the truth that an exit code alone cannot tell.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use leasehold::core::ledger::Opened;
use leasehold::core::session::{Outcome, StopReason};
use leasehold::runner::run::{Ran, Spec};
use leasehold::{host, state};
use serde_json::{Value, json};

use crate::args::Run;
use crate::cmd::items;
use crate::exit::{self, Failed};
use crate::out::{self, Out};

/// Finds out before anything is run whether a report can be written.
pub fn check(path: Option<&Path>) -> Result<(), Failed> {
    let Some(path) = path else { return Ok(()) };
    state::check_writable(path).map_err(|e| {
        let message = format!("the report could not be written to {}: {e}. Nothing was run", path.display());
        Failed::new(exit::CONFIG, "report", message)
    })
}

/// Writes what happened where it was asked for. Failing to is told, and changes no exit code.
pub fn write(path: Option<&Path>, out: &Out, record: impl FnOnce() -> Value) {
    if path.is_none() && !out.json {
        return;
    }
    let value = record();
    let outcome = value["outcome"].as_str().unwrap_or("?");
    // A reader that went away has seen enough.
    if out.json && !out.object(&value) && out::lost() {
        out.warn(&format!(
            "the run is over ({outcome}), but the object could not be written to stdout (is the disk full?)"
        ));
    }
    let Some(path) = path else { return };
    if let Err(e) = save(path, &format!("{value}\n")) {
        let shown = path.display();
        out.warn(&format!(
            "the run is over ({outcome}), but its report could not be written to {shown}: {e}"
        ));
    }
}

/// Into a pipe that nobody reads it fails, rather than wait for somebody who may never come.
fn save(path: &Path, text: &str) -> io::Result<()> {
    let at_once = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(true).custom_flags(at_once).open(path)?.write_all(text.as_bytes())
}

/// A run that came to nothing before a lease was asked for.
pub fn early(args: &Run, failed: &Failed) -> Value {
    json!({
        "v": 1,
        "time": host::utc(leasehold::clock::wall().as_secs()),
        "job": args.manner.job.as_ref().unwrap_or(&args.name),
        "lease": args.name,
        "exit": failed.code,
        "duration_s": 0.0,
        "outcome": "failed",
        "reason": failed.word,
    })
}

/// A run whose item is not to be run now.
pub fn item(spec: &Spec, opened: &Opened, told: &Result<u8, Failed>) -> Value {
    let (outcome, reason) = items::outcome(opened);
    json!({
        "v": 1,
        "time": items::now(),
        "job": spec.job.as_str(),
        "lease": spec.leases[0].as_str(),
        "run_id": spec.run_id,
        "exit": told.as_ref().map_or_else(|failed| failed.code, |code| *code),
        "duration_s": 0.0,
        "outcome": outcome,
        "reason": reason,
    })
}

/// What happened.
pub fn record(spec: &Spec, ran: &Ran, told: &Result<u8, Failed>) -> Value {
    let exit = match told {
        Ok(code) => *code,
        Err(failed) => failed.code,
    };
    let granted = ran.granted.as_ref();
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
    let (outcome, reason) = match &ran.outcome {
        Outcome::Busy(busy) => {
            value["holder"] = format!("{}/{}", busy.holder.host, busy.holder.pid).into();
            value["token"] = busy.token.get().into();
            value["expires_in_s"] = busy.ends_in.map(|d| d.as_secs_f64()).into();
            ("skipped", Some("overlap"))
        }
        Outcome::Lost { why, .. } => ("lost", Some(word(why))),
        Outcome::NotStarted(_) => ("failed", told.as_ref().err().map(|f| f.word)),
        Outcome::Finished { stopped: Some(why @ (StopReason::MaxRun | StopReason::Interrupted)), .. } => {
            ("killed", Some(word(why)))
        }
        Outcome::Finished { status: 0, .. } | Outcome::Granted(_) => ("ok", None),
        Outcome::Finished { .. } if ran.interrupted => ("killed", Some("interrupted")),
        Outcome::Finished { .. } => ("failed", told.as_ref().err().map(|f| f.word)),
    };
    value["outcome"] = outcome.into();
    if let Some(reason) = reason {
        value["reason"] = reason.into();
    }
    if !ran.fences.went_round.is_empty() {
        value["went_round"] = ran.fences.went_round.clone().into();
    }
    value
}

fn word(why: &StopReason) -> &'static str {
    match why {
        StopReason::Deadline => "deadline",
        StopReason::Taken { .. } => "taken",
        StopReason::Gone => "gone",
        StopReason::Revoked => "revoked",
        StopReason::StoreClock => "store-clock",
        StopReason::MaxRun => "max-run",
        StopReason::Survivors => "survivors",
        StopReason::Interrupted => "interrupted",
    }
}
