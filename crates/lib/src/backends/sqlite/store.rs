//! One SQLite file for all processes of this machine.
//!
//! A new database is built under another name, synced, and linked into place. So no process sees a part of a
//! database, and opening one never changes it. A file that is not ours is refused and never replaced.
//!
//! A `cas` that succeeds is one fsync of the write-ahead log. A `cas` that fails, and a read, write and sync
//! nothing. (A SQLite that was not built by this workspace adds one fsync of the directory to the first write
//! of each connection; see `.cargo/config.toml`.)

mod page;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::ids::WriteId;
use leasehold_core::time::BootTime;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::backends::Holders;
use crate::backends::local::{Domain, OpenedPath, Stamp, examined, is_local, trouble, unusable};
use crate::stores::{
    BatchWrite, Cas, Clock, Examine, Failure, FailureKind, Listed, Remark, RemarkLevel, Store, StoreFacts,
    Stored, Version,
};

/// How long a call waits for another process's write.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(3);

/// "LeaH": marks the file as ours in its header.
pub(super) const APPLICATION_ID: i64 = 0x4c65_6148;
/// The layout of the tables.
const LAYOUT: i64 = 1;

// The whole schema; it never changes in an existing database. A table with row ids keeps a lease in one page, so
// that a write is one page of the log. WITHOUT ROWID it would take three more.
const CREATE: &str = "
PRAGMA page_size = 1024;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
BEGIN;
PRAGMA application_id = 0x4c656148;
PRAGMA user_version = 1;
CREATE TABLE records(
  key TEXT PRIMARY KEY, version TEXT NOT NULL, body BLOB NOT NULL, stamp TEXT NOT NULL
);
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
";

/// The first character of stamps that name no machine.
const NAMELESS: char = '-';

/// A store in one SQLite database on a local file system.
pub struct SqliteStore {
    db: Connection,
    path: PathBuf,
    /// Device and inode, to notice that the file was removed or replaced: SQLite would continue with the old
    /// one while other processes use the new one.
    file: (u64, u64),
    instance: String,
    domain: Domain,
    /// The last record that was read, if its stamp names a machine. A stamp that replaces it may do so too, without
    /// another look at the database.
    named: Option<Version>,
}

