//! After an outage.

use std::time::Duration;

use leasehold_run::schedule::{Cron, Dropped, Policy, Schedule};

use crate::checks::{self, Expression, at};
use crate::zones::{EXPRESSIONS, zone};

fn berlin(text: &str) -> Schedule {
    Schedule::cron(Cron::parse(text).unwrap(), zone("Europe/Berlin"), Policy::default())
}

/// A year without a job that runs each minute: three are run, and the others are one range.
#[test]
fn a_year_of_minutes() {
    let schedule = berlin("* * * * *");
    let (from, to) = ("2025-03-01T00:00:00Z".parse().unwrap(), "2026-03-01T00:00:30Z".parse().unwrap());
    let missed = schedule.missed(from, to, 3, None);
    let names: Vec<String> = missed.run.iter().map(|slot| slot.id()).collect();
    assert_eq!(names, ["2026-03-01T00:58+01:00", "2026-03-01T00:59+01:00", "2026-03-01T01:00+01:00"]);
    let Dropped { first, last, count } = missed.dropped.unwrap();
    assert_eq!(first.id(), "2025-03-01T01:01+01:00");
    assert_eq!(last.id(), "2026-03-01T00:57+01:00");
    assert_eq!(count, 365 * 24 * 60 - 3);
    // They are not visited: a thousand such outages take no time.
    for _ in 0..1_000 {
        assert_eq!(schedule.missed(from, to, 3, None), missed);
    }
}

#[test]
fn limits() {
    let schedule = berlin("0 4 * * *");
    let (from, to) = ("2026-11-01T03:00:00Z".parse().unwrap(), "2026-11-11T03:00:00Z".parse().unwrap());
    // The first is not missed: it was due at `from`. The last is: it is due now.
    let all = schedule.missed(from, to, usize::MAX, None);
    assert_eq!((all.run.len(), all.dropped), (10, None));
    assert_eq!(all.run[9].due(), to);
    let none = schedule.missed(from, to, 0, None);
    assert_eq!((none.run.len(), none.dropped.map(|range| range.count)), (0, Some(10)));
    // Exactly two days old is not too old.
    let young = schedule.missed(from, to, 100, Some(Duration::from_secs(2 * 86_400)));
    assert_eq!((young.run.len(), young.dropped.map(|range| range.count)), (3, Some(7)));
    let younger = schedule.missed(from, to, 100, Some(Duration::from_secs(2 * 86_400 - 1)));
    assert_eq!((younger.run.len(), younger.dropped.map(|range| range.count)), (2, Some(8)));
    let both = schedule.missed(from, to, 1, Some(Duration::from_secs(2 * 86_400)));
    assert_eq!((both.run, both.dropped.unwrap().last.id()), (vec![all.run[9]], all.run[8].id()));
    assert_eq!(schedule.missed(from, to, 5, Some(Duration::MAX)).run.len(), 5);
    for nothing in [schedule.missed(to, to, 5, None), schedule.missed(to, from, 5, None)] {
        assert_eq!((nothing.run.len(), nothing.dropped), (0, None));
    }
}

/// What is counted is what there is, over changes of the clock in both directions.
#[test]
fn counted_as_walked() {
    for text in EXPRESSIONS {
        for name in ["Europe/Berlin", "Africa/Cairo", "Australia/Lord_Howe"] {
            let schedule = Expression::read(text).schedule(&zone(name), Policy::default());
            let begin = 1_772_236_800; // 2026-02-28
            for (skip, days) in [(0, 40), (123_457, 70), (-86_400 * 120, 45)] {
                let (from, to) = (begin + skip, begin + skip + days * 86_400);
                let walked = schedule.after(at(from)).take_while(|slot| slot.due() <= at(to)).count();
                assert_eq!(schedule.count(at(from), at(to)), walked as u64, "{text} in {name}");
                for newest in [0, 1, 3] {
                    checks::catches_up(&schedule, from, to, newest)
                        .unwrap_or_else(|why| panic!("{text} in {name}: {why}"));
                }
            }
        }
    }
}
