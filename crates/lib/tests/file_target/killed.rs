//! kill -9 on the way into every system call, or an error from it: never torn, never behind, always
//! recovered.

use leasehold::core::fence::FenceMode;
use std::collections::BTreeMap;
use std::fs;

use leasehold::core::fence_record::{FenceRecord, PendingWrite};
use leasehold::targets::{Content, TargetError};

use crate::kit::{Attempt, Kind, Place, Point, bearer, publish};
use crate::role::{FAILED, TAKEN};

crate::tests!(
    a_writer_killed_anywhere,
    a_first_write_killed_anywhere,
    a_sealer_killed_anywhere,
    whoever_finishes_for_the_dead_killed_anywhere,
    whoever_takes_back_for_the_dead_killed_anywhere,
    a_writer_whose_system_calls_fail,
    what_was_edited_after_a_crash_is_kept,
    a_tree_that_was_edited_after_its_writer_died_is_written_anew,
);

const OLD: &str = "report of token 32";
const NEW: &str = "report of token 33, somewhat longer";

/// What a crash left, in words; fails if the fence is behind the artefact or either is torn.
fn state(place: &Place, old: Option<&str>) -> String {
    let content = place.found();
    let known = content.as_deref() == old || content.as_deref() == Some(NEW);
    assert!(known, "torn: {content:?}");
    let stored = place.stored();
    if content.as_deref() == Some(NEW) {
        assert_eq!(stored.fence.token.get(), 33, "the fence is behind the artefact");
        assert_eq!(stored.fence.digest, place.digest(NEW), "the fence is behind the artefact");
    }
    let (token, seq, new) = (stored.fence.token, stored.fence.seq, content.as_deref() == Some(NEW));
    let pending = if stored.pending.is_some() { "pending" } else { "done" };
    format!("fence {token}.{seq} {pending}, artefact {}", if new { "new" } else { "old" })
}

/// Whoever comes next is let in, and those before are not.
fn next_one_recovers(place: &Place) {
    place.target().seal(&bearer(40), FenceMode::Enforce).unwrap();
    place.stored().pending.ok_or(()).unwrap_err();
    let kept = place.found();
    for stale in [32, 33, 34] {
        let refused = place.write(stale, None, "stale").unwrap_err();
        assert!(matches!(refused, TargetError::Refused(_)), "{refused}");
    }
    assert_eq!(place.found(), kept);
    place.write(40, Some(1), "report of token 40").unwrap();
    assert_eq!(place.content(), "report of token 40");
    place.assert_tidy();
}

/// The same write once more: never answered as done while the artefact is old.
fn retry_lands(place: &Place) {
    place.write(33, Some(1), NEW).unwrap();
    assert_eq!(place.content(), NEW);
    assert_eq!(place.stored().fence.seq, 1);
    assert!(place.stored().fence.done);
}

fn sealed_33(kind: Kind, old: Option<&str>) -> Place {
    let start = Place::of(kind);
    if let Some(old) = old {
        publish(&start, 32, old);
    }
    start.target().seal(&bearer(33), FenceMode::Enforce).unwrap();
    start
}

fn kill_writers(kind: Kind, old: Option<&str>) -> BTreeMap<String, usize> {
    let start = sealed_33(kind, old);
    let attempt = Attempt { role: "write", token: 33, content: NEW };
    let mut seen = BTreeMap::new();
    for point in attempt.points(&start, old.is_some() && kind == Kind::File) {
        let place = start.copy();
        attempt.killed_at(&place, &point);
        *seen.entry(state(&place, old)).or_insert(0) += 1;
        retry_lands(&place.copy());
        next_one_recovers(&place);
    }
    println!("{seen:#?}");
    seen
}

fn a_writer_killed_anywhere() {
    for kind in [Kind::File, Kind::Tree] {
        every_state_is_met(&kill_writers(kind, Some(OLD)));
    }
}

