//! The targets of one run. The thread `seal` raises their fences while the lease is renewed. A server that is new to the
//! lease is tested then: it must compare before it writes.

mod examined;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use leasehold_core::fence::{Bearer, FenceMode};
use leasehold_core::name::Name;
use leasehold_core::session::{Granted, Input};

use self::examined::Examined;
use crate::driver::InputSender;
use crate::stores::Store;
use crate::targets::{Class, Refused, Sealed, Target, TargetError, Variables};

/// The targets to seal once a lease is granted, and the result.
#[derive(Debug)]
pub struct Fences {
    /// The mode of a target that was never fenced.
    mode: FenceMode,
    /// For each lease that may be granted, its targets.
    wanted: Vec<(Name, Vec<Box<dyn Target>>)>,
    examined: Examined,
    sealing: Option<JoinHandle<Sealing>>,
    /// Whether the thread has sent its result to the session. Then it ends at once.
    reported: Arc<AtomicBool>,
    /// The targets of the granted lease, once they are sealed.
    sealed: Vec<Box<dyn Target>>,
    /// Why one of them could not be sealed.
    failed: Option<TargetError>,
    /// Refusals that were only counted, because the target is in observe mode.
    let_in: Vec<Refused>,
}

#[derive(Debug)]
struct Sealing {
    targets: Vec<Box<dyn Target>>,
    examined: Examined,
    failed: Option<TargetError>,
    let_in: Vec<Refused>,
}

impl Fences {
    /// Nothing to seal.
    pub fn none() -> Self {
        Self::new(FenceMode::Enforce)
    }

    /// Nothing to seal yet; targets that were never fenced start in this mode.
    pub fn new(mode: FenceMode) -> Self {
        let (wanted, sealed, let_in) = (Vec::new(), Vec::new(), Vec::new());
        let (reported, examined) = (Arc::default(), Examined::default());
        Self { mode, wanted, examined, sealing: None, reported, sealed, failed: None, let_in }
    }

    /// Records in the lease's store which servers passed the test. The store is opened only if there is a server to test.
    pub fn keep_in(&mut self, open: impl Fn() -> Option<Box<dyn Store>> + Send + 'static) {
        self.examined = Examined::kept_in(open);
    }

    /// Adds the targets to seal if this lease is granted.
    pub fn add(&mut self, lease: Name, mut targets: Vec<Box<dyn Target>>) {
        // One order for all, so that two runs with the same targets never wait for each other.
        targets.sort_by(|a, b| a.shown().cmp(b.shown()));
        targets.dedup_by(|a, b| a.shown() == b.shown());
        if !targets.is_empty() {
            self.wanted.push((lease, targets));
        }
    }

    /// Whether no lease has targets to seal.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Each target that may be sealed, its class here, and its caution.
    pub fn classes(&self) -> Vec<(&str, Class, Option<&str>)> {
        let targets = self.wanted.iter().flat_map(|(_, targets)| targets);
        let mut all: Vec<_> = targets.map(|t| (t.shown(), t.class(), t.caution())).collect();
        all.sort_by_key(|(shown, ..)| *shown);
        all.dedup_by_key(|(shown, ..)| *shown);
        all
    }

    /// Starts the thread `seal`. Its result goes to the session as [`Input::Sealed`].
    pub fn seal(&mut self, granted: &Granted, session: InputSender) {
        let found = self.wanted.iter().position(|(lease, _)| *lease == granted.lease);
        let targets = found.map(|at| self.wanted.swap_remove(at).1).unwrap_or_default();
        let (bearer, mode) = (Bearer::from(granted), self.mode);
        let examined = std::mem::take(&mut self.examined);
        let mut work = Sealing { targets, examined, failed: None, let_in: Vec::new() };
        let mut report = SealingReport::new(session.clone(), Arc::clone(&self.reported));
        let thread = std::thread::Builder::new().name("seal".into()).spawn(move || {
            work.run(&bearer, mode);
            report.result = work.failed.as_ref().map_or(Ok(()), |e| Err(e.to_string()));
            drop(report);
            work
        });
        // If no thread could be started, the report was dropped, which sends it.
        self.sealing = thread.ok();
    }

    /// Takes over the thread's results. It has sent its report, so it ends at once.
    fn join(&mut self) {
        let Some(thread) = self.sealing.take() else { return };
        if let Ok(Sealing { targets, failed, let_in, .. }) = thread.join() {
            (self.sealed, self.failed, self.let_in) = (targets, failed, let_in);
        }
    }

    /// Variables that the job's own tools need to be fenced, beside those it `has`. After sealing.
    pub fn environment(&mut self, granted: &Granted, has: Variables<'_>) -> Vec<(OsString, OsString)> {
        self.join();
        let bearer = Bearer::from(granted);
        self.sealed.iter().flat_map(|target| target.environment(&bearer, has)).collect()
    }

    /// The end of the run: asks each target what happened meanwhile.
    pub fn finish(mut self, granted: Option<&Granted>) -> SealReport {
        // A session that was stopped while the thread sealed does not wait for it.
        let ended = self.sealing.as_ref().is_some_and(JoinHandle::is_finished);
        if ended || self.reported.load(Ordering::Acquire) {
            self.join();
        }
        let whole = self.failed.is_none();
        // If a target could not be sealed, no job was started, and nothing happened meanwhile.
        let bearer = granted.filter(|_| whole).map(Bearer::from);
        let each = |target: &mut Box<dyn Target>| target.aftermath(bearer.as_ref()?);
        let went_round = self.sealed.iter_mut().filter_map(each).collect();
        let sealed = self.sealed.iter().filter(|_| whole).map(|target| target.shown().into()).collect();
        SealReport { sealed, failed: self.failed, let_in: self.let_in, went_round }
    }
}

