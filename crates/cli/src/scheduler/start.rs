//! A slot becomes a `leasehold run`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use leasehold::core::ledger::{Entry, Subject};
use leasehold::host;
use leasehold::runner::JOB_ENV;
use leasehold_run::jobs::{Busy, Job};
use leasehold_run::placeholders::literal;
use leasehold_run::schedule::Slot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cmd::run::Handed;
use crate::config::Chosen;

/// How runs are started.
pub struct Starter {
    exe: PathBuf,
    store: OsString,
    new_here: bool,
    verbose: bool,
}

/// A run that goes on.
pub struct Running {
    child: Child,
    slot: Slot,
    subject: Subject,
    /// Its run id.
    run: String,
    attempts: u32,
    /// It makes up for a slot that was missed.
    pub late: bool,
}

/// A run that has ended.
pub struct Ended {
    pub slot: Slot,
    pub subject: Subject,
    pub status: ExitStatus,
    /// Its run id: what it began is recorded with it.
    pub run: String,
    /// How often the slot may fail.
    pub attempts: u32,
}

impl Starter {
    /// Runs are this same program, on the store that was chosen for all of them.
    pub fn new(chosen: &Chosen, new_here: bool, verbose: bool) -> io::Result<Self> {
        Ok(Self { exe: std::env::current_exe()?, store: chosen.url.clone().into(), new_here, verbose })
    }

    /// Starts one.
    pub fn start(&self, job: &Job, slot: &Slot, late: bool) -> Result<Running, String> {
        let id = slot.due().to_string();
        let filled = job.filled(&id, slot.due()).map_err(|bad| bad.to_string())?;
        let mut command = Command::new(&self.exe);
        // The whole URL is for the run alone: the job it starts gets none of the credentials in it.
        command.env_remove("LEASEHOLD_STORE_FILE").env("LEASEHOLD_STORE", &self.store);
        // By the environment: everybody on this machine can read a command line.
        let key = filled.key.as_deref().map(literal);
        let run = host::fresh_run_id(None);
        let handed = Handed { env: job.env.clone(), fence: job.fence.clone(), key, run: Some(run.clone()) };
        command.env(JOB_ENV, json!(handed).to_string());
        command.current_dir(&job.dir).stdin(Stdio::null()).process_group(0);
        command.arg("run").arg(job.leases[0].as_str()).args([
            "--job",
            job.name.as_str(),
            "--slot",
            &id,
            "--tail",
        ]);
        command.arg(if self.verbose { "-v" } else { "-q" });
        if self.new_here {
            command.arg("--new-here");
        }
        if let [_, others @ ..] = &job.leases[..] {
            let others: Vec<&str> = others.iter().map(|lease| lease.as_str()).collect();
            others.first().map(|_| command.args(["--or", &others.join(",")]));
        }
        let wait = match job.busy {
            Busy::Wait(wait) => Some(wait),
            Busy::Skip | Busy::Open => None,
        };
        let times = [
            ("--ttl", job.wishes.ttl),
            ("--heartbeat", job.wishes.heartbeat),
            ("--grace", job.wishes.grace),
            ("--wait", wait),
        ];
        for (flag, time) in times.into_iter().filter_map(|(flag, time)| Some((flag, time?))) {
            command.args([flag, &exact(time)]);
        }
        let max_run = job.max_run.map_or_else(|| "none".into(), exact);
        command.args(["--max-run", &max_run, "--attempts", &job.attempts.to_string()]);
        if job.retry {
            command.args(["--if-unknown", "retry"]);
        }
        command.arg("--").args(&filled.run);
        let child = command.spawn().map_err(|e| format!("the system refused to start a run: {e}"))?;
        let subject = Subject::Slot { job: job.name.clone(), at: slot.number(), id };
        Ok(Running { child, slot: *slot, subject, run, attempts: job.attempts, late })
    }
}

impl Ended {
    /// Whether a record is what this run has left.
    pub fn left(&self, entry: &Entry) -> bool {
        entry.claim.holder.run == self.run
    }
}

/// To the millisecond.
fn exact(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

impl Running {
    /// Which slot it is for.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// What became of it, if it has ended.
    pub fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().ok().flatten()?;
        let (subject, run) = (self.subject.clone(), self.run.clone());
        Some(Ended { slot: self.slot, subject, status, run, attempts: self.attempts })
    }

    /// Passes a signal on to it.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It is ours and not yet waited for: the number is still its own.
            let _ = kill_process(pid, signal);
        }
    }
}
