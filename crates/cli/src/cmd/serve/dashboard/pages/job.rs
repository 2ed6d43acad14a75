//! The page of one job: how long its runs take, how often it is skipped, and what its TTL should be.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::Uri;
use axum::response::Response;
use leasehold::core::name::Name;
use leasehold::core::run_log::LogEvent;
use leasehold::core::run_stats::{RUNS_FOR_ADVICE, TtlAdvice, survives};
use leasehold::run_log::Window;
use leasehold::stores::Store;
use leasehold::text::one_line;
use maud::{Markup, html};

use super::super::Shared;
use super::super::stats::{JobFacts, LAST, read};
use super::histogram::histogram;
use super::parts::{Page, Place, answer, content, encoded, human, outcome, slot_time, time};
use crate::cmd::stats::skip_rate;
use crate::messages::dashboard as say;

/// How far back it looks.
pub const WINDOW: Duration = Duration::from_secs(30 * 86_400);

/// The page.
pub async fn job(State(shared): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let seen = shared.live.now().await;
    let Ok(job) = Name::new(&name) else { return super::nothing_here(State(shared), uri).await };
    let (asked, elsewhere, file) = (job.clone(), shared.elsewhere, shared.file.clone());
    let read = move |store: &mut dyn Store| read(store, &asked, Window::last(WINDOW), elsewhere, &file);
    let facts = shared.reader.ask(read).await;
    let unknown = matches!(facts, Ok(None));
    let read = facts.map(|facts| match facts {
        Some(facts) => shown(&facts),
        None => html! { p.card.none { (say::unknown_job()) } },
    });
    let (mut status, body) = content(&shared, uri.path(), read);
    if unknown {
        status = StatusCode::NOT_FOUND;
    }
    let (stats, history) = (format!("leasehold stats {job} --since 30d"), format!("leasehold history {job}"));
    let page = Page {
        place: Place::Jobs,
        title: job.as_str(),
        sub: html! { "A job of the last 30 days: how long it runs, how it ends, and whether its TTL fits." },
        same: &[&stats, &history],
        body,
        json: &format!("/api/v1/jobs/{}", encoded(job.as_str())),
    };
    answer(status, page.whole(&shared, &seen))
}

