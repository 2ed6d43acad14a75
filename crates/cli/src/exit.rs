//! Every exit code, one meaning each. Scripts rely on these numbers.

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
/// A write was refused: stale token.
pub const REFUSED: u8 = 76;
/// We may not.
pub const DENIED: u8 = 77;
/// Configuration, bad URL, unsafe store, wrong store.
pub const CONFIG: u8 = 78;
/// Needs a person: outcome unknown, store rewound.
pub const NEEDS_YOU: u8 = 79;

/// What `leasehold help exit-codes` prints.
pub const TABLE: &str = "\
leasehold exits with:

  the command's own code   the command ran under the lease to its end
  0     also: skipped because somebody holds the lease, or it is done or cooling down (change with -E CODE)
  1     tick: a run failed, was lost or could not be started, or the store did not answer on the way
  11    busy (acquire, break)
  64    usage: the command line makes no sense
  69    store or target unreachable
  75    the lease was lost and the job stopped, or not started; or renew found it lost
  76    a write was refused: stale token
  77    permission or credentials
  78    configuration, bad URL, unsafe or wrong store
  79    needs you: outcome unknown, failed too often, or the store was rewound
  126   the command is not executable         127   command not found
  128+n the command was ended by signal n; by --max-run: 143 or 137, and `killed` in --report

A command may itself exit with one of these numbers; `run --report FILE` tells which it was.
";

/// A failure as the user sees it: what happened, what it means, what to do, and the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The exit code.
    pub code: u8,
    /// A greppable word for `--json`.
    pub word: &'static str,
    /// The sentences.
    pub message: String,
}

impl Failed {
    /// A failure with this code.
    pub fn new(code: u8, word: &'static str, message: impl Into<String>) -> Self {
        Self { code, word, message: message.into() }
    }

    /// The same, of a command that only looks: nobody asked it to run anything.
    pub fn of_a_look(self) -> Self {
        let message = self.message.replace(" Nothing was run.", "");
        let message = message.strip_suffix(" Nothing was run").map_or(message.clone(), Into::into);
        Self { message, ..self }
    }

    /// A misuse of the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// Something wrong with the configuration.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, "config", message)
    }
}
