//! Anybody may name a machine, a key or a target, and print anything.

use leasehold::core::ids::Token;
use leasehold::core::ledger::Subject;
use leasehold::core::run_log::{LogEvent, LogRecord, RefusedWrite};
use roxmltree::{Document, ParsingOptions};

use super::super::html::html;
use super::super::model::Timeline;
use super::super::night::{entries, picture, record, run};
use super::super::svg::{Options, svg};
use super::super::text::{Terminal, text};
use super::super::xml::escaped;
use super::drawing::plain;
use super::{SINCE, UNTIL};

/// What browsers, XML readers and terminals act on.
const NASTY: [&str; 12] = [
    "</text><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    "]]><![CDATA[<script>",
    "<!-- --><style>*{display:none}</style>",
    "&lt;&#60;&unknown;",
    "\u{1b}[2J\u{1b}]0;t\u{7}",
    "\u{0}\u{8}\u{b}\u{c}\u{7f}\u{85}\u{9b}1m",
    "\u{202e}\u{2066}\u{200f}",
    "a\r\nb\tc\u{2028}\u{2029}",
    "\u{fffe}\u{ffff}\u{1fffe}",
    "javascript:alert(1) url(http://x/) @import 'x'",
];

/// Records with this text in every field that takes one.
fn records(nasty: &str) -> Vec<LogRecord> {
    let host = format!("host{nasty}");
    let said = |event, time: &str, token: u64| LogRecord {
        reason: Some(nasty.into()),
        said: nasty.into(),
        item: Some(Subject::Key(nasty.into())),
        target: Some(RefusedWrite { target: nasty.into(), fence: Token::new(token + 1) }),
        ..run(time, event, &host, token, 600)
    };
    let mut all: Vec<LogRecord> = LogEvent::ALL
        .into_iter()
        .zip(1..)
        .map(|(event, n)| LogRecord {
            exit: None,
            ..said(event, &format!("0{}:{:02}:00", 2 + n / 60, n), n * 10)
        })
        .collect();
    // A gap, too.
    all.push(said(LogEvent::Ok, "05:00:00", 41));
    all.push(LogRecord { said: nasty.repeat(100), ..record("05:10:00", LogEvent::Skipped, &host, 999) });
    all
}

/// Entries, also one with a hostile word and key.
fn timeline(nasty: &str) -> Timeline {
    let mut found = entries(records(nasty));
    found[0].line.word = nasty.into();
    found[1].line.host = nasty.into();
    found[1].record = None;
    let window = picture(Vec::new(), SINCE, UNTIL).window;
    Timeline::new(found, window, jiff::tz::TimeZone::UTC, &[])
}

/// What is in a document that we did not write: other elements and attributes than ours.
fn foreign(document: &Document<'_>) -> Vec<String> {
    const ELEMENTS: [&str; 27] = [
        "body", "desc", "div", "g", "h1", "h2", "head", "html", "li", "line", "main", "meta", "ol", "p",
        "path", "rect", "section", "span", "style", "svg", "table", "tbody", "td", "text", "th", "thead",
        "time",
    ];
    let (mut found, mut styles) = (Vec::new(), 0);
    for node in document.descendants().filter(|node| node.is_element()) {
        let name = node.tag_name().name();
        if !ELEMENTS.contains(&name) && !["title", "tr"].contains(&name) {
            found.push(name.to_owned());
        }
        styles += usize::from(name == "style");
        let acts = |name: &str| name.starts_with("on") || ["href", "src", "style"].contains(&name);
        found.extend(node.attributes().map(|a| a.name().to_owned()).filter(|name| acts(name)));
    }
    found.extend((styles > 1).then(|| "a style more".into()));
    found
}

#[test]
fn what_is_foreign_is_found() {
    for (xml, found) in [
        ("<svg><g/></svg>", 0),
        ("<svg><script/></svg>", 1),
        ("<svg onload='x'/>", 1),
        ("<svg><image href='x'/></svg>", 2),
        ("<svg><style/><style/></svg>", 1),
    ] {
        assert_eq!(foreign(&Document::parse(xml).unwrap()).len(), found, "{xml}");
    }
}

#[test]
fn nothing_in_a_record_becomes_markup() {
    for nasty in NASTY {
        let timeline = timeline(nasty);
        for width in [360, 1_120] {
            let drawn = svg(&timeline, &Options { width, id: "x", style: true });
            let document = Document::parse(&drawn).unwrap_or_else(|e| panic!("{nasty:?}: {e}"));
            assert_eq!(foreign(&document), [] as [&str; 0], "{nasty:?}");
            // It is there as text.
            let titles = document
                .descendants()
                .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "title")));
            let shown = leasehold::text::one_line(nasty).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
            assert!(titles.filter_map(|title| title.text()).any(|text| text.contains(&shown)), "{nasty:?}");
        }
        let page = html(&timeline);
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        let document =
            Document::parse_with_options(&page, options).unwrap_or_else(|e| panic!("{nasty:?}: {e}"));
        assert_eq!(foreign(&document), [] as [&str; 0], "{nasty:?}");
        assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "{nasty:?}");
    }
}

#[test]
fn no_record_moves_a_cursor() {
    for nasty in NASTY {
        for width in [40, 120] {
            let drawn = plain(&text(&timeline(nasty), Terminal { width, unicode: true }));
            let harmful = |c: &char| *c != '\n' && leasehold::text::one_line(&c.to_string()) != c.to_string();
            assert_eq!(drawn.chars().find(harmful), None, "{nasty:?}: {drawn}");
            assert!(!drawn.contains("\u{1b}"), "{nasty:?}");
        }
    }
}

/// The page asks nobody for anything.
#[test]
fn a_page_is_whole_in_itself() {
    let page = html(&timeline("x"));
    for word in ["src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "<image"] {
        assert!(!page.contains(word), "{word}");
    }
    let namespaces = page.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(page.matches("http").count() - page.matches("http-equiv").count(), namespaces, "no address");
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn what_is_escaped_is_the_same_text() {
    assert_eq!(escaped("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    assert_eq!(escaped("ä 🦀"), "ä 🦀");
    assert_eq!(escaped("a\u{0}\u{ffff}"), "a\u{fffd}\u{fffd}");
}
