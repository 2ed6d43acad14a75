//! The arguments of `leasehold guard`.

use clap::{Args, Subcommand, ValueEnum};
use leasehold::targets::guard::{Others, ShownBy};

/// `guard`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold guard install pg:postgres://db/shop#public.stock --others refuse
  leasehold run shop --fence pg:postgres://db/shop#public.stock -- ./restock.sh
  leasehold guard show pg:postgres://db/shop#public.stock

The table's owner installs the guard once. Then every statement that writes the table is checked in its own \
transaction, and the job's SQL stays as it is. In PostgreSQL the token of a run travels in PGAPPNAME; a \
program that sets its application name itself runs SET LOCAL leasehold.run = ... with the value of \
LEASEHOLD_SQL_GRANT. In SQLite a program registers a function leasehold_grant() that returns this value.")]
pub struct GuardArgs {
    #[command(subcommand)]
    pub verb: GuardVerb,
}

/// What to do with the guard of a table.
#[derive(Debug, Subcommand)]
pub enum GuardVerb {
    /// Install the guard, or extend it to tables that were added since
    Install {
        /// pg:URL#TABLE or sqlite:PATH#TABLE
        target: String,
        /// Whether sessions that belong to no run may write the table
        #[arg(long, value_name = "WHAT")]
        others: UngrantedSessions,
        /// How a session shows the token of its run; behind a pooler in transaction mode only `setting` is safe
        /// [default: unchanged, or name]
        #[arg(long, value_name = "HOW")]
        grant: Option<GrantCarrier>,
        /// Print the SQL, and do nothing else
        #[arg(long)]
        print_sql: bool,
    },
    /// Show the fence, the guarded tables, and what is not fenced
    Show {
        /// pg:URL#TABLE or sqlite:PATH#TABLE
        target: String,
    },
    /// Remove the guard: everything that `install` added, and nothing else
    Remove {
        /// pg:URL#TABLE or sqlite:PATH#TABLE
        target: String,
        /// Print the SQL, and do nothing else
        #[arg(long)]
        print_sql: bool,
    },
}

/// What a session may do that belongs to no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UngrantedSessions {
    /// It writes as before: only runs are fenced
    Allow,
    /// Only runs write
    Refuse,
}

/// How a session shows the token of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GrantCarrier {
    /// By PGAPPNAME, which libpq sends by itself, or by the setting
    Name,
    /// Only by SET LOCAL leasehold.run
    Setting,
}

impl From<GrantCarrier> for ShownBy {
    fn from(way: GrantCarrier) -> Self {
        match way {
            GrantCarrier::Name => Self::Name,
            GrantCarrier::Setting => Self::Setting,
        }
    }
}

impl From<UngrantedSessions> for Others {
    fn from(choice: UngrantedSessions) -> Self {
        match choice {
            UngrantedSessions::Allow => Self::Allow,
            UngrantedSessions::Refuse => Self::Refuse,
        }
    }
}
