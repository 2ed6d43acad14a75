//! Answers that never came, servers that hang, files that are live before the fence was asked.

use std::io::Write;
use std::time::Duration;

use leasehold::backends::git::{BranchUpdate, FENCE_REF, GitTarget, hook};
use leasehold::core::fence::FenceMode;
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::git::{Yard, git, must, script};

use crate::kit::{at, bearer, commit, sealed, state, stored, target, yard};

const MAIN: &str = "refs/heads/main";

fn push(target: &mut GitTarget, token: u64, text: &str) -> Result<u64, TargetError> {
    target
        .push(&bearer(token), None, BranchUpdate::Forced, &[(MAIN, &commit(text))])
        .map(|written| written.seq)
}

/// The next push lands, then this happens in the server, and its answer is lost.
fn lose_the_answer(yard: &Yard, meanwhile: &str) {
    let hook =
        format!("#!/bin/sh\ncat >/dev/null\nrm armed 2>/dev/null || exit 0\n{meanwhile}\nkill -9 $PPID\n");
    script(&yard.bare().join("hooks/post-receive"), &hook);
    std::fs::write(yard.bare().join("armed"), "").unwrap();
}

/// It landed, the answer was lost, and a later run sealed: nobody may say that it was not written.
#[test]
fn a_lost_answer_before_a_later_seal_is_in_doubt() {
    let (yard, mut target) = sealed(3);
    let ours = yard.at(FENCE_REF);
    at(&yard).seal(&bearer(4), FenceMode::Enforce).unwrap();
    let later = yard.at(FENCE_REF);
    must(&yard.bare(), &["update-ref", FENCE_REF, &ours]);
    lose_the_answer(&yard, &format!("git update-ref {FENCE_REF} {later}"));
    let error = push(&mut target, 3, "a").unwrap_err();
    assert!(matches!(error, TargetError::InDoubt { .. }), "{error:?}");
    assert_eq!((yard.at(MAIN), stored(&yard).fence.token.get()), (commit("a"), 4));
    // The control: where the server did answer it is a refusal.
    let error = push(&mut target, 3, "b").unwrap_err();
    assert!(matches!(error, TargetError::Refused(_)), "{error:?}");
}

/// It landed, the answer was lost, and another push of the same run came after it: that one stays.
#[test]
fn a_lost_answer_is_not_repeated_over_a_later_push() {
    let (yard, mut target) = sealed(3);
    let ours = yard.at(FENCE_REF);
    push(&mut target, 3, "before").unwrap();
    push(&mut target, 3, "later").unwrap();
    let later = yard.at(FENCE_REF);
    must(&yard.bare(), &["update-ref", FENCE_REF, &ours]);
    lose_the_answer(
        &yard,
        &format!("git update-ref {FENCE_REF} {later}; git update-ref {MAIN} {}", commit("later")),
    );
    let error = push(&mut at(&yard), 3, "a").unwrap_err();
    assert!(matches!(error, TargetError::InDoubt { .. }), "{error:?}");
    assert_eq!((yard.at(MAIN), stored(&yard).fence.seq), (commit("later"), 2));
}

/// A push past a fence that is another's by now is told, with care; a later run's own push is not.
#[test]
fn what_went_round_is_told_after_a_later_seal_too() {
    let (yard, mut target) = sealed(3);
    push(&mut target, 3, "a").unwrap();
    // Another process, which knows nothing of ours.
    let mut later = GitTarget::open(yard.bare().to_str().unwrap()).unwrap().keeping_in(state("later"));
    later.seal(&bearer(4), FenceMode::Enforce).unwrap();
    assert_eq!(target.aftermath(&bearer(3)), None);
    let round = format!("+{}:{MAIN}", commit("round"));
    must(crate::kit::workshop(), &["push", "--quiet", yard.bare().to_str().unwrap(), &round]);
    let said = target.aftermath(&bearer(3)).unwrap();
    assert!(
        said.contains("perhaps a push bypassed the fence") && said.contains(MAIN) && said.contains("token 4"),
        "{said}"
    );
    push(&mut later, 4, "b").unwrap();
    assert_eq!(target.aftermath(&bearer(3)), None);
}