/// Sends the result to the session when it is dropped. So the session hears of it also if the thread never starts or
/// panics; otherwise it would renew its lease and wait without end.
struct SealingReport {
    session: InputSender,
    reported: Arc<AtomicBool>,
    result: Result<(), String>,
}

impl SealingReport {
    fn new(session: InputSender, reported: Arc<AtomicBool>) -> Self {
        let why = "fencing broke off: a thread could not be started, or there is a bug in Leasehold";
        Self { session, reported, result: Err(why.into()) }
    }
}

impl Drop for SealingReport {
    fn drop(&mut self) {
        // Set before the send: a session that hears of a failure ends at once and asks for the reason.
        self.reported.store(true, Ordering::Release);
        self.session.send(Input::Sealed(std::mem::replace(&mut self.result, Ok(()))));
    }
}

/// The results of the fences of a run.
#[derive(Debug)]
pub struct SealReport {
    /// The targets that were sealed.
    pub sealed: Vec<String>,
    /// Why a target could not be sealed.
    pub failed: Option<TargetError>,
    /// Refusals that were only counted, because the target is in observe mode.
    pub let_in: Vec<Refused>,
    /// Changes that no fence checked, as sentences.
    pub went_round: Vec<String>,
}

impl Sealing {
    fn run(&mut self, bearer: &Bearer, mode: FenceMode) {
        for target in &mut self.targets {
            match sealed(target.as_mut(), &mut self.examined, bearer, mode) {
                Ok(sealed) => self.let_in.extend(sealed.let_in),
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
    }
}

fn sealed(
    target: &mut dyn Target,
    examined: &mut Examined,
    bearer: &Bearer,
    mode: FenceMode,
) -> Result<Sealed, TargetError> {
    let unasked = target.server()?.and_then(|server| examined.unasked(&bearer.lease, server));
    let Some(unasked) = unasked else { return target.seal(bearer, mode) };
    let sealed = target.seal_examined(bearer, mode)?;
    examined.did_well(&unasked);
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use leasehold_core::fence_record::FenceRecord;
    use leasehold_core::ids::{Epoch, Grant, Token};

    use super::*;
    use crate::targets::{Content, Written};

    /// A target that cannot be sealed. It counts calls of `aftermath`.
    #[derive(Debug)]
    struct Bad {
        panics: bool,
        asked: Arc<AtomicU32>,
    }

    impl Bad {
        fn error() -> TargetError {
            TargetError::Unfit { target: "bad:".into(), why: "is bad".into(), fix: "Mend it".into() }
        }
    }

    impl Target for Bad {
        fn shown(&self) -> &str {
            "bad:"
        }
        fn class(&self) -> Class {
            Class::Atomic
        }
        fn seal(&mut self, _: &Bearer, _: FenceMode) -> Result<Sealed, TargetError> {
            assert!(!self.panics, "as a bug would");
            Err(Self::error())
        }
        fn write(&mut self, _: &Bearer, _: Option<u64>, _: Content<'_>) -> Result<Written, TargetError> {
            Err(Self::error())
        }
        fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
            Err(Self::error())
        }
        fn set_mode(&mut self, _: FenceMode) -> Result<(), TargetError> {
            Err(Self::error())
        }
        fn aftermath(&mut self, _: &Bearer) -> Option<String> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            None
        }
    }

    /// The result that the session gets, and how often the target was asked afterwards.
    fn sealed(panics: bool) -> (Result<(), String>, u32) {
        let granted = Granted {
            lease: Name::new("site").unwrap(),
            epoch: Epoch::first(7),
            token: Token::new(1).unwrap(),
            grant: Grant(1),
            ttl: Duration::from_secs(9),
        };
        let asked = Arc::new(AtomicU32::new(0));
        let mut fences = Fences::none();
        fences.add(granted.lease.clone(), vec![Box::new(Bad { panics, asked: Arc::clone(&asked) })]);
        let (session, inbox) = InputSender::alone().unwrap();
        fences.seal(&granted, session);
        let told = inbox.recv_timeout(Duration::from_secs(20));
        let Ok(Input::Sealed(told)) = told else { panic!("the session would wait for ever: {told:?}") };
        let ended = fences.finish(Some(&granted));
        assert!(panics || ended.failed.is_some(), "what the session was told is lost");
        (told, asked.load(Ordering::SeqCst))
    }

    /// Sometimes the thread has reported and not yet ended. The reason must not depend on that.
    #[test]
    fn a_session_that_was_told_hears_why() {
        for _ in 0..3000 {
            sealed(false).0.unwrap_err();
        }
    }

    #[test]
    fn a_thread_that_breaks_off_says_so() {
        let (told, _) = sealed(true);
        assert!(told.unwrap_err().contains("broke off"));
    }

    #[test]
    fn what_could_not_be_sealed_is_not_asked_again() {
        let (told, asked) = sealed(false);
        assert!(told.unwrap_err().contains("is bad"));
        assert_eq!(asked, 0);
    }
}
