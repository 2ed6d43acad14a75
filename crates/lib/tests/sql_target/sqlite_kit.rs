//! A SQLite database of its own, and programs that write it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use leasehold::backends::sqlite::SqliteTarget;
use leasehold::core::fence::FenceMode;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::{Target, TargetError};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, WaitIdOptions, kill_process};

use crate::kit::bearer;

/// A database with one guarded table, `plain`.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(journal: &str) -> Self {
        let name = format!("leasehold-{}.db", crate::corner().replace('/', ""));
        let file = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        let setup = format!(
            "PRAGMA journal_mode = {journal}; CREATE TABLE plain (id INTEGER PRIMARY KEY, what TEXT); \
             INSERT INTO plain VALUES (1, 'old'), (2, 'old'); CREATE VIEW seen AS SELECT * FROM plain;"
        );
        file.db().execute_batch(&setup).unwrap();
        file
    }

    pub(crate) fn guarded(journal: &str, others: Others) -> Self {
        let file = Self::new(journal);
        file.target("plain").install(others, true).unwrap();
        file
    }

    pub(crate) fn db(&self) -> Connection {
        Connection::open(&self.0).unwrap()
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn target(&self, table: &str) -> SqliteTarget {
        let rest = format!("{}#{table}", self.path());
        SqliteTarget::open(&format!("sqlite:{rest}"), &rest).unwrap()
    }

    pub(crate) fn seal(&self, token: u64) -> Result<(), TargetError> {
        self.target("plain").seal(&bearer(token), FenceMode::Enforce).map(drop)
    }

    pub(crate) fn content(&self) -> String {
        self.db().query_row("SELECT what FROM plain WHERE id = 1", [], |row| row.get(0)).unwrap()
    }

    /// The whole schema and all rows, as the shell tells them.
    pub(crate) fn dump(&self) -> String {
        let out = Command::new("sqlite3").arg(&self.0).arg(".dump").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", self.path()));
        }
    }
}

/// What a program in Python has to say about itself: the line with `create_function`.
const PROGRAM: &str = "
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
db.create_function('leasehold_grant', 0, lambda: os.environ.get('LEASEHOLD_SQL_GRANT'))
for line in sys.stdin:
    try:
        db.execute(line).fetchall()
        print('done', flush=True)
    except sqlite3.Error as e:
        print('failed:', e, flush=True)
";

/// A program in Python, as a job of a run.
pub(crate) struct Python {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Python {
    pub(crate) fn start(file: &File, token: u64) -> Self {
        let mut command = Command::new("python3");
        command
            .args(["-c", PROGRAM, file.path()])
            .envs(file.target("plain").environment(&bearer(token), &|_| None));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    pub(crate) fn types(&mut self, line: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn does(&mut self, line: &str) {
        self.types(line);
        assert_eq!(self.answer(), "done", "{line}");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(self.pid()), stopped).unwrap();
    }

    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