/// A server whose hook never ends: given up once, for all tries together, and one push is left there.
#[test]
fn a_server_that_hangs_is_given_up_once() {
    let yard = yard();
    let (fifo, count) = (yard.bare().join("go"), yard.bare().join("count"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let hook =
        format!("#!/bin/sh\necho x >>'{}'\nread -r _ <'{}'\nexit 1\n", count.display(), fifo.display());
    script(&yard.bare().join("hooks/pre-receive"), &hook);
    let mut target = target(yard.bare().to_str().unwrap()).giving_up_after(Duration::from_secs(3));
    let error = target.seal(&bearer(1), FenceMode::Enforce).unwrap_err();
    assert!(error.to_string().contains("did not end in time"), "{error}");
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
    // Whoever waits there may go.
    std::fs::OpenOptions::new().write(true).open(&fifo).unwrap().write_all(b"\n").unwrap();
}

/// Git puts pushed files in place before it compares the fence: such a repository is not fenced.
#[test]
fn a_repository_that_goes_live_by_itself_is_refused() {
    let yard = yard();
    must(yard.dir(), &["init", "--quiet", "--initial-branch=main", "live"]);
    let live = yard.dir().join("live");
    let mut here = target(live.to_str().unwrap());
    must(&live, &["config", "receive.denyCurrentBranch", "UpdateInstead"]);
    let said = here.seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("updateInstead") && said.contains("would still change them"), "{said}");
    let said = hook::install(&live).unwrap_err().to_string();
    assert!(said.contains("updateInstead"), "{said}");
    // Who only watches changes nothing.
    here.seal(&bearer(1), FenceMode::Observe).unwrap();
    must(&live, &["update-ref", "-d", FENCE_REF]);
    // Set later, where the hooks are: from elsewhere it cannot be seen, so they look themselves.
    must(&live, &["config", "receive.denyCurrentBranch", "refuse"]);
    hook::install(&live).unwrap();
    let mut here = target(live.to_str().unwrap());
    here.seal(&bearer(2), FenceMode::Enforce).unwrap();
    must(&live, &["config", "receive.denyCurrentBranch", "updateInstead"]);
    let said = push(&mut here, 2, "a").unwrap_err().to_string();
    assert!(said.contains("updateInstead"), "{said}");
    must(&live, &["config", "receive.denyCurrentBranch", "ignore"]);
    push(&mut here, 2, "a").unwrap();
}

/// Housekeeping of the server packs refs and moves none; deleting one is another thing, packed or not.
#[test]
fn the_hooks_let_housekeeping_pass() {
    let (yard, mut target) = sealed(3);
    let bare = yard.bare();
    hook::install(&bare).unwrap();
    let moves = [(MAIN, &*commit("a")), ("refs/heads/two", &*commit("a")), ("refs/tags/v", &*commit("a"))];
    target.push(&bearer(3), None, BranchUpdate::Forced, &moves).unwrap();
    must(&bare, &["pack-refs", "--all", "--prune"]);
    assert!(!bare.join(MAIN).exists() && !bare.join(FENCE_REF).exists(), "nothing was packed");
    let refused = |args: &[&str]| {
        let output = git(&bare).args(args).output().unwrap();
        let said = leasehold_testkit::git::said(&output);
        assert!(!output.status.success() && said.contains("refused"), "{args:?}: {said}");
    };
    let deletions = || {
        refused(&["update-ref", "-d", "refs/heads/two"]);
        refused(&["update-ref", "-d", "refs/heads/two", &commit("a")]);
        refused(&["branch", "-D", "two"]);
        refused(&["update-ref", "-d", FENCE_REF]);
        refused(&["update-ref", MAIN, &commit("b")]);
        assert_eq!((yard.at("refs/heads/two"), yard.at(MAIN)), (commit("a"), commit("a")));
    };
    must(
        crate::kit::workshop(),
        &["push", "--quiet", bare.to_str().unwrap(), &format!("{}:refs/notes/b", commit("b"))],
    );
    deletions();
    // Loose over packed.
    push(&mut target, 3, "a").unwrap();
    deletions();
    must(&bare, &["gc", "--quiet", "--prune=now"]);
    deletions();
    assert_eq!(push(&mut target, 3, "c").unwrap(), 3);
}

/// Not supported, and said so.
#[test]
fn sha_256_is_told() {
    let yard = yard();
    must(yard.dir(), &["init", "--quiet", "--bare", "--object-format=sha256", "long.git"]);
    let long = yard.dir().join("long.git");
    let blob = must(&long, &["hash-object", "-w", "--stdin"]);
    must(&long, &["update-ref", "refs/tags/b", &blob]);
    let mut target = GitTarget::open(long.to_str().unwrap()).unwrap().keeping_in(state("long"));
    let said = target.seal(&bearer(1), FenceMode::Enforce).unwrap_err();
    assert!(matches!(said, TargetError::Unfit { .. }) && said.to_string().contains("SHA-256"), "{said:?}");
}
