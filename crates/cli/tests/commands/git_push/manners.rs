//! What people may expect of git push, fenced or not; and what is said when something is wrong.

use leasehold_testkit::git::{RepoAccess, must, script};

use super::kit::{MAIN, Scene};
use crate::schedules::handoff::{described, run};

#[test]
fn the_usual_arguments() {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    scene.push(1, &["-u", "origin", "main"]).is(0, "").names(&["new branch"]);
    scene.push(1, &["origin", "main:second", "main:also"]).is(0, "").names(&["also"]);
    assert_eq!(must(&scene.clone, &["rev-parse", "--abbrev-ref", "main@{upstream}"]), "origin/main");
    assert_eq!(scene.yard.at("refs/heads/second"), scene.yard.at(MAIN));
    must(&scene.clone, &["tag", "-a", "-m", "one", "v1"]);
    scene.push(1, &["--tags"]).is(0, "").names(&["v1"]);
    scene.push(1, &["origin", ":second"]).is(0, "").names(&["deleted"]);
    assert_eq!(scene.yard.at("refs/heads/second"), "");
    assert_eq!(scene.fence().fence.seq, 4);
    // Nothing to do, or nothing to be done: the fence stays.
    scene.push(1, &["origin", "main"]).is(0, "").names(&["up-to-date"]);
    scene.push(1, &["--dry-run", "origin", "main:third"]).is(0, "").names(&["third"]);
    assert_eq!((scene.fence().fence.seq, scene.yard.at("refs/heads/third").as_str()), (4, ""));
    must(&scene.clone, &["commit", "--quiet", "--amend", "--allow-empty", "-m", "other"]);
    let old = scene.yard.at(MAIN);
    scene
        .push(1, &[&format!("--force-with-lease=main:{old}"), "origin", "main"])
        .is(0, "")
        .names(&["forced update"]);
    must(&scene.yard.bare(), &["config", "receive.advertisePushOptions", "true"]);
    let hook = "#!/bin/sh\ncat >/dev/null\necho \"heard $GIT_PUSH_OPTION_0\"\n";
    script(&scene.yard.bare().join("hooks/pre-receive"), hook);
    scene.push(1, &["-o", "a b", "origin", "main:with-option"]).is(0, "").names(&["heard a b"]);
    let ended = scene.push(1, &["--porcelain", "origin", "main:last"]).is(0, "");
    assert!(ended.out.contains("refs/heads/main:refs/heads/last\t[new branch]"), "{ended:?}");
}

/// Git's own refusals stay git's own: its words, its exit code. A stale token goes first.
#[test]
fn an_ordinary_rejection_is_not_a_refusal() {
    let scene = Scene::new(RepoAccess::Http);
    scene.seal(1);
    scene.push(1, &["origin", "main"]).is(0, "");
    let other = scene.yard.clone("other", &scene.server.url());
    must(&other, &["push", "--quiet", "origin", "HEAD:main"]);
    scene.yard.commit(&scene.clone, "mine");
    scene.push(1, &["origin", "main"]).is(1, "").names(&["fetch first"]);
    scene.seal(2);
    scene.push(1, &["origin", "main"]).is(76, "targets.stale_write").names(&["1", "2"]);
    let hook = "#!/bin/sh\ncase $1 in refs/heads/*) echo 'not on Fridays' >&2; exit 1 ;; esac\n";
    script(&scene.yard.bare().join("hooks/update"), hook);
    let said = scene.push(2, &["origin", "main:new"]).is(1, "").names(&["not on Fridays"]);
    assert!(said.err.contains("[remote rejected] main -> new"), "{said:?}");
    assert_eq!(scene.fence().fence.seq, 0);
}

#[test]
fn what_is_missing_is_said() {
    let scene = Scene::new(RepoAccess::File);
    let mut bare = scene.world.command(&["push", "origin", "main"]);
    let ended: crate::world::Ended = bare.current_dir(&scene.clone).output().unwrap().into();
    ended.is(64, "push.outside_a_run");
    scene
        .push(1, &["origin", "main"])
        .is(76, "targets.never_named")
        .is(76, "targets.never_named")
        .names(&["git:file://"]);
    scene.seal(1);
    scene.push(2, &["origin", "main"]).is(76, "targets.not_named").names(&["token 1"]);
    let ended =
        scene.push_in(&scene.clone, 1, &[]).args(["origin", "main"]).env("LEASEHOLD_LEASE", "blog").output();
    crate::world::Ended::from(ended.unwrap()).is(76, "targets.other_lease");
    assert_eq!(scene.yard.at(MAIN), "");
    // A rule as exact as ours would win, and the push would go past the fence.
    let key = format!("url.file://{}/elsewhere.git.pushInsteadOf", scene.yard.dir().display());
    must(&scene.clone, &["config", &key, &scene.server.url()]);
    scene.push(1, &["origin", "main"]).is(78, "push.sent_elsewhere");
}

