//! A table in a SQLite database as a target: `sqlite:PATH#TABLE`.
//!
//! `guard install` adds a table of fences and three triggers, so that every written row is checked in the
//! transaction that writes it. SQLite has one writer at a time, so no run can seal between the check and the
//! commit, and a transaction with a snapshot from before a seal cannot write. A connection has no name that a
//! trigger could read. So a program defines a function, `leasehold_grant()`, that returns its run. A program
//! without that function cannot write the table at all.

mod check;
mod errors;
mod script;
mod sql;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::fence_record::FenceRecord;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, OptionalExtension, params};
use rustix::fs::{Mode as Bits, OFlags};

pub use self::check::TableFence;
use super::store::APPLICATION_ID;
use crate::backends::local::is_local;
use crate::targets::guard::{Covered, Guard, GuardChange, GuardReport, Others};
use crate::targets::sql as shared;
use crate::targets::{
    Class, Content, Refused, RefusedAction, Sealed, Target, TargetAction, TargetError, Variables, Written,
};
use crate::text::percent_decoded;

/// How long to wait for a transaction that writes the database.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A table that only the holder of a lease may write.
#[derive(Debug)]
pub struct SqliteTarget {
    path: PathBuf,
    table: String,
    shown: String,
    class: Class,
    patience: Duration,
}

/// The stored fence, and whether sessions that belong to no run may write.
type StoredFence = (shared::FenceRow, Others);

/// The fence of this table.
fn row_of(db: &Connection, table: &str) -> rusqlite::Result<Option<StoredFence>> {
    let sql = "SELECT mode, lease, token, generation, epoch, grant_id, carrier, let_in, others \
               FROM leasehold_fences WHERE guarded = ?1 COLLATE NOCASE";
    let read = |row: &rusqlite::Row<'_>| {
        let fence = shared::FenceRow {
            mode: row.get(0)?,
            lease: row.get(1)?,
            token: row.get(2)?,
            generation: row.get(3)?,
            epoch: row.get(4)?,
            grant: row.get(5)?,
            carrier: row.get(6)?,
            let_in: row.get(7)?,
        };
        let others: String = row.get(8)?;
        let unknown = |why: String| Error::FromSqlConversionFailure(8, Type::Text, why.into());
        Ok((fence, Others::parse(&others).map_err(unknown)?))
    };
    db.query_row(sql, [table], read).optional()
}

