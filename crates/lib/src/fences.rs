//! The targets of one holder: sealed by a thread of their own, while the lease is renewed.

use std::ffi::OsString;
use std::thread::JoinHandle;

use leasehold_core::fence::{Bearer, Mode};
use leasehold_core::name::Name;
use leasehold_core::session::{Granted, Input};

use crate::shell::InputSender;
use crate::targets::{Class, Refused, Target, TargetError};

/// What is to be sealed once a lease is granted, and what came of it.
#[derive(Debug)]
pub struct Fences {
    /// In what mode a target starts that was never fenced.
    mode: Mode,
    /// For each lease that may be granted, its targets.
    wanted: Vec<(Name, Vec<Box<dyn Target>>)>,
    sealing: Option<JoinHandle<Sealing>>,
    /// Those of the lease that was granted, once they are sealed.
    sealed: Vec<Box<dyn Target>>,
    /// Why one of them was not.
    failed: Option<TargetError>,
    /// What was let in only because a target watches.
    let_in: Vec<Refused>,
}

#[derive(Debug)]
struct Sealing {
    targets: Vec<Box<dyn Target>>,
    failed: Option<TargetError>,
    let_in: Vec<Refused>,
}

impl Fences {
    /// Nothing to seal.
    pub fn none() -> Self {
        Self::new(Mode::Enforce)
    }

    /// Nothing to seal yet; targets that were never fenced start in this mode.
    pub fn new(mode: Mode) -> Self {
        let (wanted, sealed, let_in) = (Vec::new(), Vec::new(), Vec::new());
        Self { mode, wanted, sealing: None, sealed, failed: None, let_in }
    }

    /// These, if it is this lease that is granted.
    pub fn add(&mut self, lease: Name, mut targets: Vec<Box<dyn Target>>) {
        // One order for all, so that two runs with the same targets never wait for each other.
        targets.sort_by(|a, b| a.shown().cmp(b.shown()));
        targets.dedup_by(|a, b| a.shown() == b.shown());
        if !targets.is_empty() {
            self.wanted.push((lease, targets));
        }
    }

    /// Whether there is nothing to seal, whichever lease is granted.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Each target that may be sealed, and what it can promise here.
    pub fn classes(&self) -> Vec<(&str, Class)> {
        let mut all: Vec<_> =
            self.wanted.iter().flat_map(|(_, targets)| targets).map(|t| (t.shown(), t.class())).collect();
        all.sort_by_key(|(shown, _)| *shown);
        all.dedup_by_key(|(shown, _)| *shown);
        all
    }

    /// Begins to seal; the answer goes to the session as [`Input::Sealed`].
    pub fn seal(&mut self, granted: &Granted, session: InputSender) {
        let found = self.wanted.iter().position(|(lease, _)| *lease == granted.lease);
        let targets = found.map(|at| self.wanted.swap_remove(at).1).unwrap_or_default();
        let (bearer, mode) = (Bearer::from(granted), self.mode);
        let mut work = Sealing { targets, failed: None, let_in: Vec::new() };
        let told = session.clone();
        let thread = std::thread::Builder::new().name("seal".into()).spawn(move || {
            work.run(&bearer, mode);
            let result = work.failed.as_ref().map_or(Ok(()), |e| Err(e.to_string()));
            told.send(Input::Sealed(result));
            work
        });
        match thread {
            Ok(thread) => self.sealing = Some(thread),
            Err(e) => session.send(Input::Sealed(Err(format!("the system refused a thread: {e}")))),
        }
    }

    /// Takes over what the thread did. It has said its last word, or nobody waits for it any more.
    fn settle(&mut self) {
        let Some(thread) = self.sealing.take() else { return };
        if let Ok(Sealing { targets, failed, let_in }) = thread.join() {
            (self.sealed, self.failed, self.let_in) = (targets, failed, let_in);
        }
    }

    /// What the job's environment needs for its own tools to be fenced. After sealing.
    pub fn environment(&mut self, granted: &Granted) -> Vec<(OsString, OsString)> {
        self.settle();
        let bearer = Bearer::from(granted);
        self.sealed.iter().flat_map(|target| target.environment(&bearer)).collect()
    }

    /// The end: what each target has to say about the time in between.
    pub fn finish(mut self, granted: Option<&Granted>) -> Ended {
        // A session that was stopped while it sealed does not wait for the rest of it.
        if self.sealing.as_ref().is_some_and(JoinHandle::is_finished) {
            self.settle();
        }
        let bearer = granted.map(Bearer::from);
        let each = |target: &mut Box<dyn Target>| target.aftermath(bearer.as_ref()?);
        let went_round = self.sealed.iter_mut().filter_map(each).collect();
        let whole = self.failed.is_none();
        let sealed = self.sealed.iter().filter(|_| whole).map(|target| target.shown().into()).collect();
        Ended { sealed, failed: self.failed, let_in: self.let_in, went_round }
    }
}

/// What the fences of a run have to tell.
#[derive(Debug)]
pub struct Ended {
    /// What was sealed.
    pub sealed: Vec<String>,
    /// Why a target could not be sealed.
    pub failed: Option<TargetError>,
    /// What was let in only because a target watches.
    pub let_in: Vec<Refused>,
    /// What went round a fence, as sentences.
    pub went_round: Vec<String>,
}

impl Sealing {
    fn run(&mut self, bearer: &Bearer, mode: Mode) {
        for target in &mut self.targets {
            match target.seal(bearer, mode) {
                Ok(sealed) => self.let_in.extend(sealed.let_in),
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
    }
}
