//! The record of a job: which slots are settled, and what a scheduler does about a slot.

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::job_record::{
    Account, DropReason, DroppedRange, JobRecord, LeaseForSlot, OPEN_MAX, Paused, RANGES_MAX, SlotAction,
    lease_for_slot, seen, slot_action, stuck,
};

use leasehold_core::ledger::catch_up::{Counted, never_started};
use leasehold_core::ledger::{Alive, LeaseSeen, SettleReason, alive};
use leasehold_core::store::{Stored, Version};

use super::due::Every;
use super::*;

const WRITE: WriteId = WriteId(9);

fn job_record(settled: i64) -> JobRecord {
    seen(None, &name("j"), &every(1), settled, &[], WRITE).unwrap()
}

fn range(first: i64, last: i64, why: DropReason) -> DroppedRange {
    DroppedRange { first, last, count: (last - first + 1).unsigned_abs(), why, counting: false }
}

fn account(upto: i64, dropped: &[DroppedRange], open: &[i64]) -> Account {
    Account { upto, dropped: dropped.to_vec(), open: open.to_vec() }
}

#[test]
fn what_is_new_or_changed_has_no_past() {
    let known = job_record(100);
    assert_eq!(known.settled, 100);
    assert_eq!(seen(Some(&known), &name("j"), &every(1), 500, &[], WRITE), None);
    let changed = seen(Some(&known), &name("j"), &every(2), 500, &[130], WRITE).unwrap();
    assert_eq!((changed.settled, &changed.open[..]), (500, &[130][..]));
    assert!(changed.is_settled(120) && !changed.is_settled(130), "a run is at work on it");
    // A clock that is behind undoes nothing.
    assert_eq!(seen(Some(&known), &name("j"), &every(2), 50, &[], WRITE).unwrap().settled, 100);
}

#[test]
fn an_account_is_one_write() {
    let before = job_record(10);
    let first = before.with_account(&account(20, &[range(12, 14, DropReason::Missed)], &[15]), WRITE);
    assert_eq!((first.settled, first.open.clone()), (20, vec![15]));
    assert!(first.is_settled(13) && first.is_settled(20) && !first.is_settled(15) && !first.is_settled(21));
    assert_eq!(first.range_of(13).map(|range| range.count), Some(3));
    assert_eq!(first.range_of(15), None);
    // It never goes back.
    assert_eq!(first.with_account(&account(5, &[], &[]), WRITE).settled, 20);
    assert_eq!(JobRecord::decode(&name("j"), &first.encode()), Ok(first.clone()));
    assert!(JobRecord::decode(&name("k"), &first.encode()).is_err());
}

#[test]
fn what_grows_has_an_end() {
    let open: Vec<i64> = (0..OPEN_MAX as i64).collect();
    let full = job_record(1_000).with_account(&account(1_000, &[], &open), WRITE);
    assert_eq!(full.listing(&[999], WRITE), None);
    assert!(full.listing(&[5], WRITE).is_some(), "it is listed");
    let uncertain = DroppedRange { counting: true, ..range(12, 14, DropReason::Missed) };
    let counting = full.with_account(&account(1_001, &[uncertain], &[]), WRITE);
    let counted = counting.with_count(&Every(1), &uncertain, &found(2, &[], &[999]), WRITE).unwrap();
    assert!(counted.is_settled(999), "it is settled although there is no room to list it");
    let more = full.with_account(&account(2_000, &[], &[998, 999]), WRITE);
    assert_eq!((more.settled, more.open.len()), (2_000, OPEN_MAX), "and so are later ones");
    let room = full.without_open(&[5], WRITE).with_account(&account(2_000, &[], &[998, 999]), WRITE);
    assert!(!room.is_settled(998) && room.is_settled(999), "the first are listed");
    let changed = seen(Some(&full), &name("j"), &every(2), 2_000, &[998, 999], WRITE).unwrap();
    assert_eq!(changed.open.len(), OPEN_MAX, "a new schedule is accepted");
    assert!(full.without_open(&[5], WRITE).listing(&[999], WRITE).is_some());
    let ranges: Vec<DroppedRange> =
        (0..RANGES_MAX as i64 + 7).map(|at| range(2 * at, 2 * at, DropReason::Missed)).collect();
    let many = job_record(0).with_account(&account(9_999, &ranges, &[]), WRITE);
    assert_eq!((many.dropped.len(), many.dropped[0].first), (RANGES_MAX, 14), "the oldest are forgotten");
    let mut widest = full.with_account(&account(9_999, &ranges, &[]), WRITE);
    widest.paused = Some(Paused { by: "x".repeat(200), at: "x".repeat(30), until: Some(i64::MAX) });
    assert!(JobRecord::decode(&name("j"), &widest.encode()).is_ok(), "{} bytes", widest.encode().len());
}

