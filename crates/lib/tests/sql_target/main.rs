//! Tables as targets, for real: PostgreSQL directly and through PgBouncer, written by an unmodified psql.

mod controls;
mod crash;
mod doubt;
mod frozen;
mod kit;
mod manners;
#[path = "../remote/postgres/own.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
mod own;
mod pooled;
mod psql;
mod sqlite;
mod sqlite_kit;
mod table;

/// A name nobody else uses.
fn corner() -> String {
    format!("t{:x}/", leasehold::random::seed())
}
