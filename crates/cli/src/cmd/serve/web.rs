//! The HTTP server: connections, their limits, and the end.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};

/// Longer than clients keep an idle connection; a head that takes longer is not worth waiting for.
const HEAD_LIMIT: Duration = Duration::from_secs(15);
/// The most bytes of a head, and the most headers in it.
const HEAD_MAX: usize = 32 * 1024;
const HEADERS: usize = 64;
/// For requests that are not done yet when the server is asked to stop.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 512;

/// Turns true when the server is asked to stop: answers that go on and on end then.
pub type Stopping = watch::Receiver<bool>;

/// Serves until TERM or INT. Requests that are not done yet are ended first.
pub fn serve(listener: TcpListener, routes: impl FnOnce(Stopping) -> Router) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (stop, stopping) = watch::channel(false);
        let routes = routes(stopping);
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Beyond this many connections new ones wait in the system's queue.
            let next = async { (Arc::clone(&room).acquire_owned().await, listener.accept().await) };
            let (place, accepted) = tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                next = next => next,
            };
            let Ok((stream, _)) = accepted else {
                // Most likely there are no descriptors left. Some will be free again.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let routes = routes.clone();
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                // A router is always ready, and never fails.
                let mut routes = routes.clone();
                tower_service::Service::call(&mut routes, request)
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .max_headers(HEADERS)
                .max_buf_size(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                let _place = place;
                // A client that went away is no failure of the server.
                drop(connection.await);
            });
        }
        drop(listener);
        stop.send_replace(true);
        drop(tokio::time::timeout(SHUTDOWN_LIMIT, graceful.shutdown()).await);
        Ok(())
    })
}
