//! A server that is killed and comes back, and one that takes over.

use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::stores::{Cas, FailureKind};

use super::own::Server;
use super::{Raw, cas, count, get, opened, read, written};

/// The default here is to acknowledge before anything is on disk, and nothing is flushed by itself for ten
/// seconds. What a lease was told was written is there all the same after a kill.
#[test]
fn nothing_acknowledged_is_lost() {
    let mut server = Server::start(&["synchronous_commit=off", "wal_writer_delay=10s", "autovacuum=off"]);
    let mut store = opened(&server.url());
    store.limit_calls(Duration::from_secs(20));
    let mut version = written(cas(&mut store, "x", None, b"first"));
    let instance = store.facts().instance;
    Raw::connect(&server.url()).sql("CREATE TABLE control (n int); CHECKPOINT");
    let (rounds, mut lost) = (count(4, 50), 0);
    for round in 0..rounds {
        let body = format!("round {round}");
        version = written(cas(&mut store, "x", Some(&version), body.as_bytes()));
        // Control, after the write: an ordinary one here is lost by the same kill.
        Raw::connect(&server.url()).sql(&format!("INSERT INTO control VALUES ({round})"));
        server.kill();
        server.run();
        let found = get(&mut store, "x");
        assert_eq!((found.version, found.body), (version.clone(), body.into_bytes()), "round {round}");
        assert_eq!(store.facts().instance, instance, "a crash is no other incarnation");
        let kept =
            Raw::connect(&server.url()).number(&format!("SELECT count(*) FROM control WHERE n = {round}"));
        lost += usize::from(kept == 0);
    }
    assert!(lost > 0, "the control lost nothing in {rounds} kills, so this shows nothing");
}

/// While it is down: not reached, soon; a write says that it does not know.
#[test]
fn a_server_that_is_down_is_said() {
    let mut server = Server::start(&[]);
    let mut store = opened(&server.url());
    store.limit_calls(Duration::from_secs(3));
    let version = written(cas(&mut store, "x", None, b"1"));
    server.kill();
    let began = boot_time();
    let failure = read(&mut store, "x").unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.message);
    assert!(
        matches!(cas(&mut store, "x", Some(&version), b"2"), Cas::Unknown(f) if f.kind == FailureKind::Unreachable)
    );
    assert!(boot_time().since(began) < Duration::from_secs(10));
    server.run();
    assert_eq!(get(&mut store, "x").version, version);
    written(cas(&mut store, "x", Some(&version), b"3"));
}

#[test]
fn a_replica_is_refused_and_its_promotion_is_noticed() {
    let mut primary = Server::start(&[]);
    let mut store = opened(&primary.url());
    let version = written(cas(&mut store, "x", None, b"1"));
    let before = store.facts().instance;
    let replica = primary.replica();
    let mut other = opened(&replica.url());
    let failure = read(&mut other, "x").unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unusable);
    assert!(failure.message.contains("replica"), "{}", failure.message);
    // Both named: the one that writes is found.
    let both = |first: &Server, second: &Server| {
        format!("postgres://lease@127.0.0.1:{},127.0.0.1:{}/postgres", first.port, second.port)
    };
    let mut either = opened(&both(&replica, &primary));
    assert_eq!(get(&mut either, "x").version, version);
    assert_eq!(either.facts().instance, before);
    primary.kill();
    replica.promote();
    assert_eq!(get(&mut either, "x").version, version);
    assert_ne!(either.facts().instance, before);
    assert_eq!(get(&mut other, "x").version, version);
    assert_eq!(either.facts().instance, other.facts().instance);
}
