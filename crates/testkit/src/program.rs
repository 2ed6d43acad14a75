//! The main function of a test program that also runs in other roles, and so cannot use the usual test harness.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A test, by name.
pub type Test = (&'static str, fn());

/// Runs the tests that the arguments name, this many at a time, and prints as the usual harness does. It understands
/// parts of names, `--skip PART` and `--list`.
///
/// # Panics
/// If one of them failed.
pub fn main(tests: &[Test], threads: usize) {
    let (chosen, list) = choose(tests, std::env::args().skip(1));
    if list {
        return chosen.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let failed = run(&chosen, threads);
    let (word, count) = (if failed.is_empty() { "ok" } else { "FAILED" }, failed.len());
    let (passed, filtered) = (chosen.len() - count, tests.len() - chosen.len());
    println!(
        "test result: {word}. {passed} passed; {count} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// The tests that the arguments name, and whether to list them only.
fn choose(tests: &[Test], arguments: impl Iterator<Item = String>) -> (Vec<Test>, bool) {
    let (mut only, mut skipped, mut list) = (Vec::new(), Vec::new(), false);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => list = true,
            "--skip" => skipped.extend(arguments.next()),
            option if option.starts_with('-') => {}
            _ => only.push(argument),
        }
    }
    let named = |parts: &[String], name: &str| parts.iter().any(|part| name.contains(part.as_str()));
    let wanted = |name| (only.is_empty() || named(&only, name)) && !named(&skipped, name);
    (tests.iter().filter(|(name, _)| wanted(name)).copied().collect(), list)
}

/// The tests that failed.
fn run(tests: &[Test], threads: usize) -> Vec<&'static str> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let good = std::panic::catch_unwind(test).is_ok();
                    println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
                    if !good {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[cfg(test)]
mod tests {
    use super::{Test, choose, run};

    const TESTS: [Test; 3] =
        [("frozen_late", || {}), ("frozen_early", || panic!("on purpose")), ("killed", || {})];

    fn chosen(arguments: &[&str]) -> Vec<&'static str> {
        let (tests, _) = choose(&TESTS, arguments.iter().map(|a| (*a).to_owned()));
        tests.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn parts_of_names_choose_and_leave_out() {
        assert_eq!(chosen(&["--show-output"]), ["frozen_late", "frozen_early", "killed"]);
        assert_eq!(chosen(&["frozen"]), ["frozen_late", "frozen_early"]);
        assert_eq!(chosen(&["--skip", "frozen"]), ["killed"]);
        assert_eq!(chosen(&["frozen", "--skip", "late"]), ["frozen_early"]);
        assert!(chosen(&["nothing"]).is_empty());
    }

    #[test]
    fn what_fails_is_named() {
        assert_eq!(run(&TESTS, 2), ["frozen_early"]);
    }
}
