//! What a picture says in words.

use std::time::Duration;

use jiff::Zoned;
use jiff::tz::TimeZone;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::run_log::LogEvent;
use leasehold::text::one_line;

use super::layout::local;
use super::model::{About, Kind, Mark, Timeline, Whose};
use crate::messages::{refusals, timeline as say};

/// What a kind of mark means, for a legend.
pub fn meaning(kind: Kind) -> String {
    let Kind::Event(event) = kind else {
        return if kind == Kind::Gap { say::gap() } else { say::other() };
    };
    match event {
        LogEvent::Ok => say::ok(),
        LogEvent::Failed => say::failed(),
        LogEvent::Skipped => say::skipped(),
        LogEvent::Lost => say::lost(),
        LogEvent::Killed => say::killed(),
        LogEvent::Unknown => say::unknown(),
        LogEvent::Released => say::released(),
        LogEvent::Unsealed => say::unfenced(),
        LogEvent::Dropped => say::dropped(),
        LogEvent::Refused => say::refused(),
        LogEvent::Observed => say::observed(),
        event if event.by_person() => say::person(),
        _ => say::other(),
    }
}

/// The name of a lane.
pub fn whose(whose: &Whose) -> String {
    match whose {
        Whose::Machine(host) => one_line(host),
        Whose::Machines(count) => say::machines(count),
        Whose::Nobody => say::nobody(),
    }
}

/// The name of a row.
pub fn about(about: &About) -> String {
    match about {
        About::Job(job) => one_line(job),
        About::Jobs(count) => say::jobs(count),
        About::Gaps => say::between_runs(),
        About::Dropped => say::dropped_slots(),
    }
}

/// The window, and the zone of the times.
pub fn window(timeline: &Timeline) -> String {
    let times = Times::new(timeline);
    let (from, to) = (local(timeline.window.since, &times.zone), local(timeline.window.until, &times.zone));
    let day = |at: &Zoned| at.strftime("%a %d %b %Y %H:%M").to_string();
    let one_day = matches!((&from, &to), (Some(from), Some(to)) if from.date() == to.date());
    let to_text = match one_day {
        true => to.map(|to| to.strftime("%H:%M").to_string()),
        false => to.as_ref().map(day),
    };
    let zone = match times.zone.iana_name() {
        Some(name) => name.to_owned(),
        None => from.as_ref().map_or_else(|| "UTC".into(), |from| from.strftime("UTC%:z").to_string()),
    };
    say::between(from.as_ref().map(day).unwrap_or_default(), to_text.unwrap_or_default(), zone)
}

/// Times in words: with the day, if the window has more than one.
pub struct Times {
    zone: TimeZone,
    days: bool,
}

impl Times {
    /// Those of a picture.
    pub fn new(timeline: &Timeline) -> Self {
        let date = |at| local(at, &timeline.zone).map(|at| at.date());
        let days = date(timeline.window.since) != date(timeline.window.until);
        Self { zone: timeline.zone.clone(), days }
    }

    /// `03:40:05`
    pub fn at(&self, at: Duration) -> String {
        let format = if self.days { "%d %b %H:%M:%S" } else { "%H:%M:%S" };
        local(at, &self.zone).map(|at| at.strftime(format).to_string()).unwrap_or_default()
    }

    /// For programs.
    pub fn machine_readable(&self, at: Duration) -> String {
        local(at, &self.zone).map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()).unwrap_or_default()
    }
}

/// How long, without more than people read.
pub fn took(time: Duration) -> String {
    let second = Duration::from_secs(1);
    let time = if time < second * 10 { time } else { Duration::from_secs(time.as_secs()) };
    HumanDuration(time).to_string()
}

/// All that a mark says, in one line.
pub fn all(mark: &Mark, times: &Times) -> String {
    let what = outcome(mark);
    let (job, host) = (&mark.job, &mark.host);
    let (from, to) = (times.at(mark.start), times.at(mark.end));
    let lasted = took(mark.lasted());
    let mut parts = vec![match mark.kind {
        Kind::Gap => say::gap_of(&mark.lease, from, to, lasted),
        _ if mark.count > 1 => say::several(mark.count, what, job, host, from, to),
        kind if kind.lasts() && mark.start < mark.end => say::lasted(what, job, host, from, to, lasted),
        _ => say::at_once(what, job, host, to),
    }];
    if mark.kind != Kind::Gap {
        parts.extend(tokens(mark));
    }
    if mark.count == 1 {
        parts.extend(details(mark, times));
    }
    one_line(&parts.join(", "))
}

fn outcome(mark: &Mark) -> String {
    match mark.kind {
        // Which of the things that people do.
        Kind::Event(event) if !event.by_person() => meaning(mark.kind),
        _ => mark.word.clone(),
    }
}

/// The token of a mark, or its tokens. Of a skip it is that of the run that held the lease.
pub fn tokens(mark: &Mark) -> Option<String> {
    let (low, high) = mark.tokens?;
    Some(match mark.kind {
        Kind::Event(LogEvent::Skipped) if mark.said.is_empty() => return None,
        Kind::Event(LogEvent::Skipped) => say::held_by(&mark.said, low),
        _ if low == high => say::token(low),
        _ => say::tokens(low, high),
    })
}

