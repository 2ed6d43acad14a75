//! Bugs that the simulator found in core. See also `docs/lessons.md`.

use leasehold_core::ids::{Grant, Token, WriteId};
use leasehold_core::ledger::ItemState;
use leasehold_core::name::Name;
use leasehold_core::one_shot::{OneShot, OneShotNext, OneShotOutcome, OneShotVerb};
use leasehold_core::record::{Hold, Holder, LeaseRecord};
use leasehold_core::rules::Refusal;
use leasehold_core::session::{
    Effect, Event, Input, JobExit, LeaseChoice, NotStarted, Op, Outcome, Release, RequestId, SessionPlan,
    Signal, StopReason, Within,
};
use leasehold_core::store::{Cas, Failure, FailureKind};
use leasehold_core::time::BootTime;
use leasehold_core::timing::StoreClock;
use std::time::Duration;

use crate::hand::{Hand, plan, reading, revoked, secs, silence, site};

/// The next grant of a record, to another session.
fn next_grant(record: &LeaseRecord) -> LeaseRecord {
    let mut rival = Hand::new(plan(2, StoreClock::default()));
    let free = LeaseRecord { hold: None, write: WriteId(8), ..record.clone() };
    rival.step(Input::Start).finds(Some(&free), None);
    rival.sent()
}

#[test]
fn bug_1_a_holder_that_outlives_a_restart_does_not_hide_it() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_030).timer();
    // The store restarts as "j" and forgets a grant of another session.
    hand.unknown().finds_in("j", Some(&record), None);
    hand.at(1_031).timer();
    assert_eq!(hand.sent().instance, "i");
    let renewed = hand.sent();
    hand.written(None).step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
    let freed = hand.sent();
    assert_eq!(freed.instance, "i");
    let mut rival = Hand::new(plan(2, StoreClock::default()));
    rival.step(Input::Start).finds_in("j", Some(&freed), None);
    assert_eq!(rival.sent().token.get(), renewed.token.get() + 1_000);
    assert_eq!(rival.sent().instance, "j");
}

#[test]
fn bug_2_a_lease_revoked_while_its_claim_is_in_doubt_is_given_back() {
    let mut hand = Hand::new(plan(1, StoreClock::default()));
    hand.step(Input::Start).finds(None, None);
    let claim = hand.sent();
    let asked = revoked(&claim, secs(86));
    hand.at(1_004).unknown().finds(Some(&asked), Some(secs(1)));
    assert_eq!(hand.counts_from(), secs(1_000), "the record was cut to what was left");
    assert!(!hand.started());
    assert!(hand.sent().hold.is_none());
    hand.written(None);
    let lost = Outcome::Lost { why: StopReason::Revoked, status: None };
    assert_eq!(hand.outcome(), Some(&lost));
}

#[test]
fn bug_3_a_release_whose_answer_was_lost_is_not_a_lost_lease() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_010).step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
    hand.at(1_015).unknown().finds(Some(&next_grant(&record)), Some(secs(1)));
    let release = Release::Done;
    assert_eq!(
        hand.outcome(),
        Some(&Outcome::Finished { status: 0, state: ItemState::Ok, stopped: None, release })
    );
}

#[test]
fn bug_3_a_refused_release_of_a_lease_that_moved_on_is_still_a_loss() {
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_010).step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
    hand.at(1_011).conflict().finds(Some(&next_grant(&record)), Some(secs(1)));
    assert!(matches!(hand.outcome(), Some(Outcome::Lost { why: StopReason::Gone, .. })));
}

