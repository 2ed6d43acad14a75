//! Servers that claim atomic pushes and do not compare; and honest ones, beside a successor that seals at any moment.

use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::Duration;

use leasehold::backends::git::{BranchUpdate, FENCE_REF, GitTarget, hook};
use leasehold::core::fence::FenceMode;
use leasehold::core::store::FailureKind;
use leasehold::targets::{Target, TargetAction, TargetError};
use leasehold::{clock, random};
use leasehold_testkit::count;
use leasehold_testkit::git::{RepoAccess, Server, WAYS, Yard, script};
use leasehold_testkit::proxy::{Fault, Proxy};

use crate::kit::{at, bearer, commit, plant, state, stored, target, yard};

const MAIN: &str = "refs/heads/main";
/// How a liar compares.
const LIES: [&str; 2] = ["all", "each"];
/// What a client says when it sends its commands, and not before.
const COMMANDS: &[u8] = b" report-status";
const LONG: Duration = Duration::from_secs(60);

fn push(target: &mut GitTarget, token: u64, text: &str) -> Result<u64, TargetError> {
    target
        .push(&bearer(token), None, BranchUpdate::Forced, &[(MAIN, &commit(text))])
        .map(|written| written.seq)
}

/// The push of token 33 stands on the wire while token 34 seals, and goes on: what it is told.
fn overtaken(yard: &Yard, server: &Server) -> Result<u64, TargetError> {
    let proxy = Proxy::tcp(&server.url());
    let mut old = target(&proxy.url(&server.url()));
    old.seal(&bearer(33), FenceMode::Enforce).unwrap();
    push(&mut old, 33, "before").unwrap();
    let strike = proxy.arm_on(COMMANDS, Fault::Pause);
    let late = thread::spawn(move || push(&mut old, 33, "stale"));
    assert!(strike.wait(LONG), "it never pushed");
    at(yard).seal(&bearer(34), FenceMode::Enforce).unwrap();
    strike.release();
    late.join().unwrap()
}

#[test]
fn a_liar_is_refused_when_it_is_first_sealed() {
    for (how, round) in LIES.into_iter().flat_map(|how| (0..10).map(move |round| (how, round))) {
        let yard = yard();
        let server = Server::lying(how, yard.dir());
        if round % 2 == 1 {
            at(&yard).seal(&bearer(32), FenceMode::Enforce).unwrap();
        }
        let error = target(&server.url()).seal_examined(&bearer(33), FenceMode::Enforce).unwrap_err();
        assert!(matches!(error, TargetError::Unfit { .. }), "{how}: {error}");
        assert_eq!((stored(&yard).fence.token.get(), stored(&yard).fence.seq), (33, 0), "{how}");
    }
}

/// Then nobody knows whether the server compares, and everybody knows that the fence stands.
#[test]
fn an_exam_without_an_answer_leaves_no_doubt_of_the_seal() {
    let yard = yard();
    let bare = yard.bare();
    assert!(Command::new("mkfifo").arg(bare.join("never")).status().unwrap().success());
    let stands = "#!/bin/sh\nif [ -e sealed ]; then read -r _ <never; fi\n: >sealed\n";
    script(&bare.join("hooks/pre-receive"), stands);
    let mut impatient = at(&yard).giving_up_after(Duration::from_secs(8));
    let error = impatient.seal_examined(&bearer(33), FenceMode::Enforce).unwrap_err();
    let TargetError::Remote { failure, .. } = &error else { panic!("{error:?}") };
    assert_eq!(failure.kind, FailureKind::Unreachable, "{error}");
    assert_eq!(stored(&yard).fence.token.get(), 33);
    // Whoever waits there may go.
    std::fs::OpenOptions::new().write(true).open(bare.join("never")).unwrap().write_all(b"\n").unwrap();
}

/// A fence that is there already is examined without a lease, and stays what it is.
#[test]
fn a_fence_is_examined_by_anybody() {
    let yard = yard();
    at(&yard).seal(&bearer(33), FenceMode::Enforce).unwrap();
    let before = stored(&yard);
    for way in WAYS {
        target(&Server::start(way, yard.dir()).url()).examine().unwrap();
        assert_eq!(stored(&yard), before, "{way:?}");
    }
    for how in LIES {
        let error = target(&Server::lying(how, yard.dir()).url()).examine().unwrap_err();
        assert!(matches!(error, TargetError::Unfit { .. }), "{how}: {error}");
        assert_eq!(stored(&yard), before, "{how}");
    }
}

