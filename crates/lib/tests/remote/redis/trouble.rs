//! What goes wrong is told apart, said in a sentence, and never taken for an answer.

use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::stores::conformance::{Harness, suite};
use leasehold::stores::{Cas, Failure, FailureKind, Landed, Store};
use pollster::block_on;

use super::server::Server;
use super::{store, to_examine, write_id};

const CANARY: &str = "c4nary-s3cret";

/// Reads and writes must both fail, in the same way; gives what was said of the write.
fn fails(url: &str, kind: FailureKind, words: &str) -> String {
    let mut store = store(url);
    store.limit_calls(Duration::from_secs(5));
    let read = block_on(store.read("k")).expect_err("a read that must fail");
    check(&read, kind, words);
    write_fails(store.as_mut(), kind, words).message
}

fn write_fails(store: &mut dyn Store, kind: FailureKind, words: &str) -> Failure {
    let Cas::Unknown(failure) = block_on(store.cas("k", None, write_id(), b"x")) else { panic!("written") };
    check(&failure, kind, words);
    assert!(!format!("{:?}", store.facts()).contains(CANARY));
    failure
}

fn check(failure: &Failure, kind: FailureKind, words: &str) {
    println!("{failure:?}");
    assert!(
        failure.message.contains(words) && failure.kind == kind,
        "{failure:?} is not {kind:?}, {words:?}"
    );
    assert!(!failure.message.contains(CANARY), "{failure:?}");
}

#[test]
fn a_late_answer_is_nobodys() {
    let server = Server::start(&["--save", ""]);
    let url = server.url();
    let mut store = store(&url);
    for key in ["a", "b", "c"] {
        assert!(matches!(block_on(store.cas(key, None, write_id(), key.as_bytes())), Cas::Written { .. }));
    }
    for round in 0..10 {
        // Stands still, and then answers what it was asked meanwhile.
        let sleeping = thread::spawn({
            let url = url.clone();
            move || super::admin::<()>(&url, &["DEBUG", "SLEEP", "0.4"])
        });
        store.limit_calls(Duration::from_millis(50));
        let mut timed_out = 0;
        while timed_out < 2 {
            // The first may come before the server falls asleep.
            match block_on(store.read("a")) {
                Ok(stored) => assert_eq!(stored.unwrap().body, b"a"),
                Err(failure) => {
                    check(&failure, FailureKind::Unreachable, "did not answer within");
                    timed_out += 1;
                }
            }
            assert!(!sleeping.is_finished() || timed_out > 0, "round {round}: it never stood still");
            if sleeping.is_finished() {
                break;
            }
        }
        store.limit_calls(Duration::from_secs(20));
        assert_eq!(block_on(store.read("b")).unwrap().unwrap().body, b"b");
        assert_eq!(block_on(store.read("c")).unwrap().unwrap().body, b"c");
        sleeping.join().unwrap();
    }
}

