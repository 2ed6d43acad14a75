//! Tables in SQLite as targets: the rule, zombies, programs that know nothing of us, bad input.

use std::process::Command;
use std::time::Duration;

use leasehold::backends::sqlite::TableFence;
use leasehold::core::fence::{
    Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, RefusalReason, table, verdict,
};
use leasehold::core::name::Name;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::sql::carrier;
use leasehold::targets::{Class, Content, Target, TargetError};
use leasehold_testkit::count;
use leasehold_testkit::messages::note_seen;
use rusqlite::{Connection, params};

use crate::kit::bearer;
use crate::sqlite_kit::{File, Python};

const STALE: &str = "UPDATE plain SET what = 'stale' WHERE id = 1";
const JOURNALS: [&str; 2] = ["DELETE", "WAL"];

fn install(db: &Connection, stored: Option<&Fence>) {
    let shown = stored.map(|f| {
        let (lease, epoch, token, grant) = (f.lease.clone(), f.epoch, f.token, f.grant);
        carrier(&Bearer { lease, epoch, token, grant })
    });
    let mode = if stored.is_some_and(|f| f.mode == FenceMode::Observe) { "observe" } else { "enforce" };
    db.execute(
        "UPDATE leasehold_fences SET lease = ?1, token = ?2, generation = ?3, epoch = ?4, grant_id = ?5, \
         carrier = ?6, mode = ?7, let_in = ?8",
        params![
            stored.map(|f| f.lease.as_str().to_owned()),
            stored.map(|f| i64::try_from(f.token.get()).unwrap()),
            stored.map(|f| i64::from(f.epoch.generation)),
            stored.map(|f| format!("{:032x}", f.epoch.id)),
            stored.map(|f| f.grant.to_string()),
            shown,
            mode,
            stored.map_or(0, |f| i64::try_from(f.let_in).unwrap()),
        ],
    )
    .unwrap();
}

fn code_of(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Stale => "LH001",
        RefusalReason::NotSealed => "LH003",
        RefusalReason::Fork => "LH004",
        RefusalReason::Epoch => "LH005",
        RefusalReason::OtherLease => "LH006",
        RefusalReason::Jump | RefusalReason::Sequence => panic!("no write is refused for {reason:?} here"),
    }
}

/// No statement names all columns, so what a later version adds stays as it is.
#[test]
fn columns_of_later_versions_are_carried_along() {
    let file = File::guarded("WAL", Others::Refuse);
    file.db().execute_batch("ALTER TABLE leasehold_fences ADD COLUMN colour TEXT DEFAULT 'red'").unwrap();
    let mut target = file.target("plain");
    target.seal(&bearer(33), FenceMode::Observe).unwrap();
    target.set_mode(FenceMode::Enforce).unwrap();
    file.seal(34).unwrap();
    assert_eq!(target.show().unwrap().unwrap().fence.token.get(), 34);
    let colour: String =
        file.db().query_row("SELECT colour FROM leasehold_fences", [], |row| row.get(0)).unwrap();
    assert_eq!(colour, "red");
}

/// Writes, as plain SQL against the triggers and as a check in Rust. Seals go by core's own rule; here and in
/// the tests of PostgreSQL their codec is the same.
#[test]
fn every_case_of_the_table() {
    let file = File::guarded("WAL", Others::Allow);
    let mut db = file.db();
    db.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let mut seen = std::collections::HashSet::new();
    for case in table() {
        let stored = case.stored.map(|f| Fence { seq: 0, digest: String::new(), done: true, ..f });
        let bearer = case.bearer;
        if !seen.insert(format!("{stored:?} {bearer:?}")) {
            continue;
        }
        install(&db, stored.as_ref());
        let about = format!("{stored:?} {bearer:?}");
        let wanted = verdict(stored.as_ref(), &bearer, &FenceOffer::Write { seq: 1, digest: "d".into() });
        let tx = db.transaction().unwrap();
        let fence = TableFence::new(bearer, "PLAIN");
        let answer = fence.check(&tx);
        answer.as_ref().map_err(|error| note_seen(&error.to_string())).ok();
        match (&wanted, answer) {
            (FenceVerdict::Refuse(reason), Err(TargetError::Refused(said))) => {
                assert_eq!(said.reason, *reason, "{about}");
                assert_eq!(said.sealed(), stored.as_ref().map(|f| f.token), "{about}");
            }
            (FenceVerdict::Accept(_) | FenceVerdict::LetIn(..), Ok(())) => {}
            other => panic!("{other:?}: {about}"),
        }
        let wrote = tx.execute(STALE, []);
        let let_in: u32 = tx.query_row("SELECT let_in FROM leasehold_fences", [], |row| row.get(0)).unwrap();
        match (&wanted, wrote) {
            (FenceVerdict::Refuse(reason), Err(e)) => {
                assert!(e.to_string().contains(code_of(*reason)), "{e}: {about}");
            }
            (FenceVerdict::Accept(next) | FenceVerdict::LetIn(_, next), Ok(1)) => {
                assert_eq!(u64::from(let_in), next.let_in, "{about}")
            }
            other => panic!("{other:?}: {about}"),
        }
    }
    println!("{} writes", seen.len());
    assert!(seen.len() >= 1100);
}

