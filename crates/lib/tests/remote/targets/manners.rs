//! What every target behind a network must do besides keeping the dead out.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::fence::{FenceMode, RefusalReason};
use leasehold::core::name::Name;
use leasehold::targets::{Content, Target, TargetError};
use leasehold_testkit::proxy::Fault;

use super::kit::{Maker, Site, at, bearer, seal, write};

/// Two processes of one run write at once: each write is acknowledged once and has a place of its own.
pub fn two_writes_at_once_take_turns(make: Maker<'_>) {
    const WRITES: u64 = 4;
    let site = make();
    seal(site.open().as_mut(), 33);
    let barrier = Barrier::new(2);
    let run = |who: &str| {
        let mut target = site.open();
        let mut took = Vec::new();
        for n in 0..WRITES {
            barrier.wait();
            took.push(
                write(target.as_mut(), 33, &format!("{who} {n}")).unwrap_or_else(|e| panic!("{e}")).seq,
            );
        }
        took
    };
    let mut places = thread::scope(|scope| {
        let (a, b) = (scope.spawn(|| run("a")), scope.spawn(|| run("b")));
        [a.join().unwrap(), b.join().unwrap()].concat()
    });
    places.sort_unstable();
    assert_eq!(places, (1..=2 * WRITES).collect::<Vec<_>>());
    assert_eq!(at(site.open().as_mut()), (33, 2 * WRITES));
    // Both ask for the same place with other content: one gets it, the other is told.
    let place = 2 * WRITES + 1;
    let barrier = &barrier;
    let ask = |text: &'static str| {
        let mut target = site.open();
        move || {
            barrier.wait();
            target.write(&bearer(33), Some(place), Content::Bytes(text.as_bytes()))
        }
    };
    let (a, b) = (ask("one"), ask("two"));
    let answers = thread::scope(|scope| {
        let (a, b) = (scope.spawn(a), scope.spawn(b));
        [a.join().unwrap(), b.join().unwrap()]
    });
    let refused = answers.iter().filter(
        |answer| matches!(answer, Err(TargetError::Refused(refused)) if refused.reason == RefusalReason::Sequence),
    );
    assert_eq!((refused.count(), answers.iter().filter(|a| a.is_ok()).count()), (1, 1), "{answers:?}");
    let winner = if answers[0].is_ok() { "one" } else { "two" };
    assert_eq!(site.text().as_deref(), Some(winner));
}

/// Refused, whoever comes, and left as it is.
fn refuses(site: &dyn Site, bytes: &[u8], why: &str) {
    site.set_fence(Some(bytes));
    let before = site.text();
    let mut target = site.open();
    let sealed = target.seal(&bearer(34), FenceMode::Enforce).map(|_| ());
    let written = write(target.as_mut(), 33, "through").map(|_| ());
    let moded = target.set_mode(FenceMode::Observe);
    for answer in [sealed, written, moded] {
        let error = answer.expect_err(why);
        let said = error.to_string();
        assert!(matches!(error, TargetError::BadFence { .. } | TargetError::Unfit { .. }), "{why}: {said}");
        assert!(said.contains("Nothing was written."), "{why}: {said}");
    }
    assert_eq!(site.fence().as_deref(), Some(bytes), "{why}: changed");
    assert_eq!(site.text(), before, "{why}");
}

/// A fence that cannot be read may be ahead of everybody.
pub fn an_unreadable_fence_lets_nobody_in(make: Maker<'_>) {
    let site = make();
    seal(site.open().as_mut(), 33);
    write(site.open().as_mut(), 33, "report").unwrap();
    let good = String::from_utf8(site.fence().unwrap()).unwrap();
    let newer = good.replace("\"leasehold_fence\":1,", "\"leasehold_fence\":3,\"colour\":\"red\",");
    assert_ne!(newer, good);
    refuses(site.as_ref(), b"", "empty");
    refuses(site.as_ref(), &good.as_bytes()[..good.len() / 2], "cut");
    refuses(site.as_ref(), good.replace("\"token\":33", "\"token\":-3").as_bytes(), "garbled");
    refuses(site.as_ref(), b"\xff\x00\xfe", "not text");
    refuses(site.as_ref(), newer.as_bytes(), "newer");
    site.set_fence(Some(newer.as_bytes()));
    let said = site.open().show().unwrap_err().to_string();
    assert!(said.contains("format 3") && said.contains("this version reads"), "{said}");
    // And as it was, it works as it did.
    site.set_fence(Some(good.as_bytes()));
    write(site.open().as_mut(), 33, "report 2").unwrap();
    assert_eq!(at(site.open().as_mut()), (33, 2));
}

