//! The night of the example in docs/timeline.md, as a run log.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::core::ids::Token;
use leasehold::core::name::Name;
use leasehold::core::record::Holder;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord, RefusedWrite};
use leasehold::run_log::{LogEntry, Window};

use super::model::Timeline;

pub const JOB: &str = "daily-publish";

/// A time of that day.
pub fn at(time: &str) -> Duration {
    let at: Timestamp = format!("2026-11-18T{time}Z").parse().unwrap();
    Duration::from_secs(u64::try_from(at.as_second()).unwrap())
}

/// A record of a job on a machine, with an id.
pub fn record(time: &str, event: LogEvent, host: &str, id: u128) -> LogRecord {
    let holder = Holder {
        host: host.into(),
        pid: 4711,
        run: format!("{host}/4711"),
        job: JOB.into(),
        since: String::new(),
        slot: None,
    };
    let job = Name::new(JOB).unwrap();
    LogRecord { lease: Some(job.clone()), ..LogRecord::new(at(time), event, job, LogId::of(id), holder) }
}

/// A run that took so many seconds.
pub fn run(time: &str, event: LogEvent, host: &str, token: u64, took: u64) -> LogRecord {
    LogRecord {
        token: Token::new(token),
        took: Some(Duration::from_secs(took)),
        exit: Some(0),
        ..record(time, event, host, token.into())
    }
}

/// An entry, as a store lists it that gives bodies.
pub fn entry(record: LogRecord) -> LogEntry {
    let key = record.key();
    LogEntry {
        line: leasehold::core::run_log::LogLine::read(&key).unwrap(),
        record: Some(record),
        key,
        newer: false,
    }
}

/// The entries of these records, the newest first.
pub fn entries(mut records: Vec<LogRecord>) -> Vec<LogEntry> {
    records.sort_by_key(|record| std::cmp::Reverse(record.at));
    records.into_iter().map(entry).collect()
}

/// The night: two machines start the same job every 45 minutes, one of them sleeps in the middle of a run, another run
/// takes over, and the first one wakes up and writes.
pub fn night() -> Vec<LogRecord> {
    let (mini, book) = ("mac-mini", "macbook");
    let skip = |time: &str, host: &str, token: u64| LogRecord {
        reason: Some("overlap".into()),
        token: Token::new(token),
        said: format!("{}/4711", if host == mini { book } else { mini }),
        ..record(time, LogEvent::Skipped, host, u128::from(1_000 + token))
    };
    let ok = |time: &str, host: &str, token: u64, took: u64| run(time, LogEvent::Ok, host, token, took);
    vec![
        ok("01:34:57", mini, 39, 296),
        skip("01:30:02", book, 39),
        ok("02:20:09", book, 40, 308),
        skip("02:15:03", mini, 40),
        // Asleep from here on. It is taken over when its TTL is over and the next slot is due.
        LogRecord {
            reason: Some("deadline".into()),
            exit: Some(143),
            ..run("03:52:41", LogEvent::Lost, book, 41, 3_160)
        },
        skip("03:00:02", mini, 41),
        LogRecord { token: Token::new(41), ..record("03:45:01", LogEvent::Unknown, book, 41) },
        ok("03:49:58", mini, 42, 297),
        LogRecord {
            token: Token::new(41),
            reason: Some("stale".into()),
            target: Some(RefusedWrite {
                target: "file:/shared/out/today.json".into(),
                fence: Token::new(42),
            }),
            ..record("03:52:39", LogEvent::Refused, book, 2_000)
        },
        ok("04:35:04", book, 43, 303),
        skip("04:30:01", mini, 43),
        ok("05:19:59", mini, 44, 298),
        skip("05:15:02", book, 44),
    ]
}

/// A picture of these records, from one time to another.
pub fn picture(records: Vec<LogRecord>, since: &str, until: &str) -> Timeline {
    let window = Window { since: at(since), until: at(until) };
    Timeline::new(entries(records), window, TimeZone::UTC, &[])
}
