//! Damaged fences, servers that cannot or will not, answers that are lost.

use leasehold::backends::git::{BranchUpdate, FALLBACK_REF, FENCE_REF, GitTarget};
use leasehold::core::fence::{FenceMode, RefusalReason};
use leasehold::targets::{Content, Target, TargetError};
use leasehold_testkit::git::{RepoAccess, Server, must, script};
use leasehold_testkit::proxy::{Fault, Proxy};

use crate::kit::{at, bearer, commit, of, plant, sealed, stored, target, yard};

const MAIN: &str = "refs/heads/main";

fn push(target: &mut GitTarget, token: u64, text: &str) -> Result<u64, TargetError> {
    target
        .push(&bearer(token), None, BranchUpdate::Forced, &[(MAIN, &commit(text))])
        .map(|written| written.seq)
}

#[test]
fn a_fence_that_was_deleted_lets_nobody_in() {
    let (yard, mut target) = sealed(5);
    push(&mut target, 5, "a").unwrap();
    must(&yard.bare(), &["update-ref", "-d", FENCE_REF]);
    let Err(TargetError::Refused(refused)) = push(&mut target, 5, "b") else { panic!("not refused") };
    assert_eq!(refused.reason, RefusalReason::NotSealed);
    assert_eq!(yard.at(MAIN), commit("a"));
}

#[test]
fn a_garbled_fence_lets_nobody_in() {
    let (yard, mut target) = sealed(5);
    push(&mut target, 5, "a").unwrap();
    let bad: [&[u8]; 4] = [b"", b"hello\n", b"{\"leasehold_fence\":1}\n", b"\xff\xfe\n"];
    for message in bad {
        plant(&yard, FENCE_REF, message);
        for result in [push(&mut target, 5, "b").err(), target.seal(&bearer(6), FenceMode::Enforce).err()] {
            let said = result.unwrap().to_string();
            assert!(said.contains("nobody can tell who may write") && said.contains(FENCE_REF), "{said}");
        }
    }
    // Not even a commit.
    let blob = must(&yard.bare(), &["hash-object", "-w", "--stdin"]);
    std::fs::write(yard.bare().join(FENCE_REF), format!("{blob}\n")).unwrap();
    let said = target.seal(&bearer(6), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("is a blob, not a commit"), "{said}");
    assert_eq!(yard.at(MAIN), commit("a"));
}

#[test]
fn another_lease_is_refused_by_name() {
    let (yard, mut target) = sealed(5);
    for result in [
        target.seal(&of("blog", 9), FenceMode::Enforce).err(),
        target.push(&of("blog", 9), None, BranchUpdate::Forced, &[(MAIN, &commit("a"))]).err(),
    ] {
        let said = result.unwrap().to_string();
        assert!(said.contains("belongs to the lease site, and this run holds blog (token 9)"), "{said}");
    }
    assert_eq!(yard.at(MAIN), "");
}

/// Watching: let in, counted, and whoever is stale stays stale.
#[test]
fn a_watched_repository_refuses_nothing() {
    let yard = yard();
    let mut target = at(&yard);
    target.seal(&bearer(5), FenceMode::Observe).unwrap();
    target.seal(&bearer(6), FenceMode::Observe).unwrap();
    let written = target.push(&bearer(5), None, BranchUpdate::Forced, &[(MAIN, &commit("a"))]).unwrap();
    assert_eq!(written.let_in.map(|refused| refused.reason), Some(RefusalReason::Stale));
    assert_eq!(yard.at(MAIN), commit("a"));
    target.set_mode(FenceMode::Enforce).unwrap();
    assert!(matches!(push(&mut target, 5, "b"), Err(TargetError::Refused(_))));
    assert_eq!((stored(&yard).fence.token.get(), stored(&yard).fence.let_in), (6, 1));
}

