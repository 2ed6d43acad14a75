//! The documents in Firestore, and their encoding.
//!
//! A record is one document with three fields: `key`, `body` and `write`. The last one is new in each attempt,
//! because a commit that changes nothing succeeds and keeps `updateTime`. Without it, two writers with the same
//! expected version could both succeed.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use leasehold_core::ids::WriteId;
use serde_json::{Value, json};

use super::config::Config;
use crate::stores::{Stored, Version};

/// The longest document id that Firestore allows.
const ID_MAX: usize = 1500;

/// The document id for a key: always legal, readable if possible, and different for different keys. Lists are sorted by
/// the field `key`, so the order of ids does not matter.
pub(super) fn document_id(key: &str) -> Option<String> {
    if key.is_empty() {
        // No other key gives this id, because a percent sign is always followed by two digits.
        return Some("%".into());
    }
    let mut id = String::with_capacity(key.len() + 8);
    for (at, byte) in key.bytes().enumerate() {
        match byte {
            // The ids ".", ".." and "__x__" are reserved. None of them begins with a percent sign.
            b'.' | b'_' if at > 0 => id.push(char::from(byte)),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => id.push(char::from(byte)),
            _ => id.push_str(&format!("%{byte:02X}")),
        }
    }
    (id.len() <= ID_MAX).then_some(id)
}

/// A conditional write of a whole document.
pub(super) fn update(
    name: &str,
    key: &str,
    expected: Option<&Version>,
    write: WriteId,
    body: &[u8],
) -> Value {
    let fields = json!({
        "key": { "stringValue": key },
        "write": { "stringValue": write.to_string() },
        "body": value(body),
    });
    json!({ "update": { "name": name, "fields": fields }, "currentDocument": condition(expected) })
}

/// The condition that the document does not exist, or has this version.
pub(super) fn condition(expected: Option<&Version>) -> Value {
    match expected {
        None => json!({ "exists": false }),
        Some(Version(time)) => json!({ "updateTime": time }),
    }
}

/// Bytes as a field. Text is a string, so that the console shows it.
pub(super) fn value(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => json!({ "stringValue": text }),
        _ => json!({ "bytesValue": STANDARD.encode(bytes) }),
    }
}

/// The bytes in a field of [`value`]; None for another type.
pub(super) fn bytes(field: &Value) -> Option<Vec<u8>> {
    match (field.get("stringValue"), field.get("bytesValue")) {
        (Some(Value::String(text)), None) => Some(text.clone().into_bytes()),
        (None, Some(Value::String(coded))) => STANDARD.decode(coded).ok(),
        _ => None,
    }
}

/// One conditional removal.
pub(super) fn delete(name: &str, Version(time): &Version) -> Value {
    json!({ "delete": name, "currentDocument": { "updateTime": time } })
}

/// The query for keys that start with `prefix` and come after `after`. Firestore compares text by its
/// UTF-8 bytes.
pub(super) fn query(config: &Config, prefix: &str, after: &str, limit: usize) -> Value {
    let compare = |op: &str, text: &str| json!({ "fieldFilter": { "field": { "fieldPath": "key" }, "op": op, "value": { "stringValue": text } } });
    let mut filters = vec![compare("GREATER_THAN_OR_EQUAL", prefix)];
    if after >= prefix {
        filters = vec![compare("GREATER_THAN", after)];
    }
    if let Some(end) = end_of(prefix) {
        filters.push(compare("LESS_THAN", &end));
    }
    json!({ "structuredQuery": {
        "from": [{ "collectionId": config.collection }],
        "where": { "compositeFilter": { "op": "AND", "filters": filters } },
        "orderBy": [{ "field": { "fieldPath": "key" }, "direction": "ASCENDING" }],
        "limit": i32::try_from(limit).unwrap_or(i32::MAX),
    } })
}

