//! The verdict table of core, replayed: seals through the target, writes as plain SQL against the trigger.
//!
//! A table's writes have no numbers (docs/decisions/0017), so every stored state counts with its sequence at
//! zero, and every write as the next one.

use leasehold::core::fence::{
    Bearer, Fence, FenceCase, FenceMode, FenceOffer, FenceVerdict, RefusalReason, table, verdict,
};
use leasehold::targets::guard::Others;
use leasehold::targets::sql::carrier;
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::messages::note_seen;

use crate::kit::{Place, Raw};

/// What is stored, without what a table does not keep.
fn unnumbered(fence: &Fence) -> Fence {
    Fence { seq: 0, digest: String::new(), done: true, ..fence.clone() }
}

/// Seals go by core's own rule and are slow to ask: one of each kind, unless there is time for all.
fn some(mut questions: Vec<(Option<Fence>, Bearer, FenceOffer)>) -> Vec<(Option<Fence>, Bearer, FenceOffer)> {
    let mut seen = std::collections::HashSet::new();
    let all = std::env::var_os("LEASEHOLD_LONG").is_some();
    questions.retain(|(stored, bearer, offer)| {
        let kind = match verdict(stored.as_ref(), bearer, offer) {
            FenceVerdict::Accept(_) => "accept",
            FenceVerdict::Repeat => "repeat",
            FenceVerdict::Refuse(reason) | FenceVerdict::LetIn(reason, _) => reason.word(),
        };
        all || matches!(offer, FenceOffer::Write { .. })
            || seen.insert(format!("{stored:?} {offer:?} {kind}"))
    });
    questions
}

/// The different questions of the table, as a target of this kind understands them.
fn questions() -> Vec<(Option<Fence>, Bearer, FenceOffer)> {
    let mut all: Vec<(Option<Fence>, Bearer, FenceOffer)> = Vec::new();
    for FenceCase { stored, bearer, offer, .. } in table() {
        let stored = stored.as_ref().map(unnumbered);
        let offer = match offer {
            FenceOffer::Seal(mode) => FenceOffer::Seal(mode),
            FenceOffer::Write { .. } => FenceOffer::Write { seq: 1, digest: "d".into() },
        };
        let question = (stored, bearer, offer);
        // The table is ordered by what is stored, so what is equal is near.
        if !all.iter().rev().take(2000).any(|other| *other == question) {
            all.push(question);
        }
    }
    all
}

fn install(raw: &Raw, stored: Option<&Fence>) {
    let set = match stored {
        None => {
            "lease = NULL, token = NULL, generation = NULL, epoch = NULL, grant_id = NULL, carrier = NULL, \
                 mode = 'enforce', let_in = 0"
                .into()
        }
        Some(f) => {
            let shown =
                carrier(&Bearer { lease: f.lease.clone(), epoch: f.epoch, token: f.token, grant: f.grant });
            let mode = if f.mode == FenceMode::Enforce { "enforce" } else { "observe" };
            format!(
                "lease = '{}', token = {}, generation = {}, epoch = '{:032x}', grant_id = '{}', \
                 carrier = '{shown}', mode = '{mode}', let_in = {}",
                f.lease, f.token, f.epoch.generation, f.epoch.id, f.grant, f.let_in
            )
        }
    };
    raw.sql(&format!(
        "UPDATE leasehold_guard.fences SET {set}; DELETE FROM leasehold_guard.let_in; \
         UPDATE public.plain SET what = 'old' WHERE id = 1"
    ));
}

/// A write of the user's own, by a session of that run.
fn write(session: &Raw, bearer: &Bearer, by_name: bool) -> Result<(), (String, String)> {
    let shown = carrier(bearer);
    let update = "UPDATE public.plain SET what = 'new' WHERE id = 1";
    let script = if by_name {
        format!("SET application_name = '{shown}'; {update}; RESET application_name")
    } else {
        format!("BEGIN; SET LOCAL leasehold.run = '{shown}'; {update}; COMMIT")
    };
    let result = session.attempt(&script).map(drop);
    session.sql("ROLLBACK; RESET application_name");
    result
}

