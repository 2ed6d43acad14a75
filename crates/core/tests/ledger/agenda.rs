//! The record of a job: what has a past, what is settled, and what a scheduler does about a slot.

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::agenda::{
    Account, Agenda, OPEN_MAX, Paused, RANGES_MAX, Range, Turn, Way, Why, seen, stuck, turn,
};

use super::*;

const WRITE: WriteId = WriteId(9);

fn agenda(settled: i64) -> Agenda {
    seen(None, &name("j"), "every 1m", settled, &[], WRITE).unwrap()
}

fn range(first: i64, last: i64, why: Why) -> Range {
    Range { first, last, count: (last - first + 1).unsigned_abs(), why, counting: false }
}

fn account(upto: i64, dropped: &[Range], open: &[i64], follows: bool) -> Account {
    Account { upto, dropped: dropped.to_vec(), open: open.to_vec(), follows }
}

#[test]
fn what_is_new_or_changed_has_no_past() {
    let known = agenda(100);
    assert_eq!(known.settled, 100);
    assert_eq!(seen(Some(&known), &name("j"), "every 1m", 500, &[], WRITE), None);
    let changed = seen(Some(&known), &name("j"), "every 2m", 500, &[130], WRITE).unwrap();
    assert_eq!((changed.settled, &changed.open[..]), (500, &[130][..]));
    assert!(changed.is_settled(120) && !changed.is_settled(130), "a run is at it");
    // A clock that is behind takes nothing back.
    assert_eq!(seen(Some(&known), &name("j"), "every 2m", 50, &[], WRITE).unwrap().settled, 100);
}

#[test]
fn an_account_is_one_write() {
    let before = agenda(10);
    let first =
        before.with_account(&account(20, &[range(12, 14, Why::Missed)], &[15], false), WRITE).unwrap();
    assert_eq!((first.settled, first.open.clone()), (20, vec![15]));
    assert!(first.is_settled(13) && first.is_settled(20) && !first.is_settled(15) && !first.is_settled(21));
    assert_eq!(first.range_of(13).map(|range| range.count), Some(3));
    assert_eq!(first.range_of(15), None);
    // What follows directly is one range, if it is for the same reason; otherwise there is a record in between.
    let more = |why, follows| {
        let next = first.with_account(&account(30, &[range(21, 30, why)], &[], follows), WRITE).unwrap();
        next.dropped.iter().map(|range| (range.first, range.last, range.count)).collect::<Vec<_>>()
    };
    assert_eq!(more(Why::Missed, true), [(12, 30, 13)]);
    assert_eq!(more(Why::Missed, false), [(12, 14, 3), (21, 30, 10)]);
    assert_eq!(more(Why::Paused, true), [(12, 14, 3), (21, 30, 10)]);
    // It does not go back.
    assert_eq!(first.with_account(&account(5, &[], &[], false), WRITE).unwrap().settled, 20);
    assert_eq!(Agenda::decode(&name("j"), &first.encode()), Ok(first.clone()));
    assert!(Agenda::decode(&name("k"), &first.encode()).is_err());
}

#[test]
fn what_grows_has_an_end() {
    let open: Vec<i64> = (0..OPEN_MAX as i64).collect();
    let full = agenda(1_000).with_account(&account(1_000, &[], &open, false), WRITE).unwrap();
    assert_eq!(full.with_open(999, WRITE), None);
    assert!(full.with_open(5, WRITE).is_some(), "it is listed");
    assert!(full.without_open(&[5], WRITE).with_open(999, WRITE).is_some());
    let ranges: Vec<Range> =
        (0..RANGES_MAX as i64 + 7).map(|at| range(2 * at, 2 * at, Why::Missed)).collect();
    let many = agenda(0).with_account(&account(9_999, &ranges, &[], false), WRITE).unwrap();
    assert_eq!((many.dropped.len(), many.dropped[0].first), (RANGES_MAX, 14), "the oldest are forgotten");
    let mut widest = full.with_account(&account(9_999, &ranges, &[], false), WRITE).unwrap();
    widest.paused = Some(Paused { by: "x".repeat(200), at: "x".repeat(30), until: Some(i64::MAX) });
    assert!(Agenda::decode(&name("j"), &widest.encode()).is_ok(), "{} bytes", widest.encode().len());
}

#[test]
fn what_turned_out_to_be_begun_is_not_dropped() {
    let uncertain = Range { counting: true, ..range(12, 14, Why::Missed) };
    let before = agenda(10).with_account(&account(20, &[uncertain], &[], false), WRITE).unwrap();
    let after = before.with_count(&uncertain, 2, &[13], WRITE);
    assert_eq!((after.dropped[0].count, after.dropped[0].counting, &after.open[..]), (2, false, &[13][..]));
    assert!(before.with_count(&uncertain, 0, &[], WRITE).dropped.is_empty());
}

#[test]
fn a_slot_gives_way_only_after_a_run_of_it_was_tried() {
    use Turn::{Start, Wait, WaveOff};
    for (ways, tried, begun, skips, expected) in [
        (&[Way::Other][..], false, false, true, Start),
        (&[Way::Other], true, false, true, WaveOff),
        (&[Way::Other], true, false, false, Wait),
        // It has a record: it is not for a scheduler to end it.
        (&[Way::Other], true, true, true, Wait),
        (&[Way::Ours], false, false, true, Wait),
        (&[Way::Ours], true, false, true, Wait),
        (&[Way::Free], true, false, true, Start),
        (&[Way::Other, Way::Free], true, false, true, Start),
        (&[Way::Other, Way::Ours], true, false, true, Wait),
        (&[Way::Other, Way::Other], true, false, true, WaveOff),
    ] {
        assert_eq!(turn(ways, tried, begun, skips), expected, "{ways:?} {tried} {begun} {skips}");
    }
}

#[test]
fn three_that_gave_way_in_a_row_are_no_accident() {
    let slot = |said: &str, state| {
        let ask = ask(Grant(1), 0, IfUnknown::Refuse);
        let leasehold_core::ledger::Verdict::Begin(entry) =
            leasehold_core::ledger::begin(None, &ask, None, WRITE)
        else {
            panic!()
        };
        finish(&entry, state, Ending { said: said.into(), ..ending(0) })
    };
    let gave_way = slot("overlap: l0 was held", State::Skipped);
    let (done, ok) = (slot("done: k", State::Skipped), slot("", State::Ok));
    assert_eq!(stuck([&gave_way, &gave_way, &gave_way, &ok].into_iter()), Some(3));
    assert_eq!(stuck([&gave_way, &gave_way, &ok, &gave_way].into_iter()), None);
    assert_eq!(stuck([&done, &done, &done].into_iter()), None);
}
