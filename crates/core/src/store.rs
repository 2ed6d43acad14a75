//! The answers of a store, as values. Core decides on them and never calls a store itself.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// A store's name for one stored body. Opaque, and never used twice for one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub String);

/// A stored body, its version and its age.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The bytes.
    pub body: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// How long ago this version was written, by the store's own clock. None if that is unknown or negative.
    pub age: Option<Duration>,
}

/// The answer to a conditional write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cas {
    /// It was stored.
    Written {
        /// The version now stored.
        version: Version,
        /// The store's clock when it was written, since any fixed origin, if the store tells it.
        store_time: Option<Duration>,
    },
    /// The key did not have the expected version; nothing was written by this attempt.
    Conflict,
    /// There was no reliable answer: the write may have landed, or may land later.
    Unknown(Failure),
}

/// Why a store call failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure. It decides the exit code and whether to try again.
    pub kind: FailureKind,
    /// Whether the write that failed may have landed.
    #[serde(default)]
    pub landed: Landed,
    /// One sentence for people.
    pub message: String,
}

/// Whether a write that failed may be in the store, now or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Landed {
    /// It may be.
    #[default]
    Maybe,
    /// It is not: the store itself says that it did not write, and will not.
    No,
}

impl Failure {
    /// A call that failed. If it was a write, it may have landed.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, landed: Landed::Maybe, message: message.into() }
    }

    /// A write that failed and did not land.
    pub fn not_written(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { landed: Landed::No, ..Self::new(kind, message) }
    }
}

/// The kinds of failures of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The store did not answer: it is down, busy or full, or the call timed out. Trying again may help.
    Unreachable,
    /// The store denied the call.
    Denied,
    /// The store cannot be used: it is damaged, too new or not safe, or belongs to another program.
    Unusable,
}