/// The job ended before D, and its lease expired before it was given back: no other run held the lease
/// meanwhile.
#[test]
fn a_lease_that_ran_out_after_its_job_was_gone_is_not_a_lost_one() {
    let ends = |late: bool| {
        let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
        let stop_at = hand.session.stop_at().unwrap().0.as_secs();
        hand.at(if late { stop_at + 1 } else { stop_at - 1 });
        hand.step(Input::JobExited { exit: JobExit::Code(0), tree_empty: true });
        hand.at(stop_at + 2).conflict().finds(Some(&next_grant(&record)), Some(secs(1)));
        hand.outcome().cloned()
    };
    let release = Release::Unconfirmed;
    assert_eq!(
        ends(false),
        Some(Outcome::Finished { status: 0, state: ItemState::Ok, stopped: None, release })
    );
    let lost = Outcome::Lost { why: StopReason::Deadline, status: Some(0) };
    assert_eq!(ends(true), Some(lost), "a job that did not end before D");
}

#[test]
fn bug_4_an_exit_told_after_the_empty_tree_ends_the_session() {
    let (mut hand, _) = Hand::holding(plan(1, StoreClock::default()));
    hand.at(1_010).step(Input::TreeEmpty);
    hand.at(1_011).step(Input::JobExited { exit: JobExit::Code(3), tree_empty: false });
    assert!(hand.sent().hold.is_none(), "released at once");
    hand.written(None);
    assert!(matches!(hand.outcome(), Some(Outcome::Finished { status: 3, .. })));
}

#[test]
fn bug_5_a_foreign_write_under_our_grant_moves_no_deadline() {
    // The store's clock stepped back: it calls a record young that was written long ago.
    let (mut hand, record) = Hand::holding(plan(1, StoreClock::default()));
    let childs = LeaseRecord { write: WriteId(6), ..record };
    hand.at(1_030).timer();
    hand.at(1_031).conflict().finds(Some(&childs), Some(secs(0)));
    assert_eq!(hand.counts_from(), secs(1_000));
    hand.at(1_032).written(None);
    assert_eq!(hand.counts_from(), secs(1_031), "our own write does");
}

