//! Why an item was not run: the reasons of items that were skipped, and of slots that were dropped.

use serde::{Deserialize, Serialize};

/// Why an item was settled without a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettleReason {
    /// Another run held its lease.
    Overlap,
    /// Its key is done.
    Done,
    /// Another run is at work on its key.
    InProgress,
    /// Its key must not be run.
    Skipped,
    /// A person said that it was done.
    ByHand,
}

impl SettleReason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Overlap, Self::Done, Self::InProgress, Self::Skipped, Self::ByHand];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Done => "done",
            Self::InProgress => "in-progress",
            Self::Skipped => "skipped",
            Self::ByHand => "by-hand",
        }
    }
}

/// Why slots were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropReason {
    /// No scheduler ran them in time, and there are newer ones.
    Missed,
    /// The job was paused.
    Paused,
}

impl DropReason {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Paused => "paused",
        }
    }
}
