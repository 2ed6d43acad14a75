//! Starts the run of a slot: a process that gets one description and hands one back.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use leasehold::host;
use leasehold_core::ledger::{Entry, Subject};
use rustix::process::{Pid, Signal, kill_process};

use crate::handoff::{
    COMMAND, Description, Handed, LeaseAndTargets, NotBegun, RunOutcome, SlotOutcome, VERSION,
};
use crate::jobs::{IfBusy, Job};
use crate::notify::{AlertSettings, Notify};
use crate::placeholders::{BadTemplate, Moment, filled};
use crate::schedule::Slot;

/// How runs are started.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The program that has the subcommand [`COMMAND`].
    pub program: PathBuf,
    /// The URL of the store, for all of them.
    pub store: String,
    /// The same without a password.
    pub store_shown: String,
    /// Keys and slots that this machine saw done on another store are run again on this one.
    pub new_here: bool,
    /// Runs print more.
    pub verbose: bool,
    /// Who is told if a run goes wrong.
    pub alerts: Option<AlertSettings>,
}

/// Why a run was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A placeholder cannot be replaced: the time zone is gone from this machine.
    #[error(transparent)]
    Template(#[from] BadTemplate),
    /// No process could be started, or it did not read its description.
    #[error("the system refused to start a run: {0}")]
    System(#[from] io::Error),
}

/// A run that goes on.
#[derive(Debug)]
pub struct RunningSlot {
    child: Child,
    handed: Handed,
    slot: Slot,
    subject: Subject,
    run_id: String,
    attempts: u32,
    /// Its slot was missed when it was due.
    pub late: bool,
}

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct EndedRun {
    /// Its slot.
    pub slot: Slot,
    /// The item of the slot.
    pub subject: Subject,
    /// How the process ended.
    pub status: ExitStatus,
    /// Its run id, which its records name.
    pub run_id: String,
    /// What it handed back about its slot, if it did.
    pub outcome: Option<SlotOutcome>,
    /// How often the slot may fail.
    pub attempts: u32,
}

impl Starter {
    /// Starts one.
    pub fn start(&self, job: &Job, slot: &Slot, late: bool) -> Result<RunningSlot, StartError> {
        let description = self.description(job, slot)?;
        let (handed, its) = Handed::pair()?;
        let mut command = Command::new(&self.program);
        // Without a password: a run inside the job uses the same store or none. The description has the whole URL.
        command.env_remove("LEASEHOLD_STORE_FILE").env("LEASEHOLD_STORE", &self.store_shown);
        command.args([COMMAND, job.name.as_str(), &description.slot]);
        command.current_dir(&job.dir).stdin(its).process_group(0);
        let mut child = command.spawn()?;
        // Closes our copy of its end of the socket, so that we see when the process has closed it.
        drop(command);
        if let Err(e) = handed.describe(&description) {
            let _ = child.kill();
            child.wait()?;
            return Err(e.into());
        }
        let Description { job: name, at, slot: id, run_id, attempts, .. } = description;
        let subject = Subject::Slot { job: name, at, id };
        Ok(RunningSlot { child, handed, slot: *slot, subject, run_id, attempts, late })
    }

    fn description(&self, job: &Job, slot: &Slot) -> Result<Description, BadTemplate> {
        let id = slot.due().to_string();
        let of_slot = job.filled(&id, slot.due())?;
        let when = Moment { slot: Some(id.clone()), at: slot.due() };
        let targets = |lease| {
            let fill = |target: &String| filled(target, lease, &job.name, &when);
            job.fence.iter().map(fill).collect::<Result<Vec<_>, _>>()
        };
        let leases = job
            .leases
            .iter()
            .map(|lease| targets(lease).map(|targets| LeaseAndTargets { lease: lease.clone(), targets }));
        Ok(Description {
            version: VERSION,
            run_id: host::fresh_run_id(None),
            job: job.name.clone(),
            at: slot.number(),
            slot: id,
            leases: leases.collect::<Result<_, _>>()?,
            key: of_slot.key,
            store: self.store.clone(),
            command: of_slot.run,
            env: job.env.clone(),
            ttl: job.wishes.ttl,
            heartbeat: job.wishes.heartbeat,
            grace: job.wishes.grace,
            wait: match job.busy {
                IfBusy::Wait(wait) => wait,
                IfBusy::Skip | IfBusy::Open => std::time::Duration::ZERO,
            },
            max_run: job.max_run,
            retry: job.retry,
            attempts: job.attempts,
            new_here: self.new_here,
            verbose: self.verbose,
            notify: Notify { ping: job.ping.clone(), alerts: self.alerts.clone() },
        })
    }
}

impl EndedRun {
    /// Whether this run made a record.
    pub fn left(&self, entry: &Entry) -> bool {
        entry.claim.holder.run == self.run_id
    }

    /// What it handed back about its slot, or else what the record says.
    pub fn slot_outcome(&self, found: Option<&Entry>) -> SlotOutcome {
        self.outcome.unwrap_or_else(|| match found.is_some_and(|entry| self.left(entry)) {
            true => SlotOutcome::Begun(None),
            false => SlotOutcome::NotBegun(NotBegun::Failed),
        })
    }
}

impl RunningSlot {
    /// Which slot it is for.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<EndedRun> {
        let status = self.child.try_wait().ok().flatten()?;
        let outcome = self.handed.outcome().filter(|outcome| outcome.run_id == self.run_id);
        Some(EndedRun {
            slot: self.slot,
            subject: self.subject.clone(),
            status,
            run_id: self.run_id.clone(),
            outcome: outcome.map(|RunOutcome { slot, .. }| slot),
            attempts: self.attempts,
        })
    }

    /// Passes a signal on to it.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It is our child and not yet reaped, so the number is still its own.
            let _ = kill_process(pid, signal);
        }
    }
}
