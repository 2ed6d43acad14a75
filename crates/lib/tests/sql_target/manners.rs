//! Everything that is not about zombies: others, watching, two writers of one run, busy tables, bad input.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::backends::postgres::TableFence;
use leasehold::clock::boot_time;
use leasehold::core::fence::{Bearer, FenceMode, RefusalReason};
use leasehold::core::name::Name;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::sql::carrier;
use leasehold::targets::{Content, Target, TargetError};
use leasehold_testkit::server;

use crate::kit::{Place, bearer, seal, seal_within, target_at};
use crate::psql::Psql;

const WRITE: &str = "UPDATE public.plain SET what = 'new' WHERE id = 1";

#[test]
fn sessions_without_a_grant_are_allowed_or_refused() {
    for (others, code) in [(Others::Allow, None), (Others::Refuse, Some("LH002"))] {
        let place = Place::new().guarded("plain", others);
        for sealed in [false, true] {
            let answer = place.raw().attempt(WRITE).err().map(|(code, _)| code);
            assert_eq!(answer.as_deref(), code, "{others:?}, sealed: {sealed}");
            seal(&place, "plain", 33);
        }
        // Something that is not a grant is nobody's, whoever else may write.
        let shown = "BEGIN; SET LOCAL leasehold.run = 'mine'; UPDATE public.plain SET what = 'x'";
        assert_eq!(place.raw().attempt(shown).unwrap_err().0, "LH008");
    }
}

#[test]
fn every_kind_of_statement_is_guarded() {
    let place = Place::new();
    place.raw().sql(
        "CREATE TABLE owner (id int PRIMARY KEY);
         CREATE TABLE owned (id int REFERENCES owner ON DELETE CASCADE, what text);
         INSERT INTO owner VALUES (1); INSERT INTO owned VALUES (1, 'old')",
    );
    let place = place.guarded("owned", Others::Refuse);
    seal(&place, "owned", 33);
    let raw = place.raw();
    let writes = [
        "INSERT INTO owned VALUES (1, 'x')",
        "INSERT INTO owned SELECT 1, 'x' WHERE false",
        "UPDATE owned SET what = 'x'",
        "DELETE FROM owned",
        "TRUNCATE owned",
        "DELETE FROM owner",
        "TRUNCATE owner CASCADE",
        "MERGE INTO owned o USING owner w ON o.id = w.id WHEN MATCHED THEN UPDATE SET what = 'x'",
        "WITH w AS (DELETE FROM owned RETURNING 1) SELECT * FROM w",
        "COPY owned FROM PROGRAM 'true'",
    ];
    for write in writes {
        let session = if write.starts_with("COPY") { place.superuser() } else { place.raw() };
        assert_eq!(session.attempt(write).unwrap_err().0, "LH002", "{write}");
        session.sql(&format!("SET application_name = '{}'", carrier(&bearer(32))));
        assert_eq!(session.attempt(write).unwrap_err().0, "LH001", "{write}");
        session.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
        session.sql(&format!("BEGIN; {write}; ROLLBACK"));
    }
    assert_eq!(raw.sql("SELECT what FROM owned"), ["old"]);
}

#[test]
fn watching_lets_everybody_in_and_counts() {
    let place = Place::new().guarded("plain", Others::Refuse);
    let mut target = place.target("plain");
    target.seal(&bearer(33), FenceMode::Observe).unwrap();
    target.seal(&bearer(34), FenceMode::Observe).unwrap();
    let zombie = place.raw();
    zombie.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
    let other = place.raw();
    // Two at once, each of them counted, and neither waits for the other.
    zombie.sql(&format!("BEGIN; {WRITE}"));
    other.sql("UPDATE public.plain SET what = 'theirs' WHERE id = 2");
    zombie.sql("COMMIT");
    let count = |target: &mut dyn Target| target.show().unwrap().unwrap().fence.let_in;
    assert_eq!(count(&mut target), 2);
    // The count is kept when it is folded into the fence.
    target.seal(&bearer(35), FenceMode::Observe).unwrap();
    assert_eq!(count(&mut target), 2);
    assert_eq!(place.raw().one("SELECT count(*) FROM leasehold_guard.let_in"), "0");
    target.set_mode(FenceMode::Enforce).unwrap();
    assert_eq!(zombie.attempt(WRITE).unwrap_err().0, "LH001");
    assert_eq!((place.content("plain", 1), place.content("plain", 2)), ("new".into(), "theirs".into()));
}

