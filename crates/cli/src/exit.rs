//! Every exit code, one meaning each. Scripts rely on these numbers.

use std::fmt::Display;

use leasehold::messages::Explanation;
use leasehold_run::config_file::BadFile;
use leasehold_run::placeholders::BadTemplate;

/// Ran, or rightly did nothing: skipped because busy.
pub const OK: u8 = 0;
/// `acquire` or `break` found the lease held.
pub const BUSY: u8 = 11;
/// The command line makes no sense.
pub const USAGE: u8 = 64;
/// The store or a target did not answer.
pub const UNREACHABLE: u8 = 69;
/// The lease was lost and the job stopped; or `renew` found it lost.
pub const LOST: u8 = 75;
/// A write, or a start at a gate, was refused: stale token.
pub const REFUSED: u8 = 76;
/// We may not.
pub const DENIED: u8 = 77;
/// Configuration, bad URL or path, unsafe store, wrong store.
pub const CONFIG: u8 = 78;
/// Needs a person: outcome unknown, store rewound.
pub const NEEDS_YOU: u8 = 79;

/// What `leasehold help exit-codes` prints.
pub const TABLE: &str = "\
leasehold exits with:

  the command's own code   the command ran under the lease to its end
  0     also: skipped because somebody holds the lease, or it is done or cooling down (change with -E CODE)
  1     tick: a run failed, was lost or could not be started, or the store did not answer on the way
  11    busy (acquire, break); adopt: a job of the lease still runs here
  64    usage: the command line makes no sense, or names what nothing knows (status, history, why, break, retry)
  69    store or target unreachable
  75    the lease was lost and the job stopped, or not started; or renew found it lost
  76    a write, or a start at a gate, was refused: stale token
  77    permission or credentials
  78    configuration, bad URL or path, unsafe or wrong store
  79    needs you: outcome unknown, failed too often, or the store was rewound
  126   the command is not executable         127   command not found
  128+n the command was ended by signal n; by --max-run: 143 or 137, and `killed` in --report

A command may itself exit with one of these numbers; `run --json` and `--report-append FILE` tell which it was.
";

/// What kind of failure it is.
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
    /// A signal ended us; the code says which.
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

    /// What another process of ours ended with.
    pub fn of(code: u8) -> Self {
        use FailKind::{Busy, Config, Denied, Lost, NeedsYou, Refused, Unreachable, Usage};
        let known = [Busy, Usage, Unreachable, Lost, Refused, Denied, Config, NeedsYou];
        known.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Command(code))
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

    /// The same for a command that only looks: it was asked to run nothing.
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
        let failed = Failed::from(BadFile("leasehold.toml:4: what is that".into()));
        assert_eq!(failed.code(), 78);
        assert_eq!(failed.told.to_string(), "leasehold.toml:4: what is that. Nothing was started");
        assert_eq!(failed.of_a_look().told.to_string(), "leasehold.toml:4: what is that");
    }
}
