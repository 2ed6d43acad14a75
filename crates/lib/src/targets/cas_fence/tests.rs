//! A fence on a server whose answers are lost, as each test chooses.

use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex};

use leasehold_core::ids::{Epoch, Grant, Token};
use leasehold_core::name::Name;
use leasehold_core::store::{Failure, FailureKind};

use super::*;

/// The outcome of one swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// It lands, and the answer is lost.
    Landed,
    /// It never lands, and there is no answer.
    Vanished,
    /// It never lands, and this is the server's answer.
    Refused(FailureKind, Landed),
}

#[derive(Debug, Default)]
struct Fake {
    stored: Option<(FenceRecord, u64)>,
    content: Vec<u8>,
    fates: VecDeque<Fate>,
    /// How many reads are answered; later ones are not.
    looks: usize,
    landed: usize,
    /// The kind of condition that it ignores.
    lies: Option<Lie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// The condition that there is no fence.
    Create,
    /// The condition that the fence is the one that was read.
    Replace,
}

impl Fake {
    fn new(stored: Option<FenceRecord>, fates: &[Fate], looks: usize) -> Self {
        let stored = stored.map(|record| (record, 0));
        Self { stored, fates: fates.iter().copied().collect(), looks, ..Self::default() }
    }

    fn fence(&self) -> &Fence {
        &self.stored.as_ref().unwrap().0.fence
    }
}

fn no(doing: &'static str, kind: FailureKind) -> TargetError {
    let failure = Failure::new(kind, "no");
    TargetError::Remote { target: "fake:".into(), doing, failure }
}

impl CasFence for Fake {
    type Content = [u8];

    fn shown(&self) -> &str {
        "fake:"
    }

    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        self.looks = self.looks.checked_sub(1).ok_or_else(|| no("read", FailureKind::Unreachable))?;
        Ok(self.stored.clone().map(|(record, version)| (record, Version(version.to_string()))))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&[u8]>,
    ) -> Result<Swap, TargetError> {
        let fate = self.fates.pop_front().unwrap_or(Fate::Answered);
        match fate {
            Fate::Refused(kind, landed) => {
                return Ok(Swap::Unknown(Failure { landed, ..Failure::new(kind, "no") }));
            }
            Fate::Answered | Fate::Landed | Fate::Vanished => {}
        }
        let now = self.stored.as_ref().map(|(_, version)| *version);
        let lie = if at.is_none() { Lie::Create } else { Lie::Replace };
        if now.map(|now| Version(now.to_string())).as_ref() != at
            && fate != Fate::Vanished
            && self.lies != Some(lie)
        {
            return Ok(Swap::Conflict);
        }
        if fate != Fate::Vanished {
            self.stored = Some((record.clone(), now.map_or(0, |version| version + 1)));
            self.content = content.map_or(self.content.clone(), <[u8]>::to_vec);
            self.landed += 1;
        }
        let lost = Failure::new(FailureKind::Unreachable, "lost");
        Ok(if fate == Fate::Answered { Swap::Done } else { Swap::Unknown(lost) })
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        refuses(self, &Version("never".into()))
    }
}

fn bearer(token: u64) -> Bearer {
    Bearer {
        lease: Name::new("site").unwrap(),
        epoch: Epoch::first(7),
        token: Token::new(token).unwrap(),
        grant: Grant(u128::from(token)),
    }
}

fn sealed(token: u64, mode: FenceMode) -> FenceRecord {
    let (fence, _) = sealing(None, &bearer(token), mode, "fake:").unwrap().unwrap();
    FenceRecord::done(fence)
}

#[track_caller]
fn in_doubt<T: std::fmt::Debug>(answer: Result<T, TargetError>, wanted: TargetAction) {
    match answer {
        Err(TargetError::InDoubt { asked, .. }) => assert_eq!(asked, wanted),
        other => panic!("{other:?}"),
    }
}

