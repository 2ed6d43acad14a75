//! The page Now: what needs a person, who holds what, and what is due next.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogLine};
use leasehold::text::one_line;
use maud::{Markup, html};

use super::super::Shared;
use super::super::live::Seen;
use super::super::look::{LEASES, Look, STRIP, Standing};
use super::matters::matters;
use super::parts::{
    Page, Place, answer, clock_time, glyph, human, job_link, outcome, seconds, small, time, today, words,
};
use crate::cmd::status::{LeaseRow, LeaseState};
use crate::messages::dashboard as say;

/// Free leases that are shown one by one.
const FREE: usize = 20;
/// Jobs whose next slot is shown.
const SLOTS: usize = 50;
/// The width of a bar of time.
const BAR: u64 = 64;

/// The page.
pub async fn now(State(shared): Shared) -> Response {
    let seen = shared.live.now().await;
    let page = Page {
        place: Place::Now,
        title: "Now",
        sub: html! { (today()) " · " span #said role="status" aria-live="polite" { (summary(&seen)) } },
        same: &["leasehold status", "leasehold plan"],
        body: content(&seen),
        json: "/api/v1/now",
    };
    let status = if seen.failing.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    answer(status, page.whole(&shared, &seen))
}

/// What is told when it changes.
fn summary(seen: &Seen) -> String {
    let Some(look) = &seen.look else { return say::nothing_known_yet() };
    let held = look.leases.iter().filter(|row| row.state.is_held()).count();
    let needs = match look.needs.len() {
        0 => say::nothing_needs_you(),
        1 => say::one_needs_you(),
        more => say::some_need_you(more),
    };
    format!("{} {needs}", say::held(held, look.leases.len()))
}

/// What changes while it is open.
pub fn content(seen: &Seen) -> Markup {
    let Some(look) = &seen.look else { return html! { p.card.none { (say::nothing_known_yet()) } } };
    html! {
        div data-mark=(look.mark) data-now=(seconds(look.at)) data-said=(summary(seen)) data-needs=(look.needs.len()) {}
        (matters(look))
        (counts(look))
        (leases(look))
        (slots(look))
    }
}

const COUNTED: [LogEvent; 8] = [
    LogEvent::Ok,
    LogEvent::Skipped,
    LogEvent::Failed,
    LogEvent::Lost,
    LogEvent::Killed,
    LogEvent::Refused,
    LogEvent::Unknown,
    LogEvent::Dropped,
];

fn counts(look: &Look) -> Markup {
    html! {
        section.sec aria-labelledby="counts" {
            div.sech { h2 #counts { "The last 24 hours" } span.mut.small { "choose one to see it in the log" } }
            ul.card.tot {
                @for event in COUNTED {
                    @let count = look.recent.counts.get(&event).copied().unwrap_or(0);
                    li {
                        a href={ "/log?since=24h&only=" (event.word()) } {
                            span.o.(if count == 0 { "skipped" } else { super::parts::class(Some(event)) }) {
                                (glyph(Some(event))) b { (count) } (words(Some(event), event.word()))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn leases(look: &Look) -> Markup {
    let held = look.leases.iter().filter(|row| row.state.is_held()).count();
    // Leases with something in the log come before those of long ago.
    let mut rows: Vec<&LeaseRow> = look.leases.iter().collect();
    let known =
        |row: &LeaseRow| Name::new(&row.lease).is_ok_and(|name| look.recent.strips.contains_key(&name));
    rows.sort_by_key(|row| (!row.state.is_held(), row.problem.is_none(), !known(row)));
    let shown = rows.len().min(held + FREE);
    html! {
        section.sec aria-labelledby="leases" {
            div.sech {
                h2 #leases { "Leases" }
                span.mut.small { (held) " held, " (look.leases.len() - held) " free" }
            }
            @if rows.is_empty() {
                div.card.none { p { (say::no_leases()) } (super::parts::command("leasehold run hello -- sleep 60")) }
            } @else {
                div.card {
                    table.cards role="table" {
                        caption.sr { "Leases, those that are held first" }
                        thead role="rowgroup" { tr role="row" {
                            th role="columnheader" scope="col" { "Lease" } th role="columnheader" scope="col" { "State" } th.num role="columnheader" scope="col" { "Token" }
                            th role="columnheader" scope="col" { "Holder" } th.num role="columnheader" scope="col" { "Held for" }
                            th.num role="columnheader" scope="col" { "Renewed" } th.num role="columnheader" scope="col" { "Ends in, if not renewed" }
                            th role="columnheader" scope="col" { "Last " (STRIP) ", oldest first" }
                        } }
                        tbody role="rowgroup" { @for row in &rows[..shown] { (lease(row, look)) } }
                    }
                }
                @if shown < rows.len() { p.more { (say::more_free(rows.len() - shown)) } }
                @if look.more_leases { p.more { (say::first_leases(LEASES)) } }
            }
        }
    }
}

fn lease(row: &LeaseRow, look: &Look) -> Markup {
    let strip = Name::new(&row.lease).ok().and_then(|name| look.recent.strips.get(&name));
    let strip = strip.map(Vec::as_slice).unwrap_or_default();
    let last = strip.iter().find(|line| line.event().is_some_and(|e| e.is_run() || e == LogEvent::Released));
    let ago = |time: Option<Duration>| time.map(|time| seconds(look.at.saturating_sub(time)));
    let ends = row.ends_in.map(|left| seconds(look.at + left));
    let held = row.state.is_held();
    html! {
        tr role="row" {
            th.name role="rowheader" scope="row" data-label="Lease" { a href=(job_link(&row.lease)) { (one_line(&row.lease)) } }
            td role="cell" data-label="State" {
                @match row.state {
                    LeaseState::Held => span.o.running { (running()) "held" },
                    LeaseState::Revoked => span.o.unknown { (running()) "held, asked to stop" },
                    LeaseState::Bad => span.o.failed { (glyph(Some(LogEvent::Failed))) "not readable" },
                    LeaseState::Free => span.o.free { (glyph(Some(LogEvent::Released))) "free" },
                    LeaseState::Expired => span.o.free { (glyph(Some(LogEvent::Released))) "expired" },
                }
            }
            td.num.m role="cell" data-label="Token" { (row.token.map_or_else(dash, |token| token.to_string())) }
            td role="cell" data-label="Holder" {
                @if held {
                    span.m { (one_line(row.holder.as_deref().unwrap_or("?"))) }
                    @if let Some(job) = row.job.as_ref().filter(|job| **job != row.lease) {
                        " for " (one_line(job))
                    }
                    @if let Some(slot) = &row.slot { span.mut { ", slot " (one_line(slot)) } }
                } @else if let Some(last) = last {
                    span.mut { "last: " (one_line(&last.host)) ", " (last.word) " " (clock_time(last.at)) }
                } @else {
                    span.mut { "–" }
                }
            }
            td.num role="cell" data-label="Held for" data-since=[ago(row.held)] { (row.held.map_or_else(dash, whole)) }
            td.num role="cell" data-label="Renewed" data-since=[ago(row.renewed)] data-after=" ago" {
                (row.renewed.map_or_else(dash, |time| format!("{} ago", whole(time))))
            }
            td.num role="cell" data-label="Ends in" {
                @if let Some(left) = row.ends_in.filter(|_| held) {
                    @let ttl = row.ttl.unwrap_or(left);
                    svg.ttl viewBox={ "0 0 " (BAR) " 6" } width=(BAR) height="6" aria-hidden="true" {
                        rect.under width=(BAR) height="6" rx="3" {}
                        rect.over width=(part(left, ttl)) height="6" rx="3" data-until=[ends] data-ttl=(ttl.as_secs()) {}
                    }
                    span data-until=[ends] { (whole(left)) }
                } @else { "–" }
            }
            td role="cell" data-label={ "Last " (STRIP) } {
                @if strip.is_empty() { span.mut { "–" } } @else { (self::strip(strip)) }
            }
        }
    }
}

/// A sign for each of the newest records of a job, the oldest first.
pub fn strip(newest: &[LogLine]) -> Markup {
    html! {
        span.strip {
            @for line in newest.iter().take(STRIP).rev() {
                @let token = line.token.map(|token| format!(", token {}", token.get())).unwrap_or_default();
                (small(line.event(), &format!("{} {}{token}", clock_time(line.at), one_line(&line.word))))
            }
        }
    }
}

fn running() -> Markup {
    html! { svg.g viewBox="0 0 16 16" aria-hidden="true" { path d="M5 3.5v9l7.5-4.5z" {} } }
}

/// In whole seconds: the script counts on from there.
fn whole(time: Duration) -> String {
    human(Duration::from_secs(time.as_secs()))
}

fn dash() -> String {
    "–".into()
}

/// How much of the bar is left.
fn part(left: Duration, ttl: Duration) -> u64 {
    let all = ttl.as_millis().max(1);
    u64::try_from(left.as_millis().min(all) * u128::from(BAR) / all).unwrap_or(BAR)
}

fn slots(look: &Look) -> Markup {
    html! {
        section.sec aria-labelledby="slots" {
            div.sech { h2 #slots { "Next slots" } span.mut.small { "one machine gets each" } }
            @if look.jobs.is_empty() {
                p.card.none { (say::no_jobs()) }
            } @else {
                div.card {
                    table.cards role="table" {
                        caption.sr { "The next slot of each job, the soonest first" }
                        thead role="rowgroup" { tr role="row" {
                            th role="columnheader" scope="col" { "Job" } th.num role="columnheader" scope="col" { "Due" } th.num role="columnheader" scope="col" { "In" }
                            th role="columnheader" scope="col" { "Schedule" } th role="columnheader" scope="col" { "Standing" }
                        } }
                        tbody role="rowgroup" {
                            @for job in look.jobs.iter().take(SLOTS) {
                                @let due = job.next.and_then(|next| u64::try_from(next.as_second()).ok()).map(Duration::from_secs);
                                tr role="row" {
                                    th.name role="rowheader" scope="row" data-label="Job" { a href=(job_link(job.name.as_str())) { (job.name) } }
                                    td.num role="cell" data-label="Due" { @match due { Some(due) => (time(due)), None => "–" } }
                                    td.num role="cell" data-label="In" data-until=[due.map(seconds)] {
                                        (due.map_or_else(dash, |due| human(due.saturating_sub(Duration::from_secs(look.at.as_secs())))))
                                    }
                                    td.s2 role="cell" data-label="Schedule" { (one_line(&job.schedule)) }
                                    td role="cell" data-label="Standing" { (standing(&job.standing)) }
                                }
                            }
                        }
                    }
                }
                @if look.jobs.len() > SLOTS { p.more { (say::more_jobs(look.jobs.len() - SLOTS)) } }
                @if look.bad_jobs > 0 { p.more { (say::bad_jobs(look.bad_jobs)) } }
            }
        }
    }
}

/// The standing of a job in words.
pub fn standing(standing: &Standing) -> Markup {
    match standing {
        Standing::Paused { by, .. } => html! { span.o.skipped { "paused on " (one_line(by)) } },
        Standing::Running(by) => html! { span.o.running { (running()) "runs on " (one_line(by)) } },
        Standing::Held(by) => html! { span.s2 { "its lease is held by " (one_line(by)) } },
        Standing::Overdue(late, _) => {
            html! { (outcome(Some(LogEvent::Unknown), &format!("overdue by {}", human(*late)))) }
        }
        Standing::Fine => html! { span.mut { "free now" } },
    }
}
