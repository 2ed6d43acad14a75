//! Ways past the fence: each is closed, or its user is told. Jobs that clean up, damaged files, pushes to
//! places without a name, runs that only observe.

use std::path::Path;

use leasehold::backends::git::{FENCE_REF, hook};
use leasehold_testkit::git::{RepoAccess, git, must, said, script};

use super::kit::{MAIN, Scene};
use crate::world::Ended;

/// A scene whose temporary directory is its own.
fn tidy(way: RepoAccess) -> Scene {
    let mut scene = Scene::new(way);
    let temporary = scene.world.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    scene.world.variables.push(("TMPDIR".into(), temporary.display().to_string()));
    scene
}

#[test]
fn a_job_that_cleans_up_is_fenced_all_the_same() {
    let scene = tidy(RepoAccess::File);
    scene.job(&[], "rm -rf \"$TMPDIR\"/*; git push -q origin main").quiet();
    assert_eq!(scene.fence().fence.seq, 1);
    assert!(!scene.world.state().join("git").exists(), "what the run kept for git is gone with it");
}

/// The directory that a run keeps for git is gone, or its list is: nothing is pushed, and both are said.
#[test]
fn what_a_run_keeps_for_git_is_gone() {
    let bin = crate::world::binary();
    for push in ["git push origin main", &format!("'{}' push origin main", bin.display())] {
        let scene = tidy(RepoAccess::File);
        for (damage, refusal) in [
            ("rm -rf \"$LEASEHOLD_GIT\"", "gone"),
            ("echo '[' >\"$LEASEHOLD_GIT/targets.json\"", "gone or damaged"),
            ("rm \"$LEASEHOLD_GIT/targets.json\"", "gone or damaged"),
        ] {
            let ended = scene.job(&[], &format!("{damage}; {push} || echo refused >&2"));
            ended.is(0, "refused").names(&[refusal, "Nothing was", "it is unknown whether"]);
            assert_eq!(
                (scene.yard.at(MAIN), scene.fence().fence.seq),
                (String::new(), 0),
                "{push}: {damage}"
            );
        }
    }
}

/// A push that went round is noticed even then.
#[test]
fn a_push_that_goes_round_is_noticed_without_notes() {
    let scene = tidy(RepoAccess::File);
    let round = "rm -rf \"$LEASEHOLD_GIT\"; env -i PATH=\"$PATH\" git push -q origin main:past";
    scene.job(&[], round).is(0, "").names(&["bypassed the fence of git:origin: refs/heads/past"]);
}

/// Secrets of a URL are in no environment, and what holds them may go: the push is fenced, or refused.
#[test]
fn a_url_with_a_secret() {
    for user in ["joe:s3cret", "s3cret"] {
        let scene = tidy(RepoAccess::Http);
        let url = scene.server.url().replace("http://", &format!("http://{user}@"));
        must(&scene.clone, &["remote", "set-url", "origin", &url]);
        let script = "! env | grep s3cret; git push -q origin main; git push -q \"$(git config remote.origin.url)\" main:two";
        scene.job(&[], script).quiet();
        assert_eq!(scene.fence().fence.seq, 2, "{user}");
        let gone = "rm -rf \"$LEASEHOLD_GIT\"; git push -q origin main:three || echo refused >&2";
        let ended = scene.job(&[], gone).is(0, "refused").is(0, "Nothing was pushed");
        assert!(!ended.err.contains("s3cret"), "{ended:?}");
        assert_eq!(scene.yard.at("refs/heads/three"), "", "{user}");
        // A run inside the run, which does not go round in circles either.
        must(scene.yard.dir(), &["init", "--quiet", "--bare", "second.git"]);
        let inner = format!(
            "'{}' run other --fence 'git:{}/second.git' -- git push origin main:four || echo refused >&2",
            crate::world::binary().display(),
            scene.yard.dir().display()
        );
        scene.job(&[], &inner).is(0, "targets.other_lease");
        // A neighbour that begins alike is reached.
        must(scene.yard.dir(), &["init", "--quiet", "--bare", "n.git"]);
        must(&scene.yard.dir().join("n.git"), &["config", "http.receivepack", "true"]);
        let neighbour = url.replace("r.git", "n.git");
        scene
            .job(
                &[],
                &format!("git push -q '{neighbour}' main; git ls-remote -q '{neighbour}' | grep -q main"),
            )
            .quiet();
    }
}