/// After an attempt that may have landed, no later failure says that nothing was changed: neither a read without an
/// answer, nor a refusal by the server, nor the last try.
#[test]
fn what_was_in_doubt_stays_in_doubt() {
    let again = [Fate::Vanished; TRIES as usize];
    let refused = Fate::Refused;
    let endings: [(&[Fate], usize); 6] = [
        (&[Fate::Landed], 1),
        (&[Fate::Vanished, refused(FailureKind::Denied, Landed::No)], 9),
        (&[Fate::Vanished, refused(FailureKind::Unusable, Landed::No)], 9),
        (&[refused(FailureKind::Denied, Landed::Maybe)], 9),
        (&[refused(FailureKind::Unusable, Landed::Maybe)], 9),
        (&again, 99),
    ];
    for (fates, looks) in endings {
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), fates, looks);
        in_doubt(seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Spared), TargetAction::Seal);
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), fates, looks);
        in_doubt(write(&mut fake, &bearer(33), None, "d", b"new"), TargetAction::Write);
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), fates, looks);
        in_doubt(set_mode(&mut fake, FenceMode::Observe), TargetAction::Mode);
    }
    // Control: without a doubt the error is passed on unchanged.
    let denied = [refused(FailureKind::Denied, Landed::No)];
    let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), &denied, 9);
    assert!(matches!(
        seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Spared),
        Err(TargetError::Remote { .. })
    ));
}

/// A server that says that it wrote nothing is believed at once, and what kind of failure it is stays known.
#[test]
fn what_was_surely_not_written_is_no_doubt() {
    for kind in [FailureKind::Denied, FailureKind::Unusable] {
        let no = [Fate::Refused(kind, Landed::No)];
        let fake = || Fake::new(Some(sealed(33, FenceMode::Enforce)), &no, 99);
        let error = |answer: Result<(), TargetError>| match answer {
            Err(TargetError::Remote { failure, .. }) => assert_eq!(failure.kind, kind),
            other => panic!("{kind:?}: {other:?}"),
        };
        error(seal(&mut fake(), &bearer(34), FenceMode::Enforce, Exam::Spared).map(drop));
        error(write(&mut fake(), &bearer(33), None, "d", b"new").map(drop));
        error(set_mode(&mut fake(), FenceMode::Observe));
        error(forget(&mut fake()).map(drop));
        error(examine(&mut fake()));
    }
}

/// A server that cannot be used is asked only whether the write landed.
#[test]
fn what_cannot_help_is_not_tried_again() {
    for kind in [FailureKind::Denied, FailureKind::Unusable] {
        let unsure = [Fate::Refused(kind, Landed::Maybe)];
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), &unsure, 99);
        in_doubt(write(&mut fake, &bearer(33), None, "d", b"new"), TargetAction::Write);
        assert_eq!((fake.looks, fake.landed), (97, 0));
    }
}

#[test]
fn a_lost_answer_is_found_again() {
    for fate in [Fate::Landed, Fate::Vanished] {
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), &[fate; 3], 99);
        seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Spared).unwrap();
        assert_eq!((fake.fence().token.get(), fake.landed), (34, 1), "{fate:?}");
        let mut fake = Fake::new(Some(sealed(33, FenceMode::Enforce)), &[fate], 99);
        let written = write(&mut fake, &bearer(33), None, "d", b"new").unwrap();
        assert_eq!((written.seq, written.repeat, fake.landed), (1, false, 1), "{fate:?}");
    }
}

/// In observe mode the fence does not number the writes. A write that landed is not made again.
#[test]
fn what_is_let_in_is_done_and_counted_once() {
    for (fate, told) in [(Fate::Landed, false), (Fate::Vanished, true)] {
        let mut fake = Fake::new(Some(sealed(34, FenceMode::Observe)), &[fate], 99);
        let answer = write(&mut fake, &bearer(33), None, "d", b"new");
        assert_eq!((fake.landed, fake.fence().let_in, fake.content.as_slice()), (1, 1, &b"new"[..]));
        match answer {
            Ok(written) => assert!(told && written.let_in.is_some(), "{fate:?}"),
            Err(error) => {
                assert!(!told, "{fate:?}: {error}");
                in_doubt(Err::<(), _>(error), TargetAction::Write);
            }
        }
    }
    // A later run has sealed since the attempt, which may have landed before that.
    let mut fake = Fake::new(Some(sealed(33, FenceMode::Observe)), &[Fate::Vanished], 1);
    in_doubt(write(&mut fake, &bearer(33), None, "d", b"new"), TargetAction::Write);
}

