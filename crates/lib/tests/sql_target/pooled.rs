//! Ways past a guard that a plain client finds by itself: a pooler's left-over names, a parent that came later.

use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::ids::Epoch;
use leasehold::targets::guard::{Guard, Others, ShownBy};
use leasehold::targets::sql::carrier;
use leasehold::targets::{Content, Target};

use crate::kit::{Place, Raw, bearer, seal, target_at};
use crate::psql::Psql;
use crate::sqlite_kit::File;

/// One that sends no application name, as many drivers do. PgBouncer has one server connection for all.
fn nameless(place: &Place, id: u32) -> Option<String> {
    let write = format!("UPDATE {} SET what = 'theirs' WHERE id = {id}", place.table);
    Raw::connect(&place.jobs).attempt(&write).err().map(|(code, _)| code)
}

/// By SET LOCAL, as the documentation says.
fn by_setting(place: &Place, token: u64, id: u32) -> Option<String> {
    let (table, grant) = (&place.table, carrier(&bearer(token)));
    let write = format!(
        "BEGIN; SET LOCAL leasehold.run = '{grant}'; UPDATE {table} SET what = 'new' WHERE id = {id}; COMMIT"
    );
    Raw::connect(&place.jobs).attempt(&write).err().map(|(code, _)| code)
}

/// The name that a run's psql leaves on the server connection is no grant where only settings are.
#[test]
fn a_nameless_session_behind_a_pooler_passes_for_nobody() {
    let place = Place::pooled().guarded("plain", Others::Refuse);
    let mut through = target_at(&place.jobs, &place.table);
    seal(&place, "plain", 33);
    let mut psql = Psql::start(&place, 33);
    psql.does(&format!("UPDATE {} SET what = 'new' WHERE id = 1;", place.table));
    // Control: with names the next client is taken for that run; and the guard says that this may be.
    assert_eq!(nameless(&place, 1), None, "the harness cannot see what a pooler leaves behind");
    let told = through.inspect().unwrap();
    assert!(told.not_fenced.iter().any(|text| text.contains("--grant setting")), "{told:?}");
    assert!(through.aftermath(&bearer(33)).unwrap().contains("--grant setting"));
    assert_eq!(place.target("plain").aftermath(&bearer(33)), None, "no pooler is in between here");

    let mut guard = place.target("plain");
    guard.accept(ShownBy::Setting).unwrap();
    guard.install(Others::Refuse, true).unwrap();
    psql.types(&format!("UPDATE {} SET what = 'named' WHERE id = 1;", place.table));
    assert!(psql.end().said.contains("SET LOCAL leasehold.run"));
    assert_eq!(nameless(&place, 1).as_deref(), Some("LH002"));
    assert_eq!(by_setting(&place, 33, 1), None);
    assert_eq!(nameless(&place, 2).as_deref(), Some("LH002"), "a setting is not left behind");
    assert_eq!(by_setting(&place, 32, 2).as_deref(), Some("LH001"));
    through
        .write(
            &bearer(33),
            None,
            Content::Bytes(format!("DELETE FROM {} WHERE id = 3", place.table).as_bytes()),
        )
        .unwrap();
    // It stays so when the guard is installed again, and can be taken back.
    assert!(!place.target("plain").install(Others::Refuse, true).unwrap().changed);
    let told = through.inspect().unwrap();
    assert_eq!((told.shown_by, through.aftermath(&bearer(33))), (Some(ShownBy::Setting), None));
    guard.accept(ShownBy::Name).unwrap();
    assert!(guard.install(Others::Refuse, true).unwrap().changed);
    assert_eq!(guard.inspect().unwrap().shown_by, Some(ShownBy::Name));
    guard.remove(true).unwrap();
    assert_eq!(nameless(&place, 4), None);
}

