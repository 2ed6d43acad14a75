//! Attacks on the design, and bugs that the simulator found, each as one small test by hand.

mod bugs;
mod forgotten;
mod hand;
mod logged;

use leasehold_core::fence::{Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, RefusalReason, verdict};
use leasehold_core::ids::{Epoch, Grant, Token, WriteId};
use leasehold_core::ledger::ItemState;
use leasehold_core::name::Name;
use leasehold_core::one_shot::{FoundInstead, OneShot, OneShotNext, OneShotOutcome, OneShotVerb};
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::{Refusal, SeenToken};
use leasehold_core::session::{Effect, Input, JobExit, NotStarted, Outcome, Release, Request, StopReason};
use leasehold_core::timing::StoreClock;
use std::time::Duration;

use hand::{Hand, plan, reading, revoked, secs, site};

fn bearer(token: u64, grant: u128) -> Bearer {
    let (token, epoch) = (Token::new(token).unwrap(), Epoch { generation: 1, id: 7 });
    Bearer { lease: site(), epoch, token, grant: Grant(grant) }
}

fn write(seq: u64) -> FenceOffer {
    FenceOffer::Write { seq, digest: format!("d{seq}") }
}

fn after(stored: Option<&Fence>, bearer: &Bearer, offer: &FenceOffer) -> Fence {
    match verdict(stored, bearer, offer) {
        FenceVerdict::Accept(fence) => fence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn attack_1_a_renewal_by_the_child_is_not_credited_to_a_later_send() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    let childs = LeaseRecord { write: WriteId(6), ..record };
    hand.at(1_030).timer();
    hand.at(1_034).conflict().finds(Some(&childs), Some(secs(20)));
    assert_eq!(hand.counts_from(), secs(1_000), "nothing of ours has landed since");
    assert_eq!(hand.expects().unwrap().0, childs.write.to_string(), "but its version is adopted");
}

#[test]
fn attack_1_a_retry_moves_the_deadline_by_the_attempt_that_landed() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_030).timer();
    let first = hand.sent();
    hand.at(1_033).unknown().finds(Some(&record), Some(secs(33)));
    hand.at(1_034).timer();
    let second = hand.sent();
    assert_ne!(first.write, second.write);
    // The first one lands after all, just before the second.
    hand.at(1_035).conflict().finds(Some(&first), Some(secs(0)));
    assert_eq!(hand.counts_from(), secs(1_030));
}

#[test]
fn attack_1_a_delayed_renewal_that_beats_the_release_is_not_reported_as_released() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_030).timer();
    let renewal = hand.sent();
    hand.at(1_031).step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
    hand.at(1_035).unknown().finds(Some(&record), None);
    assert!(hand.sent().hold.is_none(), "the release");
    hand.conflict().finds(Some(&renewal), None);
    assert!(hand.outcome().is_none());
    assert!(hand.sent().hold.is_none(), "the release, again");
    assert_eq!(hand.expects().unwrap().0, renewal.write.to_string());
    hand.written(None);
    let release = Release::Done;
    assert_eq!(
        hand.outcome(),
        Some(&Outcome::Finished { status: 0, state: ItemState::Ok, stopped: None, release })
    );
}

#[test]
fn attack_4_a_fence_belongs_to_one_lease() {
    let fence = after(None, &bearer(7, 1), &FenceOffer::Seal(FenceMode::Enforce));
    let other = Bearer { lease: Name::new("other").unwrap(), ..bearer(50, 2) };
    for offer in [FenceOffer::Seal(FenceMode::Enforce), write(1)] {
        assert_eq!(verdict(Some(&fence), &other, &offer), FenceVerdict::Refuse(RefusalReason::OtherLease));
    }
}

#[test]
fn attack_5_a_version_is_never_used_twice() {
    let mut hand = Hand::new(plan(1, StoreClock::default()));
    hand.step(Input::Start).finds(None, None);
    let mut ids = vec![hand.sent().write];
    // Created, swept, created: each attempt is another write, even for the same absent key.
    for second in 1_001..1_004 {
        hand.unknown().finds(None, None);
        hand.at(second).timer().finds(None, None);
        ids.push(hand.sent().write);
    }
    let mut unique = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
}

