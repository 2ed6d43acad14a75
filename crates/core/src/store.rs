//! What a store says, as values. Core decides on these; it never meets a store itself.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// A store's name for one stored body. Opaque, and never used twice for one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub String);

/// A stored body with what the store knows about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The bytes.
    pub body: Vec<u8>,
    /// Their version.
    pub version: Version,
    /// How long ago, by the store's own clock, this version was written. Unknown or negative: none.
    pub age: Option<Duration>,
}

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cas {
    /// Stored, under this version; with the store's own time if it tells.
    Written {
        /// The version now stored.
        version: Version,
        /// The store's clock when it was written, since any fixed origin.
        store_time: Option<Duration>,
    },
    /// The key did not have the expected version; nothing was written by this attempt.
    Conflict,
    /// No answer that can be relied on: it may have landed, even later.
    Unknown(Failure),
}

/// Why a store call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of trouble, which decides the exit code and whether to try again.
    pub kind: FailureKind,
    /// Whether the write that failed can have landed.
    #[serde(default)]
    pub landed: Landed,
    /// One sentence for a person.
    pub message: String,
}

/// Whether a write that failed can be in the store, now or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Landed {
    /// Nobody knows.
    #[default]
    Maybe,
    /// The store itself says that it did not write, and will not.
    No,
}

impl Failure {
    /// A call that failed; if it was a write, it may have landed.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, landed: Landed::Maybe, message: message.into() }
    }

    /// A write that certainly did not land.
    pub fn not_written(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { landed: Landed::No, ..Self::new(kind, message) }
    }
}

/// The kinds of trouble a store can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// It did not answer, or could not: down, busy, full, timed out. Trying again may help.
    Unreachable,
    /// It answered that we may not.
    Denied,
    /// It is not a store we can use: damaged, another program's, too new, not safe.
    Unusable,
}
