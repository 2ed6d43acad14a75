//! A server of the protocol refuses every rewrite of a lease that the rules could not have made, and
//! lets a whole life of one through. Used against every server there is.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold::core::ids::{Epoch, Grant, Token, WriteId};
use leasehold::core::name::Name;
use leasehold::core::record::{Hold, Holder, LeaseRecord};
use leasehold::random;
use leasehold::stores::{Cas, FailureKind, Store, Version};
use leasehold_testkit::race::{Meeting, Raced};
use pollster::block_on;

const TTL: Duration = Duration::from_secs(90);
const WRITERS: usize = 32;

fn fresh() -> WriteId {
    WriteId(random::seed())
}

fn held(grant: u128) -> Option<Hold> {
    Some(Hold { grant: Grant(grant), ttl: TTL, revoke: false, lock: None })
}

/// How the hold with this token ended.
fn line(token: u64) -> Vec<String> {
    vec![format!("{token} ok 0 7 2026-11-15T14:02:11Z site h/1")]
}

/// The first grant of a lease at the instance that this store says it is.
fn first(store: &mut dyn Store, lease: &str) -> LeaseRecord {
    assert_eq!(block_on(store.read(&format!("leases/{lease}"))).unwrap(), None);
    LeaseRecord {
        lease: Name::new(lease).unwrap(),
        epoch: Epoch::first(random::seed()),
        token: Token::FIRST,
        write: fresh(),
        instance: store.facts().instance,
        hold: held(1),
        holder: Holder {
            host: "h".into(),
            pid: 1,
            run: "r".into(),
            job: lease.into(),
            since: "2026-11-15T14:02:11Z".into(),
            slot: None,
        },
        past: Vec::new(),
        more: Default::default(),
    }
}

fn key(record: &LeaseRecord) -> String {
    format!("leases/{}", record.lease)
}

fn put(store: &mut dyn Store, expected: Option<&Version>, record: &LeaseRecord) -> Cas {
    block_on(store.cas(&key(record), expected, record.write, &record.encode()))
}

