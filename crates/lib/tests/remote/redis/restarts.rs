//! A server that is killed and starts again: what it kept counts, and no token comes twice.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShotOutcome, OneShotVerb};
use leasehold::core::rules::Refusal;
use leasehold::core::session::{Granted, NotStarted, Outcome, StopReason, Within, lease_key};
use leasehold::core::timing::{StoreClock, Timing, TimingWishes};
use leasehold::manual::{self, AcquireRequest};
use leasehold::seen_tokens::SeenTokens;
use leasehold::state::StateDir;
use leasehold::stores::{self, Cas, FailureKind, Landed};
use leasehold::{Error, Leases};
use pollster::block_on;

use super::server::{Scratch, Server};
use super::{store, write_id};

fn name() -> Name {
    Name::new("site").unwrap()
}

fn acquire(url: &str, memory: &SeenTokens) -> Outcome {
    let facts = store(url).facts();
    let clock = StoreClock { resolution: facts.resolution, jump: facts.jump };
    let wishes = TimingWishes { ttl: Some(Duration::from_secs(60)), heartbeat: None, grace: None };
    let timing = Timing::new(wishes, clock).unwrap();
    let ask = AcquireRequest {
        lease: name(),
        job: name(),
        timing,
        wait: Duration::ZERO,
        force: false,
        within: Within::default(),
    };
    manual::acquire(&ask, store(url), memory.clone()).unwrap()
}

fn granted(url: &str, memory: &SeenTokens) -> Granted {
    match acquire(url, memory) {
        Outcome::Granted(granted) => granted,
        other => panic!("{other:?}"),
    }
}

fn done(verb: OneShotVerb, url: &str) {
    let outcome = manual::one_shot(verb, &name(), store(url).as_mut());
    assert!(matches!(outcome, OneShotOutcome::Done { .. }), "{outcome:?}");
}

#[test]
fn with_a_log_no_grant_is_forgotten() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    let mut tokens = Vec::new();
    for round in 0..50 {
        // No memory on this host: the store alone must know.
        let grant = granted(&url, &SeenTokens::none());
        tokens.push(grant.token.get());
        server.kill();
        server.again();
        // Still held, by us, and by nobody else.
        assert!(matches!(acquire(&url, &SeenTokens::none()), Outcome::Busy(_)), "round {round}");
        done(OneShotVerb::Renew(grant.grant), &url);
        if round % 2 == 0 {
            server.kill();
            server.again();
        }
        done(OneShotVerb::Release(grant.grant), &url);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // Each grant was written to another run of the server than the next was asked of.
    assert!(tokens.windows(2).all(|pair| pair[1] == pair[0] + 1000), "{tokens:?}");
}

/// Without persistence every lease is gone. A host that remembers refuses; one that does not gets
/// another epoch, so that (epoch, token) never comes twice.
#[test]
fn without_persistence_nothing_comes_twice() {
    let mut server = Server::start(&["--save", "", "--appendonly", "no"]);
    let url = server.url();
    let scratch = Scratch::new();
    let mut seen = HashSet::new();
    for round in 0..10 {
        // A host that was there for this round only.
        let state = StateDir::at(scratch.join(&format!("host-{round}")));
        state.ensure().unwrap();
        let memory = SeenTokens::new(state, url.clone());
        for _ in 0..3 {
            let grant = granted(&url, &memory);
            assert!(seen.insert((grant.epoch, grant.token)), "{grant:?} came twice");
            done(OneShotVerb::Release(grant.grant), &url);
        }
        server.kill();
        server.again();
        let after = acquire(&url, &memory);
        let refused = |outcome: &Outcome| {
            matches!(
                outcome,
                Outcome::NotStarted(NotStarted::Refused { refusal: Refusal::Vanished { .. }, .. })
            )
        };
        assert!(refused(&after), "{after:?}");
    }
    assert_eq!(seen.len(), 30);
    // Control: the tokens alone do come again, so it is the epoch that tells them apart.
    let tokens: BTreeSet<u64> = seen.iter().map(|(_, token)| token.get()).collect();
    assert_eq!(tokens.len(), 3);
}

/// A snapshot brings back an older state: hosts that saw more refuse it, others skip ahead.
#[test]
fn a_snapshot_that_is_behind_repeats_no_token() {
    let mut server = Server::start(&["--save", "", "--appendonly", "no"]);
    let url = server.url();
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("host"));
    state.ensure().unwrap();
    let memory = SeenTokens::new(state, url.clone());
    let first = granted(&url, &memory);
    done(OneShotVerb::Release(first.grant), &url);
    let _: () = server.admin(&["SAVE"]);
    let forgotten = granted(&url, &memory);
    done(OneShotVerb::Release(forgotten.grant), &url);
    server.kill();
    server.again();
    let behind = acquire(&url, &memory);
    assert!(
        matches!(behind, Outcome::NotStarted(NotStarted::Refused { refusal: Refusal::Behind { .. }, .. })),
        "{behind:?}"
    );
    let other = granted(&url, &SeenTokens::none());
    assert_eq!(other.epoch, forgotten.epoch);
    assert!(other.token > forgotten.token, "{other:?} after {forgotten:?}");
}

