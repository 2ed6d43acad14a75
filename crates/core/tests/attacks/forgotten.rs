//! A lease whose record is gone, on a host that has seen it.

use leasehold_core::forgotten::{Forgotten, Names};
use leasehold_core::ids::{Epoch, Token};
use leasehold_core::rules::{Refusal, SeenToken};
use leasehold_core::session::{Effect, Event, Input, NotStarted, Outcome, SessionPlan};
use leasehold_core::store::FailureKind;
use leasehold_core::timing::StoreClock;

use super::hand::{Hand, plan, secs, site};

fn seen(token: u64) -> SeenToken {
    SeenToken { epoch: Epoch::first(7), token: Token::new(token).unwrap() }
}

fn knowing(token: u64) -> Hand {
    let plan = plan(1, StoreClock::default());
    let leases = plan.leases.iter().cloned().map(|mut choice| {
        choice.seen = Some(seen(token));
        choice
    });
    let mut hand = Hand::new(SessionPlan { leases: leases.collect(), ..plan });
    hand.step(Input::Start).finds(None, None);
    hand
}

fn record() -> Forgotten {
    Forgotten::new(Names::One(site())).with(Some(seen(5)))
}

fn is_refused(hand: &Hand, token: u64) -> bool {
    let refused = Refusal::Vanished { seen: Token::new(token).unwrap() };
    let told = hand.outcome();
    matches!(told, Some(Outcome::NotStarted(NotStarted::Refused { refusal, .. })) if *refusal == refused)
}

#[test]
fn a_forgotten_lease_begins_again_with_another_epoch() {
    let mut hand = knowing(5);
    hand.forgotten(vec![record().encode()]);
    assert_eq!(hand.expects(), None, "it creates the record");
    let made = hand.sent();
    assert_eq!(made.token, Token::FIRST);
    assert_ne!(made.epoch, seen(5).epoch);
    hand.written(None);
    assert!(hand.outcome().is_none());
    assert!(!hand.did(&Effect::Tell(Event::EpochChanged)), "nobody is warned of what was done on purpose");
}

#[test]
fn what_does_not_say_so_is_no_excuse() {
    let later = Forgotten::new(Names::One(site())).with(Some(seen(4)));
    let other = Forgotten::new(Names::Under("x/".into()));
    for bodies in [vec![], vec![b"?".to_vec()], vec![later.encode()], vec![other.encode(), b"{}".to_vec()]] {
        let mut hand = knowing(5);
        hand.forgotten(bodies.clone());
        assert!(is_refused(&hand, 5), "{bodies:?}");
    }
}

#[test]
fn a_store_that_does_not_say_runs_nothing() {
    let mut hand = knowing(5);
    hand.unanswered();
    let told = hand.outcome();
    let unreachable = |f: &leasehold_core::store::Failure| f.kind == FailureKind::Unreachable;
    assert!(
        matches!(told, Some(Outcome::NotStarted(NotStarted::Store { failure, .. })) if unreachable(failure)),
        "{told:?}"
    );
    // No answer at all is the same, after the time that a call may take.
    let mut hand = knowing(5);
    hand.at(2_000).timer();
    assert!(matches!(hand.outcome(), Some(Outcome::NotStarted(NotStarted::Store { .. }))));
}

#[test]
fn a_claim_that_landed_meanwhile_is_found() {
    let mut hand = knowing(5);
    hand.forgotten(vec![record().encode()]);
    let first = hand.sent();
    hand.unknown().finds(Some(&first), Some(secs(0)));
    assert!(hand.outcome().is_none(), "it is ours");
}

#[test]
fn a_lease_that_came_back_with_an_old_token_is_still_refused() {
    let mut hand = knowing(5);
    hand.forgotten(vec![record().encode()]);
    let mut old = hand.sent();
    (old.epoch, old.hold) = (seen(5).epoch, None);
    old.token = Token::new(3).unwrap();
    old.write = leasehold_core::ids::WriteId(99);
    hand.conflict().finds(Some(&old), Some(secs(50)));
    let told = hand.outcome();
    assert!(
        matches!(
            told,
            Some(Outcome::NotStarted(NotStarted::Refused { refusal: Refusal::Behind { .. }, .. }))
        ),
        "{told:?}"
    );
}
