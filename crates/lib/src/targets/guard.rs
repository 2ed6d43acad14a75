//! Guards: they fence a table that users write with their own SQL. The table's owner installs them once.

use leasehold_core::fence::Fence;

use super::TargetError;

/// Whether sessions that belong to no run may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They may write as before; only runs are fenced.
    Allow,
    /// They are refused; only runs may write.
    Refuse,
}

impl Others {
    /// The word that is stored and typed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Refuse => "refuse",
        }
    }

    /// Reads [`Others::word`] as a guard has stored it; or a sentence about what is wrong with it.
    pub fn parse(word: &str) -> Result<Self, String> {
        let known = [Self::Allow, Self::Refuse].into_iter().find(|others| others.word() == word);
        known.ok_or_else(|| format!("the setting of the guard for other sessions, {word:?}, is unknown"))
    }
}

/// How a session shows a guard of PostgreSQL which run it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// By its application name, or by the setting `leasehold.run`. A pooler that shares one connection between clients
    /// may pass the name of one to the next.
    Name,
    /// Only by the setting, for one transaction, so that no other session inherits it.
    Setting,
}

impl ShownBy {
    /// The word that is typed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Setting => "setting",
        }
    }
}

/// The change that installing or removing a guard made, or would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardChange {
    /// The statements.
    pub sql: String,
    /// Remarks, each a short sentence.
    pub notes: Vec<String>,
    /// Whether there was something to do.
    pub changed: bool,
}

/// One of the tables that a guard covers, or should cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Its name.
    pub name: String,
    /// The guard is on it, unchanged.
    pub guarded: bool,
    /// Its state in a few words.
    pub state: String,
}

/// The state of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardReport {
    /// Whether sessions that belong to no run may write.
    pub others: Others,
    /// How sessions show their run; None if there is only one way.
    pub shown_by: Option<ShownBy>,
    /// The fence, if there is one, or why it cannot be read.
    pub fence: Result<Option<Fence>, String>,
    /// The table, with its partitions and children.
    pub tables: Vec<Covered>,
    /// Phrases for the writes that this guard does not check.
    pub not_fenced: Vec<String>,
    /// A pooler is in between, and the guard accepts application names: it may take one session for another run.
    pub pooled: bool,
}

/// A table that can be guarded.
pub trait Guard {
    /// Its URL, as people may see it.
    fn shown(&self) -> &str;

    /// Sets how sessions must show their run. Without this call it stays as it is, or is by name.
    fn accept(&mut self, _shown_by: ShownBy) -> Result<(), TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "is not in PostgreSQL, which --grant is for".into(),
            fix: "Leave out --grant".into(),
        })
    }

    /// The subject for sentences about sessions that belong to no run.
    fn sessions(&self) -> &'static str {
        "sessions"
    }

    /// Installs the guard, or, without `run`, only returns the statements. A second call covers tables that were added
    /// since.
    fn install(&mut self, others: Others, run: bool) -> Result<GuardChange, TargetError>;

    /// Removes everything that installing added, and nothing else.
    fn remove(&mut self, run: bool) -> Result<GuardChange, TargetError>;

    /// Reads its state.
    fn inspect(&mut self) -> Result<GuardReport, TargetError>;
}
