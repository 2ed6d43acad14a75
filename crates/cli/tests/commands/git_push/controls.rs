//! Negative controls: pushes that look fenced and are not. Each must let the frozen writer in, or the
//! tests beside this one show nothing.

use leasehold::backends::git::FENCE_REF;
use leasehold_testkit::git::{RepoAccess, StoppedHook, git, must, said};

use super::kit::{MAIN, Scene};

/// A push frozen in pre-push while a successor seals; whether the branch has moved.
fn lands(args: impl Fn(&str, &str) -> Vec<String>) -> bool {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(33);
    let clone = &scene.clone;
    must(clone, &["fetch", "--quiet", "origin", FENCE_REF]);
    let (old, new) =
        (must(clone, &["rev-parse", "FETCH_HEAD"]), scene.yard.commit(clone, "a fence of sorts"));
    must(clone, &["reset", "--quiet", "--hard", "HEAD~1"]);
    let stop = StoppedHook::at(&clone.join(".git/hooks/pre-push"));
    let mut command = git(clone);
    command.arg("push").args(args(&old, &new));
    let zombie = std::thread::spawn(move || command.output().unwrap());
    stop.reached();
    scene.seal(34);
    stop.go();
    let output = zombie.join().unwrap();
    println!("{}", said(&output));
    scene.yard.at(MAIN) == must(clone, &["rev-parse", "HEAD"])
}

fn words(text: String) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_plain_push_leaks() {
    assert!(lands(|_, _| words("origin main".into())));
}

#[test]
fn a_fence_that_does_not_move_leaks() {
    assert!(lands(|old, _| words(format!(
        "--atomic --force-with-lease={FENCE_REF}:{old} origin main {old}:{FENCE_REF}"
    ))));
}

#[test]
fn a_push_that_is_not_atomic_leaks() {
    assert!(lands(|old, new| words(format!(
        "--force-with-lease={FENCE_REF}:{old} origin main {new}:{FENCE_REF}"
    ))));
}

/// And what does not leak, by the same means.
#[test]
fn a_moving_fence_in_an_atomic_push_does_not_leak() {
    assert!(!lands(|old, new| words(format!(
        "--atomic --force-with-lease={FENCE_REF}:{old} origin main {new}:{FENCE_REF}"
    ))));
}

/// With `+` the old value is not compared: a writer that wakes before it looks goes over the later fence.
#[test]
fn a_forced_fence_leaks() {
    for (plus, leaks) in [("+", true), ("", false)] {
        let scene = Scene::new(RepoAccess::File);
        scene.seal(33);
        must(&scene.clone, &["fetch", "--quiet", "origin", FENCE_REF]);
        let old = must(&scene.clone, &["rev-parse", "FETCH_HEAD"]);
        let new = scene.yard.commit(&scene.clone, "a fence of sorts");
        scene.seal(34);
        let lease = format!("--force-with-lease={FENCE_REF}:{old}");
        let fence = format!("{plus}{new}:{FENCE_REF}");
        let output = git(&scene.clone).args(["push", "--atomic", &lease, "origin", "main", &fence]).output();
        let landed = scene.yard.at(MAIN) == must(&scene.clone, &["rev-parse", "HEAD"]);
        assert_eq!(landed, leaks, "{plus:?}: {}", said(&output.unwrap()));
    }
}
