//! Single decisions about items, and their record.

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::job_record::{Prospect, prospect};
use leasehold_core::ledger::{
    BadEntry, ENTRY_MAX, FoundEntry, ItemVerdict, NextRun, RetryDoubt, SILENCES, SettleReason, StepStands,
    begin, key_if_unknown, next_run, retry, shown_state, slot_without_key, step_done, step_stands,
};

use super::*;

fn entry(state: ItemState) -> Entry {
    let ItemVerdict::Begin(started) = begin(None, &ask(Grant(1), 0, IfUnknown::Refuse), None, WriteId(1))
    else {
        panic!("nothing stands in the way")
    };
    if state == ItemState::Started { started } else { finish(&started, state, ending(1)) }
}

#[test]
fn a_provider_that_forgets_is_not_asked_again() {
    let found = entry(ItemState::Unknown);
    let age = |seconds| FoundEntry { entry: &found, age: seconds };
    let within = |d| ItemRequest {
        claim: claim(Grant(2), 0),
        ..ask(Grant(2), 0, IfUnknown::RetryWithin(Duration::from_secs(d)))
    };
    let verdict = |seconds: Option<u64>, d| {
        begin(Some(age(seconds.map(Duration::from_secs))), &within(d), None, WriteId(2))
    };
    assert!(matches!(verdict(Some(59), 60), ItemVerdict::Begin(e) if e.attempt == 2));
    let since_first = Duration::from_secs(60);
    assert!(
        matches!(verdict(Some(60), 60), ItemVerdict::Unknown(_, d) if d == RetryDoubt::TooLate { since_first })
    );
    assert!(matches!(verdict(None, 60), ItemVerdict::Unknown(_, RetryDoubt::NoClock)));
    // The time counts from the first start, even if the item is started again.
    let ItemVerdict::Begin(second) = verdict(Some(40), 60) else { panic!() };
    assert_eq!(second.since_first, Some(Duration::from_secs(40)));
}

#[test]
fn failed_too_often_waits_for_a_person() {
    let mut found = entry(ItemState::Failed);
    let other = ask(Grant(2), 0, IfUnknown::Retry);
    for failures in 1..=3 {
        found.failures = failures;
        let verdict = begin(Some(FoundEntry { entry: &found, age: None }), &other, None, WriteId(2));
        assert_eq!(verdict == ItemVerdict::Quarantined, failures == 3);
    }
    let again = retry(&found, false).unwrap();
    assert_eq!((again.state, again.failures, again.attempt), (ItemState::Planned, 0, 1));
    assert!(matches!(
        begin(Some(FoundEntry { entry: &again, age: None }), &other, None, WriteId(2)),
        ItemVerdict::Begin(_)
    ));
    assert_eq!(retry(&entry(ItemState::Ok), false), None);
    assert_eq!(retry(&entry(ItemState::Started), true), None);
    assert!(retry(&entry(ItemState::Started), false).is_some());
}

#[test]
fn an_item_with_unknown_outcomes_is_not_run_without_end() {
    let ask = |attempts| ItemRequest { attempts, ..ask(Grant(2), 0, IfUnknown::Retry) };
    let begins = |found: &Entry, attempts| match begin(
        Some(FoundEntry { entry: found, age: None }),
        &ask(attempts),
        None,
        WriteId(2),
    ) {
        ItemVerdict::Begin(entry) => Ok(entry),
        ItemVerdict::Unknown(entry, doubt) => Err((Box::new(entry), doubt)),
        other => panic!("{other:?}"),
    };
    let mut found = entry(ItemState::Killed);
    for silences in 1..SILENCES {
        found = begins(&found, 1).unwrap();
        assert_eq!((found.state, found.silences), (ItemState::Started, silences));
        found = finish(&found, ItemState::Killed, ending(1));
    }
    let (left, doubt) = begins(&found, 1).unwrap_err();
    assert_eq!((*left, doubt), (found.clone(), RetryDoubt::TooOften { silences: SILENCES }));
    assert!(begins(&found, SILENCES + 1).is_ok(), "it may fail more often than that");
    // A step that is done resets the count, and so does a person's request.
    let on = step_done(&Entry { state: ItemState::Started, ending: None, ..found.clone() }, "charge", None)
        .unwrap();
    assert_eq!(begins(&finish(&on, ItemState::Killed, ending(1)), 1).unwrap().silences, 1);
    assert_eq!(begins(&retry(&found, false).unwrap(), 1).unwrap().silences, 0);
    // A failure is not an unknown outcome.
    assert_eq!(
        begins(&Entry { state: ItemState::Failed, failures: 1, ..found }, 9).unwrap().silences,
        SILENCES - 1
    );
}

