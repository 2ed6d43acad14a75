//! What people are told when it does not work, and that no password is in it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;
use std::{fs, thread};

use leasehold::backends::postgres::SCHEMA_SQL;
use leasehold::stores::{Cas, Failure, FailureKind, Landed, open};

use super::own::Server;
use super::{Raw, cas, opened, read, wait, written};

const CANARY: &str = "c4n4ry-s3cret";

/// Why a read there fails.
fn failure(url: &str) -> Failure {
    let mut store = opened(url);
    store.limit_calls(Duration::from_secs(5));
    let failure = read(&mut store, "x").expect_err(url);
    check(&failure, url);
    failure
}

fn check(failure: &Failure, url: &str) {
    let said = &failure.message;
    assert!(!said.contains(CANARY), "{url}: {said}");
    assert!(said.ends_with('.'), "{url}: {said}");
}

#[test]
fn told_apart() {
    let server = Server::start(&[]);
    let (port, at) = (server.port, format!("lease:{CANARY}@127.0.0.1"));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (url, kind, words) in [
        (format!("postgres://{at}:{closed}/postgres"), FailureKind::Unreachable, "connection refused"),
        (format!("postgres://{at}:{port}/none"), FailureKind::Unusable, "no database \"none\""),
        (format!("postgres://u:{CANARY}@127.0.0.1:{port}/postgres"), FailureKind::Denied, "\"u\""),
        (
            format!("postgres://{at}:{port}/postgres?sslmode=require"),
            FailureKind::Unusable,
            "does not support TLS",
        ),
        (
            format!(
                "postgres://u:{CANARY}@nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn/x"
            ),
            FailureKind::Unreachable,
            "has no address",
        ),
        (
            format!("postgres://u:{CANARY}@/x?host=/nonexistent"),
            FailureKind::Unreachable,
            "the socket does not exist",
        ),
        (
            format!("postgres://{at}:{port}/postgres?sslmode=verify-full&sslrootcert=/none"),
            FailureKind::Unusable,
            "/none",
        ),
    ] {
        let failure = failure(&url);
        assert_eq!(failure.kind, kind, "{}", failure.message);
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    let pooler = super::server("PGBOUNCER");
    let pooler = format!("{}/none", pooler.rsplit_once('/').unwrap().0);
    assert_eq!(failure(&pooler).kind, FailureKind::Unusable);
    let wrong = format!("postgres://u:{CANARY}/x@h/d");
    let said = open(&wrong).err().unwrap().to_string();
    assert!(!said.contains(CANARY) && said.contains("%2F"), "{said}");
    assert!(!opened(&format!("postgres://u:{CANARY}@h/d")).facts().url.contains(CANARY));
}

#[test]
fn a_wrong_or_missing_password_is_denied() {
    let mut server = Server::start(&[]);
    Raw::connect(&server.url()).sql("ALTER USER lease PASSWORD 'right'");
    fs::write(server.data().join("pg_hba.conf"), "host all all 127.0.0.1/32 scram-sha-256\n").unwrap();
    server.kill();
    server.run();
    let with = |password: &str| format!("postgres://lease{password}@127.0.0.1:{}/postgres", server.port);
    let wrong = failure(&with(&format!(":{CANARY}")));
    assert_eq!(wrong.kind, FailureKind::Denied, "{}", wrong.message);
    assert!(wrong.message.contains("refused the password of \"lease\""), "{}", wrong.message);
    let missing = failure(&with(""));
    assert_eq!(missing.kind, FailureKind::Denied, "{}", missing.message);
    assert!(missing.message.contains("asks for a password"), "{}", missing.message);
    assert_eq!(read(&mut opened(&with(":right")), "x"), Ok(None));
    // A socket, a parameter and a percent sign lead to the same place.
    let odd =
        format!("postgresql:///postgres?host=127.0.0.1&port={}&user=lease&password=r%69ght", server.port);
    assert_eq!(read(&mut opened(&odd), "x"), Ok(None));
}

#[test]
fn through_a_socket_in_the_file_system() {
    let server = Server::start(&[]);
    let dir = server.dir.display().to_string().replace('/', "%2F");
    let mut store = opened(&format!("postgres://lease@{dir}:{}/postgres?sslmode=verify-full", server.port));
    assert_eq!(read(&mut store, "x"), Ok(None));
}

/// Somebody else listens there.
#[test]
fn what_is_not_postgresql_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ =
                client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html></html>");
        }
    });
    for mode in ["disable", "prefer"] {
        let failure = failure(&format!("postgres://u:{CANARY}@127.0.0.1:{port}/d?sslmode={mode}"));
        assert_eq!(failure.kind, FailureKind::Unusable, "{mode}: {}", failure.message);
        assert!(failure.message.contains("not PostgreSQL"), "{mode}: {}", failure.message);
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut store = opened(&format!("postgres://u@127.0.0.1:{port}/d"));
    store.limit_calls(Duration::from_millis(300));
    let failure = read(&mut store, "x").unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unreachable);
    assert!(failure.message.contains("did not answer within"), "{}", failure.message);
    let Cas::Unknown(failure) = cas(&mut store, "x", None, b"1") else { panic!("nobody answered") };
    assert_eq!(failure.landed, Landed::Maybe, "{}", failure.message);
}

