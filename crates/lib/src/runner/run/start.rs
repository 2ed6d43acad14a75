//! The command of a run: what it finds in its environment, and how it is started.

use std::ffi::OsString;

use leasehold_core::session::Granted;
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
        if let Some(book) = &self.book {
            // Renewals wait behind it.
            desk = desk.with_steps(book.clone(), self.works.clone(), timing.heartbeat / 3);
        }
        if let Some(gates) = &self.spec.gates {
            desk = desk.with_gates(gates.clone(), timing.heartbeat);
        }
        desk
    }

    pub(super) fn spawn(&mut self, granted: &Granted, by: Option<BootTime>) -> Result<Tree, (String, u8)> {
        if let Some(dir) = &self.spec.sockets {
            let failed = |e| (format!("cannot listen for the job's steps in {}: {e}", dir.display()), 126);
            let steps = Steps::listen(dir, self.desk(granted)).map_err(failed)?;
            by.into_iter().for_each(|by| steps.ours_until(by));
            self.steps = Some(steps);
        }
        let failed = |e| (format!("what the job prints cannot be passed on: {e}"), 126);
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
            by,
        };
        let tree = Tree::become_subreaper(&self.spec.run_id);
        let mut tree = tree.map_err(|e| (format!("cannot watch over the job's processes: {e}"), 126))?;
        tree.start(&job).map_err(|e| {
            self.too_late = e.is_too_late();
            (e.to_string(), e.exit_code())
        })?;
        Ok(tree)
    }
}
