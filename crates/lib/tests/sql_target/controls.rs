//! Negative controls: each of these leaves one thing out, and must leak. If one did not, the tests that nothing
//! leaks would prove nothing.

use leasehold::backends::postgres::trigger_sql;
use leasehold::targets::guard::Others;
use leasehold::targets::sql::carrier;

use crate::kit::{Place, bearer, seal};
use crate::psql::Psql;

const WRITE: &str = "UPDATE public.plain SET what = 'stale' WHERE id = 1;";

const ADVISORY_LOCK: (&str, &str) = ("pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint) IS NOT NULL", "true");
const ROW_LOCK: (&str, &str) = (" FOR SHARE", "");

/// The trigger with these texts replaced.
fn weaker(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(trigger_sql(), |sql, (from, to)| {
        assert_eq!(sql.matches(from).count(), 1, "{from}");
        sql.replace(from, to)
    })
}

fn guarded() -> Place {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    place
}

/// Without a lock the check is over when the statement is: the commit lands after the seal.
#[test]
fn without_the_locks_it_leaks() {
    let place = guarded();
    place.raw().sql(&weaker(&[ADVISORY_LOCK, ROW_LOCK]));
    let mut zombie = Psql::start(&place, 33);
    zombie.does(&format!("BEGIN; {WRITE}"));
    zombie.freeze();
    zombie.types("COMMIT;");
    seal(&place, "plain", 34);
    assert_eq!(place.content("plain", 1), "old", "what the successor reads");
    zombie.thaw();
    assert_eq!(zombie.end().code, 0);
    assert_eq!(place.content("plain", 1), "stale", "the harness cannot see a leak");
}

/// The advisory lock alone: an old snapshot still shows the old fence.
#[test]
fn without_the_row_lock_an_old_snapshot_leaks() {
    let place = guarded();
    place.raw().sql(&weaker(&[ROW_LOCK]));
    let mut zombie = Psql::start(&place, 33);
    zombie.does("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.plain;");
    zombie.freeze();
    zombie.types(&format!("{WRITE}\nCOMMIT;"));
    seal(&place, "plain", 34);
    zombie.thaw();
    assert_eq!(zombie.end().code, 0);
    assert_eq!(place.content("plain", 1), "stale", "the harness cannot see a leak");
}

/// As a replication tool writes: an ordinary trigger does not fire.
#[test]
fn without_enable_always_a_replica_role_leaks() {
    let place = guarded();
    seal(&place, "plain", 34);
    let zombie = place.superuser();
    let as_zombie = format!(
        "SET application_name = '{}'; SET session_replication_role = 'replica'",
        carrier(&bearer(33))
    );
    zombie.sql(&as_zombie);
    let (code, said) = zombie.attempt(WRITE).unwrap_err();
    assert_eq!(code, "LH001", "{said}");
    place.raw().sql("ALTER TABLE public.plain ENABLE TRIGGER leasehold_guard");
    zombie.sql(WRITE);
    assert_eq!(place.content("plain", 1), "stale", "the harness cannot see a leak");
}

/// A partition without the trigger can be written by its own name.
#[test]
fn without_the_trigger_on_every_partition_it_leaks() {
    let place = Place::new().guarded("parted", Others::Refuse);
    seal(&place, "parted", 33);
    seal(&place, "parted", 34);
    let zombie = place.raw();
    zombie.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
    let ways = ["parted", "low", "high", "high_a"];
    for table in ways {
        let write = format!("UPDATE {table} SET what = 'stale'");
        assert_eq!(zombie.attempt(&write).unwrap_err().0, "LH001", "{table}");
        assert_eq!(zombie.attempt(&format!("TRUNCATE {table}")).unwrap_err().0, "LH001", "{table}");
    }
    place.raw().sql("DROP TRIGGER leasehold_guard ON high_a");
    zombie.sql("UPDATE high_a SET what = 'stale'");
    assert_eq!(place.content("parted", 150), "stale", "the harness cannot see a leak");
}
