//! Guards: what fences a table that users write with their own SQL. Put up once, by the table's owner.

use leasehold_core::fence::Fence;

use super::TargetError;
pub use super::sql::{Others, ShownBy};

/// A guard that was put up or taken down, or would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
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
pub struct Report {
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

    /// Puts the guard up, or says with which statements it would be. Doing it again covers what was added
    /// since.
    fn install(&mut self, others: Others, run: bool) -> Result<Done, TargetError>;

    /// Takes it down again: everything that installing added, and nothing else.
    fn remove(&mut self, run: bool) -> Result<Done, TargetError>;

    /// Looks at it.
    fn inspect(&mut self) -> Result<Report, TargetError>;
}

/// The guard of the table that `url` names; reaches nothing yet.
pub fn open(url: &str) -> Result<Box<dyn Guard>, TargetError> {
    #[cfg(feature = "postgres")]
    if let Some(rest) = url.strip_prefix("pg:") {
        return Ok(Box::new(super::pg::PgTarget::open(url, rest)?));
    }
    #[cfg(feature = "sqlite")]
    if let Some(rest) = url.strip_prefix("sqlite:") {
        return Ok(Box::new(super::sqlite::SqliteTarget::open(url, rest)?));
    }
    // For its own words about what is no target at all.
    super::open::open(url)?;
    Err(TargetError::Unfit {
        target: super::open::shown(url),
        why: "is no table, so it needs no guard: its fence is put up by the first run".into(),
        fix: "Guards are for pg:URL#TABLE and sqlite:PATH#TABLE".into(),
    })
}

#[cfg(feature = "postgres")]
impl Guard for super::pg::PgTarget {
    fn shown(&self) -> &str {
        super::Target::shown(self)
    }

    fn accept(&mut self, shown_by: ShownBy) -> Result<(), TargetError> {
        self.set_shown_by(shown_by);
        Ok(())
    }

    fn install(&mut self, others: Others, run: bool) -> Result<Done, TargetError> {
        super::pg::guard::install(self, others, run)
    }

    fn remove(&mut self, run: bool) -> Result<Done, TargetError> {
        super::pg::guard::remove(self, run)
    }

    fn inspect(&mut self) -> Result<Report, TargetError> {
        super::pg::guard::inspect(self)
    }
}
