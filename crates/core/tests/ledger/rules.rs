//! Single decisions, and the record.

use leasehold_core::ids::WriteId;
use leasehold_core::ledger::{BadEntry, Doubt, ENTRY_MAX, Found, Verdict, begin, retry, step_done};

use super::*;

fn entry(state: State) -> Entry {
    let Verdict::Begin(started) = begin(None, &ask(Grant(1), 0, IfUnknown::Refuse), None, WriteId(1)) else {
        panic!("nothing stands in the way")
    };
    if state == State::Started { started } else { finish(&started, state, ending(1)) }
}

#[test]
fn a_provider_that_forgets_is_not_asked_again() {
    let found = entry(State::Unknown);
    let age = |seconds| Found { entry: &found, age: seconds };
    let within = |d| Ask {
        claim: claim(Grant(2), 0),
        ..ask(Grant(2), 0, IfUnknown::RetryWithin(Duration::from_secs(d)))
    };
    let verdict = |seconds: Option<u64>, d| {
        begin(Some(age(seconds.map(Duration::from_secs))), &within(d), None, WriteId(2))
    };
    assert!(matches!(verdict(Some(59), 60), Verdict::Begin(e) if e.attempt == 2));
    let since_first = Duration::from_secs(60);
    assert!(matches!(verdict(Some(60), 60), Verdict::Unknown(_, d) if d == Doubt::TooLate { since_first }));
    assert!(matches!(verdict(None, 60), Verdict::Unknown(_, Doubt::NoClock)));
    // Time goes on from the first beginning, however often it is begun again.
    let Verdict::Begin(second) = verdict(Some(40), 60) else { panic!() };
    assert_eq!(second.since_first, Some(Duration::from_secs(40)));
}

#[test]
fn failed_too_often_waits_for_a_person() {
    let mut found = entry(State::Failed);
    let other = ask(Grant(2), 0, IfUnknown::Retry);
    for failures in 1..=3 {
        found.failures = failures;
        let verdict = begin(Some(Found { entry: &found, age: None }), &other, None, WriteId(2));
        assert_eq!(verdict == Verdict::Quarantined, failures == 3);
    }
    let again = retry(&found, false).unwrap();
    assert_eq!((again.state, again.failures, again.attempt), (State::Planned, 0, 1));
    assert!(matches!(
        begin(Some(Found { entry: &again, age: None }), &other, None, WriteId(2)),
        Verdict::Begin(_)
    ));
    assert_eq!(retry(&entry(State::Ok), false), None);
    assert_eq!(retry(&entry(State::Started), true), None);
    assert!(retry(&entry(State::Started), false).is_some());
}

#[test]
fn steps_are_kept_for_the_next_run() {
    let started = entry(State::Started);
    let with = step_done(&started, "charge", Some("id 7".into())).unwrap();
    assert_eq!(step_done(&with, "charge", None), None);
    let other = ask(Grant(2), 0, IfUnknown::RetryWithSteps);
    let found = |entry| begin(Some(Found { entry, age: None }), &other, None, WriteId(2));
    assert!(matches!(found(&with), Verdict::Begin(e) if e.steps == with.steps && e.attempt == 2));
    assert!(matches!(found(&started), Verdict::Unknown(_, Doubt::NotAsked)));
}

#[test]
fn records_are_read_strictly() {
    let mut with = step_done(&entry(State::Started), "charge", Some("id 7".into())).unwrap();
    with.subject = Subject::Slot { job: name("j"), at: 60, id: "1970-01-01T00:01:00Z".into() };
    for good in [with.clone(), entry(State::Failed), entry(State::Started)] {
        assert_eq!(Entry::decode(&good.encode().unwrap()), Ok(good));
    }
    assert_eq!(
        Entry::decode_of(&Subject::Key("other".into()), &with.encode().unwrap()),
        Err(BadEntry::Other)
    );
    let text = String::from_utf8(entry(State::Failed).encode().unwrap()).unwrap();
    assert!(text.starts_with(r#"{"leasehold_item":1,"item":{"key":"k"},"state":"failed","#), "{text}");
    assert_eq!(Entry::decode(text.replace("item\":1", "item\":2").as_bytes()), Err(BadEntry::Newer(2)));
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
