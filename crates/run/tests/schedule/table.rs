//! Where other evaluators go wrong: each row is a case that at least one of them fails.

use leasehold_run::schedule::{Cron, Overlap, Policy, Schedule};

use crate::checks::at;
use crate::zones::zone;

fn schedule(text: &str, name: &str) -> Schedule {
    Schedule::cron(Cron::parse(text).unwrap(), zone(name), Policy::default())
}

/// Names and due times between two instants, as the wall clock of the zone shows them.
fn between(schedule: &Schedule, name: &str, from: &str, to: &str) -> Vec<(String, String)> {
    let (from, to): (jiff::Timestamp, jiff::Timestamp) = (from.parse().unwrap(), to.parse().unwrap());
    let zone = zone(name);
    let slots = schedule.after(from).take_while(|slot| slot.due() <= to);
    let shown = |at: jiff::Timestamp| at.to_zoned(zone.clone()).strftime("%m-%dT%H:%M%:z").to_string();
    slots.map(|slot| (slot.id(), shown(slot.due()))).collect()
}

/// The due times of a day, as the wall clock shows them.
fn times(text: &str, name: &str, day: &str) -> Vec<String> {
    let date: jiff::civil::Date = day.parse().unwrap();
    let midnight = date.to_zoned(zone(name)).unwrap().timestamp();
    let next = date.tomorrow().unwrap().to_zoned(zone(name)).unwrap().timestamp();
    let second = jiff::Span::new().seconds(1);
    let (from, to) = (midnight.checked_sub(second).unwrap(), next.checked_sub(second).unwrap());
    let slots = between(&schedule(text, name), name, &from.to_string(), &to.to_string());
    slots.into_iter().map(|(_, due)| due[6..].to_string()).collect()
}

const NEW_YORK: &str = "America/New_York";
const CAIRO: &str = "Africa/Cairo";
const LORD_HOWE: &str = "Australia/Lord_Howe";

#[test]
fn the_clock_goes_forward() {
    assert_eq!(times("30 2 * * *", NEW_YORK, "2026-03-08"), ["03:00-04:00"]);
    assert_eq!(times("30 1 * * *", NEW_YORK, "2026-03-08"), ["01:30-05:00"]);
    assert_eq!(times("0 1 * * *", NEW_YORK, "2026-03-08"), ["01:00-05:00"]);
    assert_eq!(times("30 1 * * *", "Europe/Berlin", "2026-03-29"), ["01:30+01:00"]);
    assert_eq!(times("0 9 * * *", CAIRO, "2026-04-24"), ["09:00+03:00"]);
    assert_eq!(times("0 0 * * *", CAIRO, "2026-04-24"), ["01:00+03:00"]);
    assert_eq!(times("15 2 * * *", LORD_HOWE, "2026-10-04"), ["02:30+11:00"]);
    assert_eq!(times("30 2 * * *", "America/Santiago", "2026-09-06"), ["02:30-03:00"]);
    assert_eq!(times("0 9 * * *", "America/Santiago", "2026-09-06"), ["09:00-03:00"]);
    // Follows time as it passes: two o'clock did not come.
    let even: Vec<String> = times("0 */2 * * *", NEW_YORK, "2026-03-08");
    assert_eq!(even.len(), 11);
    assert_eq!(even[..3], ["00:00-05:00", "04:00-04:00", "06:00-04:00"]);
    assert_eq!(times("*/30 2 * * *", NEW_YORK, "2026-03-08"), [""; 0]);
}

#[test]
fn the_clock_goes_back() {
    assert_eq!(times("30 1 * * *", NEW_YORK, "2026-11-01"), ["01:30-04:00"]);
    assert_eq!(times("0,30 1 * * *", NEW_YORK, "2026-11-01"), ["01:00-04:00", "01:30-04:00"]);
    assert_eq!(times("45 1 * * *", LORD_HOWE, "2026-04-05"), ["01:45+11:00"]);
    let all = times("*/30 * * * *", NEW_YORK, "2026-11-01");
    assert_eq!(
        all[..7],
        [
            "00:00-04:00",
            "00:30-04:00",
            "01:00-04:00",
            "01:30-04:00",
            "01:00-05:00",
            "01:30-05:00",
            "02:00-05:00"
        ]
    );
    assert_eq!(all.len(), 50);
    let last = Policy { overlap: Overlap::Last, ..Policy::default() };
    let late = Schedule::cron(Cron::parse("0,30 1 * * *").unwrap(), zone(NEW_YORK), last);
    let found = between(&late, NEW_YORK, "2026-11-01T00:00-04:00", "2026-11-01T12:00-05:00");
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["2026-11-01T01:00-05:00", "2026-11-01T01:30-05:00"]);
}

