//! From names back to slots.

use std::time::Duration;

use leasehold_run::schedule::{Cron, Every, Gap, Overlap, Policy, Schedule, SlotError};

use crate::checks::{Expression, at};
use crate::zones::{EXPRESSIONS, POLICIES, zone};

fn new_york(text: &str, policy: Policy) -> Schedule {
    Schedule::cron(Cron::parse(text).unwrap(), zone("America/New_York"), policy)
}

fn id(schedule: &Schedule, text: &str) -> String {
    schedule.parse_slot_id(text).unwrap_or_else(|error| panic!("{error}")).id()
}

/// Every name leads back to its slot, and so does the instant when it is due.
#[test]
fn there_and_back() {
    for name in ["America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu"] {
        for text in EXPRESSIONS {
            let expression = Expression::read(text);
            for policy in POLICIES {
                let schedule = expression.schedule(&zone(name), policy);
                for from in ["2026-03-07", "2026-04-04", "2026-04-23", "2026-10-03", "2026-10-31"] {
                    let from = format!("{from}T12:00Z").parse().unwrap();
                    for slot in schedule.after(from).take(60) {
                        assert_eq!(schedule.parse_slot_id(&slot.id()), Ok(slot), "{text} in {name}");
                        assert_eq!(
                            schedule.parse_slot_id(&slot.due().to_string()),
                            Ok(slot),
                            "{text} in {name}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_people_type() {
    let daily = new_york("30 2 * * *", Policy::default());
    let gap = "2026-03-08T02:30-05:00";
    for typed in
        [gap, "2026-03-08T02:30", "2026-03-08 02:30", "2026-03-08T03:00-04:00", "2026-03-08T07:00:00Z"]
    {
        assert_eq!(id(&daily, typed), gap, "{typed}");
    }
    for typed in
        ["2026-07-01T02:30", "2026-07-01T06:30Z", "2026-07-01T08:30+02:00", "2026-07-01t02:30:00-04:00"]
    {
        assert_eq!(id(&daily, typed), "2026-07-01T02:30-04:00", "{typed}");
    }
    // A name comes before an instant: 02:30-05:00 is also when the slot of 03:30 is due.
    let both = new_york("30 2,3 * * *", Policy::default());
    assert_eq!(id(&both, gap), gap);
    assert_eq!(id(&both, "2026-03-08T07:30Z"), "2026-03-08T03:30-04:00");
    // What was skipped together is found by any of its names.
    let several = new_york("0,30 2 * * *", Policy::default());
    assert_eq!(id(&several, gap), "2026-03-08T02:00-05:00");
    assert_eq!(id(&new_york("0 2,3 * * *", Policy::default()), "2026-03-08T02:00"), "2026-03-08T03:00-04:00");
    // In its one pass, or in both.
    assert_eq!(id(&new_york("30 1 * * *", Policy::default()), "2026-11-01T01:30"), "2026-11-01T01:30-04:00");
    let last = Policy { overlap: Overlap::Last, ..Policy::default() };
    assert_eq!(id(&new_york("30 1 * * *", last), "2026-11-01T01:30"), "2026-11-01T01:30-05:00");
    let error = new_york("*/30 * * * *", last).parse_slot_id("2026-11-01T01:30").unwrap_err().to_string();
    assert!(error.ends_with("twice; write 2026-11-01T01:30-04:00 or 2026-11-01T01:30-05:00"), "{error}");
}

#[test]
fn what_is_no_slot() {
    let daily = new_york("30 2 * * *", Policy::default());
    let error = daily.parse_slot_id("2026-07-01T02:31").unwrap_err().to_string();
    assert!(error.contains("the nearest are 2026-07-01T02:30-04:00 and 2026-07-02T02:30-04:00"), "{error}");
    for typed in [
        "2026-07-01T02:30-05:00",
        "2026-07-01T02:30:01-04:00",
        "2026-07-01T06:30:00.5Z",
        "2026-03-08T02:31-05:00",
        "2026-11-02T02:30-04:00",
    ] {
        assert!(matches!(daily.parse_slot_id(typed), Err(SlotError::NotASlot { .. })), "{typed}");
    }
    let skip = Policy { gap: Gap::Skip, ..Policy::default() };
    assert!(new_york("30 2 * * *", skip).parse_slot_id("2026-03-08T02:30-05:00").is_err());
    // The other pass.
    assert!(new_york("30 1 * * *", Policy::default()).parse_slot_id("2026-11-01T01:30-05:00").is_err());
    for typed in
        ["", "noon", "2026-07-01", "02:30", "2026-13-01T00:00", "2026-07-01T02:30-04:00[America/New_York]"]
    {
        assert!(matches!(daily.parse_slot_id(typed), Err(SlotError::NotATime(_))), "{typed}");
    }
}

#[test]
fn of_intervals() {
    let often = Schedule::every(Every::new(Duration::from_secs(2700), Duration::ZERO).unwrap());
    for typed in ["2026-11-16T06:00:00Z", "2026-11-16T06:00Z", "2026-11-16T07:00+01:00"] {
        assert_eq!(id(&often, typed), "2026-11-16T06:00:00Z", "{typed}");
    }
    assert!(matches!(often.parse_slot_id("2026-11-16T06:00"), Err(SlotError::NoOffset(_))));
    let error = often.parse_slot_id("2026-11-16T06:01Z").unwrap_err().to_string();
    assert!(error.contains("the nearest are 2026-11-16T06:00:00Z and 2026-11-16T06:45:00Z"), "{error}");
}

/// Offsets with seconds, and both ends of time.
#[test]
fn far_away() {
    let monrovia =
        Schedule::cron(Cron::parse("0 12 * * *").unwrap(), zone("Africa/Monrovia"), Policy::default());
    let slot = monrovia.next_after("1971-06-01T00:00Z".parse().unwrap()).unwrap();
    assert_eq!(slot.id(), "1971-06-01T12:00-00:44:30");
    assert_eq!(monrovia.parse_slot_id(&slot.id()), Ok(slot));
    for name in ["UTC", "America/New_York", "Pacific/Kiritimati", "Africa/Monrovia"] {
        let minutely = Schedule::cron(Cron::parse("* * * * *").unwrap(), zone(name), Policy::default());
        let yearly = Schedule::cron(Cron::parse("@yearly").unwrap(), zone(name), Policy::default());
        for schedule in [minutely, yearly] {
            let end = jiff::Timestamp::MAX;
            assert_eq!(schedule.next_after(end), None);
            assert!(schedule.prev_at_or_before(end).is_some_and(|slot| slot.civil().year() == 9999));
            // The first days there are have no midnight.
            let begin = at(jiff::Timestamp::MIN.as_second() + 3 * 86_400);
            assert!(schedule.next_after(begin).is_some_and(|slot| slot.civil().year() <= -9998));
            assert!(schedule.prev_at_or_before(begin).is_none_or(|slot| slot.due() <= begin));
            assert_eq!(schedule.prev_at_or_before(jiff::Timestamp::MIN), None);
        }
    }
}

/// Where the wall clock shows UTC in winter, a name with +00:00 and an instant with Z look alike and are not.
#[test]
fn what_ends_in_z_is_an_instant() {
    let london =
        Schedule::cron(Cron::parse("30 1,2 * * *").unwrap(), zone("Europe/London"), Policy::default());
    assert_eq!(id(&london, "2027-03-28T01:30+00:00"), "2027-03-28T01:30+00:00");
    assert_eq!(id(&london, "2027-03-28T01:00:00Z"), "2027-03-28T01:30+00:00", "due when the gap ends");
    assert_eq!(id(&london, "2027-03-28T01:30:00Z"), "2027-03-28T02:30+01:00");
}
