//! What nobody knows is not told as "nothing was changed": lost commits, scripts that end their transaction.

use std::time::Duration;

use leasehold::backends::postgres::PgTarget;
use leasehold::core::fence::FenceMode;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::{Content, Target, TargetError};
use leasehold_testkit::proxy::{Fault, Proxy};

use crate::kit::{Place, bearer, seal, target_at};
use crate::sqlite_kit::File;

/// The statement by itself, as it goes over the wire; READ COMMITTED is another one.
const COMMIT: &[u8] = b"COMMIT\0";
const WRITE: &str = "UPDATE plain SET what = 'new' WHERE id = 1";

fn through(place: &Place, proxy: &Proxy) -> PgTarget {
    target_at(&proxy.url(&place.direct), "public.plain")
}

fn script(target: &mut dyn Target, token: u64, sql: &str) -> Result<(), TargetError> {
    target.write(&bearer(token), None, Content::Bytes(sql.as_bytes())).map(drop)
}

#[track_caller]
fn in_doubt(error: &TargetError, said: &str) {
    let words = error.to_string();
    leasehold_testkit::messages::note_seen(&words);
    assert!(matches!(error, TargetError::InDoubt { .. }), "{words}");
    assert!(words.contains("unknown") && words.contains(said), "{words}");
    assert!(!words.contains("Nothing was"), "{words}");
}

/// The answer to COMMIT is lost, after it landed and before: the same to whoever waits for it.
#[test]
fn a_commit_without_an_answer_is_told_unknown() {
    for (fault, lands) in [(Fault::DropReply, true), (Fault::Cut, false)] {
        let place = Place::new().guarded("plain", Others::Refuse);
        seal(&place, "plain", 33);
        let proxy = Proxy::tcp(&place.direct);
        let mut target = through(&place, &proxy);
        let strike = proxy.arm_on(COMMIT, fault.clone());
        in_doubt(&script(&mut target, 33, WRITE).unwrap_err(), "the connection");
        assert!(strike.struck());
        assert_eq!(place.content("plain", 1), if lands { "new" } else { "old" }, "{fault:?}");
        // Protection switched off by an errand that says that it changed nothing.
        let strike = proxy.arm_on(COMMIT, fault.clone());
        in_doubt(&target.set_mode(FenceMode::Observe).unwrap_err(), "leasehold fence ls");
        assert!(strike.struck());
        let mode = place.target("plain").show().unwrap().unwrap().fence.mode;
        assert_eq!(mode == FenceMode::Observe, lands, "{fault:?}");
        let strike = proxy.arm_on(COMMIT, fault.clone());
        in_doubt(&target.install(Others::Allow, true).unwrap_err(), "leasehold guard show");
        assert!(strike.struck());
        // A seal is simply done again; only if that fails too, nobody knows.
        proxy.arm_on(COMMIT, fault.clone());
        target.seal(&bearer(34), FenceMode::Enforce).unwrap();
        for _ in 0..2 {
            proxy.arm_on(COMMIT, Fault::Cut);
        }
        in_doubt(&target.seal(&bearer(35), FenceMode::Enforce).unwrap_err(), "Run it again");
    }
}

/// A COMMIT that is never answered, on a connection that stays open.
#[test]
fn a_silent_commit_is_told_unknown() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let proxy = Proxy::tcp(&place.direct);
    let mut target = through(&place, &proxy).with_patience(Duration::from_millis(10)).with_margin(SHORT);
    let held = proxy.arm_on(COMMIT, Fault::Hold { hang_up: false });
    in_doubt(&script(&mut target, 33, WRITE).unwrap_err(), "did not answer");
    held.held().expect("the commit").deliver().unwrap();
    place.raw().until("SELECT what FROM public.plain WHERE id = 1", "new");
}

const SHORT: Duration = Duration::from_millis(700);

/// A script takes as long as it takes: only what is around it has an end.
#[test]
fn a_long_script_is_not_cut_off() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let mut target = place.target("plain").with_patience(Duration::from_millis(10)).with_margin(SHORT);
    script(&mut target, 33, &format!("{WRITE}; SELECT pg_sleep(1.5)")).unwrap();
    assert_eq!(place.content("plain", 1), "new");
}