/// Token, grant and what was let in, as the database has it.
const REMEMBERED: &str = "SELECT concat_ws(' ', token, grant_id, let_in + (SELECT count(*) FROM leasehold_guard.let_in)) \
                          FROM leasehold_guard.fences";

fn remembered(fence: Option<&Fence>) -> String {
    fence.map_or("0".into(), |f| format!("{} {} {}", f.token, f.grant, f.let_in))
}

fn state_of(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Stale => "LH001",
        RefusalReason::NotSealed => "LH003",
        RefusalReason::Fork => "LH004",
        RefusalReason::Epoch => "LH005",
        RefusalReason::OtherLease => "LH006",
        RefusalReason::Jump | RefusalReason::Sequence => panic!("no write is refused for {reason:?} here"),
    }
}

#[test]
fn every_case_of_the_table() {
    let place = Place::new().guarded("plain", Others::Allow);
    let (behind, session) = (place.raw(), place.raw());
    // What is asked here is the rule, not the disk.
    for raw in [&behind, &session] {
        raw.sql("SET synchronous_commit = off");
    }
    let mut target = place.target("plain");
    let questions = some(questions());
    let (mut seals, mut writes) = (0, 0);
    for (n, (stored, bearer, offer)) in questions.iter().enumerate() {
        install(&behind, stored.as_ref());
        let wanted = verdict(stored.as_ref(), bearer, offer);
        let about = format!("{stored:?} {bearer:?} {offer:?}");
        let after = match offer {
            FenceOffer::Seal(mode) => {
                seals += 1;
                let answer = target.seal(bearer, *mode);
                answer.as_ref().map_err(|error| note_seen(&error.to_string())).ok();
                match (&wanted, &answer) {
                    (FenceVerdict::Accept(_) | FenceVerdict::Repeat, Ok(sealed))
                        if sealed.let_in.is_none() => {}
                    (FenceVerdict::LetIn(reason, _), Ok(sealed)) => {
                        assert_eq!(sealed.let_in.as_ref().map(|r| r.reason), Some(*reason), "{about}");
                    }
                    (FenceVerdict::Refuse(reason), Err(TargetError::Refused(r))) => {
                        assert_eq!((r.reason, r.token), (*reason, bearer.token), "{about}");
                        assert_eq!(r.sealed(), stored.as_ref().map(|f| f.token), "{about}");
                    }
                    other => panic!("{other:?}: {about}"),
                }
                match wanted {
                    FenceVerdict::Accept(next) | FenceVerdict::LetIn(_, next) => Some(next),
                    _ => stored.clone(),
                }
            }
            FenceOffer::Write { .. } => {
                writes += 1;
                let answer = write(&session, bearer, n % 2 == 0);
                let landed = behind.one("SELECT what FROM public.plain WHERE id = 1") == "new";
                match (&wanted, &answer) {
                    (FenceVerdict::Accept(_) | FenceVerdict::LetIn(..), Ok(())) => assert!(landed, "{about}"),
                    (FenceVerdict::Refuse(reason), Err((state, words))) => {
                        assert_eq!(state, state_of(*reason), "{words}: {about}");
                        assert!(words.contains(&format!("token {}", bearer.token)), "{words}: {about}");
                        let named = stored.as_ref().is_none_or(|f| words.contains(&f.token.to_string()));
                        assert!(named && !landed, "{words}: {about}");
                    }
                    other => panic!("{other:?}: {about}"),
                }
                match wanted {
                    FenceVerdict::LetIn(_, next) => Some(next),
                    _ => stored.clone(),
                }
            }
        };
        if matches!(offer, FenceOffer::Seal(_)) {
            assert_eq!(target.show().unwrap().map(|record| record.fence), after, "{about}");
        }
        assert_eq!(behind.one(REMEMBERED), remembered(after.as_ref()), "{about}");
    }
    println!("{seals} seals, {writes} writes");
    assert!(seals >= 40 && writes >= 560);
}