#[test]
fn roles_with_fewer_rights() {
    let server = Server::start(&[]);
    let raw = Raw::connect(&server.url());
    raw.sql("CREATE ROLE plain LOGIN; CREATE ROLE reader LOGIN; CREATE ROLE careful LOGIN");
    raw.sql("ALTER ROLE careful SET default_transaction_read_only = on");
    // Nothing there, and no right to make it.
    let missing = failure(&server.url_as("plain", ""));
    assert_eq!(missing.kind, FailureKind::Denied, "{}", missing.message);
    assert!(missing.message.contains("doctor --print-sql"), "{}", missing.message);
    // What the doctor prints is enough, with its grants.
    raw.sql(SCHEMA_SQL);
    let not_yet = failure(&server.url_as("plain", ""));
    assert!(not_yet.message.contains("GRANT"), "{}", not_yet.message);
    for role in ["plain", "careful"] {
        let grants = SCHEMA_SQL.lines().filter_map(|l| l.strip_prefix("-- GRANT"));
        grants.for_each(|g| drop(raw.sql(&format!("GRANT{}", g.replace("ROLE", role)))));
    }
    raw.sql("GRANT USAGE ON SCHEMA leasehold TO reader; GRANT SELECT ON leasehold.records TO reader");
    let mut plain = opened(&server.url_as("plain", ""));
    let version = written(cas(&mut plain, "x", None, b"1"));
    assert!(!plain.facts().instance.is_empty());
    assert!(wait(plain.wait_change("x", None, Duration::from_secs(5))) && plain.facts().pushes);
    for role in ["reader", "careful"] {
        let mut store = opened(&server.url_as(role, ""));
        assert_eq!(read(&mut store, "x").unwrap().unwrap().version, version);
        match cas(&mut store, "x", Some(&version), b"2") {
            Cas::Unknown(failure) => {
                check(&failure, role);
                let denied = (FailureKind::Denied, Landed::No);
                assert_eq!((failure.kind, failure.landed), denied, "{role}: {}", failure.message);
            }
            other => panic!("{role}: {other:?}"),
        }
    }
    // A server that does not tell its system identifier is still a store, by another name.
    let full = plain.facts().instance;
    raw.sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC");
    let mut plain = opened(&server.url_as("plain", ""));
    read(&mut plain, "x").unwrap();
    let less = plain.facts().instance;
    assert!(!less.is_empty() && less != full, "{less}");
    raw.sql("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC");
    read(&mut opened(&server.url_as("plain", "")), "x").unwrap();
}

/// A table of that name that is not ours.
#[test]
fn a_foreign_table_is_refused() {
    let server = Server::start(&[]);
    Raw::connect(&server.url()).sql("CREATE SCHEMA leasehold; CREATE TABLE leasehold.records (id int)");
    let failure = failure(&server.url());
    assert_eq!(failure.kind, FailureKind::Unusable, "{}", failure.message);
}
