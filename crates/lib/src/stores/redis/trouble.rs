//! What went wrong, as one sentence that says what to do next.

use std::time::Duration;

use leasehold_core::stop::Text;
use redis::{ErrorKind, RedisError};

use super::place::Place;
use super::scripts::{CHANGED, FOREIGN};
use crate::stores::remote::SILENT;
use crate::stores::{Failure, FailureKind};
use crate::text::MASK;

const PASSWORD: &str = "wants a password; put one in the store's URL, as in redis://:PASSWORD@HOST";

const RIGHTS: &str = "does not allow this user all that a lease needs: EVAL, and in scripts TIME, EXISTS, HGET, HMGET, \
                      HSET, DEL, ZADD, ZREM and ZRANGEBYLEX on the keys leasehold:*";

/// What a server says, and what it means. The first that fits: newer servers begin an error with the
/// word, older ones bury the word of a command that failed inside a script.
const WORDS: &[(&str, FailureKind, &str)] = &[
    ("NOAUTH", FailureKind::Denied, PASSWORD),
    // Said to a stranger who sends much at once.
    ("unauthenticated", FailureKind::Denied, PASSWORD),
    ("WRONGPASS", FailureKind::Denied, "refused the user or the password in the store's URL; correct them"),
    ("NOPERM", FailureKind::Denied, RIGHTS),
    ("user executing the script can't", FailureKind::Denied, RIGHTS),
    (
        "READONLY",
        FailureKind::Unusable,
        "is a replica, and leases are written on the primary only; name the primary in the store's URL",
    ),
    (
        CHANGED,
        FailureKind::Unreachable,
        "has started again or changed its role since it was read, so nothing was written; try again",
    ),
    (
        "LOADING",
        FailureKind::Unreachable,
        "has just started and is still loading its data; try again in a moment",
    ),
    ("MASTERDOWN", FailureKind::Unreachable, "is a replica that lost its primary; name the primary"),
    (
        "OOM ",
        FailureKind::Unreachable,
        "has used up its maxmemory, so nothing was written; raise maxmemory or remove other data",
    ),
    (
        "MISCONF",
        FailureKind::Unreachable,
        "cannot save its data to disk, so nothing was written; see the server's log and its disk",
    ),
    (
        "NOREPLICAS",
        FailureKind::Unreachable,
        "has fewer replicas than its min-replicas-to-write, so nothing was written; bring the replicas back",
    ),
    ("BUSY ", FailureKind::Unreachable, "is busy with somebody's long script; try again later"),
    ("CLUSTERDOWN", FailureKind::Unreachable, "belongs to a cluster that is down; see CLUSTER INFO"),
    ("TRYAGAIN", FailureKind::Unreachable, "is moving these leases to another node; try again later"),
    (
        "MOVED",
        FailureKind::Unusable,
        "does not keep the leases of this prefix: another node of the cluster does; name that node in the store's URL",
    ),
    ("ASK ", FailureKind::Unreachable, "is moving these leases to another node; try again later"),
    (
        "CROSSSLOT",
        FailureKind::Unusable,
        "does not keep the keys of one hash tag together, as a Redis Cluster does; use another store",
    ),
    (
        FOREIGN,
        FailureKind::Unusable,
        "has something under a key of ours that was not written by Leasehold; use another prefix, as in ?prefix=NAME",
    ),
    (
        "WRONGTYPE",
        FailureKind::Unusable,
        "has something under a key of ours that was not written by Leasehold; use another prefix, as in ?prefix=NAME",
    ),
    (
        "not allowed after non deterministic",
        FailureKind::Unusable,
        "is too old to ask the time inside a script; use Redis 5 or newer, or Valkey",
    ),
    (
        "unknown command",
        FailureKind::Unusable,
        "does not know EVAL, so it cannot compare and set in one step; use Redis 5 or newer, or Valkey",
    ),
    (
        "switch database",
        FailureKind::Unusable,
        "refused the database number in the store's URL; correct what comes after the last /",
    ),
    ("max number of clients", FailureKind::Unreachable, "has as many clients as it takes; try again later"),
];

/// Words by which TLS fails, in the client library's messages.
const TLS_WORDS: &[&str] =
    &["certificate", "InvalidContentType", "corrupt message", "AlertReceived", "HandshakeFailure"];

/// A failure of the client library, in words.
pub(super) fn failure(place: &Place, error: &RedisError, limit: Duration) -> Failure {
    let text = without_password(place, &error.to_string());
    let url = &place.url;
    let of = |kind, message: String| Failure { kind, message };
    match error.kind() {
        ErrorKind::AuthenticationFailed => of(
            FailureKind::Denied,
            format!("{url} refused the user or the password in the store's URL; correct them"),
        ),
        ErrorKind::Io if error.is_timeout() => {
            let waited = Text(limit);
            of(FailureKind::Unreachable, format!("{url} did not answer within {waited}; {SILENT}"))
        }
        ErrorKind::Io if TLS_WORDS.iter().any(|word| text.contains(word)) => of(
            FailureKind::Unusable,
            format!(
                "no trusted TLS connection to {url} could be made ({text}); check its certificate, or name its authority with ?cacert=FILE"
            ),
        ),
        ErrorKind::Io => of(
            FailureKind::Unreachable,
            format!("{url} cannot be reached ({text}); see that it runs and its address is right"),
        ),
        ErrorKind::Parse => not_redis(place),
        _ => {
            let word =
                WORDS.iter().find(|(word, ..)| text.contains(word) || error.code() == Some(word.trim_end()));
            match word {
                Some((_, kind, meaning)) => of(*kind, format!("{url} {meaning}{}", aside(error))),
                None => of(FailureKind::Unusable, format!("{url} answered what is not understood: {text}")),
            }
        }
    }
}

/// What the server said about a missing right: it names the command.
fn aside(error: &RedisError) -> String {
    let denied = error.code() == Some("NOPERM");
    error.detail().filter(|_| denied).map_or(String::new(), |detail| format!(" ({detail})"))
}

/// It talks, and not as Redis does.
pub(super) fn not_redis(place: &Place) -> Failure {
    Failure {
        kind: FailureKind::Unusable,
        message: format!("{} did not answer as Redis does; see that the address is the right one", place.url),
    }
}

/// Something under our key is not ours.
pub(super) fn foreign(place: &Place) -> Failure {
    of_word(place, FOREIGN, FailureKind::Unusable)
}

/// The server began another history of writes.
pub(super) fn changed(place: &Place) -> Failure {
    of_word(place, CHANGED, FailureKind::Unreachable)
}

/// As if a script had said it.
fn of_word(place: &Place, said: &str, kind: FailureKind) -> Failure {
    let meaning = WORDS.iter().find(|(word, ..)| *word == said).map_or("", |(_, _, meaning)| meaning);
    Failure { kind, message: format!("{} {meaning}", place.url) }
}

/// Some servers repeat what they were told.
fn without_password(place: &Place, text: &str) -> String {
    match &place.password {
        Some(password) if !password.is_empty() => text.replace(password.as_str(), MASK),
        _ => text.into(),
    }
}
