//! The page Log: every record, the newest first, with filters.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::Uri;
use axum::response::Response;
use leasehold::core::ledger::Subject;
use leasehold::core::run_log::LogEvent;
use leasehold::run_log::{LogEntry, newest};
use leasehold::stores::{Failure, Store};
use leasehold::text::one_line;
use maud::{Markup, html};

use super::super::asked::{Asked, Listing, Older};
use super::super::{Refusal, Shared};
use super::parts::{Page, Place, answer, content, encoded, human, job_link, outcome, slot_time, time};
use crate::messages::{dashboard as say, timeline as words};

/// Records on one page.
pub const PAGE: usize = 50;
/// The most bodies that are read one by one, where a list has only keys.
const FILLED: usize = 50;

/// A part of the list.
#[derive(Debug)]
pub struct Records {
    pub entries: Vec<LogEntry>,
    /// Where it goes on, if it does.
    pub older: Option<Older>,
}

/// Reads it.
pub fn read(store: &mut dyn Store, listing: &Listing) -> Result<Records, Failure> {
    let wanted = |entry: &LogEntry| {
        listing.only.is_empty() || entry.line.event().is_some_and(|event| listing.only.contains(&event))
    };
    let limit = listing.skip + PAGE;
    let (mut entries, more) = newest(store, listing.whose.scope(), listing.window, limit, wanted)?;
    let mut entries = entries.split_off(listing.skip.min(entries.len()));
    let missing = entries.iter_mut().filter(|entry| entry.record.is_none());
    missing.take(FILLED).try_for_each(|entry| entry.fill(store))?;
    let older = entries.last().filter(|_| more).map(|last| {
        let at = last.line.at;
        let same = entries.iter().rev().take_while(|entry| entry.line.at == at).count();
        // All of them are of the millisecond at which the page began.
        let before = if same == entries.len() && listing.window.until == at { listing.skip } else { 0 };
        Older { at: u64::try_from(at.as_millis()).unwrap_or(u64::MAX), skip: same + before }
    });
    Ok(Records { entries, older })
}

