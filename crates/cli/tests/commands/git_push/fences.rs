//! Fences that are not as a run has left them.

use leasehold_testkit::git::{RepoAccess, must};

use super::kit::{MAIN, Scene, run_variables};
use crate::world::Ended;

const FENCE: &str = "refs/leasehold/fence";

/// Nothing was pushed, and that is certain: it is not told as unknown.
#[test]
fn a_fence_that_makes_no_sense_refuses() {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    scene.push(1, &["origin", "main"]).is(0, "");
    let old = scene.yard.at(MAIN);
    must(&scene.yard.bare(), &["update-ref", FENCE, MAIN]);
    scene.yard.commit(&scene.clone, "more");
    let mut push = scene.world.command(&["--json", "push", "origin", "main"]);
    let ended: Ended = push.envs(run_variables(1)).current_dir(&scene.clone).output().unwrap().into();
    let ended = ended.is(79, "");
    let said = ended.json();
    assert_eq!((&said["outcome"], &said["reason"]), (&"refused".into(), &"bad_fence".into()), "{ended:#?}");
    assert_eq!(scene.yard.at(MAIN), old);
}

/// A push that was not made has the reason that a write would have: the words are those of every target.
#[test]
fn a_push_that_failed_has_the_reason_of_a_write() {
    let scene = Scene::new(RepoAccess::File);
    scene.seal(1);
    let reason = |code| {
        let mut push = scene.world.command(&["--json", "push", "origin", "main"]);
        let ended: Ended = push.envs(run_variables(1)).current_dir(&scene.clone).output().unwrap().into();
        let said = ended.is(code, "").json();
        assert_eq!(said["outcome"], "failed", "{said}");
        said["reason"].as_str().unwrap().to_owned()
    };
    must(&scene.yard.bare(), &["config", "receive.advertiseAtomic", "false"]);
    assert_eq!(reason(78), "unfit");
    std::fs::rename(scene.yard.bare(), scene.yard.bare().with_extension("gone")).unwrap();
    assert_eq!(reason(69), "target_unreachable");
}

/// What is named as the way out works for a repository.
#[test]
fn a_rewound_store_is_noticed_by_the_fence() {
    let scene = Scene::new(RepoAccess::File);
    scene.job(&[], "true").is(0, "");
    let bare = scene.yard.bare();
    let said = must(&bare, &["log", "-1", "--format=%B", FENCE]).replace("\"token\":1,", "\"token\":9,");
    let tree = must(&bare, &["rev-parse", &format!("{FENCE}^{{tree}}")]);
    let later = must(&bare, &["commit-tree", tree.trim(), "-m", &said]);
    must(&bare, &["update-ref", FENCE, later.trim()]);
    let way_out = "git push origin :refs/leasehold/fence";
    let ended = scene.job(&[], "touch ran").is(79, "fenced.store_rewound").names(&["token 9", way_out]);
    assert!(!ended.err.contains("fence reset") && !scene.clone.join("ran").exists(), "{ended:#?}");
    must(&scene.clone, &way_out.split(' ').skip(1).collect::<Vec<_>>());
    scene.job(&[], "touch ran").is(0, "");
}
