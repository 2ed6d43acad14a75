//! The list of jobs.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::Response;
use leasehold::core::name::Name;
use maud::{Markup, html};

use super::super::Shared;
use super::super::live::Seen;
use super::now::{standing, strip};
use super::parts::{Page, Place, answer, human, job_link, outcome, time};
use crate::messages::dashboard as say;

/// The most rows.
const ROWS: usize = 200;

/// The page.
pub async fn jobs(State(shared): Shared) -> Response {
    let seen = shared.live.now().await;
    let page = Page {
        place: Place::Jobs,
        title: "Jobs",
        sub: html! { "Jobs with a schedule, and what ran in the last 24 hours." },
        same: &["leasehold plan", "leasehold history --since 24h"],
        body: content(&seen),
        json: "/api/v1/jobs",
    };
    answer(axum::http::StatusCode::OK, page.whole(&shared, &seen))
}

fn content(seen: &Seen) -> Markup {
    let Some(look) = &seen.look else { return html! { p.card.none { (say::nothing_known_yet()) } } };
    let names: BTreeSet<&Name> =
        look.jobs.iter().map(|job| &job.name).chain(look.recent.strips.keys()).collect();
    html! {
        @if names.is_empty() { p.card.none { (say::no_jobs()) " " (say::nothing_ran()) } } @else {
            div.card {
                table.cards role="table" {
                    caption.sr { "Jobs by name" }
                    thead role="rowgroup" { tr role="row" {
                        th role="columnheader" scope="col" { "Job" } th role="columnheader" scope="col" { "Schedule" } th role="columnheader" scope="col" { "Last outcome" }
                        th.num role="columnheader" scope="col" { "Took" } th.num role="columnheader" scope="col" { "Next" } th role="columnheader" scope="col" { "Standing" }
                        th role="columnheader" scope="col" { "Newest records, oldest first" }
                    } }
                    tbody role="rowgroup" {
                        @for name in names.iter().take(ROWS) {
                            @let job = look.jobs.iter().find(|job| job.name == **name);
                            @let lines = look.recent.strips.get(*name).map(Vec::as_slice).unwrap_or_default();
                            @let next = job.and_then(|job| job.next).and_then(|at| u64::try_from(at.as_second()).ok());
                            tr role="row" {
                                th.name role="rowheader" scope="row" data-label="Job" { a href=(job_link(name.as_str())) { (name) } }
                                td.s2 role="cell" data-label="Schedule" { (job.map_or("–", |job| job.schedule.as_str())) }
                                td role="cell" data-label="Last outcome" {
                                    @match lines.first() { Some(line) => (outcome(line.event(), &line.word)), None => span.mut { "–" } }
                                }
                                td.num role="cell" data-label="Took" { (lines.first().and_then(|line| line.took).map_or_else(|| "–".into(), human)) }
                                td.num role="cell" data-label="Next" {
                                    @match next { Some(at) => (time(std::time::Duration::from_secs(at))), None => "–" }
                                }
                                td role="cell" data-label="Standing" { @match job { Some(job) => (standing(&job.standing)), None => span.mut { "–" } } }
                                td role="cell" data-label="Newest" { (strip(lines)) }
                            }
                        }
                    }
                }
            }
            @if names.len() > ROWS { p.more { (say::more_jobs(names.len() - ROWS)) } }
        }
    }
}