/// All that is skipped at once is one slot; if the job is due anyway when the gap ends, that is the one.
#[test]
fn the_names_of_skipped_times() {
    let found = |text: &str| {
        between(&schedule(text, NEW_YORK), NEW_YORK, "2026-03-08T01:59-05:00", "2026-03-08T12:00-04:00")
    };
    let slots = |slots: &[(&str, &str)]| -> Vec<(String, String)> {
        slots.iter().map(|(name, due)| (format!("2026-03-08T{name}"), format!("03-08T{due}"))).collect()
    };
    assert_eq!(found("30 2 * * *"), slots(&[("02:30-05:00", "03:00-04:00")]));
    assert_eq!(found("10,30 2 * * *"), slots(&[("02:10-05:00", "03:00-04:00")]));
    assert_eq!(found("0,30 2 * * *"), slots(&[("02:00-05:00", "03:00-04:00")]));
    assert_eq!(found("0 2,3 * * *"), slots(&[("03:00-04:00", "03:00-04:00")]));
    assert_eq!(
        found("30 2,3 * * *"),
        slots(&[("02:30-05:00", "03:00-04:00"), ("03:30-04:00", "03:30-04:00")])
    );
}

fn days(text: &str, count: usize) -> Vec<String> {
    let slots = schedule(text, "UTC");
    let from = "2026-01-01T00:00:00Z".parse().unwrap();
    slots.after(from).take(count).map(|slot| slot.civil().strftime("%a %m-%d").to_string()).collect()
}

#[test]
fn which_days() {
    assert_eq!(days("0 9 * * 1", 2), ["Mon 01-05", "Mon 01-12"]);
    assert_eq!(days("0 9 * * 0", 1), days("0 9 * * 7", 1));
    assert_eq!(days("0 9 * * 7", 1), ["Sun 01-04"]);
    // Either, if both are restricted; both, if one begins with a star.
    assert_eq!(days("0 9 13 * 5", 4), ["Fri 01-02", "Fri 01-09", "Tue 01-13", "Fri 01-16"]);
    assert_eq!(days("0 9 */10 * 1", 2), ["Mon 05-11", "Mon 06-01"]);
    assert_eq!(days("0 9 L * *", 3), ["Sat 01-31", "Sat 02-28", "Tue 03-31"]);
    assert_eq!(days("0 9 * * 1#1", 2), ["Mon 01-05", "Mon 02-02"]);
    assert_eq!(days("0 9 * * 5L", 2), ["Fri 01-30", "Fri 02-27"]);
    assert_eq!(days("0 9 15W * *", 4), ["Thu 01-15", "Mon 02-16", "Mon 03-16", "Wed 04-15"]);
    assert_eq!(days("0 9 1W * *", 2), ["Thu 01-01", "Mon 02-02"]);
    assert_eq!(days("0 9 31W * *", 3), ["Fri 01-30", "Tue 03-31", "Fri 05-29"]);
    assert_eq!(days("0 9 LW * *", 2), ["Fri 01-30", "Fri 02-27"]);
    assert_eq!(days("0 9 * * FRI-MON", 4), ["Fri 01-02", "Sat 01-03", "Sun 01-04", "Mon 01-05"]);
    assert_eq!(days("0 0 29 2 *", 2), ["Tue 02-29", "Sun 02-29"]);
    assert_eq!(days("@daily", 2), ["Fri 01-02", "Sat 01-03"]);
}

/// A leap day on a Monday comes every 28 years, and once after 40.
#[test]
fn rare_days() {
    let rare = schedule("0 0 */28 2 1", "UTC");
    let leap: Vec<i16> = rare
        .after(at(0))
        .map(|slot| slot.civil())
        .filter(|date| date.day() == 29)
        .map(|date| date.year())
        .take(4)
        .collect();
    assert_eq!(leap, [1988, 2016, 2044, 2072]);
    // 2100 has none.
    let leap_days = schedule("0 0 29 2 *", "America/New_York");
    let years: Vec<i16> =
        leap_days.after(at(3_913_056_000)).take(3).map(|slot| slot.civil().year()).collect();
    assert_eq!(years, [2096, 2104, 2108]);
}