fn shown(facts: &JobFacts) -> Markup {
    let dash = || "–".to_owned();
    let shown = |time: Option<Duration>| time.map_or_else(dash, human);
    let (sums, times) = (&facts.sums, &facts.sums.ok);
    let counts: BTreeMap<LogEvent, u64> = sums.counts().collect();
    let count = |event| counts.get(&event).copied().unwrap_or(0);
    let others =
        [LogEvent::Failed, LogEvent::Killed, LogEvent::Unknown, LogEvent::Released, LogEvent::Dropped];
    let others: Vec<String> = others
        .into_iter()
        .filter(|event| count(*event) > 0)
        .map(|event| format!("{} {}", count(event), event.word()))
        .collect();
    let skips: Vec<String> =
        sums.skips.iter().map(|(why, count)| format!("{count} {}", one_line(why))).collect();
    let tile = |name: &str, value: String, more: String| {
        html! { div { dt { (name) } dd { b { (value) } small { (more) } } } }
    };
    let log = |event: LogEvent| {
        format!("/log?name={}&since=30d&only={}", encoded(facts.name.as_str()), event.word())
    };
    html! {
        dl.conf {
            @if let Some(record) = &facts.record { div { dt { "schedule" } dd { (one_line(&record.schedule)) } } }
            @if let Some(next) = facts.next.and_then(|next| u64::try_from(next.as_second()).ok()) {
                div { dt { "next slot" } dd { (time(Duration::from_secs(next))) } }
            }
            div {
                dt { "TTL" }
                dd { (human(facts.ttl())) @if facts.ttl.is_none() { span.mut { " (unless a run names another)" } } }
            }
            div {
                dt { "lease" }
                dd {
                    @match &facts.lease {
                        Some(row) if row.state.is_held() => { "held by " span.m { (one_line(row.holder.as_deref().unwrap_or("?"))) } },
                        Some(_) => "free",
                        None => "none of this name",
                    }
                }
            }
        }
        dl.card.kpi {
            (tile("Runs", sums.runs().to_string(), {
                let ok = format!("{} ok", count(LogEvent::Ok));
                std::iter::once(ok).chain(others).collect::<Vec<_>>().join(", ")
            }))
            (tile("p50", shown(times.p50), "half of the ok runs were shorter".into()))
            (tile("p95", shown(times.p95), "1 in 20 took longer".into()))
            (tile("Worst ok run", shown(times.worst), match (facts.interval, facts.too_long()) {
                (None, _) => String::new(),
                (Some(_), 0) => "shorter than the interval".into(),
                (Some(_), 1) => "1 longer than the interval".into(),
                (Some(_), more) => format!("{more} longer than the interval"),
            }))
            (tile("Skip rate", skip_rate(sums).map_or_else(dash, |rate| format!("{rate} %")), match skips.is_empty() {
                true => "no skips".into(),
                false => skips.join(", "),
            }))
            (tile("Leases lost", count(LogEvent::Lost).to_string(), String::new()))
            (tile("Writes refused", count(LogEvent::Refused).to_string(), String::new()))
        }
        div.g2 {
            section.card.chart aria-labelledby="times" {
                div.sech { h2 #times { "Run times" } span.mut.small { "the scale is logarithmic" } }
                @if facts.times.is_empty() { p.none { (say::no_times()) } } @else {
                    div.wide { (histogram(facts, 760.0, "wide")) }
                    div.narrow { (histogram(facts, 326.0, "narrow")) }
                }
                p.legend {
                    @for event in [LogEvent::Ok, LogEvent::Failed, LogEvent::Lost, LogEvent::Killed, LogEvent::Unknown, LogEvent::Released] {
                        @if count(event) > 0 {
                            a href=(log(event)) { (outcome(Some(event), &format!("{} {}", count(event), event.word()))) }
                        }
                    }
                    @if facts.too_long() > 0 { span.mut { (say::beyond_interval()) } }
                }
            }
            (advice(facts))
        }
        (last(facts))
        p.more {
            a.lnk href={ "/timeline?window=7d&name=" (encoded(facts.name.as_str())) } { "Its timeline" } " "
            a.lnk href={ "/log?since=30d&name=" (encoded(facts.name.as_str())) } { "Its log" }
            @if facts.cut { " " (say::only_newest(facts.read)) }
        }
    }
}

fn advice(facts: &JobFacts) -> Markup {
    let is_renewed = matches!(facts.advice(), TtlAdvice::Renewed { .. });
    let ttl = facts.ttl();
    let mut ttls = vec![ttl, Duration::from_secs(90), Duration::from_secs(300), Duration::from_secs(4_800)];
    ttls.sort_unstable();
    ttls.dedup();
    html! {
        section.card.adv aria-labelledby="advice" {
            h2 #advice { "TTL advice" }
            p.v { (facts.advice_in_words()) "." }
            @if is_renewed {
                table.wt {
                    caption.sr { "What a TTL means for a job that renews it" }
                    thead { tr {
                        th.num scope="col" { "TTL" } th.num scope="col" { "Taken over within" }
                        th.num scope="col" { "Sleep that loses no lease" }
                    } }
                    tbody {
                        @for each in ttls {
                            tr {
                                th.num scope="row" { (human(each)) @if each == ttl { span.sr { " (now)" } } }
                                td.num { (human(each)) }
                                td.num { (human(survives(each))) }
                            }
                        }
                    }
                }
            }
            p.mut.small { (say::from_runs(facts.sums.ok.count, RUNS_FOR_ADVICE)) }
        }
    }
}

fn last(facts: &JobFacts) -> Markup {
    html! {
        section.sec aria-labelledby="last" {
            div.sech { h2 #last { "The last " (facts.last.len().min(LAST)) } span.mut.small { "newest first" } }
            @if facts.last.is_empty() { p.card.none { (say::no_records()) } } @else {
                div.card {
                    table.cards.lg role="table" {
                        caption.sr { "The newest records of this job, the newest first" }
                        thead role="rowgroup" { tr role="row" {
                            th role="columnheader" scope="col" { "Time" } th role="columnheader" scope="col" { "Outcome" } th.num role="columnheader" scope="col" { "Token" }
                            th.num role="columnheader" scope="col" { "Took" } th.num role="columnheader" scope="col" { "Slot" } th role="columnheader" scope="col" { "Machine" }
                        } }
                        tbody role="rowgroup" {
                            @for line in &facts.last {
                                tr role="row" {
                                    td.t role="cell" data-label="Time" { (time(line.at)) }
                                    td role="cell" data-label="Outcome" {
                                        (outcome(line.event(), &line.word))
                                        @if let Some(why) = &line.reason { span.mut { " " (one_line(why)) } }
                                    }
                                    td.num.m role="cell" data-label="Token" { (line.token.map_or_else(|| "–".into(), |token| token.get().to_string())) }
                                    td.num role="cell" data-label="Took" { (line.took.map_or_else(|| "–".into(), human)) }
                                    td.num role="cell" data-label="Slot" {
                                        (line.slot.map_or_else(|| "–".into(), slot_time))
                                    }
                                    td role="cell" data-label="Machine" { (one_line(&line.host)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
