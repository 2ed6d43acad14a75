//! What a session writes down for people of how holds end.

use leasehold_core::past::End;
use leasehold_core::record::LeaseRecord;
use leasehold_core::session::{Input, Plan};
use leasehold_core::stop::StoreClock;
use std::time::Duration;

use crate::hand::{Hand, plan, revoked, secs};

fn exits(hand: &mut Hand) {
    let took = Some(Duration::from_millis(7));
    hand.session.ends(Some(End { outcome: "ok", exit: Some(0), took, at: "now".into() }));
    hand.step(Input::JobExited { status: 0, tree_empty: true });
}

#[test]
fn a_release_in_doubt_leaves_one_line() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_010);
    exits(&mut hand);
    let line = ["1 ok 0 7 now j h1/1"];
    assert_eq!(hand.sent().past, line);
    // Not landed: tried again on the record that is still there.
    hand.unknown().finds(Some(&record), None);
    assert!(hand.sent().hold.is_none());
    assert_eq!(hand.sent().past, line);
}

#[test]
fn a_job_that_ends_as_its_lease_is_lost_was_not_ok() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_030).timer();
    hand.conflict().finds(Some(&revoked(&record, secs(60))), Some(secs(0)));
    exits(&mut hand);
    assert_eq!(hand.sent().past, ["1 lost 0 7 now j h1/1"]);
    let (mut hand, _) = Hand::holding(plan(1, StoreClock::default()));
    // Too late by the clock, and in the same step.
    hand.at(1_089);
    exits(&mut hand);
    assert_eq!(hand.sent().past, ["1 lost 0 7 now j h1/1"]);
}

#[test]
fn renewals_carry_what_was_found_and_a_session_that_says_nothing_adds_nothing() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut hand = Hand::new(plan(2, StoreClock::default()));
    hand.step(Input::Start).finds(Some(&record), Some(secs(91)));
    let unknown = ["1 unknown - - then j h1/1"];
    assert_eq!(hand.sent().past, unknown, "once, by whoever takes over");
    hand.written(None).at(1_030).timer();
    assert_eq!(hand.sent().past, unknown);
    hand.written(None).step(Input::JobExited { status: 0, tree_empty: true });
    let freed: LeaseRecord = hand.sent();
    assert!(freed.hold.is_none());
    assert_eq!(freed.past, unknown);
}

#[test]
fn who_waited_says_when_it_took_over() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut hand = Hand::new(Plan { wait: secs(90), ..plan(2, StoreClock::default()) });
    hand.step(Input::Start).finds(Some(&record), Some(secs(50)));
    hand.session.dated("later".into());
    hand.at(1_041).timer().finds(Some(&record), Some(secs(91)));
    let taken = hand.sent();
    assert_eq!((taken.past, taken.holder.since), (vec!["1 unknown - - later j h1/1".into()], "later".into()));
}
