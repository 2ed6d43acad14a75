//! What a schedule should do, from first principles: every minute is looked at, and nothing is clever.
//!
//! Shares no code with what it judges. Of jiff it asks only what a wall clock shows at an instant.

use std::collections::HashSet;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold_run::schedule::{Gap, Overlap, Policy};

use crate::checks::Fired;

/// What a wall clock shows during one minute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// In minutes since the epoch.
    utc: i64,
    /// Minutes that the wall clock is ahead of UTC.
    ahead: i64,
    minute: usize,
    hour: usize,
    day: usize,
    month: usize,
    weekday: usize,
    days_in_month: usize,
    /// Not shown before, as far as this clock goes back.
    first: bool,
    /// Not shown again.
    last: bool,
}

impl Shown {
    /// In minutes since the epoch of the wall clock.
    fn local(&self) -> i64 {
        self.utc + self.ahead
    }

    fn fired(&self, due: i64) -> Fired {
        Fired { due: due * 60, local: self.local(), offset: self.ahead * 60 }
    }

    /// A later minute of the wall clock, which it may never have shown.
    fn plus(&self, minutes: i64) -> Shown {
        shown(self.utc + minutes, self.ahead)
    }
}

fn shown(utc: i64, ahead: i64) -> Shown {
    let at = Timestamp::from_second((utc + ahead) * 60).unwrap();
    of_date_time(jiff::tz::Offset::UTC.to_datetime(at), utc, ahead)
}

fn of_date_time(at: jiff::civil::DateTime, utc: i64, ahead: i64) -> Shown {
    Shown {
        utc,
        ahead,
        minute: at.minute() as usize,
        hour: at.hour() as usize,
        day: at.day() as usize,
        month: at.month() as usize,
        weekday: at.weekday().to_sunday_zero_offset() as usize,
        days_in_month: at.days_in_month() as usize,
        first: true,
        last: true,
    }
}

/// What the wall clock of a zone shows from one minute to another.
pub fn clock(zone: &TimeZone, from: i64, to: i64) -> Vec<Shown> {
    let mut minutes: Vec<Shown> = Vec::with_capacity((to - from) as usize);
    for utc in from..to {
        let at = Timestamp::from_second(utc * 60).unwrap();
        let ahead = i64::from(zone.to_offset(at).seconds());
        assert_eq!(ahead % 60, 0, "a zone with seconds, which this clock has not");
        // Asking for a date is slow; within an hour only the minute moves.
        let minute = match minutes.last() {
            Some(last) if last.ahead * 60 == ahead && last.minute < 59 => {
                Shown { utc, minute: last.minute + 1, ..*last }
            }
            _ => shown(utc, ahead / 60),
        };
        minutes.push(minute);
    }
    if minutes.iter().any(|minute| minute.ahead != minutes[0].ahead) {
        mark_passes(&mut minutes);
    }
    minutes
}

fn mark_passes(clock: &mut [Shown]) {
    let mut seen = HashSet::new();
    for now in clock.iter_mut() {
        now.first = seen.insert(now.local());
    }
    seen.clear();
    for now in clock.iter_mut().rev() {
        now.last = seen.insert(now.local());
    }
}

/// A pattern as a table of yes and no for each field.
pub struct Pattern {
    minutes: Vec<bool>,
    hours: Vec<bool>,
    months: Vec<bool>,
    days: String,
    weekdays: String,
    plain_days: Vec<bool>,
    plain_weekdays: Vec<bool>,
    /// Follows time as it passes.
    pub interval: bool,
}

impl Pattern {
    pub fn read(text: &str) -> Pattern {
        let text = match text {
            "@hourly" => "0 * * * *",
            "@daily" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            text => text,
        };
        let mut text = text.to_uppercase();
        for (n, name) in ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"].iter().enumerate() {
            text = text.replace(name, &n.to_string());
        }
        for (n, name) in ["JAN", "FEB", "MAR", "APR", "MAY", "JUN"].iter().enumerate() {
            text = text.replace(name, &(n + 1).to_string());
        }
        for (n, name) in ["JUL", "AUG", "SEP", "OCT", "NOV", "DEC"].iter().enumerate() {
            text = text.replace(name, &(n + 7).to_string());
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else { panic!("{text}") };
        let mut plain_weekdays = values(weekdays, 0, 7);
        plain_weekdays[0] |= plain_weekdays[7];
        Pattern {
            minutes: values(minutes, 0, 59),
            hours: values(hours, 0, 23),
            months: values(months, 1, 12),
            plain_days: values(days, 1, 31),
            plain_weekdays,
            interval: minutes.starts_with('*') || hours.starts_with('*'),
            days: days.into(),
            weekdays: weekdays.into(),
        }
    }

