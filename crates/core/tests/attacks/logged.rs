//! The records of the run log that a session has written.

use leasehold_core::ids::WriteId;
use leasehold_core::name::Name;
use leasehold_core::record::LeaseRecord;
use leasehold_core::run_log::{LogEvent, LogRecord};
use leasehold_core::session::{Effect, Input, JobExit, LeaseChoice, LogPlan, Op, Request, SessionPlan};
use leasehold_core::timing::StoreClock;

use crate::hand::{Hand, plan, revoked, secs};

/// A plan that logs its end.
fn logged(grant: u128) -> SessionPlan {
    SessionPlan { log: LogPlan::Job(None), ..plan(grant, StoreClock::default()) }
}

fn exits(hand: &mut Hand) {
    hand.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
}

/// The record that goes with the last write.
fn with_release(hand: &Hand) -> Option<LogRecord> {
    let ops = hand.told.iter().rev().filter_map(|effect| match effect {
        Effect::Store(Request::Ask { op: Op::Cas { log, .. }, .. }) => Some(log.as_deref().cloned()),
        _ => None,
    });
    ops.into_iter().next().flatten()
}

/// The records that are written by themselves.
fn alone(hand: &Hand) -> Vec<LogRecord> {
    let requests = hand.told.iter().filter_map(|effect| match effect {
        Effect::Store(Request::Log(log)) => Some((**log).clone()),
        _ => None,
    });
    requests.collect()
}

#[test]
fn the_end_is_written_with_the_release_and_only_there() {
    let (mut hand, _) = Hand::holding(logged(1));
    hand.at(1_010);
    exits(&mut hand);
    let log = with_release(&hand).unwrap();
    let told = (log.event, log.exit, log.took, log.token.map(|t| t.get()), log.at);
    assert_eq!(told, (LogEvent::Ok, Some(0), Some(secs(10)), Some(1), secs(1_010)));
    hand.written(None);
    assert_eq!(alone(&hand), []);
}

#[test]
fn a_release_in_doubt_has_one_record() {
    let (mut hand, record) = Hand::holding(logged(1));
    hand.at(1_010);
    exits(&mut hand);
    let (first, freed) = (with_release(&hand).unwrap(), hand.sent());
    // It did not land, and is tried again on the record that is still there, with the same key.
    hand.unknown().finds(Some(&record), None);
    assert!(hand.sent().hold.is_none());
    assert_eq!(with_release(&hand).unwrap().key(), first.key());
    // It landed, and the answer was lost: written again, which changes nothing where it is there.
    let (mut hand, _) = Hand::holding(logged(1));
    hand.at(1_010);
    exits(&mut hand);
    hand.unknown().finds(Some(&freed), None);
    assert_eq!(alone(&hand), [first]);
}

#[test]
fn a_job_that_ends_as_its_lease_is_lost_was_not_ok() {
    let (mut hand, record) = Hand::holding(logged(1));
    hand.at(1_030).timer();
    hand.conflict().finds(Some(&revoked(&record, secs(60))), Some(secs(0)));
    exits(&mut hand);
    let log = with_release(&hand).unwrap();
    assert_eq!((log.event, log.reason.as_deref()), (LogEvent::Lost, Some("revoked")));
    let (mut hand, _) = Hand::holding(logged(1));
    // The exit comes after the deadline, in the same step.
    hand.at(1_089);
    exits(&mut hand);
    let log = with_release(&hand).unwrap();
    assert_eq!((log.event, log.reason.as_deref()), (LogEvent::Lost, Some("deadline")));
}

#[test]
fn a_release_that_finds_another_holder_logs_a_loss() {
    let (mut hand, record) = Hand::holding(logged(1));
    hand.at(1_010);
    exits(&mut hand);
    let mut next = Hand::new(logged(2));
    next.now = secs(1_100);
    next.step(Input::Start).finds(Some(&record), Some(secs(100)));
    hand.conflict().finds(Some(&next.sent()), Some(secs(1)));
    let log = alone(&hand);
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].event, log[0].reason.as_deref()), (LogEvent::Lost, Some("gone")));
}

#[test]
fn the_next_holder_logs_a_run_that_did_not_end() {
    let (_, record) = Hand::holding(logged(1));
    let mut hand = Hand::new(logged(2));
    hand.step(Input::Start).finds(Some(&record), Some(secs(91)));
    hand.written(None);
    let log = alone(&hand);
    assert_eq!(log.len(), 1);
    let told = (log[0].event, log[0].token.map(|t| t.get()), log[0].holder.host.as_str(), log[0].exit);
    assert_eq!(told, (LogEvent::Unknown, Some(1), "h1", None));
    // A free lease has no such run.
    let (mut hand, _) = Hand::holding(logged(1));
    exits(&mut hand);
    let freed = hand.sent();
    let mut hand = Hand::new(logged(2));
    hand.step(Input::Start).finds(Some(&freed), Some(secs(1))).written(None);
    assert_eq!(alone(&hand), []);
}

#[test]
fn a_claim_that_lands_late_logs_the_run_that_it_took_over() {
    let other = Name::new("other").unwrap();
    let (_, first) = Hand::holding(logged(1));
    let second = LeaseRecord { lease: other.clone(), ..Hand::holding(logged(2)).1 };
    let mut either = SessionPlan { wait: secs(60), ..logged(3) };
    either.leases.push(LeaseChoice { lease: other, ..either.leases[0].clone() });
    let mut hand = Hand::new(either);
    hand.step(Input::Start).finds(Some(&first), Some(secs(91)));
    let claim = hand.sent();
    // Not landed so far, and the first run has not ended after all, as the store now says.
    hand.unknown().finds(Some(&first), Some(secs(91)));
    hand.at(1_001).timer().finds(Some(&first), Some(secs(5)));
    // The claim of the other lease fails: its run has renewed it.
    hand.finds(Some(&second), Some(secs(91)));
    assert_eq!(hand.sent().lease, second.lease);
    let renewed = LeaseRecord { write: WriteId(9), ..second };
    hand.conflict().finds(Some(&renewed), Some(secs(1)));
    // Now the first claim has landed.
    hand.at(1_005).timer().finds(Some(&claim), Some(secs(1)));
    assert!(hand.started());
    let log = alone(&hand);
    let about = log.iter().map(|log| (log.event, log.lease.as_ref(), log.holder.host.as_str()));
    assert_eq!(about.collect::<Vec<_>>(), [(LogEvent::Unknown, Some(&first.lease), "h1")]);
}

#[test]
fn a_session_that_logs_nothing_logs_nothing() {
    let (_, record) = Hand::holding(logged(1));
    let mut hand = Hand::new(plan(2, StoreClock::default()));
    hand.step(Input::Start).finds(Some(&record), Some(secs(91))).written(None);
    exits(&mut hand);
    assert_eq!((with_release(&hand), alone(&hand)), (None, vec![]));
}
