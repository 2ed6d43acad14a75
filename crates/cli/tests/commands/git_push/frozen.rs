//! A holder that stands still after its last look, while its successor seals and writes nothing.

use std::path::PathBuf;

use leasehold_testkit::git::{RepoAccess, StoppedHook, WAYS};
use leasehold_testkit::proxy::Fault;
use rustix::process::Signal;

use super::kit::{MAIN, Scene};
use crate::world::{PATIENCE, Running, long, until};

#[derive(Clone, Copy, Debug)]
enum Where {
    /// On the client: it has seen the server's refs and passed all its own checks.
    PrePush,
    /// In the server: its request has arrived.
    PreReceive,
}

fn hook(scene: &Scene, place: Where) -> PathBuf {
    match place {
        Where::PrePush => scene.clone.join(".git/hooks/pre-push"),
        Where::PreReceive => scene.yard.bare().join("hooks/pre-receive"),
    }
}

fn matrix(way: RepoAccess, place: Where, rounds: u64) {
    let scene = Scene::new(way);
    for token in (1..).step_by(2).take(usize::try_from(rounds).unwrap()) {
        scene.seal(token);
        scene.yard.commit(&scene.clone, &format!("by {token}"));
        let before = scene.yard.at(MAIN);
        let stop = StoppedHook::at(&hook(&scene, place));
        let zombie = Running::new(scene.push_in(&scene.clone, token, &["origin", "main", "main:other"]));
        stop.reached();
        scene.seal(token + 1);
        stop.go();
        let both = format!("token {token} is older than {}", token + 1);
        zombie.ended().is(76, "targets.stale_write").names(&[&both]);
        assert_eq!(scene.yard.at(MAIN), before, "{way:?} {place:?}: a stale write is visible");
        assert_eq!(scene.yard.at("refs/heads/other"), "");
        assert_eq!((scene.fence().fence.token.get(), scene.fence().fence.seq), (token + 1, 0));
    }
    // The same push by the one who holds the lease.
    scene.push(2 * rounds, &["origin", "main"]).is(0, "");
    assert_ne!(scene.yard.at(MAIN), "");
    println!("{way:?} {place:?}: {rounds} rounds, 0 stale writes visible, {rounds} refusals with 76");
}

#[test]
fn in_pre_push() {
    WAYS.iter().for_each(|way| matrix(*way, Where::PrePush, if long() { 100 } else { 1 }));
}

#[test]
fn in_the_server() {
    WAYS.iter().for_each(|way| matrix(*way, Where::PreReceive, if long() { 100 } else { 1 }));
}

/// The server calls the stale push good, moves the branch and leaves the fence: that is not called a success.
#[test]
fn on_the_wire_to_a_server_that_does_not_compare() {
    for _ in 0..20 {
        let scene = Scene::lying("each");
        scene.seal(33);
        let strike = scene.proxy.as_ref().unwrap().arm_on(b" report-status", Fault::Pause);
        let zombie = Running::new(scene.push_in(&scene.clone, 33, &["origin", "HEAD:main"]));
        assert!(strike.wait(PATIENCE), "it never pushed");
        scene.seal(34);
        strike.release();
        zombie.ended().is(79, "targets.write_in_doubt");
        assert_ne!(scene.yard.at(MAIN), "", "then there was nothing to find out");
        assert_eq!(scene.fence().fence.token.get(), 34);
    }
}

/// A script that knows only git, in a real run whose supervisor is frozen as well.
#[test]
fn a_job_that_knows_only_git() {
    let scene = Scene::new(RepoAccess::Http);
    let script =
        "git commit -q --allow-empty -m new; git push origin HEAD:main >log 2>&1; echo \"exit $?\" >>log";
    scene.job(&[], script).quiet();
    let first = scene.yard.at(MAIN);
    assert_ne!(first, "");
    assert_eq!((scene.fence().fence.token.get(), scene.fence().fence.seq), (1, 1));

    let stop = StoppedHook::at(&scene.clone.join(".git/hooks/pre-push"));
    let mut command =
        scene.world.command(&["run", "site", "--ttl", "3s", "--fence", "git:origin", "--", "sh", "-c"]);
    command.arg(script).current_dir(&scene.clone);
    let wrapper = Running::new(command);
    stop.reached();
    wrapper.signal(Signal::STOP);
    let target = format!("git:{}", scene.server.url());
    let next = ["run", "site", "--ttl", "3s", "--wait", "50s", "--fence", &target, "--", "true"];
    scene.world.run(&next).is(0, "");
    assert_eq!(scene.fence().fence.token.get(), 3);
    stop.go();
    let log = until("the end of the push", || {
        let log = std::fs::read_to_string(scene.clone.join("log")).unwrap_or_default();
        log.contains("exit ").then_some(log)
    });
    assert!(log.contains("refused by the fence: token 2, newest 3 (stale)"), "{log}");
    assert!(log.contains("your token 2 is older than 3") && log.contains("exit 1"), "{log}");
    assert_eq!(scene.yard.at(MAIN), first);
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.ended().code, 75);
}
