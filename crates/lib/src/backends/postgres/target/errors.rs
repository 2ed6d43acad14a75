//! What PostgreSQL says no with, as sentences about a target.

use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;
use leasehold_core::store::{Failure, FailureKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};

use crate::backends::postgres::errors;
use crate::targets::TargetError;

/// Where the fence is.
pub(super) const ROW: &str = "its row in leasehold_guard.fences";

/// A failure of the connection.
pub(super) fn remote(target: &str, doing: &'static str, failure: Failure) -> TargetError {
    TargetError::Remote { target: target.into(), doing, failure }
}

/// Of what kind an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection is gone: no answer will come.
    Lost,
    /// Others had it locked for too long.
    Waiting,
    /// This role may not.
    Denied,
    /// A replica, or a server that was told so.
    ReadOnly,
    /// The server said no to what was asked.
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
        // Said by the server as it ended, also in the middle of a commit.
        Cause::Lost
    } else {
        Cause::Answered
    }
}

/// No answer in time.
pub(super) fn silence(limit: Duration) -> String {
    format!("PostgreSQL did not answer within {}", HumanDuration(limit))
}

/// A statement failed, or its answer did not come.
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
                 TO it; GRANT SELECT, DELETE ON leasehold_guard.let_in TO it"
            ),
        ),
        Cause::ReadOnly => {
            (FailureKind::Denied, format!("the server only lets itself be read ({said}). Name the primary"))
        }
        Cause::Waiting => (
            FailureKind::Unreachable,
            format!("other transactions kept it locked ({said}). Try again when they have ended"),
        ),
        Cause::Answered => (FailureKind::Unusable, format!("PostgreSQL answered with an error ({said})")),
    };
    TargetError::Remote { target: target.into(), doing, failure: Failure::new(kind, message) }
}

/// Rows of pid, user, state and seconds; a prepared transaction has no pid.
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
        format!("is not there: this database has no table {table}, or this role may not see it"),
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
        "has a guard whose trigger was disabled, weakened or dropped, so nothing would be fenced there"
            .into(),
        format!(
            "See: leasehold guard show {target}. Put it up again: leasehold guard install {target} --others refuse"
        ),
    )
}

pub(super) fn not_a_table(target: &str, name: &str, kind: &str) -> TargetError {
    let (what, fix) = match kind {
        "v" => ("a view", "Name the tables it reads from, each as a target"),
        "m" => ("a materialized view, which only a refresh writes", "Name the tables it reads from"),
        "f" => ("a foreign table, which is written behind its back", "Guard it on the server it lives on"),
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
        format!("Name {parent} instead: its guard covers all that is stored under it"),
    )
}

/// It had none when its guard was put up.
pub(super) fn way_round(target: &str, name: &str, parent: &str) -> TargetError {
    unfit(
        target,
        format!(
            "has a guard that no longer covers it: {name} can also be written through {parent}, whose \
             statements pass"
        ),
        format!(
            "Take it out of {parent} again (ALTER TABLE, NO INHERIT or DETACH PARTITION); or take this guard \
             down and put one on {parent}, which covers all that is stored under it"
        ),
    )
}

pub(super) fn foreign_trigger(target: &str, name: &str) -> TargetError {
    unfit(
        target,
        format!(
            "cannot be guarded: {name} has a trigger named leasehold_guard that belongs to another guard"
        ),
        "See who put it there; leasehold guard show tells about the table it is part of".into(),
    )
}

/// What is missing, for a role that may not.
pub(super) fn may_not(target: &str, doing: &'static str, role: &str, missing: &[String]) -> TargetError {
    let message = format!(
        "the role {role} {}. Do it as a role that may; --print-sql shows what would be run",
        missing.join(" and ")
    );
    remote(target, doing, Failure::new(FailureKind::Denied, message))
}