#[test]
fn a_run_is_started_if_only_a_run_can_tell() {
    let found = entry(ItemState::Started);
    let other = ItemRequest { claim: claim(Grant(2), 1), ..ask(Grant(2), 1, IfUnknown::Retry) };
    let seen = FoundEntry { entry: &found, age: None };
    let of = |alive| prospect(seen, &other, alive, WriteId(2));
    assert!(matches!(of(None), Prospect::AskLease(..)));
    assert_eq!(
        [of(Some(Alive::Yes)), of(Some(Alive::Perhaps)), of(Some(Alive::No))],
        [Prospect::Taken, Prospect::Open, Prospect::Open]
    );
    // A run with another lease leaves the item alone.
    assert_eq!(begin(Some(seen), &other, Some(Alive::Perhaps), WriteId(2)), ItemVerdict::InProgress);
}

#[test]
fn the_next_run_is_foretold_by_the_rule() {
    let failed = |failures| Entry { failures, ..entry(ItemState::Failed) };
    let silent = entry(ItemState::Unknown);
    let on =
        step_done(&Entry { state: ItemState::Started, ending: None, ..silent.clone() }, "a", None).unwrap();
    let next = |entry: &Entry, if_unknown| next_run(entry, if_unknown, 3);
    for (entry, if_unknown, told) in [
        (&failed(2), IfUnknown::Refuse, NextRun::TriesAgain),
        (&failed(3), IfUnknown::Refuse, NextRun::FailedTooOften),
        (&silent, IfUnknown::Refuse, NextRun::Unknown(RetryDoubt::NotAsked)),
        (&silent, IfUnknown::RetryWithSteps, NextRun::Unknown(RetryDoubt::NotAsked)),
        (&silent, IfUnknown::Retry, NextRun::Repeats),
        (&on, IfUnknown::RetryWithSteps, NextRun::GoesOn),
        (&on, IfUnknown::Retry, NextRun::Repeats),
        (&entry(ItemState::Planned), IfUnknown::Refuse, NextRun::Starts),
        (&entry(ItemState::Ok), IfUnknown::Retry, NextRun::Skips),
        (&entry(ItemState::Skipped), IfUnknown::Retry, NextRun::Skips),
    ] {
        assert_eq!(next(entry, if_unknown), told, "{entry:?}");
    }
}

#[test]
fn a_started_item_whose_run_lost_its_lease_is_shown_as_unknown() {
    let shown = |state, alive| shown_state(&entry(state), || alive);
    assert_eq!(shown(ItemState::Started, Ok(Alive::No)), Ok(ItemState::Unknown));
    assert_eq!(shown(ItemState::Started, Ok(Alive::Perhaps)), Ok(ItemState::Started));
    assert_eq!(shown(ItemState::Started, Err("silence")), Err("silence"));
    assert_eq!(shown(ItemState::Ok, Err("not asked")), Ok(ItemState::Ok));
}

#[test]
fn a_record_is_taken_back_if_nobody_can_tell_whether_its_slot_is_settled() {
    let slot = Subject::Slot { job: name("j"), at: AT, id: "t".into() };
    let mut opening =
        Opening::new(ItemRequest { subject: slot, ..ask(Grant(2), 0, IfUnknown::Refuse) }, 7 << 64);
    assert!(matches!(opening.on_read(Ok(None)), ItemNext::Call(ItemCall::Cas { expected: None, .. })));
    let version = Version("1".into());
    let written = Cas::Written { version: version.clone(), store_time: None };
    assert!(matches!(opening.on_cas(written), ItemNext::Call(ItemCall::ReadSettled(..))));
    assert_eq!(opening.on_settled(Err(unreachable())), ItemNext::Call(ItemCall::Remove(version)));
    assert_eq!(opening.on_removed(), ItemNext::Done(Opened::Failed { failure: unreachable(), sent: true }));
}

