//! What needs a person, and what is good to know: what happened, what it means, what to type.

use std::time::Duration;

use leasehold::core::ledger::Subject;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::LogEntry;
use leasehold::text::one_line;
use maud::{Markup, html};

use super::super::look::{Look, Matter, Waiting, item};
use super::parts::{clock_time, command, glyph, human, slot_time};
use crate::cmd::item_args::quoted;
use crate::messages::{dashboard as say, refusals};

/// The most notes.
const NOTES: usize = 8;
/// The most things that need a person, one by one.
const NEEDS: usize = 20;
/// Lines of output that are shown.
const LINES: usize = 4;

/// One of them in words.
#[derive(Default)]
pub struct Told {
    pub event: Option<LogEvent>,
    pub title: String,
    pub facts: String,
    pub happened: String,
    pub means: String,
    /// The last lines of output.
    pub said: Vec<String>,
    /// When to type what.
    pub types: Vec<(String, String)>,
}

/// Both lists.
pub fn matters(look: &Look) -> Markup {
    let some = |count: usize| if count == 1 { "1 thing".into() } else { format!("{count} things") };
    html! {
        section.card.att aria-labelledby="attention" {
            @if look.needs.is_empty() {
                h2 #attention.grp.quiet { (say::nothing_needs_you()) }
            } @else {
                div.cols.you {
                    h2 #attention { "Needs you" span { (some(look.needs.len())) } }
                    span.desk { "What it means" } span.desk { "What to type" }
                }
                @for matter in look.needs.iter().take(NEEDS) { (one(&told(matter))) }
                @if look.needs.len() > NEEDS { p.more { (say::more_matters(look.needs.len() - NEEDS)) } }
            }
            @if !look.notes.is_empty() {
                div.cols {
                    h2 { "Good to know" span { (some(look.notes.len())) } }
                    span.desk { "What it means" } span.desk { "What to type" }
                }
                @for matter in look.notes.iter().take(NOTES) { (one(&told(matter))) }
                @if look.notes.len() > NOTES { p.more { (say::more_matters(look.notes.len() - NOTES)) } }
            }
        }
    }
}

fn one(told: &Told) -> Markup {
    html! {
        article.it {
            span.g0.o.(super::parts::class(told.event)) { (glyph(told.event)) }
            h3 { (told.title) span { (told.facts) } }
            div.c2 {
                p.lab.phone { "What happened" }
                p { (told.happened) }
                @if !told.said.is_empty() { pre tabindex="0" aria-label="Last lines of its output" { (told.said.join("\n")) } }
            }
            div.c3 { p.lab.phone { "What it means" } p { (told.means) } }
            div.c4 { @for (when, text) in &told.types { p.lab { (when) } (command(text)) } }
        }
    }
}

/// In words.
pub fn told(matter: &Matter) -> Told {
    match matter {
        Matter::Records { newest, event, count, ok_since } => record(newest, *event, *count, *ok_since),
        Matter::Decision(waiting) => decision(waiting),
        Matter::Overdue(job, late, slots) => Told {
            event: Some(LogEvent::Unknown),
            title: say::is_overdue(job),
            facts: String::new(),
            happened: say::overdue_what(human(*late), slots),
            means: say::overdue_means(),
            types: vec![(say::if_no_scheduler(), "leasehold daemon".into()), story(job.as_str())],
            ..Told::default()
        },
        Matter::Paused(job, by, at) => Told {
            event: Some(LogEvent::Pause),
            title: say::is_paused(job),
            happened: say::paused_what(one_line(by), crate::cmd::times::local_text(at)),
            means: say::paused_means(),
            types: vec![(say::to_resume(), format!("leasehold resume {job}"))],
            ..Told::default()
        },
        Matter::NeverReported(row) => Told {
            event: Some(LogEvent::Unknown),
            title: say::began_unreported(&row.lease),
            happened: say::unreported_what(
                one_line(row.holder.as_deref().unwrap_or("?")),
                row.token.unwrap_or(0),
            ),
            means: say::unreported_hold_means(),
            types: vec![story(&row.lease)],
            ..Told::default()
        },
        Matter::BadLease(lease, why) => Told {
            event: Some(LogEvent::Failed),
            title: say::bad_lease(one_line(lease)),
            happened: one_line(why),
            means: say::bad_lease_means(),
            types: vec![story(lease)],
            ..Told::default()
        },
    }
}

fn story(name: &str) -> (String, String) {
    (say::whole_story(), format!("leasehold why {}", one_line(name)))
}

