//! TLS that is not to be trusted, where HTTP is spoken: said as that, and nothing secret is sent or told.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use leasehold::backends::http::open_as;
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::{Cas, FailureKind, Store};
use pollster::block_on;

use crate::object::Spot;
use crate::redis::server::Server;

const BEARER: &str = "canary-bearer-0123456789";

/// Every kind of store that is reached at such an address, and what it says if it is not to be trusted.
fn stores(address: &str) -> [(&'static str, Box<dyn Store>, &'static str); 4] {
    let mut all = [
        ("https", open_as(address, Some(BEARER)).unwrap(), "The certificate of"),
        ("s3", Spot::s3(address).open("x"), "cannot be trusted: TLS failed"),
        ("az", Spot::azure(address).open("x"), "cannot be trusted: TLS failed"),
        ("gs", Spot::google_at(address).open("x"), "cannot be trusted: TLS failed"),
    ];
    all.iter_mut().for_each(|(_, store, _)| {
        store.limit_calls(Duration::from_secs(10));
    });
    all
}

fn write(store: &mut dyn Store) -> Cas {
    block_on(store.cas("leases/x", None, WriteId(random::seed()), b"x"))
}

#[test]
fn a_server_that_nobody_vouches_for_is_not_used() {
    // It is no store: the handshake comes before anybody speaks of that.
    let server = Server::start(&["--save", ""]);
    for (name, mut store, says) in stores(&format!("https://localhost:{}", server.encrypted())) {
        let failure = block_on(store.read("leases/x")).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unusable, "{name}: {failure:?}");
        assert!(failure.message.contains(says) && !failure.message.contains("canary"), "{name}: {failure:?}");
        let Cas::Unknown(failure) = write(store.as_mut()) else { panic!("{name}: written") };
        assert_eq!(failure.kind, FailureKind::Unusable, "{name}: {failure:?}");
    }
}

/// Plain HTTP where the URL says that it is encrypted: neither is it spoken then.
#[test]
fn a_server_without_tls_is_told_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = thread::spawn(move || {
        let mut heard = Vec::new();
        for mut client in listener.incoming().flatten() {
            let mut bytes = [0; 4096];
            let length = client.read(&mut bytes).unwrap_or(0);
            if bytes.starts_with(b"the end") {
                return heard;
            }
            heard.extend_from_slice(&bytes[..length]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
        heard
    });
    for (name, mut store, _) in stores(&format!("https://localhost:{port}")) {
        let failure = block_on(store.read("leases/x")).unwrap_err();
        assert!(failure.message.ends_with('.') && !failure.message.contains("canary"), "{name}: {failure:?}");
        assert!(matches!(write(store.as_mut()), Cas::Unknown(_)), "{name}");
    }
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"the end").unwrap();
    let heard = String::from_utf8_lossy(&heard.join().unwrap()).into_owned();
    assert!(!heard.is_empty() && !heard.contains("canary") && !heard.contains("HTTP/1.1"), "{heard}");
}
