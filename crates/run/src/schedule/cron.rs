//! A cron pattern, compiled to bits, over a calendar without time zones.
//!
//! Time here is a count of *local minutes*: minutes of a wall clock since its 1970-01-01 00:00. Searching
//! jumps over months, days and hours by their bits; no minute is looked at that does not match.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::Offset;

use super::parse::{self, CronError};

pub(super) const MINUTES_OF_A_DAY: i64 = 24 * 60;

/// When a job runs, as five fields: minute, hour, day of the month, month, day of the week.
///
/// Lists, ranges and steps; names of months and weekdays; Sunday is 0 or 7 and Monday 1. Ranges of hours,
/// months and weekdays may wrap (`FRI-MON`, `22-2`). Days of the month also `L` (the last), `15W` (the weekday
/// nearest to the 15th) and `LW`; days of the week also `5L` (the last Friday) and `1#2` (the second Monday).
/// `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly` and `@annually` stand for what they say.
///
/// If neither day field begins with `*`, a day that fits either of them fits; otherwise it must fit both.
/// A field that begins with `*` counts as `*` there, whatever follows, as in every cron since Vixie's.
///
/// ```
/// use leasehold_run::schedule::Cron;
///
/// assert!(Cron::parse("0 9 * * MON-FRI").is_ok());
/// let error = Cron::parse("*/45 * * * *").unwrap_err();
/// assert!(error.to_string().contains("write every = \"45m\""));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cron {
    fields: Fields,
    /// Shared: many jobs have the same pattern.
    text: Arc<str>,
}

/// The five fields; bit n stands for the value n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fields {
    pub minutes: u64,
    pub hours: u32,
    pub months: u16,
    pub days: Days,
    pub weekdays: Weekdays,
    /// Whether the minute or the hour begins with `*`: such a job follows time as it passes.
    pub interval: bool,
}

/// Days of the month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Days {
    pub plain: u32,
    /// The weekday nearest to each of these.
    pub nearest: u32,
    pub last: bool,
    pub last_working: bool,
    pub star: bool,
}

/// Days of the week, from Sunday.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Weekdays {
    pub plain: u8,
    /// Only the first of the month, the second, and so on.
    pub nth: [u8; 5],
    /// Only the last of the month.
    pub last: u8,
    pub star: bool,
}

impl Cron {
    /// Reads a pattern; the error says where it is wrong and what to write.
    pub fn parse(text: &str) -> Result<Cron, CronError> {
        let text = text.trim_ascii_end();
        let cron = Cron { fields: parse::fields(text)?, text: text.trim_ascii().into() };
        if cron.ever() { Ok(cron) } else { Err(CronError::never(text)) }
    }

    /// The pattern as numbers and ranges: patterns with the same times give the same text. A field of days that counts as
    /// `*` begins with `*`. The text begins with `~` if the job follows time as it passes.
    pub fn canonical(&self) -> String {
        let Fields { minutes, hours, months, days, weekdays, interval } = self.fields;
        let mut days_of_month = ranges(days.plain.into());
        days_of_month.extend(values(days.nearest.into()).map(|day| format!("{day}W")));
        days_of_month.extend(days.last.then(|| "L".into()));
        days_of_month.extend(days.last_working.then(|| "LW".into()));
        let mut days_of_week = ranges(weekdays.plain.into());
        for (nth, days) in weekdays.nth.into_iter().enumerate() {
            days_of_week.extend(values(days.into()).map(|day| format!("{day}#{}", nth + 1)));
        }
        days_of_week.extend(values(weekdays.last.into()).map(|day| format!("{day}L")));
        // A star decides whether both fields of days must match, or one of them.
        let star = |star: bool, list: Vec<String>| match (star, list.join(",").as_str()) {
            (true, "1-31" | "0-6") => "*".into(),
            (true, list) => format!("*/{list}"),
            (false, list) => list.to_owned(),
        };
        let listed = |bits: u64, all: &str| match ranges(bits).join(",") {
            list if list == all => "*".into(),
            list => list,
        };
        format!(
            "{}{} {} {} {} {}",
            if interval { "~" } else { "" },
            listed(minutes, "0-59"),
            listed(hours.into(), "0-23"),
            star(days.star, days_of_month),
            listed(months.into(), "1-12"),
            star(weekdays.star, days_of_week),
        )
    }

    /// Whether the job follows time as it passes, because its minute or its hour begins with `*`. Such a job
    /// runs in both passes of an hour that comes twice, and not for an hour that never comes.
    pub fn is_interval(&self) -> bool {
        self.fields.interval
    }

    /// Whether there is any such day. The calendar repeats itself after 400 years.
    fn ever(&self) -> bool {
        let years = 400 * 366 * MINUTES_OF_A_DAY;
        Month::containing(&self.fields, 0).is_some_and(|mut month| self.first(&mut month, 0, years).is_some())
    }

    pub(super) fn month(&self, minute: i64) -> Option<Month> {
        Month::containing(&self.fields, minute.div_euclid(MINUTES_OF_A_DAY))
    }

