//! What every store does, and the larger races.

use std::thread;
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold::stores::Cas;
use leasehold::stores::conformance::suite;
use leasehold_testkit::race::{Meeting, Raced};

use super::own::Server;
use super::{Raw, cas, corner, count, get, harness, in_corner, opened, read, server, written};

#[test]
fn conformance() {
    let url = server("POSTGRES");
    suite(&|| harness(&url));
}

#[test]
fn conformance_through_pgbouncer() {
    let url = server("PGBOUNCER");
    suite(&|| harness(&url));
}

/// One of many who want the same key: looks, and then tries when all have looked. True: it won.
type Contender<'a> = Box<dyn FnMut(&str, &Meeting) -> bool + 'a>;

/// In how many rounds there was not exactly one winner.
fn wrong_rounds<'a>(writers: usize, rounds: usize, contender: &(dyn Fn() -> Contender<'a> + Sync)) -> usize {
    let barrier = Meeting::new(writers);
    let won: Vec<Vec<bool>> = thread::scope(|scope| {
        let run = || {
            let mut contender = contender();
            let mut won = Vec::new();
            for round in 0..rounds {
                // A key that is updated and, now and then, one that is created.
                let key = if round % 10 == 0 { format!("new/{round}") } else { "raced".into() };
                won.push(contender(&key, &barrier));
                barrier.wait();
            }
            won
        };
        let writers: Vec<_> = (0..writers).map(|_| scope.spawn(run)).collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    (0..rounds).filter(|round| won.iter().filter(|w| w[*round]).count() != 1).count()
}

#[test]
fn one_winner_each_race() {
    let (url, corner) = (server("POSTGRES"), corner());
    let contender = || -> Contender<'_> {
        let mut store = in_corner(&url, &corner);
        Box::new(move |key, barrier| {
            let expected = read(&mut store, key).unwrap().map(|s| s.version);
            barrier.wait();
            let got = cas(&mut store, key, expected.as_ref(), b"x");
            assert!(!matches!(got, Cas::Unknown(_)), "{got:?}");
            got != Cas::Conflict
        })
    };
    let (writers, rounds) = (32, count(200, 5000));
    let raced = Raced::begin("postgres", writers, rounds);
    assert_eq!(wrong_rounds(writers, rounds, &contender), 0);
    println!("{raced}");
}

/// Control: looking first and writing later, in two statements, has more than one winner.
#[test]
fn the_race_finds_out_who_looks_and_then_writes() {
    let (url, corner) = (server("POSTGRES"), corner());
    assert_eq!(read(&mut opened(&url), "x"), Ok(None));
    let contender = || -> Contender<'_> {
        let (raw, corner) = (Raw::connect(&url), corner.clone());
        Box::new(move |key, barrier| {
            let look = format!("SELECT version FROM leasehold.records WHERE key = '{corner}{key}'");
            let seen = raw.sql(&look);
            barrier.wait();
            let free = raw.sql(&look) == seen;
            let write = format!(
                "INSERT INTO leasehold.records VALUES ('{corner}{key}', gen_random_uuid()::text, '', now()) \
                 ON CONFLICT (key) DO UPDATE SET version = excluded.version"
            );
            free && raw.sql(&write).is_empty()
        })
    };
    assert!(wrong_rounds(8, 20, &contender) > 0);
}

/// The stamp of a write that waited for a lock lies between sending and answer: an earlier one would end
/// a lease before its holder expects it.
#[test]
fn a_blocked_write_is_stamped_after_it_was_sent() {
    let (url, corner) = (server("POSTGRES"), corner());
    let mut store = in_corner(&url, &corner);
    let first = written(cas(&mut store, "x", None, b"1"));
    let raw = Raw::connect(&url);
    raw.sql("BEGIN");
    let began = boot_time();
    raw.sql(&format!("SELECT 1 FROM leasehold.records WHERE key = '{corner}x' FOR UPDATE"));
    let other = Raw::connect(&url);
    let held = Duration::from_millis(500);
    let sent = boot_time();
    thread::scope(|scope| {
        scope.spawn(|| {
            let blocked = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE {} = ANY (pg_blocking_pids(pid))",
                raw.pid()
            );
            other.until(&blocked, "1");
            other.pause(held.as_secs_f64());
            raw.sql("ROLLBACK");
        });
        written(cas(&mut store, "x", Some(&first), b"2"));
    });
    let waited = boot_time().since(sent);
    let age = get(&mut store, "x").age.unwrap();
    let since = boot_time().since(sent);
    assert!(waited >= held, "it was not blocked: {waited:?}");
    assert!(age <= since, "stamped before it was sent: {age:?} old, sent {since:?} ago");
    // Control: the stamp of a transaction's beginning, in one that began earlier, would be too old.
    raw.sql("BEGIN");
    other.pause(0.05);
    let sent = boot_time();
    raw.sql(&format!("UPDATE leasehold.records SET written = now() WHERE key = '{corner}x'; COMMIT"));
    let age = get(&mut store, "x").age.unwrap();
    assert!(age > boot_time().since(sent), "the control was not seen: {age:?}");
    assert!(boot_time().since(began) > age);
}

/// The table is made by whoever comes first, whoever else does so at that moment.
#[test]
fn first_use_by_many_at_once() {
    const USERS: usize = 32;
    let server = Server::start(&[]);
    let raw = Raw::connect(&server.url());
    for round in 0..count(5, 50) {
        raw.sql("DROP SCHEMA IF EXISTS leasehold CASCADE");
        let barrier = Meeting::new(USERS);
        let winners: usize = thread::scope(|scope| {
            let run = || {
                let mut store = opened(&server.url());
                barrier.wait();
                if round % 2 == 0 {
                    assert_eq!(read(&mut store, "y"), Ok(None));
                }
                usize::from(matches!(cas(&mut store, "x", None, b"x"), Cas::Written { .. }))
            };
            let users: Vec<_> = (0..USERS).map(|_| scope.spawn(run)).collect();
            users.into_iter().map(|u| u.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
        assert_eq!(raw.number("SELECT count(*) FROM leasehold.records"), 1);
    }
}

/// Something else under our key is bytes, and ours to refuse elsewhere.
#[test]
fn a_foreign_row_is_bytes() {
    let (url, corner) = (server("POSTGRES"), corner());
    let mut store = in_corner(&url, &corner);
    assert_eq!(read(&mut store, "x"), Ok(None));
    Raw::connect(&url).sql(&format!(
        "INSERT INTO leasehold.records VALUES ('{corner}x', 'not ours', '\\x00ff', now() + interval '1 hour')"
    ));
    let found = get(&mut store, "x");
    assert_eq!(
        (found.body.as_slice(), found.version.0.as_str(), found.age),
        (&[0, 255][..], "not ours", None)
    );
    written(cas(&mut store, "x", Some(&found.version), b"ours"));
}