/// As a person types it.
fn typed(subject: &Subject) -> Option<String> {
    match subject {
        Subject::Key(key) => Some(key.clone()),
        Subject::Slot { job, id, .. } => Some(format!("{job}@{id}")),
        Subject::Latest(_) => None,
    }
}

fn decision(waiting: &Waiting) -> Told {
    let Waiting { subject, job, claim, too_often, at } = waiting;
    let item = typed(subject).unwrap_or_else(|| job.to_string());
    let (host, token) = (one_line(&claim.holder.host), claim.token.get());
    let facts = format!("{}, {}, token {token}", one_line(&item), clock_time(*at));
    if *too_often {
        return Told {
            event: Some(LogEvent::Failed),
            title: say::failed_too_often(job),
            facts,
            happened: say::too_often_what(&host, token),
            means: say::too_often_means(),
            types: vec![(say::when_repaired(), format!("leasehold retry {}", quoted(&item)))],
            ..Told::default()
        };
    }
    Told {
        event: Some(LogEvent::Unknown),
        title: say::began_unreported(job),
        facts,
        happened: say::unreported_what(&host, token),
        means: say::unreported_means(),
        types: vec![
            (say::if_done(), format!("leasehold retry --done {}", quoted(&item))),
            (say::if_not_done(), format!("leasehold retry {}", quoted(&item))),
        ],
        ..Told::default()
    }
}

fn record(newest: &LogEntry, event: LogEvent, count: u64, ok_since: bool) -> Told {
    let line = &newest.line;
    let job = line.job.as_str();
    let record = newest.record.as_ref();
    let host = one_line(record.map_or(&line.host, |record| &record.holder.host));
    let token = line.token.map_or_else(|| "?".into(), |token| token.get().to_string());
    let took = human(line.took.unwrap_or(Duration::ZERO));
    let mut facts: Vec<String> = Vec::new();
    if count > 1 && event != LogEvent::Dropped {
        facts.push(say::times(count));
    }
    facts.push(clock_time(line.at));
    facts.extend(line.token.map(|token| format!("token {}", token.get())));
    facts.extend(match item(newest) {
        Some(Subject::Key(key)) => Some(say::key(one_line(key))),
        Some(Subject::Slot { at, .. }) => Some(say::slot(slot_time(*at))),
        Some(Subject::Latest(_)) | None => None,
    });
    let reason = one_line(line.reason.as_deref().unwrap_or(""));
    let mut told =
        Told { event: Some(event), facts: facts.join(", "), types: vec![story(job)], ..Told::default() };
    let since = |told: &mut Told| {
        told.means = if ok_since { say::ok_since() } else { say::not_ok_since() };
    };
    match event {
        LogEvent::Unknown => {
            told.title = say::began_unreported(job);
            told.happened = say::unreported_what(&host, &token);
            told.means = say::unreported_run_means();
        }
        LogEvent::Failed => {
            told.title = say::it_failed(job);
            told.happened = match line.exit {
                Some(exit) => say::failed_what(exit, &host, &took),
                None => say::failed_somehow(&host, &took),
            };
            let said = record.map_or("", |record| record.said.as_str());
            let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
            told.said = lines.iter().rev().take(LINES).rev().map(|line| one_line(line)).collect();
            since(&mut told);
        }
        LogEvent::Lost => {
            told.title = say::it_lost(&host, job);
            told.happened = say::lost_what(&took);
            told.means = say::lost_means();
        }
        LogEvent::Killed => {
            told.title = say::it_was_stopped(job);
            told.happened = say::stopped_what(&host, &took, if reason.is_empty() { "?" } else { &reason });
            since(&mut told);
        }
        LogEvent::Unsealed => {
            told.title = say::ran_nothing(job);
            told.happened = say::unfenced_what(&host);
            since(&mut told);
        }
        LogEvent::Refused => {
            let target = record.and_then(|record| record.target.as_ref());
            told.title = say::it_was_refused(job);
            let stale = refusals::is_stale(line.reason.as_deref());
            told.happened = match target.map(|target| (one_line(&target.target), target.fence)) {
                Some((target, Some(fence))) if stale => say::refused_what(target, &host, &token, fence.get()),
                Some((target, _)) => {
                    let why = refusals::because(line.reason.as_deref(), &target);
                    say::refused_because(&host, &token, target, one_line(&why))
                }
                None => say::refused_somewhere(&host, &token),
            };
            told.means = if stale { say::stale_means() } else { say::refused_means() };
        }
        LogEvent::Dropped => {
            told.title = say::were_dropped(job, count);
            told.happened = say::dropped_what(if reason.is_empty() { "?" } else { &reason });
            told.means = say::dropped_means();
        }
        _ => told.title = one_line(&line.word),
    }
    told
}
