//! `leasehold serve`: a dashboard that shows what is in a store and changes nothing. With `--store-api` also the HTTP
//! store protocol in front of any other store, for sandboxes that may not hold its credentials.
//!
//! A thread owns a handle on the store and does one call after the other; the dashboard and the protocol have one
//! each. The requests wait for it in a runtime on the main thread.

mod dashboard;
mod store_api;
mod store_worker;
mod tokens;
mod web;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use leasehold::backends::Holders;
use leasehold::core::write_policy::Rights;
use serde_json::json;

use self::store_api::StoreApi;
use self::store_worker::StoreWorker;
use self::tokens::Tokens;
use super::{daemon, metrics, open_for, store_failed, tested};
use crate::args::{Everywhere, ServeArgs};
use crate::exit::{self, FailKind, Failed};
use crate::messages::serve as say;
use crate::out::Out;

/// Serves until TERM or INT.
pub fn run(flags: &Everywhere, args: &ServeArgs, out: &Out) -> Result<u8, Failed> {
    let tokens = match &args.tokens {
        Some(path) => Tokens::read(path)?,
        None if args.listen.ip().is_loopback() => Tokens::Anybody(Rights::default()),
        None if args.store_api => return Err(say::tokens_needed(args.listen)),
        None => return Err(say::tokens_needed_to_look(args.listen)),
    };
    let tokens = Arc::new(tokens);
    let holders = if args.store_api { Holders::Elsewhere } else { Holders::Here };
    let opened = open_for(flags, &[], holders)?;
    // One thread for all calls hides races from the clients, so the store itself must have been tested for them.
    let opened = if args.store_api { tested(opened, flags)? } else { opened };
    let mut worker = StoreWorker::new(opened.store);
    // First: no address is printed for a store that does not answer.
    worker.check().map_err(|failure| store_failed(&failure, &opened.chosen))?;
    let listener = listen(args.listen)?;
    let address = listener.local_addr().map_err(|e| taken(args.listen, &e))?;
    let (store_api, shown) = match args.store_api {
        true => {
            let shown = open_for(flags, &[], holders)?.store;
            let api = StoreApi { tokens: Arc::clone(&tokens), store: worker.start()?, out: *out };
            (Some(Arc::new(api)), shown)
        }
        false => (None, worker.into_store()),
    };
    let reader = dashboard::reader(shown)?;
    announce(address, &tokens, &opened.chosen.shown, args.store_api, out);
    let elsewhere = args.store_api;
    let (file, reach) = (daemon::path(flags), metrics::reach(flags));
    let setup =
        dashboard::Setup { tokens, address, store: opened.chosen.shown, elsewhere, file, reach, out: *out };
    web::serve(listener, |stopping| {
        let pages = dashboard::routes(setup, reader, stopping);
        match store_api {
            None => pages.alone(),
            Some(api) => pages.beside(move |request| {
                let api = Arc::clone(&api);
                async move { store_api::answer(request, &api).await }
            }),
        }
    })
    .map_err(say::system)?;
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

fn announce(address: SocketAddr, tokens: &Tokens, store: &str, store_api: bool, out: &Out) {
    let open = matches!(tokens, Tokens::Anybody(_));
    if out.json {
        let dashboard = format!("http://{address}/");
        out.object(
            &json!({"v": 1, "listen": address.to_string(), "store": store, "open": open, "dashboard": dashboard}),
        );
    }
    if store_api {
        out.note(&say::serving(store, address));
    }
    out.note(&say::dashboard(store, address));
    if open {
        out.note(&if store_api { say::open_to_all() } else { say::shown_to_all() });
    }
    if !address.ip().is_loopback() {
        out.note(&say::plain_http());
    }
}
