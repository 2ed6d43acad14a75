//! Starts the command of a run.

use std::io;
use std::path::Path;

use leasehold::clock;
use leasehold_core::fence::Bearer;
use leasehold_core::session::{Granted, JobExit};
use leasehold_core::time::BootTime;

use super::{Process, RunningProcess};
use crate::runner::tee::Tee;
use crate::runner::tree::ProcessTree;
use crate::runner::{environment, spawn};
use crate::step_server::{StepResponder, StepServer};

impl Process<'_> {
    fn responder(&self, granted: &Granted) -> StepResponder {
        let (timing, mut responder) = (&self.spec.timing, StepResponder::new(Bearer::from(granted)));
        if self.spec.item.is_some() {
            // Renewals wait meanwhile.
            responder = responder.with_steps(self.store_thread.clone(), timing.heartbeat / 3);
        }
        if let Some(gates) = &self.spec.gates {
            responder = responder.with_gates(gates.clone(), timing.heartbeat);
        }
        responder
    }

    fn listen(&self, dir: &Path, granted: &Granted, by: BootTime) -> io::Result<StepServer> {
        let steps = StepServer::listen(dir, self.responder(granted))?;
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
        let failed = |e| (format!("the output of the job cannot be passed on: {e}"), CANNOT);
        let (tail, ends) = self.spec.tail.then(Tee::start).transpose().map_err(failed)?.unzip();
        let targets = self.fences.environment(granted, &|name| self.spec.variable(name));
        let (bearer, socket) = (Bearer::from(granted), steps.as_ref().map(StepServer::path));
        let env = environment::variables(self.spec, Some(&bearer), self.attempt(), socket, targets);
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
        let mut tree = tree.map_err(|e| (format!("cannot watch the job's processes: {e}"), CANNOT))?;
        tree.start(&job).map_err(|e| {
            let status = e.exit_code().into();
            (e.to_string(), if e.is_too_late() { JobExit::TooLate(status) } else { JobExit::Failed(status) })
        })?;
        Ok(RunningProcess { tree, since, steps, tail, kill_sent: false, refused: Vec::new() })
    }
}
