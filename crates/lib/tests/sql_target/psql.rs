//! An unmodified psql as a job: it knows nothing of us but what is in its environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use leasehold::targets::Target;
use rustix::process::{Pid, Signal, WaitIdOptions, kill_process};

use crate::kit::{Place, bearer};

pub(crate) struct Psql {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// How a psql ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) said: String,
}

impl Psql {
    /// As a job of the run with this token.
    pub(crate) fn start(place: &Place, token: u64) -> Self {
        Self::start_at(&place.jobs, place, token)
    }

    pub(crate) fn start_at(url: &str, place: &Place, token: u64) -> Self {
        let environment = place.target("plain").environment(&bearer(token), &|_| None);
        Self::spawn(url, environment)
    }

    fn spawn(url: &str, environment: Vec<(std::ffi::OsString, std::ffi::OsString)>) -> Self {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url]).envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("SKIPPED: psql cannot be run: {e}"));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { stdin, stdout: BufReader::new(stdout), stderr: child.stderr.take(), child }
    }

    /// Types this; it may not be read yet.
    pub(crate) fn types(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{text}\n").as_bytes()).unwrap();
    }

    /// Types this and waits until it was done.
    pub(crate) fn does(&mut self, text: &str) {
        self.types(&format!("{text}\n\\echo done"));
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            let read = self.stdout.read_line(&mut line).unwrap();
            if read == 0 {
                let mut said = String::new();
                self.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("psql ended at {text:?}: {said}");
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops it where it stands; returns when it is stopped.
    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(self.pid()), stopped).unwrap();
    }

    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Lets it read to the end of what was typed, and waits for its own.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.stdin.take());
        let mut said = String::new();
        self.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        Ended { code, said }
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