/// No statement names all columns, so what a later version adds stays as it is.
#[test]
fn columns_of_later_versions_are_carried_along() {
    let place = Place::new().guarded("plain", Others::Refuse);
    let raw = place.raw();
    raw.sql("ALTER TABLE leasehold_guard.fences ADD COLUMN colour text DEFAULT 'none'");
    raw.sql("UPDATE leasehold_guard.fences SET colour = 'red'");
    let mut target = place.target("plain");
    target.seal(&bearer(33), FenceMode::Observe).unwrap();
    target.set_mode(FenceMode::Enforce).unwrap();
    seal(&place, "plain", 34);
    let holder = place.raw();
    holder.sql(&format!("SET application_name = '{}'", carrier(&bearer(34))));
    holder.sql(WRITE);
    let stale = place.raw();
    stale.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
    assert_eq!(stale.attempt(WRITE).unwrap_err().0, "LH001");
    assert_eq!(raw.one("SELECT colour FROM leasehold_guard.fences"), "red");
}

#[test]
fn two_writes_of_one_run_at_once() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let mut writers = [Psql::start(&place, 33), Psql::start(&place, 33)];
    for (n, writer) in writers.iter_mut().enumerate() {
        writer.does(&format!("BEGIN; UPDATE public.plain SET what = 'w{n}' WHERE id = {};", n + 1));
    }
    // Sealing again for the same run waits for both, and changes nothing.
    assert!(matches!(
        seal_within(&place, "plain", 33, Duration::from_millis(50)),
        Err(TargetError::Remote { .. })
    ));
    for mut writer in writers {
        writer.does("COMMIT;");
        assert_eq!(writer.end().code, 0);
    }
    seal(&place, "plain", 33);
    assert_eq!((place.content("plain", 1), place.content("plain", 2)), ("w0".into(), "w1".into()));
}

/// 24 sessions whose transactions take 400 ms each, without a pause: the seal waits for those that are under
/// way, and everybody after that is refused.
#[test]
fn a_seal_gets_through_busy_sessions() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let (begun, refused, sealed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let took = std::thread::scope(|scope| {
        for n in 1..=24 {
            let (place, begun, refused, sealed) = (&place, &begun, &refused, &sealed);
            scope.spawn(move || {
                let raw = place.raw();
                raw.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
                let write = format!("BEGIN; UPDATE public.plain SET what = 'busy' WHERE id = {n}");
                begun.fetch_add(1, Ordering::SeqCst);
                loop {
                    let was = sealed.load(Ordering::SeqCst);
                    match raw.attempt(&write) {
                        Ok(_) => assert!(!was, "written after the seal"),
                        Err((code, _)) => {
                            assert_eq!(code, "LH001");
                            refused.fetch_add(1, Ordering::SeqCst);
                            return;
                        }
                    }
                    raw.sql("SELECT pg_sleep(0.4); COMMIT");
                }
            });
        }
        let raw = place.raw();
        let busy = "SELECT (count(*) = 24)::text FROM pg_locks WHERE locktype = 'advisory' AND granted AND \
                    database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        raw.until(busy, "true");
        let start = boot_time();
        seal(&place, "plain", 34);
        sealed.store(true, Ordering::SeqCst);
        boot_time().since(start)
    });
    println!("sealed after {took:?}");
    assert_eq!((begun.into_inner(), refused.into_inner()), (24, 24));
    // One that waits for a moment without readers waits for ever.
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_check_inside_the_callers_own_transaction() {
    for place in [Place::new(), Place::pooled()] {
        let place = place.guarded("plain", Others::Refuse);
        let table = place.table.clone();
        seal(&place, "plain", 33);
        let mut job = crate::kit::Raw::connect(&place.jobs);
        let write = format!("UPDATE {table} SET what = 'checked' WHERE id = 1");
        let fence = TableFence::new(bearer(33), &table);
        job.with(async |client| {
            let tx = client.transaction().await.unwrap();
            fence.check(&tx).await.unwrap();
            tx.batch_execute(&write).await.unwrap();
            tx.commit().await.unwrap();
        });
        seal(&place, "plain", 34);
        let error = job.with(async |client| {
            let tx = client.transaction().await.unwrap();
            fence.check(&tx).await.unwrap_err()
        });
        let TargetError::Refused(refused) = error else { panic!("{error}") };
        assert_eq!(refused.reason, RefusalReason::Stale);
        assert_eq!(refused.sealed(), Some(bearer(34).token));
        assert!(refused.to_string().contains("your token 33 is older than 34"), "{refused}");
        assert_eq!(place.content("plain", 1), "checked");
    }
}

#[test]
fn a_script_is_one_transaction_of_the_run() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let mut target = place.target("plain");
    let sql = "UPDATE plain SET what = 'a' WHERE id = 1; UPDATE plain SET what = 'b' WHERE id = 2;";
    target.write(&bearer(33), None, Content::Bytes(sql.as_bytes())).unwrap();
    let broken = "UPDATE plain SET what = 'c' WHERE id = 1; SELECT 1/0;";
    let error = target.write(&bearer(33), None, Content::Bytes(broken.as_bytes())).unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
    assert_eq!((place.content("plain", 1), place.content("plain", 2)), ("a".into(), "b".into()));
    seal(&place, "plain", 34);
    let error = target.write(&bearer(33), None, Content::Bytes(sql.as_bytes())).unwrap_err();
    assert!(matches!(error, TargetError::Refused(_)), "{error}");
    let error = target.write(&bearer(34), Some(1), Content::Bytes(b"")).unwrap_err();
    assert!(error.to_string().contains("does not number writes"), "{error}");
}