/// Tokens of different leases are never compared.
pub fn another_lease_is_refused_by_name(make: Maker<'_>) {
    let site = make();
    let mut target = site.open();
    assert!(target.show().unwrap().is_none());
    let error = write(target.as_mut(), 33, "early").unwrap_err();
    assert!(error.to_string().contains("no run has fenced"), "{error}");
    let error = target.set_mode(FenceMode::Observe).unwrap_err();
    assert!(error.to_string().contains("has no fence yet"), "{error}");
    seal(target.as_mut(), 33);
    let mut other = bearer(99);
    other.lease = Name::new("other").unwrap();
    let error = target.seal(&other, FenceMode::Enforce).unwrap_err();
    let TargetError::Refused(refused) = &error else { panic!("{error}") };
    assert_eq!(refused.reason, RefusalReason::OtherLease);
    assert!(error.to_string().contains("belongs to the lease site"), "{error}");
    assert_eq!(at(target.as_mut()), (33, 0));
}

/// A server that is silent does not keep a run waiting for ever.
pub fn a_silent_server_ends_the_seal(make: Maker<'_>) {
    const PER_CALL: Duration = Duration::from_millis(150);
    const IN_ALL: Duration = Duration::from_millis(400);
    let site = make();
    seal(site.open().as_mut(), 33);
    // Silent from the start, and silent when the fence is to be replaced.
    for mark in [&b""[..], site.swap_mark()] {
        let proxy = site.proxy();
        for _ in 0..20 {
            proxy.arm_on(mark, Fault::Hold { hang_up: false });
        }
        let mut target = site.open_with(&proxy.url(&site.server()), PER_CALL, IN_ALL);
        let start = boot_time();
        let error = target.seal(&bearer(34), FenceMode::Enforce).unwrap_err();
        // Ten times its limit, for a machine that is busy; it would be 100 s without one.
        assert!(boot_time() < start.plus(10 * IN_ALL), "{}: {error}", site.name());
        let said = error.to_string();
        assert!(said.contains("did not answer"), "{said}");
        drop(target);
        assert_eq!(at(site.open().as_mut()), (33, 0));
    }
}

type Verb = fn(&mut dyn Target) -> Result<(), TargetError>;

/// Attempts that nobody answers: the seal may be there and the mode may be another, and nobody says that
/// nothing was changed. Here both land later.
pub fn what_was_not_answered_is_told_unknown(make: Maker<'_>) {
    const PER_CALL: Duration = Duration::from_secs(5);
    let site = make();
    seal(site.open().as_mut(), 33);
    let verbs: [Verb; 2] = [
        |target| target.seal(&bearer(34), FenceMode::Enforce).map(drop),
        |target| target.set_mode(FenceMode::Observe),
    ];
    for verb in verbs {
        let proxy = site.proxy();
        let lost: Vec<_> =
            (0..20).map(|_| proxy.arm_on(site.swap_mark(), Fault::Hold { hang_up: true })).collect();
        let mut target = site.open_with(&proxy.url(&site.server()), PER_CALL, 2 * PER_CALL);
        let before = site.fence();
        let error = verb(target.as_mut()).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, TargetError::InDoubt { .. }), "{}: {said}", site.name());
        assert!(!said.contains("Nothing was"), "{said}");
        drop(target);
        lost[0].held().expect("the first attempt").deliver().unwrap();
        let deadline = boot_time().plus(PER_CALL);
        while site.fence() == before {
            assert!(boot_time() < deadline, "{}: it never landed", site.name());
        }
    }
}

/// A write that is only let in, and whose answer is lost: done once, counted once, told unknown. One that
/// never landed is simply made again.
pub fn a_watched_write_is_not_done_twice(make: Maker<'_>) {
    for (fault, lands) in [(Fault::DropReply, true), (Fault::Cut, false)] {
        let site = make();
        seal(site.open().as_mut(), 34);
        site.open().set_mode(FenceMode::Observe).unwrap();
        let proxy = site.proxy();
        let mut target = site.open_at(&proxy.url(&site.server()));
        let strike = proxy.arm_on(site.swap_mark(), fault);
        let answer = write(target.as_mut(), 33, "let in");
        assert!(strike.struck());
        match (lands, answer) {
            (true, Err(TargetError::InDoubt { .. })) => {}
            (false, Ok(written)) => assert_eq!(written.let_in.map(|r| r.reason), Some(RefusalReason::Stale)),
            (_, other) => panic!("{}: lands: {lands}: {other:?}", site.name()),
        }
        assert_eq!(site.text().as_deref(), Some("let in"));
        assert_eq!(site.open().show().unwrap().unwrap().fence.let_in, 1, "{}", site.name());
    }
}

/// Watching lets in what would be refused, says so and counts it.
pub fn watching_lets_in_and_counts(make: Maker<'_>) {
    let site = make();
    let mut target = site.open();
    seal(target.as_mut(), 34);
    target.set_mode(FenceMode::Observe).unwrap();
    let written = write(target.as_mut(), 33, "let in").unwrap();
    assert_eq!(written.let_in.expect("said").reason, RefusalReason::Stale);
    assert_eq!(site.text().as_deref(), Some("let in"));
    let fence = target.show().unwrap().unwrap().fence;
    assert_eq!((fence.token.get(), fence.let_in), (34, 1));
    target.set_mode(FenceMode::Enforce).unwrap();
    assert!(write(target.as_mut(), 33, "kept out").is_err());
    let mut seen = Vec::new();
    target.read(&mut seen).unwrap();
    assert_eq!(seen, b"let in");
}
