//! One file as a target, for real: killed and frozen at every system call, full disks, damaged fences.

/// Lists functions under their own names.
#[cfg(target_os = "linux")]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
#[cfg(target_os = "linux")]
use tests;

#[cfg(target_os = "linux")]
mod frozen;
#[cfg(target_os = "linux")]
mod killed;
#[cfg(target_os = "linux")]
mod kit;
#[cfg(target_os = "linux")]
mod manners;
#[cfg(target_os = "linux")]
mod role;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod trees;

#[cfg(target_os = "linux")]
use std::sync::Mutex;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
type Test = (&'static str, fn());

#[cfg(target_os = "linux")]
fn main() {
    if let Ok(role) = std::env::var(role::ROLE) {
        role::play(&role);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let only: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let mut tests = [table::TESTS, manners::TESTS, trees::TESTS, killed::TESTS, frozen::TESTS].concat();
    let all = tests.len();
    tests.retain(|(name, _)| only.is_empty() || only.iter().any(|o| name.contains(o.as_str())));
    if args.iter().any(|a| a == "--list") {
        return tests.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let failed = run(&tests);
    let (word, count) = (if failed.is_empty() { "ok" } else { "FAILED" }, failed.len());
    let (passed, filtered) = (tests.len() - count, all - tests.len());
    println!(
        "test result: {word}. {passed} passed; {count} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// A few at a time, for each mostly waits for the processes it starts. Those that failed.
#[cfg(target_os = "linux")]
fn run(tests: &[Test]) -> Vec<&'static str> {
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(2).max(1);
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
