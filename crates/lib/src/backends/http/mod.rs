//! Our own store protocol over HTTP, as a store.

mod config;
mod response;
mod store;

pub use self::store::open_as;
use super::mask::WEB;
use super::{AsStore, Backend, Scheme};

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: |url| WEB.shown(url),
    variables: &[],
    store: Some(AsStore::new(
        &[
            Scheme { name: "https", example: "https://HOST" },
            Scheme { name: "http", example: "http://127.0.0.1:PORT" },
        ],
        |url, _, _| store::open(url),
    )),
    target: None,
};
