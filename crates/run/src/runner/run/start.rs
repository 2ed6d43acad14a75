//! The command of a run: what it finds in its environment, and how it is started.

use std::ffi::OsString;

use leasehold_core::session::{Exit, Granted};
use leasehold_core::time::BootTime;

use super::{Bearer, Process, environment};
use crate::runner::spawn;
use crate::runner::tail::Tail;
use crate::runner::tree::Tree;
use crate::steps::{Desk, Steps};

impl Process<'_> {
    fn environment(&mut self, granted: &Granted) -> Vec<(OsString, Option<OsString>)> {
        let ours = environment(&Bearer::from(granted), self.spec);
        let fences = self.fences.environment(granted, &|name| self.spec.variable(name));
        let all = self.spec.env.iter().cloned().chain(ours).chain(fences);
        let all = all.map(|(key, value)| (key, Some(value)));
        all.chain(self.about()).collect()
    }

    fn desk(&self, granted: &Granted) -> Desk {
        let (timing, mut desk) = (&self.spec.timing, Desk::new(Bearer::from(granted)));
        if self.spec.item.is_some() {
            // Renewals wait behind it.
            desk = desk.with_steps(self.keeper.clone(), timing.heartbeat / 3);
        }
        if let Some(gates) = &self.spec.gates {
            desk = desk.with_gates(gates.clone(), timing.heartbeat);
        }
        desk
    }

    pub(super) fn spawn(&mut self, granted: &Granted, by: BootTime) -> Result<Tree, (String, Exit)> {
        const CANNOT: Exit = Exit::Failed(126);
        if let Some(dir) = &self.spec.sockets {
            let failed = |e| (format!("cannot listen for the job's steps in {}: {e}", dir.display()), CANNOT);
            let steps = Steps::listen(dir, self.desk(granted)).map_err(failed)?;
            steps.ours_until(by);
            self.steps = Some(steps);
        }
        let failed = |e| (format!("what the job prints cannot be passed on: {e}"), CANNOT);
        let (tail, ends) = self.spec.tail.then(Tail::start).transpose().map_err(failed)?.unzip();
        self.tail = tail;
        let env = self.environment(granted);
        let job = spawn::Job {
            program: &self.spec.program,
            args: &self.spec.args,
            env: &env,
            foreground: self.spec.foreground,
            lock: self.lock.as_ref(),
            mark: self.mark,
            output: ends.as_ref(),
            by: Some(by),
        };
        let tree = Tree::become_subreaper(&self.spec.run_id);
        let mut tree = tree.map_err(|e| (format!("cannot watch over the job's processes: {e}"), CANNOT))?;
        tree.start(&job).map_err(|e| {
            let status = e.exit_code().into();
            (e.to_string(), if e.is_too_late() { Exit::TooLate(status) } else { Exit::Failed(status) })
        })?;
        Ok(tree)
    }
}