/// Whatever `leasehold push` is told, it does not push past the fence.
#[test]
fn leasehold_push_never_goes_past() {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    let bare = scene.yard.bare();
    let past = |args: &[&str]| scene.push(1, args).is(78, "push.past_the_fence");
    std::os::unix::fs::symlink(&bare, scene.clone.join("linked")).unwrap();
    past(&["linked", "main"]);
    past(&["--repo=linked"]);
    let by_link = scene.clone.join("linked").display().to_string();
    must(&scene.clone, &["config", "branch.main.pushRemote", &by_link]);
    past(&[]);
    must(&scene.clone, &["config", "branch.main.pushRemote", "linked"]);
    past(&["-q"]);
    must(&scene.clone, &["config", "--unset", "branch.main.pushRemote"]);
    assert_eq!(scene.yard.at(MAIN), "");
    // What can be led to the fence is.
    let path = bare.display().to_string();
    scene.push(1, &[&format!("--repo={path}"), "-q"]).is(0, "");
    assert_eq!(
        (scene.yard.at(MAIN), scene.fence().fence.seq),
        (must(&scene.clone, &["rev-parse", "main"]), 1)
    );
    // Git's own complaints are its own.
    scene.push(1, &["origin", "nosuch"]).is(1, "").names(&["nosuch does not match any"]);
    scene.push(1, &["--nonsense"]).is(129, "nonsense");
}

/// What the user allows git to speak is what the helper may speak.
#[test]
fn what_the_user_allows_is_kept() {
    let mut scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    scene.world.variables.push(("GIT_ALLOW_PROTOCOL".into(), "https:ssh".into()));
    scene.push(1, &["origin", "main"]).is(69, "").names(&["transport 'file' not allowed"]);
    scene.job(&[], "git push origin main").is(69, "").names(&["transport 'file' not allowed"]);
    scene.world.variables.pop();
    scene.world.variables.push(("GIT_ALLOW_PROTOCOL".into(), "https:file".into()));
    scene.push(1, &["origin", "main"]).is(0, "");
    assert_eq!(scene.fence().fence.seq, 1);
}

/// The negative control for both: plain git goes there.
#[test]
fn plain_git_goes_past_by_such_names() {
    let scene = Scene::new(RepoAccess::File);
    std::os::unix::fs::symlink(scene.yard.bare(), scene.clone.join("linked")).unwrap();
    must(&scene.clone, &["push", "-q", "linked", "main"]);
    assert_ne!(scene.yard.at(MAIN), "");
}

/// Whether a person's plain push lands, and what is said.
fn by_hand(clone: &Path, branch: &str) -> (bool, String) {
    let output = git(clone).args(["push", "origin", &format!("main:{branch}")]).output().unwrap();
    (output.status.success(), said(&output))
}

/// A run that observes changes nothing for anybody, although the server's hooks are there.
#[test]
fn observing_is_without_risk_where_the_hooks_are() {
    let scene = Scene::new(RepoAccess::Http);
    hook::install(&scene.yard.bare()).unwrap();
    scene.job(&["--observe"], "git push -q origin main").quiet();
    assert_ne!(scene.yard.at(FENCE_REF), "", "it was never sealed");
    let (ok, text) = by_hand(&scene.clone, "person");
    assert!(ok, "{text}");
    let ended =
        scene.job(&["--observe"], "git push -q origin main:again; leasehold-not-there 2>/dev/null || true");
    ended.is(0, "observe.changed").names(&["git:origin", "token 1"]);
    // A run that fences ends that for people. A run that observes has its turn there, and pushes through the fence.
    scene.job(&[], "git push -q origin main:fenced").quiet();
    let (ok, text) = by_hand(&scene.clone, "past");
    assert!(!ok && text.contains("cannot move without the fence"), "{text}");
    assert_eq!(scene.yard.at("refs/heads/past"), "");
    let before = scene.fence().fence;
    scene.job(&["--observe"], "git push -q origin main:observed").quiet();
    assert_ne!(scene.yard.at("refs/heads/observed"), "");
    assert!(scene.fence().fence.token > before.token && scene.fence().fence.seq > 0);
}

