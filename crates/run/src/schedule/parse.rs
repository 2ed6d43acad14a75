//! Reads a cron pattern, or tells what is wrong with it.

use std::fmt;

use leasehold::text::did_you_mean;

use super::cron::{Days, Fields, Weekdays};

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MACROS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// One of the five fields of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// From 0 to 59.
    Minute,
    /// From 0 to 23.
    Hour,
    /// From 1 to 31.
    DayOfMonth,
    /// From 1 to 12, or a name.
    Month,
    /// From 0 to 7, or a name; 0 and 7 are Sunday.
    DayOfWeek,
}

const FIELDS: [Field; 5] = [Field::Minute, Field::Hour, Field::DayOfMonth, Field::Month, Field::DayOfWeek];

impl Field {
    fn least_and_most(self) -> (u32, u32) {
        match self {
            Field::Minute => (0, 59),
            Field::Hour => (0, 23),
            Field::DayOfMonth => (1, 31),
            Field::Month => (1, 12),
            Field::DayOfWeek => (0, 7),
        }
    }

    /// How many values there are.
    fn size(self) -> u32 {
        match self {
            Field::DayOfWeek => 7,
            _ => self.least_and_most().1 - self.least_and_most().0 + 1,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Minute => "minute",
            Field::Hour => "hour",
            Field::DayOfMonth => "day of the month",
            Field::Month => "month",
            Field::DayOfWeek => "day of the week",
        })
    }
}

/// Why a text is not a cron pattern: where it is wrong, how, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronError {
    at: usize,
    field: Option<Field>,
    why: String,
}

impl CronError {
    /// Where in the text, in bytes.
    pub fn position(&self) -> usize {
        self.at
    }

    /// In which field; `None` if the pattern as a whole is wrong.
    pub fn field(&self) -> Option<Field> {
        self.field
    }

    fn whole(at: usize, why: impl Into<String>) -> CronError {
        CronError { at, field: None, why: why.into() }
    }

    pub(super) fn never(text: &str) -> CronError {
        let at = words(text).get(2).map_or(0, |(at, _)| *at);
        CronError::whole(at, format!("`{}` never happens: there is no such day in any year", text.trim()))
    }
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "{field}, at byte {}: {}", self.at, self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for CronError {}

/// A piece of a field: its text and its position.
#[derive(Clone, Copy)]
struct Piece<'a> {
    field: Field,
    at: usize,
    text: &'a str,
}

impl<'a> Piece<'a> {
    fn wrong<T>(self, why: impl Into<String>) -> Result<T, CronError> {
        Err(CronError { at: self.at, field: Some(self.field), why: why.into() })
    }

    /// A part of this piece.
    fn part(self, from: usize, to: usize) -> Piece<'a> {
        Piece { at: self.at + from, text: &self.text[from..to], ..self }
    }

    fn split_once(self, by: char) -> Option<(Piece<'a>, Piece<'a>)> {
        let middle = self.text.find(by)?;
        Some((self.part(0, middle), self.part(middle + 1, self.text.len())))
    }

    /// Without this letter at its end, in either case.
    fn without_suffix(self, letter: char) -> Option<Piece<'a>> {
        let last = self.text.chars().next_back()?;
        last.eq_ignore_ascii_case(&letter).then(|| self.part(0, self.text.len() - 1))
    }

    fn items(self) -> impl Iterator<Item = Piece<'a>> {
        let mut at = 0;
        self.text.split(',').map(move |item| {
            let from = at;
            at += item.len() + 1;
            self.part(from, from + item.len())
        })
    }
}

/// The words of a text and their positions.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| !c.is_ascii_whitespace()) {
        let word = &rest[start..];
        let word = &word[..word.find(|c: char| c.is_ascii_whitespace()).unwrap_or(word.len())];
        found.push((text.len() - rest.len() + start, word));
        rest = &rest[start + word.len()..];
    }
    found
}