#[test]
fn bug_6_a_revocation_never_understates_what_is_left() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let left = |age: u64, resolution: u64| {
        let mut one_shot = OneShot::new(
            OneShotVerb::Revoke,
            site(),
            StoreClock { resolution: secs(resolution), jump: secs(3) },
            5,
        );
        match one_shot.on_read(Ok(reading("i", Some(&record), Some(secs(age))))) {
            OneShotNext::Ask(Op::Cas { body, .. }) => {
                LeaseRecord::decode(&site(), &body).unwrap().hold.unwrap().ttl
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(left(1, 1), secs(90), "a coarse second of a young record");
    assert_eq!(left(44, 1), secs(50), "a coarse second and a step of three are left over");
    assert_eq!(left(80, 0), secs(13));
    assert!(left(89, 0) > Duration::ZERO);
    assert!(record.held_by(Grant(1)) && record.token == Token::FIRST);
}

/// A failed write is read back, whatever the failure.
#[test]
fn a_change_by_hand_in_doubt_is_read_back() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let found = |record: &LeaseRecord| Ok(reading("i", Some(record), Some(secs(1))));
    let offered = |next: OneShotNext| match next {
        OneShotNext::Ask(Op::Cas { body, .. }) => LeaseRecord::decode(&site(), &body).unwrap(),
        other => panic!("{other:?}"),
    };
    let failures = [
        (Failure::new(FailureKind::Denied, "no"), true),
        (Failure::new(FailureKind::Unusable, "a proxy answered"), true),
        (Failure::not_written(FailureKind::Denied, "no"), false),
    ];
    for (failure, may_land) in failures {
        let mut one_shot = OneShot::new(OneShotVerb::Release(Grant(1)), site(), StoreClock::default(), 5);
        let sent = offered(one_shot.on_read(found(&record)));
        assert_eq!(one_shot.on_cas(Cas::Unknown(failure.clone())), OneShotNext::Ask(Op::Read));
        let mut silent = one_shot.clone();
        let mut landed = one_shot.clone();
        let told = OneShotNext::Done(OneShotOutcome::Failed { failure, sent: may_land });
        assert_eq!(one_shot.on_read(found(&record)), told, "not sent again");
        assert_eq!(silent.on_read(Err(silence())), told);
        assert_eq!(
            landed.on_read(found(&sent)),
            OneShotNext::Done(OneShotOutcome::Done { record: sent, late: false })
        );
    }
    // It is late if the lease had expired when the attempt that landed was sent.
    for (first, second) in [(1, 91), (91, 1)] {
        let mut one_shot = OneShot::new(OneShotVerb::Release(Grant(1)), site(), StoreClock::default(), 5);
        let read = |age| Ok(reading("i", Some(&record), Some(secs(age))));
        let sent = offered(one_shot.on_read(read(first)));
        one_shot.on_cas(Cas::Unknown(silence()));
        offered(one_shot.on_read(read(second)));
        one_shot.on_cas(Cas::Conflict);
        let done = OneShotOutcome::Done { record: sent.clone(), late: first > 90 };
        assert_eq!(one_shot.on_read(found(&sent)), OneShotNext::Done(done));
    }
    // A write without an answer is sent again a few times. It is read back after the last one, too.
    let mut one_shot = OneShot::new(OneShotVerb::Renew(Grant(1)), site(), StoreClock::default(), 5);
    for _ in 1..8 {
        offered(one_shot.on_read(found(&record)));
        assert_eq!(one_shot.on_cas(Cas::Unknown(silence())), OneShotNext::Ask(Op::Read));
    }
    let sent = offered(one_shot.on_read(found(&record)));
    assert_eq!(one_shot.on_cas(Cas::Unknown(silence())), OneShotNext::Ask(Op::Read));
    let told = OneShotOutcome::Failed { failure: silence(), sent: true };
    assert_eq!(one_shot.clone().on_read(found(&record)), OneShotNext::Done(told));
    assert_eq!(
        one_shot.on_read(found(&sent)),
        OneShotNext::Done(OneShotOutcome::Done { record: sent, late: false })
    );
}

#[test]
fn bug_7_one_unanswered_read_does_not_end_the_wait() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut hand = Hand::new(SessionPlan { wait: secs(20), ..plan(2, StoreClock::default()) });
    hand.step(Input::Start).finds(Some(&record), Some(secs(1)));
    hand.at(1_001).timer().silence();
    assert_eq!(hand.outcome(), None);
    hand.at(1_003).timer().silence();
    let free = LeaseRecord { hold: None, write: WriteId(8), ..record };
    hand.at(1_005).timer().finds(Some(&free), None);
    assert_eq!(hand.sent().token.get(), 2);
}

#[test]
fn bug_7_a_store_that_never_answers_ends_it_at_once_and_one_that_stays_silent_in_time() {
    let waiting = || Hand::new(SessionPlan { wait: secs(20), ..plan(2, StoreClock::default()) });
    let gave_up = |hand: &Hand| matches!(hand.outcome(), Some(Outcome::NotStarted(NotStarted::Store { .. })));
    let mut never = waiting();
    never.step(Input::Start).silence();
    assert!(gave_up(&never));
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut silent = waiting();
    silent.step(Input::Start).finds(Some(&record), Some(secs(1)));
    silent.at(1_019).timer().silence();
    assert!(!gave_up(&silent));
    silent.at(1_020).timer().silence();
    assert!(gave_up(&silent));
}

/// The store protects its records (a lease on the blob, row level security), or reads come from a copy.
#[test]
fn a_conflict_without_a_change_ends_the_claim_in_time() {
    let mut hand = Hand::new(SessionPlan { wait: secs(3_600), ..plan(2, StoreClock::default()) });
    hand.step(Input::Start).finds(None, None);
    for second in 1_000.. {
        hand.conflict().finds(None, None);
        assert!(hand.reads(), "no write without a pause: second {second}");
        if let Some(outcome) = hand.outcome() {
            let Outcome::NotStarted(NotStarted::Store { failure, in_doubt: false }) = outcome else {
                panic!("{outcome:?}")
            };
            assert!(failure.message.contains("has not changed"), "{failure:?}");
            return assert!((1_002..1_020).contains(&second), "tried again, but not without end: {second}");
        }
        hand.at(second + 1).timer().finds(None, None);
    }
}

