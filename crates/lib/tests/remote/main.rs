//! Stores behind a network, against real servers started by `scripts/servers`.

mod firestore;
mod firestore_double;
mod firestore_faults;
mod firestore_sessions;
