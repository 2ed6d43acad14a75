//! Stores behind a network, against real servers started by `scripts/servers`.

#[path = "../common/mod.rs"]
mod common;
mod firestore;
mod firestore_double;
mod firestore_faults;
mod firestore_sessions;
mod http;
mod logged;
mod object;
mod postgres;
mod redis;
mod targets;
mod tls;
