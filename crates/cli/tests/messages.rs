//! Every message of `docs/messages.md` was said in some test. Run it after `commands`, which notes what it sees.

use std::collections::BTreeSet;
use std::path::Path;

/// Messages that no test can bring about: the system would have to fail in a way that nothing here can make it.
const OUT_OF_REACH: [&str; 0] = [];

/// The names on the page, as `run.skipped`.
fn all(page: &str) -> BTreeSet<String> {
    let mut catalogue = "";
    let mut names = BTreeSet::new();
    for line in page.lines() {
        catalogue = line.strip_prefix("## ").unwrap_or(catalogue);
        let name = line.strip_prefix("- **").and_then(|line| line.split_once("**"));
        names.extend(name.map(|(name, _)| format!("{catalogue}.{name}")));
    }
    names
}

fn seen() -> BTreeSet<String> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages");
    let files = std::fs::read_dir(&place).unwrap_or_else(|e| {
        panic!("SKIPPED: {}: {e}; run the test program `commands` first", place.display())
    });
    let text =
        |file: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(file.unwrap().path()).unwrap();
    files.flat_map(|file| text(file).lines().map(String::from).collect::<Vec<_>>()).collect()
}

fn unseen(all: &BTreeSet<String>, seen: &BTreeSet<String>) -> Vec<String> {
    all.difference(seen).filter(|name| !OUT_OF_REACH.contains(&name.as_str())).cloned().collect()
}

#[test]
fn every_message_is_reached_by_a_test() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/messages.md");
    let all = all(&std::fs::read_to_string(page).unwrap());
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
fn a_message_that_no_test_reaches_is_caught() {
    let page = "## run\n\n- **skipped**: skipped {job}\n- **never**: never\n";
    let seen = BTreeSet::from(["run.skipped".to_owned()]);
    assert_eq!(unseen(&all(page), &seen), ["run.never"]);
}
