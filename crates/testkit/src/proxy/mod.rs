//! A TCP proxy on 127.0.0.1 between a store and its server that causes faults.
//!
//! Everything passes until a test arms a [`Fault`]. It strikes one request: the next one, or the next one that
//! contains certain bytes, so that one write is hit while reads pass.
//!
//! ```no_run
//! use leasehold_testkit::{proxy::{Fault, Proxy}, server};
//! let redis = server("REDIS"); // redis://127.0.0.1:P
//! let proxy = Proxy::tcp(&redis);
//! let url = proxy.url(&redis); // the same, through the proxy
//! let strike = proxy.arm_on(b"SET", Fault::DropReply);
//! // … call the store: its SET lands, and the answer is lost
//! assert!(strike.struck());
//! ```

mod connection;
mod http;

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use connection::HeldRequest;

/// What happens to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is passed on this much later.
    Delay(Duration),
    /// It lands. The first bytes of the reply are dropped, and the connection is closed.
    DropReply,
    /// It never lands: the connection is closed instead.
    Cut,
    /// It lands. The reply is dropped; the client reads the end of the stream, and may go on writing.
    HalfClose,
    /// It is held until the test delivers it, see [`Strike::held`]. The client's connection is closed at once, or
    /// (`hang_up: false`) gets no answer until the client gives up.
    Hold {
        /// Close the client's connection.
        hang_up: bool,
    },
    /// It is held until the test calls [`Strike::release`], then passed on; the client gets the answer.
    Pause,
    /// HTTP only. A copy of it lands first, on another connection; then it is passed on.
    Duplicate,
    /// HTTP only. The proxy gives this answer and closes the connection.
    Answer {
        /// The status code.
        status: u16,
        /// The request lands first, and the real reply is dropped.
        after_landing: bool,
        /// Of the body.
        content_type: &'static str,
        /// The body.
        body: &'static str,
    },
}

impl Fault {
    /// A refusal in place of the server's answer; the request may have landed or not.
    pub fn answer(status: u16, after_landing: bool) -> Self {
        Self::Answer { status, after_landing, content_type: "text/plain", body: "by the proxy\n" }
    }

    /// The answer of a captive portal or a wrong load balancer.
    pub fn html() -> Self {
        let body = "<!DOCTYPE html><html><body>Welcome!</body></html>";
        Self::Answer { status: 200, after_landing: false, content_type: "text/html", body }
    }