#[test]
fn attack_6_a_record_made_again_cannot_pass_for_its_predecessor() {
    let (_, first) = Hand::holding(plan(1, StoreClock::default()));
    let (_, second) = Hand::holding(plan(2, StoreClock::default()));
    assert_eq!(first.token, second.token);
    assert_ne!(first.epoch, second.epoch);
    let of = |r: &LeaseRecord| Bearer {
        lease: site(),
        epoch: r.epoch,
        token: r.token,
        grant: r.hold.as_ref().unwrap().grant,
    };
    let fence = after(None, &of(&first), &FenceOffer::Seal(FenceMode::Enforce));
    assert_eq!(
        verdict(Some(&fence), &of(&second), &FenceOffer::Seal(FenceMode::Enforce)),
        FenceVerdict::Refuse(RefusalReason::Epoch)
    );
}

#[test]
fn attack_6_a_host_that_has_seen_the_lease_does_not_make_it_again() {
    let mut plan = plan(1, StoreClock::default());
    let token = Token::new(9).unwrap();
    plan.leases[0].seen = Some(SeenToken { epoch: Epoch::first(3), token });
    let mut hand = Hand::new(plan);
    hand.step(Input::Start).finds(None, None).forgotten(Vec::new());
    let refusal = Refusal::Vanished { seen: token };
    let refused = Outcome::NotStarted(NotStarted::Refused { lease: site(), refusal });
    assert_eq!(hand.outcome(), Some(&refused));
}

#[test]
fn attack_7_a_store_clock_that_runs_ahead_ends_the_job() {
    let clock = StoreClock { jump: secs(3), ..StoreClock::default() };
    for (ahead, stops) in [(3, false), (5, true)] {
        let mut hand = Hand::new(plan(1, clock));
        hand.step(Input::Start).finds(None, None).written(Some(secs(500)));
        hand.at(1_030).timer().written(Some(secs(530 + ahead)));
        assert_eq!(hand.stopping() == Some(&StopReason::StoreClock), stops, "{ahead}");
    }
    let far = Hand::holding(plan(1, clock)).0.session.stop_at().unwrap();
    let near = Hand::holding(plan(1, StoreClock::default())).0.session.stop_at().unwrap();
    assert!(near.since(far) >= Duration::from_millis(2_990), "the step is taken off");
}

#[test]
fn attack_9_an_unfinished_write_is_not_answered_as_done() {
    let me = bearer(1, 1);
    let fence = after(None, &me, &FenceOffer::Seal(FenceMode::Enforce));
    let pending = Fence { done: false, ..after(Some(&fence), &me, &write(1)) };
    assert!(matches!(verdict(Some(&pending), &me, &write(1)), FenceVerdict::Accept(_)));
    let done = Fence { done: true, ..pending };
    assert_eq!(verdict(Some(&done), &me, &write(1)), FenceVerdict::Repeat);
}

#[test]
fn attack_12_a_revoked_lease_is_granted_only_after_release_or_expiry() {
    let (mut holder, record) = Hand::holding(plan(1, StoreClock::default()));
    let asked = revoked(&record, secs(80));
    let mut rival = Hand::new(plan(2, StoreClock::default()));
    rival.step(Input::Start).finds(Some(&asked), Some(secs(1)));
    assert!(matches!(rival.outcome(), Some(Outcome::Busy(_))));
    holder.at(1_030).timer().conflict().finds(Some(&asked), Some(secs(20)));
    assert_eq!(holder.stopping(), Some(&StopReason::Revoked));
    assert!(holder.did(&Effect::Term) && !holder.did(&Effect::Kill));
    assert!(holder.reads(), "nothing is written while the job lives");
    holder.at(1_031).step(Input::JobExited { exit: JobExit::Signal(143), tree_empty: true });
    assert!(holder.sent().hold.is_none());
}