/// The slot was settled while a run started it again: no scheduler would look at that run.
#[test]
fn the_record_of_a_slot_decided_meanwhile_is_put_back() {
    let subject = Subject::Slot { job: name("j"), at: AT, id: "t".into() };
    let before = Entry { subject: subject.clone(), ..entry(ItemState::Failed) };
    let stored =
        |entry: &Entry| Stored { body: entry.encode().unwrap(), version: Version("1".into()), age: None };
    let written = || Cas::Written { version: Version("2".into()), store_time: None };
    for (settled, told) in [
        (Ok(true), Opened::Settled),
        (Err(unreachable()), Opened::Failed { failure: unreachable(), sent: true }),
    ] {
        let mut opening = Opening::new(
            ItemRequest { subject: subject.clone(), ..ask(Grant(2), 0, IfUnknown::Refuse) },
            7 << 64,
        );
        assert!(matches!(
            opening.on_read(Ok(Some(stored(&before)))),
            ItemNext::Call(ItemCall::ReadSettled(..))
        ));
        assert!(matches!(opening.on_settled(Ok(false)), ItemNext::Call(ItemCall::Cas { .. })));
        assert!(matches!(opening.on_cas(written()), ItemNext::Call(ItemCall::ReadSettled(..))));
        let ItemNext::Call(ItemCall::Cas { expected, entry }) = opening.on_settled(settled) else { panic!() };
        assert_eq!(expected, Some(Version("2".into())));
        assert_eq!(Entry { write: before.write, ..entry }, before);
        assert_eq!(opening.on_cas(Cas::Conflict), ItemNext::Done(told));
    }
}

#[test]
fn steps_are_kept_for_the_next_run() {
    let started = entry(ItemState::Started);
    let with = step_done(&started, "charge", Some("id 7".into())).unwrap();
    assert_eq!(step_done(&with, "charge", None), None);
    let other = ask(Grant(2), 0, IfUnknown::RetryWithSteps);
    let found = |entry| begin(Some(FoundEntry { entry, age: None }), &other, None, WriteId(2));
    assert!(matches!(found(&with), ItemVerdict::Begin(e) if e.steps == with.steps && e.attempt == 2));
    assert!(matches!(found(&started), ItemVerdict::Unknown(_, RetryDoubt::NotAsked)));
}

#[test]
fn the_outcome_fits_where_the_last_lines_do_not() {
    let printed = Ending { said: "x".repeat(2048), ..ending(1) };
    let whole = finish(&entry(ItemState::Started), ItemState::Failed, printed.clone());
    assert_eq!(whole.ending, Some(printed.clone()));
    let room = ENTRY_MAX - entry(ItemState::Failed).encode().unwrap().len();
    let full = step_done(&entry(ItemState::Started), "charge", Some("x".repeat(room - 1100))).unwrap();
    assert!(full.steps[0].output.is_some());
    let left = finish(&full, ItemState::Failed, printed);
    assert_eq!((&left.ending, left.state, left.failures), (&Some(ending(1)), ItemState::Failed, 1));
    assert!(left.encode().is_some());
}

#[test]
fn a_step_is_done_whether_or_not_it_is_recorded() {
    let none = entry(ItemState::Started);
    assert_eq!(step_stands(&none, &[], "charge"), StepStands::Open);
    let whole = step_done(&none, "charge", Some("7".into())).unwrap();
    let step = whole.steps[0].clone();
    assert_eq!(step_stands(&whole, &[], "charge"), StepStands::Done(step.clone()));
    let unrecorded = [step.clone()];
    assert_eq!(step_stands(&whole, &unrecorded, "charge"), StepStands::Unrecorded(step));
    assert_eq!(step_stands(&whole, &unrecorded, "mail"), StepStands::Open);
}

#[test]
fn steps_leave_room_for_the_ending() {
    let mut full = entry(ItemState::Started);
    let longest = |n: usize| format!("{n:0>128}");
    let mut kept = 0;
    for n in 0..1000 {
        if step_stands(&full, &[], &longest(n)) == StepStands::Full {
            break;
        }
        full = step_done(&full, &longest(n), Some("\"".repeat(2048))).unwrap();
        kept += usize::from(full.steps.last().unwrap().output.is_some());
    }
    assert!(kept > 5 && full.steps.len() > kept, "{kept} of {}", full.steps.len());
    let ending = Ending {
        exit: Some(i32::MIN),
        took_ms: u64::MAX,
        at: "x".repeat(30),
        reason: None,
        said: "x".repeat(2048),
    };
    assert!(finish(&full, ItemState::Failed, ending).encode().is_some());
}

