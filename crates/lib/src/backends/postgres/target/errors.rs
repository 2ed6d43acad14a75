//! PostgreSQL's errors, as sentences about a target.

use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;
use leasehold_core::store::{Failure, FailureKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};

use crate::backends::postgres::errors;
use crate::targets::TargetError;

/// The place of the fence, for messages.
pub(super) const ROW: &str = "its row in leasehold_guard.fences";

/// A failure of the connection.
pub(super) fn remote(target: &str, doing: &'static str, failure: Failure) -> TargetError {
    TargetError::Remote { target: target.into(), doing, failure }
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection is gone: no answer will come.
    Lost,
    /// Other transactions held a lock for too long.
    Waiting,
    /// The role lacks a permission.
    Denied,
    /// A replica, or a server in read-only mode.
    ReadOnly,
    /// Another error of the server.
    Answered,
}

pub(super) fn cause(error: &Error) -> Cause {
    let Some(code) = error.code() else { return Cause::Lost };
    if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::QUERY_CANCELED {
        Cause::Waiting
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        Cause::Denied
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        Cause::ReadOnly
    } else if code.code().starts_with("57P") || code.code().starts_with("08") {
        // The server sends these when it ends, also in the middle of a commit.
        Cause::Lost
    } else {
        Cause::Answered
    }
}

/// No answer in time.
pub(super) fn silence(limit: Duration) -> String {
    format!("PostgreSQL did not answer within {}", HumanDuration(limit))
}

/// A statement failed, or gave no answer.
pub(super) fn said(target: &str, doing: &'static str, error: &Error) -> TargetError {
    let said = errors::said(error);
    let (kind, message) = match cause(error) {
        Cause::Lost => {
            let why = format!("the connection to PostgreSQL broke ({said})");
            return TargetError::Lost { target: target.into(), doing, why };
        }
        Cause::Denied => (
            FailureKind::Denied,
            format!(
                "this role may not ({said}). As the owner, run: GRANT SELECT, UPDATE ON leasehold_guard.fences \
                 TO ROLE; GRANT SELECT, DELETE ON leasehold_guard.let_in TO ROLE"
            ),
        ),
        Cause::ReadOnly => {
            (FailureKind::Denied, format!("the server is read-only ({said}). Name the primary"))
        }
        Cause::Waiting => (
            FailureKind::Unreachable,
            format!("other transactions kept it locked ({said}). Try again when they have ended"),
        ),
        Cause::Answered => (FailureKind::Unusable, format!("PostgreSQL answered with an error ({said})")),
    };
    TargetError::Remote { target: target.into(), doing, failure: Failure::new(kind, message) }
}

/// The rows have pid, user, state and seconds; a prepared transaction has no pid.
pub(super) fn kept_waiting(target: &str, doing: &'static str, limit: Duration, rows: &[Row]) -> TargetError {
    let pids: Vec<Option<i32>> = rows.iter().map(|row| row.try_get(0).unwrap_or_default()).collect();
    let who: Vec<String> = rows.iter().take(5).map(who).collect();
    let message = match who.is_empty() {
        true => format!("transactions that write it did not end within {}. Try again", HumanDuration(limit)),
        false => {
            let end = |pid: &i32| format!("SELECT pg_terminate_backend({pid})");
            let mut ends: Vec<String> = pids.iter().flatten().take(5).map(end).collect();
            if pids.contains(&None) {
                ends.push("ROLLBACK PREPARED with a gid from pg_prepared_xacts".into());
            }
            let more = if rows.len() > 5 { format!(" and {} more", rows.len() - 5) } else { String::new() };
            format!(
                "a transaction that wrote it is still open after {}: {}{more}. Try again; if it hangs, end it: {}",
                HumanDuration(limit),
                who.join(", "),
                ends.join("; ")
            )
        }
    };
    remote(target, doing, Failure::new(FailureKind::Unreachable, message))
}

fn who(row: &Row) -> String {
    let Ok(Some(pid)) = row.try_get::<_, Option<i32>>(0) else { return "a prepared transaction".into() };
    let text = |at| row.try_get::<_, Option<String>>(at).ok().flatten();
    let mut about: Vec<String> = Vec::new();
    about.extend(text(1).map(|user| format!("user {user}")));
    about.extend(text(2));
    let since = row.try_get::<_, Option<i64>>(3).ok().flatten().and_then(|s| u64::try_from(s).ok());
    about.extend(since.map(|s| format!("since {}", HumanDuration(Duration::from_secs(s)))));
    if about.is_empty() {
        format!("server process {pid}")
    } else {
        format!("server process {pid} ({})", about.join(", "))
    }
}

fn unfit(target: &str, why: String, fix: String) -> TargetError {
    TargetError::Unfit { target: target.into(), why, fix }
}

pub(super) fn no_table(target: &str, table: &str) -> TargetError {
    unfit(
        target,
        format!("does not exist: this database has no table {table}, or this role may not see it"),
        "Write it after the # as in SQL, with its schema: #SCHEMA.TABLE".into(),
    )
}

pub(super) fn no_guard(target: &str) -> TargetError {
    unfit(
        target,
        "has no guard, so nothing would be fenced there".into(),
        format!(
            "Install one, once, as the owner of the table: leasehold guard install {target} --others refuse"
        ),
    )
}

pub(super) fn weak_guard(target: &str) -> TargetError {
    unfit(
        target,
        "has a guard whose trigger was disabled, changed or dropped, so nothing would be fenced there".into(),
        format!(
            "See: leasehold guard show {target}. Install it again: leasehold guard install {target} --others refuse"
        ),
    )
}

pub(super) fn not_a_table(target: &str, name: &str, kind: &str) -> TargetError {
    let (what, fix) = match kind {
        "v" => ("a view", "Name the tables it reads from, each as a target"),
        "m" => ("a materialized view, which only a refresh writes", "Name the tables it reads from"),
        "f" => ("a foreign table, which can be written on its own server", "Guard it on that server"),
        "S" => ("a sequence", "Name the table that uses it"),
        _ => ("not a table", "Name a table"),
    };
    unfit(target, format!("cannot be guarded: {name} is {what}"), fix.into())
}

pub(super) fn has_parent(target: &str, name: &str, parent: &str) -> TargetError {
    unfit(
        target,
        format!(
            "cannot be guarded: {name} can also be written through {parent}, whose statements would pass"
        ),
        format!("Name {parent} instead: its guard covers its partitions and children"),
    )
}

/// It got a parent after its guard was installed.
pub(super) fn way_round(target: &str, name: &str, parent: &str) -> TargetError {
    unfit(
        target,
        format!(
            "has a guard that no longer covers it: {name} can also be written through {parent}, whose \
             statements pass"
        ),
        format!(
            "Detach it from {parent} (ALTER TABLE, NO INHERIT or DETACH PARTITION); or remove this guard and \
             install one on {parent}, which covers its partitions and children"
        ),
    )
}

pub(super) fn foreign_trigger(target: &str, name: &str) -> TargetError {
    unfit(
        target,
        format!(
            "cannot be guarded: {name} has a trigger named leasehold_guard that belongs to another guard"
        ),
        "Find the table of that guard, and see: leasehold guard show".into(),
    )
}

/// The permissions that a role lacks.
pub(super) fn may_not(target: &str, doing: &'static str, role: &str, missing: &[String]) -> TargetError {
    let message = format!(
        "the role {role} {}. Use a role that may; --print-sql shows the statements",
        missing.join(" and ")
    );
    remote(target, doing, Failure::new(FailureKind::Denied, message))
}
