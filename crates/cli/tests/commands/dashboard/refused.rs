//! Requests that get no page.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use super::Board;
use crate::world::World;

const ALL: &str = "all-bearer-0123456789";
const TEAM: &str = "team-bearer-0123456789";

fn tokens(world: &World) -> String {
    let path = world.write("tokens", &format!("{ALL} *\n{TEAM} team-a/\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().into()
}

/// A page of another site gives its own name our address.
#[test]
fn a_forged_host_is_refused() {
    let board = Board::new();
    let port = board.address.rsplit_once(':').unwrap().1;
    let hosts = [
        "evil.example",
        "evil.example:7717",
        "10.0.0.1",
        "localhost.evil.example",
        "",
        "127.0.0.1:1@evil.example",
    ];
    for host in hosts {
        board.ask("GET", "/api/v1/now", &[("host", host)]).is(421).because("host");
        board.ask("GET", "/", &[("host", host)]).is(421);
        board.ask("GET", "/metrics", &[("host", host)]).is(421);
    }
    board
        .send(
            format!(
                "GET / HTTP/1.1\r\nhost: {}\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
                board.address
            )
            .as_bytes(),
        )
        .is(421);
    board.send(b"GET / HTTP/1.0\r\n\r\n").is(421);
    board
        .send(b"GET http://evil.example/ HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")
        .is(421);
    // Its own names, also through a tunnel.
    for host in [&board.address, &format!("localhost:{port}"), "localhost:9999", "[::1]:9999"] {
        board.ask("GET", "/", &[("host", host)]).is(200);
    }
}

/// A page of another site has the browser ask.
#[test]
fn another_origin_reads_nothing() {
    let board = Board::new();
    let ours = format!("http://{}", board.address);
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "script")],
        &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
    ] {
        board.ask("GET", "/api/v1/now", headers).is(403).because("origin");
        let events = board.ask("GET", "/events?page=now", headers).is(403);
        assert!(!events.head.contains("access-control"), "{events:?}");
    }
    for headers in [
        &[("origin", ours.as_str()), ("sec-fetch-site", "same-origin")][..],
        &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
        // A link on another page.
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
    ] {
        let page = board.ask("GET", "/", headers).is(200);
        for header in [
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(page.head.contains(header), "{header}: {page:?}");
        }
        assert!(!page.head.contains("access-control"));
    }
}

#[test]
fn only_a_bearer_of_all_names_sees_all_names() {
    let world = World::new();
    let url = world.store("sqlite");
    let tokens = tokens(&world);
    let board = Board::of(world, url, &["--tokens", &tokens]);
    let ask = |bearer: &str| board.ask("GET", "/api/v1/now", &[("authorization", bearer)]);
    board.get("/api/v1/now").is(401).because("bearer");
    board.get("/metrics").is(401);
    let refused = board.get("/").is(401);
    assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    for wrong in ["Bearer wr0ng-canary-0123456789", &format!("Basic {ALL}"), ALL, "Bearer "] {
        let refused = ask(wrong).is(401).because("bearer");
        assert!(!refused.body.contains("canary"));
    }
    ask(&format!("Bearer {TEAM}")).is(403).because("prefix");
    ask(&format!("Bearer {ALL}")).is(200);
    let scrape =
        |bearer: &str| board.ask("GET", "/metrics", &[("authorization", &format!("Bearer {bearer}"))]);
    scrape(TEAM).is(403);
    scrape(ALL).is(200);
}

#[test]
fn beyond_this_machine_it_needs_a_bearer() {
    let world = World::new();
    let url = world.store("sqlite");
    world.run(&["--store", &url, "serve", "--listen", "0.0.0.0:0"]).is(78, "serve.tokens_needed_to_look");
    let mut local = Board::of(world, url, &["-v"]);
    local.server.said("serve.shown_to_all");
    local.get("/").is(200);
    local.server.signal(rustix::process::Signal::INT);
    let Board { server, world: _world, .. } = local;
    server.ended().is(0, "serve.stopped").is(0, "serve.dashboard");
}

#[test]
fn other_methods_and_bodies_are_refused() {
    let board = Board::new();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"] {
        let refused = board.ask(method, "/api/v1/now", &[]).is(405).because("method");
        assert!(refused.head.contains("allow: get, head"), "{refused:?}");
    }
    let head = board.ask("HEAD", "/", &[]).is(200);
    assert!(head.body.is_empty() && head.head.contains("content-type: text/html"), "{head:?}");
    board.ask("GET", "/api/v1/now", &[("content-length", "5")]).is(413).because("body");
    board.ask("GET", "/", &[("transfer-encoding", "chunked")]).is(413);
    board.ask("GET", "/", &[("content-length", "0")]).is(200);
    let long = "a".repeat(100_000);
    board.ask("GET", "/", &[("x-long", &long)]).is(431);
    let many: Vec<String> = (0..100).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "1")).collect();
    board.ask("GET", "/", &many).is(431);
    assert!(matches!(board.get(&format!("/log?name={long}")).status, 414 | 431));
    board.get(&format!("/log?name={}", "a".repeat(2_000))).is(400);
    board.send(b"nonsense\r\n\r\n").is(400);
    board.get("/log?name=%ff").is(400);
}

/// Whoever sends a head byte by byte is not waited for; others are served meanwhile.
#[test]
fn slow_clients_are_not_waited_for() {
    let board = Board::new();
    let mut slow: Vec<_> = (0..50).map(|_| board.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: ").unwrap();
    }
    board.get("/").is(200);
    let mut stalled = board.connect();
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\ncontent-length: 9\r\n\r\nab", board.address);
    stalled.write_all(request.as_bytes()).unwrap();
    let mut bytes = [0; 12];
    stalled.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"HTTP/1.1 413");
    let mut rest = Vec::new();
    for stream in &mut slow {
        // The server ends it by itself.
        let _ = stream.read_to_end(&mut rest);
    }
}

#[test]
fn only_so_many_pages_are_kept_up_to_date() {
    let board = Board::new();
    let mut open: Vec<_> = (0..64).map(|_| board.events("page=other")).collect();
    open.iter_mut().for_each(|events| drop(events.next("state", "")));
    board.get("/events?page=now").is(503).has(&["64 pages are open"]);
    board.get("/").is(200);
    drop(open.pop());
    crate::world::until("a place that is free again", || {
        let mut stream = board.connect();
        let request = format!("GET /events HTTP/1.1\r\nhost: {}\r\n\r\n", board.address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = [0; 12];
        stream.read_exact(&mut bytes).unwrap();
        (&bytes == b"HTTP/1.1 200").then_some(())
    });
}

/// With `--store-api`, too; and that API is as it is without pages.
#[test]
fn the_store_api_and_the_dashboard_stand_side_by_side() {
    let world = World::new();
    let url = world.store("sqlite");
    let board = Board::of(world, url, &["--store-api"]);
    let through = format!("http://{}", board.address);
    board.world.run(&["--store", &through, "acquire", "site", "--ttl", "1h"]).token();
    board.get("/").is(200).has(&["site", "held"]);
    let missing = board.get("/v1/k/leases%2Fnobody").is(404);
    assert!(missing.head.contains("leasehold-protocol: 1"), "{missing:?}");
    board.ask("POST", "/v1/k/leases%2Fnobody", &[]).is(405).because("method");
    board.ask("PUT", "/", &[]).is(405);
    // What is no page is answered as ever.
    board.get("/v2").is(400).because("path");
}