impl SqliteStore {
    /// Opens the database at `path`; creates it if there is no file.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let place = OpenedPath::find(path)?;
        let shown = place.path();
        let local = is_local(&place.parent)
            .map_err(|e| trouble(e, &format!("The file system of {} is unknown", shown.display())))?;
        if !local {
            return Err(unusable(format!(
                "{} is not on a local file system, so SQLite's locks are not reliable there. Put the file on a local disk, or use a store that machines can share.",
                shown.display()
            )));
        }
        let stat = match found(&shown)? {
            Some(stat) => stat,
            None => create(&place)?,
        };
        check_file(&shown, &stat)?;
        let log = size_of_log(&shown);
        let db = connect(&shown)?;
        let mut store = Self {
            db,
            path: shown,
            file: identity(&stat),
            instance: String::new(),
            domain: Domain::here(),
            named: None,
        };
        store.configure()?;
        store.instance = store.identify()?;
        // SQLite has created the log by now. Its name must be on disk before the first write. If the log is not empty,
        // the process that wrote to it has synced the name.
        if log == 0 {
            rustix::fs::fsync(&place.parent)
                .map_err(|e| trouble(e, &format!("The log of {} could not be kept", store.path.display())))?;
        }
        Ok(store)
    }

    /// The same store, for holders that may be elsewhere.
    pub(super) fn for_holders(mut self, holders: Holders) -> Self {
        if holders == Holders::Elsewhere {
            self.domain = self.domain.nameless();
        }
        self
    }

    fn configure(&self) -> Result<(), Failure> {
        let configured = self
            .db
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .and_then(|_| self.db.busy_timeout(BUSY_TIMEOUT))
            // One transaction for all of these saves locks.
            .and_then(|()| {
                self.db.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 64;")
            });
        configured.map_err(|e| self.explain(&e, "could not be opened"))?;
        if self.db.is_readonly("main").unwrap_or(true) {
            return Err(Failure::new(
                FailureKind::Denied,
                format!(
                    "The database {} is read-only, so no lease can be taken in it. Give this user write permission for the file and its directory.",
                    self.path.display()
                ),
            ));
        }
        Ok(())
    }

    /// Checks that the database is ours and has a known layout, and returns its identity.
    fn identify(&self) -> Result<String, Failure> {
        const ALL: &str = "SELECT a.application_id, u.user_version, m.value \
             FROM pragma_application_id a, pragma_user_version u, meta m WHERE m.name = 'instance'";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        if let Ok((APPLICATION_ID, LAYOUT, instance)) = self.db.query_row(ALL, [], read) {
            return Ok(instance);
        }
        // Something is wrong. Check one thing after the other, for the right message.
        let number = |sql: &str| self.db.query_row(sql, [], |row| row.get::<_, i64>(0));
        let explain = |e| self.explain(&e, "could not be read");
        let application = number("PRAGMA application_id").map_err(explain)?;
        let layout = number("PRAGMA user_version").map_err(explain)?;
        let path = self.path.display();
        if application != APPLICATION_ID {
            return Err(unusable(format!(
                "{path} is a database of another program. Nothing was changed. Name another file for the store."
            )));
        }
        if layout != LAYOUT {
            return Err(unusable(format!(
                "{path} has layout {layout}, and this version of Leasehold knows only {LAYOUT}. Nothing was changed. Use the version that wrote it, or a newer one."
            )));
        }
        let instance: (i64, i64, String) = self.db.query_row(ALL, [], read).map_err(explain)?;
        Ok(instance.2)
    }

    /// Fails if the path no longer leads to the file that is open.
    fn still_there(&self) -> Result<(), Failure> {
        let now = rustix::fs::lstat(&self.path);
        if now.as_ref().is_ok_and(|stat| identity(stat) == self.file) {
            return Ok(());
        }
        Err(unusable(format!(
            "The database {} was removed or replaced while it was in use. Start again, and do not move a store that is in use.",
            self.path.display()
        )))
    }

    fn explain(&self, error: &rusqlite::Error, what: &str) -> Failure {
        explain(&self.path, error, what)
    }

    fn stored(&self, row: &Row<'_>, first: usize) -> rusqlite::Result<Stored> {
        let stamp: String = row.get(first + 2)?;
        Ok(Stored {
            version: Version(row.get(first)?),
            body: row.get(first + 1)?,
            age: Stamp::parse(&stamp).and_then(|stamp| self.domain.age(&stamp)),
        })
    }

    /// The outcome of a statement that changes one row or none.
    fn outcome(&self, changed: rusqlite::Result<usize>, version: Version, at: BootTime) -> Cas {
        let changed = changed
            .map_err(|e| self.explain(&e, "could not be written"))
            .and_then(|rows| self.still_there().map(|()| rows));
        match changed {
            Ok(0) => Cas::Conflict,
            Ok(_) => Cas::Written { version, store_time: Some(at.0) },
            Err(failure) => Cas::Unknown(failure),
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The file at `path`, without following a link.
fn found(path: &Path) -> Result<Option<Stat>, Failure> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(trouble(e, &format!("The database {} cannot be found", path.display()))),
    }
}

fn check_file(path: &Path, stat: &Stat) -> Result<(), Failure> {
    let path = path.display();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_size == 0 => Err(unusable(format!(
            "{path} is empty, which a database never is: it was damaged, or another program made it. Restore it from a backup; or remove it if no lease was ever kept in it."
        ))),
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(trouble(Errno::LOOP, &format!("{path} was not opened"))),
        _ => Err(unusable(format!("{path} is not a file, so it cannot be the database. Name a file in it."))),
    }
}

fn connect(path: &Path) -> Result<Connection, Failure> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    Connection::open_with_flags(path, flags).map_err(|e| explain(path, &e, "could not be opened"))
}

/// An error of SQLite, as a failure of the store.
fn explain(path: &Path, error: &rusqlite::Error, what: &str) -> Failure {
    let code = error.sqlite_error().map(|e| e.code);
    let (kind, why) = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (FailureKind::Unreachable, "another process kept it busy for too long. Try again")
        }
        Some(ErrorCode::DiskFull) => {
            (FailureKind::Unreachable, "the disk is full, and nothing was written. Make room and try again")
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory) => (
            FailureKind::Unreachable,
            "the file system reported an error. Check the disk and its free space, then try again",
        ),
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            FailureKind::Denied,
            "this user may not write it. Change the permissions of the file and its directory",
        ),
        Some(ErrorCode::CannotOpen) => (
            FailureKind::Denied,
            "the file, or the -wal and -shm files beside it, cannot be opened by this user. Check the permissions of all three and of the directory",
        ),
        Some(ErrorCode::NotADatabase) => (
            FailureKind::Unusable,
            "it is not a database, and was left as it is. Name another file, or restore a backup",
        ),
        _ => (
            FailureKind::Unusable,
            "it is damaged, or this version did not write it. Nothing was changed. Restore a backup, or move the file away and start a new store",
        ),
    };
    let message = format!("The database {} {what} ({error}): {why}.", path.display());
    match (code, kind) {
        (Some(ErrorCode::DiskFull), _) | (_, FailureKind::Denied) => Failure::not_written(kind, message),
        _ => Failure::new(kind, message),
    }
}