/// The page.
pub async fn log(State(shared): Shared, uri: Uri) -> Response {
    let seen = shared.live.now().await;
    let asked = Asked::of(&uri);
    let listing = asked.as_ref().map_err(|_| ()).map(Asked::listing);
    let asked = asked.unwrap_or_default();
    let (status, body) = match listing {
        Ok(Ok(listing)) => {
            let read = shared.reader.ask(move |store| read(store, &listing)).await;
            content(&shared, &uri.to_string(), read.map(|records| table(&records, &asked)))
        }
        Ok(Err(Refusal { text, .. })) => {
            (StatusCode::BAD_REQUEST, html! { p.card.none role="alert" { (text) } })
        }
        Err(()) => (StatusCode::BAD_REQUEST, html! { p.card.none role="alert" { (say::bad_query()) } }),
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let command = command(&asked);
    let page = Page {
        place: Place::Log,
        title: "Log",
        sub: html! { "Every run that ended, every skip, every lost lease and refused write, on all machines. Newest first." },
        same: &[&command],
        body: html! { (filters(&asked)) (body) },
        json: &format!("/api/v1/log{query}"),
    };
    answer(status, page.whole(&shared, &seen))
}

fn command(asked: &Asked) -> String {
    let mut command = String::from("leasehold history");
    for (flag, value) in [(" ", &asked.name), (" --since ", &asked.since), (" --only ", &asked.only)] {
        if !value.trim().is_empty() {
            command += flag;
            command += &one_line(value.trim());
        }
    }
    command
}

/// The outcomes that are offered.
const OFFERED: [LogEvent; 9] = [
    LogEvent::Ok,
    LogEvent::Skipped,
    LogEvent::Failed,
    LogEvent::Lost,
    LogEvent::Killed,
    LogEvent::Refused,
    LogEvent::Unknown,
    LogEvent::Dropped,
    LogEvent::Unsealed,
];

fn link(asked: &Asked, only: &str, older: &str) -> String {
    let parts = [
        ("only", only),
        ("name", asked.name.as_str()),
        ("since", asked.since.as_str()),
        ("until", asked.until.as_str()),
        ("older", older),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    match parts.is_empty() {
        true => "/log".into(),
        false => format!("/log?{}", parts.join("&")),
    }
}

/// Links for outcomes, and a form for the rest: both work without a script.
fn filters(asked: &Asked) -> Markup {
    let chosen: Vec<&str> = asked.only.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let toggled = |word: &str| {
        let others = chosen.iter().copied().filter(|chosen| *chosen != word);
        let added = Some(word).filter(|word| !chosen.contains(word));
        others.chain(added).collect::<Vec<_>>().join(",")
    };
    html! {
        section.card.fil aria-label="Filters" {
            nav.chips aria-label="Outcome" {
                a.chip href=(link(asked, "", "")) aria-current=[chosen.is_empty().then_some("true")] { "Everything" }
                @for event in OFFERED {
                    @let word = event.word();
                    a.chip href=(link(asked, &toggled(word), "")) aria-current=[chosen.contains(&word).then_some("true")] {
                        (outcome(Some(event), word))
                    }
                }
            }
            form.row action="/log" method="get" {
                @if !asked.only.is_empty() { input type="hidden" name="only" value=(asked.only); }
                label { span { "Job, or prefix/" } input type="text" name="name" value=(asked.name) autocomplete="off" spellcheck="false"; }
                label { span { "Since" } input type="text" name="since" value=(asked.since) placeholder="7d, or 03:00" autocomplete="off"; }
                label { span { "Until" } input type="text" name="until" value=(asked.until) placeholder="now" autocomplete="off"; }
                button type="submit" { "Show" }
                a.lnk href="/log" { "Clear" }
            }
        }
    }
}

fn table(records: &Records, asked: &Asked) -> Markup {
    let Records { entries, older } = records;
    let filtered = [&asked.only, &asked.name, &asked.since, &asked.until].iter().any(|text| !text.is_empty());
    html! {
        section.card aria-label="Records" {
            @if entries.is_empty() {
                div.none {
                    p { (if filtered { say::no_match() } else { say::no_records() }) }
                    @if asked.since.is_empty() { p { a.lnk href={ (link(asked, &asked.only, "")) (if filtered { "&" } else { "?" }) "since=90d" } { (say::further_back()) } } }
                }
            } @else {
                table.cards.lg role="table" {
                    caption.sr { "Records of the run log, the newest first" }
                    thead role="rowgroup" { tr role="row" {
                        th role="columnheader" scope="col" { "Time" } th role="columnheader" scope="col" { "Job" } th role="columnheader" scope="col" { "Outcome" }
                        th.num role="columnheader" scope="col" { "Token" } th role="columnheader" scope="col" { "Machine" } th.num role="columnheader" scope="col" { "Took" }
                        th role="columnheader" scope="col" { "What happened" }
                    } }
                    tbody role="rowgroup" { @for entry in entries { (row(entry)) } }
                }
            }
        }
        @if let Some(older) = older {
            p.more { a.lnk rel="next" href=(link(asked, &asked.only, &older.text())) { "Older records" } }
        } @else if !entries.is_empty() {
            p.more { (say::no_older()) }
        }
    }
}

fn row(entry: &LogEntry) -> Markup {
    let line = &entry.line;
    let event = line.event();
    let host = entry.record.as_ref().map_or(&line.host, |record| &record.holder.host);
    let hot = !matches!(event, Some(LogEvent::Ok | LogEvent::Skipped | LogEvent::Released));
    html! {
        tr.hot[hot] role="row" {
            td.t role="cell" data-label="Time" { (time(line.at)) }
            th.name role="rowheader" scope="row" data-label="Job" { a href=(job_link(line.job.as_str())) { (line.job) } }
            td role="cell" data-label="Outcome" { (outcome(event, &line.word)) }
            td.num.m role="cell" data-label="Token" { (line.token.map_or_else(|| "–".into(), |token| token.get().to_string())) }
            td role="cell" data-label="Machine" { (one_line(host)) }
            td.num.s2 role="cell" data-label="Took" { (line.took.map_or_else(|| "–".into(), human)) }
            td.w role="cell" data-label="What happened" { (details(entry)) }
        }
    }
}

/// What else a record says.
fn details(entry: &LogEntry) -> Markup {
    let line = &entry.line;
    let record = entry.record.as_ref();
    let mut parts: Vec<String> = line.reason.clone().into_iter().collect();
    parts.extend(line.exit.filter(|code| *code != 0).map(words::exit));
    match record.and_then(|record| record.item.as_ref()) {
        Some(Subject::Key(key)) => parts.push(say::key(key)),
        Some(Subject::Slot { at, .. }) => parts.push(say::slot(slot_time(*at))),
        Some(Subject::Latest(_)) | None => parts.extend(line.slot.map(slot_time).map(say::slot)),
    }
    if let Some(refused) = record.and_then(|record| record.target.as_ref()) {
        parts.push(refused.target.clone());
        parts.extend(refused.fence.map(|fence| words::fence(fence.get())));
    }
    parts.extend(record.and_then(|record| record.count).map(say::so_many));
    if entry.newer {
        parts.push(say::newer_version());
    }
    let said = record.map(|record| record.said.trim()).unwrap_or_default();
    let short = said.lines().count() <= 1 && said.len() <= 90;
    if short && !said.is_empty() {
        parts.push(said.into());
    }
    html! {
        (one_line(&parts.join(", ")))
        @if !short {
            details {
                summary { (one_line(said.lines().last().unwrap_or_default())) }
                pre tabindex="0" { (leasehold::text::harmless(said)) }
            }
        }
    }
}