#[track_caller]
fn done(cas: Cas) -> Version {
    match cas {
        Cas::Written { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

/// Refused for good, and nothing changed.
#[track_caller]
fn refused(store: &mut dyn Store, version: &Version, key: &str, what: &str, cas: Cas) {
    match cas {
        Cas::Unknown(f) if f.kind == FailureKind::Denied => {
            assert!(f.message.ends_with('.'), "{}", f.message)
        }
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(block_on(store.read(key)).unwrap().unwrap().version, *version, "{what}");
}

fn with_hold(record: &LeaseRecord, change: impl FnOnce(&mut Hold)) -> LeaseRecord {
    let mut hold = record.hold.clone().unwrap();
    change(&mut hold);
    LeaseRecord { write: fresh(), hold: Some(hold), ..record.clone() }
}

/// Every kind of rewrite of a held record that must not be.
fn illegal(held_now: &LeaseRecord) -> Vec<(&'static str, LeaseRecord)> {
    let next =
        |token: u64| LeaseRecord { write: fresh(), token: Token::new(token).unwrap(), ..held_now.clone() };
    let token = held_now.token.get();
    let other = Holder { host: "another".into(), ..held_now.holder.clone() };
    vec![
        ("another epoch", LeaseRecord { epoch: Epoch::first(9), ..next(token) }),
        (
            "a raised generation",
            LeaseRecord { epoch: Epoch { generation: 2, ..held_now.epoch }, ..next(token) },
        ),
        ("a raised token", next(token + 1)),
        ("a raised token, freed", LeaseRecord { hold: None, ..next(token + 1) }),
        ("a stolen lease", LeaseRecord { hold: held(2), ..next(token + 1) }),
        ("a stolen lease with its token", LeaseRecord { hold: held(2), ..next(token) }),
        ("a leap", LeaseRecord { hold: held(2), ..next(token + 1_000) }),
        ("another holder", LeaseRecord { holder: other, ..next(token) }),
        ("a past that nobody had", LeaseRecord { past: line(token), ..next(token) }),
        ("another's past, freed", LeaseRecord { hold: None, past: line(token + 1), ..next(token) }),
        ("another instance", LeaseRecord { instance: "x".into(), ..next(token) }),
        ("a longer ttl", with_hold(held_now, |h| h.ttl *= 2)),
        ("a shorter ttl", with_hold(held_now, |h| h.ttl /= 2)),
        ("a revocation that ends at once", with_hold(held_now, |h| (h.revoke, h.ttl) = (true, TTL / 90_000))),
    ]
}

/// All of it, by a plain bearer and an admin.
pub fn suite(plain: &mut dyn Store, admin: &mut dyn Store, lease: &str) {
    let one = first(plain, lease);
    let at = key(&one);
    for (what, body) in [("garbage", b"hello".to_vec()), ("nothing", Vec::new())] {
        let cas = block_on(plain.cas(&at, None, fresh(), &body));
        assert!(matches!(&cas, Cas::Unknown(f) if f.kind == FailureKind::Denied), "{what}: {cas:?}");
    }
    let middle = LeaseRecord { token: Token::new(2).unwrap(), ..one.clone() };
    assert!(matches!(put(plain, None, &middle), Cas::Unknown(_)));
    assert_eq!(put(plain, None, &LeaseRecord { instance: "x".into(), ..one.clone() }), Cas::Conflict);
    let v1 = done(put(plain, None, &one));
    for (what, record) in illegal(&one) {
        let cas = put(plain, Some(&v1), &record);
        refused(plain, &v1, &at, what, cas);
    }
    let renewed = LeaseRecord { write: fresh(), ..one.clone() };
    let cas = block_on(plain.cas(&at, Some(&v1), fresh(), &renewed.encode()));
    refused(plain, &v1, &at, "another attempt's id", cas);
    let spaced = [renewed.encode(), b" ".to_vec()].concat();
    let cas = block_on(plain.cas(&at, Some(&v1), renewed.write, &spaced));
    refused(plain, &v1, &at, "a space", cas);
    let elsewhere = LeaseRecord { lease: Name::new("elsewhere").unwrap(), ..renewed.clone() };
    let cas = block_on(plain.cas(&at, Some(&v1), renewed.write, &elsewhere.encode()));
    refused(plain, &v1, &at, "another lease's record", cas);
    let cas = block_on(plain.remove(&at, &v1));
    refused(plain, &v1, &at, "removal", cas);
    // The same bearer lives a whole life of the lease.
    let v2 = done(put(plain, Some(&v1), &renewed));
    let stopping = with_hold(&renewed, |h| h.revoke = true);
    let v3 = done(put(plain, Some(&v2), &stopping));
    let cas = put(plain, Some(&v3), &with_hold(&stopping, |h| h.revoke = false));
    refused(plain, &v3, &at, "a revocation taken back", cas);
    let free = LeaseRecord { write: fresh(), hold: None, past: line(stopping.token.get()), ..stopping };
    let v4 = done(put(plain, Some(&v3), &free));
    let cas = put(plain, Some(&v4), &LeaseRecord { write: fresh(), ..free.clone() });
    refused(plain, &v4, &at, "a free record again", cas);
    let two = LeaseRecord { write: fresh(), token: free.token.after(1).unwrap(), hold: held(2), ..free };
    let v5 = done(put(plain, Some(&v4), &two));
    // Only an admin takes it from a living holder; an admin breaks no other rule.
    let stolen =
        LeaseRecord { write: fresh(), token: two.token.after(1).unwrap(), hold: held(3), ..two.clone() };
    let cas = put(plain, Some(&v5), &stolen);
    refused(plain, &v5, &at, "a stolen lease", cas);
    let fallen = LeaseRecord { token: Token::FIRST, ..stolen.clone() };
    let cas = put(admin, Some(&v5), &fallen);
    refused(plain, &v5, &at, "an admin's fallen token", cas);
    done(put(admin, Some(&v5), &stolen));
}

/// Many writers want one free lease, round after round: one gets it, and no token is given twice.
pub fn race(open: &(dyn Fn() -> Box<dyn Store> + Sync), rounds: usize, lease: &str) {
    let (barrier, raced) = (Meeting::new(WRITERS), Raced::begin("http", WRITERS, rounds));
    let mut store = open();
    let begun = first(store.as_mut(), lease);
    let version = done(put(store.as_mut(), None, &begun));
    let freed = LeaseRecord { write: fresh(), hold: None, ..begun };
    let version = done(put(store.as_mut(), Some(&version), &freed));
    let now = Mutex::new((freed, version));
    let won: Mutex<Vec<(LeaseRecord, Version)>> = Mutex::default();
    let tokens: Mutex<BTreeSet<Token>> = Mutex::default();
    let writer = |mut store: Box<dyn Store>, leads: bool| {
        for round in 0..rounds {
            barrier.wait();
            let (free, version) = now.lock().unwrap().clone();
            let token = free.token.after(1).unwrap();
            let mine = LeaseRecord { write: fresh(), token, hold: held(random::seed()), ..free };
            match put(store.as_mut(), Some(&version), &mine) {
                Cas::Written { version, .. } => won.lock().unwrap().push((mine, version)),
                Cas::Conflict => {}
                Cas::Unknown(failure) => panic!("round {round}: {}", failure.message),
            }
            barrier.wait();
            if leads {
                let mut winners = std::mem::take(&mut *won.lock().unwrap());
                assert_eq!(winners.len(), 1, "round {round}");
                let (record, version) = winners.remove(0);
                assert!(tokens.lock().unwrap().insert(record.token), "token {} twice", record.token);
                let free = LeaseRecord { write: fresh(), hold: None, ..record };
                let version = done(put(store.as_mut(), Some(&version), &free));
                *now.lock().unwrap() = (free, version);
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let store = open();
            let writer = &writer;
            scope.spawn(move || writer(store, number == 0));
        }
    });
    assert_eq!(tokens.into_inner().unwrap().len(), rounds);
    println!("{raced}");
}
