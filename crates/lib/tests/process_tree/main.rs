//! The whole process tree, for real: every test starts a supervisor process of its own.

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
mod dead;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod gone;
#[cfg(target_os = "linux")]
mod manners;
#[cfg(target_os = "linux")]
mod role;

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
    let all = [dead::TESTS, gone::TESTS, manners::TESTS].concat();
    let mut failed = Vec::new();
    for (name, test) in all {
        if args.iter().any(|a| a == "--list") {
            println!("{name}: test");
            continue;
        }
        if !only.is_empty() && !only.iter().any(|o| name.contains(o.as_str())) {
            continue;
        }
        let fine = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if fine { "ok" } else { "FAILED" });
        if !fine {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
