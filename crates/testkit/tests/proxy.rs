//! The proxy itself: each fault does what it says, to the request it is meant for and to no other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold_testkit::proxy::{Fault, Proxy};

const LONG: Duration = Duration::from_secs(20);

/// A server that keeps what it was sent: lines, or HTTP requests (their first lines).
struct Server {
    address: String,
    got: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(http: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let got = Arc::new(Mutex::new(Vec::new()));
        let log = got.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, log) = (stream.unwrap(), log.clone());
                thread::spawn(
                    move || if http { serve_http(&stream, &log) } else { serve_lines(&stream, &log) },
                );
            }
        });
        Self { address, got }
    }

    fn got(&self) -> Vec<String> {
        self.got.lock().unwrap().clone()
    }
}

fn serve_lines(mut stream: &TcpStream, log: &Mutex<Vec<String>>) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        log.lock().unwrap().push(line.clone());
        if stream.write_all(format!("did {line}\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn serve_http(mut stream: &TcpStream, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            if let Some(value) = header.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            if header.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        log.lock().unwrap().push(format!("{} {}", first.trim(), String::from_utf8(body).unwrap()));
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").is_err() {
            return;
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        let _ = self.0.get_mut().write_all(text.as_bytes());
    }

    /// A line, or nothing if the connection is over.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(1..) => Some(line.trim().to_owned()),
            Ok(0) => None,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("neither an answer nor an end: {e}"),
        }
    }

    fn ask(&mut self, line: &str) -> Option<String> {
        self.send(&format!("{line}\n"));
        self.line()
    }

    /// The status line of the answer to a request with this body.
    fn put(&mut self, body: &str) -> Option<String> {
        self.send(&format!("PUT /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len()));
        self.send(body);
        let status = self.line()?;
        let mut length = 0;
        while let Some(header) = self.line().filter(|h| !h.is_empty()) {
            length = header.strip_prefix("Content-Length: ").map_or(length, |v| v.parse().unwrap());
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        Some(format!("{status} {}", String::from_utf8(body).unwrap()))
    }
}

#[test]
fn everything_passes_and_is_counted() {
    let server = Server::start(false);
    let proxy = Proxy::tcp(&server.address);
    for round in 1..=3 {
        let mut client = Client::new(&proxy);
        for n in 0..5 {
            assert_eq!(client.ask(&format!("write {n}")), Some(format!("did write {n}")));
        }
        assert_eq!((proxy.connections(), proxy.requests()), (round, 5 * round));
    }
    assert_eq!(server.got().len(), 15);
}

#[test]
fn a_dropped_reply_lands_and_a_cut_does_not() {
    let server = Server::start(false);
    let proxy = Proxy::tcp(&server.address);
    let dropped = proxy.arm_on(b"two", Fault::DropReply);
    let cut = proxy.arm_on(b"three", Fault::Cut);
    let mut client = Client::new(&proxy);
    assert_eq!(client.ask("one"), Some("did one".into()), "not the one that was armed for");
    assert!(!dropped.struck());
    assert_eq!(client.ask("two"), None);
    assert!(dropped.struck() && dropped.replied() && !cut.struck());
    let mut client = Client::new(&proxy);
    assert_eq!(client.ask("three"), None);
    assert!(cut.struck() && !cut.replied());
    assert_eq!(Client::new(&proxy).ask("three"), Some("did three".into()), "once only");
    assert_eq!(server.got(), ["one", "two", "three"]);
}

#[test]
fn a_pattern_is_found_in_pieces() {
    let server = Server::start(false);
    let proxy = Proxy::tcp(&server.address);
    let strike = proxy.arm_on(b"needle", Fault::Cut);
    let mut client = Client::new(&proxy);
    for piece in ["hay nee", "d", "le hay\n"] {
        let before = proxy.bytes();
        client.send(piece);
        // The next piece goes out when this one has been seen by itself.
        while proxy.bytes() < before + piece.len() as u64 {
            thread::yield_now();
        }
    }
    assert_eq!(client.line(), None);
    assert!(strike.struck());
    assert!(!server.got().iter().any(|line| line.contains("needle")), "only its beginning was passed on");
}

#[test]
fn a_held_request_lands_when_it_is_told_to() {
    for hang_up in [true, false] {
        let server = Server::start(false);
        let proxy = Proxy::tcp(&server.address);
        let strike = proxy.arm_on(b"late", Fault::Hold { hang_up });
        let mut client = Client::new(&proxy);
        assert_eq!(client.ask("early").as_deref(), Some("did early"));
        client.send("late\n");
        assert!(strike.wait(LONG));
        if hang_up {
            assert_eq!(client.line(), None);
        }
        drop(client);
        assert_eq!(Client::new(&proxy).ask("other").as_deref(), Some("did other"));
        assert_eq!(server.got(), ["early", "other"]);
        strike.held().expect("kept").deliver().unwrap();
        assert_eq!(server.got(), ["early", "other", "late"]);
        assert!(strike.held().is_none(), "once");
    }
}

#[test]
fn a_held_request_that_is_dropped_never_lands() {
    let server = Server::start(false);
    let proxy = Proxy::tcp(&server.address);
    let strike = proxy.arm(Fault::Hold { hang_up: true });
    assert_eq!(Client::new(&proxy).ask("late"), None);
    drop(strike.held().unwrap());
    assert_eq!(Client::new(&proxy).ask("other").as_deref(), Some("did other"));
    assert_eq!(server.got(), ["other"]);
}

#[test]
fn half_closed_delayed_down_and_disarmed() {
    let server = Server::start(false);
    let proxy = Proxy::tcp(&server.address);
    proxy.arm_on(b"half", Fault::HalfClose);
    let mut client = Client::new(&proxy);
    assert_eq!(client.ask("half"), None);
    let slow = proxy.arm_on(b"slow", Fault::Delay(Duration::from_millis(50)));
    assert_eq!(Client::new(&proxy).ask("slow").as_deref(), Some("did slow"));
    assert!(slow.struck());
    let never = proxy.arm(Fault::Cut);
    assert!(proxy.disarm(&never) && !proxy.disarm(&never));
    let mut client = Client::new(&proxy);
    assert_eq!(client.ask("well").as_deref(), Some("did well"));
    proxy.set_down(true);
    assert_eq!(client.ask("gone"), None);
    assert_eq!(Client::new(&proxy).ask("gone"), None);
    proxy.set_down(false);
    assert_eq!(Client::new(&proxy).ask("back").as_deref(), Some("did back"));
    assert_eq!(server.got(), ["half", "slow", "well", "back"]);
}

#[test]
fn http_requests_are_counted_answered_and_doubled() {
    let server = Server::start(true);
    let proxy = Proxy::http(&format!("http://{}/path", server.address));
    assert_eq!(proxy.url("http://127.0.0.1:1/path"), format!("http://{}/path", proxy.address()));
    let mut client = Client::new(&proxy);
    assert_eq!(client.put("plain").as_deref(), Some("HTTP/1.1 200 OK done"));
    let twice = proxy.arm_on(b"twice", Fault::Duplicate);
    assert_eq!(client.put("twice").as_deref(), Some("HTTP/1.1 200 OK done"));
    assert!(twice.replied());
    for (status, after_landing) in [(409, true), (429, false), (500, true), (503, false)] {
        proxy.arm_on(format!("s{status}").as_bytes(), Fault::answer(status, after_landing));
        let said = Client::new(&proxy).put(&format!("s{status}")).unwrap();
        assert_eq!(said, format!("HTTP/1.1 {status} By the proxy by the proxy\n"), "{said}");
    }
    proxy.arm(Fault::html());
    assert!(Client::new(&proxy).put("page").unwrap().contains("<html>"));
    proxy.arm_on(b"lost", Fault::DropReply);
    assert_eq!(Client::new(&proxy).put("lost"), None);
    let strike = proxy.arm_on(b"late", Fault::Hold { hang_up: true });
    assert_eq!(Client::new(&proxy).put("late"), None);
    strike.held().unwrap().deliver().unwrap();
    let bodies: Vec<String> = server.got().iter().map(|l| l.rsplit(' ').next().unwrap().into()).collect();
    assert_eq!(bodies, ["plain", "twice", "twice", "s409", "s500", "lost", "late"]);
    assert_eq!(proxy.requests(), 9);
}

#[test]
#[should_panic(expected = "needs Proxy::http")]
fn what_needs_http_is_refused_without() {
    let server = Server::start(false);
    Proxy::tcp(&server.address).arm(Fault::Duplicate);
}
