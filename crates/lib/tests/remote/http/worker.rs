//! The worker as clients see it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::backends::http::open_as;
use leasehold::core::ids::WriteId;
use leasehold::random;
use leasehold::stores::conformance::{Harness, suite};
use leasehold::stores::prefixed::Prefixed;
use leasehold::stores::{Cas, FailureKind, Store};
use leasehold_testkit::{count, server};
use pollster::block_on;

use super::kit::{ADMIN, PLAIN, TEAM, Workerd, hash};
use super::rewrites;
use crate::common::Scratch;

fn name(what: &str) -> String {
    format!("{what}-{:08x}", random::seed() & 0xffff_ffff)
}

/// In corners whose keys are no leases, for the suite's bodies are no records.
#[test]
fn the_worker_conforms() {
    let _alone = super::alone();
    let url = server("WORKERD");
    suite(&|| {
        let url = url.clone();
        let prefix = format!("doctor/{:032x}/", random::seed());
        Harness::new(move || Box::new(Prefixed::new(open_as(&url, None).unwrap(), prefix.clone())))
    });
}

#[test]
fn one_of_32_writers_wins_every_round() {
    let _alone = super::alone();
    let url = server("WORKERD");
    rewrites::race(&|| open_as(&url, None).unwrap(), count(200, 5_000), &name("raced"));
}

#[test]
fn an_illegal_rewrite_of_any_kind_is_refused() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    rewrites::suite(workerd.store(PLAIN).as_mut(), workerd.store(ADMIN).as_mut(), "rewritten");
}

#[test]
fn a_bearer_is_limited_to_its_prefix() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    let (mut all, mut team) = (workerd.store(PLAIN), workerd.store(TEAM));
    let write =
        |store: &mut dyn Store, key: &str| block_on(store.cas(key, None, WriteId(random::seed()), b"x"));
    for key in ["runs/team-a/1", "runs/team-b/1", "runs/team-a", "fences/team-b/x"] {
        assert!(matches!(write(all.as_mut(), key), Cas::Written { .. }));
    }
    assert!(matches!(write(team.as_mut(), "runs/team-a/2"), Cas::Written { .. }));
    for key in ["doctor/x/1", "doctor/x/2", "probe/clock"] {
        assert!(matches!(write(all.as_mut(), key), Cas::Written { .. }), "{key}");
        // A corner of its own: what is there by the same name is another's.
        assert!(matches!(write(team.as_mut(), key), Cas::Written { .. }), "{key}");
    }
    for key in ["runs/team-b/2", "runs/team-a", "fences/x", "team-a/x", "x"] {
        let denied =
            |f: &leasehold::stores::Failure| f.kind == FailureKind::Denied && f.message.contains("prefix");
        match write(team.as_mut(), key) {
            Cas::Unknown(f) => assert!(denied(&f), "{key}: {}", f.message),
            other => panic!("{key}: {other:?}"),
        }
        assert!(denied(&block_on(team.read(key)).unwrap_err()), "{key}");
    }
    let listed = |store: &mut dyn Store, prefix: &str| -> Result<Vec<String>, FailureKind> {
        let found = block_on(store.list(prefix, "", 100)).map_err(|f| f.kind)?;
        Ok(found.into_iter().map(|l| l.key).collect())
    };
    assert_eq!(listed(team.as_mut(), "runs/").unwrap(), ["runs/team-a/1", "runs/team-a/2"]);
    assert_eq!(listed(all.as_mut(), "runs/").unwrap().len(), 4);
    assert!(listed(team.as_mut(), "runs/team-b/").unwrap().is_empty());
    assert_eq!(listed(team.as_mut(), ""), Err(FailureKind::Denied));
    assert_eq!(listed(team.as_mut(), "doctor/").unwrap(), ["doctor/x/1", "doctor/x/2"]);
    let rest = block_on(team.list("doctor/", "doctor/x/1", 9)).unwrap();
    assert_eq!(rest.into_iter().map(|l| l.key).collect::<Vec<_>>(), ["doctor/x/2"]);
    let both = ["doctor/team-a/x/1", "doctor/team-a/x/2", "doctor/x/1", "doctor/x/2"];
    assert_eq!(listed(all.as_mut(), "doctor/").unwrap(), both);
}

#[test]
fn a_wrong_token_is_denied_and_never_shown() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    for (bearer, says) in [(Some("wr0ng-canary"), "does not know"), (None, "LEASEHOLD_AUTH_FILE")] {
        let mut store = open_as(&workerd.url, bearer).unwrap();
        let read = block_on(store.read("leases/x")).unwrap_err();
        let Cas::Unknown(cas) = block_on(store.cas("leases/x", None, WriteId(1), b"x")) else { panic!() };
        let list = block_on(store.list("leases/", "", 1)).unwrap_err();
        for failure in [read, cas, list] {
            assert_eq!(failure.kind, FailureKind::Denied, "{}", failure.message);
            assert!(failure.message.contains(says), "{}", failure.message);
            assert!(!format!("{failure:?} {:?}", store.facts()).contains("canary"));
        }
    }
    // The right one is let in: it is not the server that is broken.
    assert_eq!(block_on(workerd.store(PLAIN).read("leases/x")), Ok(None));
}