/// Builds a database under another name and links it into place, unless another process was first.
fn create(place: &OpenedPath) -> Result<Stat, Failure> {
    let path = place.path();
    refuse_orphaned_log(&path)?;
    let temp = format!(".{}.new-{:032x}", place.name, crate::random::seed());
    let built = build(place, &temp);
    let linked = built.and_then(|()| {
        let parent = &place.parent;
        let what = || format!("The database {} could not be created", path.display());
        match rustix::fs::linkat(parent, &temp, parent, &place.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(Errno::PERM) => Err(trouble(Errno::NOSYS, &what())),
            Err(e) => Err(trouble(e, &what())),
        }
    });
    for suffix in ["", "-journal", "-wal", "-shm"] {
        // Errors are ignored: no process opens a file that is left.
        let _ = rustix::fs::unlinkat(&place.parent, format!("{temp}{suffix}"), AtFlags::empty());
    }
    linked?;
    rustix::fs::fsync(&place.parent)
        .map_err(|e| trouble(e, &format!("The new database {} could not be kept", path.display())))?;
    found(&path)?.ok_or_else(|| {
        unusable(format!(
            "The database {} vanished right after it was created. Find out what removes it, then try again.",
            path.display()
        ))
    })
}

fn build(place: &OpenedPath, temp: &str) -> Result<(), Failure> {
    let path = place.parent_path.join(temp);
    let what = || format!("A new database cannot be written in {}", place.parent_path.display());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(&place.parent, temp, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| trouble(e, &what()))?;
    // Closed before SQLite opens it, because closing it later would release SQLite's locks.
    drop(file);
    let instance = format!("{:032x}", crate::random::seed());
    let db = connect(&path)?;
    db.execute_batch(CREATE)
        .and_then(|()| db.execute("INSERT INTO meta VALUES ('instance', ?1)", [instance]))
        .and_then(|_| db.execute_batch("COMMIT"))
        .and_then(|()| db.close().map_err(|(_, e)| e))
        .map_err(|e| explain(&path, &e, "could not be created"))?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let synced = rustix::fs::openat(&place.parent, temp, flags, Mode::empty())
        .and_then(|file| rustix::fs::fsync(&file));
    synced.map_err(|e| trouble(e, &what()))?;
    match rustix::fs::lstat(path.with_file_name(format!("{temp}-wal"))) {
        Err(Errno::NOENT) => Ok(()),
        _ => Err(trouble(Errno::IO, &what())),
    }
}

/// The size of the write-ahead log; 0 if there is none.
fn size_of_log(path: &Path) -> i64 {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    rustix::fs::lstat(Path::new(&log)).map_or(0, |stat| stat.st_size)
}

/// Refuses a write-ahead log without its database, which SQLite would replay into a new database of that name.
fn refuse_orphaned_log(path: &Path) -> Result<(), Failure> {
    let left = size_of_log(path) > 0;
    // Another process may have created both in between.
    if !left || found(path)?.is_some() {
        return Ok(());
    }
    Err(unusable(format!(
        "The database {0} is gone but its log {0}-wal is still there, so leases may have been lost. Put the database back; or, if it was removed on purpose, remove {0}-wal and {0}-shm as well.",
        path.display()
    )))
}

