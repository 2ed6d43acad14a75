//! Which slots are run, and how the others are accounted for.

use std::collections::BTreeMap;

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::catch_up::{
    Calendar, CatchUp, Counted, DueSlots, ON_TIME, SlotGap, SlotStanding, account, asked_by_itself, counted,
    listed_first, never_started,
};
use leasehold_core::ledger::job_record::{DropReason, DroppedRange, JobRecord, seen};

use super::*;

const WRITE: WriteId = WriteId(9);
const MINUTE: i64 = 60;

/// Due at every multiple of this many seconds.
pub struct Every(pub i64);

impl Calendar for Every {
    fn newest(&self, upto: i64) -> Option<i64> {
        Some(upto.div_euclid(self.0) * self.0)
    }

    fn next(&self, after: i64) -> Option<i64> {
        Some((after.div_euclid(self.0) + 1) * self.0)
    }

    fn gap(&self, after: i64, upto: i64) -> Option<SlotGap> {
        let (first, last) = (self.next(after)?, self.newest(upto)?);
        let count = u64::try_from((last - first) / self.0 + 1).ok()?;
        (first <= last).then_some(SlotGap { first, last, count })
    }

    fn newest_of(&self, after: i64, upto: i64, most: usize, max_age: Option<Duration>) -> Vec<i64> {
        let oldest = max_age.map_or(i64::MIN, |age| upto - age.as_secs().cast_signed());
        let all = (0..).map(|back| self.newest(upto).unwrap() - back * self.0);
        let mut newest: Vec<i64> = all.take(most).take_while(|at| *at > after && *at >= oldest).collect();
        newest.reverse();
        newest
    }
}

fn job_record(settled: i64) -> JobRecord {
    seen(None, &name("j"), &every(1), settled, &[], WRITE).unwrap()
}

fn paused(settled: i64) -> JobRecord {
    job_record(settled).pausing("h".into(), "t".into(), WRITE).unwrap()
}

fn due(job_record: &JobRecord, most: usize, max_age: Option<u64>, now: i64) -> Option<(Vec<i64>, Vec<bool>)> {
    let catch_up = CatchUp { most, max_age: max_age.map(Duration::from_secs) };
    let due = DueSlots::of(&Every(MINUTE), job_record, catch_up, now)?;
    let late = due.run.iter().map(|at| due.is_late(*at)).collect();
    Some((due.run, late))
}

#[test]
fn what_is_due_just_now_is_run_however_little_is_caught_up() {
    let settled = job_record(600);
    assert_eq!(due(&settled, 3, None, 659), None, "nothing became due");
    assert_eq!(due(&settled, 0, None, 665), Some((vec![660], vec![false])));
    assert_eq!(
        due(&settled, 0, Some(1), 665),
        Some((vec![660], vec![false])),
        "max_age applies only to late slots"
    );
    assert_eq!(due(&settled, 3, None, 1_030), Some((vec![900, 960, 1_020], vec![true, true, false])));
    assert_eq!(due(&settled, 3, Some(100), 1_030), Some((vec![960, 1_020], vec![true, false])));
    assert_eq!(due(&settled, 9, None, 725), Some((vec![660, 720], vec![true, false])));
    assert_eq!(due(&paused(600), 3, None, 1_030), Some((vec![], vec![])));
}

#[test]
fn a_slot_is_on_time_for_five_minutes() {
    let yearly = |most, now| {
        let due =
            DueSlots::of(&Every(10_000), &job_record(600), CatchUp { most, max_age: None }, now).unwrap();
        due.run.iter().map(|at| (*at, due.is_late(*at))).collect::<Vec<_>>()
    };
    let on_time = 10_000 + ON_TIME.as_secs().cast_signed();
    assert_eq!(yearly(0, on_time), [(10_000, false)]);
    assert_eq!(yearly(0, on_time + 1), []);
    assert_eq!(yearly(1, on_time + 1), [(10_000, true)]);
}

#[test]
fn what_lies_before_the_wanted_is_accounted_for() {
    let of = |job_record: &JobRecord, most| {
        let due = DueSlots::of(&Every(MINUTE), job_record, CatchUp { most, max_age: None }, 1_030).unwrap();
        (due.account_upto(1_030), due.why())
    };
    assert_eq!(of(&job_record(600), 2), (959, DropReason::Missed));
    assert_eq!(of(&job_record(600), 0), (1_019, DropReason::Missed));
    assert_eq!(of(&paused(600), 2), (1_030, DropReason::Paused), "and not beyond now");
}

