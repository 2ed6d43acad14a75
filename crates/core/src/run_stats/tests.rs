use alloc::vec::Vec;

use super::*;
use crate::ids::Token;
use crate::name::Name;
use crate::run_log::{LogId, LogRecord};

const MINUTE: u64 = 60_000;

fn line(event: LogEvent, reason: Option<&str>, ended: u64, took: Option<u64>) -> LogLine {
    let holder = crate::record::Holder {
        host: "vm".into(),
        pid: 1,
        run: "r".into(),
        job: "site".into(),
        since: "".into(),
        slot: None,
    };
    let record = LogRecord::new(
        Duration::from_millis(ended),
        event,
        Name::new("site").unwrap(),
        LogId::of(u128::from(ended)),
        holder,
    );
    let (reason, took) = (reason.map(String::from), took.map(Duration::from_millis));
    LogRecord { reason, took, token: Token::new(1), ..record }.line()
}

fn stats(lines: &[LogLine]) -> RunStats {
    let mut tally = Tally::default();
    lines.iter().for_each(|line| tally.add(line, None));
    tally.sums()
}

/// Runs of an event that start every 45 minutes, with these run times.
fn every_45m(event: LogEvent, times: &[u64]) -> Vec<LogLine> {
    let start = |n: usize| n as u64 * 45 * MINUTE;
    times.iter().enumerate().map(|(n, took)| line(event, None, start(n) + took, Some(*took))).collect()
}

#[test]
fn runs_and_skips_are_counted_apart() {
    let mut lines = every_45m(LogEvent::Ok, &[MINUTE; 203]);
    lines.extend((0..4).map(|_| line(LogEvent::Failed, None, 0, None)));
    lines.extend((0..2).map(|_| line(LogEvent::Lost, Some("deadline"), 0, None)));
    lines.push(line(LogEvent::Unknown, None, 1, None));
    lines.extend((0..4).map(|_| line(LogEvent::Skipped, Some("overlap"), 0, None)));
    lines.push(line(LogEvent::Skipped, Some("done"), 0, None));
    lines.push(line(LogEvent::Refused, Some("stale"), 0, None));
    lines.push(line(LogEvent::Break, None, 0, None));
    let stats = stats(&lines);
    assert_eq!((stats.runs(), stats.count(LogEvent::Skipped)), (210, 5));
    assert_eq!(stats.skipped_permille(), Some(23));
    assert_eq!(
        stats.skips.iter().map(|(why, n)| (why.as_str(), *n)).collect::<Vec<_>>(),
        [("done", 1), ("overlap", 4)]
    );
    assert_eq!((stats.count(LogEvent::Refused), stats.count(LogEvent::Lost)), (1, 2));
    assert_eq!(RunStats::skipped_permille(&super::Tally::default().sums()), None);
}

/// Another run took over before it told its end.
#[test]
fn a_run_that_reports_late_is_one_run() {
    let taken = line(LogEvent::Unknown, None, 7, None);
    let never = line(LogEvent::Unknown, None, 8, None);
    let lost = line(LogEvent::Lost, None, 7, Some(MINUTE));
    let stats = stats(&[lost, taken, never]);
    assert_eq!((stats.runs(), stats.count(LogEvent::Lost), stats.count(LogEvent::Unknown)), (2, 1, 1));
}

#[test]
fn dropped_slots_are_counted_and_not_their_records() {
    let mut tally = Tally::default();
    tally.add(&line(LogEvent::Dropped, Some("missed"), 1, None), Some(41));
    tally.add(&line(LogEvent::Ok, None, 2, Some(1)), None);
    let counts: Vec<(LogEvent, u64)> = tally.sums().counts().collect();
    assert_eq!(counts, [(LogEvent::Ok, 1), (LogEvent::Dropped, 41)]);
}

