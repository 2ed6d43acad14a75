//! `leasehold serve --store-api`: the HTTP store protocol in front of any other store, for sandboxes
//! that may not hold its credentials.
//!
//! One thread owns the store and does one call after the other; the requests wait for it in a runtime
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
use crate::out::Out;

/// Serves until TERM or INT.
pub fn run(flags: &Everywhere, args: &ServeArgs, out: &Out) -> Result<u8, Failed> {
    if !args.store_api {
        return Err(Failed::usage("say what to serve: leasehold serve --store-api"));
    }
    let tokens = match &args.tokens {
        Some(path) => Tokens::read(path)?,
        None if args.listen.ip().is_loopback() => Tokens::Anybody(Rights::default()),
        None => {
            return Err(Failed::config(format!(
                "without --tokens anybody who reaches {} could rewrite every lease. Nothing was started. Write a \
                 file of tokens, or listen on a loopback address",
                args.listen
            )));
        }
    };
    // One desk hides races from its clients, so the store itself must have shown that it has none.
    let opened = tested(open_for(flags, &[], Holders::Elsewhere)?, flags)?;
    let mut desk = StoreWorker::new(opened.store);
    // Before anyone is told that there is something to reach.
    desk.check().map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let listener = listen(args.listen)?;
    let address = listener.local_addr().map_err(|e| taken(args.listen, &e))?;
    announce(address, &tokens, &opened.chosen.shown, out);
    let shared = Arc::new(ServerState { tokens, desk: desk.start()?, out: *out });
    web::serve(listener, shared).map_err(|e| {
        Failed::new(FailKind::Unreachable, "serve", format!("the system refused what a server needs: {e}"))
    })?;
    out.chat("stopped serving");
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
    let message =
        format!("cannot listen on {address}: {error}. Nothing was started. Choose another with --listen");
    Failed::new(kind, word, message)
}

fn announce(address: SocketAddr, tokens: &Tokens, store: &str, out: &Out) {
    let open = matches!(tokens, Tokens::Anybody(_));
    if out.json {
        out.object(&json!({"v": 1, "listen": address.to_string(), "store": store, "open": open}));
    }
    out.note(&format!("serving {store} at http://{address}"));
    if open {
        out.note("no --tokens: everybody on this machine may use it");
    }
    if !address.ip().is_loopback() {
        out.note("plain HTTP: put a proxy with TLS in front, or tokens can be read on the way");
    }
}