/// What somebody with no right to the fence can do with the guard: nothing but be checked by it.
#[test]
fn a_role_that_only_writes_the_table() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    place.raw().sql("GRANT SELECT, UPDATE ON public.plain TO PUBLIC");
    let plain = place.superuser();
    let role = crate::corner().replace('/', "");
    plain.sql(&format!("CREATE ROLE {role}; SET SESSION AUTHORIZATION {role}"));
    for forbidden in [
        "SELECT * FROM leasehold_guard.fences",
        "UPDATE leasehold_guard.fences SET token = 1",
        "DELETE FROM leasehold_guard.let_in",
        "SELECT leasehold_guard.refuse(NULL, NULL, NULL)",
        "CREATE TABLE leasehold_guard.mine (id int)",
        "ALTER TABLE public.plain DISABLE TRIGGER leasehold_guard",
    ] {
        assert_eq!(plain.attempt(forbidden).unwrap_err().0, "42501", "{forbidden}");
    }
    assert_eq!(plain.attempt(WRITE).unwrap_err().0, "LH002");
    // A function of its own under the name of one that the guard uses is not what the guard calls.
    plain.sql("CREATE TEMP TABLE fences (carrier text)");
    plain.sql(&format!("SET application_name = '{}'", carrier(&bearer(32))));
    assert_eq!(plain.attempt(WRITE).unwrap_err().0, "LH001");
    plain.sql(&format!("SET application_name = '{}'", carrier(&bearer(33))));
    plain.sql(WRITE);
    plain.sql(&format!("RESET SESSION AUTHORIZATION; DROP OWNED BY {role}; DROP ROLE {role}"));
}

