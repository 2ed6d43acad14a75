//! Durations as people type them: `90s`, `80m`, `1h20m`, `1d`.

use std::time::Duration;

use jiff::{SpanRelativeTo, SpanRound, Unit};

/// The longest duration: a typo such as `9000d` should not become a lease.
const MOST: Duration = Duration::from_secs(366 * 86_400);

/// Reads a duration. The error says what to write.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(format!("{text:?} has no unit; write {text}s, {text}m or {text}h"));
    }
    if let Some(number) = text.strip_suffix('M') {
        return Err(format!("{text:?} could mean minutes or months; write {number}m for minutes"));
    }
    let wrong = || format!("{text:?} is not a duration; write it like 90s, 80m, 1h20m or 1d");
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let calendar = span.get_years() != 0 || span.get_months() != 0 || span.get_weeks() != 0;
    if calendar || span.is_negative() {
        return Err(wrong());
    }
    let days = SpanRelativeTo::days_are_24_hours();
    let total = span.round(SpanRound::new().largest(Unit::Second).relative(days)).map_err(|_| wrong())?;
    let total = total.to_duration(days).ok().and_then(|d| Duration::try_from(d).ok()).ok_or_else(wrong)?;
    if total > MOST {
        return Err(format!("{text:?} is longer than a year"));
    }
    Ok(total)
}

/// Reads a duration, or `none`.
pub fn parse_or_none(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "none" => Ok(None),
        _ => match parse(text)? {
            Duration::ZERO => Err(format!("{text:?} leaves no time at all; write none for no limit")),
            limit => Ok(Some(limit)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type() {
        let read = |text| parse(text).unwrap().as_millis();
        assert_eq!(read("90s"), 90_000);
        assert_eq!(read("80m"), 4_800_000);
        assert_eq!(read("1h20m"), 4_800_000);
        assert_eq!(read("1h 20m"), 4_800_000);
        assert_eq!(read("1d"), 86_400_000);
        assert_eq!(read("500ms"), 500);
        assert_eq!(read("PT90S"), 90_000);
        assert_eq!(read("1.5s"), 1_500);
    }

    #[test]
    fn what_is_refused_says_why() {
        assert!(parse("90").unwrap_err().contains("write 90s"));
        assert!(parse("1M").unwrap_err().contains("1m for minutes"));
        for bad in ["", "abc", "-5s", "1y", "1mo", "2w", "9000d", "5s ago", "1e9s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