#[test]
fn quantiles_are_values_that_were_measured() {
    let times: Vec<u64> = (1..=100).map(|n| n * 1_000).collect();
    let RunTimes { p50, p95, worst, count } = stats(&every_45m(LogEvent::Ok, &times)).ok;
    let seconds = |n| Some(Duration::from_secs(n));
    assert_eq!((p50, p95, worst, count), (seconds(50), seconds(95), seconds(100), 100));
    let one = stats(&every_45m(LogEvent::Ok, &[7])).ok;
    assert_eq!((one.p50, one.p95, one.worst), (one.worst, one.worst, Some(Duration::from_millis(7))));
    assert_eq!(stats(&[]).ok, RunTimes::default());
    // A run that failed, or was killed after hours, says nothing about healthy ones.
    let mut lines = every_45m(LogEvent::Ok, &[MINUTE; 10]);
    lines.push(line(LogEvent::Killed, None, 0, Some(600 * MINUTE)));
    assert_eq!(stats(&lines).ok.worst, Some(Duration::from_secs(60)));
}

#[test]
fn the_interval_is_that_between_starts() {
    let times: Vec<u64> = (0..20).map(|n| n % 7 * MINUTE).collect();
    assert_eq!(stats(&every_45m(LogEvent::Ok, &times)).interval, Some(Duration::from_secs(45 * 60)));
    assert_eq!(stats(&every_45m(LogEvent::Ok, &[1])).interval, None);
}

#[test]
fn a_ttl_that_is_renewed_has_nothing_to_do_with_the_run_time() {
    let lines = every_45m(LogEvent::Ok, &[40 * MINUTE; 10]);
    let advice = stats(&lines).advice(None);
    let (ttl, survives) = (Duration::from_secs(90), Duration::from_secs(54));
    assert_eq!(advice, TtlAdvice::Renewed { ttl, fit: TtlFit::Right, survives, lost: 0 });
    // The article's 80 minutes block for 80 minutes.
    let long = stats(&lines).advice(Some(Duration::from_secs(4_800)));
    assert!(matches!(long, TtlAdvice::Renewed { fit: TtlFit::Long, .. }), "{long:?}");
    let mut lines = lines;
    lines.push(line(LogEvent::Lost, Some("deadline"), 0, None));
    let short = stats(&lines).advice(Some(ttl));
    assert!(matches!(short, TtlAdvice::Renewed { fit: TtlFit::Short, lost: 1, .. }), "{short:?}");
}

#[test]
fn a_ttl_that_nothing_renews_outlasts_the_worst_healthy_run() {
    let mut times = [40 * MINUTE; 12];
    times[3] = 45 * MINUTE;
    let stats = stats(&every_45m(LogEvent::Released, &times));
    let minutes = |n: u64| Duration::from_secs(n * 60);
    let of = |ttl| match stats.advice(ttl) {
        TtlAdvice::ByHand { worst, least, most, fit, .. } => (worst, least, most, fit),
        other => panic!("{other:?}"),
    };
    assert_eq!(of(None), (minutes(45), minutes(68), minutes(90), None));
    assert_eq!(of(Some(minutes(80))).3, Some(TtlFit::Right));
    assert_eq!(of(Some(minutes(46))).3, Some(TtlFit::Short));
    assert_eq!(of(Some(minutes(600))).3, Some(TtlFit::Long));
    assert_eq!(full(Duration::from_millis(1)), Duration::from_secs(1));
}

#[test]
fn few_runs_are_no_ground_for_advice() {
    for event in [LogEvent::Ok, LogEvent::Released] {
        let advice = stats(&every_45m(event, &[MINUTE; 9])).advice(None);
        assert_eq!(advice, TtlAdvice::TooFew { healthy: 9 });
    }
    // Nine that were ok and many that were not are nine.
    let mut lines = every_45m(LogEvent::Ok, &[MINUTE; 9]);
    lines.extend(every_45m(LogEvent::Failed, &[MINUTE; 90]));
    assert_eq!(stats(&lines).advice(None), TtlAdvice::TooFew { healthy: 9 });
}
