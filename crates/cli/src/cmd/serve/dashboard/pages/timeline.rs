//! The page Timeline: who worked when, with which token, and what was refused.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use leasehold::clock;
use leasehold::run_log::Window;
use leasehold::stores::{Failure, Store};
use maud::{Markup, PreEscaped, html};

use super::super::Shared;
use super::super::asked::{Asked, WINDOWS};
use super::parts::{Page, Place, answer, content, encoded};
use crate::messages::{dashboard as say, timeline as drawn};
use crate::timeline::model::Timeline;
use crate::timeline::svg::{Options, summary, svg};
use crate::timeline::{self, words};

/// The most notes.
const NOTES: usize = 20;

/// Reads it.
pub fn read(store: &mut dyn Store, name: &str, time: std::time::Duration) -> Result<Timeline, Failure> {
    let now = clock::wall();
    let window = Window { since: now.saturating_sub(time), until: Window::last(time).until };
    timeline::of(store, Some(name).filter(|name| !name.is_empty()), window, now, &[])
}

/// The page.
pub async fn timeline(State(shared): Shared, uri: Uri) -> Response {
    let asked = match Asked::of(&uri) {
        Ok(asked) => asked,
        Err(refusal) => return refusal.answer(uri.path()),
    };
    let ((word, time), name) = match asked.window().and_then(|window| Ok((window, asked.whose()?))) {
        Ok((window, _)) => (window, asked.name.trim().to_owned()),
        Err(refusal) => return refusal.answer(uri.path()),
    };
    let seen = shared.live.now().await;
    let of = name.clone();
    let read = shared.reader.ask(move |store| read(store, &of, time)).await;
    let jobs: Vec<String> = seen
        .look
        .iter()
        .flat_map(|look| {
            let mut jobs: Vec<String> = look.recent.strips.keys().map(ToString::to_string).collect();
            jobs.sort_unstable();
            jobs
        })
        .collect();
    let (status, body) = content(&shared, &uri.to_string(), read.map(|timeline| picture(&timeline)));
    let command = match name.is_empty() {
        true => format!("leasehold history --timeline --since {word}"),
        false => format!("leasehold history {name} --timeline --since {word}"),
    };
    let page = Page {
        place: Place::Timeline,
        title: "Timeline",
        sub: html! { "Who worked when, with which token, and what was refused. A lane for each machine." },
        same: &[&command],
        body: html! { (choices(word, &name, &jobs)) (body) },
        json: &format!("/api/v1/timeline?window={word}&name={}", encoded(&name)),
    };
    answer(status, page.whole(&shared, &seen))
}

/// The most jobs that are offered.
const OFFERED: usize = 12;

fn choices(window: &str, name: &str, jobs: &[String]) -> Markup {
    let href = |window: &str, name: &str| format!("/timeline?window={window}&name={}", encoded(name));
    let chip = |text: &str, href: String, chosen: bool| {
        html! { a.chip href=(href) aria-current=[chosen.then_some("true")] { (text) } }
    };
    html! {
        div.choices {
            nav.chips aria-label="Job" {
                (chip("All jobs", href(window, ""), name.is_empty()))
                @for job in jobs.iter().take(OFFERED) { (chip(job, href(window, job), job == name)) }
                @if !name.is_empty() && !jobs.iter().take(OFFERED).any(|job| job == name) {
                    (chip(name, href(window, name), true))
                }
            }
            nav.chips aria-label="Window" {
                @for (word, _) in WINDOWS { (chip(word, href(word, name), word == window)) }
            }
        }
    }
}

fn picture(timeline: &Timeline) -> Markup {
    let times = words::Times::new(timeline);
    let records = timeline.records();
    let notes: Vec<_> =
        records.iter().rev().filter_map(|mark| Some((*mark, words::note(mark, timeline)?))).collect();
    html! {
        @for (class, width) in [("wide", 1_200), ("narrow", 328)] {
            div.card.drawing.(class) { (PreEscaped(svg(timeline, &Options { width, id: class, style: false }))) }
        }
        @if timeline.cut { p.more { (drawn::cut()) } }
        p.sr { (summary(timeline)) }
        @if !timeline.is_empty() {
            section.sec aria-labelledby="notes" {
                div.sech { h2 #notes { (drawn::what_stands_out()) } }
                @if notes.is_empty() { p.card.none { (drawn::nothing_stands_out()) } } @else {
                    ol.card.notes {
                        @for (mark, note) in notes.iter().take(NOTES) {
                            li {
                                time datetime=(times.machine_readable(mark.end)) { (times.at(mark.end)) }
                                span { (note) }
                            }
                        }
                    }
                    @if notes.len() > NOTES { p.more { (say::more_in_log(notes.len() - NOTES)) } }
                }
            }
            section.sec aria-labelledby="reading" {
                div.sech { h2 #reading { (drawn::reading()) } }
                p.s2.read { (drawn::how_to_read()) " " a.lnk href="/log" { (say::same_as_table()) } }
            }
        }
    }
}
