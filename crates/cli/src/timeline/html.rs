//! A picture as a page of HTML, whole in itself: it loads nothing and runs nothing.

use std::fmt::Write as _;

use leasehold::core::run_log::LogEvent;

use super::model::{Kind, Mark, Timeline};
use super::svg::{self, Options, STYLE};
use super::words::{self, Times};
use super::xml::escaped;
use crate::messages::timeline as say;

/// The most rows of the table.
const ROWS: usize = 1_000;
/// The most notes.
const NOTES: usize = 50;
const PAGE: &str = include_str!("html/page.css");

/// The page. It is well-formed XML, too.
pub fn html(timeline: &Timeline) -> String {
    let mut out = format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<title>{title}: {window}</title>
<style>{PAGE}{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="sub">{window}</p>
"#,
        title = escaped(&say::title()),
        window = escaped(&words::window(timeline)),
    );
    for (class, width) in [("wide", 1_120), ("narrow", 344)] {
        let drawn = svg::svg(timeline, &Options { width, id: class, style: false });
        let _ = writeln!(out, r#"<div class="card {class}">{drawn}</div>"#);
    }
    if !timeline.is_empty() {
        let times = Times::new(timeline);
        let records = timeline.records();
        notes(&mut out, timeline, &records, &times);
        table(&mut out, &records, &times);
        let _ = writeln!(
            out,
            "<section>\n<h2>{}</h2>\n<p class=\"read\">{}</p>\n</section>",
            escaped(&say::reading()),
            escaped(&say::how_to_read())
        );
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn time(out: &mut String, mark: &Mark, times: &Times) {
    let _ = write!(
        out,
        r#"<time datetime="{}">{}</time>"#,
        escaped(&times.machine_readable(mark.end)),
        escaped(&times.at(mark.end))
    );
}

fn notes(out: &mut String, timeline: &Timeline, records: &[&Mark], times: &Times) {
    let notes: Vec<(&Mark, String)> =
        records.iter().filter_map(|mark| Some((*mark, words::note(mark, timeline)?))).collect();
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escaped(&say::what_stands_out()));
    if notes.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escaped(&say::nothing_stands_out()));
    } else {
        let before = notes.len().saturating_sub(NOTES);
        out.push_str("<ol class=\"notes\">\n");
        for (mark, note) in &notes[before..] {
            out.push_str("<li>");
            time(out, mark, times);
            let _ = writeln!(out, " <span>{}</span></li>", escaped(note));
        }
        out.push_str("</ol>\n");
        if before > 0 {
            let _ = writeln!(out, "<p>{}</p>", escaped(&say::more_notes(before)));
        }
    }
    out.push_str("</section>\n");
}

/// All that the picture shows, for those who cannot see it. The newest first. On a phone its rows are drawn as lines:
/// the roles keep it a table for readers.
fn table(out: &mut String, records: &[&Mark], times: &Times) {
    let shown = records.len().min(ROWS);
    let title = match shown == records.len() {
        true => say::all_records(),
        false => say::newest_records(shown, records.len()),
    };
    let _ = write!(
        out,
        "<section>\n<h2 id=\"records\">{}</h2>\n<div class=\"card rows\" role=\"region\" aria-labelledby=\"records\" \
         tabindex=\"0\">\n<table role=\"table\">\n<thead role=\"rowgroup\"><tr role=\"row\">",
        escaped(&title)
    );
    let heads = [say::when(), say::outcome(), say::job(), say::machine(), say::its_token(), say::took()];
    for head in heads.into_iter().chain([say::details()]) {
        let _ = write!(out, "<th role=\"columnheader\" scope=\"col\">{}</th>", escaped(&head));
    }
    out.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
    for mark in records.iter().rev().take(ROWS) {
        out.push_str("<tr role=\"row\"><td role=\"cell\">");
        time(out, mark, times);
        let _ = write!(out, "</td><td role=\"cell\">{}</td>", escaped(&mark.word));
        let took = (mark.kind.lasts() && mark.start < mark.end).then(|| words::took(mark.lasted()));
        let skipped = mark.kind == Kind::Event(LogEvent::Skipped);
        let token = mark.token().filter(|_| !skipped).map(|token| token.to_string());
        let mut details = words::details(mark, times);
        details.extend(words::tokens(mark).filter(|_| skipped));
        let cells = [mark.job.clone(), mark.host.clone()].into_iter();
        let cells = cells.chain([token.unwrap_or_default(), took.unwrap_or_default(), details.join(", ")]);
        for cell in cells {
            let _ = write!(out, "<td role=\"cell\">{}</td>", escaped(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
}