/// What changed between two runs that observe, and nothing else.
#[test]
fn what_changed_between_two_runs_is_observed() {
    let scene = Scene::new(RepoAccess::File);
    scene.job(&["--observe"], "git push -q origin main").quiet();
    scene.job(&["--observe"], "git push -q origin main:two").quiet();
    must(&scene.clone, &["push", "--quiet", "origin", "main:person"]);
    scene.job(&["--observe"], "true").is(0, "observe.changed").names(&["git:origin", "token 2"]);
    // A fenced push in between is no news: the fence knows of it.
    scene.job(&[], "git push -q origin main:fenced").quiet();
    scene.job(&["--observe"], "true").quiet();
    scene.job(&["--observe"], "true").quiet();
    let seen: Ended = scene.world.run(&["fence", "observed"]).is(0, "");
    assert_eq!(seen.out.matches("changed since").count(), 1, "{seen:?}");
}

/// Git cannot list what it has fetched: that is not "never fenced".
#[test]
fn a_fence_that_cannot_be_read_is_not_missing() {
    let mut scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    let real = Ended::from(scene.world.program("sh").args(["-c", "command -v git"]).output().unwrap()).out;
    let dir = scene.world.path("shim");
    std::fs::create_dir(&dir).unwrap();
    let text =
        "#!/bin/sh\ncase \" $* \" in *' for-each-ref '*) echo 'fatal: no memory' >&2; exit 128 ;; esac\n";
    script(&dir.join("git"), &format!("{text}exec '{}' \"$@\"\n", real.trim()));
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    scene.world.variables.push(("PATH".into(), path));
    let url = format!("git:{}", scene.server.url());
    let seen: Ended = scene.world.run(&["fence", "ls", &url]).is(79, "");
    assert!(seen.out.contains("no memory") && !seen.out.contains("never fenced"), "{seen:?}");
}

/// Housekeeping stays in the foreground inside a run, whatever the user has set: left behind, it would be
/// ended with the job, in the middle. Also at the other end, if that is on this machine.
#[test]
fn housekeeping_stays_in_the_foreground() {
    let mut scene = Scene::new(RepoAccess::File);
    for key in ["gc.autoDetach", "maintenance.autoDetach"] {
        must(&scene.clone, &["config", key, "true"]);
        let ended = scene.job(&[], &format!("git config {key}; git -C / config {key}")).quiet();
        assert_eq!(ended.out, "false\nfalse\n", "{key}");
        assert_eq!(must(&scene.clone, &["config", key]), "true");
    }
    must(&scene.clone, &["config", "maintenance.auto", "true"]);
    must(scene.yard.dir(), &["init", "--quiet", "--bare", "r.git2"]);
    let (url, trace) = (scene.server.url(), scene.world.path("trace"));
    scene.world.variables.push(("GIT_TRACE".into(), trace.display().to_string()));
    scene
        .job(&[], &format!("git push -q origin main; git fetch -q origin; git push -q '{url}2' main"))
        .quiet();
    let trace = std::fs::read_to_string(trace).unwrap();
    let runs: Vec<&str> =
        trace.lines().filter(|line| line.contains("run_command: git maintenance run")).collect();
    // The seal, the push, the fetch, the neighbour.
    assert!(runs.len() >= 4, "{runs:#?}");
    assert!(runs.iter().all(|run| run.contains("--no-detach")), "{runs:#?}");
}
