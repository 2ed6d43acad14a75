//! Test support: the addresses of the servers, a proxy that causes faults, and the fault suites that every
//! store behind a network must pass.

pub mod faults;
pub mod git;
pub mod messages;
pub mod program;
pub mod proxy;
pub mod race;

/// The address of a server that `scripts/servers` started, for example `server("REDIS")`.
///
/// # Panics
///
/// If there is none. `./test` counts that as a failure, so that no test is skipped silently.
pub fn server(name: &str) -> String {
    let variable = format!("LEASEHOLD_TEST_{name}");
    std::env::var(&variable).unwrap_or_else(|_| panic!("{}", absent(&variable)))
}

/// What `./test` looks for.
fn absent(variable: &str) -> String {
    format!("SKIPPED: {variable} is not set; run `scripts/servers run -- cargo test …`")
}

/// Larger counts under `./test --long`.
pub fn count(usual: usize, long: usize) -> usize {
    if std::env::var_os("LEASEHOLD_LONG").is_some() { long } else { usual }
}

#[cfg(test)]
mod tests {
    /// Without a panic, because its message would look like that of a test that did not run.
    #[test]
    fn a_missing_server_is_said_in_the_word_that_fails_the_run() {
        assert!(super::absent("LEASEHOLD_TEST_NONE").starts_with("SKIPPED"));
    }
}
