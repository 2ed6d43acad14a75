//! What the pages share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::tz::TimeZone;
use leasehold::clock;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::run_log::LogEvent;
use leasehold::text::{harmless, one_line};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::live::Seen;
use super::super::look::timestamp;
use super::super::reader::Trouble;
use super::super::{Dashboard, Refusal, Shared};
use crate::cmd::times;
use crate::messages::dashboard as say;

/// Characters that a path may have as they are.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b':');

/// Where one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Now,
    Timeline,
    Jobs,
    Log,
    Nowhere,
}

/// A page.
pub struct Page<'a> {
    pub place: Place,
    pub title: &'a str,
    /// Below the title.
    pub sub: Markup,
    /// The command that gives the same answer.
    pub same: &'a [&'a str],
    pub body: Markup,
    /// The same for programs.
    pub json: &'a str,
}

impl Page<'_> {
    /// The whole of it.
    pub fn whole(&self, shared: &Dashboard, seen: &Seen) -> Markup {
        let word = if self.place == Place::Now { "now" } else { "other" };
        let look = seen.look.as_ref();
        let mark = look.map(|look| if self.place == Place::Now { look.mark } else { look.recent.mark });
        let link = |place: Place, href: &str, name: &str, more: Markup| {
            html! {
                a href=(href) aria-current=[(self.place == place).then_some("page")] { (name) (more) }
            }
        };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width,initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · Leasehold" }
                    link rel="icon" href="/icon.svg" type="image/svg+xml";
                    link rel="stylesheet" href="/style.css";
                    script src="/app.js" defer {}
                }
                body data-page=(word) data-mark=[mark] data-now=(seconds(clock::wall())) {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        div.bar {
                            a.mark href="/" { (PreEscaped(LOGO)) "Leasehold" }
                            nav aria-label="Pages" {
                                (link(Place::Now, "/", "Now", html! { span #needs { (badge(seen)) } }))
                                (link(Place::Timeline, "/timeline", "Timeline", html! {}))
                                (link(Place::Jobs, "/jobs", "Jobs", html! {}))
                                (link(Place::Log, "/log", "Log", html! {}))
                            }
                            div.where {
                                span #live.live { i {} span { "as loaded" } }
                                span.url.m { (one_line(&shared.store)) }
                                span.ro { "read-only" }
                            }
                        }
                    }
                    div #state { (state(seen)) }
                    div #stale role="status" {}
                    main #main tabindex="-1" {
                        div.head {
                            div {
                                h1 { (self.title) }
                                p.sub { (self.sub) }
                            }
                            @if !self.same.is_empty() {
                                p.same {
                                    "The same in a terminal: "
                                    @for (at, command) in self.same.iter().enumerate() {
                                        @if at > 0 { ", " }
                                        code { (command) }
                                    }
                                }
                            }
                        }
                        div #content { (self.body) }
                        footer.foot {
                            span { "Times are " (zone()) "." @if zone() != "UTC" { " Hold the pointer on one for UTC." } }
                            @if !self.json.is_empty() { a href=(self.json) { "This page as JSON" } }
                        }
                    }
                }
            }
        }
    }
}

const LOGO: &str = r#"<svg class="logo" viewBox="0 0 16 16" aria-hidden="true"><path d="M1.5 14.5v-5h4v-4h4v-4h5v13z"/></svg>"#;

/// How many things need a person.
pub fn badge(seen: &Seen) -> Markup {
    let needs = seen.look.as_ref().map_or(0, |look| look.needs.len());
    html! {
        @if needs > 0 {
            span.n { (needs) span.sr { " " (if needs == 1 { "thing needs you" } else { "things need you" }) } }
        }
    }
}

/// Whether the store answers: a bar under the head if it does not.
pub fn state(seen: &Seen) -> Markup {
    html! {
        @if let Some((since, why)) = &seen.failing {
            div.down role="alert" {
                strong { (say::store_is_silent(clock_time(*since))) }
                " " span { "(" (why) ") " }
                @match &seen.look {
                    Some(look) => { (say::shown_as_known(clock_time(look.at))) }
                    None => { (say::nothing_known_yet()) }
                }
            }
        }
    }
}

/// The last answers of pages, for while the store is away.
#[derive(Debug, Default)]
pub struct Kept(Mutex<HashMap<String, (Duration, String)>>);

/// As many as are kept.
const KEPT: usize = 32;
/// Larger ones are not.
const KEPT_BYTES: usize = 512 * 1024;

impl Kept {
    fn keep(&self, path: &str, body: &Markup) {
        if body.0.len() > KEPT_BYTES || path.len() > KEPT_BYTES / 512 {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT && !kept.contains_key(path) {
            let oldest = kept.iter().min_by_key(|(_, (at, _))| *at).map(|(path, _)| path.clone());
            oldest.map(|path| kept.remove(&path));
        }
        kept.insert(path.into(), (clock::wall(), body.0.clone()));
    }

    fn of(&self, path: &str) -> Option<(Duration, Markup)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(path).map(|(at, body)| (*at, PreEscaped(body.clone())))
    }
}

