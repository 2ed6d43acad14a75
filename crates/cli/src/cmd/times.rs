//! Times for people: local time, and UTC beside it. And times as people type them.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold_run::duration;

use crate::messages::items;

/// Now.
pub fn now() -> Timestamp {
    let wall = clock::wall();
    let seconds = i64::try_from(wall.as_secs()).unwrap_or(i64::MAX);
    Timestamp::new(seconds, wall.subsec_nanos().cast_signed()).unwrap_or(Timestamp::MAX)
}

/// How long ago a holder says it took its lease. The time comes from the clock of the holder's machine.
pub fn held_for(since: &str) -> Option<Duration> {
    let since: Timestamp = since.parse().ok()?;
    let since = Duration::from_secs(u64::try_from(since.as_second()).ok()?);
    clock::wall().checked_sub(since).map(|d| Duration::from_secs(d.as_secs()))
}

/// This machine's time zone.
pub fn here() -> TimeZone {
    TimeZone::system()
}

/// `2026-11-18 03:40 +01:00 (02:40Z)`; the instant alone where local time is UTC.
pub fn local(at: Timestamp) -> String {
    local_in(at, here())
}

/// The same in another zone.
pub fn local_in(at: Timestamp, zone: TimeZone) -> String {
    let local = at.to_zoned(zone);
    match local.offset().is_zero() {
        true => at.to_string(),
        false => format!("{} {} ({})", local.date(), of_day(&local), utc_beside(&local)),
    }
}

/// The same of a second since 1970.
pub fn local_second(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), local)
}

/// The same of a time in a record.
pub fn local_text(text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), local)
}

/// The name of a slot, which people type, and beside it the local time, or UTC if the name has the local time.
pub fn slot(name: &str, at: Timestamp) -> String {
    slot_in(name, at, here())
}

/// The same of a second since 1970.
pub fn slot_at(name: &str, second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| name.to_owned(), |at| slot(name, at))
}

fn slot_in(name: &str, at: Timestamp, zone: TimeZone) -> String {
    let local = at.to_zoned(zone);
    let offset = local.strftime("%:z").to_string();
    match local.offset().is_zero() {
        true => name.to_owned(),
        false if name.ends_with(&offset) => format!("{name} ({})", utc_beside(&local)),
        false if name.contains(&local.date().to_string()) => {
            format!("{name} ({})", of_day(&local))
        }
        false => format!("{name} ({} {})", local.date(), of_day(&local)),
    }
}

/// `03:40 +01:00`, with seconds if there are some.
fn of_day(local: &Zoned) -> String {
    local.strftime(if local.second() == 0 { "%H:%M %:z" } else { "%H:%M:%S %:z" }).to_string()
}

/// `02:40Z`, with the day if it is another one.
fn utc_beside(local: &Zoned) -> String {
    let utc = local.with_time_zone(TimeZone::UTC);
    let day = if utc.date() == local.date() { String::new() } else { format!("{} ", utc.date()) };
    let time = utc.strftime(if utc.second() == 0 { "%H:%MZ" } else { "%H:%M:%SZ" });
    format!("{day}{time}")
}

/// A second since 1970, in UTC: for `--json`, and for what compares times as text.
pub fn utc(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |at| at.to_string())
}

/// "3m ago", or the time itself if it is none that this machine can tell the age of.
pub fn ago(since: &str) -> String {
    held_for(since).map_or_else(|| local_text(since), |time| items::ago(HumanDuration(time)))
}

/// What a clock showed, of a text without an offset: `03:00` (the last one), `yesterday 03:00` or a date and a time.
pub fn typed(text: &str, now: Timestamp, zone: &TimeZone) -> Option<DateTime> {
    let now = now.to_zoned(zone.clone()).datetime();
    let yesterday = now.date().checked_sub(1.day()).ok()?;
    if let Some(time) = time_of_day(text) {
        let today = now.date().to_datetime(time);
        return Some(if today <= now { today } else { yesterday.to_datetime(time) });
    }
    let (day, time) = text.split_once([' ', 'T'])?;
    let date = match day {
        "today" => now.date(),
        "yesterday" => yesterday,
        _ => day.parse::<Date>().ok()?,
    };
    Some(date.to_datetime(time_of_day(time)?))
}

