//! Our own store protocol over HTTP, as a store.

mod config;
mod response;
mod store;

pub use self::store::open_as;
use super::mask::WEB;
use super::{AsStore, Backend, Reach, Scheme};

/// What the list of backends says of it.
pub(super) const BACKEND: Backend = Backend {
    show: |url| WEB.shown(url),
    variables: &[],
    store: Some(AsStore {
        schemes: &[
            Scheme { name: "https", example: "https://HOST" },
            Scheme { name: "http", example: "http://127.0.0.1:PORT" },
        ],
        reach: Reach::Machines,
        open: |url, _, _| store::open(url),
        path: None,
        ignored: None,
        schema_sql: None,
    }),
    target: None,
};