/// What a script commits by itself would stay when the rest of it fails: it may not.
#[test]
fn a_script_cannot_end_its_transaction() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let file = File::guarded("DELETE", Others::Refuse);
    file.seal(33).unwrap();
    let (mut pg, mut sqlite) = (place.target("plain"), file.target("plain"));
    for end in [
        "COMMIT",
        "END",
        "/* a */ -- b\n commit",
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "COMMIT; BEGIN",
        "SAVEPOINT a",
    ] {
        let sql = format!("{WRITE}; {end}; {WRITE}; INSERT INTO nope VALUES (1)");
        for target in [&mut pg as &mut dyn Target, &mut sqlite] {
            let words = script(target, 33, &sql).unwrap_err().to_string();
            assert!(words.contains("one transaction") && words.contains("Nothing was"), "{end}: {words}");
        }
        assert_eq!((place.content("plain", 1), file.content()), ("old".into(), "old".into()), "{end}");
    }
    // What only looks like it is let through.
    let text = "UPDATE plain SET what = 'COMMIT; END' WHERE id = 1 -- COMMIT;\n";
    let body = "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END; DO $$BEGIN PERFORM f(); END$$;";
    script(&mut pg, 33, &format!("{body} {text}; SELECT 1; SELECT ';'")).unwrap();
    script(&mut sqlite, 33, &format!("CREATE TABLE other (x); CREATE TRIGGER t AFTER INSERT ON other BEGIN SELECT 1; END; {text}; SELECT 1")).unwrap();
    assert_eq!((place.content("plain", 1), file.content()), ("COMMIT; END".into(), "COMMIT; END".into()));
    // Control: the same text as plain SQL leaves its first half behind.
    let raw = place.raw();
    raw.sql(&format!("SET application_name = '{}'", leasehold::targets::sql::carrier(&bearer(33))));
    raw.attempt(&format!("BEGIN; {WRITE}; COMMIT; INSERT INTO nope VALUES (1)")).unwrap_err();
    assert_eq!(place.content("plain", 1), "new", "the harness cannot see what a script leaves behind");
}

/// Installing on a partition that came later, while somebody writes the others.
#[test]
fn installing_again_does_not_fall_out_with_a_live_writer() {
    let place = Place::new().guarded("parted", Others::Allow);
    seal(&place, "parted", 33);
    place.raw().sql("CREATE TABLE later PARTITION OF parted FOR VALUES FROM (200) TO (300)");
    let writer = place.raw();
    writer.sql(&format!("SET application_name = '{}'", leasehold::targets::sql::carrier(&bearer(33))));
    writer.sql("BEGIN; LOCK TABLE later IN ROW EXCLUSIVE MODE");
    let mut target = place.target("parted");
    let installing = std::thread::spawn(move || target.install(Others::Refuse, true));
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' AND \
                   database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    place.raw().until(waiting, "1");
    writer.sql("UPDATE parted SET what = 'live' WHERE id = 1; COMMIT");
    let done = installing.join().unwrap().unwrap_or_else(|e| panic!("{e}"));
    assert!(done.changed);
    assert_eq!(place.content("parted", 1), "live");
}

/// A link to a database: class and journal are those of the file that it leads to.
#[test]
fn a_link_to_a_database_is_where_it_leads_to() {
    let file = File::guarded("DELETE", Others::Refuse);
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(crate::corner().replace('/', ""));
    std::fs::create_dir(&dir).unwrap();
    let target = |to: &str| {
        let link = dir.join("link.db");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(to, &link).unwrap();
        leasehold::targets::open(&format!("sqlite:{}#plain", link.display())).unwrap()
    };
    let mut linked = target(file.path());
    assert_eq!(linked.class().word(), "atomic");
    linked.seal(&bearer(33), FenceMode::Enforce).unwrap();
    assert!(!dir.join("link.db-journal").exists(), "a journal that SQLite does not look at");
    // Not a database, but a file system that is not known to be this machine's alone.
    assert_eq!(target("/proc/version").class().word(), "gate");
    std::fs::remove_dir_all(&dir).unwrap();
}
