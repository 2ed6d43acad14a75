//! The signs. Each has a shape of its own, so that nothing depends on colours.

use std::fmt::Write as _;

use leasehold::core::run_log::LogEvent;

use super::super::model::Kind;

/// The class of what belongs to a kind of mark.
pub fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Gap => "tl-gap",
        Kind::Other => "tl-other",
        Kind::Event(event) if event.by_person() => "tl-person",
        Kind::Event(event) => match event {
            LogEvent::Ok => "tl-ok",
            LogEvent::Failed => "tl-failed",
            LogEvent::Skipped => "tl-skipped",
            LogEvent::Lost => "tl-lost",
            LogEvent::Killed => "tl-killed",
            LogEvent::Unknown => "tl-unknown",
            LogEvent::Released => "tl-released",
            LogEvent::Unsealed => "tl-unfenced",
            LogEvent::Dropped => "tl-dropped",
            LogEvent::Refused => "tl-refused",
            LogEvent::Observed => "tl-observed",
            _ => "tl-other",
        },
    }
}

/// The path of a sign in a square of 12, and whether it is filled.
fn path(kind: Kind) -> (&'static str, bool) {
    const PERSON: &str = "M6 2a2 2 0 1 1 0 4a2 2 0 1 1 0-4zM2 11a4 4 0 0 1 8 0z";
    let Kind::Event(event) = kind else {
        return if kind == Kind::Gap { ("M1 3H11V9H1z", false) } else { ("M1.5 7q2.2-4 4.5-1t4.5-1", false) };
    };
    match event {
        LogEvent::Ok => ("M2.5 6.5L5 9L9.5 3", false),
        LogEvent::Failed => ("M1.5 3H10.5L6 10.5z", true),
        LogEvent::Skipped => ("M6 3.6a2.4 2.4 0 1 1 0 4.8a2.4 2.4 0 1 1 0-4.8z", true),
        LogEvent::Lost => ("M6 1.8V7M6 9.6V10.2", false),
        LogEvent::Killed => ("M3 3H9V9H3z", true),
        LogEvent::Unknown => ("M3.6 4.2a2.4 2.4 0 1 1 3.5 2.1C6.3 6.8 6 7.2 6 8M6 10.1V10.4", false),
        LogEvent::Released => ("M6 3a3 3 0 1 1 0 6a3 3 0 1 1 0-6z", false),
        LogEvent::Unsealed => ("M1.5 4.2H10.5M1.5 8.2H10.5M4 2V10.5M8 2V10.5", false),
        LogEvent::Dropped => ("M6 1.4a4.6 4.6 0 1 1 0 9.2a4.6 4.6 0 1 1 0-9.2z", false),
        LogEvent::Refused => ("M2 2L10 10M10 2L2 10", false),
        LogEvent::Observed => ("M1 6Q6 1.5 11 6Q6 10.5 1 6zM6 5.2V6.8", false),
        LogEvent::Break
        | LogEvent::Retry
        | LogEvent::Done
        | LogEvent::Pause
        | LogEvent::Resume
        | LogEvent::Forget => (PERSON, true),
    }
}

/// Draws a sign, inside a group of its class.
pub fn draw(out: &mut String, kind: Kind, x: f64, y: f64) {
    let (path, filled) = path(kind);
    let class = if filled { "tl-sign tl-solid" } else { "tl-sign" };
    let _ = write!(out, r#"<path class="{class}" transform="translate({x:.1} {y:.1})" d="{path}"/>"#);
}

/// Draws a sign by itself.
pub fn for_legend(out: &mut String, kind: Kind, x: f64, y: f64) {
    let _ = write!(out, r#"<g class="tl-key {}">"#, class(kind));
    draw(out, kind, x, y);
    out.push_str("</g>");
}