/// Statements through a parent fire the parent's triggers only.
#[test]
fn a_parent_that_came_later_fails_the_seal() {
    for (attach, detach) in [
        (
            "CREATE TABLE above (id int NOT NULL, what text NOT NULL) PARTITION BY RANGE (id);
             ALTER TABLE above ATTACH PARTITION public.plain FOR VALUES FROM (0) TO (100)",
            "ALTER TABLE above DETACH PARTITION public.plain",
        ),
        (
            "CREATE TABLE above (id int NOT NULL, what text NOT NULL); ALTER TABLE public.plain INHERIT above",
            "ALTER TABLE public.plain NO INHERIT above",
        ),
    ] {
        let place = Place::new().guarded("plain", Others::Refuse);
        seal(&place, "plain", 33);
        let raw = place.raw();
        raw.sql(attach);
        // Control: it is a way past.
        raw.sql("UPDATE above SET what = 'theirs' WHERE id = 1");
        assert_eq!(place.content("plain", 1), "theirs");
        let mut target = place.target("plain");
        let words = target.seal(&bearer(34), FenceMode::Enforce).unwrap_err().to_string();
        assert!(words.contains("public.above") && words.contains("DETACH"), "{words}");
        let told = target.inspect().unwrap();
        let open: Vec<_> = told.tables.iter().filter(|t| !t.guarded).map(|t| t.name.as_str()).collect();
        assert_eq!(open, ["public.above"], "{told:?}");
        assert!(target.aftermath(&bearer(33)).unwrap().contains("public.above"));
        raw.sql(detach);
        seal(&place, "plain", 34);
    }
}

/// What SQLite would cut off, and what PostgreSQL would take for a broken connection.
#[test]
fn a_script_with_what_is_no_sql_is_refused_whole() {
    let place = Place::new().guarded("plain", Others::Refuse);
    seal(&place, "plain", 33);
    let file = File::guarded("DELETE", Others::Refuse);
    file.seal(33).unwrap();
    let (mut pg, mut sqlite) = (place.target("plain"), file.target("plain"));
    for target in [&mut pg as &mut dyn Target, &mut sqlite] {
        let script = b"UPDATE plain SET what = 'half'; \0 UPDATE plain SET what = 'whole'";
        let words = target.write(&bearer(33), None, Content::Bytes(script)).unwrap_err().to_string();
        assert!(words.contains("NUL") && words.contains("Nothing was written"), "{words}");
    }
    let copy = b"UPDATE plain SET what = 'half'; COPY plain FROM STDIN;\n1\tx\n\\.\n";
    for copy in [&copy[..], b"UPDATE plain SET what = 'half'; COPY plain FROM STDIN", b"COPY plain TO STDOUT"]
    {
        let error = pg.write(&bearer(33), None, Content::Bytes(copy)).unwrap_err();
        assert!(matches!(error, leasehold::targets::TargetError::Unfit { .. }), "{error:?}");
    }
    assert_eq!((place.content("plain", 1), file.content()), ("old".into(), "old".into()));
}

/// Whoever moved to another store seals anew; until then nobody writes.
#[test]
fn a_forgotten_fence_is_sealed_by_whoever_comes_next() {
    let place = Place::new().guarded("plain", Others::Refuse);
    let file = File::guarded("DELETE", Others::Refuse);
    let (mut pg, mut sqlite) = (place.target("plain"), file.target("plain"));
    let moved = Bearer { epoch: Epoch { generation: 1, id: 8 }, ..bearer(1) };
    for target in [&mut pg as &mut dyn Target, &mut sqlite] {
        let script = Content::Bytes(b"UPDATE plain SET what = 'new'");
        target.seal(&bearer(33), FenceMode::Enforce).unwrap();
        // Control: without that it is refused for ever.
        let words = target.seal(&moved, FenceMode::Enforce).unwrap_err().to_string();
        assert!(words.contains("leasehold fence reset"), "{words}");
        assert_eq!(target.forget().unwrap().map(|fence| fence.token.get()), Some(33));
        assert_eq!((target.show().unwrap(), target.forget().unwrap()), (None, None));
        let words = target.write(&bearer(33), None, script).unwrap_err().to_string();
        assert!(words.contains("no run has fenced"), "{words}");
        target.seal(&moved, FenceMode::Enforce).unwrap();
        target.seal(&bearer(34), FenceMode::Enforce).unwrap_err();
    }
    assert_eq!((place.content("plain", 1), file.content()), ("old".into(), "old".into()));
}
