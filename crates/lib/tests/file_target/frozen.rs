//! A writer frozen in every system call while a successor seals, without writing: P2 itself.

use leasehold::core::fence::FenceMode;
use std::fs;

use leasehold::targets::TargetError;

use crate::kit::{Attempt, Kind, Place, Point, TELLING, bearer, publish};
use crate::role::{REFUSED, TAKEN, naive};

crate::tests!(
    a_frozen_zombie_is_refused,
    after_a_clean_up_a_zombie_leaves_the_newer_fence_alone,
    without_lock_and_pending_it_must_leak,
    sealing_leaves_the_payloads_of_the_living,
);

const OLD: &str = "report of token 32";
const ZOMBIE: &str = "stale report of token 33";
const FRESH: &str = "report of token 34";

fn a_frozen_zombie_is_refused() {
    frozen_zombies(Kind::File);
    frozen_zombies(Kind::Tree);
}

fn frozen_zombies(kind: Kind) {
    let start = Place::of(kind);
    publish(&start, 32, OLD);
    start.target().seal(&bearer(33), FenceMode::Enforce).unwrap();
    let zombie = Attempt { role: "write", token: 33, content: ZOMBIE };
    let (mut refused, mut kept_out, mut too_late) = (0, 0, 0);
    for point in zombie.points(&start, false) {
        let place = start.copy();
        let frozen = zombie.frozen_at(&place, &point);
        let mut successor = kind.hasty(&place.artefact());
        match successor.seal(&bearer(34), FenceMode::Enforce) {
            // It stands outside the lock: sealed. What is there now is what stays.
            Ok(_) => {
                let kept = place.content();
                let (code, said) = frozen.thaw();
                assert_eq!(place.content(), kept, "{point:?}: the zombie landed");
                assert_eq!(place.stored().fence.token.get(), 34);
                if kept == OLD {
                    assert_eq!(code, REFUSED, "{point:?}: {said}");
                    assert!(said.contains("token 33 is older than 34, which"), "{said}");
                    refused += 1;
                } else {
                    assert_eq!(code, TAKEN, "{point:?}: it had written before the seal");
                    too_late += 1;
                }
            }
            // It stands inside: the successor does not start, and is told whom to end.
            Err(TargetError::Busy { holder, .. }) => {
                assert_eq!(holder, u32::try_from(frozen.pid).ok(), "{point:?}");
                assert_eq!(frozen.thaw().0, TAKEN);
                successor.seal(&bearer(34), FenceMode::Enforce).unwrap();
                assert_eq!(place.content(), ZOMBIE, "a write before the seal is seen by whoever seals");
                kept_out += 1;
            }
            Err(other) => panic!("{point:?}: {other}"),
        }
        place.assert_tidy();
    }
    println!("{refused} refused, {kept_out} kept the successor out, {too_late} had written before");
    assert!(refused >= 3 && kept_out >= 3, "the sweep missed a side of the lock");
}

/// Our files are removed under a writer that stands still, as `git clean -fdx` does, and a successor seals and writes.
fn after_a_clean_up_a_zombie_leaves_the_newer_fence_alone() {
    for kind in [Kind::File, Kind::Tree] {
        cleaned_under_zombies(kind, &[""], false);
        cleaned_under_zombies(kind, &["lock"], false);
    }
    // The negative control: who is frozen right between its last look and its rename cannot know.
    let leaked = cleaned_under_zombies(Kind::File, &["lock", "fence"], true);
    assert!(leaked > 0, "the harness cannot see a leak");
}

/// How often a zombie got through that was frozen in the last call before a rename: only there it may.
fn cleaned_under_zombies(kind: Kind, removed: &[&str], all: bool) -> usize {
    let start = Place::of(kind);
    publish(&start, 32, OLD);
    start.target().seal(&bearer(33), FenceMode::Enforce).unwrap();
    let zombie = Attempt { role: "write", token: 33, content: ZOMBIE };
    let points = zombie.points(&start, true);
    let renames = |point: &Point| ["renameat", "renameat2"].contains(&point.name.as_str());
    // Whoever stands before the lock is refused when it gets there.
    let inside = points.iter().rposition(|point| point.name == "flock").unwrap();
    let chosen = |point: &Point| all || TELLING.contains(&point.name.as_str());
    let (mut count, mut leaked) = (0, 0);
    for (at, point) in points.iter().enumerate().skip(inside).filter(|(_, point)| chosen(point)) {
        count += 1;
        let place = start.copy();
        let frozen = zombie.frozen_at(&place, point);
        place.clean(removed);
        publish(&place, 34, FRESH);
        let (code, said) = frozen.thaw();
        let kept = place.content() == FRESH && place.stored().fence.token.get() == 34;
        if points.get(at + 1).is_some_and(renames) {
            leaked += usize::from(!kept);
            continue;
        }
        assert!(kept, "{point:?}: {} after {code}: {said}", place.content());
        let refused = place.write(33, None, ZOMBIE).unwrap_err();
        assert!(matches!(refused, TargetError::Refused(_)), "{point:?}: {refused}");
        assert_eq!(place.content(), FRESH);
    }
    println!("{kind:?} without {removed:?}: {count} points, {leaked} leaked");
    leaked
}

/// The negative control: if this did not leak, the test above would prove nothing.
fn without_lock_and_pending_it_must_leak() {
    let start = Place::new();
    fs::write(start.artefact(), OLD).unwrap();
    fs::write(start.dir().join("today.fence"), "33").unwrap();
    let zombie = Attempt { role: "naive", token: 33, content: ZOMBIE };
    let (mut leaked, mut rewound) = (0, 0);
    for point in zombie.points(&start, false) {
        let place = start.copy();
        let frozen = zombie.frozen_at(&place, &point);
        assert!(naive(&place.artefact(), 34, "report of token 34"));
        frozen.thaw();
        leaked += usize::from(place.content() == ZOMBIE);
        rewound += usize::from(place.naive_fence() == "33");
    }
    println!("{leaked} leaked, {rewound} rewound the fence");
    assert!(leaked > 0 && rewound > 0, "the harness cannot see a leak");
}

/// Sealing sweeps what the dead left; a payload of its own run that is on its way is not that.
fn sealing_leaves_the_payloads_of_the_living() {
    let sealed = Place::new();
    publish(&sealed, 32, OLD);
    let start = sealed.copy();
    sealed.target().seal(&bearer(33), FenceMode::Enforce).unwrap();
    let early = Attempt { role: "write", token: 33, content: "early" };
    let points = early.points(&sealed, false);
    // The payload is on the disk then, and the lock not yet asked for.
    let point = points.iter().find(|point| point.name == "fsync").unwrap();
    let frozen = early.frozen_at(&start, point);
    let left = start.dir().join(".today.json.leasehold-new-left-by-the-dead");
    fs::write(&left, "left").unwrap();
    start.target().seal(&bearer(33), FenceMode::Enforce).unwrap();
    assert!(!left.exists(), "not swept");
    let (code, said) = frozen.thaw();
    assert_eq!(code, TAKEN, "{said}");
    assert_eq!(start.content(), "early");
    start.assert_tidy();
}