/// A claim that lost a race goes on at once, and leaves no doubt for the next one.
#[test]
fn a_conflict_with_a_change_is_no_doubt() {
    let mut hand = Hand::new(SessionPlan { wait: secs(3_600), ..plan(2, StoreClock::default()) });
    let (_, mut record) = Hand::holding(plan(1, StoreClock::default()));
    hand.step(Input::Start).finds(None, None);
    for second in 1_000..1_100 {
        record = LeaseRecord { hold: None, write: WriteId(u128::from(second)), ..record };
        hand.at(second).conflict().finds(Some(&record), None);
        assert_eq!(hand.expects().map(|version| version.0), Some(record.write.to_string()));
    }
    assert_eq!(hand.outcome(), None);
}

/// A claim was not answered, was replaced by force, and is back after the store was rewound. A grant has one
/// token, so a run does not take over from itself.
#[test]
fn a_claim_of_its_own_that_a_rewound_store_brings_back_is_not_taken_over() {
    let mut hand = Hand::new(SessionPlan { wait: secs(3_600), ..plan(1, StoreClock::default()) });
    hand.step(Input::Start).finds(None, None);
    let claim = hand.sent();
    let forced = next_grant(&claim);
    hand.at(1_004).unknown().finds(Some(&forced), Some(secs(1)));
    assert_eq!(hand.outcome(), None, "it waits for the other run");
    let mut control = hand.clone();
    hand.at(1_005).timer().finds_in("j", Some(&claim), None);
    let refusal = Refusal::Returned { token: claim.token };
    let refused = Outcome::NotStarted(NotStarted::Refused { lease: site(), refusal });
    assert_eq!(hand.outcome(), Some(&refused));
    // A claim of another run that comes back is watched for a TTL and replaced.
    let others = next_grant(&LeaseRecord { write: WriteId(9), ..forced });
    for second in [1_005, 1_097] {
        control.at(second).timer().finds_in("j", Some(&others), None);
    }
    assert_eq!(control.sent().token.get(), others.token.get() + 1_000);
}

/// A claim on the first lease of a list lands after the run saw all of them held: it is found at the next look.
#[test]
fn a_claim_that_lands_late_is_ours_also_in_a_list() {
    let choice = |name: &str| LeaseChoice { lease: Name::new(name).unwrap(), seen: None, watched: None };
    let leases = vec![choice("site"), choice("other")];
    let mut hand = Hand::new(SessionPlan { leases, wait: secs(300), ..plan(2, StoreClock::default()) });
    let (_, dead) = Hand::holding(plan(1, StoreClock::default()));
    let elsewhere = LeaseRecord { lease: Name::new("other").unwrap(), ..dead.clone() };
    hand.step(Input::Start).finds(Some(&dead), Some(secs(91)));
    let claim = hand.sent();
    hand.at(1_001).unknown().finds(Some(&dead), Some(secs(91)));
    // Another node answers with a younger age: this lease counts as held, and so is the other.
    hand.at(1_002).timer().finds(Some(&dead), Some(secs(89)));
    hand.at(1_003).finds(Some(&elsewhere), Some(secs(1)));
    assert_eq!(hand.outcome(), None);
    hand.at(1_020).timer().finds(Some(&claim), Some(secs(15)));
    assert!(hand.started(), "{:?}", hand.outcome());
    assert_eq!(hand.counts_from(), secs(1_000), "the claim that landed, and no other");
}

/// A doubt that is over leaves the next one all its time.
#[test]
fn each_doubt_has_its_own_time() {
    let mut hand = Hand::new(SessionPlan { wait: secs(3_600), ..plan(2, StoreClock::default()) });
    let (_, dead) = Hand::holding(plan(1, StoreClock::default()));
    hand.step(Input::Start).finds(Some(&dead), Some(secs(91)));
    hand.at(1_001).unknown().finds_in("j", Some(&dead), None);
    // Another instance cannot tell the age: the record is watched for a TTL and claimed again.
    for second in [1_002, 1_050, 1_093] {
        hand.at(second).timer().finds_in("j", Some(&dead), None);
    }
    assert_eq!(hand.sent().instance, "j");
    hand.at(1_094).unknown().silence();
    assert_eq!(hand.outcome(), None, "it is asked again");
}

