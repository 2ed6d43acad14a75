//! Errors as one sentence that says what to do.

use std::time::Duration;

use leasehold_core::human_duration::HumanDuration;
use redis::{ErrorKind, RedisError};

use super::config::Config;
use super::scripts::{CHANGED, FOREIGN};
use crate::backends::remote::SILENT;
use crate::stores::{Failure, FailureKind};
use crate::text::MASK;

const PASSWORD: &str = "wants a password; put one in its URL, as in redis://:PASSWORD@HOST";

const RIGHTS: &str = "does not allow this user all commands that a lease needs: EVAL, and in scripts TIME, EXISTS, HGET, HMGET, \
                      HSET, DEL, ZADD, ZREM and ZRANGEBYLEX on the keys leasehold:*";

/// A part of the server's error, the kind of failure, and a sentence.
type Word = (&'static str, FailureKind, &'static str);

/// The server's errors; the first match counts. Newer servers begin an error with its code, older ones have the code of
/// a command in a script in the middle of the text.
const WORDS: &[Word] = &[
    ("NOAUTH", FailureKind::Denied, PASSWORD),
    // For a client without a login that sends much at once.
    ("unauthenticated", FailureKind::Denied, PASSWORD),
    ("WRONGPASS", FailureKind::Denied, "refused the user or the password in its URL; correct them"),
    ("NOPERM", FailureKind::Denied, RIGHTS),
    ("user executing the script can't", FailureKind::Denied, RIGHTS),
    (
        "READONLY",
        FailureKind::Unusable,
        "is a replica, and only the primary can be written; name the primary in the URL",
    ),
    (
        CHANGED,
        FailureKind::Unreachable,
        "was restarted, or changed its role, after it was read, so nothing was written; try again",
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
    ("BUSY ", FailureKind::Unreachable, "is busy with a long script; try again later"),
    ("CLUSTERDOWN", FailureKind::Unreachable, "belongs to a cluster that is down; see CLUSTER INFO"),
    ("TRYAGAIN", FailureKind::Unreachable, "is moving these keys to another node; try again later"),
    (
        "MOVED",
        FailureKind::Unusable,
        "does not keep these keys: another node of the cluster does; name that node in the URL",
    ),
    ("ASK ", FailureKind::Unreachable, "is moving these keys to another node; try again later"),
    (
        "CROSSSLOT",
        FailureKind::Unusable,
        "does not keep the keys of one hash tag together, as a Redis Cluster does; use another store",
    ),
    (
        FOREIGN,
        FailureKind::Unusable,
        "has a value that Leasehold did not write under one of Leasehold's keys; use another prefix, as in \
         ?prefix=NAME",
    ),
    (
        "WRONGTYPE",
        FailureKind::Unusable,
        "has a value that Leasehold did not write under one of Leasehold's keys; use another prefix, as in \
         ?prefix=NAME",
    ),
    (
        "not allowed after non deterministic",
        FailureKind::Unusable,
        "is too old to use TIME in a script; use Redis 5 or newer, or Valkey",
    ),
    (
        "unknown command",
        FailureKind::Unusable,
        "does not know EVAL, so it cannot compare and set in one step; use Redis 5 or newer, or Valkey",
    ),
    (
        "switch database",
        FailureKind::Unusable,
        "refused the database number in its URL; correct what comes after the last /",
    ),
    (
        "max number of clients",
        FailureKind::Unreachable,
        "has reached its maximum of clients; try again later",
    ),
];

/// The errors after which a write was not made, and will not be made later; a denial is one, too.
const NOT_WRITTEN: &[&str] = &[CHANGED, "OOM ", "MISCONF", "NOREPLICAS"];

/// Parts of the client library's messages for TLS errors.
const TLS_WORDS: &[&str] =
    &["certificate", "InvalidContentType", "corrupt message", "AlertReceived", "HandshakeFailure"];

/// An error of the client library, as a failure.
pub(super) fn failure(config: &Config, error: &RedisError, limit: Duration) -> Failure {
    let text = without_password(config, &error.to_string());
    let url = &config.url;
    let of = |kind, message: String| Failure::new(kind, message);
    match error.kind() {
        ErrorKind::AuthenticationFailed => Failure::not_written(
            FailureKind::Denied,
            format!("{url} refused the user or the password in its URL; correct them"),
        ),
        ErrorKind::Io if error.is_timeout() => {
            let waited = HumanDuration(limit);
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
            format!("{url} cannot be reached ({text}); check that it runs and that its address is right"),
        ),
        ErrorKind::Parse => not_redis(config),
        _ => {
            let word =
                WORDS.iter().find(|(word, ..)| text.contains(word) || error.code() == Some(word.trim_end()));
            match word {
                Some(word) => of_word(config, word, &aside(error)),
                None => of(
                    FailureKind::Unusable,
                    format!("{url} gave an answer that Redis does not give: {text}; check the address"),
                ),
            }
        }
    }
}

/// The server's message about a missing permission, which names the command.
fn aside(error: &RedisError) -> String {
    let denied = error.code() == Some("NOPERM");
    error.detail().filter(|_| denied).map_or(String::new(), |detail| format!(" ({detail})"))
}

/// The answer was not one of Redis.
pub(super) fn not_redis(config: &Config) -> Failure {
    Failure::new(
        FailureKind::Unusable,
        format!("{} gave an answer that Redis does not give; check the address", config.url),
    )
}

/// A key of ours has another value.
pub(super) fn foreign(config: &Config) -> Failure {
    of_script(config, FOREIGN)
}

/// The server has a new replication id.
pub(super) fn changed(config: &Config) -> Failure {
    of_script(config, CHANGED)
}

/// The failure for an error that a script returns.
fn of_script(config: &Config, said: &str) -> Failure {
    let word = WORDS.iter().find(|(word, ..)| *word == said);
    of_word(config, word.unwrap_or(&WORDS[0]), "")
}

fn of_word(config: &Config, (said, kind, meaning): &Word, aside: &str) -> Failure {
    let message = format!("{} {meaning}{aside}", config.url);
    if *kind == FailureKind::Denied || NOT_WRITTEN.contains(said) {
        Failure::not_written(*kind, message)
    } else {
        Failure::new(*kind, message)
    }
}

/// The text without the password, which some servers repeat.
fn without_password(config: &Config, text: &str) -> String {
    match &config.password {
        Some(password) if !password.is_empty() => text.replace(password.as_str(), MASK),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets use the same sentences, so they must not mention leases or stores.
    #[test]
    fn what_is_said_of_a_node_is_true_of_a_target() {
        let config = Config::parse("redis://h:1").unwrap();
        for word in ["MOVED", "ASK", "TRYAGAIN", "READONLY", "CLUSTERDOWN"] {
            let error = redis::make_extension_error(word.into(), Some("7 127.0.0.1:2".into()));
            let said = failure(&config, &error, Duration::ZERO).message;
            assert!(!said.contains("not understood"), "{word}: {said}");
            assert!(!["lease", "store"].iter().any(|wrong| said.contains(wrong)), "{word}: {said}");
        }
    }
}