fn found(count: u64, recorded: &[i64], open: &[i64]) -> Counted {
    Counted { count, recorded: recorded.to_vec(), open: open.to_vec() }
}

#[test]
fn a_record_that_came_after_its_slot_was_dropped_means_nothing() {
    let uncertain = DroppedRange { counting: true, ..range(12, 16, DropReason::Missed) };
    let counting = job_record(10).with_account(&account(20, &[uncertain], &[]), WRITE);
    assert!(!counting.is_void(13), "it may have been made before");
    let dropped = counting.with_count(&Every(1), &uncertain, &found(3, &[13, 15], &[15]), WRITE).unwrap();
    let void = |job_record: &JobRecord| (10..=21).filter(|at| job_record.is_void(*at)).collect::<Vec<i64>>();
    assert_eq!(void(&dropped), [12, 14, 16], "13 and 15 were started before");
    assert_eq!(JobRecord::decode(&name("j"), &dropped.encode()), Ok(dropped.clone()));
    // Only records that have ended, or mean nothing, are removed.
    let forgets = |job_record: &JobRecord, at| job_record.may_forget(at, ItemState::Started);
    assert!(forgets(&dropped, 12) && !forgets(&dropped, 13) && !forgets(&counting, 12));
    // A listed slot that has no record is dropped as well.
    let alone = never_started(15);
    let late = dropped.without_open(&[15], WRITE).with_account(&account(20, &[alone], &[]), WRITE);
    assert_eq!(void(&late), [12, 14, 16], "not yet counted");
    let bare = late.with_count(&Every(1), &alone, &found(1, &[], &[]), WRITE).unwrap();
    assert_eq!(void(&bare), [12, 14, 15, 16]);
    let begun = late.with_count(&Every(1), &alone, &found(0, &[15], &[]), WRITE).unwrap();
    assert_eq!(void(&begun), [12, 14, 16], "it lies within the other");
    // If a person asks for it, it is looked at again.
    assert!(!bare.listing(&[15], WRITE).unwrap().is_void(15));
}

#[test]
fn what_lies_beside_ranges_has_an_end() {
    let (mut job_record, mut at) = (job_record(0), 0);
    for _ in 0..200 {
        let uncertain =
            DroppedRange { counting: true, count: 9, ..range(at + 1, at + 9, DropReason::Missed) };
        job_record = job_record.with_account(&account(at + 10, &[uncertain], &[]), WRITE);
        let recorded: Vec<i64> = (at + 2..at + 9).collect();
        job_record = job_record.with_count(&Every(1), &uncertain, &found(2, &recorded, &[]), WRITE).unwrap();
        at += 20;
    }
    assert!(
        job_record.beside.len() <= 500 && job_record.dropped.len() < 200,
        "the oldest ranges are forgotten"
    );
    assert!(
        !job_record.beside.iter().any(|at| job_record.is_void(*at) || job_record.range_of(*at).is_none())
    );
    assert!(JobRecord::decode(&name("j"), &job_record.encode()).is_ok());
}

/// The number of ranges after their counts became certain in this order.
fn counted(before: &JobRecord, ranges: &[DroppedRange], order: &[usize]) -> Vec<(i64, i64, u64)> {
    let uncertain: Vec<DroppedRange> =
        ranges.iter().map(|range| DroppedRange { counting: true, ..*range }).collect();
    let mut job_record = before.with_account(&account(99, &uncertain, &[]), WRITE);
    for n in order {
        let range = uncertain[*n];
        job_record = job_record.with_count(&Every(1), &range, &found(range.count, &[], &[]), WRITE).unwrap();
    }
    job_record.dropped.iter().map(|range| (range.first, range.last, range.count)).collect()
}

