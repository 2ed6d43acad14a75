//! Which patterns are taken, and what is said of the others.

use std::time::Duration;

use leasehold::core::ledger::job_record::ScheduleKey;
use leasehold_run::schedule::{Cron, Every, EveryError, Field, Policy, Schedule};

use crate::checks::at;
use crate::zones::zone;

fn refused(text: &str) -> String {
    Cron::parse(text).expect_err(text).to_string()
}

/// Two ways to write the same have the same slots.
fn same(one: &str, other: &str) {
    let slots = |text: &str| -> Vec<_> {
        let cron = Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        Schedule::cron(cron, zone("America/New_York"), Policy::default())
            .after(at(1_767_225_600))
            .take(2_000)
            .collect()
    };
    assert_eq!(slots(one), slots(other), "{one} and {other}");
}

#[test]
fn ways_to_write_the_same() {
    same("0 0 * JAN,mar,Dec *", "0 0 * 1,3,12 *");
    same("0 0 * * Sun-Sat", "0 0 * * *");
    same("0 0 * * FRI-MON", "0 0 * * 5,6,0,1");
    same("0 0 * * 5-7", "0 0 * * FRI,SAT,SUN");
    same("0 0 * * 7-2", "0 0 * * 0-2");
    same("0 0 * * 0-7", "0 0 * * *");
    same("0 22-2 * * *", "0 22,23,0,1,2 * * *");
    same("0 22-4/2 * * *", "0 22,0,2,4 * * *");
    same("0 0 1 NOV-FEB *", "0 0 1 11,12,1,2 *");
    same("  5\t4 * *   * ", "05 04 * * *");
    same("10-30/10 0 * * *", "10,20,30 0 * * *");
    same("0 0 l * *", "0 0 L * *");
    same("0 0 * * fril", "0 0 * * 5L");
    same("0 0 * * MON#2", "0 0 * * 1#2");
    same("0 0 * * 7L", "0 0 * * 0L");
    same("@HOURLY", "0 * * * *");
    same("@midnight", "@daily");
    same("@weekly", "0 0 * * SUN");
    same("@monthly", "0 0 1 * *");
    same("@annually", "@yearly");
    same("*/1 * * * *", "* * * * *");
}