    fn needs_http(&self) -> bool {
        matches!(self, Self::Duplicate | Self::Answer { .. })
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of an armed fault.
#[derive(Debug, Default)]
struct Struck {
    yes: bool,
    replied: bool,
    released: bool,
    held: Option<HeldRequest>,
}

/// An armed fault, as the test sees it.
#[derive(Clone, Debug, Default)]
pub struct Strike {
    state: Arc<(Mutex<Struck>, Condvar)>,
}

impl Strike {
    /// It has hit a request.
    pub fn struck(&self) -> bool {
        lock(&self.state.0).yes
    }

    /// Whether the server answered the request that was hit, if it was passed on.
    pub fn replied(&self) -> bool {
        lock(&self.state.0).replied
    }

    /// Waits until it has hit a request.
    pub fn wait(&self, at_most: Duration) -> bool {
        let state = lock(&self.state.0);
        self.state.1.wait_timeout_while(state, at_most, |s| !s.yes).is_ok_and(|(s, _)| s.yes)
    }

    /// Passes on a request that [`Fault::Pause`] holds.
    pub fn release(&self) {
        self.note(|s| s.released = true);
    }

    fn wait_released(&self, at_most: Duration) {
        let state = lock(&self.state.0);
        drop(self.state.1.wait_timeout_while(state, at_most, |s| !s.released));
    }

    /// The request that [`Fault::Hold`] holds. It is given once, because it can be delivered once.
    pub fn held(&self) -> Option<HeldRequest> {
        lock(&self.state.0).held.take()
    }

    fn note(&self, change: impl FnOnce(&mut Struck)) {
        change(&mut lock(&self.state.0));
        self.state.1.notify_all();
    }
}

/// A fault that waits for its request.
struct Armed {
    pattern: Vec<u8>,
    fault: Fault,
    strike: Strike,
}

/// The state that all connections share.
pub(crate) struct ProxyState {
    upstream: SocketAddr,
    http: bool,
    armed: Mutex<Vec<Armed>>,
    requests: AtomicU64,
    connections: AtomicU64,
    bytes: AtomicU64,
    down: AtomicBool,
    closing: AtomicBool,
    /// Both ends of every connection that is open.
    open: Mutex<HashMap<u64, (TcpStream, TcpStream)>>,
}

impl ProxyState {
    pub(crate) fn arm_on(&self, pattern: &[u8], fault: Fault) -> Strike {
        assert!(self.http || !fault.needs_http(), "{fault:?} needs Proxy::http");
        let strike = Strike::default();
        lock(&self.armed).push(Armed { pattern: pattern.into(), fault, strike: strike.clone() });
        strike
    }

    pub(crate) fn disarm(&self, strike: &Strike) -> bool {
        let mut armed = lock(&self.armed);
        let before = armed.len();
        armed.retain(|a| !Arc::ptr_eq(&a.strike.state, &strike.state));
        armed.len() < before
    }

    pub(crate) fn is_http(&self) -> bool {
        self.http
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// The first armed fault for this request. A pattern must end within the last `fresh` bytes, because the bytes
    /// before were searched already.
    fn take(&self, request: &[u8], fresh: usize) -> Option<Armed> {
        let mut armed = lock(&self.armed);
        let hit = |a: &Armed| {
            let from = request.len().saturating_sub(fresh + a.pattern.len().saturating_sub(1));
            let window = &request[from..];
            a.pattern.is_empty() || window.windows(a.pattern.len()).any(|w| w == a.pattern)
        };
        let at = armed.iter().position(hit)?;
        Some(armed.remove(at))
    }

    fn longest_pattern(&self) -> usize {
        lock(&self.armed).iter().map(|a| a.pattern.len()).max().unwrap_or(0)
    }
}

/// The proxy. Dropping it closes everything.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// In front of a server that speaks any protocol. `upstream`: `host:port`, or a URL with both.
    ///
    /// # Panics
    ///
    /// If the address is wrong or no port is free. The other constructors panic for the same reasons.
    pub fn tcp(upstream: &str) -> Self {
        Self::start(upstream, false)
    }

    /// In front of a server that speaks HTTP/1.1 without TLS: whole requests are seen, hit and counted.
    pub fn http(upstream: &str) -> Self {
        Self::start(upstream, true)
    }

    fn start(upstream: &str, http: bool) -> Self {
        let target = authority(upstream).to_socket_addrs().expect("an address").next().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(ProxyState {
            upstream: target,
            http,
            armed: Mutex::default(),
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            down: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let ours = shared.clone();
        let acceptor = thread::Builder::new().name("proxy".into()).spawn(move || accept(&listener, &ours));
        Self { address, shared, acceptor: Some(acceptor.expect("a thread")) }
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// A URL of the server, changed to lead through the proxy.
    pub fn url(&self, upstream: &str) -> String {
        upstream.replacen(authority(upstream), &self.address(), 1)
    }

    /// Whether it understands HTTP, so that all faults can be armed.
    pub fn is_http(&self) -> bool {
        self.shared.http
    }

    /// Strikes the next request.
    pub fn arm(&self, fault: Fault) -> Strike {
        self.arm_on(b"", fault)
    }

    /// Strikes the next request that contains these bytes.
    ///
    /// # Panics
    ///
    /// If the fault needs HTTP and the proxy does not speak it.
    pub fn arm_on(&self, pattern: &[u8], fault: Fault) -> Strike {
        self.shared.arm_on(pattern, fault)
    }

    /// Removes a fault that has not struck; gives whether it was still armed.
    pub fn disarm(&self, strike: &Strike) -> bool {
        self.shared.disarm(strike)
    }

    /// The shared state, for threads that may outlive the borrow.
    pub(crate) fn shared(&self) -> Arc<ProxyState> {
        self.shared.clone()
    }

    /// Requests seen. Without HTTP: bursts of client bytes, each followed by a reply.
    pub fn requests(&self) -> u64 {
        self.shared.requests()
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes that clients sent.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Closes every connection that is open.
    pub fn cut_all(&self) {
        for (client, upstream) in lock(&self.shared.open).values() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = upstream.shutdown(Shutdown::Both);
        }
    }

    /// Takes the server down, or up again. While down, open connections are cut and new ones closed at once.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
        if down {
            self.cut_all();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.cut_all();
        // Wakes the acceptor.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut_all();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<ProxyState>) {
    for client in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        if shared.down.load(Ordering::SeqCst) {
            continue;
        }
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        // Without a thread the connection is closed, as by a server that refuses it.
        let _ = thread::Builder::new()
            .name("proxied".into())
            .spawn(move || connection::serve(&shared, client, number));
    }
}

/// The `host:port` of a URL, or all of it.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let rest = &rest[..end];
    rest.rsplit_once('@').map_or(rest, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::authority;

    #[test]
    fn the_host_and_port_of_any_url() {
        assert_eq!(authority("127.0.0.1:80"), "127.0.0.1:80");
        assert_eq!(authority("http://127.0.0.1:80/a@b"), "127.0.0.1:80");
        assert_eq!(authority("redis://default:a@127.0.0.1:80"), "127.0.0.1:80");
        assert_eq!(authority("postgres://lease@127.0.0.1:80/lease?x=y"), "127.0.0.1:80");
    }
}