#[test]
fn what_turned_out_to_be_begun_is_not_dropped() {
    let uncertain = DroppedRange { counting: true, ..range(12, 14, DropReason::Missed) };
    let before = job_record(10).with_account(&account(20, &[uncertain], &[]), WRITE);
    let count = |count, open: &[i64]| {
        before.with_count(&Every(1), &uncertain, &found(count, open, open), WRITE).unwrap()
    };
    let after = count(2, &[13]);
    assert_eq!((after.dropped[0].count, after.dropped[0].counting, &after.open[..]), (2, false, &[13][..]));
    assert!(count(0, &[]).dropped.is_empty());
    // Another scheduler has counted it meanwhile.
    assert_eq!(after.with_count(&Every(1), &uncertain, &found(1, &[], &[]), WRITE), None);
}

#[test]
fn ranges_in_a_row_become_one_when_they_are_certain() {
    let (missed, paused) = (DropReason::Missed, DropReason::Paused);
    let row = [range(12, 14, missed), range(15, 15, missed), range(16, 20, missed)];
    let one = vec![(12, 20, 9)];
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
        assert_eq!(counted(&job_record(10), &row, &order), one, "{order:?}");
    }
    assert_eq!(
        counted(&job_record(10), &row, &[0, 2]),
        [(12, 14, 3), (15, 15, 1), (16, 20, 5)],
        "one is uncertain"
    );
    let apart = |second| counted(&job_record(10), &[range(12, 14, missed), second], &[0, 1]).len();
    assert_eq!(apart(range(16, 20, missed)), 2, "a slot lies between");
    assert_eq!(apart(range(15, 20, paused)), 2, "for another reason");
    // Another schedule had slots between them.
    let mut changed = job_record(10);
    changed.since = 14;
    assert_eq!(counted(&changed, &row[..2], &[0, 1]).len(), 2);
}

#[test]
fn a_pause_ends_with_what_was_due_in_it() {
    let paused = job_record(10).pausing("h".into(), "t".into(), WRITE).unwrap();
    assert!(paused.is_paused() && paused.pausing("h".into(), "t".into(), WRITE).is_none());
    assert_eq!(job_record(10).resuming(20, WRITE), None);
    let over = paused.resuming(20, WRITE).unwrap();
    assert_eq!((over.is_paused(), over.paused.as_ref().and_then(|p| p.until)), (false, Some(20)));
    let after = over.without_pause(Some(&account(20, &[range(11, 20, DropReason::Paused)], &[])), WRITE);
    assert_eq!((after.paused, after.settled, after.dropped.len()), (None, 20, 1));
    assert_eq!(over.without_pause(None, WRITE).settled, 10);
}

#[test]
fn only_what_has_ended_is_forgotten() {
    let uncertain = DroppedRange { counting: true, ..range(12, 14, DropReason::Missed) };
    let known = job_record(10).with_account(&account(20, &[uncertain], &[16]), WRITE);
    assert!(known.may_forget(15, ItemState::Ok) && known.may_forget(15, ItemState::Unknown));
    assert!(!known.may_forget(15, ItemState::Planned), "a person may be asking for it to be tried again");
    assert!(!known.may_forget(15, ItemState::Started));
    assert!(!known.may_forget(16, ItemState::Failed), "it is open");
    assert!(!known.may_forget(13, ItemState::Ok), "its range is not counted yet");
    assert!(!known.may_forget(21, ItemState::Ok), "it is not settled");
}

#[test]
fn a_slot_gives_way_only_after_a_run_of_it_was_tried() {
    use SlotAction::{Skip, Start, Wait};
    for (ways, tried, begun, skips, expected) in [
        (&[LeaseForSlot::Other][..], false, false, true, Start),
        (&[LeaseForSlot::Other], true, false, true, Skip),
        (&[LeaseForSlot::Other], true, false, false, Wait),
        // It has a record: a scheduler does not skip it.
        (&[LeaseForSlot::Other], true, true, true, Wait),
        (&[LeaseForSlot::Ours], false, false, true, Wait),
        (&[LeaseForSlot::Ours], true, false, true, Wait),
        // Only a run that watches the lease can tell that the holder is dead.
        (&[LeaseForSlot::OursPerhaps], true, false, true, Start),
        (&[LeaseForSlot::OursPerhaps], true, true, false, Start),
        (&[LeaseForSlot::Free], true, false, true, Start),
        (&[LeaseForSlot::Other, LeaseForSlot::Free], true, false, true, Start),
        (&[LeaseForSlot::Other, LeaseForSlot::Ours], true, false, true, Wait),
        (&[LeaseForSlot::Other, LeaseForSlot::Other], true, false, true, Skip),
        // One run of it is started, to report what is wrong.
        (&[LeaseForSlot::Unreadable], false, false, true, Start),
        (&[LeaseForSlot::Unreadable], true, false, true, Wait),
        (&[LeaseForSlot::Other, LeaseForSlot::Unreadable], true, false, true, Wait),
        (&[LeaseForSlot::Unreadable, LeaseForSlot::Free], true, false, true, Start),
    ] {
        assert_eq!(slot_action(ways, tried, begun, skips), expected, "{ways:?} {tried} {begun} {skips}");
    }
}

