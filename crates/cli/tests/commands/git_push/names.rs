//! One repository under many names: each is fenced if it is a remote's, and none tells a secret.

use std::path::Path;

use leasehold_testkit::git::{RepoAccess, must};

use super::kit::{MAIN, Scene};
use crate::world::Ended;

/// A job under this fence, started there.
fn job(scene: &Scene, fence: &str, dir: &Path, script: &str) -> Ended {
    let mut command = scene.world.command(&["run", "site", "--fence", fence, "--", "sh", "-ec", script]);
    command.current_dir(dir).output().unwrap().into()
}

/// Adds each as a remote, pushes to all of them under the fence, and wants every push to count there.
fn all_fenced(scene: &Scene, fence: &str, dir: &Path, urls: &[String]) {
    let mut script = String::new();
    for (number, url) in urls.iter().enumerate() {
        let _ = leasehold_testkit::git::git(&scene.clone)
            .args(["remote", "remove", &format!("n{number}")])
            .output();
        must(&scene.clone, &["remote", "add", &format!("n{number}"), url]);
        script.push_str(&format!("git push -q n{number} main:b{number}; git push -q n{number} :b{number}\n"));
    }
    job(scene, fence, dir, &script).quiet();
    assert_eq!(scene.fence().fence.seq, 2 * urls.len() as u64, "{fence}: {urls:?}");
}

/// Passwords and tokens of a URL are shown neither by git nor by us, whatever happens.
#[test]
fn no_secret_of_a_url_is_shown() {
    for user in ["joe:s3cret", "s3cret"] {
        let scene = Scene::new(RepoAccess::Http);
        let url = scene.server.url().replace("http://", &format!("http://{user}@"));
        must(&scene.clone, &["remote", "set-url", "origin", &url]);
        let bin = crate::world::binary();
        let script = format!(
            "git push origin main; '{0}' push origin main:two; git fetch origin\n\
             git commit -q --amend --allow-empty -m other; git push origin main || '{0}' push origin main || true\n\
             git push origin :refs/leasehold/fence || true; rm -rf \"$LEASEHOLD_GIT\"; git push origin main || true",
            bin.display()
        );
        let ended = scene
            .job(&[], &script)
            .is(0, "")
            .names(&["To leasehold-http://127.0.0.1"])
            .is(0, "")
            .names(&["failed to push some refs"]);
        assert!(!ended.err.contains("s3cret") && !ended.out.contains("s3cret"), "{ended:?}");
        assert_eq!(scene.fence().fence.seq, 2, "{user}");
    }
}

/// A token in place of a user, in a URL for pushing only: refused, not plain, when what the run keeps is gone.
#[test]
fn a_push_url_with_a_token_fails_closed() {
    let scene = Scene::new(RepoAccess::Http);
    let url = scene.server.url().replace("http://", "http://s3cret@");
    must(&scene.clone, &["remote", "set-url", "--push", "origin", &url]);
    scene.job(&[], "git push -q origin main:one; git fetch -q origin").quiet();
    assert_eq!(scene.fence().fence.seq, 1);
    let gone = "rm -rf \"$LEASEHOLD_GIT\"; git push origin main:two || echo refused >&2";
    let ended = scene.job(&[], gone).is(0, "refused").is(0, "Nothing was pushed");
    assert!(!ended.err.contains("s3cret"), "{ended:?}");
    assert_eq!(scene.yard.at("refs/heads/two"), "");
}

/// A remote with a name of the user's, where the fence was named without it.
#[test]
fn a_remote_with_a_user_is_fenced_by_the_plain_url() {
    let scene = Scene::new(RepoAccess::Http);
    let url = scene.server.url();
    let urls =
        ["bot:s3cret@", "s3cret@", "bot@"].map(|user| url.replace("http://", &format!("http://{user}")));
    all_fenced(&scene, &format!("git:{url}"), &scene.clone, &urls);
}

