//! All zones, ten years, thirty patterns.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold_run::schedule::{Gap, Overlap, Policy};

use crate::checks::{self, Evaluator, Expression};
use crate::oracle;

/// Every kind of pattern: fixed times in and around the hours when clocks are changed, lists, ranges, steps,
/// and every kind of day.
pub const EXPRESSIONS: [&str; 30] = [
    "* * * * *",
    "*/15 * * * *",
    "*/30 1 * * *",
    "7 * * * *",
    "@hourly",
    "0 */2 * * *",
    "30 */3 * * *",
    "0-59/20 0-4 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "0,30 1 * * *",
    "0,30 2 * * *",
    "0 2,3 * * *",
    "15,45 0-3 * * *",
    "45 23 * * *",
    "@daily",
    "0 1 * * *",
    "59 22-2 * * *",
    "0 9 * * 1",
    "0 0 13 * 5",
    "0 0 */10 * 1",
    "30 2 * * SUN",
    "30 2 * * FRI-MON",
    "30 1 L * *",
    "0 4 1W,15W,31W,LW * *",
    "30 2 * * 0L",
    "30 2 * * 7#1,7#2,0#5",
    "5 0 29 2 *",
    "0 12 1-7 MAR,OCT-NOV SAT",
];

const DAY: i64 = 24 * 60;
/// 2020-01-01 and 2030-01-01, in minutes.
pub const BEGIN: i64 = 18_262 * DAY;
pub const END: i64 = 21_915 * DAY;

pub const POLICIES: [Policy; 4] = [
    Policy { gap: Gap::Run, overlap: Overlap::First },
    Policy { gap: Gap::Skip, overlap: Overlap::First },
    Policy { gap: Gap::Run, overlap: Overlap::Last },
    Policy { gap: Gap::Skip, overlap: Overlap::Last },
];

pub fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap_or_else(|error| panic!("{error}"))
}

pub fn long() -> bool {
    std::env::var_os("LEASEHOLD_LONG").is_some()
}

fn offset(zone: &TimeZone, minute: i64) -> i32 {
    zone.to_offset(Timestamp::from_second(minute * 60).unwrap()).seconds()
}

/// The minutes at which a clock is changed, and the offset then; the first is where looking began.
pub type Changes = Vec<(i64, i32)>;

/// Found by looking every six hours.
pub fn changes(zone: &TimeZone, begin: i64, end: i64) -> Changes {
    let mut found = vec![(begin, offset(zone, begin))];
    let mut minute = begin;
    while minute < end {
        let next = (minute + 6 * 60).min(end);
        let (mut before, mut after) = (minute, next);
        if offset(zone, before) != offset(zone, after) {
            while after - before > 1 {
                let middle = before + (after - before) / 2;
                if offset(zone, middle) == offset(zone, before) { before = middle } else { after = middle }
            }
            found.push((after, offset(zone, after)));
        }
        minute = next;
    }
    found
}

/// All zones, those together whose clocks always show the same.
fn zones_alike() -> Vec<(Changes, Vec<TimeZone>)> {
    let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    assert!(names.len() > 400, "only {} time zones on this machine", names.len());
    let alike = Mutex::new(BTreeMap::<_, Vec<TimeZone>>::new());
    in_parallel(&names, |name| {
        let zone = zone(name);
        let changes = changes(&zone, BEGIN, END);
        alike.lock().unwrap().entry(changes).or_default().push(zone);
    });
    alike.into_inner().unwrap().into_iter().collect()
}

fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// The stretches that are looked at minute by minute: two days around each change, and some others, or all.
fn windows(changes: &[(i64, i32)], number: usize) -> Vec<(i64, i64)> {
    let mut windows: Vec<_> = changes[1..].iter().map(|(at, _)| (at - DAY, at + DAY)).collect();
    if long() {
        windows.extend((BEGIN..END).step_by(30 * DAY as usize).map(|from| (from, from + 30 * DAY)));
    } else {
        // Elsewhere zones differ in nothing but their offset: each looks at other days.
        let from = |n: i64| BEGIN + (number as i64 * 37 + n * 1801) % 3600 * DAY;
        windows.extend([0, 1].map(|n| (from(n), from(n) + 2 * DAY)));
    }
    windows
}

