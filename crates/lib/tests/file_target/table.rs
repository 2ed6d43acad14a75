//! The verdict table of core, all of it, replayed against files.

use std::fs;

use leasehold::core::fence::{Bearer, Fence, Offer, Reason, Verdict, table, verdict};
use leasehold::core::fence_record::{FenceRecord, Pending};
use leasehold::targets::TargetError;
use leasehold::targets::file::{FileTarget, digest};

use crate::kit::Place;

crate::tests!(every_case_of_the_table);

const TEMP: &str = ".today.json.leasehold-new-0123456789abcdef0123456789abcdef";

/// The table's digests are labels; here each stands for the content of that text.
fn real(label: &str) -> String {
    digest(label.as_bytes())
}

fn real_fence(fence: &Fence) -> Fence {
    let digest = if fence.seq == 0 { String::new() } else { real(&fence.digest) };
    Fence { digest, ..fence.clone() }
}

fn real_offer(offer: &Offer) -> Offer {
    match offer {
        Offer::Seal => Offer::Seal,
        Offer::Write { seq, digest } => Offer::Write { seq: *seq, digest: real(digest) },
    }
}

/// Whether the payload of an unfinished write is still there.
#[derive(Clone, Copy, PartialEq)]
enum Unfinished {
    Waiting,
    Gone,
}

/// Puts the stored state there; returns what the rule will see once it is settled.
fn install(place: &Place, stored: Option<&Fence>, unfinished: Unfinished) -> Option<Fence> {
    let _ = fs::remove_file(place.dir().join(TEMP));
    let Some(label) = stored.map(|fence| fence.digest.clone()) else {
        let _ = fs::remove_file(place.fence());
        fs::write(place.artefact(), "old").unwrap();
        return None;
    };
    let fence = stored.map(real_fence)?;
    let record = if fence.done {
        fs::write(place.artefact(), if fence.seq == 0 { "old" } else { &label }).unwrap();
        FenceRecord::done(fence)
    } else {
        fs::write(place.artefact(), "old").unwrap();
        if unfinished == Unfinished::Waiting {
            fs::write(place.dir().join(TEMP), &label).unwrap();
        }
        FenceRecord::pending(fence, Pending { temp: TEMP.into(), before: String::new() })
    };
    fs::write(place.fence(), record.encode()).unwrap();
    Some(match unfinished {
        Unfinished::Waiting => record.finished().fence,
        Unfinished::Gone => record.taken_back().fence,
    })
}

/// What the target answers, in the rule's own words.
fn answer(target: &FileTarget, bearer: &Bearer, offer: &Offer, before: Option<&Fence>) -> Verdict {
    let result = match offer {
        Offer::Seal => target.seal(bearer).map(|()| false),
        Offer::Write { seq, digest } => {
            target.write(bearer, *seq, digest.as_bytes()).map(|written| written.repeat)
        }
    };
    let after = target.show().unwrap().map(|record| record.fence);
    match result {
        Ok(false) if *offer == Offer::Seal && after.as_ref() == before => Verdict::Repeat,
        Ok(false) => Verdict::Accept(after.unwrap()),
        Ok(true) => {
            assert_eq!(after.as_ref(), before);
            Verdict::Repeat
        }
        Err(TargetError::Refused(refused)) => {
            assert_eq!(after.as_ref(), before, "a refusal changed the fence");
            assert_eq!(refused.token, bearer.token);
            assert_eq!(refused.sealed(), before.map(|fence| fence.token));
            Verdict::Refuse(refused.reason)
        }
        Err(other) => panic!("{other}"),
    }
}

fn every_case_of_the_table() {
    let place = Place::quick();
    let target = place.target();
    let (mut count, mut by_label) = (0, 0);
    for case in table() {
        let unfinished = case.stored.as_ref().is_some_and(|fence| !fence.done);
        let states: &[Unfinished] = match unfinished {
            true => &[Unfinished::Waiting, Unfinished::Gone],
            false => &[Unfinished::Waiting],
        };
        for state in states {
            let before = install(&place, case.stored.as_ref(), *state);
            let kept =
                if unfinished && *state == Unfinished::Waiting { "d1".into() } else { place.content() };
            let wanted = verdict(before.as_ref(), &case.bearer, &real_offer(&case.offer));
            let got = answer(&target, &case.bearer, &case.offer, before.as_ref());
            assert_eq!(got, wanted, "{case:?}");
            let written = match (&wanted, &case.offer) {
                (Verdict::Accept(_), Offer::Write { digest, .. }) => digest.clone(),
                _ => kept,
            };
            assert_eq!(place.content(), written, "{case:?}");
            count += 1;
            // And the table itself says so, where its labels and real digests mean the same.
            let nameless = matches!(&case.offer, Offer::Write { digest, .. } if digest.is_empty());
            match (&case.verdict, &got) {
                _ if *state == Unfinished::Gone => {}
                (Verdict::Accept(fence), Verdict::Accept(now)) => assert_eq!(now, &real_fence(fence)),
                // Finished for the dead before the rule was asked.
                (Verdict::Accept(fence), Verdict::Repeat) if unfinished => {
                    assert_eq!(before, Some(real_fence(fence)));
                }
                // Nothing has an empty digest here, so nothing passes for the retry of a seal.
                (Verdict::Repeat, Verdict::Refuse(Reason::Sequence)) if nameless => by_label += 1,
                (table, got) => assert_eq!(table, got, "{case:?}"),
            }
        }
    }
    println!("{count} cases, {by_label} told apart by their digests");
    assert!(count > 20_000);
}