#[test]
fn a_lease_that_cannot_be_read_is_never_free() {
    let lease = Name::new("site").unwrap();
    let found = |stored: Option<&Stored>| LeaseSeen::of(&lease, stored, Duration::ZERO, "i");
    let damaged = Stored { body: b"{}".to_vec(), version: Version("1".into()), age: Some(Duration::MAX) };
    let (absent, unreadable) = (found(None), found(Some(&damaged)));
    assert_eq!((&absent, &unreadable), (&LeaseSeen::Absent, &LeaseSeen::Unreadable));
    assert_eq!(
        (alive(Grant(1), &absent), lease_for_slot(&absent, &lease, "s")),
        (Alive::No, LeaseForSlot::Free)
    );
    assert_eq!(
        (alive(Grant(1), &unreadable), lease_for_slot(&unreadable, &lease, "s")),
        (Alive::Yes, LeaseForSlot::Unreadable)
    );
}

#[test]
fn three_that_gave_way_in_a_row_are_no_accident() {
    let slot = |reason, state| {
        let ask = ask(Grant(1), 0, IfUnknown::Refuse);
        let leasehold_core::ledger::ItemVerdict::Begin(entry) =
            leasehold_core::ledger::begin(None, &ask, None, WRITE)
        else {
            panic!()
        };
        finish(&entry, state, Ending { reason, ..ending(0) })
    };
    let gave_way = slot(Some(SettleReason::Overlap), ItemState::Skipped);
    let (done, ok) = (slot(Some(SettleReason::Done), ItemState::Skipped), slot(None, ItemState::Ok));
    assert_eq!(stuck([&gave_way, &gave_way, &gave_way, &ok].into_iter()), Some(3));
    assert_eq!(stuck([&gave_way, &gave_way, &ok, &gave_way].into_iter()), None);
    assert_eq!(stuck([&done, &done, &done].into_iter()), None);
}

/// Format 1 had only the text of a schedule. A machine with the same text rewrites the record, and no slot is
/// dropped.
#[test]
fn format_1_is_read_and_written_anew() {
    let known = job_record(100);
    let text = String::from_utf8(known.encode()).unwrap();
    let key = r#""key":{"every":{"seconds":60,"offset":0}},"#;
    let old = text.replace("\"leasehold_job\":2", "\"leasehold_job\":1").replace(key, "");
    assert_ne!(old, text);
    let old = JobRecord::decode(&name("j"), old.as_bytes()).unwrap();
    assert!(old.goes_by(&every(1)) && !old.goes_by(&every(2)));
    let paused = old.pausing("h".into(), "then".into(), WRITE).unwrap();
    let anew = seen(Some(&paused), &name("j"), &every(1), 500, &[], WRITE).unwrap();
    assert_eq!(anew, known.pausing("h".into(), "then".into(), WRITE).unwrap());
    assert_eq!(seen(Some(&anew), &name("j"), &every(1), 500, &[], WRITE), None);
    // Format 2 needs the key, to compare.
    assert!(JobRecord::decode(&name("j"), text.replace(key, "").as_bytes()).is_err());
}

/// Schedules are compared by their times, not by their text.
#[test]
fn another_spelling_is_no_other_schedule() {
    let respelled = JobSchedule { written: "every 60s".into(), ..every(1) };
    assert_eq!(seen(Some(&job_record(100)), &name("j"), &respelled, 500, &[], WRITE), None);
}