#[test]
fn every_zone_ten_years() {
    let expressions: Vec<Expression> = EXPRESSIONS.iter().map(|text| Expression::read(text)).collect();
    let alike = zones_alike();
    let (slots, minutes, zones) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let numbered: Vec<_> = alike.iter().enumerate().collect();
    in_parallel(&numbered, |(number, (changes, members))| {
        let one = &members[0];
        let name = one.iana_name().unwrap_or("?").to_string();
        for (from, to) in windows(changes, *number) {
            // No clock is changed by more than three hours in these years.
            let clock = oracle::clock(one, from - 180, to + 180);
            minutes.fetch_add(clock.len(), Ordering::Relaxed);
            for (n, expression) in expressions.iter().enumerate() {
                // The usual policy in all zones; each pattern meets the others in some.
                let other = POLICIES[1 + (n + number / 3) % 3];
                let policies = if number % 3 == 0 { vec![POLICIES[0], other] } else { vec![POLICIES[0]] };
                for policy in policies {
                    let schedule = expression.schedule(one, policy);
                    let range = (from * 60, to * 60);
                    let found = checks::exact(&schedule, &expression.pattern, policy, &clock, range)
                        .unwrap_or_else(|why| panic!("{} in {name}, {policy:?}: {why}", expression.text));
                    slots.fetch_add(found, Ordering::Relaxed);
                }
            }
        }
        for (n, expression) in expressions.iter().enumerate() {
            let schedule = expression.schedule(one, Policy::default());
            let (from, to) = (BEGIN * 60, END * 60);
            let count = schedule.count(checks::at(from), checks::at(to));
            // Those of about one each day in all zones; their names, which take longer, in some.
            let (most, names) = if long() { (100_000, true) } else { (3_700, (n + number) % 4 == 0) };
            if count < most {
                let found = checks::in_order(&schedule, (from, to), names)
                    .unwrap_or_else(|why| panic!("{} in {name}: {why}", expression.text));
                assert_eq!(found as u64, count, "{} in {name}", expression.text);
                slots.fetch_add(found, Ordering::Relaxed);
            }
        }
        zones.fetch_add(members.len(), Ordering::Relaxed);
        alike_by_evaluation(&expressions, changes, members);
    });
    println!(
        "{} zones of {} kinds, {} slots, {} minutes looked at",
        zones.into_inner(),
        alike.len(),
        slots.into_inner(),
        minutes.into_inner()
    );
}

/// Zones whose clocks show the same have the same slots around every change.
fn alike_by_evaluation(expressions: &[Expression], changes: &[(i64, i32)], members: &[TimeZone]) {
    for expression in expressions[5..].iter().step_by(6) {
        let one = expression.schedule(&members[0], Policy::default());
        for (at, _) in changes {
            let slots = one.between((at - DAY) * 60, (at + DAY) * 60);
            for other in &members[1..] {
                let other = expression.schedule(other, Policy::default());
                assert_eq!(other.between((at - DAY) * 60, (at + DAY) * 60), slots, "{other:?}");
            }
        }
    }
}

/// What the evaluator takes for granted: a clock is not changed again before the last change has played out.
#[test]
fn no_two_changes_are_close() {
    let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    in_parallel(&names, |name| {
        let zone = zone(name);
        let since = checks::at(0);
        let mut last = (0, zone.to_offset(since).seconds());
        for change in zone.following(since).take_while(|change| change.timestamp() < checks::at(END * 60)) {
            let (at, offset) = (change.timestamp().as_second(), change.offset().seconds());
            if offset == last.1 {
                continue;
            }
            assert!(at - last.0 > 2 * i64::from((offset - last.1).abs()), "{name}: {change:?}");
            last = (at, offset);
        }
    });
}

/// A whole day was skipped here, and elsewhere one came twice.
#[test]
fn days_that_are_skipped_or_come_twice() {
    // Samoa left out 30 December 2011; Kwajalein 21 August 1993. Both crossed the date line.
    for (name, day) in [("Pacific/Apia", 15_338), ("Pacific/Kwajalein", 8_633)] {
        let (zone, middle) = (zone(name), day * DAY);
        let (from, to) = (middle - 4 * DAY, middle + 4 * DAY);
        assert_eq!(changes(&zone, from, to).len(), 2, "{name}");
        let clock = oracle::clock(&zone, from - 4 * DAY, to + 4 * DAY);
        for text in EXPRESSIONS {
            let expression = Expression::read(text);
            for policy in POLICIES {
                let schedule = expression.schedule(&zone, policy);
                checks::exact(&schedule, &expression.pattern, policy, &clock, (from * 60, to * 60))
                    .unwrap_or_else(|why| panic!("{text} in {name}, {policy:?}: {why}"));
            }
        }
    }
}
