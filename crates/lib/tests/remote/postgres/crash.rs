//! A server that is killed and comes back, and one that takes over.

use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::stores::{Cas, FailureKind, Version};

use super::own::Server;
use super::{Raw, cas, count, get, new_write, opened, read, wait, written};

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
    assert!(boot_time().since(began) < Duration::from_secs(30));
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

/// What was read on the primary is not written on a replica that took over and is behind: the version is current
/// there again, although somebody was told since that it had been replaced.
#[test]
fn a_write_goes_only_to_the_server_that_was_read() {
    let mut primary = Server::start(&[]);
    let mut holder = opened(&primary.url());
    let version = written(cas(&mut holder, "x", None, b"free"));
    let kept = written(cas(&mut holder, "kept", None, b"old"));
    let mut replica = primary.replica();
    Raw::connect(&replica.url()).until("SELECT count(*)::text FROM leasehold.records", "2");
    let both = format!("postgres://lease@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port, replica.port);
    let mut late: Vec<_> = (0..5).map(|_| opened(&both)).collect();
    for store in &mut late {
        assert_eq!(get(store, "x").version, version);
    }
    let before = late[0].facts().instance;
    // It is not there to hear of the next grant.
    replica.kill();
    written(cas(&mut holder, "x", Some(&version), b"held, token 5"));
    primary.kill();
    replica.run();
    replica.promote();
    // Control: to a newcomer the old version is current again.
    let mut newcomer = opened(&replica.url());
    assert_eq!(get(&mut newcomer, "x").version, version);
    let one = |key: &str, expected: Option<&Version>| {
        vec![new_write(key.into(), expected.cloned(), b"token 5 again")]
    };
    let answers = [
        cas(&mut late[0], "x", Some(&version), b"token 5 again"),
        cas(&mut late[1], "new", None, b"token 1 again"),
        wait(late[2].cas_many(&one("x", Some(&version)))).remove(0),
        wait(late[3].cas_many(&one("new", None))).remove(0),
        wait(late[4].remove("kept", &kept)),
    ];
    for answer in answers {
        match answer {
            Cas::Unknown(failure) => assert!(failure.message.contains("nothing was written"), "{failure:?}"),
            got => panic!("{got:?}"),
        }
    }
    assert_eq!(get(&mut newcomer, "x").body, b"free");
    assert!(read(&mut newcomer, "new").unwrap().is_none());
    assert_eq!(get(&mut newcomer, "kept").version, kept);
    // Having read, it may write.
    assert_eq!(get(&mut late[0], "x").version, version);
    assert_ne!(late[0].facts().instance, before);
    written(cas(&mut late[0], "x", Some(&version), b"held"));
}