/// The content of a page that was read, or what was last known of it.
pub fn content(shared: &Dashboard, path: &str, read: Result<Markup, Trouble>) -> (StatusCode, Markup) {
    match read {
        Ok(body) => {
            shared.kept.keep(path, &body);
            (StatusCode::OK, body)
        }
        Err(trouble) => {
            let why = match &trouble {
                Trouble::Busy => say::busy(),
                Trouble::Failed(failure) => say::no_answer(one_line(&failure.message)),
            };
            let body = match shared.kept.of(path) {
                Some((at, body)) => html! {
                    p.down { (why) ". " (say::shown_as_known(clock_time(at))) }
                    div.old { (body) }
                },
                None => html! { p.card.none { (why) ". " (say::reload()) } },
            };
            (StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}

/// An answer with a page.
pub fn answer(status: StatusCode, page: Markup) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text(page)).into_response()
}

/// What is sent: whatever somebody wrote into a record, no control characters.
pub fn text(page: Markup) -> String {
    harmless(&page.into_string())
}

/// There is no such page.
pub async fn nothing_here(State(shared): Shared, uri: Uri) -> Response {
    if uri.path().starts_with("/api/") {
        return Refusal::new(StatusCode::NOT_FOUND, "path", say::no_such_page()).answer(uri.path());
    }
    let page = Page {
        place: Place::Nowhere,
        title: "No such page",
        sub: html! { (say::no_such_page()) },
        same: &[],
        body: html! {},
        json: "",
    };
    answer(StatusCode::NOT_FOUND, page.whole(&shared, &shared.live.known()))
}

/// The page of a job.
pub fn job_link(job: &str) -> String {
    format!("/job/{}", encoded(job))
}

/// A text, as a part of a path or a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// How long, in whole seconds from ten seconds on.
pub fn human(time: Duration) -> String {
    let whole = if time < Duration::from_secs(10) { time } else { Duration::from_secs(time.as_secs()) };
    HumanDuration(whole).to_string()
}

/// Seconds since 1970.
pub fn seconds(at: Duration) -> u64 {
    at.as_secs()
}

/// This machine's zone.
pub fn zone() -> String {
    let zone = times::here();
    zone.iana_name().map_or_else(
        || timestamp(clock::wall()).to_zoned(zone.clone()).strftime("UTC%:z").to_string(),
        Into::into,
    )
}

/// A time: with the day if that is not today; UTC beside it.
pub fn time(at: Duration) -> Markup {
    let utc = timestamp(at).to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    html! { time datetime=(utc) title=(utc) { (clock_time(at)) } }
}

/// `03:40:05`, with the day if that is not today.
pub fn clock_time(at: Duration) -> String {
    let (zone, now) = (times::here(), clock::wall());
    let [then, today] = [at, now].map(|at| timestamp(at).to_zoned(zone.clone()));
    let format = match then.date() == today.date() {
        true => "%H:%M:%S",
        false if then.year() == today.year() => "%d %b %H:%M:%S",
        false => "%d %b %Y %H:%M:%S",
    };
    then.strftime(format).to_string()
}

/// The same of a slot.
pub fn slot_time(due: i64) -> String {
    u64::try_from(due).map_or_else(|_| due.to_string(), |due| clock_time(Duration::from_secs(due)))
}

/// The day and the time.
pub fn today() -> String {
    timestamp(clock::wall()).to_zoned(times::here()).strftime("%a %d %b %Y, %H:%M:%S").to_string()
}

/// The class of an event, and its sign in a square of 16.
fn sign(event: Option<LogEvent>) -> (&'static str, &'static str) {
    use LogEvent as E;
    match event {
        Some(E::Ok) => ("ok", "M3.5 8.5l3 3 6-7"),
        Some(E::Failed) => ("failed", "M3 4.5h10l-5 8z"),
        Some(E::Skipped) => ("skipped", "M8 6a2 2 0 1 1 0 4a2 2 0 1 1 0-4z"),
        Some(E::Lost) => ("lost", "M8 3v6.5M8 12.4v.6"),
        Some(E::Killed) => ("killed", "M4.5 4.5h7v7h-7z"),
        Some(E::Unknown) => ("unknown", "M5.4 6a2.7 2.7 0 1 1 4 2.4c-1 .6-1.4 1-1.4 2M8 12.6v.5"),
        Some(E::Released) => ("released", "M8 4.5a3.5 3.5 0 1 1 0 7a3.5 3.5 0 1 1 0-7z"),
        Some(E::Unsealed) => ("failed", "M2.5 6h11M2.5 10.5h11M5.5 3v10.5M10.5 3v10.5"),
        Some(E::Dropped) => ("dropped", "M8 3.2a4.8 4.8 0 1 1 0 9.6a4.8 4.8 0 1 1 0-9.6z"),
        Some(E::Refused) => ("refused", "M3.5 3.5l9 9M12.5 3.5l-9 9"),
        Some(E::Observed) => ("skipped", "M2 8q6-6 12 0q-6 6-12 0z"),
        Some(_) => ("person", "M8 3a2.3 2.3 0 1 1 0 4.6a2.3 2.3 0 1 1 0-4.6zM3.5 13a4.5 4.5 0 0 1 9 0z"),
        None => ("person", "M3 9q2.5-4 5-1t5-1"),
    }
}

/// The class of an event.
pub fn class(event: Option<LogEvent>) -> &'static str {
    sign(event).0
}

/// The sign of an event.
pub fn glyph(event: Option<LogEvent>) -> Markup {
    html! { svg.g viewBox="0 0 16 16" aria-hidden="true" { path d=(sign(event).1) {} } }
}

/// The words for an event.
pub fn words(event: Option<LogEvent>, word: &str) -> String {
    match event {
        Some(LogEvent::Unsealed) => "not fenced".into(),
        Some(LogEvent::Refused) => "write refused".into(),
        _ => one_line(word),
    }
}

/// An outcome: its sign and its word.
pub fn outcome(event: Option<LogEvent>, word: &str) -> Markup {
    html! { span.o.(class(event)) { (glyph(event)) (words(event, word)) } }
}

/// A sign alone, for those who have no room; the words for those who cannot see it.
pub fn small(event: Option<LogEvent>, told: &str) -> Markup {
    html! { span.(class(event)) title=(told) { (glyph(event)) span.sr { (told) } } }
}

/// A command to type.
pub fn command(text: &str) -> Markup {
    html! { div.cmd { code { (one_line(text)) } } }
}
