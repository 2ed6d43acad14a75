//! The identities in a lease: write ids, grants, epochs and tokens.
//!
//! A store that lost data could hand out a token again. Only core chooses tokens.

use alloc::format;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 128-bit identity, written as 32 lower-case hexadecimal digits.
fn parse_hex(text: &str) -> Option<u128> {
    let lower = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if text.len() != 32 || !lower {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// Reads the 32 hexadecimal digits that `Display` writes.
            pub fn parse(text: &str) -> Option<Self> {
                parse_hex(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:x})", stringify!($name), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::parse(&text).ok_or_else(|| {
                    serde::de::Error::custom(format!("{text:?} is not 32 lower-case hexadecimal digits"))
                })
            }
        }
    };
}

hex_id! {
    /// Names one attempt to write. Every attempt has a new one in its body. So no two bodies are equal, and an
    /// attempt whose answer was lost is recognised when the record is read back.
    WriteId
}

hex_id! {
    /// Names one acquisition of a lease. New and random for every grant; names of holders are only shown.
    Grant
}

/// Names one record of a lease. A record that vanished and was made again gets a new epoch. Fences remember
/// the epoch, so the new record cannot pass for the old one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Always 1. A higher one is reserved for a store that was rewound: a fence would accept it, but no
    /// command raises it.
    pub generation: u32,
    /// Random, chosen when the record is created.
    pub id: u128,
}

impl Epoch {
    /// The first generation of a record created now.
    pub fn first(id: u128) -> Self {
        Self { generation: 1, id }
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (generation, id) = text.split_once('-')?;
        let plain = !generation.is_empty() && !generation.starts_with(['0', '+']);
        let generation = plain.then(|| generation.parse().ok()).flatten()?;
        Some(Self { generation, id: parse_hex(id)? })
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:032x}", self.generation, self.id)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({}-{:x})", self.generation, self.id)
    }
}

impl Serialize for Epoch {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Epoch {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an epoch")))
    }
}

/// The fencing token: it grows with every grant and never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The token of the first grant of a record.
    pub const FIRST: Token = Token(1);
    /// The largest token. A target that keeps numbers as doubles can tell all tokens up to this one apart.
    pub const MAX: u64 = (1 << 53) - 1;

    /// A token, if the number is in `1..=2^53-1`.
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The token `steps` after this one; none if that is more than [`Token::MAX`].
    pub fn after(self, steps: u64) -> Option<Self> {
        self.0.checked_add(steps).and_then(Self::new)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(d)?;
        Self::new(number)
            .ok_or_else(|| serde::de::Error::custom(format!("token {number} is not in 1..=2^53-1")))
    }
}

/// Makes new 128-bit ids: a random seed chosen outside core, plus a count.
///
/// The ids of two processes are equal only if their seeds, out of 2^128, differ by less than the number of
/// writes that they make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    seed: u128,
    used: u32,
}

impl Ids {
    /// Ids counted from `seed`, which must be random in production.
    pub fn new(seed: u128) -> Self {
        Self { seed, used: 0 }
    }

    /// An id that was not used before.
    pub fn fresh(&mut self) -> u128 {
        self.used += 1;
        self.seed.wrapping_add(u128::from(self.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stops_at_two_to_the_53() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(1 << 53), None);
        let last = Token::new(Token::MAX).unwrap();
        assert_eq!(last.after(1), None);
        assert_eq!(Token::new(u64::MAX), None);
        assert_eq!(last.after(u64::MAX), None);
    }

    #[test]
    fn ids_read_only_what_they_write() {
        let id = WriteId(0xabc);
        assert_eq!(WriteId::parse(&format!("{id}")), Some(id));
        for bad in ["", "abc", "+0000000000000000000000000000abc", "0000000000000000000000000000ABCD"] {
            assert_eq!(WriteId::parse(bad), None, "{bad}");
        }
        let epoch = Epoch::first(7);
        assert_eq!(Epoch::parse(&format!("{epoch}")), Some(epoch));
        for bad in [
            "1",
            "-1",
            "+1-00000000000000000000000000000007",
            "01-00000000000000000000000000000007",
            "4294967296-00000000000000000000000000000007",
        ] {
            assert_eq!(Epoch::parse(bad), None, "{bad}");
        }
    }
}