    /// The first local minute of the pattern from `from` on and before `end`. `month` is kept between calls.
    pub(super) fn first(&self, month: &mut Month, from: i64, end: i64) -> Option<i64> {
        if from >= end {
            return None;
        }
        let (mut day, mut time) = day_and_time(from);
        loop {
            month.turn_to(&self.fields, day)?;
            let today = day - month.first_day;
            if month.matching >> today & 1 == 1
                && let Some(time) = self.fields.time_from(time)
            {
                return Some(day * MINUTES_OF_A_DAY + time).filter(|found| *found < end);
            }
            time = 0;
            let later = month.matching >> today >> 1;
            if later != 0 {
                day += 1 + i64::from(later.trailing_zeros());
            } else {
                month.forward(&self.fields, end.div_euclid(MINUTES_OF_A_DAY))?;
                day = month.first_day + i64::from(month.matching.trailing_zeros());
            }
            if day * MINUTES_OF_A_DAY >= end {
                return None;
            }
        }
    }

    /// The last local minute of the pattern from `from` on and before `end`.
    pub(super) fn last(&self, month: &mut Month, from: i64, end: i64) -> Option<i64> {
        if from >= end {
            return None;
        }
        let (mut day, mut time) = day_and_time(end - 1);
        loop {
            month.turn_to(&self.fields, day)?;
            let today = day - month.first_day;
            if month.matching >> today & 1 == 1
                && let Some(time) = self.fields.time_until(time)
            {
                return Some(day * MINUTES_OF_A_DAY + time).filter(|found| *found >= from);
            }
            time = MINUTES_OF_A_DAY - 1;
            let earlier = month.matching & below(today);
            if earlier != 0 {
                day = month.first_day + i64::from(earlier.ilog2());
            } else {
                month.backward(&self.fields, from.div_euclid(MINUTES_OF_A_DAY))?;
                day = month.first_day + i64::from(month.matching.ilog2());
            }
            if (day + 1) * MINUTES_OF_A_DAY <= from {
                return None;
            }
        }
    }

    /// How many minutes match from `from` on and before `end`; by whole months, not one by one.
    pub(super) fn count(&self, month: &mut Month, from: i64, end: i64) -> u64 {
        if from >= end {
            return 0;
        }
        let ((day, since), (last_day, until)) = (day_and_time(from), day_and_time(end));
        let a_day = u64::from(self.fields.hours.count_ones() * self.fields.minutes.count_ones());
        let (mut whole_days, mut at) = (0, day);
        while at < last_day && month.turn_to(&self.fields, at).is_some() {
            let stop = last_day.min(month.first_day + month.days);
            let days = below(stop - month.first_day) & !below(at - month.first_day);
            whole_days += u64::from((month.matching & days).count_ones());
            at = stop;
        }
        let part = |month: &mut Month, day: i64, time: i64| {
            let fits = month.turn_to(&self.fields, day).is_some()
                && month.matching >> (day - month.first_day) & 1 == 1;
            if fits { self.fields.times_before(time) } else { 0 }
        };
        // All of the first day was counted, and nothing of the last.
        whole_days * a_day + part(month, last_day, until) - part(month, day, since)
    }
}

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Cron, CronError> {
        Cron::parse(text)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The values that have a bit.
fn values(bits: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |n| bits >> n & 1 == 1)
}

/// The same as ranges.
fn ranges(bits: u64) -> Vec<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for n in values(bits) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => ranges.push((n, n)),
        }
    }
    let shown = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    ranges.into_iter().map(shown).collect()
}

fn day_and_time(minute: i64) -> (i64, i64) {
    (minute.div_euclid(MINUTES_OF_A_DAY), minute.rem_euclid(MINUTES_OF_A_DAY))
}

/// The bits below bit `n`, of 31.
fn below(n: i64) -> u32 {
    (1 << n) - 1
}

impl Fields {
    /// The first time of a day from `time` on; both in minutes.
    fn time_from(&self, time: i64) -> Option<i64> {
        let (hour, minute) = (time / 60, time % 60);
        let rest = self.minutes >> minute;
        if self.hours >> hour & 1 == 1 && rest != 0 {
            return Some(time + i64::from(rest.trailing_zeros()));
        }
        let later = self.hours >> hour >> 1;
        let hour = hour + 1 + i64::from(later.trailing_zeros());
        (later != 0).then(|| hour * 60 + i64::from(self.minutes.trailing_zeros()))
    }

    /// The last time of a day at or before `time`.
    fn time_until(&self, time: i64) -> Option<i64> {
        let (hour, minute) = (time / 60, time % 60);
        let rest = self.minutes & (u64::MAX >> (63 - minute));
        if self.hours >> hour & 1 == 1 && rest != 0 {
            return Some(hour * 60 + i64::from(rest.ilog2()));
        }
        let hour = (self.hours & below(hour)).checked_ilog2()?;
        Some(i64::from(hour) * 60 + i64::from(self.minutes.checked_ilog2()?))
    }

