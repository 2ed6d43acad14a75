//! SQLite's errors, as sentences about a target; and the process that has the database locked.

use std::path::Path;

use leasehold_core::store::{Failure, FailureKind};
use rusqlite::ErrorCode;

use crate::targets::{LOOKS, TargetError};

/// A statement failed.
pub(super) fn said(target: &str, doing: &'static str, error: &rusqlite::Error) -> TargetError {
    // A value of the fence's row that we have refused to read.
    if let rusqlite::Error::FromSqlConversionFailure(_, _, why) = error {
        return bad_fence(target, why.to_string());
    }
    let code = error.sqlite_error().map(|e| e.code);
    let (kind, why) = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            FailureKind::Unreachable,
            "another process writes it, or wrote it since this transaction began. Roll back and try again",
        ),
        Some(ErrorCode::DiskFull) => (FailureKind::Unreachable, "the disk is full. Make room and try again"),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => (
            FailureKind::Denied,
            "this user may not write the file, its directory, or the -wal and -shm beside it",
        ),
        Some(ErrorCode::NotADatabase) => (FailureKind::Unusable, "it is not a database"),
        Some(ErrorCode::DatabaseCorrupt) => (FailureKind::Unusable, "the database is damaged"),
        _ => (FailureKind::Unusable, "SQLite returned an error"),
    };
    let message = format!("{why} ({error})");
    TargetError::Remote { target: target.into(), doing, failure: Failure::new(kind, message) }
}

/// The table of fences does not exist, or another error.
pub(super) fn no_guard_or(target: &str, doing: &'static str, error: &rusqlite::Error) -> TargetError {
    if error.to_string().contains("no such table: leasehold_fences") {
        return no_guard(target);
    }
    said(target, doing, error)
}

fn unfit(target: &str, why: String, fix: String) -> TargetError {
    TargetError::Unfit { target: target.into(), why, fix }
}

pub(super) fn no_guard(target: &str) -> TargetError {
    unfit(
        target,
        "has no guard, so nothing would be fenced there".into(),
        format!("Install one, once: leasehold guard install {target} --others refuse"),
    )
}

pub(super) fn weak_guard(target: &str) -> TargetError {
    unfit(
        target,
        "has a guard with a trigger that was changed or dropped, so not everything would be fenced there"
            .into(),
        format!(
            "See: leasehold guard show {target}. Install it again: leasehold guard install {target} --others refuse"
        ),
    )
}

pub(super) fn no_file(target: &str, path: &Path) -> TargetError {
    unfit(target, format!("does not exist: there is no file {}", path.display()), "Check the path".into())
}

pub(super) fn no_table(target: &str, table: &str) -> TargetError {
    unfit(
        target,
        format!("does not exist: this database has no table {table}"),
        "Write it after the #: sqlite:PATH#TABLE".into(),
    )
}

pub(super) fn not_a_table(target: &str, table: &str, what: &str) -> TargetError {
    unfit(target, format!("cannot be guarded: {table} is {what}"), "Name a table".into())
}

pub(super) fn bad_fence(target: &str, why: String) -> TargetError {
    TargetError::BadFence { target: target.into(), fence: "its row in leasehold_fences".into(), why }
}

/// The process that writes the database now. The documentation of SQLite's file format says where its locks are, and
/// /proc/locks says who has them.
pub(super) fn writer(path: &Path) -> Option<u32> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        rustix::fs::stat(Path::new(&name)).ok().map(|stat| stat.st_ino)
    };
    // The reserved lock in the database itself, and the write lock in the index of the log.
    let places = [(beside(""), "1073741825"), (beside("-shm"), "120")];
    (0..LOOKS).find_map(|_| listed(&std::fs::read_to_string("/proc/locks").ok()?, &places))
}

/// The process that has one of these locks, in the list of all.
fn listed(locks: &str, places: &[(Option<u64>, &str)]) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, "WRITE", pid, file, start, ..] = words.as_slice() else { return None };
        let inode: u64 = file.rsplit(':').next()?.parse().ok()?;
        let here = places.iter().any(|(found, at)| *found == Some(inode) && at == start);
        if here { pid.parse().ok() } else { None }
    })
}
