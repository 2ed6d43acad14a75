//! `leasehold serve --store-api`: the HTTP store protocol in front of any other store, for sandboxes
//! that may not hold its credentials.
//!
//! One thread owns the store and does one call after the other. The requests wait for it in a runtime
//! on the main thread.

mod store_worker;
mod tokens;
mod web;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use leasehold::backends::Holders;
use leasehold::core::write_policy::Rights;
use serde_json::json;

use self::store_worker::StoreWorker;
use self::tokens::Tokens;
use self::web::ServerState;
use super::{open_for, store_failed, tested};
use crate::args::{Everywhere, ServeArgs};
use crate::exit::{self, FailKind, Failed};
use crate::messages::serve as say;
use crate::out::Out;

/// Serves until TERM or INT.
pub fn run(flags: &Everywhere, args: &ServeArgs, out: &Out) -> Result<u8, Failed> {
    if !args.store_api {
        return Err(say::nothing_named());
    }
    let tokens = match &args.tokens {
        Some(path) => Tokens::read(path)?,
        None if args.listen.ip().is_loopback() => Tokens::Anybody(Rights::default()),
        None => return Err(say::tokens_needed(args.listen)),
    };
    // One thread for all calls hides races from the clients, so the store itself must have been tested for them.
    let opened = tested(open_for(flags, &[], Holders::Elsewhere)?, flags)?;
    let mut worker = StoreWorker::new(opened.store);
    // First: no address is printed for a store that does not answer.
    worker.check().map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let listener = listen(args.listen)?;
    let address = listener.local_addr().map_err(|e| taken(args.listen, &e))?;
    announce(address, &tokens, &opened.chosen.shown, out);
    let shared = Arc::new(ServerState { tokens, store: worker.start()?, out: *out });
    web::serve(listener, shared).map_err(say::system)?;
    out.chat(&say::stopped());
    Ok(exit::OK)
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failed> {
    let listener = TcpListener::bind(address).map_err(|e| taken(address, &e))?;
    listener.set_nonblocking(true).map_err(|e| taken(address, &e))?;
    Ok(listener)
}

fn taken(address: SocketAddr, error: &std::io::Error) -> Failed {
    let (kind, word) = match error.kind() {
        std::io::ErrorKind::PermissionDenied => (FailKind::Denied, "denied"),
        _ => (FailKind::Config, "listen"),
    };
    Failed::new(kind, word, say::cannot_listen(address, error))
}

fn announce(address: SocketAddr, tokens: &Tokens, store: &str, out: &Out) {
    let open = matches!(tokens, Tokens::Anybody(_));
    if out.json {
        out.object(&json!({"v": 1, "listen": address.to_string(), "store": store, "open": open}));
    }
    out.note(&say::serving(store, address));
    if open {
        out.note(&say::open_to_all());
    }
    if !address.ip().is_loopback() {
        out.note(&say::plain_http());
    }
}