/// What may stand beside a mark: the first one for which there is room.
pub fn labels(mark: &Mark) -> Vec<String> {
    let token = mark.tokens.map(|(low, high)| match low == high {
        true => low.to_string(),
        false => format!("{low}-{high}"),
    });
    let times = (mark.count > 1).then(|| say::times(mark.count));
    let labels: Vec<String> = match mark.kind {
        Kind::Event(LogEvent::Refused) => match (mark.token().zip(mark.newer_fence()), times) {
            (Some((token, newer)), None) => {
                vec![say::refused_by(token, newer), say::older(token, newer)]
            }
            (_, Some(times)) => vec![format!("{} {times}", say::refused()), times],
            (_, None) => {
                let why = mark.reason.as_ref().map(say::refused_why);
                why.into_iter().chain([say::refused()]).collect()
            }
        },
        Kind::Event(LogEvent::Skipped) => match (times, &mark.reason) {
            (Some(times), _) => vec![times],
            (None, Some(why)) => vec![say::skipped_why(why), say::skipped()],
            (None, None) => vec![say::skipped()],
        },
        Kind::Event(LogEvent::Dropped) => match mark.names.filter(|_| mark.count == 1) {
            Some(1) | None => [Some(mark.job.clone()), times].into_iter().flatten().collect(),
            Some(count) => vec![format!("{} {}", mark.job, say::times(count)), say::times(count)],
        },
        Kind::Gap => vec![took(mark.lasted())],
        Kind::Event(event) if event.by_person() => vec![mark.word.clone()],
        Kind::Other => vec![mark.word.clone()],
        _ => match (token, times) {
            (Some(token), Some(times)) => vec![format!("{token} {times}"), times],
            (token, times) => token.or(times).into_iter().collect(),
        },
    };
    labels.iter().map(|label| one_line(label)).collect()
}

/// What else a record says: why, the exit code, the item, the target.
pub fn details(mark: &Mark, times: &Times) -> Vec<String> {
    let mut parts: Vec<String> = mark.reason.clone().into_iter().collect();
    parts.extend(mark.exit.filter(|code| *code != 0).map(say::exit));
    parts.extend(mark.names.map(say::slots).filter(|_| mark.kind == Kind::Event(LogEvent::Dropped)));
    parts.extend(mark.overtaken.map(|_| say::late_since(times.at(mark.end))));
    parts.extend(mark.item.clone());
    parts.extend(mark.target.clone());
    parts.extend(mark.newer.map(say::fence).filter(|_| mark.kind != Kind::Gap));
    // Of a skip, who held the lease: that stands with the token.
    let said = mark.said.trim().to_owned();
    let said = Some(said).filter(|said| !said.is_empty() && mark.kind != Kind::Event(LogEvent::Skipped));
    parts.extend(said);
    parts.iter().map(|part| one_line(part)).collect()
}

/// What is told in words of a mark.
pub fn note(mark: &Mark, timeline: &Timeline) -> Option<String> {
    let Kind::Event(event) = mark.kind else { return None };
    let (job, host) = (&mark.job, &mark.host);
    let token = || mark.token().map_or_else(|| "?".into(), |token| token.to_string());
    let lasted = || took(mark.lasted());
    let told = match event {
        LogEvent::Failed => match mark.exit {
            Some(exit) => say::it_failed(job, host, exit, lasted()),
            None => say::it_failed_somehow(job, host, lasted()),
        },
        LogEvent::Lost => {
            let lost = match mark.overtaken {
                Some(at) => {
                    let late = took(mark.end.saturating_sub(at));
                    say::it_went_on(job, host, token(), Times::new(timeline).at(at), late)
                }
                None => say::it_lost(job, host, token(), lasted()),
            };
            let gap = timeline.gap_after(mark);
            let gap = gap.and_then(|gap| Some(say::gap_after(took(gap.lasted()), gap.newer?)));
            gap.into_iter().fold(lost, |lost, gap| format!("{lost}. {gap}"))
        }
        LogEvent::Killed => match &mark.reason {
            Some(why) => say::it_was_stopped(job, host, lasted(), why),
            None => say::it_was_killed(job, host, lasted()),
        },
        LogEvent::Unknown => say::it_is_unknown(job, host, token()),
        LogEvent::Unsealed => say::it_was_unfenced(job, host),
        LogEvent::Refused => match (&mark.target, mark.newer_fence()) {
            (Some(target), Some(newer)) => say::it_was_refused(job, host, target, token(), newer),
            (Some(target), None) => {
                let why = refusals::because(mark.reason.as_deref(), target);
                say::it_was_refused_because(job, host, target, token(), why)
            }
            _ => say::it_was_refused_there(job, host, token()),
        },
        LogEvent::Dropped => {
            let count = mark.names.unwrap_or(1);
            match &mark.reason {
                Some(why) => say::it_was_dropped(job, count, why),
                None => say::it_was_just_dropped(job, count),
            }
        }
        LogEvent::Observed => say::it_observed(job, host, mark.reason.as_ref()?),
        _ => return None,
    };
    Some(one_line(&told))
}
