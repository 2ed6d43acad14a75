//! One proxied connection: a thread for each direction.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::{Armed, Fault, ProxyState, Strike, http, lock};

/// How long a server may take to answer a request that the proxy itself waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the server's replies are treated.
enum Replies {
    Pass,
    /// The first bytes end the connection.
    Swallow(Strike),
    /// They are dropped.
    Discard,
}

struct State {
    replies: Replies,
    /// The server sent bytes after the last bytes of the client.
    replied: bool,
    /// The number of bytes that were not passed on.
    discarded: usize,
    /// The server closed its side.
    ended: bool,
}

struct Link {
    client: TcpStream,
    upstream: TcpStream,
    state: Mutex<State>,
    changed: Condvar,
}

impl Link {
    fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.upstream.shutdown(Shutdown::Both);
    }

    fn set(&self, replies: Replies) {
        lock(&self.state).replies = replies;
    }

    /// Sends to the server and waits for the first bytes of a reply, which are dropped.
    fn ask(&self, request: &[u8]) -> io::Result<()> {
        let before = {
            let mut state = lock(&self.state);
            state.replies = Replies::Discard;
            state.discarded
        };
        (&self.upstream).write_all(request)?;
        let state = lock(&self.state);
        let waiting = |s: &mut State| s.discarded == before && !s.ended;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, waiting);
        let answered = waited.is_ok_and(|(state, _)| state.discarded > before);
        answered.then_some(()).ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// A request held by [`Fault::Hold`], with its connection. If dropped, it never lands.
pub struct HeldRequest {
    link: Arc<Link>,
    request: Arc<Mutex<Vec<u8>>>,
}

impl std::fmt::Debug for HeldRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({} bytes)", lock(&self.request).len())
    }
}

