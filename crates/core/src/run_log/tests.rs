use super::*;

fn record(seconds: u64, job: &str) -> LogRecord {
    let holder = Holder {
        host: "Mac-Mini.local".into(),
        pid: 8123,
        run: "mac-8123-a1".into(),
        job: job.into(),
        since: "2026-11-15T14:02:11Z".into(),
        slot: None,
    };
    let at = Duration::from_secs(seconds);
    LogRecord {
        exit: Some(0),
        took: Some(Duration::from_millis(1200)),
        token: Token::new(42),
        ..LogRecord::new(at, LogEvent::Ok, Name::new(job).unwrap(), LogId::of(7), holder)
    }
}

const NIGHT: u64 = 1_795_057_400;

#[test]
fn a_record_is_read_back() {
    let item = Subject::Slot { job: Name::new("site").unwrap(), at: 1_795_057_200, id: "x".into() };
    let refused = RefusedWrite { target: "file:x".into(), fence: Token::new(43) };
    for record in [
        record(NIGHT, "site"),
        LogRecord { item: Some(item), reason: Some("overlap".into()), ..record(NIGHT, "team/site") },
        LogRecord { target: Some(refused), event: LogEvent::Refused, exit: None, ..record(NIGHT, "a") },
        LogRecord { more: additions::some(), ..record(NIGHT, "a") },
    ] {
        assert_eq!(LogRecord::decode(&record.encode()), Ok(record.clone()));
        let line = LogLine::read(&record.key()).unwrap();
        assert_eq!(line, LogLine { host: "mac-mini-local".into(), ..record.line() }, "{}", record.key());
    }
}

#[test]
fn every_event_has_a_word_of_its_own() {
    for event in LogEvent::ALL {
        assert_eq!(LogEvent::parse(event.word()), Some(event));
        assert_eq!(serde_json::to_string(&event).unwrap(), format!("\"{}\"", event.word()));
    }
}

#[test]
fn keys_of_a_job_sort_newest_first_and_apart_from_other_jobs() {
    let times = [NIGHT + 90_000, NIGHT + 1, NIGHT, NIGHT - 1, NIGHT - 90_000, 0];
    let keys = |job: &str| times.iter().map(|at| record(*at, job).key()).collect::<Vec<_>>();
    assert!(keys("site").is_sorted(), "{:?}", keys("site"));
    let site = Name::new("site").unwrap();
    for other in ["site/north", "site.b", "site-b", "si", "sites"] {
        for key in keys(other) {
            let day = day_of(LogLine::read(&key).unwrap().at);
            assert!(!key.starts_with(&job_prefix(day, &site)), "{key}");
        }
    }
}

#[test]
fn a_list_begins_with_the_newest_that_is_not_too_new() {
    let (job, at) = (Name::new("site").unwrap(), Duration::from_secs(NIGHT));
    let after = not_after(at, &job);
    assert!(record(NIGHT, "site").key() > after);
    assert!(record(NIGHT + 1, "site").key() < after);
    assert!(record(NIGHT - 1, "site").key() > after);
}

#[test]
fn the_prefix_of_a_job_is_known() {
    assert!(is_job_prefix(&job_prefix(20_000, &Name::new("team/site").unwrap())));
    for other in ["log/79223/site/", "log/79223/", "leases/site/R", "log/79223/R", "log/R", ""] {
        assert!(!is_job_prefix(other), "{other}");
    }
}

#[test]
fn older_days_follow() {
    let day = day_of(Duration::from_secs(NIGHT));
    for job in ["a", "zz/z"] {
        assert!(record(NIGHT, job).key() < older_than(day));
        assert!(record(NIGHT - DAY, job).key() > older_than(day));
    }
}

#[test]
fn the_longest_key_fits_into_every_store() {
    let name = "n".repeat(128);
    let item = Subject::Slot { job: Name::new("n").unwrap(), at: 9_999_999_999, id: String::new() };
    let mut longest = record(NIGHT, &name);
    longest.holder.host = "ü.".repeat(80);
    longest.item = Some(item);
    longest.reason = Some("in-progress-or-longer-than-that".into());
    longest.event = LogEvent::Observed;
    longest.exit = Some(-1);
    longest.took = Some(Duration::from_secs(400_000));
    longest.token = Token::new(Token::MAX);
    let key = longest.key();
    assert!(key.len() <= 255, "{}: {key}", key.len());
    let good = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    assert!(key.chars().all(good) && !key.ends_with('.'), "{key}");
    assert!(LogLine::read(&key).is_some());
}

#[test]
fn long_texts_are_cut_and_fit() {
    let mut record = record(NIGHT, "site");
    record.said = "é\u{1}".repeat(SAID_MAX);
    record.reason = Some("\u{1}".repeat(2 * WORD_MAX));
    assert!(LogRecord::decode(&LogRecord { said: "x".repeat(9_000), ..record }.encode()).is_ok());
}

#[test]
fn what_is_not_ours_is_refused() {
    let good = record(NIGHT, "site");
    let text = String::from_utf8(good.encode()).unwrap();
    let newer = text.replace("\"leasehold_log\":1", "\"leasehold_log\":3,\"colour\":1");
    assert_eq!(LogRecord::decode(newer.as_bytes()), Err(BadLog::Newer(3)));
    for bad in [
        text.replace("\"leasehold_log\":1", "\"leasehold_log\":0"),
        text.replace("\"pid\"", "\"shoe\":1,\"pid\""),
        text.replace("\"id\"", "\"more\":{\"a\":1},\"id\""),
        "{}".into(),
        String::new(),
    ] {
        assert_eq!(LogRecord::decode(bad.as_bytes()), Err(BadLog::Damaged), "{bad}");
    }
    let key = good.key();
    for bad in [
        key.replace("log/", "leases/"),
        key.replace("/R", "/"),
        key.replace("/site/", "/Site/"),
        format!("{key}.x"),
        key[..key.len() - 15].into(),
        key.replace(".42.", ".x."),
        "log/".into(),
        "log/79224/site/R".into(),
    ] {
        assert_eq!(LogLine::read(&bad), None, "{bad}");
    }
    let unknown = LogLine::read(&key.replace(".ok.", ".blessed.")).unwrap();
    assert_eq!((unknown.event(), unknown.word.as_str()), (None, "blessed"), "a word of a later version");
}

#[test]
fn a_key_without_a_job_has_a_day_and_hides_no_other() {
    assert_eq!(day_in("log/79223"), Some(LAST_DAY - 79_223));
    assert_eq!(day_in("log/79223/site/R1"), day_in("log/79223"));
    assert_eq!((day_in("log/7922"), day_in("leases/site")), (None, None));
}
