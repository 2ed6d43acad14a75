//! Every exit code, one meaning each. Scripts rely on these numbers; `messages/help.rs` explains them.

use std::fmt::Display;

use leasehold::core::store::FailureKind;
use leasehold::messages::Explanation;
use leasehold_run::config_file::BadFile;
use leasehold_run::handoff::NotBegun;
use leasehold_run::placeholders::BadTemplate;

/// The command succeeded, or the run was skipped.
pub const OK: u8 = 0;
/// `acquire` or `break` found the lease held.
pub const BUSY: u8 = 11;
/// The command line makes no sense.
pub const USAGE: u8 = 64;
/// The store or a target did not answer.
pub const UNREACHABLE: u8 = 69;
/// The lease was lost and the job stopped, or `renew` found it lost.
pub const LOST: u8 = 75;
/// A write, or a start at a gate, was refused because the token is old.
pub const REFUSED: u8 = 76;
/// Permission or credentials are missing.
pub const DENIED: u8 = 77;
/// A wrong configuration, URL or path; an unsafe or wrong store.
pub const CONFIG: u8 = 78;
/// A person must decide: an outcome is unknown, or the store was rewound.
pub const NEEDS_YOU: u8 = 79;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailKind {
    /// See [`BUSY`].
    Busy,
    /// See [`USAGE`].
    Usage,
    /// See [`UNREACHABLE`].
    Unreachable,
    /// This machine's clock cannot be trusted yet.
    Clock,
    /// See [`LOST`].
    Lost,
    /// See [`REFUSED`].
    Refused,
    /// See [`DENIED`].
    Denied,
    /// See [`CONFIG`].
    Config,
    /// See [`NEEDS_YOU`].
    NeedsYou,
    /// A signal ended this process; the code says which.
    Interrupted(u8),
    /// The command could not be executed, or failed; with its own code.
    Command(u8),
}

impl FailKind {
    /// Its exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Busy => BUSY,
            Self::Usage => USAGE,
            Self::Unreachable | Self::Clock => UNREACHABLE,
            Self::Lost => LOST,
            Self::Refused => REFUSED,
            Self::Denied => DENIED,
            Self::Config => CONFIG,
            Self::NeedsYou => NEEDS_YOU,
            Self::Interrupted(code) | Self::Command(code) => code,
        }
    }

    /// What it means for a slot that its run did not start because of it.
    pub fn not_begun(self) -> NotBegun {
        match self {
            Self::Usage | Self::Refused | Self::Denied | Self::Config => NotBegun::InVain,
            Self::NeedsYou => NotBegun::NeedsYou,
            Self::Busy
            | Self::Unreachable
            | Self::Clock
            | Self::Lost
            | Self::Interrupted(_)
            | Self::Command(_) => NotBegun::Failed,
        }
    }
}

/// A failure as the user sees it, and its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which kind; it has the exit code.
    pub kind: FailKind,
    /// A greppable word for `--json`.
    pub word: &'static str,
    /// What happened, what it means for the job, what to do next.
    pub told: Explanation,
}

impl Failed {
    /// A failure of this kind.
    pub fn new(kind: FailKind, word: &'static str, told: impl Into<Explanation>) -> Self {
        Self { kind, word, told: told.into() }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.kind.code()
    }

    /// The same with another meaning for the job; empty: none.
    pub fn meaning(self, means: impl Display) -> Self {
        Self { told: self.told.meaning(means), ..self }
    }

    /// The same for a command that runs no job, so it need not say that nothing was run.
    pub fn of_a_look(self) -> Self {
        self.meaning("")
    }

    /// A misuse of the command line.
    pub fn usage(told: impl Into<Explanation>) -> Self {
        Self::new(FailKind::Usage, "usage", told)
    }

    /// Something wrong with the configuration.
    pub fn config(told: impl Into<Explanation>) -> Self {
        Self::new(FailKind::Config, "config", told)
    }
}

/// A failure of the store.
pub fn by_kind(kind: FailureKind, told: impl Into<Explanation>) -> Failed {
    match kind {
        FailureKind::Unreachable => Failed::new(FailKind::Unreachable, "store_unreachable", told),
        FailureKind::Denied => Failed::new(FailKind::Denied, "denied", told),
        FailureKind::Unusable => Failed::new(FailKind::Config, "store_unusable", told),
    }
}

impl From<BadFile> for Failed {
    fn from(bad: BadFile) -> Self {
        Self::config(bad.0.meaning("Nothing was started"))
    }
}

impl From<BadTemplate> for Failed {
    fn from(bad: BadTemplate) -> Self {
        Self::usage(Explanation::of(bad))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_wrong_is_a_configuration_that_starts_nothing() {
        let failed = Failed::from(BadFile(Explanation::of("leasehold.toml:4: what is that")));
        assert_eq!((failed.code(), failed.word), (78, "config"));
        assert!(!failed.told.means.is_empty());
        assert_eq!(failed.of_a_look().told.means, "");
    }
}
