//! The content of an object: a line with the write id, then the body.
//!
//! Because of this line each object has another content, and so another ETag, which on S3 is a hash of the content.
//! Without it, a record that returns to an earlier state would accept a stale write. A person who opens the object
//! in a browser sees one line and the record.

use leasehold_core::ids::WriteId;

/// The first bytes of a record.
const RECORD: &str = "leasehold record ";
/// The first bytes of the mark of a removed record. It is shorter, so that a listing can tell it by its size.
const REMOVED: &str = "removed ";
/// The number of digits of a write id.
const ID: usize = 32;

/// The size of the smallest record.
pub const LEAST: u64 = (RECORD.len() + ID + 1) as u64;

/// The kind of an object.
#[derive(Debug, PartialEq, Eq)]
pub enum ObjectContent {
    /// A record, with its body.
    Record(Vec<u8>),
    /// The mark of a record that was removed.
    Removed,
    /// An object that Leasehold did not write.
    Foreign,
}

/// The object of a record.
pub fn record(write: WriteId, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{RECORD}{write}\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The mark that stays when a record is removed.
pub fn removed(write: WriteId) -> Vec<u8> {
    format!("{REMOVED}{write}\n").into_bytes()
}

/// Reads an object.
pub fn open(bytes: &[u8]) -> ObjectContent {
    let body = |start: &str| {
        let rest = bytes.strip_prefix(start.as_bytes())?;
        let (id, rest) = rest.split_at_checked(ID)?;
        id.iter().all(u8::is_ascii_hexdigit).then(|| rest.strip_prefix(b"\n"))?
    };
    if let Some(body) = body(RECORD) {
        return ObjectContent::Record(body.to_vec());
    }
    if body(REMOVED) == Some(b"") { ObjectContent::Removed } else { ObjectContent::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let all: Vec<u8> = (0..=255).collect();
        for body in [&b""[..], b"\n", b"removed ", &all] {
            let bytes = record(WriteId(7), body);
            assert_eq!(open(&bytes), ObjectContent::Record(body.to_vec()));
            assert!(bytes.len() as u64 >= LEAST);
        }
        let mark = removed(WriteId(7));
        assert_eq!(open(&mark), ObjectContent::Removed);
        assert!((mark.len() as u64) < LEAST);
    }

    #[test]
    fn anything_else_is_foreign() {
        for bytes in [&b""[..], b"<html>", b"leasehold record 12\n", b"leasehold record", b"{\"format\":1}"] {
            assert_eq!(open(bytes), ObjectContent::Foreign);
        }
        let mut cut = record(WriteId(7), b"");
        cut.pop();
        assert_eq!(open(&cut), ObjectContent::Foreign);
    }
}