impl SqliteTarget {
    /// Reads the URL; `rest` is the part after `sqlite:`. Opens the database with the first call.
    pub fn open(url: &str, rest: &str) -> Result<Self, TargetError> {
        let unfit = |why: &str, fix: &str| TargetError::Unfit {
            target: url.into(),
            why: why.into(),
            fix: fix.into(),
        };
        let parts = rest.rsplit_once('#').filter(|(path, table)| !path.is_empty() && !table.is_empty());
        let Some((path, table)) = parts else {
            return Err(unfit("names no table: there is nothing after a #", "Write sqlite:PATH#TABLE"));
        };
        let Some(table) = percent_decoded(table) else {
            return Err(unfit("has a % in its table name that starts no %XX", "Write a plain % as %25"));
        };
        let named = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let shown = format!("sqlite:{}#{}", named.display(), rest.rsplit_once('#').map_or("", |(_, t)| t));
        // The locks and the journal are beside the file to which a link points.
        let path = std::fs::canonicalize(&named).unwrap_or(named);
        let parent = path.parent().unwrap_or(Path::new("/"));
        let local =
            rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())
                .and_then(|dir| is_local(&dir))
                .unwrap_or(false);
        let class = if local { Class::Atomic } else { Class::Gate };
        Ok(Self { path, table, shown, class, patience: PATIENCE })
    }

    /// Waits this long for a transaction that writes the database.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn connect(&self, doing: &'static str) -> Result<Connection, TargetError> {
        if !self.path.exists() {
            return Err(errors::no_file(&self.shown, &self.path));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let said = |e: rusqlite::Error| errors::said(&self.shown, doing, &e);
        let db = Connection::open_with_flags(&self.path, flags).map_err(said)?;
        db.busy_timeout(self.patience).map_err(said)?;
        db.execute_batch("PRAGMA synchronous = FULL").map_err(said)?;
        Ok(db)
    }

    /// Begins a transaction with the write lock.
    fn begin(&self, db: &Connection, doing: &'static str) -> Result<(), TargetError> {
        db.execute_batch("BEGIN IMMEDIATE").map_err(|e| {
            let busy = e.sqlite_error().is_some_and(|e| e.code == ErrorCode::DatabaseBusy);
            match busy {
                true => TargetError::Busy {
                    target: self.shown.clone(),
                    waited: self.patience,
                    holder: errors::writer(&self.path),
                },
                false => errors::said(&self.shown, doing, &e),
            }
        })
    }

    /// Must be called before the first write of a transaction.
    fn before_writing(&self, doing: &'static str) -> Result<(), TargetError> {
        self.keep_journal().map_err(|source| TargetError::Io { target: self.shown.clone(), doing, source })
    }

    /// Our SQLite does not sync directories (see `.cargo/config.toml`). If a power cut lost the name of the rollback
    /// journal, a partial write could not be undone. So the journal's name is on disk before the first write; or the
    /// log's name, if there is one.
    fn keep_journal(&self) -> std::io::Result<()> {
        let beside = |suffix: &str| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        if !beside("-wal").exists() {
            let mode = rustix::fs::stat(&self.path)?.st_mode & 0o666;
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            drop(rustix::fs::open(beside("-journal"), flags, Bits::from_raw_mode(mode))?);
        }
        self.sync()
    }

    fn sync(&self) -> std::io::Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let dir =
            rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())?;
        Ok(rustix::fs::fsync(dir)?)
    }

    /// Commits. When it returns, the transaction is on disk, and so is the removal of the journal that would undo it.
    fn commit(&self, db: &Connection, doing: &'static str, asked: TargetAction) -> Result<(), TargetError> {
        db.execute_batch("COMMIT").map_err(|e| match e.sqlite_error().map(|e| e.code) {
            // The last step may have failed, after the journal was removed.
            Some(ErrorCode::SystemIoFailure) => TargetError::InDoubt {
                target: self.shown.clone(),
                asked,
                why: format!("the disk failed during the COMMIT ({e})"),
            },
            _ => errors::said(&self.shown, doing, &e),
        })?;
        self.sync().map_err(|e| TargetError::InDoubt {
            target: self.shown.clone(),
            asked,
            why: format!("it is committed, but a power cut could undo it ({e})"),
        })
    }

    /// The table's own spelling of its name.
    fn named(&self, db: &Connection, doing: &'static str) -> Result<String, TargetError> {
        let sql = "SELECT name, type, sql FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view')";
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?))
        };
        let look = |name: &str| db.query_row(sql, [name], read).optional();
        let found = look(&self.table).and_then(|found| match found {
            None => look(&sql::plain_name(&self.table)),
            found => Ok(found),
        });
        let found = found.map_err(|e| errors::said(&self.shown, doing, &e))?;
        let Some((name, kind, text)) = found else { return Err(errors::no_table(&self.shown, &self.table)) };
        let virtually = text.is_some_and(|t| t.to_uppercase().starts_with("CREATE VIRTUAL"));
        match kind.as_str() {
            "view" => Err(errors::not_a_table(&self.shown, &name, "a view")),
            _ if virtually => {
                Err(errors::not_a_table(&self.shown, &name, "a virtual table, which has no triggers"))
            }
            _ if name.to_lowercase().starts_with("sqlite_") || name == "leasehold_fences" => {
                Err(errors::not_a_table(&self.shown, &name, "not a table of yours"))
            }
            _ => Ok(name),
        }
    }

    /// The guard's triggers of this table as they are installed: each event, and its trigger's text.
    fn installed(db: &Connection, table: &str) -> rusqlite::Result<[(&'static str, Option<String>); 3]> {
        let mut installed = sql::EVENTS.map(|event| (event, None));
        for (event, text) in &mut installed {
            let select = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?1";
            *text = db.query_row(select, [sql::trigger_name(event, table)], |row| row.get(0)).optional()?;
        }
        Ok(installed)
    }

    /// The events whose trigger is missing or has another rule.
    fn open_events(db: &Connection, table: &str) -> rusqlite::Result<Vec<&'static str>> {
        let is_open = |(event, text): &(&'static str, Option<String>)| {
            text.as_ref().is_none_or(|text| !sql::same_rule(text, &sql::trigger(event, table)))
        };
        Ok(Self::installed(db, table)?.into_iter().filter(is_open).map(|(event, _)| event).collect())
    }

    /// The table's name when its guard was installed, if it was renamed since: SQLite keeps the triggers of a renamed
    /// table.
    fn guarded_as(&self, db: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT substr(name, 24) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE \
                   AND substr(name, 1, 23) = 'leasehold_guard_insert_' AND substr(name, 24) <> ?1 COLLATE NOCASE";
        db.query_row(sql, [table], |row| row.get(0)).optional()
    }

    /// The table's name and fence; an error if the guard is not as it was installed.
    fn found(&self, db: &Connection, doing: &'static str) -> Result<(String, StoredFence), TargetError> {
        let name = self.named(db, doing)?;
        let row = row_of(db, &name).map_err(|e| errors::no_guard_or(&self.shown, doing, &e))?;
        let row = row.ok_or_else(|| errors::no_guard(&self.shown))?;
        let open = Self::open_events(db, &name).map_err(|e| errors::said(&self.shown, doing, &e))?;
        if open.is_empty() { Ok((name, row)) } else { Err(errors::weak_guard(&self.shown)) }
    }

    fn change<T>(
        &self,
        asked: TargetAction,
        change: impl FnOnce(Option<Fence>) -> Result<(Option<Fence>, T), TargetError>,
    ) -> Result<T, TargetError> {
        let doing = asked.doing();
        let db = self.connect(doing)?;
        self.found(&db, doing)?;
        self.begin(&db, doing)?;
        let (name, (row, _)) = self.found(&db, doing)?;
        let before = row.fence().map_err(|why| errors::bad_fence(&self.shown, why))?;
        let (next, answer) = change(before.clone())?;
        if next == before {
            return Ok(answer);
        }
        let row = next.as_ref().map_or_else(shared::FenceRow::unsealed, shared::FenceRow::of);
        self.before_writing(doing)?;
        db.execute(
            "UPDATE leasehold_fences SET lease = ?2, token = ?3, generation = ?4, epoch = ?5, grant_id = ?6, \
             carrier = ?7, mode = ?8, let_in = ?9 WHERE guarded = ?1 COLLATE NOCASE",
            params![
                name,
                row.lease,
                row.token,
                row.generation,
                row.epoch,
                row.grant,
                row.carrier,
                row.mode,
                row.let_in
            ],
        )
        .map_err(|e| errors::said(&self.shown, doing, &e))?;
        self.commit(&db, doing, asked)?;
        Ok(answer)
    }

    /// Runs the statements of a plan in one transaction; without `run`, only returns them.
    fn carry_out(
        &self,
        doing: &'static str,
        run: bool,
        plan: impl FnOnce(&Connection) -> Result<(Vec<String>, Vec<String>), TargetError>,
    ) -> Result<GuardChange, TargetError> {
        let db = self.connect(doing)?;
        if run {
            self.named(&db, doing)?;
            self.begin(&db, doing)?;
        }
        let (statements, notes) = plan(&db)?;
        let body: String = statements.iter().map(|s| format!("{s};\n")).collect();
        let changed = !statements.is_empty();
        if run && changed {
            self.before_writing(doing)?;
            db.execute_batch(&body).map_err(|e| errors::said(&self.shown, doing, &e))?;
            self.commit(&db, doing, TargetAction::Guard)?;
        }
        let sql =
            if changed { format!("BEGIN IMMEDIATE;\n{body}COMMIT;\n") } else { "-- nothing to do\n".into() };
        Ok(GuardChange { sql, notes, changed })
    }

    fn has_fences(db: &Connection) -> rusqlite::Result<bool> {
        db.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'leasehold_fences'", [], |row| {
            row.get::<_, i64>(0).map(|n| n > 0)
        })
    }
}