pub(super) fn fields(text: &str) -> Result<Fields, CronError> {
    let words = words(text);
    if let Some((at, name)) = words.first().filter(|(_, word)| word.starts_with('@')) {
        if let Some((at, _)) = words.get(1) {
            return Err(CronError::whole(*at, format!("nothing may follow {name}")));
        }
        return fields(written_out(name, *at)?);
    }
    if let Some((at, word)) = words.iter().find(|(_, word)| word.contains('=')) {
        let why = format!("`{word}` is not a part of the pattern: write the time zone as a key of its own");
        return Err(CronError::whole(*at, why));
    }
    if words.len() != 5 {
        return Err(wrong_number(text, &words));
    }
    let piece = |n: usize| Piece { field: FIELDS[n], at: words[n].0, text: words[n].1 };
    let star = |n: usize| words[n].1.starts_with('*');
    Ok(Fields {
        minutes: plain(piece(0))?,
        hours: plain(piece(1))? as u32,
        days: days(piece(2))?,
        months: plain(piece(3))? as u16,
        weekdays: weekdays(piece(4))?,
        interval: star(0) || star(1),
    })
}

fn written_out(name: &str, at: usize) -> Result<&'static str, CronError> {
    let lower = name.to_ascii_lowercase();
    if lower == "@reboot" {
        let why = "@reboot names no time, so machines could not agree that it was done; \
                   start the job from systemd, or give it a schedule";
        return Err(CronError::whole(at, why));
    }
    if let Some((_, pattern)) = MACROS.iter().find(|(known, _)| *known == lower) {
        return Ok(pattern);
    }
    let known = MACROS.map(|(known, _)| known);
    let hint = match did_you_mean(&lower, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the known names are {}", known.join(", ")),
    };
    Err(CronError::whole(at, format!("{name} is not known: {hint}")))
}

fn wrong_number(text: &str, words: &[(usize, &str)]) -> CronError {
    let order = "minute, hour, day of the month, month, day of the week";
    match words.len() {
        found @ 0..=4 => {
            let why = format!("{found} of five fields; write {order}, such as `30 4 * * *`");
            CronError::whole(text.len(), why)
        }
        found @ 6..=7 => {
            let why = format!(
                "{found} fields instead of five ({order}): seconds and years are not supported; for less than \
                 a minute write every = \"10s\""
            );
            CronError::whole(words[5].0, why)
        }
        found => {
            let why =
                format!("{found} fields instead of five ({order}): write the command as a key of its own");
            CronError::whole(words[5].0, why)
        }
    }
}

fn plain(field: Piece<'_>) -> Result<u64, CronError> {
    field.items().try_fold(0, |bits, item| Ok(bits | values(item)?))
}

fn days(field: Piece<'_>) -> Result<Days, CronError> {
    let mut days = Days { star: field.text.starts_with('*'), ..Days::default() };
    for item in field.items() {
        if item.text.eq_ignore_ascii_case("L") {
            days.last = true;
        } else if item.text.eq_ignore_ascii_case("LW") {
            days.last_working = true;
        } else if item.text.starts_with(['L', 'l']) {
            return item.wrong(format!("`{}` is not known; write L for the last day or LW", item.text));
        } else if let Some(day) = item.without_suffix('W') {
            days.nearest |= 1 << one_value(day)?;
        } else {
            days.plain |= values(item)? as u32;
        }
    }
    Ok(days)
}

fn weekdays(field: Piece<'_>) -> Result<Weekdays, CronError> {
    let mut weekdays = Weekdays { star: field.text.starts_with('*'), ..Weekdays::default() };
    for item in field.items() {
        if item.text.eq_ignore_ascii_case("L") {
            return item.wrong("L needs a weekday; write 5L for the last Friday of a month");
        } else if let Some(day) = item.without_suffix('L') {
            weekdays.last |= 1 << (one_value(day)? % 7);
        } else if let Some((day, nth)) = item.split_once('#') {
            match nth.text.parse::<usize>() {
                Ok(which @ 1..=5) => weekdays.nth[which - 1] |= 1 << (one_value(day)? % 7),
                _ => {
                    return nth.wrong(format!("`{}` is not from 1 to 5: 1#2 is the second Monday", nth.text));
                }
            }
        } else {
            weekdays.plain |= values(item)? as u8;
        }
    }
    Ok(weekdays)
}

