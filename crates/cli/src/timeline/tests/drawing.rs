//! How pictures look: kept as files, and compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::core::run_log::LogEvent;

use super::super::html::html;
use super::super::model::Timeline;
use super::super::night::{night, picture, run};
use super::super::svg::{Options, svg};
use super::super::text::{Terminal, text};
use super::{SINCE, UNTIL};

/// A text without its colours.
pub fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or("", |(_, rest)| rest))
}

fn drawn(timeline: &Timeline, width: usize, unicode: bool) -> String {
    text(timeline, Terminal { width, unicode })
}

#[track_caller]
fn is_kept(path: &Path, drawn: &str) {
    if std::env::var_os("LEASEHOLD_UPDATE").is_some() {
        std::fs::write(path, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == drawn,
        "run it again with LEASEHOLD_UPDATE=1, and look at {}:\n{drawn}",
        path.file_name().unwrap().display()
    );
}

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// The picture in docs/timeline.md.
#[test]
fn the_picture_of_the_documents_is_up_to_date() {
    let timeline = picture(night(), SINCE, UNTIL);
    let drawn = svg(&timeline, &Options { width: 1_120, id: "night", style: true }) + "\n";
    is_kept(&root("docs/pictures/night.svg"), &drawn);
    let page = std::fs::read_to_string(root("docs/timeline.md")).unwrap();
    let block = plain(&text(&timeline, Terminal { width: 98, unicode: true }));
    assert!(page.contains(&block), "docs/timeline.md should show:\n{block}");
}

#[test]
fn a_night_in_terminals_of_several_widths() {
    let timeline = picture(night(), SINCE, UNTIL);
    for width in [40, 80, 120] {
        for (unicode, end) in [(true, "txt"), (false, "ascii.txt")] {
            let name = format!("crates/cli/src/timeline/snapshots/night-{width}.{end}");
            let text = drawn(&timeline, width, unicode);
            let plain = plain(&text);
            is_kept(&root(&name), &(plain.clone() + "\n"));
            let widest = plain.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} of {width}:\n{plain}");
            assert!(unicode || plain.is_ascii(), "{plain}");
            assert!(text.contains("\x1b[35m"), "a lost lease has a colour");
        }
    }
}

#[test]
fn every_sign_has_a_shape_of_its_own() {
    let timeline = picture(night(), SINCE, UNTIL);
    let text = plain(&drawn(&timeline, 120, false));
    for sign in ["#", ".", "!", "x", "41 < 42"] {
        assert!(text.contains(sign), "{sign}");
    }
    // Every kind has a path of its own, and a class.
    let kinds = LogEvent::ALL.into_iter().filter(|event| !event.by_person());
    let mut shapes: Vec<String> = kinds
        .map(|event| {
            let mut run = run("02:30:00", event, "mac-mini", 1, 600);
            run.exit = None;
            let drawn =
                svg(&picture(vec![run], SINCE, UNTIL), &Options { width: 1_120, id: "x", style: false });
            let legend = drawn.split("tl-key").nth(1).unwrap();
            legend.split(" d=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        })
        .collect();
    let count = shapes.len();
    shapes.sort();
    shapes.dedup();
    assert_eq!(shapes.len(), count, "{shapes:?}");
}

#[test]
fn an_empty_window_says_so() {
    let timeline = picture(Vec::new(), SINCE, UNTIL);
    assert!(timeline.is_empty());
    let drawn_svg = svg(&timeline, &Options { width: 360, id: "x", style: true });
    let pictures = [drawn(&timeline, 80, true), drawn_svg, html(&timeline)];
    for picture in pictures {
        assert!(picture.contains(&crate::messages::timeline::empty()), "{picture}");
    }
}

#[test]
fn thousands_of_runs_fit_in_a_picture() {
    let many = |count: u64| {
        let records = (0..count).map(|n| {
            let event = if n % 50 == 7 { LogEvent::Failed } else { LogEvent::Ok };
            let mut run = run(SINCE, event, ["a", "b", "c"][usize::try_from(n % 3).unwrap()], n + 1, 20);
            run.at += Duration::from_millis(n * 16_000_000 / count);
            run
        });
        picture(records.collect(), SINCE, UNTIL)
    };
    let timeline = many(30_000);
    assert_eq!(timeline.counts().values().sum::<u64>(), 30_000);
    let size = |timeline: &Timeline| {
        let drawn = svg(timeline, &Options { width: 1_120, id: "x", style: true });
        roxmltree::Document::parse(&drawn).unwrap();
        (drawn.len(), html(timeline).len(), drawn.matches("class=\"tl-mark").count())
    };
    let (drawn, page, marks) = size(&timeline);
    assert!(marks <= 2_000, "{marks}");
    assert!(drawn < 1_000_000 && page < 3_000_000, "{drawn} {page}");
    // No runs are lost on the way: a mark says how many it stands for.
    assert!(drawn > 10_000);
    let text = plain(&super::drawing::drawn(&timeline, 80, true));
    assert!(text.lines().count() < 60, "{text}");
    // Runs at the same time on one machine.
    let crowd = (0..2_000u64).map(|n| run("03:00:00", LogEvent::Ok, "a", n + 1, 3_600 + n)).collect();
    let (_, _, marks) = size(&picture(crowd, SINCE, UNTIL));
    assert!(marks <= 2_000, "{marks}");
}
