//! The directory that a run keeps for git, and the settings by which a job's pushes come to us.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use leasehold::backends::git::{FENCE_REF, GitTarget, HELPER};
use leasehold::core::fence::FenceMode;
use leasehold::state::StateDir;
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::git::{Yard, must};

use crate::kit::{bearer, state, workshop, yard};

/// A state directory that nothing is in.
fn fresh(name: &str) -> StateDir {
    let state = state(name);
    let _ = fs::remove_dir_all(state.path());
    state
}

fn target(yard: &Yard, state: &StateDir) -> GitTarget {
    GitTarget::open(yard.bare().to_str().unwrap()).unwrap().keeping_in(state.clone())
}

/// The directories in it.
fn nests(state: &StateDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.path().join("git")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// A job that cannot be led to the fence is not started: its pushes would be plain ones.
#[test]
fn a_detour_that_cannot_be_made_fails_the_seal() {
    let (yard, state) = (yard(), fresh("detour"));
    let mut target = target(&yard, &state);
    target.show().unwrap();
    let [nest] = &nests(&state)[..] else { panic!("{:?}", nests(&state)) };
    // Something is where the helper should be.
    fs::create_dir(nest.join(HELPER)).unwrap();
    let error = target.seal(&bearer(1), FenceMode::Enforce).unwrap_err();
    assert!(matches!(error, TargetError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("cannot send the job's pushes through the fence of"), "{error}");
    assert_eq!(yard.at(FENCE_REF), "", "it says that nothing was changed");
    fs::remove_dir(nest.join(HELPER)).unwrap();
    target.seal(&bearer(1), FenceMode::Enforce).unwrap();
    assert!(target.environment(&bearer(1), &|_| None).iter().any(|(name, _)| name == "GIT_CONFIG_COUNT"));
    drop(target);
    assert!(!state.path().join("git").exists(), "it is gone with its owner");
}

/// What a dead run left is swept by the next one; what a living one has is not.
#[test]
fn what_dead_runs_left_is_swept() {
    let (yard, state) = (yard(), fresh("swept"));
    let dir = state.git().unwrap();
    let make = |name: &str| {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("targets.json"), "[]").unwrap();
        OpenOptions::new().create(true).append(true).open(dir.join(format!("{name}.lock"))).unwrap()
    };
    let (dead, living) = ("0".repeat(32), "1".repeat(32));
    drop(make(&dead));
    let held = make(&living);
    held.try_lock().unwrap();
    fs::write(dir.join("notes.lock"), "not ours").unwrap();
    let mut target = target(&yard, &state);
    target.show().unwrap();
    let left = nests(&state);
    assert!(left.len() == 2 && left.contains(&dir.join(&living)), "{left:?}");
    assert!(!dir.join(format!("{dead}.lock")).exists() && dir.join("notes.lock").exists());
    drop(target);
    assert_eq!(nests(&state), [dir.join(&living)]);
}

/// The second target of a run leaves the first one's names as they were.
#[test]
fn each_target_keeps_its_spellings() {
    let (one, two, state) = (yard(), yard(), fresh("spellings"));
    let bare = one.bare().display().to_string();
    must(workshop(), &["config", "remote.spelled.pushurl", &bare]);
    must(workshop(), &["config", "remote.spelled.url", "ssh://fetch.test/a.git"]);
    let mut first = GitTarget::open("spelled").unwrap().keeping_in(state.clone());
    first.seal(&bearer(1), FenceMode::Enforce).unwrap();
    let mut second = target(&two, &state);
    second.seal(&bearer(1), FenceMode::Enforce).unwrap();
    // As a run does it: of what is said twice the last counts.
    let all: std::collections::BTreeMap<_, _> =
        [&first, &second].into_iter().flat_map(|target| target.environment(&bearer(1), &|_| None)).collect();
    let all: std::collections::BTreeMap<String, String> =
        all.into_iter().map(|(k, v)| (k.into_string().unwrap(), v.into_string().unwrap())).collect();
    let count: usize = all["GIT_CONFIG_COUNT"].parse().unwrap();
    let keys: Vec<&String> = (0..count).map(|number| &all[&format!("GIT_CONFIG_KEY_{number}")]).collect();
    let stem = two.bare().display().to_string().replace(".git", "");
    for spelling in ["ssh://fetch.test/a", bare.strip_suffix(".git").unwrap(), &stem] {
        let key = format!("url.leasehold::{spelling}.pushInsteadOf");
        assert!(keys.contains(&&key), "{key} in {keys:?}");
    }
}