/// A time as people type it, since 1970: so long ago, a time with its offset, or one of this machine's zone. A day is
/// its first second.
pub fn instant(text: &str) -> Result<Duration, String> {
    let now = now();
    let zone = here();
    let shown = typed(text, now, &zone).or_else(|| typed(&format!("{text} 00:00"), now, &zone));
    let at = match (text.parse::<Timestamp>(), shown) {
        (Ok(at), _) => at,
        (Err(_), Some(shown)) => zone.to_timestamp(shown).map_err(|e| e.to_string())?,
        (Err(_), None) => {
            let ago = duration::parse(text).map_err(items::no_instant)?;
            return Ok(clock::wall().saturating_sub(ago));
        }
    };
    Ok(Duration::from_millis(u64::try_from(at.as_millisecond()).unwrap_or(0)))
}

fn time_of_day(text: &str) -> Option<Time> {
    let digits = |c: char| c.is_ascii_digit() || c == ':';
    let text = if text.find(':') == Some(1) { format!("0{text}") } else { text.to_owned() };
    // Without a colon it would be an hour, or a year.
    text.parse().ok().filter(|_| text.contains(':') && text.chars().all(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(hours: i8) -> TimeZone {
        TimeZone::fixed(jiff::tz::offset(hours))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn utc_stands_beside_local_time_unless_they_are_the_same() {
        let local = |text, hours| local_in(at(text), zone(hours));
        assert_eq!(local("2026-11-18T02:40:00Z", 1), "2026-11-18 03:40 +01:00 (02:40Z)");
        assert_eq!(local("2026-11-17T23:40:05Z", 1), "2026-11-18 00:40:05 +01:00 (2026-11-17 23:40:05Z)");
        assert_eq!(local("2026-11-18T02:40:00Z", 0), "2026-11-18T02:40:00Z");
        assert_eq!(local_in(at("2026-11-18T02:40:00Z"), TimeZone::unknown()), "2026-11-18T02:40:00Z");
    }

    #[test]
    fn the_name_of_a_slot_stays_as_it_is_typed() {
        let slot = |name: &str, text, hours| slot_in(name, at(text), zone(hours));
        let (name, time) = ("2026-11-18T02:40:00Z", "2026-11-18T02:40:00Z");
        assert_eq!(slot(name, time, 0), name);
        assert_eq!(slot(name, time, 1), format!("{name} (03:40 +01:00)"));
        assert_eq!(slot(name, time, -5), format!("{name} (2026-11-17 21:40 -05:00)"));
        let tokyo = "2026-11-19T03:00+09:00";
        assert_eq!(slot(tokyo, "2026-11-18T18:00:00Z", 1), format!("{tokyo} (2026-11-18 19:00 +01:00)"));
        assert_eq!(slot("2026-11-18T03:40+01:00", time, 1), "2026-11-18T03:40+01:00 (02:40Z)");
    }

    #[test]
    fn times_without_an_offset_are_understood() {
        let typed = |text| typed(text, at("2026-11-18T10:30:00Z"), &zone(1)).map(|shown| shown.to_string());
        for (text, shown) in [
            ("03:00", "2026-11-18T03:00:00"),
            ("3:00", "2026-11-18T03:00:00"),
            ("11:30", "2026-11-18T11:30:00"),
            ("11:31", "2026-11-17T11:31:00"),
            ("today 23:00:10", "2026-11-18T23:00:10"),
            ("yesterday 03:00", "2026-11-17T03:00:00"),
            ("2026-11-16T05:45", "2026-11-16T05:45:00"),
            ("2026-11-16 05:45", "2026-11-16T05:45:00"),
        ] {
            assert_eq!(typed(text).as_deref(), Some(shown), "{text}");
        }
        for text in
            ["", "soon", "0300", "2026-11-16", "03:00Z", "2026-11-16T05:45Z", "24:00", "tomorrow 03:00"]
        {
            assert_eq!(typed(text), None, "{text}");
        }
    }
}