#[test]
fn a_server_without_atomic_push_is_refused() {
    for way in [RepoAccess::File, RepoAccess::Http] {
        let yard = yard();
        must(&yard.bare(), &["config", "receive.advertiseAtomic", "false"]);
        let server = Server::start(way, yard.dir());
        let said = target(&server.url()).seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
        assert!(said.contains("cannot move several refs in one step"), "{way:?}: {said}");
    }
}

/// Servers that take branches only, by a hook or by hiding, and that never let a branch go back.
#[test]
fn where_only_branches_are_taken_the_fence_is_one() {
    for hidden in [true, false] {
        let yard = yard();
        must(&yard.bare(), &["config", "receive.denyNonFastForwards", "true"]);
        if hidden {
            must(&yard.bare(), &["config", "transfer.hideRefs", "refs/leasehold"]);
        } else {
            let hook = "#!/bin/sh\ncase $1 in refs/heads/*) ;; *) echo 'branches only' >&2; exit 1 ;; esac\n";
            script(&yard.bare().join("hooks/update"), hook);
        }
        let mut target = at(&yard);
        target.seal_examined(&bearer(1), FenceMode::Enforce).unwrap();
        push(&mut target, 1, "a").unwrap();
        target.seal_examined(&bearer(2), FenceMode::Enforce).unwrap();
        assert!(matches!(push(&mut target, 1, "b"), Err(TargetError::Refused(_))));
        assert_eq!(stored(&yard).fence.token.get(), 2);
        assert_eq!(must(&yard.bare(), &["rev-list", "--count", FALLBACK_REF]), "3");
        assert_eq!((yard.at(MAIN), yard.at(FENCE_REF)), (commit("a"), String::new()));
    }
}

#[test]
fn a_server_that_takes_no_fence_says_why() {
    let yard = yard();
    script(&yard.bare().join("hooks/update"), "#!/bin/sh\necho 'closed on Sundays' >&2\nexit 1\n");
    let said = at(&yard).seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("takes neither") && said.contains("closed on Sundays"), "{said}");
}

/// The server has its own reasons: they are shown, and neither branch nor fence has moved.
#[test]
fn a_rejection_of_the_servers_own() {
    let (yard, mut target) = sealed(3);
    let hook = "#!/bin/sh\ncase $1 in refs/heads/*) echo 'not on Fridays' >&2; exit 1 ;; esac\n";
    script(&yard.bare().join("hooks/update"), hook);
    let error = push(&mut target, 3, "a").unwrap_err();
    assert!(matches!(error, TargetError::Remote { .. }), "{error:?}");
    assert!(error.to_string().contains("not on Fridays"), "{error}");
    assert_eq!((yard.at(MAIN).as_str(), stored(&yard).fence.seq), ("", 0));
}

/// The answer is lost, or the request is: what the fence says decides, and nothing is written twice.
#[test]
fn a_lost_answer_is_settled_by_the_fence() {
    let yard = yard();
    let server = Server::start(RepoAccess::Http, yard.dir());
    let address = server.url();
    let proxy = Proxy::tcp(&address);
    let mut target = target(&proxy.url(&address));
    target.seal(&bearer(1), FenceMode::Enforce).unwrap();
    for (number, fault) in [Fault::DropReply, Fault::Cut].into_iter().enumerate() {
        let text = format!("push {number}");
        let strike = proxy.arm_on(b"POST /r.git/git-receive-pack", fault);
        let seq = push(&mut target, 1, &text).unwrap();
        assert!(strike.struck());
        assert_eq!(seq, number as u64 + 1);
        assert_eq!(yard.at(MAIN), commit(&text));
        assert_eq!(stored(&yard).fence.seq, seq);
    }
}