impl Target for SqliteTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        self.class
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        let change = |before| shared::sealed(before, bearer, mode, &self.shown);
        self.change(TargetAction::Seal, change).map(|let_in| Sealed { let_in })
    }

    /// The content is an SQL script, which is run in one transaction of this run.
    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        let script = shared::script(&self.shown, seq, content)?;
        let db = self.connect("write")?;
        let (name, _) = self.found(&db, "write")?;
        self.begin(&db, "write")?;
        check::check(&db, &self.shown, &name, bearer)?;
        self.before_writing("write")?;
        script::run(&db, &self.shown, &script)?;
        self.commit(&db, "write", TargetAction::Write)?;
        Ok(Written { seq: 0, repeat: false, let_in: None })
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        let doing = "read the fence of";
        let (_, (row, _)) = self.found(&self.connect(doing)?, doing)?;
        let fence = row.fence().map_err(|why| errors::bad_fence(&self.shown, why))?;
        Ok(fence.map(FenceRecord::done))
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.change(TargetAction::Mode, |before| shared::in_mode(before, mode, &self.shown))
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        self.change(TargetAction::Reset, |before| Ok((None, before)))
    }

    fn environment(&self, bearer: &Bearer, _has: Variables<'_>) -> Vec<(OsString, OsString)> {
        vec![(shared::VARIABLE.into(), shared::carrier(bearer).into())]
    }
}