#[test]
fn by_hand_no_expired_lease_is_handed_over() {
    let taken = |answered: u64| {
        let mut hand = Hand::new(SessionPlan { by_hand: true, ..plan(1, StoreClock::default()) });
        hand.step(Input::Start).finds(None, None);
        let claim = hand.sent();
        hand.at(answered).unknown().finds(Some(&claim), None);
        hand
    };
    let hand = taken(1_004);
    let Some(Outcome::Granted(granted)) = hand.outcome() else { panic!("{:?}", hand.outcome()) };
    assert_eq!(granted.ttl, secs(86), "what is left of it");
    let mut hand = taken(1_090);
    assert!(hand.sent().hold.is_none(), "it is given back");
    hand.written(None);
    assert_eq!(hand.outcome(), Some(&Outcome::Lost { why: StopReason::Deadline, status: None }));
}

/// Ctrl-C while a claim is not answered: the outcome says that it may land.
#[test]
fn an_interrupted_claim_that_may_land_is_told() {
    let interrupted = |answer: fn(&mut Hand) -> &mut Hand| {
        let mut hand = Hand::new(plan(1, StoreClock::default()));
        hand.step(Input::Start).finds(None, None);
        hand.step(Input::Signal(Signal::Int));
        answer(hand.at(1_001)).finds(None, None);
        hand.at(1_002).timer().finds(None, None);
        hand.outcome().cloned()
    };
    let told = |in_doubt| {
        let why = NotStarted::Interrupted { signal: Signal::Int, in_doubt };
        Some(Outcome::NotStarted(why))
    };
    assert_eq!(interrupted(Hand::unknown), told(true));
    assert_eq!(interrupted(Hand::conflict), told(false), "the control: a claim that was refused");
}

/// A store's report of a change is a hint: a waiting run looks, and decides by what it finds.
#[test]
fn a_push_makes_a_waiter_look_and_decides_nothing() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut hand = Hand::new(SessionPlan { wait: secs(20), ..plan(2, StoreClock::default()) });
    hand.step(Input::Start).finds_pushing(&record, secs(1));
    let (id, until) = hand.watches().expect("it asks the store to report");
    assert_eq!(until.0, secs(1_002), "and looks by itself now and then");
    hand.step(Input::Changed { id: RequestId(77) });
    assert_eq!(hand.asks(), 1, "a report about another watch is ignored");
    hand.step(Input::Changed { id }).step(Input::Changed { id });
    assert_eq!(hand.asks(), 2, "one look for several reports");
    // The report was wrong: the lease is still held.
    hand.finds_pushing(&record, secs(1));
    assert!(!hand.started() && hand.outcome().is_none());
    assert_ne!(hand.watches().unwrap().0, id);
}

/// The outer run waits for this one to end; so does the script that took the lease by hand.
#[test]
fn nobody_waits_for_those_it_was_started_under() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let outcome = |runs: &[&str], grant: Option<u128>| {
        let within = Within { runs: runs.iter().map(|&r| r.into()).collect(), grant: grant.map(Grant) };
        let mut hand = Hand::new(SessionPlan { wait: secs(20), within, ..plan(2, StoreClock::default()) });
        hand.step(Input::Start).finds(Some(&record), Some(secs(1)));
        hand.outcome().cloned()
    };
    assert!(matches!(outcome(&["outermost", "r", "innermost"], None), Some(Outcome::Busy(_))));
    assert!(matches!(outcome(&[], Some(1)), Some(Outcome::Busy(_))));
    assert_eq!(outcome(&["another"], Some(7)), None, "the control: it waits for other runs");
}