#[test]
fn attack_14_a_target_that_cannot_be_sealed_means_no_start_and_a_release() {
    let mut plan = plan(1, StoreClock::default());
    plan.seal = true;
    let (mut hand, _) = Hand::holding(plan);
    hand.step(Input::Sealed(Err("pg: timed out".into())));
    assert!(!hand.started());
    assert!(hand.sent().hold.is_none());
    hand.written(None);
    let seal = NotStarted::Seal { why: "pg: timed out".into(), release: Release::Done };
    assert_eq!(hand.outcome(), Some(&Outcome::NotStarted(seal)));
}

#[test]
fn attack_15_adopting_lets_no_zombie_in() {
    let zombie = bearer(7, 1);
    let fence = after(None, &bearer(9, 2), &FenceOffer::Seal(FenceMode::Enforce));
    // An ordinary zombie is stale, whatever it thinks of the fence.
    assert_eq!(verdict(Some(&fence), &zombie, &write(1)), FenceVerdict::Refuse(RefusalReason::Stale));
    let adopted = Bearer { epoch: Epoch { generation: 2, id: 7 }, ..bearer(10, 3) };
    assert_eq!(verdict(Some(&fence), &adopted, &write(1)), FenceVerdict::Refuse(RefusalReason::Epoch));
    let fence = after(Some(&fence), &adopted, &FenceOffer::Seal(FenceMode::Enforce));
    for old in [zombie, bearer(9, 2), bearer(11, 4)] {
        for offer in [FenceOffer::Seal(FenceMode::Enforce), write(1)] {
            assert_eq!(verdict(Some(&fence), &old, &offer), FenceVerdict::Refuse(RefusalReason::Epoch));
        }
    }
}

fn renews(record: &LeaseRecord, age: u64) -> OneShotNext {
    let mut one_shot = OneShot::new(OneShotVerb::Renew(Grant(1)), site(), StoreClock::default(), 5);
    one_shot.on_read(Ok(reading("i", Some(record), Some(secs(age)))))
}

#[test]
fn attack_16_an_escaped_grandchild_renews_nothing_that_is_not_held_by_its_grant() {
    let (_, held) = Hand::holding(plan(1, StoreClock::default()));
    assert!(matches!(renews(&held, 10), OneShotNext::Ask(_)));
    let expired = OneShotNext::Done(OneShotOutcome::NotOurs(FoundInstead::Expired(held.token)));
    assert_eq!(renews(&held, 90), expired);
    let free = LeaseRecord { hold: None, ..held.clone() };
    assert_eq!(renews(&free, 10), OneShotNext::Done(OneShotOutcome::NotOurs(FoundInstead::Free(held.token))));
    let (_, others) = Hand::holding(plan(2, StoreClock::default()));
    assert!(matches!(
        renews(&others, 10),
        OneShotNext::Done(OneShotOutcome::NotOurs(FoundInstead::Held(..)))
    ));
    assert!(matches!(renews(&revoked(&held, secs(80)), 10), OneShotNext::Done(OneShotOutcome::Revoked(_))));
}

#[test]
fn attack_16_a_session_never_renews_past_its_deadline() {
    let (mut hand, _) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_085).timer();
    assert_eq!(hand.stopping(), Some(&StopReason::Deadline));
    let asks = hand.told.iter().filter(|e| matches!(e, Effect::Store(Request::Ask { .. }))).count();
    assert_eq!(asks, 2, "the look and the claim, nothing since");
}

#[test]
fn attack_17_a_refused_retry_does_not_mean_that_nothing_was_written() {
    let (old, new) = (bearer(1, 1), bearer(2, 2));
    let fence = after(None, &old, &FenceOffer::Seal(FenceMode::Enforce));
    // Accepted, and the answer lost. A retry straight away is told the truth...
    let fence = after(Some(&fence), &old, &write(1));
    assert_eq!(verdict(Some(&fence), &old, &write(1)), FenceVerdict::Repeat);
    // ...but after the next seal only "stale" can be said: callers report such a write as unknown.
    let fence = after(Some(&fence), &new, &FenceOffer::Seal(FenceMode::Enforce));
    assert_eq!(verdict(Some(&fence), &old, &write(1)), FenceVerdict::Refuse(RefusalReason::Stale));
}