#[test]
fn every_slot_up_to_a_time_is_in_a_range_or_has_a_record() {
    let stands =
        BTreeMap::from([(720, SlotStanding::Settled), (780, SlotStanding::Taken), (900, SlotStanding::Open)]);
    let made = account(&Every(MINUTE), &job_record(600), 1_019, &stands, DropReason::Missed).unwrap();
    let range =
        |first, last, count| DroppedRange { first, last, count, why: DropReason::Missed, counting: true };
    assert_eq!(made.dropped, [range(660, 660, 1), range(840, 840, 1), range(960, 960, 1)]);
    assert_eq!((made.upto, made.open), (1_019, vec![780, 900]));
    let many = [
        (660, SlotStanding::Open),
        (720, SlotStanding::Open),
        (780, SlotStanding::Settled),
        (840, SlotStanding::Taken),
    ];
    assert_eq!(
        listed_first(many.into_iter()),
        [840, 720, 660],
        "first those that a run is at work on, then the newest"
    );
    // Later slots belong to a later account.
    let made = account(&Every(MINUTE), &job_record(600), 799, &stands, DropReason::Paused).unwrap();
    assert_eq!((made.dropped.len(), made.open), (1, vec![780]));
    assert_eq!(account(&Every(MINUTE), &job_record(600), 600, &stands, DropReason::Missed), None);
    // Slots with records are accounted for once there are eight of them.
    let row = |slots: i64| -> BTreeMap<i64, SlotStanding> {
        (11..11 + slots).map(|minute| (minute * MINUTE, SlotStanding::Settled)).collect()
    };
    assert_eq!(
        account(&Every(MINUTE), &job_record(600), 660 + 6 * MINUTE, &row(7), DropReason::Missed),
        None
    );
    assert!(
        account(&Every(MINUTE), &job_record(600), 660 + 7 * MINUTE, &row(8), DropReason::Missed).is_some()
    );
    // A slot that is not over is listed at once, or no scheduler would look at it again.
    let only = |stands| {
        let made = account(
            &Every(MINUTE),
            &job_record(600),
            660,
            &BTreeMap::from([(660, stands)]),
            DropReason::Missed,
        );
        made.map(|made| made.open)
    };
    assert_eq!(only(SlotStanding::Open), Some(vec![660]));
    assert_eq!(only(SlotStanding::Taken), Some(vec![660]));
    // Other schedulers would take a slot without a record for one that was never started.
    assert_eq!(only(SlotStanding::Starting), None);
}

#[test]
fn what_is_begun_in_a_range_is_not_counted_in_it() {
    let range = DroppedRange { first: 660, last: 900, count: 5, why: DropReason::Missed, counting: true };
    let of = |stands: &[(i64, SlotStanding)]| counted(&range, &stands.iter().copied().collect());
    let found = |count, recorded: &[i64], open: &[i64]| {
        Some(Counted { count, recorded: recorded.into(), open: open.into() })
    };
    assert_eq!(of(&[]), found(5, &[], &[]));
    assert_eq!(of(&[(720, SlotStanding::Settled), (780, SlotStanding::Open)]), found(3, &[720, 780], &[780]));
    assert_eq!(
        of(&[(720, SlotStanding::Settled), (780, SlotStanding::Taken)]),
        None,
        "that run may take its record back"
    );
    let alone = never_started(733);
    assert_eq!(counted(&alone, &BTreeMap::new()), found(1, &[], &[]));
    assert_eq!(counted(&alone, &BTreeMap::from([(733, SlotStanding::Open)])), found(0, &[733], &[733]));
}

#[test]
fn what_is_too_old_is_not_tried_again() {
    let asked = |max_age: Option<u64>, now| {
        let ask = ItemRequest { attempts: 3, ..ask(Grant(1), 0, IfUnknown::Retry) };
        let ask = asked_by_itself(ask, max_age.map(Duration::from_secs), 1_000, now);
        (ask.if_unknown, ask.attempts)
    };
    let (again, left) = ((IfUnknown::Retry, 3), (IfUnknown::Refuse, 0));
    assert_eq!(asked(None, i64::MAX), again);
    assert_eq!([asked(Some(60), 1_300), asked(Some(60), 1_301)], [again, left]);
    assert_eq!([asked(Some(600), 1_600), asked(Some(600), 1_601)], [again, left]);
}