/// A write prepared before a restart is not sent after it: the version it expects may be back.
#[test]
fn a_write_goes_only_to_the_server_that_was_read() {
    let mut server = Server::start(&["--save", "", "--appendonly", "no"]);
    let url = server.url();
    let mut late = store(&url);
    assert!(matches!(block_on(late.cas("k", None, write_id(), b"free")), Cas::Written { .. }));
    let _: () = server.admin(&["SAVE"]);
    let version = block_on(late.read("k")).unwrap().unwrap().version;
    let before = late.facts().instance;
    // Somebody else is granted the lease, and the server forgets it.
    assert!(matches!(
        block_on(store(&url).cas("k", Some(&version), write_id(), b"held")),
        Cas::Written { .. }
    ));
    server.kill();
    assert!(block_on(late.read("k")).is_err(), "nobody there");
    server.again();
    // Control: to the store itself, the old version is current again.
    assert_eq!(block_on(store(&url).read("k")).unwrap().unwrap().version, version);
    match block_on(late.cas("k", Some(&version), write_id(), b"also held")) {
        Cas::Unknown(failure) => assert_eq!(failure.landed, Landed::No, "{failure:?}"),
        got => panic!("{got:?}"),
    }
    let now = block_on(late.read("k")).unwrap().unwrap();
    assert_eq!(now.body, b"free");
    assert_ne!(late.facts().instance, before);
    // Having read, it may write.
    assert!(matches!(block_on(late.cas("k", Some(&version), write_id(), b"held")), Cas::Written { .. }));
}

/// Waits until a replica has all that its primary has.
pub fn follow(replica: &Server, primary: &Server) {
    let _: () = replica.admin(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    let end = boot_time().plus(Duration::from_secs(30));
    while !replica.admin::<String>(&["INFO", "replication"]).contains("master_link_status:up") {
        assert!(boot_time() < end, "the replica does not follow");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// The same, without a restart: a primary that was a replica for a while has another history, and the
/// connection that outlived it must not be trusted with what was read before.
#[test]
fn a_write_goes_only_to_the_history_that_was_read() {
    let (server, other) = (Server::start(&["--save", ""]), Server::start(&["--save", ""]));
    let url = server.url();
    let mut late = store(&url);
    assert!(matches!(block_on(late.cas("k", None, write_id(), b"free")), Cas::Written { .. }));
    follow(&other, &server);
    let _: () = other.admin(&["REPLICAOF", "NO", "ONE"]);
    let version = block_on(late.read("k")).unwrap().unwrap().version;
    let before = late.facts().instance;
    let mut lasting = store(&url);
    assert!(block_on(lasting.read("k")).unwrap().is_some());
    let got = block_on(store(&url).cas("k", Some(&version), write_id(), b"held"));
    assert!(matches!(got, Cas::Written { .. }));
    follow(&server, &other);
    // A read in the meantime is not answered by a replica.
    let failure = block_on(lasting.read("k")).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unusable, "{failure:?}");
    let _: () = server.admin(&["REPLICAOF", "NO", "ONE"]);
    // Control: to a newcomer, the old version is current again.
    assert_eq!(block_on(store(&url).read("k")).unwrap().unwrap().version, version);
    match block_on(late.cas("k", Some(&version), write_id(), b"also held")) {
        Cas::Unknown(failure) => assert_eq!(failure.landed, Landed::No, "{failure:?}"),
        got => panic!("{got:?}"),
    }
    assert_eq!(block_on(late.read("k")).unwrap().unwrap().body, b"free");
    assert_ne!(late.facts().instance, before);
    assert!(matches!(block_on(late.cas("k", Some(&version), write_id(), b"held")), Cas::Written { .. }));
}

/// A lease that is kept while its server comes and goes.
#[test]
fn a_short_restart_is_survived_and_a_long_one_stops_the_work_in_time() {
    const TTL: Duration = Duration::from_secs(6);
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    let leases = Leases::on(move || stores::open(&url));
    let lease = block_on(leases.lease("site").ttl(TTL).acquire()).unwrap().lease().expect("free");
    let token = lease.token().unwrap();
    // Longer than a TTL without renewals would last.
    let end = boot_time().plus(TTL + TTL / 2);
    let mut restarts = 0;
    while boot_time() < end {
        server.kill();
        server.again();
        restarts += 1;
        // Until it is renewed there.
        let mut observer = store(&server.url());
        let key = lease_key(&name());
        let version = block_on(observer.read(&key)).unwrap().unwrap().version;
        assert!(block_on(observer.wait_change(&key, Some(&version), TTL)), "after {restarts} restarts");
        assert_eq!(lease.token().unwrap(), token, "after {restarts} restarts");
    }
    assert!(restarts >= 3, "{restarts}");
    let began = boot_time();
    server.kill();
    let lost = block_on(lease.run(async |_| std::future::pending::<()>().await));
    let lasted = boot_time().since(began);
    assert!(matches!(&lost, Err(Error::Lost(lost)) if *lost.why == StopReason::Deadline), "{lost:?}");
    assert!(lasted < TTL, "stopped after {lasted:?}");
    server.again();
    let next = block_on(leases.lease("site").ttl(TTL).wait(TTL * 3).acquire()).unwrap().lease();
    assert!(next.expect("free in the end").token().unwrap() > token);
}