/// The values of `*`, of a number or of a range, each with or without a step.
fn values(item: Piece<'_>) -> Result<u64, CronError> {
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (item, None),
    };
    let (least, most) = range.field.least_and_most();
    let (from, to) = if range.text == "*" {
        (least, least + range.field.size() - 1)
    } else if let Some((from, to)) = range.split_once('-') {
        unwrapped(range, one_value(from)?, one_value(to)?)?
    } else {
        let only = one_value(range)?;
        if let Some(step) = step {
            let why = format!("`{}` could mean two things; write {only}-{most}/{}", item.text, step.text);
            return item.wrong(why);
        }
        (only, only)
    };
    let step = step.map_or(Ok(1), |step| checked_step(item, step, from, to))?;
    // Past its end a field starts again: the 7th weekday is Sunday, the 13th month January.
    let around = |value: u32| (value - least) % range.field.size() + least;
    Ok((from..=to).step_by(step as usize).fold(0, |bits, value| bits | 1 << around(value)))
}

/// A range whose end comes after its start, if necessary past the end of the field.
fn unwrapped(range: Piece<'_>, from: u32, to: u32) -> Result<(u32, u32), CronError> {
    let (least, most) = range.field.least_and_most();
    if from <= to {
        return Ok((from, to));
    }
    match range.field {
        Field::Hour | Field::Month | Field::DayOfWeek => Ok((from, to + range.field.size())),
        // Months differ in length, and a range of minutes that wraps is more often a mistake.
        Field::Minute | Field::DayOfMonth => {
            range.wrong(format!("`{}` runs backwards; write {from}-{most},{least}-{to}", range.text))
        }
    }
}

fn checked_step(item: Piece<'_>, step: Piece<'_>, from: u32, to: u32) -> Result<u32, CronError> {
    let Some(every) = number(step.text).filter(|every| *every > 0) else {
        return step.wrong(format!("`{}` is not a step; write a number of 1 or more", step.text));
    };
    if every == 1 {
        return Ok(1);
    }
    let field = item.field;
    let all = from == field.least_and_most().0 && to - from + 1 == field.size();
    let uneven = all && matches!(field, Field::Minute | Field::Hour) && !field.size().is_multiple_of(every);
    if uneven {
        return item.wrong(uneven_step(item, every, from, to));
    }
    if every > to - from {
        return item.wrong(format!("`{}` means only {from}; write {from}, or a smaller step", item.text));
    }
    Ok(every)
}

/// People who write `*/45` mean every 45 minutes, which cron does not.
fn uneven_step(item: Piece<'_>, every: u32, from: u32, to: u32) -> String {
    let times: Vec<u32> = (from..=to).step_by(every as usize).collect();
    let list = times.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let (unit, name, shown) = match item.field {
        Field::Minute => ("m", "minutes", times.iter().map(|at| format!(":{at:02}")).collect::<Vec<_>>()),
        _ => ("h", "hours", times.iter().map(|at| format!("{at:02}:00")).collect()),
    };
    let means = match shown.as_slice() {
        [only] => only.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
        [] => String::new(),
    };
    format!(
        "`{}` means {means}, not every {every} {name}; write every = \"{every}{unit}\", \
         or {list} if that is what you mean",
        item.text
    )
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn one_value(piece: Piece<'_>) -> Result<u32, CronError> {
    let Piece { field, text, .. } = piece;
    let (least, most) = field.least_and_most();
    let names: &[&str] = match field {
        Field::Month => &MONTHS,
        Field::DayOfWeek => &WEEKDAYS,
        _ => &[],
    };
    if let Some(index) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(index as u32 + least);
    }
    match number(text) {
        Some(value) if (least..=most).contains(&value) => Ok(value),
        Some(24) if field == Field::Hour => piece.wrong("24 is not from 0 to 23: midnight is 0"),
        Some(value) => piece.wrong(format!("{value} is not from {least} to {most}")),
        None => piece.wrong(not_a_value(text, names, least, most)),
    }
}

fn not_a_value(text: &str, names: &[&str], least: u32, most: u32) -> String {
    let name = names.iter().find(|name| {
        text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && text.bytes().all(|b| b.is_ascii_alphabetic())
    });
    match (text, name) {
        ("", _) => format!("a value is missing; write a number from {least} to {most}, or *"),
        ("?", _) => "? is not known here; write *".into(),
        ("*", _) => "* stands alone or before a step, such as */5".into(),
        (_, Some(name)) => format!("`{text}` is not known; write {name}"),
        _ if names.is_empty() => format!("`{text}` is not a number from {least} to {most}"),
        _ => format!("`{text}` is neither a number from {least} to {most} nor a name such as {}", names[0]),
    }
}
