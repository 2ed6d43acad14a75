//! Keys as directory names.
//!
//! `[a-z0-9_-]` stand for themselves, and every other byte is `%` and two hexadecimal digits. So two keys have
//! different names on a file system that ignores case, and no name contains `.` or `/`. A name longer than
//! [`PART`] continues in a subdirectory; then the first part ends in `+`.

use crate::backends::local::unusable;
use crate::stores::Failure;

/// Longest key, in bytes.
pub(super) const KEY_MAX: usize = 255;
/// Longest piece of an encoded key: most file systems take names of 255 bytes, encrypted ones of 143.
const PART: usize = 140;
/// The last character of a directory's name that continues in a subdirectory.
const MORE: char = '+';

/// The path of `key`'s directory.
pub(super) fn encode(key: &str) -> Result<Vec<String>, Failure> {
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(unusable(format!(
            "A key of {} bytes cannot be stored. Use 1 to {KEY_MAX} bytes.",
            key.len()
        )));
    }
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    let mut parts = Vec::new();
    // Everything is ASCII here, so any byte is a boundary.
    while text.len() > PART {
        let rest = text.split_off(PART);
        text.push(MORE);
        parts.push(std::mem::replace(&mut text, rest));
    }
    parts.push(text);
    Ok(parts)
}

/// Whether a directory of this name contains the rest of longer keys.
pub(super) fn leads_on(name: &str) -> bool {
    name.ends_with(MORE)
}

/// The key with this path, if there is one.
pub(super) fn decode(parts: &[String]) -> Option<String> {
    let text: String = parts.iter().map(|p| p.trim_end_matches(MORE)).collect();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    let key = String::from_utf8(bytes).ok()?;
    // Only the spelling of `encode` is accepted, so a key is never listed twice.
    (encode(&key).ok()? == parts).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_back() {
        let long = "é".repeat(127);
        let dots = ".".repeat(255);
        for key in ["leases/repo/main", "a", ".", "..", "%2f", "A", "+", &long, &dots] {
            let parts = encode(key).unwrap();
            assert!(parts.iter().all(|p| p.len() <= PART + 1 && !p.contains(['.', '/'])));
            assert_eq!(decode(&parts).as_deref(), Some(key));
        }
        assert_eq!(encode(&dots).unwrap().len(), 6);
        assert!(encode("").is_err());
        assert!(encode(&"a".repeat(256)).is_err());
    }

    #[test]
    fn other_spellings_are_no_keys() {
        for name in ["%41%", "%zz", "A", "%2F", "a.b", "%61", "%ff", "", "a+"] {
            assert_eq!(decode(&[name.to_owned()]), None, "{name}");
        }
    }
}
