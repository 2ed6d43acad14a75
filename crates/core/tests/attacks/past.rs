//! The lines about the ends of holds that a session writes for people.

use leasehold_core::record::LeaseRecord;
use leasehold_core::session::{HistoryPolicy, Input, JobExit, SessionPlan};
use leasehold_core::timing::StoreClock;

use crate::hand::{Hand, plan, revoked, secs};

/// A plan that keeps a line about its end.
fn kept(grant: u128) -> SessionPlan {
    SessionPlan { history: HistoryPolicy::Job, ..plan(grant, StoreClock::default()) }
}

fn exits(hand: &mut Hand) {
    hand.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
}

#[test]
fn a_release_in_doubt_leaves_one_line() {
    let (mut hand, record) = Hand::holding(kept(1));
    hand.at(1_010);
    exits(&mut hand);
    let line = ["1 ok 0 10000 1970-01-01T00:16:50Z j h1/1"];
    assert_eq!(hand.sent().past, line);
    // It did not land, and is tried again on the record that is still there.
    hand.unknown().finds(Some(&record), None);
    assert!(hand.sent().hold.is_none());
    assert_eq!(hand.sent().past, line);
}

#[test]
fn a_job_that_ends_as_its_lease_is_lost_was_not_ok() {
    let (mut hand, record) = Hand::holding(kept(1));
    hand.at(1_030).timer();
    hand.conflict().finds(Some(&revoked(&record, secs(60))), Some(secs(0)));
    exits(&mut hand);
    assert_eq!(hand.sent().past, ["1 lost 0 30000 1970-01-01T00:17:10Z j h1/1"]);
    let (mut hand, _) = Hand::holding(kept(1));
    // The exit comes after the deadline, in the same step.
    hand.at(1_089);
    exits(&mut hand);
    assert_eq!(hand.sent().past, ["1 lost 0 89000 1970-01-01T00:18:09Z j h1/1"]);
}

#[test]
fn renewals_carry_what_was_found_and_a_session_that_says_nothing_adds_nothing() {
    let (_, record) = Hand::holding(kept(1));
    let mut hand = Hand::new(plan(2, StoreClock::default()));
    hand.step(Input::Start).finds(Some(&record), Some(secs(91)));
    let unknown = ["1 unknown - - 1970-01-01T00:16:40Z j h1/1"];
    assert_eq!(hand.sent().past, unknown, "once, by the next holder");
    hand.written(None).at(1_030).timer();
    assert_eq!(hand.sent().past, unknown);
    hand.written(None);
    exits(&mut hand);
    let freed: LeaseRecord = hand.sent();
    assert!(freed.hold.is_none());
    assert_eq!(freed.past, unknown);
}

#[test]
fn who_waited_says_when_it_took_over() {
    let (_, record) = Hand::holding(kept(1));
    let mut hand = Hand::new(SessionPlan { wait: secs(90), ..kept(2) });
    hand.step(Input::Start).finds(Some(&record), Some(secs(50)));
    hand.at(1_041).timer().finds(Some(&record), Some(secs(91)));
    let (taken, later) = (hand.sent(), "1970-01-01T00:17:21Z");
    let line = format!("1 unknown - - {later} j h1/1");
    assert_eq!((taken.past, taken.holder.since), (vec![line], later.into()));
}