/// Paths with detours, links, and relative ones, which git looks for from the top of the work tree.
#[test]
fn paths_of_all_kinds_are_fenced() {
    let scene = Scene::new(RepoAccess::File);
    let dir = scene.yard.dir();
    std::os::unix::fs::symlink(scene.yard.bare(), dir.join("link.git")).unwrap();
    std::fs::create_dir_all(scene.clone.join("sub/deep")).unwrap();
    let at = dir.display();
    let urls = [
        "../r.git".into(),
        "../r".into(),
        format!("{at}//r.git"),
        format!("{at}/./r.git"),
        format!("{at}/clone/../r.git"),
        format!("{at}/link.git"),
        format!("file://localhost{at}/r.git"),
        "../link.git".into(),
    ];
    all_fenced(&scene, &format!("git:{at}/r.git"), &scene.clone, &urls);
    all_fenced(&scene, "git:../r.git", &scene.clone, &urls);
    all_fenced(&scene, &format!("git:{at}/r.git"), &scene.clone.join("sub/deep"), &urls);
    must(&scene.clone, &["remote", "set-url", "origin", "../r.git"]);
    all_fenced(&scene, "git:origin", &scene.clone.join("sub/deep"), &urls);
    // By hand, where it is no remote's.
    must(&scene.clone, &["remote", "set-url", "origin", &format!("{at}/r.git")]);
    job(&scene, "git:origin", &scene.clone, "git remote remove n0; git push -q ../r.git main").quiet();
    assert_eq!(scene.fence().fence.seq, 1);
    // The same words elsewhere are another place.
    std::fs::create_dir(dir.join("else")).unwrap();
    must(dir, &["init", "--quiet", "--bare", "else/r.git"]);
    must(&dir.join("else"), &["clone", "--quiet", &scene.clone.display().to_string(), "clone"]);
    job(&scene, "git:../r.git", &scene.clone, "cd ../else/clone; git push -q ../r.git HEAD:refs/heads/other")
        .quiet();
    assert_eq!((scene.fence().fence.seq, scene.yard.at("refs/heads/other")), (0, String::new()));
}

/// Hosts in capitals, other users, ports that go without saying, other words for ssh, names of the user's own.
#[test]
fn hosts_of_all_kinds_are_fenced() {
    let mut scene = Scene::new(RepoAccess::File);
    must(&scene.yard.bare(), &["config", "receive.autogc", "false"]);
    let ssh =
        scene.world.script("fake-ssh", "#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c \"$1\"\n");
    for (name, value) in [("GIT_SSH_COMMAND", ssh.as_str()), ("GIT_SSH_VARIANT", "ssh")] {
        scene.world.variables.push((name.into(), value.into()));
    }
    let path = scene.yard.bare().display().to_string();
    must(&scene.clone, &["config", "url.git@host.test:/.insteadOf", "short:"]);
    let urls = [
        format!("ssh://git@host.test:22{path}"),
        format!("deploy@host.test:{path}"),
        format!("git@HOST.test:{path}"),
        format!("git+ssh://git@host.test{path}"),
        format!("ssh://deploy@host.test/{path}"),
        format!("short:{}", path.trim_start_matches('/')),
    ];
    all_fenced(&scene, &format!("git:git@host.test:{path}"), &scene.clone, &urls);
    all_fenced(&scene, &format!("git:ssh://git@host.test{path}"), &scene.clone, &urls);
}

/// The negative control: by a name that is nobody's remote plain git goes past, and that is said and reported.
#[test]
fn what_is_typed_by_hand_goes_round_and_is_reported() {
    let scene = Scene::new(RepoAccess::File);
    let report = scene.world.path("report.json");
    let script = format!("git push -q '{}//.//r.git' main:past", scene.yard.dir().display());
    let ended = scene.job(&["--report", report.to_str().unwrap()], &script);
    ended.is(0, "").names(&["bypassed the fence of git:origin: refs/heads/past"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert!(report["went_round"][0].as_str().unwrap().contains("refs/heads/past"), "{report}");
}

/// Refs that are neither branches nor tags may be the server's affair.
#[test]
fn other_refs_are_no_alarm() {
    let scene = Scene::new(RepoAccess::File);
    scene.job(&[], "git push -q origin main:refs/notes/x main:refs/custom/y main:refs/for/main").quiet();
    assert_eq!(scene.fence().fence.seq, 1);
}

/// A mirror, which has neither HEAD nor the fence in it; and the fence's own names.
#[test]
fn nobody_pushes_to_the_fence() {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    scene.push(1, &["--mirror", "origin"]).is(0, "");
    scene.yard.commit(&scene.clone, "more");
    must(&scene.clone, &["branch", "second"]);
    scene.push(1, &["--mirror", "origin"]).is(0, "").names(&["second"]);
    let before = (scene.yard.at(MAIN), scene.fence().fence.seq);
    scene.yard.commit(&scene.clone, "not to be pushed");
    for name in ["refs/leasehold/fence", "refs/heads/leasehold-fence"] {
        let refspec = format!("main:{name}");
        scene
            .push(1, &["origin", "main", &refspec])
            .is(78, "")
            .names(&["which nobody else may push to"])
            .is(78, "")
            .names(&["Nothing was"]);
    }
    assert_eq!((scene.yard.at(MAIN), scene.fence().fence.seq), before);
    scene.seal(2);
}

/// What git does not trust is not "no such remote".
#[test]
fn a_clone_of_somebody_elses_is_called_that() {
    let mut scene = Scene::new(RepoAccess::File);
    scene.world.variables.push(("GIT_TEST_ASSUME_DIFFERENT_OWNER".into(), "1".into()));
    scene.job(&[], "true").is(78, "").names(&["dubious ownership"]).is(78, "").names(&["safe.directory"]);
    let url = format!("git:{}", scene.server.url());
    job(&scene, &url, Path::new("/"), "true").is(77, "").names(&["dubious ownership"]);
}