#[test]
fn additions_to_a_job_are_carried_along() {
    let text = String::from_utf8(job_record(100).encode()).unwrap();
    let text = text.replace("\"write\":", "\"more\":{\"colour\":\"red\"},\"write\":");
    let read = JobRecord::decode(&name("j"), text.as_bytes()).unwrap();
    let next = seen(Some(&read), &name("j"), &every(2), 500, &[], WRITE).unwrap();
    assert!(String::from_utf8(next.encode()).unwrap().contains(r#""more":{"colour":"red"}"#));
}

/// Clocks may differ by five minutes, and a scheduler may look late on purpose.
#[test]
fn what_is_settled_far_ahead_is_noticed() {
    let late = Duration::from_secs(3_600);
    assert_eq!(job_record(1_300).ahead(1_000, Duration::ZERO), None);
    assert_eq!(job_record(1_301).ahead(1_000, Duration::ZERO), Some(1_301));
    assert_eq!(job_record(4_900).ahead(1_000, late), None);
    assert_eq!(job_record(4_901).ahead(1_000, late), Some(4_901));
    // A pause that ends then would decide the same slots.
    let paused = job_record(1_000).pausing("h".into(), "t".into(), WRITE).unwrap();
    assert_eq!(paused.ahead(1_000, Duration::ZERO), None);
    assert_eq!(paused.resuming(9_000, WRITE).unwrap().ahead(1_000, Duration::ZERO), Some(9_000));
}

#[test]
fn what_was_settled_by_a_wrong_clock_is_set_back() {
    let dropped = [
        range(60, 120, DropReason::Missed),
        range(600, 90_000, DropReason::Missed),
        range(95_000, 95_000, DropReason::Paused),
    ];
    let wrong = job_record(100).with_account(&account(99_000, &dropped, &[240, 96_000]), WRITE);
    let right = wrong.going_on(Some(&Every(60)), 1_000, WRITE).unwrap();
    assert_eq!((right.settled, right.since, &right.open[..]), (1_000, 100, &[240][..]));
    // 600, 660, … 960: the next look takes off those that have a record.
    let cut = DroppedRange { first: 600, last: 960, count: 7, why: DropReason::Missed, counting: true };
    assert_eq!(right.dropped, [dropped[0], cut]);
    assert_eq!(right.going_on(Some(&Every(60)), 1_000, WRITE), None, "it goes on already");
    assert_eq!(JobRecord::decode(&name("j"), &right.encode()).unwrap(), right, "it can be read");
    // Without the calendar nothing is set back, and neither is a record that is not ahead.
    assert_eq!(wrong.going_on(None, 1_000, WRITE), None);
    assert_eq!(job_record(1_300).going_on(Some(&Every(60)), 1_000, WRITE), None);
}

/// A newer schedule cannot count slots that were dropped before it: their count stays.
#[test]
fn what_another_schedule_dropped_is_kept_where_it_is_cut() {
    let dropped = [range(605, 90_000, DropReason::Missed)];
    let mut changed = job_record(100).with_account(&account(99_000, &dropped, &[]), WRITE);
    (changed.since, changed.schedule) = (99_000, "daily".into());
    let right = changed.going_on(Some(&Every(86_400)), 1_000, WRITE).unwrap();
    assert_eq!(right.dropped, [DroppedRange { last: 1_000, ..dropped[0] }]);
    assert_eq!((right.settled, right.since), (1_000, 1_000));
}

#[test]
fn what_never_began_is_not_counted_twice_where_a_range_is_cut() {
    let dropped = [
        range(600, 90_000, DropReason::Missed),
        DroppedRange { count: 1, ..range(720, 720, DropReason::Missed) },
    ];
    let wrong = job_record(100).with_account(&account(99_000, &dropped, &[]), WRITE);
    let right = wrong.going_on(Some(&Every(60)), 1_000, WRITE).unwrap();
    assert_eq!(right.dropped.iter().map(|range| range.count).collect::<Vec<_>>(), [6, 1]);
}

#[test]
fn a_pause_and_a_wrong_clock_end_together() {
    let paused = job_record(99_000).pausing("h".into(), "t".into(), WRITE).unwrap();
    let on = paused.going_on(Some(&Every(60)), 1_000, WRITE).unwrap();
    assert_eq!((on.settled, on.since, on.paused.unwrap().until), (1_000, 1_000, Some(1_000)));
    // Resumed by the wrong clock, and no scheduler has looked since.
    let resumed =
        job_record(900).pausing("h".into(), "t".into(), WRITE).unwrap().resuming(99_000, WRITE).unwrap();
    let on = resumed.going_on(Some(&Every(60)), 1_000, WRITE).unwrap();
    assert_eq!((on.settled, on.paused.unwrap().until), (900, Some(1_000)));
    // Without the calendar only the pause ends.
    let on = paused.going_on(None, 1_000, WRITE).unwrap();
    assert_eq!((on.settled, on.paused.unwrap().until), (99_000, Some(1_000)));
}