fn said<T: std::fmt::Debug>(answer: Result<T, TargetError>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn bad_input_is_explained() {
    let place = Place::new();
    let mut target = place.target("plain");
    assert!(said(target.seal(&bearer(33), FenceMode::Enforce)).contains("has no guard"));
    assert!(said(target.show()).contains("leasehold guard install pg:postgres://"));
    assert!(said(target.remove(true)).contains("has no guard"));
    assert!(said(place.target("nope").install(Others::Allow, true)).contains("no table public.nope"));
    assert!(said(place.target("seen").install(Others::Allow, true)).contains("is a view"));
    assert!(said(place.target("low").install(Others::Allow, true)).contains("Name public.parted instead"));
    for (url, word) in
        [("pg:postgres://h/d", "names no table"), ("pg:mysql://h/d#t", "is not a PostgreSQL URL")]
    {
        assert!(said(leasehold::targets::open(url)).contains(word), "{url}");
    }
    let writer = server("PG_WRITER").replace("/lease", &format!("/{}", database(&place)));
    let error = target_at(&writer, "public.plain").install(Others::Allow, true).unwrap_err();
    let TargetError::Remote { failure, .. } = &error else { panic!("{error}") };
    assert_eq!(failure.kind, leasehold::core::store::FailureKind::Denied);
    assert!(error.to_string().contains("may not create a schema"), "{error}");
    assert!(error.to_string().contains("does not own public.plain (owner: lease)"), "{error}");
    target.install(Others::Allow, true).unwrap();
    let again = target.install(Others::Allow, true).unwrap();
    assert!(!again.changed && again.notes[0].contains("already guarded"), "{again:?}");
    let reader = writer.replace("//writer@", "//reader@");
    assert!(said(target_at(&reader, "plain").seal(&bearer(33), FenceMode::Enforce)).contains("may not"));
    seal(&place, "plain", 33);
    let other = Bearer { lease: Name::new("other").unwrap(), ..bearer(40) };
    let words = said(target.seal(&other, FenceMode::Enforce));
    assert!(words.contains("belongs to the lease site, and this run holds other"), "{words}");
    // Weakened behind our back, or damaged: nobody seals, nobody is let in.
    place.raw().sql("ALTER TABLE public.plain ENABLE TRIGGER leasehold_guard");
    assert!(said(target.seal(&bearer(34), FenceMode::Enforce)).contains("was disabled"));
    assert!(target.install(Others::Allow, true).unwrap().changed);
    place.raw().sql("UPDATE leasehold_guard.fences SET token = 99");
    assert!(said(target.seal(&bearer(100), FenceMode::Enforce)).contains("contradicts itself"));
    place.raw().sql("DELETE FROM leasehold_guard.fences");
    let (code, words) = place.raw().attempt(WRITE).unwrap_err();
    assert_eq!(code, "LH007", "{words}");
}

/// An older guard has a function whose refusals say the same in other words.
#[test]
fn installing_again_renews_the_words_of_refusals() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let raw = place.raw();
    let words = "SELECT prosrc FROM pg_proc WHERE proname = 'refuse'";
    let ours = raw.sql(words);
    raw.sql(
        "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('leasehold_guard.refuse'::regproc),
             'this session belongs to no run', 'nobody knows this session'); END $do$",
    );
    let (code, said) = raw.attempt(WRITE).unwrap_err();
    assert!(code == "LH002" && said.contains("nobody knows this session"), "{said}");
    let mut target = place.target("plain");
    // It is a good guard as it is.
    assert!(target.inspect().unwrap().tables[0].guarded);
    seal(&place, "plain", 34);
    assert!(target.install(Others::Refuse, true).unwrap().changed);
    assert_eq!(raw.sql(words), ours);
    assert!(!target.install(Others::Refuse, true).unwrap().changed);
    let (code, said) = raw.attempt(WRITE).unwrap_err();
    assert!(code == "LH002" && said.contains("belongs to no run"), "{said}");
}

fn database(place: &Place) -> String {
    let (_, rest) = place.direct.rsplit_once('/').unwrap();
    rest.split('?').next().unwrap().to_owned()
}

/// The whole database as text, before and after: what installing added is gone, and nothing else.
#[test]
fn removing_undoes_exactly_what_installing_did() {
    let place = Place::new();
    let dump = || {
        let out = std::process::Command::new("pg_dump").arg(&place.direct).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        // A random word against injection, new for every dump.
        text.lines().filter(|l| !l.contains("restrict ")).collect::<Vec<_>>().join("\n")
    };
    let before = dump();
    let would = place.target("parted").install(Others::Refuse, false).unwrap();
    assert_eq!(dump(), before, "only printing changes nothing");
    for table in ["plain", "parted"] {
        place.target(table).install(Others::Refuse, true).unwrap();
        seal(&place, table, 33);
    }
    assert_ne!(dump(), before);
    for table in ["plain", "parted"] {
        place.target(table).remove(true).unwrap();
    }
    assert_eq!(dump(), before);
    // What was printed is what is run.
    place.raw().sql(&would.sql);
    seal(&place, "parted", 33);
    let gone = place.target("parted").remove(false).unwrap();
    place.raw().sql(&gone.sql);
    assert_eq!(dump(), before);
}

#[test]
fn a_new_partition_is_shown_and_covered_by_installing_again() {
    let place = Place::new().guarded("parted", Others::Refuse);
    seal(&place, "parted", 33);
    place.raw().sql("CREATE TABLE later PARTITION OF parted FOR VALUES FROM (200) TO (300)");
    let mut target = place.target("parted");
    let open = |report: &leasehold::targets::guard::GuardReport| {
        report.tables.iter().filter(|t| !t.guarded).map(|t| t.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(open(&target.inspect().unwrap()), ["public.later"]);
    let after = target.aftermath(&bearer(33)).unwrap();
    assert!(after.contains("public.later is not guarded"), "{after}");
    let done = target.install(Others::Refuse, true).unwrap();
    assert!(done.notes.iter().any(|n| n.contains("1 more of its tables")), "{done:?}");
    assert_eq!(open(&target.inspect().unwrap()), Vec::<String>::new());
    assert_eq!(target.aftermath(&bearer(33)), None);
    // A table that left is uncovered too when the guard goes.
    place.raw().sql("ALTER TABLE parted DETACH PARTITION later");
    target.remove(true).unwrap();
    place.raw().sql("INSERT INTO later VALUES (250, 'free')");
}