fn every_state_is_met(seen: &BTreeMap<String, usize>) {
    let all = [
        "fence 33.0 done, artefact old",
        "fence 33.1 pending, artefact old",
        "fence 33.1 pending, artefact new",
        "fence 33.1 done, artefact new",
    ];
    assert!(all.iter().all(|state| seen.contains_key(*state)), "the sweep missed a state");
    assert_eq!(seen.len(), all.len());
}

fn a_first_write_killed_anywhere() {
    assert_eq!(kill_writers(Kind::File, None).len(), 4);
    assert_eq!(kill_writers(Kind::Tree, None).len(), 4);
}

fn a_sealer_killed_anywhere() {
    let start = Place::new();
    publish(&start, 32, OLD);
    let attempt = Attempt { role: "seal", token: 33, content: "" };
    let mut seen = BTreeMap::new();
    for point in attempt.points(&start, false) {
        let place = start.copy();
        attempt.killed_at(&place, &point);
        assert_eq!(place.content(), OLD);
        *seen.entry(state(&place, Some(OLD))).or_insert(0) += 1;
        next_one_recovers(&place);
    }
    println!("{seen:#?}");
    assert_eq!(seen.len(), 2);
}

/// As a writer with token 33 leaves it that dies between fence and rename.
fn pending_33(kind: Kind, payload: Option<&str>) -> Place {
    let drafts = Place::new();
    let start = sealed_33(kind, Some(OLD));
    let place = start.beside("new-0123456789abcdef0123456789abcdef");
    if let Some(payload) = payload {
        kind.with(payload, drafts.dir(), |content| match content {
            Content::Directory(draft) => fs::rename(draft, &place).unwrap(),
            _ => fs::write(&place, payload).unwrap(),
        });
    }
    let temp = place.file_name().unwrap().to_str().unwrap().to_owned();
    let mut fence = start.stored().fence;
    (fence.seq, fence.digest) = (1, start.digest(NEW));
    let record = FenceRecord::pending(fence, PendingWrite { temp, before: String::new(), over: None });
    fs::write(start.fence(), record.encode()).unwrap();
    start
}

fn kill_settlers(start: &Place, settled: &str) -> usize {
    let attempt = Attempt { role: "seal", token: 34, content: "" };
    let mut seen = BTreeMap::new();
    for point in attempt.points(start, false) {
        let place = start.copy();
        attempt.killed_at(&place, &point);
        let sealed = place.stored().fence.token.get() == 34;
        if !sealed {
            *seen.entry(state(&place, Some(OLD))).or_insert(0) += 1;
            retry_lands(&place.copy());
        }
        place.target().seal(&bearer(35), FenceMode::Enforce).unwrap();
        assert_eq!(place.content(), settled);
        next_one_recovers(&place);
    }
    println!("{seen:#?}");
    seen.len()
}

fn whoever_finishes_for_the_dead_killed_anywhere() {
    assert_eq!(kill_settlers(&pending_33(Kind::File, Some(NEW)), NEW), 3);
    assert_eq!(kill_settlers(&pending_33(Kind::Tree, Some(NEW)), NEW), 3);
}

/// The payload is gone, or is not what the fence says: a power cut may do that, and a person.
fn whoever_takes_back_for_the_dead_killed_anywhere() {
    for kind in [Kind::File, Kind::Tree] {
        assert_eq!(kill_settlers(&pending_33(kind, None), OLD), 2);
        assert_eq!(kill_settlers(&pending_33(kind, Some("half a rep")), OLD), 2);
    }
}

/// Each answer is true: taken, nothing changed, or nobody knows.
fn a_writer_whose_system_calls_fail() {
    system_calls_fail(Kind::File);
    system_calls_fail(Kind::Tree);
}