#[test]
fn records_are_read_strictly() {
    let mut with = step_done(&entry(ItemState::Started), "charge", Some("id 7".into())).unwrap();
    with.subject = Subject::Slot { job: name("j"), at: 60, id: "1970-01-01T00:01:00Z".into() };
    for good in [with.clone(), entry(ItemState::Failed), entry(ItemState::Started)] {
        assert_eq!(Entry::decode(&good.encode().unwrap()), Ok(good));
    }
    assert_eq!(
        Entry::decode_of(&Subject::Key("other".into()), &with.encode().unwrap()),
        Err(BadEntry::Other)
    );
    let text = String::from_utf8(entry(ItemState::Failed).encode().unwrap()).unwrap();
    assert!(text.starts_with(r#"{"leasehold_item":1,"item":{"key":"k"},"state":"failed","#), "{text}");
    assert_eq!(Entry::decode(text.replace("item\":1", "item\":3").as_bytes()), Err(BadEntry::Newer(3)));
    for bad in [
        text.replace("\"attempt\":1", "\"attempt\":0"),
        text.replace("\"failed\"", "\"started\""),
        text.replace("\"failed\"", "\"nearly\""),
        text.replace("\"attempt\":1", "\"attempt\":1,\"colour\":1"),
        text.replace("\"key\":\"k\"", "\"key\":\"\""),
        format!("{text}x"),
        String::new(),
    ] {
        assert!(matches!(Entry::decode(bad.as_bytes()), Err(BadEntry::Damaged(_))), "{bad}");
    }
    with.steps[0].output = Some("x".repeat(ENTRY_MAX));
    assert_eq!(with.encode(), None);
}

/// In format 1 the reason was the first word of the text.
#[test]
fn format_1_is_read_and_written_where_it_can_say_it() {
    for (said, state, reason, left) in [
        ("overlap: l0 was held", ItemState::Skipped, Some(SettleReason::Overlap), "l0 was held"),
        ("done: k, by h/1", ItemState::Skipped, Some(SettleReason::Done), "k, by h/1"),
        ("in-progress: k: 2", ItemState::Skipped, Some(SettleReason::InProgress), "k: 2"),
        (
            "skipped: k is not to be run",
            ItemState::Skipped,
            Some(SettleReason::Skipped),
            "k is not to be run",
        ),
        ("by-hand: ann@h", ItemState::Ok, Some(SettleReason::ByHand), "ann@h"),
        ("done: what the job printed", ItemState::Failed, None, "done: what the job printed"),
        ("", ItemState::Ok, None, ""),
    ] {
        let old = Entry { ending: Some(Ending { said: said.into(), ..ending(0) }), ..entry(state) };
        assert_eq!(Entry::decode(&old.encode().unwrap()).as_ref(), Ok(&old), "no reason is made up");
        let old = String::from_utf8(old.encode().unwrap()).unwrap().replace("_item\":2", "_item\":1");
        let read = Entry::decode(old.as_bytes()).unwrap();
        assert_eq!(read.ending, Some(Ending { reason, said: left.into(), ..ending(0) }));
        let anew = read.encode().unwrap();
        let format = if reason.is_some() { 2 } else { 1 };
        assert!(anew.starts_with(format!("{{\"leasehold_item\":{format},").as_bytes()));
        assert_eq!(Entry::decode(&anew), Ok(read));
    }
}

/// An older version counts a record that it cannot read as settled, so only settled items may need format 2.
#[test]
fn what_is_not_settled_is_written_in_format_1() {
    let why = Ending { reason: Some(SettleReason::Overlap), said: "l0 was held".into(), ..ending(0) };
    let skipped = Entry { ending: Some(why), ..entry(ItemState::Skipped) };
    assert!(skipped.encode().unwrap().starts_with(b"{\"leasehold_item\":2,"));
    let open = [
        ItemState::Planned,
        ItemState::Started,
        ItemState::Failed,
        ItemState::Lost,
        ItemState::Killed,
        ItemState::Unknown,
    ];
    let again = retry(&skipped, false).unwrap();
    assert_eq!(again.ending.clone().unwrap().said, "overlap: l0 was held");
    for entry in open.map(entry).into_iter().chain([again]) {
        assert!(entry.encode().unwrap().starts_with(b"{\"leasehold_item\":1,"), "{entry:?}");
    }
}

/// This version keeps the additions of a later one.
#[test]
fn additions_are_carried_along() {
    let body = String::from_utf8(entry(ItemState::Failed).encode().unwrap()).unwrap();
    let body = body.replace("\"write\":", "\"more\":{\"colour\":{\"of\":[1,\"x\"]}},\"write\":");
    assert!(Entry::decode(body.as_bytes()).is_err(), "format 1 has no place for them");
    let read = Entry::decode(body.replace("_item\":1", "_item\":2").as_bytes()).unwrap();
    let next = finish(&retry(&read, false).unwrap(), ItemState::Ok, ending(0));
    let text = String::from_utf8(next.encode().unwrap()).unwrap();
    assert!(text.contains(r#""more":{"colour":{"of":[1,"x"]}}"#), "{text}");
}

#[test]
fn a_slot_says_why_its_key_was_not_begun() {
    let whole = |state| Entry { failures: 3, ..entry(state) };
    let failure = Failure::new(FailureKind::Unreachable, "lost");
    for (opened, state, reason) in [
        (Opened::Done(whole(ItemState::Ok)), ItemState::Skipped, Some(SettleReason::Done)),
        (Opened::Skipped(whole(ItemState::Skipped)), ItemState::Skipped, Some(SettleReason::Skipped)),
        (Opened::InProgress(whole(ItemState::Started)), ItemState::Skipped, Some(SettleReason::InProgress)),
        (Opened::Unknown(whole(ItemState::Lost), RetryDoubt::NotAsked), ItemState::Failed, None),
        (Opened::Quarantined(whole(ItemState::Failed)), ItemState::Failed, None),
        (Opened::Bad(BadEntry::Other), ItemState::Failed, None),
        (Opened::Failed { failure, sent: true }, ItemState::Failed, None),
    ] {
        let (left, why, said) = slot_without_key("k", &opened).unwrap();
        assert_eq!((left, why), (state, reason), "{opened:?}");
        assert!(said.contains('k'), "{said}");
    }
    let begun = Opened::Begun(entry(ItemState::Started), Version("1".into()));
    assert_eq!(slot_without_key("k", &begun), None);
}

#[test]
fn the_slot_decides_about_silence() {
    let within = IfUnknown::RetryWithin(Duration::from_secs(60));
    for (own, silent, asked) in [
        (IfUnknown::Refuse, false, IfUnknown::Refuse),
        (IfUnknown::Retry, false, IfUnknown::Retry),
        (IfUnknown::RetryWithSteps, false, IfUnknown::RetryWithSteps),
        // The slot has the steps.
        (IfUnknown::RetryWithSteps, true, IfUnknown::Retry),
        (IfUnknown::Retry, true, IfUnknown::Retry),
        // The provider knows the key since the key's first start.
        (within, true, within),
        (within, false, within),
    ] {
        assert_eq!(key_if_unknown(own, silent), asked, "{own:?}, {silent}");
    }
}

/// Whether an opening that found this record started the item, and whether it knew that the outcome before
/// was unknown.
fn opened(found: Option<Entry>, grant: Grant, lost_answer: bool) -> (bool, bool) {
    let mut opening = Opening::new(ask(grant, 0, IfUnknown::Retry), 7 << 64);
    let stored = |entry: &Entry, version: &str| Stored {
        body: entry.encode().unwrap(),
        version: Version(version.into()),
        age: None,
    };
    let next = opening.on_read(Ok(found.map(|entry| stored(&entry, "1"))));
    let ItemNext::Call(ItemCall::Cas { entry, .. }) = next else { return (false, opening.after_silence()) };
    let next = if lost_answer {
        let lost = Failure::new(FailureKind::Unreachable, "lost");
        assert_eq!(opening.on_cas(Cas::Unknown(lost)), ItemNext::Call(ItemCall::Read));
        opening.on_read(Ok(Some(stored(&entry, "2"))))
    } else {
        opening.on_cas(Cas::Written { version: Version("2".into()), store_time: None })
    };
    (matches!(next, ItemNext::Done(Opened::Begun(..))), opening.after_silence())
}

#[test]
fn an_opening_knows_whether_it_ended_a_silence() {
    for lost_answer in [false, true] {
        for (state, silent) in [
            (ItemState::Started, true),
            (ItemState::Unknown, true),
            (ItemState::Lost, true),
            (ItemState::Killed, true),
            (ItemState::Failed, false),
            (ItemState::Planned, false),
        ] {
            assert_eq!(opened(Some(entry(state)), Grant(2), lost_answer), (true, silent), "{state:?}");
        }
        assert_eq!(opened(None, Grant(2), lost_answer), (true, false));
        // Our own earlier write is no unknown outcome.
        assert_eq!(opened(Some(entry(ItemState::Started)), Grant(1), lost_answer), (true, false));
    }
    assert_eq!(opened(Some(entry(ItemState::Ok)), Grant(2), false), (false, false));
}

/// The result of a run that closes its item, expects version 1 and finds this instead.
fn closed(found: &Entry, late: bool) -> ItemNext<Amended> {
    let ours = finish(&entry(ItemState::Started), ItemState::Ok, ending(0));
    let mut amending = Amending::by_run(Version("1".into()), ours, 7 << 64);
    amending.start();
    let answer =
        if late { Cas::Unknown(Failure::new(FailureKind::Unreachable, "lost")) } else { Cas::Conflict };
    assert_eq!(amending.on_cas(answer), ItemNext::Call(ItemCall::Read));
    let stored = Stored { body: found.encode().unwrap(), version: Version("2".into()), age: None };
    amending.on_read(Ok(Some(stored)))
}

#[test]
fn a_run_is_not_overtaken_by_itself() {
    let step = step_done(&entry(ItemState::Started), "charge", Some("id 7".into())).unwrap();
    let step = Entry { write: WriteId(99), ..step };
    for late in [false, true] {
        let ItemNext::Call(ItemCall::Cas { expected, entry }) = closed(&step, late) else {
            panic!("overtaken")
        };
        assert_eq!(expected, Some(Version("2".into())));
        assert_eq!((entry.state, &entry.steps), (ItemState::Ok, &step.steps));
    }
    // Another run or a person has changed it.
    let other = Entry { claim: claim(Grant(2), 0), ..step.clone() };
    for found in [other, retry(&step, false).unwrap(), entry(ItemState::Lost)] {
        let found = Entry { write: WriteId(99), ..found };
        assert_eq!(closed(&found, false), ItemNext::Done(Amended::Superseded(Some(found))));
    }
    // A change on behalf of a run that is gone does not go on from that run's writes.
    let mut person = Amending::new(Version("1".into()), retry(&step, false).unwrap(), 7 << 64);
    person.start();
    assert_eq!(person.on_cas(Cas::Conflict), ItemNext::Call(ItemCall::Read));
    let stored = Stored { body: step.encode().unwrap(), version: Version("2".into()), age: None };
    assert_eq!(person.on_read(Ok(Some(stored))), ItemNext::Done(Amended::Superseded(Some(step))));
}

/// A machine slept until its lease had expired. Another run took this one for dead; then the machine woke up, and the
/// lease was still there.
#[test]
fn a_run_that_was_taken_for_dead_closes_its_item() {
    let step = step_done(&entry(ItemState::Started), "charge", Some("id 7".into())).unwrap();
    let dead = Entry { state: ItemState::Unknown, write: WriteId(99), ..step.clone() };
    let ItemNext::Call(ItemCall::Cas { expected, entry }) = closed(&dead, false) else { panic!("overtaken") };
    assert_eq!(expected, Some(Version("2".into())));
    assert_eq!((entry.state, &entry.steps), (ItemState::Ok, &step.steps));
    // Of another run it knows nothing.
    let other = Entry { claim: claim(Grant(2), 0), ..dead };
    assert_eq!(closed(&other, false), ItemNext::Done(Amended::Superseded(Some(other))));
}

#[test]
fn a_step_that_landed_is_not_written_twice() {
    let step = step_done(&entry(ItemState::Started), "charge", None).unwrap();
    let mut again = Amending::by_run(Version("1".into()), step.clone(), 7 << 64);
    again.start();
    assert_eq!(again.on_cas(Cas::Conflict), ItemNext::Call(ItemCall::Read));
    let landed = Entry { write: WriteId(99), ..step };
    let stored = Stored { body: landed.encode().unwrap(), version: Version("2".into()), age: None };
    assert_eq!(again.on_read(Ok(Some(stored))), ItemNext::Done(Amended::Done(landed, Version("2".into()))));
}
