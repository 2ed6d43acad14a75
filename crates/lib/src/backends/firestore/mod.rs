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
use super::{AsStore, AsTarget, Backend, OpenError, Scheme};

/// Names the emulator's address, for every client of Firestore.
const EMULATOR: &str = "FIRESTORE_EMULATOR_HOST";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: shown,
    variables: &[EMULATOR],
    store: Some(AsStore::new(
        &[Scheme { name: "firestore", example: "firestore://PROJECT/COLLECTION" }],
        |url, _, _| Ok(Box::new(Remote::new(FirestoreStore::new(url).map_err(OpenError::Url)?))),
    )),
    target: Some(AsTarget::new(
        &[Scheme { name: "firestore", example: "firestore://PROJECT/COLLECTION/DOCUMENT" }],
        |url, _| Ok(Box::new(FirestoreTarget::open(url)?)),
    )),
};

fn shown(url: &str) -> String {
    Masking { harmless: &["database", "endpoint"], user_is_secret: false }.shown(url)
}

fn emulator() -> Option<String> {
    std::env::var(EMULATOR).ok()
}