impl Guard for SqliteTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn sessions(&self) -> &'static str {
        "programs without the function leasehold_grant() cannot write it at all (inside a run, use `leasehold write`; \
         docs/targets/sql.md); other programs"
    }

    fn install(&mut self, others: Others, run: bool) -> Result<GuardChange, TargetError> {
        let doing = "install the guard of";
        self.carry_out(doing, run, |db| {
            let said = |e: rusqlite::Error| errors::said(&self.shown, doing, &e);
            let application: i64 =
                db.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(said)?;
            if application == APPLICATION_ID {
                return Err(shared::own_store(&self.shown));
            }
            let name = self.named(db, doing)?;
            let (mut statements, mut notes) = (Vec::new(), Vec::new());
            let fences = Self::has_fences(db).map_err(said)?;
            if !fences {
                statements.push(sql::TABLE.to_owned());
            }
            if let Some(before) = self.guarded_as(db, &name).map_err(said)? {
                statements.extend(sql::uncover(&before));
                statements.push(sql::forget(&before));
                notes.push(format!("it was guarded under its old name {before}; that fence was removed"));
            }
            let row = if fences { row_of(db, &name).map_err(said)? } else { None };
            match &row {
                None => statements.push(sql::fence(&name, others)),
                Some((_, before)) if *before != others => statements.push(sql::others(&name, others)),
                Some(_) => {}
            }
            for (event, text) in Self::installed(db, &name).map_err(said)? {
                let trigger = sql::trigger(event, &name);
                if text.as_ref() == Some(&trigger) {
                    continue;
                }
                // It has another rule, or the words of another version.
                if text.is_some() {
                    statements
                        .push(format!("DROP TRIGGER {}", sql::quoted(&sql::trigger_name(event, &name))));
                }
                statements.push(trigger);
            }
            if row.is_some() {
                notes.push("it was already guarded".into());
            }
            Ok((statements, notes))
        })
    }

    fn remove(&mut self, run: bool) -> Result<GuardChange, TargetError> {
        let doing = "remove the guard of";
        self.carry_out(doing, run, |db| {
            let said = |e: rusqlite::Error| errors::said(&self.shown, doing, &e);
            let name = self.named(db, doing)?;
            if !Self::has_fences(db).map_err(said)? {
                return Err(errors::no_guard(&self.shown));
            }
            let name = self.guarded_as(db, &name).map_err(said)?.unwrap_or(name);
            let (row, _) = row_of(db, &name).map_err(said)?.ok_or_else(|| errors::no_guard(&self.shown))?;
            let mut statements = sql::uncover(&name);
            let rest: i64 =
                db.query_row("SELECT count(*) FROM leasehold_fences", [], |row| row.get(0)).map_err(said)?;
            statements.push(if rest > 1 { sql::forget(&name) } else { "DROP TABLE leasehold_fences".into() });
            let forgotten = row.fence().ok().flatten();
            let note = |f: Fence| format!("its fence is forgotten: lease {}, token {}", f.lease, f.token);
            Ok((statements, forgotten.map(note).into_iter().collect()))
        })
    }

    fn inspect(&mut self) -> Result<GuardReport, TargetError> {
        let doing = "look at the guard of";
        let db = self.connect(doing)?;
        let name = self.named(&db, doing)?;
        let row = row_of(&db, &name).map_err(|e| errors::no_guard_or(&self.shown, doing, &e))?;
        let (row, others) = row.ok_or_else(|| errors::no_guard(&self.shown))?;
        let open = Self::open_events(&db, &name).map_err(|e| errors::said(&self.shown, doing, &e))?;
        let state = match open.is_empty() {
            true => "guarded".into(),
            false => format!("its trigger for {} was changed or dropped", open.join(" and ")),
        };
        let tables = vec![Covered { name, guarded: open.is_empty(), state }];
        let (fence, not_fenced) = (row.fence(), not_fenced());
        Ok(GuardReport { others, shown_by: None, fence, tables, not_fenced, pooled: false })
    }
}

/// The writes that a guard does not check.
fn not_fenced() -> Vec<String> {
    [
        "programs without the function leasehold_grant(): they cannot write the table at all (no such function)",
        "changes of the table itself: ALTER TABLE, DROP TABLE, PRAGMA writable_schema, a file put in its place",
        "connections that turn triggers off (SQLITE_DBCONFIG_ENABLE_TRIGGER)",
        "forgery: a user who may write the file can read and change the fence in it",
    ]
    .map(String::from)
    .to_vec()
}
