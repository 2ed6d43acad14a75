//! The PostgreSQL store, against a shared server, through PgBouncer, and against servers of its own that it
//! may kill.

mod basics;
mod costs;
mod crash;
mod failures;
mod faults;
mod own;
mod push;
mod tls;
mod wire;

use std::future::Future;

use leasehold::backends::{Holders, open_to_examine};
use leasehold::core::ids::WriteId;
use leasehold::stores::conformance::{Harness, fresh};
use leasehold::stores::prefixed::Prefixed;
use leasehold::stores::{BatchWrite, Cas, Examine, Failure, Store, Stored, Version, open};
use leasehold_testkit::{count, server};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A prefix nobody else uses.
fn corner() -> String {
    format!("t{:x}/", fresh().unwrap().0)
}

fn opened(url: &str) -> Box<dyn Store> {
    open(url).unwrap_or_else(|e| panic!("{e}"))
}

fn to_examine(url: &str) -> Box<dyn Examine> {
    open_to_examine(url, Holders::Here).unwrap_or_else(|e| panic!("{e}"))
}

fn in_corner(url: &str, corner: &str) -> Box<dyn Store> {
    Box::new(Prefixed::new(opened(url), corner))
}

/// An empty corner of the server for every check.
fn harness(url: &str) -> Harness {
    let (url, corner) = (url.to_owned(), corner());
    Harness::new(move || in_corner(&url, &corner))
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    pollster::block_on(work)
}

fn read(store: &mut Box<dyn Store>, key: &str) -> Result<Option<Stored>, Failure> {
    wait(store.read(key))
}

fn get(store: &mut Box<dyn Store>, key: &str) -> Stored {
    read(store, key).unwrap().unwrap_or_else(|| panic!("{key} is not there"))
}

fn cas(store: &mut Box<dyn Store>, key: &str, expected: Option<&Version>, body: &[u8]) -> Cas {
    wait(store.cas(key, expected, write_id(), body))
}

fn write_id() -> WriteId {
    fresh().unwrap()
}

fn written(cas: Cas) -> Version {
    match cas {
        Cas::Written { version, .. } => version,
        other => panic!("not written: {other:?}"),
    }
}

fn new_write(key: String, expected: Option<Version>, body: &[u8]) -> BatchWrite {
    BatchWrite { key, expected, write: write_id(), body: body.to_vec() }
}

/// A plain client, for what the store must not do itself.
struct Raw {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Raw {
    fn connect(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls)).unwrap();
        runtime.spawn(connection);
        Self { runtime, client }
    }

    /// Runs statements and gives the first column of every row.
    fn sql(&self, text: &str) -> Vec<String> {
        let found =
            self.runtime.block_on(self.client.simple_query(text)).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let first = |m| match m {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        };
        found.into_iter().filter_map(first).collect()
    }

    fn pid(&self) -> i64 {
        self.number("SELECT pg_backend_pid()")
    }

    /// Lets this many seconds go by on the server.
    fn pause(&self, seconds: f64) {
        self.sql(&format!("SELECT pg_sleep({seconds})"));
    }

    /// Waits until the statement's answer is this one.
    fn until(&self, text: &str, answer: &str) {
        for _ in 0..2000 {
            if self.sql(text) == [answer] {
                return;
            }
            self.pause(0.01);
        }
        panic!("never {answer}: {text}");
    }

    fn number(&self, text: &str) -> i64 {
        self.sql(text)[0].parse().unwrap()
    }
}
