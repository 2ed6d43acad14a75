//! A gate: any command, run only while our token is current, and under a lock that the next start waits for.
//!
//! What the command does elsewhere is not part of any check, so the class is always [`Class::Gate`]: what
//! is promised is that no command begins after a later run has sealed the gate, and that the next start waits
//! for whatever still has the lock open: what closed its descriptors is not seen. A gate lies in a directory;
//! runs that name another one have another gate.

use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence};

use super::beside::{Beside, Inside, Payload};
use super::local::{Artefact, Local};
use super::{Class, Content, TargetError, Written};

/// A command takes as long as it takes; after this long, whoever wants to start is told whom it waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name that commands are run under.
pub type GateTarget = Local<Nothing>;

/// There is no artefact: only the fence and the lock.
#[derive(Debug)]
pub struct Nothing;

impl GateTarget {
    /// The gate whose fence and lock lie at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        Ok(Self::at(path.as_ref(), Nothing)?.with_patience(PATIENCE))
    }

    /// Goes in: the fence is moved first, so that a crash leaves no doubt that somebody was there.
    pub fn enter(&mut self, bearer: &Bearer) -> Result<(Inside, Written), TargetError> {
        self.note(bearer, "entered")
    }
}

impl Artefact for Nothing {
    const SCHEME: &'static str = "gate";

    fn class(&self, _: bool) -> Class {
        Class::Gate
    }

    fn fit(&self, _: &Beside) -> io::Result<Result<(), (String, String)>> {
        Ok(Ok(()))
    }

    fn stage<'a>(&self, _: &'a Beside, _: Content<'_>) -> io::Result<Payload<'a>> {
        let why = "a gate holds nothing; run a command under it: leasehold gate NAME -- COMMAND";
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    fn place(&self, _: &Beside, _: &str, _: &Fence) -> io::Result<()> {
        Ok(())
    }

    fn waiting(&self, _: &Beside, _: &str, _: &Fence) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn present(&self, _: &Beside, _: &Fence) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn fingerprint(&self, _: &Beside) -> Option<String> {
        None
    }

    fn sweep(&self, _: &Beside, _: &Fence) {}
}