/// Of several leases: only if outer runs hold all of them, and an outer run is reported only then.
#[test]
fn nobody_waits_for_a_list_of_which_all_is_held_around_it() {
    const LIST: [&str; 2] = ["site", "other"];
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let finds_both = |hand: &mut Hand, runs: [&str; 2], age| {
        for (lease, run) in LIST.into_iter().zip(runs) {
            let holder = Holder { run: run.into(), ..record.holder.clone() };
            let held = LeaseRecord { lease: Name::new(lease).unwrap(), holder, ..record.clone() };
            hand.finds(Some(&held), Some(age));
        }
    };
    for (runs, at_once, told) in [
        (["p", "q"], true, "site"),
        (["p", "x"], false, "other"),
        (["x", "p"], false, "site"),
        (["x", "y"], false, "site"),
    ] {
        let choice = |name: &str| LeaseChoice { lease: Name::new(name).unwrap(), seen: None, watched: None };
        let within = Within { runs: vec!["p".into(), "q".into()], grant: None };
        let leases = LIST.map(choice).to_vec();
        let mut hand =
            Hand::new(SessionPlan { leases, wait: secs(1), within, ..plan(2, StoreClock::default()) });
        finds_both(hand.step(Input::Start), runs, secs(1));
        assert_eq!(hand.outcome().is_some(), at_once, "{runs:?}");
        if !at_once {
            finds_both(hand.at(1_002).timer(), runs, secs(3));
        }
        let Some(Outcome::Busy(busy)) = hand.outcome() else { panic!("{runs:?}") };
        assert_eq!(busy.lease.as_str(), told, "{runs:?}");
    }
}

/// How often a run said that it waits, and for which lease.
fn waits_for(hand: &Hand) -> Vec<&str> {
    let waiting = |effect| match effect {
        &Effect::Tell(Event::Waiting(ref busy)) => Some(busy.lease.as_str()),
        _ => None,
    };
    hand.told.iter().filter_map(waiting).collect()
}

#[test]
fn a_run_says_that_it_waits_also_after_a_claim_in_doubt() {
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let mut hand = Hand::new(SessionPlan { wait: secs(60), ..plan(2, StoreClock::default()) });
    hand.step(Input::Start).finds(None, None).unknown().silence();
    hand.at(1_001).timer().finds(Some(&record), Some(secs(1)));
    assert_eq!(waits_for(&hand), ["site"]);
    hand.at(1_002).timer().finds(Some(&record), Some(secs(2)));
    assert_eq!(waits_for(&hand), ["site"], "once");
}

/// The last lease of a list is the one that is waited for, whether or not its holder left a lock file.
#[test]
fn a_lock_file_changes_neither_the_pause_nor_the_lease_that_is_waited_for() {
    let choice = |name: &str| LeaseChoice { lease: Name::new(name).unwrap(), seen: None, watched: None };
    let (_, record) = Hand::holding(plan(1, StoreClock::default()));
    let waiting = |lock: Option<&str>| {
        let leases = vec![choice("site"), choice("other")];
        let mut hand = Hand::new(SessionPlan { leases, wait: secs(60), ..plan(2, StoreClock::default()) });
        let hold = record.hold.clone().map(|hold| Hold { lock: lock.map(Into::into), ..hold });
        let other = LeaseRecord { lease: Name::new("other").unwrap(), hold, ..record.clone() };
        hand.step(Input::Start).finds(Some(&record), Some(secs(1)));
        hand.finds(Some(&other), Some(Duration::from_millis(89_995)));
        if lock.is_some() {
            hand.step(Input::Probed { gone: false });
        }
        assert_eq!(waits_for(&hand), ["other"], "{lock:?}");
        hand.told.iter().rev().find(|effect| matches!(effect, Effect::Arm(_))).cloned()
    };
    let soon = Effect::Arm(Some(BootTime(secs(1_000) + Duration::from_millis(6))));
    assert_eq!((waiting(None), waiting(Some("here"))), (Some(soon.clone()), Some(soon)));
}