    /// How many times of a day come before `time`.
    fn times_before(&self, time: i64) -> u64 {
        let (hour, minute) = (time / 60, time % 60);
        let whole = (self.hours & below(hour)).count_ones() * self.minutes.count_ones();
        let part = (self.minutes & ((1 << minute) - 1)).count_ones();
        u64::from(whole + if self.hours >> hour & 1 == 1 { part } else { 0 })
    }

    /// Which days of a month match; bit 0 is its first day.
    fn matching(&self, first_weekday: u32, days: i64) -> u32 {
        let month = below(days);
        let by_date = self.days.of(first_weekday, days);
        let by_week = self.weekdays.of(first_weekday, days);
        let both = self.days.star || self.weekdays.star;
        month & if both { by_date & by_week } else { by_date | by_week }
    }
}

impl Days {
    fn of(&self, first_weekday: u32, days: i64) -> u32 {
        let last = 1 << (days - 1);
        let mut found = self.plain >> 1;
        if self.last {
            found |= last;
        }
        if self.nearest == 0 && !self.last_working {
            return found;
        }
        let (saturdays, sundays) = (spread(1 << 6, first_weekday), spread(1, first_weekday));
        let mut nearest = self.nearest >> 1 & below(days);
        while nearest != 0 {
            let day = nearest & nearest.wrapping_neg();
            nearest ^= day;
            // Not in another month.
            found |= match () {
                () if day & saturdays != 0 && day == 1 => day << 2,
                () if day & saturdays != 0 => day >> 1,
                () if day & sundays != 0 && day == last => day >> 2,
                () if day & sundays != 0 => day << 1,
                () => day,
            };
        }
        if self.last_working {
            found |= 1 << (below(days) & !saturdays & !sundays).ilog2();
        }
        found
    }
}

impl Weekdays {
    fn of(&self, first_weekday: u32, days: i64) -> u32 {
        let mut found = spread(self.plain, first_weekday);
        for (week, weekdays) in self.nth.iter().enumerate() {
            found |= spread(*weekdays, first_weekday) & (0x7f << (7 * week));
        }
        found | spread(self.last, first_weekday) & !below(days - 7)
    }
}

/// The days of a month that are one of these weekdays; bit 0 is the first day.
fn spread(weekdays: u8, first_weekday: u32) -> u32 {
    let weekdays = u64::from(weekdays);
    let week = (weekdays >> first_weekday | weekdays << (7 - first_weekday)) & 0x7f;
    let every_week = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28;
    // The lost bits are past the 31st.
    (week * every_week) as u32 & 0x7fff_ffff
}

/// A month of the calendar, and which of its days match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Month {
    year: i64,
    month: u8,
    /// In days since 1970-01-01.
    first_day: i64,
    days: i64,
    matching: u32,
}

impl Month {
    /// `None` for a day out of range.
    fn containing(fields: &Fields, day: i64) -> Option<Month> {
        let midnight = Timestamp::from_second(day.checked_mul(86_400)?).ok()?;
        let date = Offset::UTC.to_datetime(midnight).date();
        let (year, month) = (i64::from(date.year()), date.month().unsigned_abs());
        Some(Month::new(fields, year, month, day + 1 - i64::from(date.day())))
    }

    fn new(fields: &Fields, year: i64, month: u8, first_day: i64) -> Month {
        let days = days_in(year, month);
        let wanted = fields.months >> month & 1 == 1;
        // 1970-01-01 was a Thursday.
        let first_weekday = (first_day + 4).rem_euclid(7) as u32;
        let matching = if wanted { fields.matching(first_weekday, days) } else { 0 };
        Month { year, month, first_day, days, matching }
    }

    fn turn_to(&mut self, fields: &Fields, day: i64) -> Option<()> {
        if !(self.first_day..self.first_day + self.days).contains(&day) {
            *self = Month::containing(fields, day)?;
        }
        Some(())
    }

    /// Goes to the next month with a day that matches, unless it begins after `last_day`.
    fn forward(&mut self, fields: &Fields, last_day: i64) -> Option<()> {
        loop {
            let first_day = self.first_day + self.days;
            if first_day > last_day {
                return None;
            }
            let (year, month) =
                if self.month == 12 { (self.year + 1, 1) } else { (self.year, self.month + 1) };
            *self = Month::new(fields, year, month, first_day);
            if self.matching != 0 {
                return Some(());
            }
        }
    }

    /// Goes back to the last month with a day that matches, unless it ends before `first_day`.
    fn backward(&mut self, fields: &Fields, first_day: i64) -> Option<()> {
        loop {
            if self.first_day <= first_day {
                return None;
            }
            let (year, month) =
                if self.month == 1 { (self.year - 1, 12) } else { (self.year, self.month - 1) };
            *self = Month::new(fields, year, month, self.first_day - days_in(year, month));
            if self.matching != 0 {
                return Some(());
            }
        }
    }
}

fn days_in(year: i64, month: u8) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
