//! Stores behind a network, against real servers started by `scripts/servers`.

mod http;
