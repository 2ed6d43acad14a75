//! Every message of `docs/messages.md` was said in some test. Run it after the other tests, which note what they see.

use std::collections::BTreeSet;

use leasehold_testkit::messages::{seen_in, sentences};

/// Messages that no test can bring about, and why.
const OUT_OF_REACH: &[(&str, &[&str])] = &[];

fn out_of_reach(name: &str) -> bool {
    OUT_OF_REACH.iter().any(|(_, names)| names.contains(&name))
}

fn all() -> BTreeSet<String> {
    sentences().iter().filter(|sentence| sentence.can_be_told()).map(|s| s.name.clone()).collect()
}

fn seen() -> BTreeSet<String> {
    let place = seen_in();
    let files = std::fs::read_dir(&place).unwrap_or_else(|e| {
        panic!("SKIPPED: {}: {e}; run the test program `commands` first", place.display())
    });
    let text =
        |file: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(file.unwrap().path()).unwrap();
    files.flat_map(|file| text(file).lines().map(String::from).collect::<Vec<_>>()).collect()
}

fn unseen(all: &BTreeSet<String>, seen: &BTreeSet<String>) -> Vec<String> {
    all.difference(seen).filter(|name| !out_of_reach(name)).cloned().collect()
}

#[test]
fn every_message_is_reached_by_a_test() {
    let all = all();
    assert!(all.len() > 100, "the page names few messages");
    let unseen = unseen(&all, &seen());
    assert!(
        unseen.is_empty(),
        "{} of {} were said in no test:\n{}",
        unseen.len(),
        all.len(),
        unseen.join("\n")
    );
}

#[test]
fn what_is_said_to_be_out_of_reach_is_not_seen() {
    let (all, seen) = (all(), seen());
    for name in OUT_OF_REACH.iter().flat_map(|(_, names)| *names) {
        assert!(all.contains(*name), "{name} is no message, or too short to be told apart: take it off");
        assert!(!seen.contains(*name), "{name} was said in a test: take it off the list");
    }
}

#[test]
fn a_message_that_no_test_reaches_is_caught() {
    let all = [String::from("run.skipped"), String::from("run.never")].into();
    assert_eq!(unseen(&all, &[String::from("run.skipped")].into()), ["run.never"]);
}
