//! PostgreSQL: a store in a table of its own, and targets that are tables of the user's.

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
pub use self::target::{Lock, trigger_sql};
pub use self::target::{PgTarget, TableFence};
use super::mask::Masking;
use super::remote::Remote;
use super::{AsStore, AsTarget, Backend, OpenError, Reach, Scheme};

/// What the list of backends says of it.
pub(super) const BACKEND: Backend = Backend {
    show: shown,
    variables: &["PGUSER"],
    store: Some(AsStore {
        schemes: &[
            Scheme { name: "postgres", example: "postgres://USER@HOST/DATABASE" },
            Scheme { name: "postgresql", example: "postgresql://USER@HOST/DATABASE" },
        ],
        reach: Reach::Machines,
        open: |url, _, _| {
            let store = PostgresStore::open(url);
            let store =
                store.map_err(|why| OpenError::Url(format!("This is not a PostgreSQL URL: {why}")))?;
            Ok(Box::new(Remote::new(store)))
        },
        path: None,
        ignored: Some(|url| Config::parse(url, &env).ok()?.ignored()),
        schema_sql: Some(SCHEMA_SQL),
    }),
    target: Some(AsTarget {
        schemes: &[Scheme { name: "pg", example: "pg:postgres://HOST/DATABASE#TABLE" }],
        open: |url, rest| Ok(Box::new(PgTarget::open(url, rest)?)),
        guard: Some(|url, rest| Ok(Box::new(PgTarget::open(url, rest)?))),
        path: false,
        anywhere: |shown| Some(shown.into()),
        reset: None,
        after_stale: AsTarget::NOTHING_TO_REPAIR,
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
