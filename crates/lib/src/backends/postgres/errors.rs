//! Errors as sentences that say what to do and contain no secret.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::config::Host;
use crate::stores::{Failure, FailureKind};

pub(super) fn unreachable(message: String) -> Failure {
    Failure::new(FailureKind::Unreachable, message)
}

/// The server refused the session or the statement, so it wrote nothing.
pub(super) fn denied(message: String) -> Failure {
    Failure::not_written(FailureKind::Denied, message)
}

pub(super) fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}

/// The server of a write is not the one that was read.
pub(super) fn another(host: &Host) -> Failure {
    let message = format!(
        "PostgreSQL at {} is not the server that was read before, or it has become the primary since then, so \
         nothing was written. Try again.",
        host.shown()
    );
    Failure::not_written(FailureKind::Unreachable, message)
}

/// The host name has no address.
pub(super) fn unknown_host(host: &Host, error: &io::Error) -> Failure {
    unreachable(format!(
        "The host {} of the PostgreSQL server has no address ({error}). Check the name in the URL.",
        host.name
    ))
}

/// The server cannot be reached.
pub(super) fn no_connection(host: &Host, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::NotFound if host.is_socket() => "the socket does not exist".into(),
        _ => error.to_string(),
    };
    let message =
        format!("PostgreSQL at {} cannot be reached ({why}). Check that it is running.", host.shown());
    match error.kind() {
        io::ErrorKind::PermissionDenied => denied(message),
        _ => unreachable(message),
    }
}

/// The server accepted the connection and refused the session.
pub(super) fn no_session(host: &Host, user: &str, dbname: &str, error: &Error) -> Failure {
    let at = host.shown();
    let Some(code) = error.code() else { return no_greeting(host, error) };
    let said = said(error);
    if *code == SqlState::INVALID_PASSWORD {
        denied(format!(
            "PostgreSQL at {at} refused the password of {user:?}. Check the URL, PGPASSWORD or ~/.pgpass."
        ))
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        denied(format!(
            "PostgreSQL at {at} refused the login of {user:?} ({said}). Check the user and pg_hba.conf."
        ))
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        denied(format!(
            "PostgreSQL at {at} does not allow {user:?} to use the database {dbname:?} ({said}). Allow it with GRANT CONNECT, or use another role."
        ))
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        unusable(format!("PostgreSQL at {at} has no database {dbname:?}. Create it, or correct the URL."))
    } else if *code == SqlState::PROTOCOL_VIOLATION {
        from_pooler(host, error)
    } else {
        unreachable(format!("PostgreSQL at {at} accepts no connection now ({said}). Try again later."))
    }
}

/// Errors before a session that the server did not send.
fn no_greeting(host: &Host, error: &Error) -> Failure {
    let at = host.shown();
    let why = reason(error);
    match error.to_string().as_str() {
        // The error's kind is private, so its text is compared.
        "error performing TLS handshake" if why.contains("does not support TLS") => unusable(format!(
            "PostgreSQL at {at} does not support TLS, and the URL asks for it. Turn on ssl there, or choose a \
             weaker sslmode."
        )),
        "error performing TLS handshake" => unusable(format!(
            "The TLS handshake with PostgreSQL at {at} failed: {why}. Check sslmode and sslrootcert in the \
             URL."
        )),
        "invalid configuration" => denied(format!(
            "PostgreSQL at {at} asks for a password, and none is given. Put it into ~/.pgpass or PGPASSWORD."
        )),
        "authentication error" => {
            denied(format!("PostgreSQL at {at} and this program could not agree on a login ({why})."))
        }
        "unexpected message from server" | "error parsing response from server" => unusable(format!(
            "What answers at {at} is not PostgreSQL. Check the host and the port in the URL."
        )),
        _ if not_postgres(error) => unusable(format!(
            "What answers at {at} is not PostgreSQL. Check the host and the port in the URL."
        )),
        _ => unreachable(format!("PostgreSQL at {at} ended the connection before a session began ({why}).")),
    }
}

/// The bytes that came are no message of the protocol.
fn not_postgres(error: &Error) -> bool {
    let source = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    source.is_some_and(|e| {
        matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
            // A text was read as the header of a message, with a length that never came.
            || e.to_string() == "bytes remaining on stream"
    })
}

/// PgBouncer uses one code for all its errors, so the text is compared.
fn from_pooler(host: &Host, error: &Error) -> Failure {
    let (at, said) = (host.shown(), said(error));
    let has = |words: &str| said.contains(words);
    if has("no such database") || has("unsupported startup parameter") {
        unusable(format!("The pooler at {at} cannot serve this ({said}). Correct the URL."))
    } else if has("authentication failed") || has("no such user") || has("not allowed") {
        denied(format!("The pooler at {at} refused the login ({said}). Check the user and the password."))
    } else {
        unreachable(format!("The pooler at {at} has no server connection now ({said}). Try again later."))
    }
}

/// A statement failed, or gave no answer.
pub(super) fn no_answer(host: &Host, user: &str, error: &Error) -> Failure {
    let at = host.shown();
    let Some(code) = error.code() else {
        return unreachable(format!("The connection to PostgreSQL at {at} broke ({}).", reason(error)));
    };
    let said = said(error);
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        denied(format!(
            "PostgreSQL at {at} does not allow this to {user:?} ({said}). As the owner, run the output of \
             `leasehold doctor --print-sql`, with its GRANT lines for {user:?}."
        ))
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        denied(format!(
            "PostgreSQL at {at} is read-only for {user:?}: it is a replica, or default_transaction_read_only is \
             on. Use the primary and a role that may write."
        ))
    } else if *code == SqlState::SYNTAX_ERROR {
        unusable(format!(
            "PostgreSQL at {at} did not understand a statement ({said}). Version 12 or newer is needed."
        ))
    } else if is_foreign(code) {
        unusable(format!(
            "The table leasehold.records of PostgreSQL at {at} differs from the one of `leasehold doctor --print-sql` \
             ({said}). Compare the two."
        ))
    } else {
        unreachable(format!("PostgreSQL at {at} answered with an error ({said})."))
    }
}

/// Whether the table is missing or has other columns.
fn is_foreign(code: &SqlState) -> bool {
    [
        &SqlState::UNDEFINED_TABLE,
        &SqlState::UNDEFINED_COLUMN,
        &SqlState::UNDEFINED_FUNCTION,
        &SqlState::DATATYPE_MISMATCH,
        &SqlState::WRONG_OBJECT_TYPE,
        &SqlState::INVALID_COLUMN_REFERENCE,
        &SqlState::NOT_NULL_VIOLATION,
    ]
    .contains(&code)
}

/// The server is a replica.
pub(super) fn replica(host: &Host) -> Failure {
    unusable(format!(
        "PostgreSQL at {} is a replica, which cannot be written. Name the primary in the \
         URL.",
        host.shown()
    ))
}

/// The server's message without its details, which may repeat stored data.
pub(crate) fn said(error: &Error) -> String {
    match error.as_db_error() {
        Some(e) => format!("{}, SQLSTATE {}", e.message(), e.code().code()),
        None => reason(error),
    }
}

/// The innermost reason.
fn reason(error: &Error) -> String {
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