/// The first text that sorts after all texts with this prefix, if there is one.
fn end_of(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            _ => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// The key and the record in a document; None if Leasehold did not write it.
pub(super) fn record(document: &Value, read_time: Option<&Value>) -> Option<(String, Stored)> {
    let field = |name: &str| &document["fields"][name];
    let key = field("key")["stringValue"].as_str()?;
    let body = bytes(field("body"))?;
    let version = document["updateTime"].as_str()?;
    // A document that was copied to another name is no record.
    if document["name"].as_str()?.rsplit('/').next() != document_id(key).as_deref() {
        return None;
    }
    let age = read_time.and_then(Value::as_str).and_then(|read| age(version, read));
    Some((key.into(), Stored { body, version: Version(version.into()), age }))
}

/// The time from `written` to `read`, both by the store's clock.
fn age(written: &str, read: &str) -> Option<Duration> {
    let (written, read): (Timestamp, Timestamp) = (written.parse().ok()?, read.parse().ok()?);
    read.duration_since(written).try_into().ok()
}

/// A time of the store, since 1970.
pub(super) fn time(time: &Value) -> Option<Duration> {
    let time: Timestamp = time.as_str()?.parse().ok()?;
    time.duration_since(Timestamp::UNIX_EPOCH).try_into().ok()
}

/// The path of a document in its database, without the project, which has an id and a number.
pub(super) fn within(name: &str) -> &str {
    name.split_once("/documents/").map_or(name, |(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_legal_and_never_shared() {
        assert_eq!(document_id("leases/site-1.x_y").unwrap(), "leases%2Fsite-1.x_y");
        assert_eq!(document_id("__x__").unwrap(), "%5F_x__");
        assert_eq!((document_id(".").unwrap(), document_id("..").unwrap()), ("%2E".into(), "%2E.".into()));
        assert_eq!(document_id(&"é".repeat(200)).unwrap().len(), 1200);
        assert_eq!(document_id(&"/".repeat(501)), None);
        let keys = ["", "%", "%25", "a/b", "a%2Fb", "a%2fb", "_", "%5F", "ä", "\u{e4}x", " ", "+"];
        let ids: std::collections::BTreeSet<_> = keys.iter().map(|key| document_id(key)).collect();
        assert_eq!(ids.len(), keys.len());
    }

    #[test]
    fn a_prefix_ends_before_the_next_text() {
        assert_eq!(end_of("a/").as_deref(), Some("a0"));
        assert_eq!(end_of("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!((end_of(""), end_of("\u{10ffff}")), (None, None));
    }

    #[test]
    fn ages_are_differences_of_the_stores_own_times() {
        let at = |text: &str| age("2026-11-15T23:28:25.368402Z", text);
        assert_eq!(at("2026-11-15T23:28:25.368402Z"), Some(Duration::ZERO));
        assert_eq!(at("2026-11-15T23:28:27.368403Z"), Some(Duration::from_micros(2_000_001)));
        assert_eq!(at("2026-11-16T00:28:25.368402+01:00"), Some(Duration::ZERO));
        assert_eq!((at("2026-11-15T23:28:25.368401Z"), at("yesterday")), (None, None));
        assert_eq!(time(&json!("1970-01-01T00:00:01.5Z")), Some(Duration::from_millis(1500)));
        assert_eq!((time(&json!(null)), time(&json!("1969-12-31T23:59:59Z"))), (None, None));
    }

    #[test]
    fn bodies_come_back_as_they_went() {
        for body in [&b""[..], b"{}", "ä\u{1f512}\n".as_bytes(), b"\0", b"\xff\xfe", &[0; 999]] {
            let mut sent = update("p/leases/a%2Fb", "a/b", None, WriteId(7), body)["update"].take();
            sent["updateTime"] = json!("2026-11-15T23:28:25.368402Z");
            let (key, stored) = record(&sent, None).unwrap();
            assert_eq!((key.as_str(), stored.body.as_slice(), stored.age), ("a/b", body, None));
            sent["name"] = json!("p/leases/copy");
            assert_eq!(record(&sent, None), None);
        }
        for foreign in [json!({}), json!({ "fields": { "owner": { "stringValue": "me" } } })] {
            assert_eq!(record(&foreign, None), None);
        }
    }
}
