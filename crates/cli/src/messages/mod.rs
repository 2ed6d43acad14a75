//! What the commands say: one catalogue per command. `docs/messages.md` is made from them.
//!
//! A command calls these functions and writes no sentence of its own. `notes!` makes a function for each line,
//! `failures!` one for each failure with its exit code, `explanations!` one for a failure whose exit code the
//! caller knows.

pub mod adopt;
pub mod break_lease;
pub mod by_hand;
pub mod check;
#[cfg(test)]
mod commands;
pub mod config;
pub mod daemon;
#[cfg_attr(not(feature = "http"), allow(dead_code))] // the page lists it in every build
pub mod dashboard;
pub mod demo;
pub mod doctor;
pub mod fence;
pub mod fenced;
pub mod forget;
pub mod gate;
pub mod guard;
pub mod help;
pub mod history;
pub mod items;
pub mod metrics;
pub mod notify;
pub mod observe;
pub mod once;
pub mod other_stores;
pub mod pause;
pub mod plan;
pub mod push;
pub mod read;
pub mod refusals;
pub mod report;
pub mod retry;
pub mod run;
#[cfg_attr(not(feature = "http"), allow(dead_code))] // the page lists it in every build
pub mod serve;
pub mod stats;
pub mod status;
pub mod step;
pub mod store;
pub mod timeline;
pub mod trigger;
pub mod uninstall;
pub mod use_store;
pub mod why;
pub mod write;

/// Failures: each becomes a function that fills in its placeholders, and an entry of `FAILURES`.
macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) $kind:ident $word:literal
        { $what:literal $means:literal $next:literal })*) => {
        $($(#[$doc])* pub fn $name($($arg: impl ::std::fmt::Display),*) -> $crate::exit::Failed {
            $crate::exit::Failed::new(
                $crate::exit::FailKind::$kind,
                $word,
                ::leasehold::messages::Explanation::parts(format!($what), format!($means), format!($next)),
            )
        })*
        /// Every failure of this catalogue.
        #[allow(dead_code)] // read by the page
        pub const FAILURES: &[::leasehold::messages::Entry] = &[$(::leasehold::messages::Entry {
            name: stringify!($name),
            exit: Some((stringify!($kind), $word)),
            parts: [$what, $means, $next],
        }),*];
    };
}
use failures;

/// Every catalogue, in the order of `docs/messages.md`.
#[cfg(test)]
const CATALOGUES: &[leasehold::messages::Catalogue] = &[
    run::CATALOGUE,
    once::CATALOGUE,
    items::CATALOGUE,
    step::CATALOGUE,
    retry::CATALOGUE,
    write::CATALOGUE,
    read::CATALOGUE,
    push::CATALOGUE,
    gate::CATALOGUE,
    fence::CATALOGUE,
    guard::CATALOGUE,
    fenced::CATALOGUE,
    leasehold::targets::messages::CATALOGUE,
    status::CATALOGUE,
    history::CATALOGUE,
    timeline::CATALOGUE,
    why::CATALOGUE,
    refusals::CATALOGUE,
    stats::CATALOGUE,
    check::CATALOGUE,
    metrics::CATALOGUE,
    plan::CATALOGUE,
    daemon::CATALOGUE,
    trigger::CATALOGUE,
    pause::CATALOGUE,
    by_hand::CATALOGUE,
    break_lease::CATALOGUE,
    adopt::CATALOGUE,
    forget::CATALOGUE,
    doctor::CATALOGUE,
    leasehold::doctor::messages::CATALOGUE,
    uninstall::CATALOGUE,
    use_store::CATALOGUE,
    store::CATALOGUE,
    config::CATALOGUE,
    other_stores::CATALOGUE,
    serve::CATALOGUE,
    dashboard::CATALOGUE,
    report::CATALOGUE,
    notify::CATALOGUE,
    observe::CATALOGUE,
    leasehold::state::messages::CATALOGUE,
    help::CATALOGUE,
    demo::CATALOGUE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::FailKind;
    use std::fmt::Write as _;
    use std::path::Path;

    const HEAD: &str = "\
# Messages

What Leasehold says, command by command. `{name}` stands for a value. A failure has an exit code and
the word that `--json` reports; it says what happened, what that means for the job, and what to do
next. The sentences of stores, of guards and of the reader of leasehold.toml are not in this list:
they come from the library, as `{why}`.

This page is made from the source: `LEASEHOLD_UPDATE=1 cargo test -p leasehold-cli messages`.
";

    /// The exit code, by the name of its kind.
    fn code(kind: &str) -> u8 {
        let kinds = [
            FailKind::Busy,
            FailKind::Usage,
            FailKind::Unreachable,
            FailKind::Clock,
            FailKind::Lost,
            FailKind::Refused,
            FailKind::Denied,
            FailKind::Config,
            FailKind::NeedsYou,
        ];
        kinds.into_iter().find(|known| format!("{known:?}") == kind).expect("a kind with a fixed code").code()
    }

    fn page() -> String {
        let mut page = String::from(HEAD);
        for catalogue in CATALOGUES {
            write!(page, "\n## {}\n\n{}\n\n", catalogue.name, catalogue.about).unwrap();
            for entry in catalogue.entries.iter().copied().flatten() {
                let exit = entry.exit.map(|(kind, word)| format!(" ({} `{word}`)", code(kind)));
                write!(page, "- **{}**{}:", entry.name, exit.unwrap_or_default()).unwrap();
                let [what, means, next] = entry.parts.map(|part| part.strip_suffix('.').unwrap_or(part));
                let mut text = what.to_owned();
                // What it means is set apart: a command that only looks leaves it out.
                let means = if means.is_empty() { String::new() } else { format!("*{means}.*") };
                for part in [means.as_str(), next].into_iter().filter(|part| !part.is_empty()) {
                    text.push_str(if text.ends_with(['.', '?', '!', ':', '*']) { " " } else { ". " });
                    text.push_str(part);
                }
                writeln!(page, " {text}").unwrap();
            }
        }
        page
    }

    #[test]
    fn the_page_of_messages_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/messages.md");
        let page = page();
        if std::env::var_os("LEASEHOLD_UPDATE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, page, "run it again with LEASEHOLD_UPDATE=1, and read what has changed");
    }

    #[test]
    fn every_message_has_a_name_of_its_own() {
        for catalogue in CATALOGUES {
            let mut names: Vec<&str> = catalogue.entries.iter().copied().flatten().map(|e| e.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", catalogue.name);
        }
    }
}
