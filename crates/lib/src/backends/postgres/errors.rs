//! What went wrong, as a sentence that says what to do next and holds no secret.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::config::Host;
use crate::stores::{Failure, FailureKind};

pub(super) fn unreachable(message: String) -> Failure {
    Failure::new(FailureKind::Unreachable, message)
}

pub(super) fn denied(message: String) -> Failure {
    Failure::new(FailureKind::Denied, message)
}

pub(super) fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}

/// Another instance answered a write than the one that was read.
pub(super) fn another(host: &Host) -> Failure {
    unreachable(format!(
        "PostgreSQL at {} is another server than the one that was read, or has become the primary since, so nothing \
         was written. Try again.",
        host.shown()
    ))
}

/// No address for the name.
pub(super) fn unknown_host(host: &Host, error: &io::Error) -> Failure {
    unreachable(format!(
        "The host {} of the PostgreSQL server has no address ({error}). Check the name in the URL.",
        host.name
    ))
}

/// No connection to the address.
pub(super) fn no_connection(host: &Host, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::NotFound if host.is_socket() => "there is no such socket".into(),
        _ => error.to_string(),
    };
    let message =
        format!("PostgreSQL at {} cannot be reached ({why}). Check that it is running.", host.shown());
    match error.kind() {
        io::ErrorKind::PermissionDenied => denied(message),
        _ => unreachable(message),
    }
}

/// A connection was made and no session came of it.
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
            "PostgreSQL at {at} does not let {user:?} in ({said}). Check the user and pg_hba.conf."
        ))
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        denied(format!("PostgreSQL at {at} does not let {user:?} into the database {dbname:?} ({said})."))
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        unusable(format!("PostgreSQL at {at} has no database {dbname:?}. Create it, or correct the URL."))
    } else if *code == SqlState::PROTOCOL_VIOLATION {
        from_pooler(host, error)
    } else {
        unreachable(format!("PostgreSQL at {at} takes no connection now ({said})."))
    }
}

/// Errors before a session that are not the server's own words.
fn no_greeting(host: &Host, error: &Error) -> Failure {
    let at = host.shown();
    let why = reason(error);
    match error.to_string().as_str() {
        // The only words this error has; its kind is private.
        "error performing TLS handshake" if why.contains("does not support TLS") => unusable(format!(
            "PostgreSQL at {at} offers no TLS, and the URL asks for it. Turn on ssl there, or choose a \
             weaker sslmode."
        )),
        "error performing TLS handshake" => unusable(format!(
            "The TLS handshake with PostgreSQL at {at} failed: {why}. Check sslmode and sslrootcert in the \
             URL."
        )),
        "invalid configuration" => denied(format!(
            "PostgreSQL at {at} wants a password and none is given. Put it into ~/.pgpass or PGPASSWORD."
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

/// The bytes that came were no message of the protocol.
fn not_postgres(error: &Error) -> bool {
    let source = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    source.is_some_and(|e| {
        matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
            // Text taken for the head of a message promises a length that never comes.
            || e.to_string() == "bytes remaining on stream"
    })
}

/// PgBouncer has one code for everything of its own; only its words differ.
fn from_pooler(host: &Host, error: &Error) -> Failure {
    let (at, said) = (host.shown(), said(error));
    let has = |words: &str| said.contains(words);
    if has("no such database") || has("unsupported startup parameter") {
        unusable(format!("The pooler at {at} cannot serve this ({said}). Correct the URL."))
    } else if has("authentication failed") || has("no such user") || has("not allowed") {
        denied(format!("The pooler at {at} refused the login ({said}). Check the user and the password."))
    } else {
        unreachable(format!("The pooler at {at} has no server to offer now ({said})."))
    }
}

/// A statement failed, or its answer did not come.
pub(super) fn no_answer(host: &Host, user: &str, error: &Error) -> Failure {
    let at = host.shown();
    let Some(code) = error.code() else {
        return unreachable(format!("The connection to PostgreSQL at {at} broke ({}).", reason(error)));
    };
    let said = said(error);
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        denied(format!(
            "PostgreSQL at {at} does not allow this to {user:?} ({said}). As the owner, run what `leasehold \
             doctor --print-sql` prints, with its GRANT lines for {user:?}."
        ))
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        denied(format!(
            "PostgreSQL at {at} lets {user:?} only read: it is a replica, or default_transaction_read_only is \
             on. Use the primary and a role that may write."
        ))
    } else if *code == SqlState::SYNTAX_ERROR {
        unusable(format!(
            "PostgreSQL at {at} is too old or something else ({said}): version 12 or newer is needed."
        ))
    } else if is_foreign(code) {
        unusable(format!(
            "The table leasehold.records of PostgreSQL at {at} is not as this program makes it ({said}). See \
             `leasehold doctor --print-sql`."
        ))
    } else {
        unreachable(format!("PostgreSQL at {at} answered with an error ({said})."))
    }
}

/// Somebody else's table, or none.
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

/// It is a replica.
pub(super) fn replica(host: &Host) -> Failure {
    unusable(format!(
        "PostgreSQL at {} is a replica: it cannot take a lease, and may be behind. Name the primary in the \
         URL.",
        host.shown()
    ))
}

/// The server's words, without details: those may repeat what was stored.
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
