//! P2 itself: psql with SQL of its own, stopped, while a successor seals without writing.

use std::time::Duration;

use leasehold::targets::TargetError;
use leasehold::targets::guard::Others;
use leasehold_testkit::count;

use crate::kit::{Place, bearer, seal, seal_within};
use crate::psql::{Ended, Psql};
use leasehold::core::fence::FenceMode;
use leasehold::targets::Target;

/// Long enough for a seal to begin waiting, and to give up soon.
const SHORT: Duration = Duration::from_millis(150);
const STALE: &str = "UPDATE TABLE SET what = 'stale of TOKEN' WHERE id = 1;";

/// The statement a job with this token writes with. Partitions are also written by their own names.
fn statement(place: &Place, table: &str, token: u64) -> String {
    STALE.replace("TABLE", &place.named(table)).replace("TOKEN", &token.to_string())
}

fn refused(ended: &Ended, mine: u64, sealed: u64) {
    assert_eq!(ended.code, 3, "{ended:?}");
    let words = format!("token {mine} is older than {sealed}, which");
    assert!(ended.said.contains(&words), "{ended:?}");
}

/// Stopped before its statement, in a transaction or not.
fn before_the_statement(place: &Place, root: &str, table: &str, token: u64) {
    let before = place.content(root, 1);
    let mut zombie = Psql::start(place, token);
    let begun = token.is_multiple_of(4);
    zombie.does(if begun { "BEGIN; SELECT 1;" } else { "SELECT 1;" });
    zombie.freeze();
    zombie.types(&statement(place, table, token));
    zombie.types(if begun { "COMMIT;" } else { "" });
    seal(place, root, token + 1);
    zombie.thaw();
    refused(&zombie.end(), token, token + 1);
    assert_eq!(place.content(root, 1), before, "the zombie landed");
}

/// Stopped with its transaction written and open: the successor does not start, is told whom to end, and
/// starts when that is done.
fn before_commit_evicted(place: &Place, root: &str, table: &str, token: u64) {
    let before = place.content(root, 1);
    let mut zombie = Psql::start(place, token);
    zombie.does(&format!("BEGIN; {}", statement(place, table, token)));
    zombie.freeze();
    zombie.types("COMMIT;");
    let Err(TargetError::Remote { failure, .. }) = seal_within(place, root, token + 1, SHORT) else {
        panic!("it did not wait for the open transaction")
    };
    let way_out = "SELECT pg_terminate_backend(";
    let (_, rest) = failure.message.split_once(way_out).unwrap_or_else(|| panic!("{}", failure.message));
    let pid: u32 = rest.split(')').next().unwrap().parse().unwrap();
    assert!(failure.message.contains(&format!("server process {pid} (user lease, idle in transaction")));
    place.raw().sql(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    seal(place, root, token + 1);
    zombie.thaw();
    let ended = zombie.end();
    assert_ne!(ended.code, 0, "{ended:?}");
    assert_eq!(place.content(root, 1), before, "the zombie landed");
}

/// The same, but it goes on by itself: what it wrote was written before the seal, and whoever sealed sees it.
fn before_commit_awaited(place: &Place, root: &str, table: &str, token: u64) {
    let mut slow = Psql::start(place, token);
    slow.does(&format!("BEGIN; {}", statement(place, table, token)));
    slow.freeze();
    slow.types("COMMIT;");
    let mut successor = place.target(root);
    let sealing =
        std::thread::spawn(move || successor.seal(&bearer(token + 1), FenceMode::Enforce).map(drop));
    let waiting = "SELECT (count(*) > 0)::text FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                   WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted";
    place.raw().until(waiting, "true");
    slow.thaw();
    assert_eq!(slow.end().code, 0);
    sealing.join().unwrap().unwrap();
    assert_eq!(place.content(root, 1), format!("stale of {token}"));
    place.raw().sql("RESET ALL");
}

fn rounds(place: &Place) {
    let each = count(2, 100) as u64;
    let mut token = 1;
    for root in ["plain", "parted"] {
        seal(place, root, token);
        let ways = if root == "plain" { vec!["plain"] } else { vec!["parted", "low"] };
        for table in ways {
            for _ in 0..each {
                before_the_statement(place, root, table, token);
                before_the_statement(place, root, table, token + 1);
                before_commit_evicted(place, root, table, token + 2);
                before_commit_awaited(place, root, table, token + 3);
                token += 4;
            }
        }
    }
    println!("{} rounds each: 0 stale writes", each * 3);
}

#[test]
fn a_frozen_psql_is_refused() {
    rounds(&Place::new().guarded("plain", Others::Refuse).guarded("parted", Others::Refuse));
}

/// The name of the application reaches the server with every transaction, or nobody would be refused, or all.
#[test]
fn a_frozen_psql_behind_a_pooler_is_refused() {
    rounds(&Place::pooled().guarded("plain", Others::Refuse).guarded("parted", Others::Refuse));
}

/// A snapshot from before the seal: the server itself says that it is too old, and a second try is refused.
#[test]
fn an_old_snapshot_is_refused() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    for (n, level) in ["REPEATABLE READ", "SERIALIZABLE"].into_iter().enumerate() {
        let token = 33 + n as u64;
        let mut zombie = Psql::start(&place, token);
        zombie.does(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.plain;"));
        zombie.freeze();
        zombie.types(&format!("{}\nCOMMIT;", statement(&place, "plain", token)));
        seal(&place, "plain", token + 1);
        zombie.thaw();
        let ended = zombie.end();
        assert!(ended.said.contains("could not serialize access"), "{ended:?}");
        let mut again = Psql::start(&place, token);
        again.types(&statement(&place, "plain", token));
        refused(&again.end(), token, token + 1);
    }
    assert_eq!(place.content("plain", 1), "old");
}

/// A prepared transaction has no process that could be ended.
#[test]
fn a_prepared_transaction_is_told_with_its_way_out() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let gid = format!("leasehold-{:x}", leasehold::random::seed());
    let mut writer = Psql::start(&place, 33);
    writer.does(&format!("BEGIN; {} PREPARE TRANSACTION '{gid}';", statement(&place, "plain", 33)));
    assert_eq!(writer.end().code, 0);
    let Err(TargetError::Remote { failure, .. }) = seal_within(&place, "plain", 34, SHORT) else {
        panic!("it did not wait for the prepared transaction")
    };
    place.raw().sql(&format!("ROLLBACK PREPARED '{gid}'"));
    let way_out = failure.message.split_once("end it: ").map(|(_, way_out)| way_out);
    assert!(way_out.is_some_and(|way_out| way_out.starts_with("ROLLBACK PREPARED")), "{}", failure.message);
    seal(&place, "plain", 34);
}