#[async_trait(?Send)]
impl Store for SqliteStore {
    fn facts(&self) -> StoreFacts {
        let mut locks = self.path.as_os_str().to_owned();
        locks.push("-locks");
        StoreFacts {
            url: format!("sqlite:{}", self.path.display()),
            instance: self.instance.clone(),
            clock: Clock::BootTime,
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: true,
            lock_dir: Some(locks.into()),
            spacing: Duration::ZERO,
            pushes: false,
            durability: "Every acknowledged write is on disk and survives a crash or a power cut, but not the \
                         loss of the disk.",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        let sql = "SELECT version, body, stamp FROM records WHERE key = ?1";
        let row = self.db.query_row(sql, [key], |row| {
            let nameless = row.get_ref(2)?.as_str().is_ok_and(|stamp| stamp.starts_with(NAMELESS));
            Ok((self.stored(row, 0)?, nameless))
        });
        let stored = match row {
            Ok((stored, nameless)) => {
                self.named = (!nameless).then(|| stored.version.clone());
                Some(stored)
            }
            Err(rusqlite::Error::QueryReturnedNoRows) => None,
            Err(e) => return Err(self.explain(&e, "could not be read")),
        };
        self.still_there()?;
        Ok(stored)
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let version = write.to_string();
        let stamp = self.domain.stamp();
        let text = stamp.to_string();
        let known = expected.is_some() && expected == self.named.as_ref();
        let changed = match expected {
            None => self.db.execute(
                "INSERT INTO records VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
                params![key, version, body, text],
            ),
            Some(expected) if known => self.db.execute(
                "UPDATE records SET version = ?2, body = ?3, stamp = ?4 WHERE key = ?1 AND version = ?5",
                params![key, version, body, text, expected.0],
            ),
            Some(expected) => self.db.execute(
                // As `Stamp::after` says.
                "UPDATE records SET version = ?2, body = ?3, stamp = iif(stamp LIKE '-%', ?6, ?4) \
                 WHERE key = ?1 AND version = ?5",
                params![key, version, body, text, expected.0, stamp.clone().after(None).to_string()],
            ),
        };
        let named = (known || expected.is_none()) && !text.starts_with(NAMELESS);
        self.named = named.then(|| Version(version.clone()));
        self.outcome(changed, Version(version), stamp.boot_time)
    }

    async fn cas_many(&mut self, writes: &[BatchWrite]) -> Vec<Cas> {
        // In one transaction, with one sync for all; if it cannot begin, each write by itself.
        let whole = writes.len() > 1 && self.db.execute_batch("BEGIN IMMEDIATE").is_ok();
        let mut answers = Vec::with_capacity(writes.len());
        for w in writes {
            answers.push(self.cas(&w.key, w.expected.as_ref(), w.write, &w.body).await);
        }
        let end = match whole {
            true => self.db.execute_batch("COMMIT").map_err(|e| self.explain(&e, "could not be written")),
            false => Ok(()),
        };
        if let Err(failure) = end.and_then(|()| self.still_there()) {
            // Fails if there is no transaction any more.
            let _ = self.db.execute_batch("ROLLBACK");
            answers.fill_with(|| Cas::Unknown(failure.clone()));
        }
        answers
    }

    async fn cas_with(&mut self, first: &BatchWrite, with: &BatchWrite) -> Option<Cas> {
        self.db.execute_batch("BEGIN IMMEDIATE").ok()?;
        let answer = self.cas(&first.key, first.expected.as_ref(), first.write, &first.body).await;
        if !matches!(answer, Cas::Written { .. }) {
            let _ = self.db.execute_batch("ROLLBACK");
            return Some(answer);
        }
        let second = self.cas(&with.key, None, with.write, &with.body).await;
        // The record of a key that is read or written next is another one.
        self.named = None;
        if let Cas::Unknown(_) = second {
            // Nothing is written yet. The first write must not fail because of the second.
            let _ = self.db.execute_batch("ROLLBACK");
            return None;
        }
        let end = self.db.execute_batch("COMMIT").map_err(|e| self.explain(&e, "could not be written"));
        if let Err(failure) = end.and_then(|()| self.still_there()) {
            // Fails if there is no transaction any more.
            let _ = self.db.execute_batch("ROLLBACK");
            return Some(Cas::Unknown(failure));
        }
        Some(answer)
    }

    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        let mut found = Vec::new();
        let listed = page::each(&self.db, prefix, after, limit, |key, row| {
            found.push(Listed { key, stored: Some(self.stored(row, 1)?) });
            Ok(())
        });
        listed.map_err(|e| self.explain(&e, "could not be listed"))?;
        self.still_there()?;
        Ok(found)
    }

    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        let now = crate::clock::boot_time();
        let sql = "DELETE FROM records WHERE key = ?1 AND version = ?2";
        let changed = self.db.execute(sql, [key, version.0.as_str()]);
        self.outcome(changed, version.clone(), now)
    }
}

#[async_trait(?Send)]
impl Examine for SqliteStore {
    async fn examine(&mut self) -> Result<Vec<Remark>, Failure> {
        let ask = |e: rusqlite::Error| self.explain(&e, "could not be asked about its settings");
        let text = |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, String>(0));
        let number = |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let journal = text("journal_mode").map_err(ask)?;
        let synchronous = number("synchronous").map_err(ask)?;
        let durability = match (journal.as_str(), synchronous) {
            ("wal", 2 | 3) => Remark {
                about: "durability",
                verdict: RemarkLevel::Good,
                text: "write-ahead log, synced at every write: survives a crash or a power cut".into(),
            },
            (mode, level) => Remark {
                about: "durability",
                verdict: RemarkLevel::Unsafe,
                text: format!(
                    "journal_mode {mode} and synchronous {level}: an acknowledged write can be lost"
                ),
            },
        };
        let found: String =
            self.db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(ask)?;
        let damage = (found != "ok").then(|| Remark {
            about: "integrity",
            verdict: RemarkLevel::Unsafe,
            text: format!(
                "the file is damaged ({}): records may be lost or wrong",
                found.replace('\n', "; ")
            ),
        });
        let place = OpenedPath::find(&self.path.to_string_lossy())?;
        Ok(damage.into_iter().chain([durability, examined(&place.parent)]).collect())
    }
}