    pub fn fits(&self, at: &Shown) -> bool {
        self.minutes[at.minute] && self.hours[at.hour] && self.months[at.month] && self.fits_day(at)
    }

    fn fits_day(&self, at: &Shown) -> bool {
        let by_date = self.plain_days[at.day] || self.days.split(',').any(|item| is_special_day(item, at));
        let by_week = self.plain_weekdays[at.weekday]
            || self.weekdays.split(',').any(|item| is_special_weekday(item, at));
        if self.days.starts_with('*') || self.weekdays.starts_with('*') {
            by_date && by_week
        } else {
            by_date || by_week
        }
    }
}

fn is_special_day(item: &str, at: &Shown) -> bool {
    let last = at.days_in_month;
    let weekday_of = |day: usize| (at.weekday + 35 + day - at.day) % 7;
    let working = |day: usize| (1..=5).contains(&weekday_of(day));
    match item {
        "L" => at.day == last,
        "LW" => working(at.day) && (at.day + 1..=last).all(|day| !working(day)),
        _ => match item.strip_suffix('W').map(|day| day.parse::<usize>().unwrap()) {
            // The nearest; there are never two.
            Some(day) if day <= last => {
                let distance = |other: usize| other.abs_diff(day);
                let nearest = (1..=last).filter(|day| working(*day)).min_by_key(|day| distance(*day));
                nearest == Some(at.day)
            }
            _ => false,
        },
    }
}

fn is_special_weekday(item: &str, at: &Shown) -> bool {
    let is = |weekday: &str| weekday.parse::<usize>().unwrap() % 7 == at.weekday;
    if let Some(weekday) = item.strip_suffix('L') {
        return is(weekday) && at.day + 7 > at.days_in_month;
    }
    match item.split_once('#') {
        Some((weekday, nth)) => is(weekday) && at.day.div_ceil(7) == nth.parse::<usize>().unwrap(),
        None => false,
    }
}

/// Which values from `least` to `most` a field names; what only the days have is left out.
fn values(field: &str, least: usize, most: usize) -> Vec<bool> {
    let mut found = vec![false; most + 1];
    for item in field.split(',').filter(|item| !item.contains(['L', 'W', '#'])) {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let (from, to) = match (range, range.split_once('-')) {
            ("*", _) => (least, most),
            (_, Some((from, to))) => (from.parse().unwrap(), to.parse().unwrap()),
            (only, None) => (only.parse().unwrap(), only.parse().unwrap()),
        };
        let (step, mut value, mut walked) = (step.parse::<usize>().unwrap(), from, 0);
        // One by one around the circle, so that a range that wraps is nothing special.
        loop {
            if walked % step == 0 {
                found[value] = true;
            }
            if value == to {
                break;
            }
            walked += 1;
            value = if value == most { least } else { value + 1 };
            // Sunday is on the circle once.
            if most == 7 && value == 7 && to != 7 {
                value = 0;
            }
        }
    }
    found
}

/// Everything that is due on a clock, in order.
///
/// What is near its ends is judged without what comes before and after: leave it out.
pub fn due(pattern: &Pattern, policy: Policy, clock: &[Shown]) -> Vec<Fired> {
    let mut found = Vec::new();
    let mut before = &clock[0];
    for now in clock {
        let fits = pattern.fits(now);
        let counts = match policy.overlap {
            Overlap::First => now.first,
            Overlap::Last => now.last,
        };
        let skipped = now.local() - before.local() - 1;
        if skipped > 0 && !fits && !pattern.interval && policy.gap == Gap::Run {
            let mut times = (1..=skipped).map(|minutes| before.plus(minutes));
            found.extend(times.find(|time| pattern.fits(time)).map(|time| time.fired(now.utc)));
        }
        if fits && (counts || pattern.interval) {
            found.push(now.fired(now.utc));
        }
        before = now;
    }
    found
}