#[test]
fn what_is_wrong_and_where() {
    for (text, field, position, said) in [
        ("61 * * * *", Field::Minute, 0, "61 is not from 0 to 59"),
        ("0 24 * * *", Field::Hour, 2, "midnight is 0"),
        ("0 0 0 * *", Field::DayOfMonth, 4, "0 is not from 1 to 31"),
        ("0 0 1,32 * *", Field::DayOfMonth, 6, "32 is not from 1 to 31"),
        ("0 0 ? * *", Field::DayOfMonth, 4, "write *"),
        ("0 0 L-3 * *", Field::DayOfMonth, 4, "LW"),
        ("0 0 1-15W * *", Field::DayOfMonth, 4, "`1-15` is not a number"),
        ("0 0 * 13 *", Field::Month, 6, "13 is not from 1 to 12"),
        ("0 0 * JANUARY *", Field::Month, 6, "write JAN"),
        ("0 0 * * 8", Field::DayOfWeek, 8, "8 is not from 0 to 7"),
        ("0 0 * * MON-FOO", Field::DayOfWeek, 12, "nor a name such as SUN"),
        ("0 0 * * L", Field::DayOfWeek, 8, "write 5L"),
        ("0 0 * * 1#6", Field::DayOfWeek, 10, "not from 1 to 5"),
        ("1,,2 * * * *", Field::Minute, 2, "a value is missing"),
        ("-5 * * * *", Field::Minute, 0, "a value is missing"),
        ("*/0 * * * *", Field::Minute, 2, "not a step"),
        ("*/x * * * *", Field::Minute, 2, "not a step"),
        ("5/15 * * * *", Field::Minute, 0, "write 5-59/15"),
        ("*-5 * * * *", Field::Minute, 0, "* stands alone"),
        ("50-10 * * * *", Field::Minute, 0, "write 50-59,0-10"),
        ("0 0 28-3 * *", Field::DayOfMonth, 4, "write 28-31,1-3"),
        ("*/60 * * * *", Field::Minute, 0, "write 0"),
        ("0 0 */40 * *", Field::DayOfMonth, 4, "write 1"),
        ("0 0 ü * *", Field::DayOfMonth, 4, "`ü` is not a number"),
        ("0 0 * * üL", Field::DayOfWeek, 8, "`ü` is neither"),
        ("99999999999 * * * *", Field::Minute, 0, "is not a number"),
    ] {
        let error = Cron::parse(text).expect_err(text);
        assert_eq!((error.field(), error.position()), (Some(field), position), "{text}: {error}");
        assert!(error.to_string().contains(said), "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_as_a_whole() {
    assert!(refused("@reboot").contains("start the job from systemd"));
    assert!(refused("@dayly").contains("did you mean @daily?"));
    assert!(refused("@daily x").contains("nothing may follow"));
    assert!(refused("").contains("0 of five fields"));
    assert!(refused("* * * *").contains("4 of five fields"));
    assert!(refused("*/10 * * * * *").contains("every = \"10s\""));
    assert!(refused("0 0 0 1 1 * 2026").contains("seconds and years are not supported"));
    assert!(refused("0 0 * * * rm -rf /tmp/x").contains("the command"));
    assert!(refused("CRON_TZ=UTC 0 0 * * *").contains("write the time zone as a key of its own"));
    for never in ["0 0 31 4 *", "0 0 30 2 *", "0 0 30,31 FEB *", "0 0 31 2,4,6,9,11 *", "0 0 31W 4 *"] {
        assert!(refused(never).contains("never happens"), "{never}");
    }
    // Either day will do, or the day comes some time.
    for rare in ["0 0 31 4 1", "0 0 29 2 *", "0 0 * 2 1#5", "0 0 31 4,5 *"] {
        assert!(Cron::parse(rare).is_ok(), "{rare}");
    }
}

#[test]
fn uneven_steps() {
    let said = refused("*/45 * * * *");
    assert!(said.contains("`*/45` means :00 and :45, not every 45 minutes; write every = \"45m\""), "{said}");
    assert!(said.contains("or 0,45 if that is what you mean"), "{said}");
    assert!(refused("0-59/45 * * * *").contains("`0-59/45` means"));
    assert!(refused("*/90 * * * *").contains("every = \"90m\""));
    let said = refused("0 */5 * * *");
    assert!(said.contains("00:00, 05:00, 10:00, 15:00 and 20:00, not every 5 hours"), "{said}");
    assert!(said.contains("every = \"5h\", or 0,5,10,15,20"), "{said}");
    for even in
        ["0,45 * * * *", "*/20 * * * *", "1-59/2 * * * *", "0 */8 * * *", "0 8-18/3 * * *", "0 0 */2 * *"]
    {
        assert!(Cron::parse(even).is_ok(), "{even}");
    }
}

#[test]
fn following_time_or_not() {
    for (text, interval) in [
        ("* * * * *", true),
        ("0 * * * *", true),
        ("*/5 3 * * *", true),
        ("0 */2 * * *", true),
        ("@hourly", true),
        ("0,30 1-3 * * *", false),
        ("0-59 0-23 * * *", false),
        ("0 0 * * *", false),
    ] {
        assert_eq!(Cron::parse(text).unwrap().is_interval(), interval, "{text}");
    }
}

#[test]
fn nothing_typed_makes_it_panic() {
    let letters: Vec<char> = "0123456789*/,-#LW@? ABCDEFGHIJMNORSTUVYé\t=".chars().collect();
    let mut rng = crate::random::Rng::new(1);
    for _ in 0..20_000 {
        let length = rng.below(24);
        let text: String = (0..length).map(|_| letters[rng.below(letters.len())]).collect();
        if let Err(error) = Cron::parse(&text) {
            assert!(
                error.position() <= text.len() && text.is_char_boundary(error.position()),
                "{text:?}: {error}"
            );
        }
    }
}

#[test]
fn intervals() {
    let every = |interval: u64, offset: u64| {
        Every::new(Duration::from_secs(interval), Duration::from_secs(offset)).map(Schedule::every)
    };
    let names = |schedule: &Schedule, from: &str, count| -> Vec<String> {
        schedule.after(from.parse().unwrap()).take(count).map(|slot| slot.id()).collect()
    };
    let often = every(45 * 60, 0).unwrap();
    assert_eq!(names(&often, "2026-11-16T05:20:00Z", 2), ["2026-11-16T06:00:00Z", "2026-11-16T06:45:00Z"]);
    // A slot is not after itself.
    assert_eq!(names(&often, "2026-11-16T06:00:00Z", 1), ["2026-11-16T06:45:00Z"]);
    assert_eq!(names(&often, "2026-11-16T05:59:59.999999999Z", 1), ["2026-11-16T06:00:00Z"]);
    let moved = every(3600, 600).unwrap();
    assert_eq!(
        names(&moved, "1969-12-31T22:00:00Z", 3),
        ["1969-12-31T22:10:00Z", "1969-12-31T23:10:00Z", "1970-01-01T00:10:00Z"]
    );
    assert_eq!(moved.key(), ScheduleKey::Every { seconds: 3_600, offset: 600 });
    assert_eq!(
        moved.prev_at_or_before("1969-12-31T23:09:59.5Z".parse().unwrap()).unwrap().id(),
        "1969-12-31T22:10:00Z"
    );
    for (interval, offset) in [(1, 0), (7, 3), (86_400, 0), (5_400, 1_234)] {
        let schedule = every(interval, offset).unwrap();
        crate::checks::in_order(&schedule, (-100_000, 100_000), true).unwrap();
        crate::checks::catches_up(&schedule, -12_345, 98_765, 3).unwrap();
    }
    assert_eq!(every(0, 0).unwrap_err(), EveryError::Zero);
    assert_eq!(every(60, 60).unwrap_err(), EveryError::Offset);
    assert_eq!(every(9000 * 86_400, 0).unwrap_err(), EveryError::TooLong);
    assert_eq!(Every::new(Duration::from_millis(1500), Duration::ZERO).unwrap_err(), EveryError::Fraction);
}

/// One spelling for each set of times: by it two machines know that they have the same schedule.
#[test]
fn equal_times_have_one_spelling() {
    let canonical = |text: &str| Cron::parse(text).unwrap().canonical();
    for (text, same, spelled) in [
        ("0 9 * * 1-5", "0 9 * * MON-FRI", "0 9 * * 1-5"),
        ("0 9 * * 0", "00 9 * JAN-DEC 7", "0 9 * * 0"),
        ("0,1,2,30 */2 * * *", "0-2,30 */2 * * *", "~0-2,30 0,2,4,6,8,10,12,14,16,18,20,22 * * *"),
        ("5 4 1,15W,L * 5L", "5 4 15W,1,L * FRIL", "5 4 1,15W,L * 5L"),
        ("5 4 */2 * MON#2", "5 4 */2 * 1#2", "5 4 */1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * 1#2"),
    ] {
        assert_eq!((canonical(text).as_str(), canonical(same)), (spelled, spelled.to_owned()));
    }
    // A star follows time as it passes, and joins days otherwise.
    for (text, other) in [
        ("0-59 0-23 * * *", "* * * * *"),
        ("0 0 1-31 * 1", "0 0 * * 1"),
        ("0 0 1 * 0-6", "0 0 1 * *"),
        ("0 0 1 * *", "0 0 1W * *"),
    ] {
        assert_ne!(canonical(text), canonical(other), "{text}, {other}");
    }
}
