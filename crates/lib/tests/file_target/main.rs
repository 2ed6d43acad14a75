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
    let (mut passed, mut failed, mut filtered) = (0, Vec::new(), 0);
    for (name, test) in [table::TESTS, manners::TESTS, trees::TESTS, killed::TESTS, frozen::TESTS].concat() {
        if args.iter().any(|a| a == "--list") {
            println!("{name}: test");
        } else if !only.is_empty() && !only.iter().any(|o| name.contains(o.as_str())) {
            filtered += 1;
        } else if std::panic::catch_unwind(test).is_ok() {
            println!("test {name} ... ok");
            passed += 1;
        } else {
            println!("test {name} ... FAILED");
            failed.push(name);
        }
    }
    let (word, count) = (if failed.is_empty() { "ok" } else { "FAILED" }, failed.len());
    println!(
        "test result: {word}. {passed} passed; {count} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
}