/// Plain git in a run, by every name the repository has; each push counts at the fence.
#[test]
fn plain_git_push_by_any_name() {
    let scene = Scene::new(RepoAccess::File);
    let bare = scene.yard.bare();
    let (url, path) = (scene.server.url(), bare.display());
    let stem = url.strip_suffix(".git").unwrap();
    let script = format!(
        "git push -q origin main main:one; git push -q '{url}' main:two; git push -q '{stem}' main:three\n\
         git push -q '{path}' main:four; git remote add named '{path}'; git push -q named main:five\n\
         git config remote.origin.pushurl '{url}'; git push -q origin main:six\n\
         git config 'url.{dir}/.pushInsteadOf' 'file://{dir}/'; git push -q '{url}' main:seven\n\
         git tag v1; git push -q origin main:eight v1; git push -q origin :one; git fetch -q origin\n\
         git clone -q --depth 1 '{url}' ../shallow; git ls-remote -q origin >/dev/null",
        dir = scene.yard.dir().display(),
    );
    scene.job(&[], &script).quiet();
    assert_eq!(scene.fence().fence.seq, 9, "one for each push");
    assert_eq!(scene.yard.at("refs/heads/eight"), must(&scene.clone, &["rev-parse", "HEAD"]));
    // A neighbour whose name begins alike is not guarded, and reached all the same.
    must(scene.yard.dir(), &["init", "--quiet", "--bare", "r.git2"]);
    scene.job(&[], &format!("git push -q '{url}2' main")).quiet();
    assert_eq!(
        must(&scene.yard.dir().join("r.git2"), &["rev-parse", "main"]),
        must(&scene.clone, &["rev-parse", "main"])
    );
    assert_eq!(scene.fence().fence.seq, 0);
}

/// As ssh and by `user@host:path`; what stands in for ssh runs the command here.
#[test]
fn plain_git_push_over_ssh() {
    let mut scene = Scene::new(RepoAccess::File);
    // What stands in for ssh is of the job's tree, and so is the housekeeping that its server leaves behind.
    must(&scene.yard.bare(), &["config", "receive.autogc", "false"]);
    let ssh =
        scene.world.script("fake-ssh", "#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c \"$1\"\n");
    for (name, value) in [("GIT_SSH_COMMAND", ssh.as_str()), ("GIT_SSH_VARIANT", "ssh")] {
        scene.world.variables.push((name.into(), value.into()));
    }
    let path = scene.yard.bare().display().to_string();
    must(&scene.clone, &["remote", "set-url", "origin", &format!("git@host.test:{path}")]);
    let script = format!(
        "git push -q origin main; git push -q ssh://git@host.test{path} main:two\n\
         git push -q ssh://host.test{path} main:three; git fetch -q origin; git push -q host.test:{path} main:four"
    );
    scene.job(&[], &script).quiet();
    assert_eq!(scene.fence().fence.seq, 4);
}

/// The inner run has another lease: what the outer one guards is refused to it.
#[test]
fn a_run_inside_a_run_is_not_let_past() {
    let scene = Scene::new(RepoAccess::File);
    must(scene.yard.dir(), &["init", "--quiet", "--bare", "second.git"]);
    let second = format!("git:{}/second.git", scene.yard.dir().display());
    let bin = crate::world::binary();
    let script = format!(
        "'{}' run other --fence '{second}' -- git push origin main || echo refused >&2",
        bin.display()
    );
    scene.job(&[], &script).is(0, "targets.other_lease").is(0, "targets.other_lease");
    assert_eq!(scene.yard.at(MAIN), "");
}

/// The user's settings in the environment stay; whoever clears the environment goes round, and that is said.
#[test]
fn a_push_that_goes_round_is_noticed() {
    let mut scene = Scene::new(RepoAccess::Http);
    let own = [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "alias.p"), ("GIT_CONFIG_VALUE_0", "push -q")];
    scene.world.variables.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    scene.job(&[], "git p origin main; git tag v1; git p --tags").quiet();
    assert_eq!(scene.fence().fence.seq, 2);
    // A path of the job's own.
    let path = "PATH=/usr/local/bin:/usr/bin:/bin; export PATH; git push -q origin main:own-path; git fetch -q origin";
    scene.job(&[], path).quiet();
    assert_eq!(scene.fence().fence.seq, 1);
    let round = "env -i PATH=\"$PATH\" git push -q origin main:past";
    let ended = scene.job(&[], round).is(0, "").names(&["bypassed the fence of git:origin: refs/heads/past"]);
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    assert_eq!(scene.fence().fence.seq, 0);
}

#[test]
fn the_demo_tells_the_truth() {
    let scene = crate::world::World::new();
    let mut command = scene.command(&["demo", "--git", "--json"]);
    std::fs::create_dir(scene.path("tmp")).unwrap();
    let ended: crate::world::Ended = command.env("TMPDIR", scene.path("tmp")).output().unwrap().into();
    let facts = ended.json();
    assert_eq!((ended.code, &facts["ok"]), (0, &true.into()), "{ended:?}");
    assert_eq!(
        (&facts["with"]["published_twice"], &facts["without"]["published_twice"]),
        (&0.into(), &4.into())
    );
    assert!(facts["with"]["refusal"].as_str().unwrap().contains("is older than"), "{facts}");
    let left: Vec<_> = std::fs::read_dir(scene.path("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A path and settings of the job's own, from its leasehold.toml, stay; and its pushes come to the fence all the same.
#[test]
fn a_job_with_variables_of_its_own_is_fenced() {
    let scene = Scene::new(RepoAccess::File);
    scene.world.script("bin/nickname", "#!/bin/sh\ngit config user.nickname\n");
    let path = format!("{}:{}", scene.world.at("bin"), std::env::var("PATH").unwrap());
    let own = [
        ("PATH", path.as_str()),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "user.nickname"),
        ("GIT_CONFIG_VALUE_0", "nick"),
    ];
    let mut job = described(&scene.world, &["sh", "-ec", "nickname; git push -q origin main"]);
    job.leases[0].targets.push("git:origin".into());
    job.env = own.map(|(name, value)| (name.into(), value.into())).into();
    let (ended, _) = run(&scene.world, &scene.clone, &job);
    assert_eq!(ended.is(0, "").out, "nick\n");
    assert_eq!(scene.fence().fence.seq, 1);
}
