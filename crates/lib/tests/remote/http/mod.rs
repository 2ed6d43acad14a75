//! Our own protocol: the Durable Object worker on workerd, and `leasehold serve` in front of SQLite.

mod worker;

use leasehold::random;
use leasehold::stores::Store;
use leasehold::stores::conformance::{Harness, suite};
use leasehold::stores::http::open_as;
use leasehold::stores::prefixed::Prefixed;

/// A store of its own: a corner whose keys are no leases, for the suite's bodies are no records.
fn corner(url: &str, bearer: Option<&str>) -> Harness {
    let (url, bearer) = (url.to_owned(), bearer.map(str::to_owned));
    let prefix = format!("doctor/{:032x}/", random::seed());
    Harness::new(move || {
        let inner: Box<dyn Store> = open_as(&url, bearer.as_deref()).unwrap();
        Box::new(Prefixed::new(inner, prefix.clone()))
    })
}

/// The whole suite.
fn conforms(url: &str, bearer: Option<&str>) {
    suite(&|| corner(url, bearer));
}
