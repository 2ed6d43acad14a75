//! Google's Firestore: a store in a collection, and targets that are documents.

mod auth;
mod config;
mod connection;
mod response;
mod store;
mod target;
mod wire;

pub use self::store::FirestoreStore;
pub use self::target::{FirestoreTarget, LARGEST};
use super::mask::Masking;
use super::remote::Remote;
use super::{AsStore, AsTarget, Backend, OpenError, Reach, Scheme};

/// Names the emulator's address, for every client of Firestore.
const EMULATOR: &str = "FIRESTORE_EMULATOR_HOST";

/// What the list of backends says of it.
pub(super) const BACKEND: Backend = Backend {
    show: shown,
    variables: &[EMULATOR],
    store: Some(AsStore {
        schemes: &[Scheme { name: "firestore", example: "firestore://PROJECT/COLLECTION" }],
        reach: Reach::Machines,
        open: |url, _, _| {
            let store = FirestoreStore::new(url).map_err(OpenError::Url)?;
            Ok(Box::new(Remote::new(store)))
        },
        path: None,
        ignored: None,
        schema_sql: None,
    }),
    target: Some(AsTarget {
        schemes: &[Scheme { name: "firestore", example: "firestore://PROJECT/COLLECTION/DOCUMENT" }],
        open: |url, _| Ok(Box::new(FirestoreTarget::open(url)?)),
        guard: None,
        path: false,
        anywhere: |shown| Some(shown.into()),
        reset: None,
        after_stale: AsTarget::NOTHING_TO_REPAIR,
    }),
};

fn shown(url: &str) -> String {
    Masking { harmless: &["database", "endpoint"], user_is_secret: false }.shown(url)
}

fn emulator() -> Option<String> {
    std::env::var(EMULATOR).ok()
}