/// Who was not examined is found out if the fence does not show the push that git calls good.
#[test]
fn a_liar_is_not_believed_after_a_push() {
    for _ in 0..count(5, 20) {
        let yard = yard();
        let told = overtaken(&yard, &Server::lying("each", yard.dir()));
        assert!(matches!(told, Err(TargetError::InDoubt { asked: TargetAction::Write, .. })), "{told:?}");
        assert_eq!((yard.at(MAIN), stored(&yard).fence.token.get()), (commit("stale"), 34));
    }
    // The control: one that moves the fence back as well is believed, and only the exam keeps it away.
    let yard = yard();
    overtaken(&yard, &Server::lying("all", yard.dir())).unwrap();
    assert_eq!((yard.at(MAIN), stored(&yard).fence.token.get()), (commit("stale"), 33));
}

#[test]
fn an_honest_server_refuses_the_same_push() {
    let yard = yard();
    let server = Server::start(RepoAccess::Daemon, yard.dir());
    let error = overtaken(&yard, &server).unwrap_err();
    assert!(matches!(error, TargetError::Refused(_)), "{error}");
    assert_eq!(yard.at(MAIN), commit("before"));
}

/// Whoever seals and pushes while a later run seals is told that it was done, or that it was overtaken: never that the
/// server lies, nor that nobody knows.
#[test]
fn honest_servers_pass_whoever_else_seals() {
    for (way, hooks) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let yard = yard();
        if hooks {
            hook::install(&yard.bare()).unwrap();
        }
        let server = Server::start(way, yard.dir());
        let (mut good, mut overtaken, mut lasted) = (0, 0, Duration::from_millis(100));
        for round in 0..count(20, 200) {
            let token = 2 * round as u64 + 1;
            let begun = clock::boot_time();
            let done = thread::scope(|scope| {
                let yard = &yard;
                scope.spawn(move || {
                    thread::park_timeout(lasted.mul_f64((random::seed() % 1000) as f64 / 1000.0));
                    let url = yard.bare();
                    let later = GitTarget::open(url.to_str().unwrap()).unwrap();
                    later.keeping_in(state("later")).seal(&bearer(token + 1), FenceMode::Enforce).unwrap();
                });
                let mut ours = target(&server.url());
                let sealed = ours.seal_examined(&bearer(token), FenceMode::Enforce);
                let pushed = sealed.and_then(|_| push(&mut ours, token, &format!("{way:?} {round}")));
                lasted = clock::boot_time().since(begun);
                pushed
            });
            match done {
                Ok(_) => good += 1,
                Err(TargetError::Refused(_)) => overtaken += 1,
                Err(error) => panic!("{way:?}, hooks: {hooks}, round {round}: {error}"),
            }
        }
        println!("{way:?}, hooks: {hooks}: {good} done, {overtaken} overtaken");
    }
}

/// Right after the push a later run seals, before the fence is read back: it was there, and that is said.
#[test]
fn a_successor_shows_what_it_replaced() {
    let yard = yard();
    let server = Server::start(RepoAccess::Daemon, yard.dir());
    let proxy = Proxy::tcp(&server.url());
    let mut ours = target(&proxy.url(&server.url()));
    ours.seal(&bearer(33), FenceMode::Enforce).unwrap();
    // The look before the push, and the one that follows it.
    proxy.arm_on(b"git-upload-pack", Fault::Delay(Duration::ZERO));
    let strike = proxy.arm_on(b"git-upload-pack", Fault::Pause);
    let late = thread::spawn(move || push(&mut ours, 33, "ours"));
    assert!(strike.wait(LONG), "the fence was not read back");
    for token in 34..40 {
        at(&yard).seal(&bearer(token), FenceMode::Enforce).unwrap();
    }
    strike.release();
    assert_eq!(late.join().unwrap().unwrap(), 1);
    assert_eq!((yard.at(MAIN), stored(&yard).fence.token.get()), (commit("ours"), 39));
    // The control: a fence that names no others shows nothing.
    let mut ours = target(&proxy.url(&server.url()));
    ours.seal(&bearer(40), FenceMode::Enforce).unwrap();
    proxy.arm_on(b"git-upload-pack", Fault::Delay(Duration::ZERO));
    let strike = proxy.arm_on(b"git-upload-pack", Fault::Pause);
    let late = thread::spawn(move || push(&mut ours, 40, "theirs"));
    assert!(strike.wait(LONG), "the fence was not read back");
    plant(&yard, FENCE_REF, &stored(&yard).encode());
    strike.release();
    let told = late.join().unwrap();
    assert!(matches!(told, Err(TargetError::InDoubt { .. })), "{told:?}");
}