/// The same reading as in PostgreSQL: what is unknown is an error, and nobody takes it for one of the known settings.
#[test]
fn an_unknown_setting_for_others_is_an_error() {
    let file = File::guarded("DELETE", Others::Allow);
    file.seal(1).unwrap();
    let damage = "PRAGMA ignore_check_constraints = 1; UPDATE leasehold_fences SET others = 'some'";
    file.db().execute_batch(damage).unwrap();
    let mut target = file.target("plain");
    let answers = [
        target.seal(&bearer(2), FenceMode::Enforce).map(drop),
        target.write(&bearer(1), None, Content::Bytes(STALE.as_bytes())).map(drop),
        target.show().map(drop),
        target.inspect().map(drop),
        target.install(Others::Refuse, true).map(drop),
    ];
    for answer in answers {
        let Err(TargetError::BadFence { why, .. }) = answer else { panic!("{answer:?}") };
        assert!(why.contains("\"some\", is unknown"), "{why}");
    }
    assert_eq!(file.content(), "old");
}

/// A program in Python with one line more than before, stopped before its statement and before its commit.
#[test]
fn a_frozen_program_is_refused() {
    for journal in JOURNALS {
        let file = File::guarded(journal, Others::Refuse);
        let mut token = 1;
        file.seal(token).unwrap();
        for _ in 0..count(2, 100) {
            let mut zombie = Python::start(&file, token);
            zombie.does("SELECT 1");
            zombie.freeze();
            zombie.types(STALE);
            file.seal(token + 1).unwrap();
            zombie.thaw();
            let said = zombie.answer();
            assert!(said.contains("your token is older than the newest one here (LH001)"), "{said}");
            assert_eq!(file.content(), "old", "the zombie landed");
            // Stopped inside: the successor does not start, and is told whom to end.
            let mut zombie = Python::start(&file, token + 1);
            zombie.does("BEGIN");
            zombie.does(STALE);
            zombie.freeze();
            zombie.types("COMMIT");
            let mut short = file.target("plain").with_patience(Duration::from_millis(50));
            let busy = short.seal(&bearer(token + 2), FenceMode::Enforce).unwrap_err();
            note_seen(&busy.to_string());
            let TargetError::Busy { holder, .. } = busy else {
                panic!("it did not wait for the open transaction")
            };
            assert_eq!(holder, u32::try_from(zombie.pid().as_raw_nonzero().get()).ok(), "{journal}");
            zombie.kill();
            file.seal(token + 2).unwrap();
            assert_eq!(file.content(), "old", "the zombie landed");
            token += 2;
        }
    }
}

/// It read before the seal and writes after it. In a log SQLite itself says no, in words that name no fence; with
/// a journal the seal waits for the reader.
#[test]
fn an_old_snapshot_cannot_write() {
    let file = File::guarded("WAL", Others::Refuse);
    file.seal(33).unwrap();
    let mut zombie = Python::start(&file, 33);
    zombie.does("BEGIN");
    zombie.does("SELECT * FROM plain");
    file.seal(34).unwrap();
    zombie.types(STALE);
    let said = zombie.answer();
    assert!(said.contains("database is locked"), "{said}");
    assert_eq!(file.content(), "old");
}