#[test]
fn a_write_that_timed_out_may_have_landed() {
    let server = Server::start(&["--save", ""]);
    let mut store = store(&server.url());
    assert_eq!(block_on(store.read("k")).unwrap(), None);
    let began = boot_time();
    let _: () = server.admin(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    store.limit_calls(Duration::from_millis(100));
    let write = write_id();
    let Cas::Unknown(failure) = block_on(store.cas("k", None, write, b"x")) else { panic!("answered") };
    check(&failure, FailureKind::Unreachable, "did not answer within");
    assert!(boot_time().since(began) < Duration::from_secs(30));
    let _: () = server.admin(&["CLIENT", "UNPAUSE"]);
    store.limit_calls(Duration::from_secs(20));
    let found = block_on(store.read("k")).unwrap();
    assert!(found.is_none_or(|stored| stored.version.0 == write.to_string()));
}

#[test]
fn a_full_server_writes_nothing() {
    let server = Server::start(&["--save", ""]);
    let mut store = store(&server.url());
    assert!(matches!(block_on(store.cas("old", None, write_id(), b"x")), Cas::Written { .. }));
    let _: () = server.admin(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = server.admin(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let old = block_on(store.read("old")).unwrap().expect("a full server can be read");
    write_fails(store.as_mut(), FailureKind::Unreachable, "maxmemory");
    let Cas::Unknown(failure) = block_on(store.cas("old", Some(&old.version), write_id(), b"y")) else {
        panic!("written")
    };
    check(&failure, FailureKind::Unreachable, "nothing was written");
    assert!(failure.landed == Landed::No, "{failure:?}");
    assert_eq!(block_on(store.read("k")).unwrap(), None);
    assert_eq!(block_on(store.read("old")).unwrap().unwrap().version, old.version);
    assert_eq!(block_on(store.list("", "", 10)).unwrap().len(), 1, "and indexed nothing");
}

#[test]
fn a_server_that_cannot_save_writes_nothing() {
    let server = Server::start(&["--save", "3600 1"]);
    // A directory where the snapshot should go.
    std::fs::create_dir_all(server.file("dump.rdb/x")).unwrap();
    let _: () = server.admin(&["SET", "other", "x"]);
    let mut connection = ::redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let saved: ::redis::RedisResult<()> = ::redis::cmd("SAVE").query(&mut connection);
    assert!(saved.is_err(), "control: saving fails");
    let _: () = server.admin(&["BGSAVE"]);
    let end = boot_time().plus(Duration::from_secs(20));
    loop {
        let info: String = server.admin(&["INFO", "persistence"]);
        if info.contains("rdb_last_bgsave_status:err") {
            break;
        }
        assert!(boot_time() < end, "{info}");
    }
    let mut store = store(&server.url());
    assert_eq!(block_on(store.read("k")).unwrap(), None);
    write_fails(store.as_mut(), FailureKind::Unreachable, "cannot save its data");
    assert_eq!(block_on(store.read("k")).unwrap(), None);
}

#[test]
fn passwords_are_asked_for_and_never_told() {
    let server = Server::start(&["--save", "", "--requirepass", CANARY]);
    let at = |who: &str| format!("redis://{who}127.0.0.1:{}", server.port);
    fails(&at(""), FailureKind::Denied, "wants a password");
    fails(&at(":wrong@"), FailureKind::Denied, "refused the user or the password");
    fails(&at(&format!("nobody:{CANARY}@")), FailureKind::Denied, "refused the user or the password");
    let good = at(&format!(":{CANARY}@"));
    let mut right = store(&good);
    assert_eq!(block_on(right.read("k")).unwrap(), None);
    assert!(!format!("{:?}", right.facts()).contains(CANARY));
    let remarks = block_on(to_examine(&good).examine()).unwrap();
    assert!(!format!("{remarks:?}").contains(CANARY));
    // Every lease opens the store again, with the password.
    let lease = block_on(leasehold::open(&good).unwrap().lease("site").acquire()).unwrap();
    assert!(lease.lease().is_some());
    // A database that is not there, and a server that is not there.
    fails(&format!("{good}/99"), FailureKind::Unusable, "database number");
    drop(server);
    fails(&good, FailureKind::Unreachable, "cannot be reached");
}

/// The rights that the documentation names are enough, and without INFO it is said what is lost.
#[test]
fn few_rights_are_enough() {
    const RIGHTS: &[&str] = &[
        "+eval",
        "+time",
        "+exists",
        "+hget",
        "+hmget",
        "+hset",
        "+del",
        "+zadd",
        "+zrem",
        "+zrangebylex",
        "+publish",
        "+subscribe",
    ];
    let server = Server::start(&["--save", ""]);
    let user = |name: &str, more: &[&str]| {
        let base = ["ACL", "SETUSER", name, "on", ">pw", "~leasehold:*", "&leasehold:*"];
        let _: () = server.admin(&[&base[..], RIGHTS, more].concat());
        format!("redis://{name}:pw@127.0.0.1:{}", server.port)
    };
    let full = user("full", &["+info"]);
    suite(&|| {
        let _: () = server.admin(&["FLUSHALL"]);
        let url = full.clone();
        Harness::new(move || store(&url))
    });
    assert_eq!(store(&full).facts().caution, None);

    let blind = user("blind", &[]);
    let mut store = store(&blind);
    assert_eq!(block_on(store.read("other")).unwrap(), None);
    let facts = store.facts();
    assert_eq!(facts.instance, "unknown");
    assert!(facts.caution.is_some_and(|caution| caution.contains("INFO")));
    assert!(matches!(block_on(store.cas("other", None, write_id(), b"x")), Cas::Written { .. }));

    for right in ["-hset", "-zadd", "-exists"] {
        let reader = user("reader", &[right]);
        let failure = write_fails(super::store(&reader).as_mut(), FailureKind::Denied, "does not allow");
        assert_eq!(failure.landed, Landed::No, "{right}: {failure:?}");
        assert_eq!(block_on(store.read("k")).unwrap(), None, "{right}");
    }
    let elsewhere = format!("{full}/?prefix=x");
    let _: () = server.admin(&["ACL", "SETUSER", "full", "resetkeys", "~leasehold:{main}*"]);
    fails(&elsewhere, FailureKind::Denied, "does not allow");
}

#[test]
fn what_others_wrote_is_left_alone() {
    let server = Server::start(&["--save", ""]);
    let url = server.url();
    let key = "leasehold:{main}/k";
    let _: () = server.admin(&["SET", key, "theirs"]);
    fails(&url, FailureKind::Unusable, "Leasehold did not write");
    assert_eq!(server.admin::<String>(&["GET", key]), "theirs");
    let _: () = server.admin(&["DEL", key]);
    let _: () = server.admin(&["HSET", key, "theirs", "x"]);
    fails(&url, FailureKind::Unusable, "Leasehold did not write");
    let _: () = server.admin(&["DEL", key]);
    // Without the index nothing is written: it comes first.
    let _: () = server.admin(&["SET", "leasehold:{main}:index", "theirs"]);
    let mut store = store(&url);
    write_fails(store.as_mut(), FailureKind::Unusable, "Leasehold did not write");
    assert_eq!(block_on(store.read("k")).unwrap(), None);
    let _: () = server.admin(&["DEL", "leasehold:{main}:index"]);
    assert!(matches!(block_on(store.cas("k", None, write_id(), b"x")), Cas::Written { .. }));
    // A time in the future tells no age; a body that is missing is no record.
    let _: () = server.admin(&["HSET", key, "t", "99999999999999999"]);
    assert_eq!(block_on(store.read("k")).unwrap().unwrap().age, None);
    let _: () = server.admin(&["HSET", key, "t", "soon"]);
    assert_eq!(block_on(store.read("k")).unwrap().unwrap().age, None);
    let _: () = server.admin(&["HDEL", key, "b"]);
    let failure = block_on(store.read("k")).unwrap_err();
    check(&failure, FailureKind::Unusable, "Leasehold did not write");
}

/// Answers everybody with `text`; nothing: with silence.
fn impostor(text: Option<&'static str>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().take(4).map_while(Result::ok) {
            let _ = client.read(&mut [0; 4096]);
            let Some(text) = text else {
                thread::spawn(move || client.read_to_end(&mut Vec::new()));
                continue;
            };
            let _ = client.write_all(text.as_bytes());
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    port
}

#[test]
fn what_is_not_redis_is_no_store() {
    let url = |port| format!("redis://127.0.0.1:{port}");
    let http = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>no</html>";
    fails(&url(impostor(Some(http))), FailureKind::Unusable, "an answer that Redis does not give");
    fails(
        &url(impostor(Some("220 mail ESMTP\r\n"))),
        FailureKind::Unusable,
        "an answer that Redis does not give",
    );
    let mut store = super::store(&url(impostor(Some("+OK\r\n+OK\r\n+OK\r\n"))));
    let failure = block_on(store.read("k")).unwrap_err();
    check(&failure, FailureKind::Unusable, "an answer that Redis does not give");
    fails(&url(impostor(Some(""))), FailureKind::Unreachable, "cannot be reached");
    let mut store = super::store(&url(impostor(None)));
    store.limit_calls(Duration::from_millis(100));
    check(&block_on(store.read("k")).unwrap_err(), FailureKind::Unreachable, "did not answer within");
    fails(
        "redis://nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
        FailureKind::Unreachable,
        "",
    );
}

#[test]
fn a_replica_is_no_store() {
    let primary = Server::start(&["--save", ""]);
    let replica = Server::start(&["--save", ""]);
    let mut met = store(&replica.url());
    assert_eq!(block_on(met.read("k")).unwrap(), None);
    let _: () = replica.admin(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    fails(&replica.url(), FailureKind::Unusable, "is a replica");
    // One that became a replica while we were connected.
    write_fails(met.as_mut(), FailureKind::Unusable, "is a replica");
}

/// Keys of one store stay together: the whole suite on a node of a cluster.
#[test]
fn a_cluster_keeps_a_store_in_one_slot() {
    let server = Server::start(&["--save", "", "--cluster-enabled", "yes"]);
    fails(&server.url(), FailureKind::Unreachable, "cluster");
    let _: () = server.admin(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let end = boot_time().plus(Duration::from_secs(20));
    while !server.admin::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
        assert!(boot_time() < end, "the cluster does not come up");
    }
    suite(&|| {
        let _: () = server.admin(&["FLUSHALL"]);
        let url = server.url();
        Harness::new(move || store(&url))
    });
}

/// A server that has started and not yet read all its data.
#[test]
fn a_server_that_is_loading_is_not_empty() {
    let server = Server::start(&["--save", "", "--loading-process-events-interval-bytes", "1024"]);
    let mut store = store(&server.url());
    assert!(matches!(block_on(store.cas("k", None, write_id(), b"x")), Cas::Written { .. }));
    let _: () = server.admin(&["DEBUG", "POPULATE", "2000", "filler", "100"]);
    let _: () = server.admin(&["CONFIG", "SET", "key-load-delay", "500"]);
    let loading = thread::spawn({
        let url = server.url();
        move || super::admin::<()>(&url, &["DEBUG", "RELOAD"])
    });
    let mut said = Vec::new();
    while !loading.is_finished() {
        match block_on(store.read("k")) {
            Ok(found) => assert_eq!(found.expect("never empty").body, b"x"),
            Err(failure) => said.push(failure),
        }
    }
    loading.join().unwrap();
    check(said.first().expect("it was loading"), FailureKind::Unreachable, "still loading");
    assert_eq!(block_on(store.read("k")).unwrap().unwrap().body, b"x");
}

#[test]
fn tls_is_verified() {
    let server = Server::start(&["--save", ""]);
    let port = server.encrypted();
    let ca = server.file("ca.pem");
    let good = format!("rediss://localhost:{port}?cacert={ca}");
    let mut encrypted = store(&good);
    assert!(matches!(block_on(encrypted.cas("k", None, write_id(), b"x")), Cas::Written { .. }));
    let with_own = format!("{good}&cert={}&key={}", server.file("cert.pem"), server.file("cert.key"));
    assert_eq!(block_on(store(&with_own).read("k")).unwrap().unwrap().body, b"x");
    // Nobody vouches for it; another name; no TLS at all; TLS where none is spoken.
    fails(&format!("rediss://localhost:{port}"), FailureKind::Unusable, "no trusted TLS");
    fails(&format!("rediss://127.0.0.1:{port}?cacert={ca}"), FailureKind::Unusable, "no trusted TLS");
    let mut plain = store(&format!("rediss://localhost:{}?cacert={ca}", server.port));
    plain.limit_calls(Duration::from_millis(300));
    // The server waits for the end of what it takes for a line, unless there happens to be one.
    println!("{}", block_on(plain.read("k")).unwrap_err().message);
    fails(&format!("redis://:{CANARY}@127.0.0.1:{port}"), FailureKind::Unreachable, "cannot be reached");
}
