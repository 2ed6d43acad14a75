use alloc::vec;

use super::*;
use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::name::Name;
use crate::record::{BODY_MAX, Hold, Holder};
use crate::rules::{Claim, ClaimDecision, Rules, Standard, View};

fn holder() -> Holder {
    Holder {
        host: "mac".into(),
        pid: 8123,
        run: "r".into(),
        job: "site".into(),
        since: "then".into(),
        slot: None,
    }
}

fn held(token: u64) -> LeaseRecord {
    LeaseRecord {
        lease: Name::new("site").unwrap(),
        epoch: Epoch::first(1),
        token: Token::new(token).unwrap(),
        write: WriteId(1),
        instance: "i".into(),
        hold: Some(Hold { grant: Grant(1), ttl: Duration::from_secs(90), revoke: false, lock: None }),
        holder: holder(),
        past: Vec::new(),
        more: Default::default(),
    }
}

fn end(outcome: &'static str, exit: Option<i32>) -> HoldEnd {
    HoldEnd { outcome, exit, took: Some(Duration::from_millis(1_200)), at: "2026-11-15T14:02:11Z".into() }
}

fn released(record: &LeaseRecord, end: Option<&HoldEnd>) -> LeaseRecord {
    noted(Standard.release(record, WriteId(2)), end)
}

/// The record after a claim, at this age.
fn claimed(record: &LeaseRecord, age: u64) -> LeaseRecord {
    let claim = Claim {
        lease: record.lease.clone(),
        grant: Grant(2),
        epoch: 9,
        write: WriteId(3),
        ttl: Duration::from_secs(90),
        lock: None,
        holder: Holder { host: "pc".into(), since: "2026-11-15T15:00:00Z".into(), ..holder() },
    };
    let view = View::at_a_glance(record, Some(Duration::from_secs(age)), Duration::ZERO, "i");
    match Standard.acquire(&view, &claim) {
        ClaimDecision::Take(taken) => taken,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_says_how_the_hold_ended() {
    let freed = released(&held(42), Some(&end("failed", Some(3))));
    assert_eq!(freed.past, ["42 failed 3 1200 2026-11-15T14:02:11Z site mac/8123"]);
    let read = PastHold::read(&freed.past[0]).unwrap();
    assert_eq!((read.token, read.outcome, read.exit), (42, "failed", Some(3)));
    assert_eq!((read.took, read.at), (Some(Duration::from_millis(1_200)), "2026-11-15T14:02:11Z"));
    assert_eq!((read.job, read.holder), ("site", "mac/8123"));
    assert!(released(&held(42), None).past.is_empty());
}

#[test]
fn a_renewal_carries_them_and_so_does_a_grant() {
    let freed = released(&held(42), Some(&end("ok", Some(0))));
    let next = claimed(&freed, 1);
    assert_eq!(next.past, freed.past);
    assert_eq!(Standard.renew(&next, WriteId(4)).past, freed.past);
    let again = released(&next, Some(&end("killed", None)));
    assert_eq!(again.past.len(), 2);
    assert_eq!(again.past[1], "43 killed - 1200 2026-11-15T14:02:11Z site pc/8123");
}

#[test]
fn who_takes_over_notes_once_that_the_holder_never_reported() {
    let taken = claimed(&held(42), 91);
    assert_eq!(taken.past, ["42 unknown - - 2026-11-15T15:00:00Z site mac/8123"]);
    // The next holder adds its own line; token 42 keeps its one line.
    let freed = released(&taken, Some(&end("ok", Some(0))));
    assert_eq!(freed.past.len(), 2);
    assert_eq!(claimed(&freed, 1).past, freed.past);
    // The record of a slot says so.
    let slot = Some("2026-11-15T14:00:00Z".into());
    let slotted = LeaseRecord { holder: Holder { slot, ..holder() }, ..held(42) };
    assert!(claimed(&slotted, 91).past.is_empty());
}

#[test]
fn the_newest_are_kept() {
    let mut record = held(1);
    for token in 1..=20 {
        record = LeaseRecord { past: record.past, ..held(token) };
        record = released(&record, Some(&end("ok", Some(0))));
        assert!(fits(&record.past));
    }
    let tokens: Vec<u64> = record.past.iter().map(|line| PastHold::read(line).unwrap().token).collect();
    assert_eq!(tokens, [13, 14, 15, 16, 17, 18, 19, 20]);
}

#[test]
fn texts_are_cut_so_that_a_record_stays_readable() {
    let long = "ä \"\\\u{1}\n".repeat(1_000);
    let mut record = held(1);
    for token in (Token::MAX - 20)..=Token::MAX {
        let holder = Holder { host: long.clone(), job: long.clone(), pid: u32::MAX, ..holder() };
        record = LeaseRecord { past: record.past, holder, ..held(token) };
        let took = Some(Duration::MAX);
        let end = HoldEnd { outcome: "released", exit: Some(i32::MIN), took, at: long.clone() };
        record = released(&record, Some(&end));
    }
    assert_eq!(record.past.len(), MOST);
    assert!(fits(&record.past), "{:?}", record.past);
    for line in &record.past {
        let read = PastHold::read(line).unwrap();
        assert!(read.job.starts_with("ä_____ä") && read.job.len() <= TEXT_MAX, "{line}");
        assert_eq!(read.took, Some(Duration::from_millis(u64::MAX)));
    }
    // The most and longest lines leave room for the rest of the record.
    let worst = LeaseRecord { past: vec!["\u{1}".repeat(LINE_MAX); MOST], ..held(1) };
    assert!(worst.encode().len() + 2_048 < BODY_MAX, "{}", worst.encode().len());
    let name = Name::new("site").unwrap();
    assert_eq!(LeaseRecord::decode(&name, &worst.encode()), Ok(worst.clone()));
    for past in [vec!["x".repeat(LINE_MAX + 1)], vec!["x".into(); MOST + 1]] {
        assert!(LeaseRecord::decode(&name, &LeaseRecord { past, ..worst.clone() }.encode()).is_err());
    }
}

#[test]
fn a_record_from_before_there_was_a_past_is_read() {
    let text = String::from_utf8(held(42).encode()).unwrap();
    assert!(!text.contains("past"), "{text}");
    assert_eq!(LeaseRecord::decode(&Name::new("site").unwrap(), text.as_bytes()), Ok(held(42)));
}

#[test]
fn what_is_no_line_of_ours_is_not_read() {
    for line in
        ["", "42", "x ok 0 1 t j h/1", "42 ok 0 1 t j", "42 ok zero 1 t j h/1", "42 ok 0 1 t j h/1 more"]
    {
        assert_eq!(PastHold::read(line), None, "{line}");
    }
}
