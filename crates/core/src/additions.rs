//! A place in every record for fields that later versions add.
//!
//! A version that does not know an addition keeps it unread: it writes the addition again with each change of
//! the record. A record with additions has format 2 or later, so that older versions, which would lose them,
//! refuse it.

use alloc::string::String;

use serde_json::Value;

/// Additions by name.
pub type Additions = serde_json::Map<String, Value>;

/// The oldest format that has a place for additions.
const FORMAT: u64 = 2;
/// How deep additions may be nested.
const DEPTH: u32 = 8;
/// The largest number that every language reads exactly.
const NUMBER_MAX: i64 = (1 << 53) - 1;

/// The error for a record with bad additions.
pub(crate) const UNFIT: &str = "it has additions of an unknown form";

/// The oldest format that can hold these additions.
pub(crate) fn format(more: &Additions) -> u64 {
    if more.is_empty() { 1 } else { FORMAT }
}

/// Whether a record of this format may have these additions. A reader in any language must be able to write
/// them again byte for byte.
pub(crate) fn fits(format: u64, more: &Additions) -> bool {
    more.is_empty() || format >= FORMAT && named(more, DEPTH)
}

fn named(more: &Additions, depth: u32) -> bool {
    // Some languages would sort a name of digits before the others.
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let name =
        |name: &String| name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(letters);
    more.iter().all(|(key, value)| name(key) && plain(value, depth))
}

fn plain(value: &Value, depth: u32) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => {
            number.as_i64().is_some_and(|number| (-NUMBER_MAX..=NUMBER_MAX).contains(&number))
        }
        Value::Array(all) => depth > 0 && all.iter().all(|value| plain(value, depth - 1)),
        Value::Object(more) => depth > 0 && named(more, depth - 1),
    }
}

/// Additions of every kind, for tests.
#[cfg(test)]
pub(crate) fn some() -> Additions {
    let text = r#"{"colour":"rot \u0001","deep":{"list":[null,true,-7,{"x":9007199254740991}]}}"#;
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_could_not_write_down_again_is_refused() {
        assert!(fits(2, &some()) && fits(1, &Additions::new()) && !fits(1, &some()));
        let nested =
            |depth: usize| alloc::format!("{{\"a\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let read = |text: &str| serde_json::from_str::<Additions>(text).unwrap();
        assert!(fits(2, &read(&nested(8))));
        for bad in [
            r#"{"a":1.5}"#,
            r#"{"a":-0}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":1e3}"#,
            r#"{"7":1}"#,
            r#"{"":1}"#,
            r#"{"A":1}"#,
            r#"{"a":[{"b b":1}]}"#,
            &nested(9),
        ] {
            assert!(!fits(2, &read(bad)), "{bad}");
        }
    }
}