/// A hook of the server speaks like git, and the connection ends before the server's answer: the push has
/// landed, and is not said to have changed nothing.
#[test]
fn what_a_server_says_is_not_taken_for_gits_own_words() {
    let (yard, mut target) = sealed(3);
    let hooks = yard.bare().join("hooks");
    script(&hooks.join("pre-receive"), "#!/bin/sh\ncat >/dev/null\necho 'unable to connect to ci.example'\n");
    // The refs have moved, and nobody is told.
    let cut = "#!/bin/sh\n[ \"$1\" != committed ] || ! rm armed 2>/dev/null || kill -9 $PPID\n";
    script(&hooks.join("reference-transaction"), cut);
    std::fs::write(yard.bare().join("armed"), "").unwrap();
    assert_eq!(push(&mut target, 3, "a").unwrap(), 1);
    assert!(!yard.bare().join("armed").exists(), "the connection was never cut");
    assert_eq!((yard.at(MAIN), stored(&yard).fence.seq), (commit("a"), 1));
}

/// Only who asks for it moves a branch to what does not descend from it.
#[test]
fn a_push_is_forced_only_if_that_is_asked_for() {
    let (yard, mut target) = sealed(3);
    let mut push = |update, text: &str| {
        target.push(&bearer(3), None, update, &[(MAIN, &commit(text))]).map(|written| written.seq)
    };
    assert_eq!(push(BranchUpdate::FastForward, "a").unwrap(), 1);
    let error = push(BranchUpdate::FastForward, "b").unwrap_err();
    assert!(error.to_string().contains("refs/heads/main: non-fast-forward"), "{error}");
    assert_eq!((yard.at(MAIN), stored(&yard).fence.seq), (commit("a"), 1));
    assert_eq!(push(BranchUpdate::Forced, "b").unwrap(), 2);
    assert_eq!(yard.at(MAIN), commit("b"));
}

/// All branches and tags in a word; only a word of that kind is compared with it.
#[test]
fn a_look_at_all_branches_and_tags() {
    let yard = yard();
    let mut target = at(&yard);
    let empty = target.fingerprint().unwrap();
    target.seal(&bearer(1), FenceMode::Observe).unwrap();
    assert_eq!(target.fingerprint().unwrap(), empty, "a fence is not what is looked at");
    plant(&yard, MAIN, b"one\n");
    let one = target.fingerprint().unwrap();
    plant(&yard, "refs/tags/v1", b"one\n");
    let two = target.fingerprint().unwrap();
    assert!(empty != one && one != two);
    target.remember(&bearer(1), &two).unwrap();
    assert_eq!((stored(&yard).fence.digest, stored(&yard).fence.seq), (two.clone(), 1));
    assert_eq!(at(&yard).fingerprint(), Some(two));
    // After a fenced push the fence tells what was pushed, which is another thing.
    target.push(&bearer(1), None, BranchUpdate::Forced, &[(MAIN, &commit("a"))]).unwrap();
    assert_eq!(at(&yard).fingerprint(), None);
    // Whoever has the turn may take note of it again.
    let three = target.fingerprint().unwrap();
    target.remember(&bearer(1), &three).unwrap();
    assert_eq!(at(&yard).fingerprint(), Some(three));
}

#[test]
fn nobody_there_and_no_secrets_told() {
    crate::kit::workshop();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut target = target(&format!("http://joe:s3cret@127.0.0.1:{port}/r.git"));
    let said = target.seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("cannot look at") && said.contains("127.0.0.1"), "{said}");
    assert!(!said.contains("s3cret") && !target.shown().contains("s3cret"), "{said}");
}

#[test]
fn what_cannot_be_a_target() {
    crate::kit::workshop();
    assert!(GitTarget::open("").is_err() && GitTarget::open("--upload-pack=x").is_err());
    let said = target("nosuchremote").seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("is no remote of the clone"), "{said}");
    let said = target("/nonexistent/r.git").seal(&bearer(1), FenceMode::Enforce).unwrap_err().to_string();
    assert!(said.contains("does not appear to be a git repository"), "{said}");
    let (_yard, mut target) = sealed(1);
    let said = target.write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err().to_string();
    assert!(said.contains("leasehold push"), "{said}");
}
