//! Reads Firestore's answers. The HTTP status is ambiguous: 409 is "already exists" or "too much contention", and
//! 400 is "another version" or "bad request". So the name in `error.status` decides.

use serde_json::Value;

use super::config::Config;
use crate::stores::{Cas, Failure, FailureKind};
use crate::text::MASK;

/// The longest part of a server's message that is repeated.
const WORDS_MAX: usize = 240;

/// A complete answer.
#[derive(Debug, PartialEq)]
pub(super) enum FirestoreAnswer {
    /// A success.
    Good(Value),
    /// An error: its name, which may be empty, and the server's message.
    Refused { status: String, words: String },
    /// Not JSON, so not from Firestore; its HTTP status.
    Foreign(u16),
}

impl FirestoreAnswer {
    /// Reads the body of an answer. `bearer` is removed from the server's message.
    pub fn read(http: u16, body: &[u8], bearer: &str) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(body) else { return Self::Foreign(http) };
        // A streamed answer is a list, and any part of it may be an error.
        let error = match &value {
            Value::Array(parts) => parts.iter().find_map(|part| part.get("error")),
            single => single.get("error"),
        };
        match error {
            None if (200..300).contains(&http) => Self::Good(value),
            None => Self::refused("", &format!("HTTP status {http}"), bearer),
            Some(error) => {
                let text = |name: &str| error[name].as_str().unwrap_or_default();
                Self::refused(text("status"), text("message"), bearer)
            }
        }
    }

    fn refused(status: &str, words: &str, bearer: &str) -> Self {
        Self::Refused { status: status.into(), words: clean(words, bearer) }
    }
}

/// The server's message on one line, shortened, and without our credentials.
fn clean(words: &str, bearer: &str) -> String {
    let words = if bearer.is_empty() { words.to_owned() } else { words.replace(bearer, MASK) };
    let line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
    line.trim().trim_end_matches('.').to_owned()
}

/// The outcome of a write that was refused.
pub(super) fn refused_write(config: &Config, creates: bool, status: &str, words: &str) -> Cas {
    match status {
        // There is no document to update. If the database does not exist, it is another error.
        "NOT_FOUND" if !creates && !names_the_database(words) => Cas::Conflict,
        "FAILED_PRECONDITION" if !words.contains("Datastore Mode") => Cas::Conflict,
        "ALREADY_EXISTS" => Cas::Conflict,
        _ => Cas::Unknown(failure(config, status, words)),
    }
}

fn names_the_database(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("database") && words.contains("does not exist")
}

/// The failure for a refused call.
pub(super) fn failure(config: &Config, status: &str, words: &str) -> Failure {
    use FailureKind::{Denied, Unreachable, Unusable};
    let (kind, what, next) = match status {
        "UNAUTHENTICATED" => (
            Denied,
            "does not accept these credentials",
            "Check GOOGLE_APPLICATION_CREDENTIALS or the service account of this machine",
        ),
        "PERMISSION_DENIED" => (
            Denied,
            "does not allow access with these credentials",
            "Give the account the role roles/datastore.user in that project. Check that the Firestore API is \
             enabled there",
        ),
        "NOT_FOUND" => (
            Unusable,
            "does not exist",
            "Check the project and the database in the URL, or create the database in native mode",
        ),
        "FAILED_PRECONDITION" => (
            Unusable,
            "cannot be used for this",
            "It must be in native mode, not in Datastore mode, with single-field indexes",
        ),
        "RESOURCE_EXHAUSTED" => (
            Unreachable,
            "asks for fewer calls (back-pressure)",
            "Use a longer TTL or heartbeat, or raise the project's quota",
        ),
        "ABORTED" => (Unreachable, "is too busy with this record", "Try again, with a longer heartbeat"),
        "INVALID_ARGUMENT" | "UNIMPLEMENTED" | "OUT_OF_RANGE" => (
            Unusable,
            "did not understand the request",
            "Check the URL; if it is right, the server there is not Firestore or has another version",
        ),
        _ => (Unreachable, "could not answer", "Try again later"),
    };
    let said = match (status, words) {
        ("", "") => "no reason given".into(),
        ("", words) => words.into(),
        (status, "") => status.into(),
        (status, words) => format!("{status}: {words}"),
    };
    let message = format!("Firestore's {} {what} ({said}). {next}.", config.database);
    match kind {
        Denied => Failure::not_written(kind, message),
        Unreachable | Unusable => Failure::new(kind, message),
    }
}

/// The answer is not from Firestore.
pub(super) fn foreign(config: &Config, http: u16) -> Failure {
    // Google's front ends and most proxies report temporary errors in HTML, or with an empty body.
    let (kind, next) = match http {
        408 | 409 | 425 | 429 | 500.. => (FailureKind::Unreachable, "Try again later"),
        _ => (FailureKind::Unusable, "Check the address, and any proxy or sign-in page in between"),
    };
    let endpoint = &config.endpoint;
    Failure::new(
        kind,
        format!("The answer from {endpoint} is not from Firestore (HTTP status {http}, no JSON). {next}."),
    )
}

/// The answer lacks something that was requested.
pub(super) fn puzzling(config: &Config) -> Failure {
    Failure::new(
        FailureKind::Unusable,
        format!(
            "The answer from {} lacks requested fields, so it is not from Firestore. Check the address.",
            config.endpoint
        ),
    )
}

/// The name for an error number, as in the parts of a batch.
pub(super) fn named(code: i64) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(http: u16, body: &str) -> FirestoreAnswer {
        FirestoreAnswer::read(http, body.as_bytes(), "s3cret")
    }

    #[test]
    fn errors_are_found_wherever_they_are() {
        let refused =
            |words: &str| FirestoreAnswer::Refused { status: "ABORTED".into(), words: words.into() };
        let error = r#"{"error":{"code":409,"status":"ABORTED","message":"too\nbusy: s3cret."}}"#;
        assert_eq!(read(409, error), refused("too busy: ***"));
        assert_eq!(read(409, &format!("[{error}]")), refused("too busy: ***"));
        assert_eq!(read(200, &format!("[{{\"readTime\":\"x\"}},{error}]")), refused("too busy: ***"));
        assert_eq!(read(200, "[]"), FirestoreAnswer::Good(Value::Array(vec![])));
        assert!(matches!(read(500, "{}"), FirestoreAnswer::Refused { status, .. } if status.is_empty()));
        assert_eq!(read(200, "<html>"), FirestoreAnswer::Foreign(200));
        assert_eq!(read(502, ""), FirestoreAnswer::Foreign(502));
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(clean(&"é".repeat(999), "").chars().count(), WORDS_MAX);
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(
            (named(6), named(9), named(16), named(99), named(-1)),
            ("ALREADY_EXISTS", "FAILED_PRECONDITION", "UNAUTHENTICATED", "UNKNOWN", "UNKNOWN")
        );
    }
}