impl HeldRequest {
    /// Lets it land now, and waits until the server has answered. The client never gets that answer.
    pub fn deliver(self) -> io::Result<()> {
        let request = lock(&self.request).clone();
        self.link.ask(&request)
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Serves one client until either side ends.
pub(super) fn serve(shared: &Arc<ProxyState>, client: TcpStream, number: u64) {
    let Ok(upstream) = TcpStream::connect_timeout(&shared.upstream, PATIENCE) else { return };
    let pair = (client.try_clone(), upstream.try_clone());
    let (Ok(ours), Ok(theirs)) = pair else { return };
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    lock(&shared.open).insert(number, (ours, theirs));
    if shared.down.load(Ordering::SeqCst) || shared.closing.load(Ordering::SeqCst) {
        lock(&shared.open).remove(&number);
        return;
    }
    let state = State { replies: Replies::Pass, replied: true, discarded: 0, ended: false };
    let link = Arc::new(Link { client, upstream, state: Mutex::new(state), changed: Condvar::new() });
    let back = link.clone();
    let pump = thread::Builder::new().name("replies".into()).spawn(move || replies(&back));
    let keep = if shared.http { http_requests(shared, &link) } else { requests(shared, &link) };
    if keep.is_none() {
        // The client has ended. The server may still send its replies.
        let _ = link.upstream.shutdown(Shutdown::Write);
    }
    if let Ok(pump) = pump {
        let _ = pump.join();
    }
    lock(&shared.open).remove(&number);
}

/// From the server to the client.
fn replies(link: &Link) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = (&link.upstream).read(&mut buffer) {
        let mut state = lock(&link.state);
        state.replied = true;
        match &state.replies {
            Replies::Pass => {
                drop(state);
                if (&link.client).write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            Replies::Swallow(strike) => {
                strike.note(|s| s.replied = true);
                link.close();
                break;
            }
            Replies::Discard => {
                state.discarded += n;
                link.changed.notify_all();
            }
        }
    }
    let mut state = lock(&link.state);
    state.ended = true;
    link.changed.notify_all();
    if matches!(state.replies, Replies::Pass) {
        let _ = link.client.shutdown(Shutdown::Both);
    }
}

/// The upstream connection outlives the client, because a request for it is held.
struct Kept;

/// From the client to the server, for any protocol.
fn requests(shared: &Arc<ProxyState>, link: &Arc<Link>) -> Option<Kept> {
    let mut buffer = vec![0; 64 * 1024];
    // The last bytes that were passed on, for patterns that start there.
    let mut seen = Vec::new();
    while let Ok(n @ 1..) = (&link.client).read(&mut buffer) {
        shared.bytes.fetch_add(n as u64, Ordering::SeqCst);
        if std::mem::take(&mut lock(&link.state).replied) {
            shared.requests.fetch_add(1, Ordering::SeqCst);
            seen.clear();
        }
        seen.extend_from_slice(&buffer[..n]);
        let passed = match shared.take(&seen, n) {
            Some(armed) => strike(shared, link, armed, &buffer[..n]),
            None => (&link.upstream).write_all(&buffer[..n]).map(|()| None),
        };
        match passed {
            Ok(None) => {}
            Ok(Some(kept)) => return Some(kept),
            Err(_) => break,
        }
        let keep = shared.longest_pattern().max(64);
        seen.drain(..seen.len().saturating_sub(keep));
    }
    None
}

/// From the client to the server, one whole request at a time.
fn http_requests(shared: &Arc<ProxyState>, link: &Arc<Link>) -> Option<Kept> {
    let mut buffer = vec![0; 64 * 1024];
    let mut bytes = Vec::new();
    while let Ok(n @ 1..) = (&link.client).read(&mut buffer) {
        shared.bytes.fetch_add(n as u64, Ordering::SeqCst);
        bytes.extend_from_slice(&buffer[..n]);
        while let Some(length) = http::request_length(&bytes) {
            let request: Vec<u8> = bytes.drain(..length).collect();
            shared.requests.fetch_add(1, Ordering::SeqCst);
            let passed = match shared.take(&request, length) {
                Some(armed) => strike(shared, link, armed, &request),
                None => (&link.upstream).write_all(&request).map(|()| None),
            };
            match passed {
                Ok(None) => {}
                Ok(Some(kept)) => return Some(kept),
                Err(_) => return None,
            }
        }
    }
    None
}

/// Carries out the fault. An error ends the connection.
fn strike(shared: &ProxyState, link: &Arc<Link>, armed: Armed, request: &[u8]) -> io::Result<Option<Kept>> {
    let Armed { fault, strike, .. } = armed;
    match fault {
        Fault::Delay(by) => {
            strike.note(|s| s.yes = true);
            let state = lock(&link.state);
            drop(link.changed.wait_timeout_while(state, by, |s| !s.ended));
            (&link.upstream).write_all(request)?;
        }
        Fault::DropReply => {
            link.set(Replies::Swallow(strike.clone()));
            strike.note(|s| s.yes = true);
            (&link.upstream).write_all(request)?;
        }
        Fault::Cut => {
            strike.note(|s| s.yes = true);
            link.close();
        }
        Fault::HalfClose => {
            let replied = link.ask(request).is_ok();
            strike.note(|s| (s.yes, s.replied) = (true, replied));
            link.client.shutdown(Shutdown::Write)?;
        }
        Fault::Pause => {
            strike.note(|s| s.yes = true);
            strike.wait_released(PATIENCE);
            (&link.upstream).write_all(request)?;
        }
        Fault::Hold { hang_up } => {
            hold(link, &strike, request, hang_up);
            return Ok(Some(Kept));
        }
        Fault::Duplicate => {
            let mut copy = TcpStream::connect_timeout(&shared.upstream, PATIENCE)?;
            copy.set_read_timeout(Some(PATIENCE))?;
            copy.write_all(request)?;
            let replied = copy.read(&mut [0; 1024])? > 0;
            strike.note(|s| (s.yes, s.replied) = (true, replied));
            (&link.upstream).write_all(request)?;
        }
        Fault::Answer { status, after_landing, content_type, body } => {
            let replied = after_landing && link.ask(request).is_ok();
            link.set(Replies::Discard);
            strike.note(|s| (s.yes, s.replied) = (true, replied));
            (&link.client).write_all(&http::answer(status, content_type, body))?;
            let _ = link.client.shutdown(Shutdown::Write);
            let _ = link.upstream.shutdown(Shutdown::Both);
        }
    }
    Ok(None)
}

/// Holds the request, with the bytes that the client adds before it gives up.
fn hold(link: &Arc<Link>, strike: &Strike, request: &[u8], hang_up: bool) {
    link.set(Replies::Discard);
    let request = Arc::new(Mutex::new(request.to_vec()));
    let held = HeldRequest { link: link.clone(), request: request.clone() };
    // Recorded before the client can notice, because then the test looks.
    strike.note(|s| (s.yes, s.held) = (true, Some(held)));
    if hang_up {
        let _ = link.client.shutdown(Shutdown::Both);
    }
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = (&link.client).read(&mut buffer) {
        lock(&request).extend_from_slice(&buffer[..n]);
    }
}