/// The control: a program that asks first and writes then, as it would without a guard.
#[test]
fn asking_first_and_writing_then_leaks() {
    let file = File::guarded("WAL", Others::Refuse);
    file.seal(33).unwrap();
    for event in ["insert", "update", "delete"] {
        file.db().execute_batch(&format!("DROP TRIGGER leasehold_guard_{event}_plain")).unwrap();
    }
    let zombie = file.db();
    let mine = carrier(&bearer(33));
    let asked = |db: &Connection| {
        db.query_row("SELECT carrier FROM leasehold_fences", [], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(asked(&zombie), mine);
    let mut successor = file.target("plain");
    successor.install(Others::Refuse, true).unwrap();
    successor.seal(&bearer(34), FenceMode::Enforce).unwrap();
    for event in ["insert", "update", "delete"] {
        file.db().execute_batch(&format!("DROP TRIGGER leasehold_guard_{event}_plain")).unwrap();
    }
    zombie.execute(STALE, []).unwrap();
    assert_eq!(file.content(), "stale", "the harness cannot see a leak");
}

#[test]
fn a_program_that_does_not_know_the_function_cannot_write() {
    let file = File::guarded("WAL", Others::Allow);
    file.seal(33).unwrap();
    let shell = |sql: &str| Command::new("sqlite3").arg(file.path()).arg(sql).output().unwrap();
    for write in [
        STALE,
        "DELETE FROM plain",
        "INSERT INTO plain VALUES (9, 'x')",
        "REPLACE INTO plain VALUES (1, 'x')",
    ] {
        let out = shell(write);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("no such function: leasehold_grant"), "{said}");
    }
    // It can read, and write everything else.
    assert!(shell("CREATE TABLE other (x); INSERT INTO other SELECT id FROM plain").status.success());
    // One that knows the function and belongs to no run is what `others` is about.
    let db = file.db();
    let nobody = |db: &Connection| {
        let flags = rusqlite::functions::FunctionFlags::SQLITE_UTF8;
        db.create_scalar_function("leasehold_grant", 0, flags, |_| Ok(None::<String>)).unwrap();
    };
    nobody(&db);
    db.execute(STALE, []).unwrap();
    file.target("plain").install(Others::Refuse, true).unwrap();
    assert!(db.execute(STALE, []).unwrap_err().to_string().contains("LH002"));
}

#[test]
fn a_check_inside_the_callers_own_transaction() {
    for journal in JOURNALS {
        let file = File::guarded(journal, Others::Refuse);
        file.seal(33).unwrap();
        let mut db = file.db();
        let fence = TableFence::new(bearer(33), "plain");
        let tx = db.transaction().unwrap();
        fence.check(&tx).unwrap();
        tx.execute("UPDATE plain SET what = 'checked' WHERE id = 1", []).unwrap();
        // Between the check and the commit nobody seals.
        let mut short = file.target("plain").with_patience(Duration::from_millis(20));
        assert!(matches!(short.seal(&bearer(34), FenceMode::Enforce), Err(TargetError::Busy { .. })));
        tx.commit().unwrap();
        file.seal(34).unwrap();
        let tx = db.transaction().unwrap();
        let TargetError::Refused(refused) = fence.check(&tx).unwrap_err() else { panic!() };
        assert!(refused.to_string().contains("your token 33 is older than 34"), "{refused}");
        drop(tx);
        assert_eq!(file.content(), "checked");
    }
}

#[test]
fn a_script_is_one_transaction_of_the_run() {
    let file = File::guarded("DELETE", Others::Refuse);
    file.seal(33).unwrap();
    let mut target = file.target("plain");
    assert_eq!(target.class(), Class::Atomic);
    let mut write = |token, sql: &str| target.write(&bearer(token), None, Content::Bytes(sql.as_bytes()));
    write(33, "UPDATE plain SET what = 'a' WHERE id = 1; UPDATE plain SET what = 'b' WHERE id = 2").unwrap();
    write(33, "UPDATE plain SET what = 'c' WHERE id = 1; SELECT nonsense").unwrap_err();
    assert_eq!(file.content(), "a");
    file.seal(34).unwrap();
    assert!(matches!(write(33, "UPDATE plain SET what = 'd'"), Err(TargetError::Refused(_))));
    assert_eq!(file.content(), "a");
    assert!(!std::path::Path::new(&format!("{}-journal", file.path())).exists(), "left behind");
}

fn said<T: std::fmt::Debug>(answer: Result<T, TargetError>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn bad_input_is_explained() {
    let file = File::new("WAL");
    let mut target = file.target("plain");
    assert!(said(target.seal(&bearer(33), FenceMode::Enforce)).contains("has no guard"));
    assert!(said(target.remove(true)).contains("has no guard"));
    assert!(said(file.target("nope").install(Others::Allow, true)).contains("no table nope"));
    assert!(said(file.target("seen").install(Others::Allow, true)).contains("is a view"));
    assert!(said(leasehold::targets::open("sqlite:/nowhere/x.db")).contains("names no table"));
    let mut nowhere = leasehold::targets::open("sqlite:/nowhere/x.db#t").unwrap();
    assert!(said(nowhere.show()).contains("there is no file /nowhere/x.db"));
    assert!(target.install(Others::Allow, true).unwrap().changed);
    assert!(!target.install(Others::Allow, true).unwrap().changed);
    file.seal(33).unwrap();
    let other = Bearer { lease: Name::new("other").unwrap(), ..bearer(40) };
    assert!(said(target.seal(&other, FenceMode::Enforce)).contains("belongs to the lease site"));
    file.db().execute_batch("DROP TRIGGER leasehold_guard_delete_plain").unwrap();
    assert!(said(target.seal(&bearer(34), FenceMode::Enforce)).contains("changed or dropped"));
    assert!(target.inspect().unwrap().tables[0].state.contains("DELETE"));
    target.install(Others::Allow, true).unwrap();
    file.db().execute_batch("UPDATE leasehold_fences SET token = 99").unwrap();
    assert!(said(target.seal(&bearer(100), FenceMode::Enforce)).contains("contradicts itself"));
    file.db().execute_batch("DELETE FROM leasehold_fences").unwrap();
    let db = file.db();
    TableFence::new(bearer(33), "plain").attach(&db).unwrap();
    assert!(db.execute(STALE, []).unwrap_err().to_string().contains("LH007"));
}

/// The words of a refusal may differ between versions. The rule may not.
#[test]
fn a_guard_with_older_words_is_good_and_gets_the_new_ones() {
    let file = File::guarded("DELETE", Others::Refuse);
    file.seal(33).unwrap();
    let ours = file.dump();
    let reworded = |from: &str, to: &str| {
        let db = file.db();
        let select = "SELECT sql FROM sqlite_schema WHERE name = 'leasehold_guard_update_plain'";
        let text: String = db.query_row(select, [], |row| row.get(0)).unwrap();
        assert!(text.contains(from), "{text}");
        db.execute_batch("DROP TRIGGER leasehold_guard_update_plain").unwrap();
        db.execute_batch(&text.replace(from, to)).unwrap();
    };
    let mut target = file.target("plain");
    reworded("your token is older than", "it isn''t new: older than");
    assert_ne!(file.dump(), ours);
    assert!(target.inspect().unwrap().tables[0].guarded);
    file.seal(33).unwrap();
    assert!(target.install(Others::Refuse, true).unwrap().changed);
    // The trigger that was made last is dumped last.
    let sorted = |dump: &str| {
        let mut lines: Vec<String> = dump.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&file.dump()), sorted(&ours));
    assert!(!target.install(Others::Refuse, true).unwrap().changed);
    // Control: another rule is seen.
    reworded("< f.token", "< 0");
    assert!(said(target.seal(&bearer(34), FenceMode::Enforce)).contains("changed or dropped"));
    assert!(!target.inspect().unwrap().tables[0].guarded);
    target.install(Others::Refuse, true).unwrap();
    file.seal(34).unwrap();
}

#[test]
fn removing_undoes_exactly_what_installing_did() {
    let file = File::new("DELETE");
    let before = file.dump();
    let mut target = file.target("plain");
    let would = target.install(Others::Refuse, false).unwrap();
    assert_eq!(file.dump(), before, "only printing changes nothing");
    target.install(Others::Refuse, true).unwrap();
    file.seal(33).unwrap();
    assert_ne!(file.dump(), before);
    target.remove(true).unwrap();
    assert_eq!(file.dump(), before);
    // What was printed is what is run.
    file.db().execute_batch(&would.sql).unwrap();
    file.seal(33).unwrap();
    target.remove(true).unwrap();
    assert_eq!(file.dump(), before);
}

/// Our SQLite leaves directories unsynced; what a power cut would make of that is kept out by hand: the journal's
/// name is on disk before the first page is written, and that it is gone before a seal is answered.
#[test]
fn the_directory_is_synced_around_a_seal() {
    let file = File::guarded("DELETE", Others::Refuse);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-e", "trace=open,openat,fsync,fdatasync,unlink,pwrite64", "--"]);
    strace.arg(std::env::current_exe().unwrap()).args(["--exact", "sqlite::one_seal", "--nocapture"]);
    let out = strace.env("LEASEHOLD_TEST_SEAL", file.path()).output().unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{log}");
    let (_, log) = log.split_once("-journal").unwrap_or_else(|| panic!("no journal: {log}"));
    let steps: Vec<&str> = log
        .lines()
        .filter_map(|line| match () {
            () if line.contains("fsync(") && !line.contains(".db") => Some("directory synced"),
            () if line.contains("unlink(") && line.contains("-journal") => Some("journal gone"),
            () if line.contains("pwrite64(") && line.contains(".db>") => Some("page written"),
            () => None,
        })
        .collect();
    assert_eq!(steps.first(), Some(&"directory synced"), "{steps:?}\n{log}");
    let gone = steps.iter().position(|s| *s == "journal gone").unwrap();
    assert!(steps[..gone].contains(&"page written"), "{steps:?}");
    assert_eq!(steps.get(gone + 1), Some(&"directory synced"), "{steps:?}");
}

/// SQLite takes triggers along when a table is renamed, under their old names.
#[test]
fn a_renamed_table_can_be_freed_and_guarded_again() {
    for again in [false, true] {
        let file = File::guarded("DELETE", Others::Refuse);
        file.seal(33).unwrap();
        file.db().execute_batch("ALTER TABLE plain RENAME TO \"Odd Name\"").unwrap();
        let write = "UPDATE \"Odd Name\" SET what = 'x'";
        // Control: nobody can write it now.
        file.db().execute_batch(write).unwrap_err();
        let mut target = file.target("main.\"odd name\"");
        assert!(said(target.seal(&bearer(34), FenceMode::Enforce)).contains("has no guard"));
        if again {
            target.install(Others::Refuse, true).unwrap();
            target.seal(&bearer(1), FenceMode::Enforce).unwrap();
            file.db().execute_batch(write).unwrap_err();
        }
        target.remove(true).unwrap();
        file.db().execute_batch(write).unwrap();
        assert!(!file.dump().contains("leasehold"), "{}", file.dump());
    }
}

/// Every lock that is taken or given back fails once: what is told agrees with what is there.
#[test]
fn a_seal_that_took_effect_is_not_told_as_nothing() {
    let mut doubts = 0;
    for at in 1..100 {
        let file = File::guarded("DELETE", Others::Refuse);
        let mut strace = Command::new("strace");
        let inject = format!("inject=fcntl:error=EIO:when={at}");
        strace.args(["-f", "-qq", "-e", "trace=fcntl", "-e", &inject, "--"]);
        strace.arg(std::env::current_exe().unwrap()).args(["--exact", "sqlite::one_seal", "--nocapture"]);
        let out = strace.env("LEASEHOLD_TEST_SEAL", file.path()).output().unwrap();
        let log = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        let sealed = file.target("plain").show().unwrap().is_some();
        assert!(!(sealed && log.contains("Nothing was changed")), "{at}: {log}");
        assert!(sealed || !out.status.success(), "{at}: {log}");
        doubts += u32::from(sealed && log.contains("is unknown"));
        if !log.contains("INJECTED") {
            assert!(doubts > 0, "the harness never fails a lock after the commit");
            return;
        }
    }
    panic!("there is no end to the locks");
}

/// The seal that is watched above; alone, nothing.
#[test]
fn one_seal() {
    if let Ok(path) = std::env::var("LEASEHOLD_TEST_SEAL") {
        let rest = format!("{path}#plain");
        let mut target =
            leasehold::backends::sqlite::SqliteTarget::open(&format!("sqlite:{rest}"), &rest).unwrap();
        target.seal(&bearer(33), FenceMode::Enforce).unwrap_or_else(|e| panic!("{e}"));
    }
}
