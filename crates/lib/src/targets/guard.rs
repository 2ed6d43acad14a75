//! Guards: what fences a table that users write with their own SQL. Put up once, by the table's owner.

use leasehold_core::fence::Fence;

use super::TargetError;

/// Sessions that show no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// May write as before: only runs are fenced.
    Allow,
    /// Are refused: whoever writes is a run.
    Refuse,
}

impl Others {
    /// As it is stored and typed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Refuse => "refuse",
        }
    }

    /// Reads [`Others::word`].
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Allow, Self::Refuse].into_iter().find(|others| others.word() == word)
    }
}

/// How a session shows its grant to a guard of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// By its application name, or by the setting `leasehold.run`. A pooler that serves many clients with one
    /// connection may leave the name of one to the next.
    Name,
    /// By the setting alone, for one transaction: nobody inherits that.
    Setting,
}

impl ShownBy {
    /// As it is typed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Setting => "setting",
        }
    }
}

/// A guard that was put up or taken down, or would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardChange {
    /// The statements.
    pub sql: String,
    /// What is worth knowing, each as a short sentence.
    pub notes: Vec<String>,
    /// Whether there was anything to do.
    pub changed: bool,
}

/// One table of what a guard covers, or should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Its name.
    pub name: String,
    /// The guard stands there, as it was put up.
    pub guarded: bool,
    /// In a few words.
    pub state: String,
}

/// What is known about a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardReport {
    /// What happens to sessions without a grant.
    pub others: Others,
    /// How sessions show their grant; nothing: there is only one way.
    pub shown_by: Option<ShownBy>,
    /// The fence; nothing: never sealed; or what is wrong with it.
    pub fence: Result<Option<Fence>, String>,
    /// The table, and all that is stored under it.
    pub tables: Vec<Covered>,
    /// What this guard does not see, each as a phrase.
    pub not_fenced: Vec<String>,
    /// A pooler is in between, and the guard accepts application names: it may take one session for another run.
    pub pooled: bool,
}

/// A table that can be guarded.
pub trait Guard {
    /// Its URL, as people may see it.
    fn shown(&self) -> &str;

    /// How sessions have to show their grant once the guard is installed. Not asked for: as it is, or by name.
    fn accept(&mut self, _shown_by: ShownBy) -> Result<(), TargetError> {
        Err(TargetError::Unfit {
            target: self.shown().into(),
            why: "asks its sessions in one way only".into(),
            fix: "Leave out --grant: it is for PostgreSQL".into(),
        })
    }

    /// Whose sessions it is that may not write, or may: those that belong to no run.
    fn sessions(&self) -> &'static str {
        "sessions"
    }

    /// Puts the guard up, or says with which statements it would be. Doing it again covers what was added
    /// since.
    fn install(&mut self, others: Others, run: bool) -> Result<GuardChange, TargetError>;

    /// Takes it down again: everything that installing added, and nothing else.
    fn remove(&mut self, run: bool) -> Result<GuardChange, TargetError>;

    /// Looks at it.
    fn inspect(&mut self) -> Result<GuardReport, TargetError>;
}
