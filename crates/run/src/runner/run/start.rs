//! The command of a run: what it finds in its environment, and how it is started.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use leasehold::clock;
use leasehold_core::ledger::Subject;
use leasehold_core::session::{Granted, JobExit};
use leasehold_core::time::BootTime;

use super::{Bearer, Process, RunningProcess, environment};
use crate::runner::spawn;
use crate::runner::tee::Tee;
use crate::runner::tree::ProcessTree;
use crate::step_server::{self, StepResponder, StepServer};

impl Process<'_> {
    fn environment(
        &mut self,
        granted: &Granted,
        steps: Option<&StepServer>,
    ) -> Vec<(OsString, Option<OsString>)> {
        let ours = environment(&Bearer::from(granted), self.spec);
        let fences = self.fences.environment(granted, &|name| self.spec.variable(name));
        let all = self.spec.env.iter().cloned().chain(ours).chain(fences);
        let all = all.map(|(key, value)| (key, Some(value)));
        all.chain(self.about(steps)).collect()
    }

    /// What the job's environment says about its item. What an outer run said about its own is removed, also if this
    /// one has none: its job would take that key for its own, and do its steps in that run's name.
    fn about(&self, steps: Option<&StepServer>) -> Vec<(OsString, Option<OsString>)> {
        let entry = self.entry();
        let beside = self.spec.key.as_ref().map(|item| &item.subject);
        let (mut key, mut slot) = (None, None);
        for subject in entry.iter().map(|entry| &entry.subject).chain(beside) {
            match subject {
                Subject::Key(text) => key = Some(text.into()),
                Subject::Slot { id, .. } => slot = Some(id.into()),
                Subject::Latest(_) => {}
            }
        }
        let attempt = entry.map(|entry| entry.attempt.to_string().into());
        let socket = steps.map(|steps| steps.path().into());
        let all = [
            ("LEASEHOLD_KEY", key),
            ("LEASEHOLD_SLOT", slot),
            ("LEASEHOLD_ATTEMPT", attempt),
            ("LEASEHOLD_STEP", None),
            (step_server::SOCKET, socket),
        ];
        all.map(|(name, value)| (name.into(), value)).into()
    }

    fn desk(&self, granted: &Granted) -> StepResponder {
        let (timing, mut desk) = (&self.spec.timing, StepResponder::new(Bearer::from(granted)));
        if self.spec.item.is_some() {
            // Renewals wait behind it.
            desk = desk.with_steps(self.keeper.clone(), timing.heartbeat / 3);
        }
        if let Some(gates) = &self.spec.gates {
            desk = desk.with_gates(gates.clone(), timing.heartbeat);
        }
        desk
    }

    fn listen(&self, dir: &Path, granted: &Granted, by: BootTime) -> io::Result<StepServer> {
        let steps = StepServer::listen(dir, self.desk(granted))?;
        steps.ours_until(by);
        Ok(steps)
    }

    pub(super) fn spawn(
        &mut self,
        granted: &Granted,
        by: BootTime,
    ) -> Result<RunningProcess, (String, JobExit)> {
        const CANNOT: JobExit = JobExit::Failed(126);
        let since = clock::boot_time();
        let sockets = self.spec.sockets.as_ref();
        let steps = sockets.map(|dir| {
            let failed = |e| (format!("cannot listen for the job's steps in {}: {e}", dir.display()), CANNOT);
            self.listen(dir, granted, by).map_err(failed)
        });
        let steps = steps.transpose()?;
        let failed = |e| (format!("what the job prints cannot be passed on: {e}"), CANNOT);
        let (tail, ends) = self.spec.tail.then(Tee::start).transpose().map_err(failed)?.unzip();
        let env = self.environment(granted, steps.as_ref());
        let job = spawn::CommandSpec {
            program: &self.spec.program,
            args: &self.spec.args,
            env: &env,
            foreground: self.spec.foreground,
            lock: self.lock.as_ref(),
            mark: self.mark,
            output: ends.as_ref(),
            by: Some(by),
        };
        let tree = ProcessTree::become_subreaper(&self.spec.run_id);
        let mut tree = tree.map_err(|e| (format!("cannot watch over the job's processes: {e}"), CANNOT))?;
        tree.start(&job).map_err(|e| {
            let status = e.exit_code().into();
            (e.to_string(), if e.is_too_late() { JobExit::TooLate(status) } else { JobExit::Failed(status) })
        })?;
        Ok(RunningProcess { tree, since, steps, tail, killed: None })
    }
}