/// The check finds a server that does not compare, and changes nothing on one that does, apart from the seal.
#[test]
fn a_server_has_to_refuse_what_cannot_hold() {
    for lie in [Lie::Create, Lie::Replace] {
        for before in [None, Some(33)] {
            let stored = before.map(|token| sealed(token, FenceMode::Enforce));
            let mut fake = Fake { lies: Some(lie), ..Fake::new(stored.clone(), &[], 99) };
            let error = seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Wanted).unwrap_err();
            assert!(matches!(error, TargetError::Unfit { .. }), "{lie:?}: {error}");
            assert_eq!((fake.fence().token.get(), fake.fence().seq), (34, 0), "{lie:?}");
            let examined =
                examine(&mut Fake { lies: Some(lie), ..Fake::new(fake.stored.map(|s| s.0), &[], 99) });
            assert!(matches!(examined, Err(TargetError::Unfit { .. })), "{lie:?}");
            // Control: without the check the server is trusted.
            let mut fake = Fake { lies: Some(lie), ..Fake::new(stored.clone(), &[], 99) };
            seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Spared).unwrap();
            let mut fake = Fake::new(stored, &[], 99);
            seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Wanted).unwrap();
            assert_eq!((fake.fence().token.get(), fake.landed), (34, 1));
            // This run has sealed it already.
            seal(&mut fake, &bearer(34), FenceMode::Enforce, Exam::Wanted).unwrap();
            assert_eq!(fake.landed, 1);
        }
    }
}

/// A lost answer is requested again. No answer at all is a failure, and no proof that the server does not compare.
#[test]
fn a_server_that_does_not_answer_is_no_liar() {
    let exam = |fates: &[Fate]| {
        let fates = [&[Fate::Answered], fates].concat();
        seal(&mut Fake::new(None, &fates, 99), &bearer(34), FenceMode::Enforce, Exam::Wanted)
    };
    exam(&[Fate::Vanished]).unwrap();
    exam(&[Fate::Answered, Fate::Vanished, Fate::Vanished]).unwrap();
    let error = exam(&[Fate::Vanished; EXAMS as usize]).unwrap_err();
    let TargetError::Remote { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.kind, FailureKind::Unreachable);
}

/// One fence for several clients, with slow calls.
#[derive(Clone)]
struct Far(Arc<Mutex<Fake>>);

impl CasFence for Far {
    type Content = [u8];

    fn shown(&self) -> &str {
        "far:"
    }

    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let found = self.0.lock().unwrap().load();
        std::thread::park_timeout(Duration::from_millis(2));
        found
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&[u8]>,
    ) -> Result<Swap, TargetError> {
        self.0.lock().unwrap().swap(at, record, content)
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        Ok(Swap::Done)
    }
}

/// Writers that lost a race do not all try again at once. Otherwise one would win in each round, and most would use up
/// their tries.
#[test]
fn many_at_once_take_turns() {
    const MANY: usize = 32;
    let far = Far(Arc::new(Mutex::new(Fake::new(Some(sealed(33, FenceMode::Enforce)), &[], usize::MAX))));
    let together = Barrier::new(MANY);
    std::thread::scope(|scope| {
        for n in 0..MANY {
            let (mut far, together) = (far.clone(), &together);
            scope.spawn(move || {
                together.wait();
                write(&mut far, &bearer(33), None, &n.to_string(), b"new").unwrap();
            });
        }
    });
    assert_eq!(far.0.lock().unwrap().fence().seq, MANY as u64);
}
