//! PostgreSQL: a store in its own table, and targets that are users' tables.

mod config;
mod connection;
mod errors;
mod params;
mod password;
mod pid;
mod store;
mod target;
mod tls;

use self::config::Config;
pub use self::store::{PostgresStore, SCHEMA_SQL};
#[cfg(feature = "conformance")]
pub use self::target::trigger_sql;
pub use self::target::{PgTarget, TableFence};
use super::mask::Masking;
use super::remote::Remote;
use super::{AsStore, AsTarget, Backend, OpenError, Scheme};
use crate::text::shell_quoted;

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: shown,
    variables: &["PGUSER"],
    store: Some(AsStore {
        removal: Some(|shown| format!("psql {} -c 'DROP SCHEMA leasehold CASCADE'", shell_quoted(shown))),
        ignored: Some(|url| Config::parse(url, &env).ok()?.ignored()),
        schema_sql: Some(SCHEMA_SQL),
        meant_by: Some(|text| {
            let libpq = text.contains("host=") || text.contains("dbname=");
            let hint = "It looks like a connection string of libpq. Write postgres://USER@HOST/DATABASE.";
            libpq.then(|| hint.into())
        }),
        ..AsStore::new(
            &[
                Scheme { name: "postgres", example: "postgres://USER@HOST/DATABASE" },
                Scheme { name: "postgresql", example: "postgresql://USER@HOST/DATABASE" },
            ],
            |url, _, _| {
                let store = PostgresStore::open(url);
                let store =
                    store.map_err(|why| OpenError::Url(format!("This is not a PostgreSQL URL: {why}")))?;
                Ok(Box::new(Remote::new(store)))
            },
        )
    }),
    target: Some(AsTarget {
        guard: Some(|url, rest| Ok(Box::new(PgTarget::open(url, rest)?))),
        ..AsTarget::new(
            &[Scheme { name: "pg", example: "pg:postgres://HOST/DATABASE#TABLE" }],
            |url, rest| Ok(Box::new(PgTarget::open(url, rest)?)),
        )
    }),
};

/// Parameters that hold no secret.
const HARMLESS: [&str; 19] = [
    "application_name",
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "dbname",
    "gssencmode",
    "host",
    "hostaddr",
    "keepalives",
    "options",
    "passfile",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "user",
];

fn shown(url: &str) -> String {
    Masking { harmless: &HARMLESS, user_is_secret: false }.shown(url)
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
