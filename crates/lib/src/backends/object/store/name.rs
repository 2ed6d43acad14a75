//! Keys as object names.
//!
//! A key that every provider allows is its own name: `leases/repo/main`. Other keys, which come only from unusual
//! lease names, are in hex under `~hex/`. Both keep the order of the keys, so a listing can begin in the middle and
//! stop early.

/// The folder of keys that are not allowed as names.
pub const ODD: &str = "~hex/";
/// The number of digits in a segment: servers that keep objects as files allow 255 bytes.
const SEGMENT: usize = 128;

/// The name of `key` under `base`, which is empty or ends in a slash.
pub fn of(base: &str, key: &str) -> String {
    if is_plain(key) { format!("{base}{key}") } else { format!("{base}{ODD}{}", hex(key)) }
}

/// The key with this name under `base`; None if it is no name of a key.
pub fn key(base: &str, name: &str) -> Option<String> {
    let name = name.strip_prefix(base)?;
    match name.strip_prefix(ODD) {
        Some(digits) => unhex(digits).filter(|key| !is_plain(key) && hex(key) == digits),
        None => is_plain(name).then(|| name.to_owned()),
    }
}

/// The longest prefix of `text` that a plain key can have; listings begin there.
pub fn plain_start(text: &str) -> &str {
    let end = text.bytes().position(|b| !is_plain_byte(b)).unwrap_or(text.len());
    &text[..end]
}

/// The digits of `text`, in segments, in the same order as the texts.
pub fn hex(text: &str) -> String {
    let mut digits = String::with_capacity(text.len() * 2 + 4);
    for (i, byte) in text.bytes().enumerate() {
        if i > 0 && i * 2 % SEGMENT == 0 {
            digits.push('/');
        }
        digits.push_str(&format!("{byte:02x}"));
    }
    // A name may not end in a slash, and "-" sorts before every digit.
    if digits.is_empty() { "-".into() } else { digits }
}

fn unhex(digits: &str) -> Option<String> {
    if digits == "-" {
        return Some(String::new());
    }
    let digits: Vec<u8> = digits.bytes().filter(|b| *b != b'/').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

fn is_plain_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/')
}

/// Whether every provider keeps this key unchanged: no segment is empty or ends in a dot, which path rules or Azure
/// would change.
fn is_plain(key: &str) -> bool {
    key.bytes().all(is_plain_byte) && key.split('/').all(|part| !part.is_empty() && !part.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[&str] = &[
        "",
        "a",
        "a/b",
        "a//b",
        "/a",
        "a/",
        ".",
        "..",
        "a.",
        "a./b",
        "a.b",
        "a b",
        "%",
        "a%2fb",
        "~hex/61",
        "ä",
        "a\u{0}b",
        "\n",
        "*",
        "leases/x.y",
        "-",
        "_",
        "0",
        "Z",
        "~",
    ];

    #[test]
    fn every_key_comes_back() {
        let long = ["x".repeat(255), "é".repeat(127), "/".repeat(255)];
        let mut names = std::collections::BTreeSet::new();
        for key in KEYS.iter().copied().chain(long.iter().map(String::as_str)) {
            for base in ["", "some/prefix/"] {
                let name = of(base, key);
                assert_eq!(super::key(base, &name).as_deref(), Some(key), "{name}");
                assert!(object_store::path::Path::parse(&name).unwrap().as_ref() == name, "{name}");
                assert!(name.split('/').all(|part| part.len() <= 255), "{name}");
                assert!(names.insert(name));
            }
        }
    }

    #[test]
    fn others_objects_are_no_keys() {
        for name in ["~hex/", "~hex/6", "~hex/zz", "~hex/61", "~hex/2F", "~hex/2/0", "a b", "ä", "a//b", "x."]
        {
            assert_eq!(key("", name), None, "{name}");
        }
        assert_eq!(key("p/", "q/a"), None);
    }

    #[test]
    fn names_sort_as_keys_do() {
        let long: Vec<String> = (60..70).map(|n| "%".repeat(n)).collect();
        let all: Vec<&str> = KEYS.iter().copied().chain(long.iter().map(String::as_str)).collect();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            assert_eq!(a.cmp(b), hex(a).cmp(&hex(b)), "{a:?} {b:?}");
        }
    }
}
