//! Stores behind a network, against real servers started by `scripts/servers`.

#[path = "../common/mod.rs"]
mod common;
mod http;