fn system_calls_fail(kind: Kind) {
    let start = sealed_33(kind, Some(OLD));
    let attempt = Attempt { role: "write", token: 33, content: NEW };
    let mut seen = BTreeMap::new();
    // Who gets no random numbers ends at once; and no system fails to say whose process it is.
    let fails = |point: &Point| !["getrandom", "geteuid"].contains(&point.name.as_str());
    for point in attempt.points(&start, false).into_iter().filter(fails) {
        let place = start.copy();
        let (code, said) = attempt.failing_at(&place, &point, "EIO");
        let state = state(&place, Some(OLD));
        let answer = match code {
            TAKEN => {
                assert_eq!(place.content(), NEW, "{point:?}");
                "taken"
            }
            FAILED if said.contains("is unknown") => "unknown",
            // Also a fence that could not be read.
            FAILED => {
                assert!(said.contains("Nothing was"), "{point:?}: {said}");
                assert_eq!(state, "fence 33.0 done, artefact old", "{point:?}: {said}");
                "nothing changed"
            }
            // The standard library breaks off where a directory cannot be closed: a crash, and no worse.
            101 if said.contains("during closedir") => "broke off",
            other => panic!("{point:?}: {other}: {said}"),
        };
        *seen.entry(format!("{answer}: {state}")).or_insert(0) += 1;
        retry_lands(&place.copy());
        next_one_recovers(&place);
    }
    println!("{seen:#?}");
    for answer in ["taken", "nothing changed", "unknown"] {
        assert!(seen.keys().any(|key| key.starts_with(answer)), "never {answer:?}");
    }
}

/// Whoever finishes for the dead does not write over what somebody has put there since.
fn what_was_edited_after_a_crash_is_kept() {
    let start = sealed_33(Kind::File, Some(OLD));
    let attempt = Attempt { role: "write", token: 33, content: NEW };
    let mut met = 0;
    for point in attempt.points(&start, true) {
        let died = || {
            let place = start.copy();
            attempt.killed_at(&place, &point);
            (place.stored().pending.is_some() && place.content() == OLD).then_some(place)
        };
        let (Some(place), Some(control)) = (died(), died()) else { continue };
        met += 1;
        control.target().seal(&bearer(34), FenceMode::Enforce).unwrap();
        assert_eq!(control.content(), NEW, "nobody had touched it: it is finished");
        fs::write(place.dir().join("mine"), "edited by hand").unwrap();
        fs::rename(place.dir().join("mine"), place.artefact()).unwrap();
        let mut target = place.target();
        target.seal(&bearer(34), FenceMode::Enforce).unwrap();
        assert_eq!(place.content(), "edited by hand");
        assert!(target.aftermath(&bearer(34)).unwrap().contains("changed by hand"));
        next_one_recovers(&place);
    }
    assert!(met > 0, "the harness never dies between fence and rename");
}

/// A file in the tree.
fn edit(place: &Place) {
    for page in ["page", "deep/page"] {
        fs::write(place.artefact().join(page), "edited by hand").unwrap();
    }
}

/// The writer died right after its version became current, and somebody edited a file in it: the run that writes the
/// same once more is not told that it is there while it is not.
fn a_tree_that_was_edited_after_its_writer_died_is_written_anew() {
    let start = sealed_33(Kind::Tree, Some(OLD));
    let attempt = Attempt { role: "write", token: 33, content: NEW };
    let mut met = 0;
    for point in attempt.points(&start, false) {
        let place = start.copy();
        attempt.killed_at(&place, &point);
        if place.stored().pending.is_none() || place.content() != NEW {
            continue;
        }
        met += 1;
        edit(&place);
        let repeated = place.copy();
        assert!(
            repeated.write(33, Some(1), NEW).unwrap().repeat,
            "{point:?}: it was written before it was edited"
        );
        assert_eq!(repeated.content(), "edited by hand");
        let written = place.write(33, None, NEW).unwrap();
        assert_eq!((written.seq, written.repeat, place.content().as_str()), (2, false, NEW), "{point:?}");
        next_one_recovers(&place);
    }
    assert!(met > 0, "the harness never dies between link and fence");
}