/// Rights that are misspelt are none: not those of everybody, and not those of an admin.
#[test]
fn a_misspelt_entry_opens_nothing() {
    let entries = [
        (r#""team-a/""#, true),
        (r#"{"prefix": "team-a/"}"#, true),
        (r#"{"prefx": "team-a/"}"#, false),
        (r#"{"Prefix": "team-a/", "admin": true}"#, false),
        (r#"{"prefix": 7}"#, false),
        (r#"{"prefix": null, "admin": true}"#, false),
        (r#"["team-a/"]"#, false),
        ("{}", false),
        ("[]", false),
        ("null", false),
        ("true", false),
        ("7", false),
    ];
    let bearer = |number: usize| format!("bearer-{number}-0123456789");
    let tokens: Vec<String> = entries
        .iter()
        .enumerate()
        .map(|(number, (entry, _))| format!(r#""{}": {entry}"#, hash(&bearer(number))))
        .collect();
    let scratch = Scratch::new();
    let workerd = Workerd::with_tokens(&scratch, &format!("{{{}}}", tokens.join(", ")));
    for (number, (entry, good)) in entries.iter().enumerate() {
        let mut store = workerd.store(&bearer(number));
        let got = [
            block_on(store.read("runs/team-a/1")).map(drop),
            block_on(store.list("runs/team-a/", "", 1)).map(drop),
        ];
        for got in got {
            assert_eq!(
                got.map_err(|f| f.kind),
                if *good { Ok(()) } else { Err(FailureKind::Denied) },
                "{entry}"
            );
        }
        let write = block_on(store.cas("runs/team-a/1", None, WriteId(random::seed()), b"x"));
        assert_eq!(matches!(write, Cas::Written { .. } | Cas::Conflict), *good, "{entry}: {write:?}");
        assert!(block_on(store.read("runs/team-b/1")).is_err(), "{entry} opens what it does not name");
    }
    drop(workerd);
    // What cannot be read at all lets nobody in.
    for tokens in ["", "{", "null", r#"{"*": 7}"#, r#"{"*": {}}"#] {
        let workerd = Workerd::with_tokens(&scratch, tokens);
        assert!(block_on(open_as(&workerd.url, None).unwrap().read("runs/team-a/1")).is_err(), "{tokens:?}");
        assert!(block_on(workerd.store(PLAIN).read("runs/team-a/1")).is_err(), "{tokens:?}");
    }
}

/// The status that is answered to a PUT in `chunks` chunks of 4 KiB, and then the end or nothing more.
fn put_in_chunks(url: &str, key: &str, chunks: usize, ends: bool) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!(
        "PUT /v1/k/doctor%2F{key} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {PLAIN}\r\n\
         Leasehold-Write-Id: {:032x}\r\nIf-None-Match: *\r\nTransfer-Encoding: chunked\r\n\r\n",
        random::seed()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    for _ in 0..chunks {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    if ends {
        stream.write_all(b"0\r\n\r\n").unwrap();
    }
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .unwrap_or_else(|e| panic!("no answer to {chunks} chunks: {e}"));
    line.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Nobody knows how long a body in chunks will be. No more of it is taken than may be kept.
#[test]
fn a_body_without_end_is_refused_before_its_end() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    assert_eq!(put_in_chunks(&workerd.url, "whole", 16, true), "200");
    assert_eq!(put_in_chunks(&workerd.url, "long", 17, true), "413");
    assert_eq!(put_in_chunks(&workerd.url, "endless", 17, false), "413");
    let mut store = workerd.store(PLAIN);
    assert_eq!(block_on(store.read("doctor/whole")).unwrap().unwrap().body.len(), 64 * 1024);
    for key in ["doctor/long", "doctor/endless"] {
        assert_eq!(block_on(store.read(key)), Ok(None));
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let mut store = open_as(&server("WORKERD"), None).unwrap();
    let key = format!("doctor/{}", name("long"));
    let body = vec![7; 64 * 1024];
    assert!(matches!(block_on(store.cas(&key, None, WriteId(1), &body)), Cas::Written { .. }));
    assert_eq!(block_on(store.read(&key)).unwrap().unwrap().body, body);
    let longer = vec![7; 64 * 1024 + 1];
    let Cas::Unknown(failure) = block_on(store.cas(&format!("{key}2"), None, WriteId(2), &longer)) else {
        panic!("it took too much");
    };
    assert_eq!(failure.kind, FailureKind::Unusable, "{}", failure.message);
    assert_eq!(block_on(store.read(&format!("{key}2"))), Ok(None));
    let failure = block_on(store.read(&"k".repeat(513))).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unusable, "{}", failure.message);
}
