//! What the tests share: a database of their own, runs, and a plain client.

use std::time::Duration;

use leasehold::backends::postgres::PgTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::targets::guard::{Guard, Others};
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::server;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A plain client.
pub(crate) struct Raw {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Raw {
    pub(crate) fn connect(url: &str) -> Self {
        Self::try_connect(url).unwrap_or_else(|| panic!("{url} does not answer"))
    }

    pub(crate) fn try_connect(url: &str) -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls)).ok()?;
        runtime.spawn(connection);
        Some(Self { runtime, client })
    }

    /// The first column of every row, or the code and words of the error.
    pub(crate) fn attempt(&self, text: &str) -> Result<Vec<String>, (String, String)> {
        let first = |m| match m {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        };
        match self.runtime.block_on(self.client.simple_query(text)) {
            Ok(found) => Ok(found.into_iter().filter_map(first).collect()),
            Err(e) => {
                let code = e.code().map_or(String::new(), |c| c.code().to_owned());
                Err((code, e.as_db_error().map_or(e.to_string(), |e| e.message().to_owned())))
            }
        }
    }

    pub(crate) fn sql(&self, text: &str) -> Vec<String> {
        self.attempt(text).unwrap_or_else(|e| panic!("{text}: {e:?}"))
    }

    pub(crate) fn one(&self, text: &str) -> String {
        self.sql(text).into_iter().next().unwrap_or_else(|| panic!("no row: {text}"))
    }

    /// Waits until the statement's answer is this one.
    pub(crate) fn until(&self, text: &str, answer: &str) {
        for _ in 0..3000 {
            if self.sql(text) == [answer] {
                return;
            }
            self.sql("SELECT pg_sleep(0.005)");
        }
        panic!("never {answer}: {text}");
    }

    /// For the library's own calls.
    pub(crate) fn with<T>(&mut self, work: impl AsyncFnOnce(&mut Client) -> T) -> T {
        self.runtime.block_on(work(&mut self.client))
    }
}

/// A database of its own, gone when the test is; or a schema in the one behind PgBouncer.
pub(crate) struct Place {
    /// Straight to the server, as the owner of the tables.
    pub(crate) direct: String,
    /// The way the jobs take.
    pub(crate) jobs: String,
    /// With the schema.
    pub(crate) table: String,
    database: Option<String>,
}

/// Rows to write, alone and in partitions, and one more level of them.
const TABLES: &str = "
CREATE TABLE S.plain (id int PRIMARY KEY, what text NOT NULL);
INSERT INTO S.plain SELECT n, 'old' FROM generate_series(1, 30) n;
CREATE TABLE S.parted (id int PRIMARY KEY, what text NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE S.low PARTITION OF S.parted FOR VALUES FROM (0) TO (100);
CREATE TABLE S.high PARTITION OF S.parted FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
CREATE TABLE S.high_a PARTITION OF S.high FOR VALUES FROM (100) TO (200);
INSERT INTO S.parted SELECT n, 'old' FROM generate_series(1, 30) n;
INSERT INTO S.parted VALUES (150, 'old');
CREATE VIEW S.seen AS SELECT * FROM S.plain;
";

impl Place {
    pub(crate) fn new() -> Self {
        let name = super::corner().replace('/', "");
        let owner = server("POSTGRES");
        let sup = Raw::connect(&server("PG_SUPER"));
        sup.sql(&format!("CREATE DATABASE {name} OWNER lease"));
        let direct = format!("{}/{name}?sslmode=disable", owner.rsplit_once('/').unwrap().0);
        Raw::connect(&direct).sql(&TABLES.replace("S.", "public."));
        Self { jobs: direct.clone(), direct, table: "public.plain".into(), database: Some(name) }
    }

    /// Jobs come through PgBouncer, which serves one database; it has one connection for all of them.
    pub(crate) fn pooled() -> Self {
        let schema = super::corner().replace('/', "");
        let direct = format!("{}?sslmode=disable", server("POSTGRES"));
        let raw = Raw::connect(&direct);
        raw.sql(&format!("CREATE SCHEMA {schema}; {}", TABLES.replace("S.", &format!("{schema}."))));
        Self { direct, jobs: server("PGBOUNCER"), table: format!("{schema}.plain"), database: None }
    }

    /// Another table of the same place.
    pub(crate) fn named(&self, table: &str) -> String {
        format!("{}.{table}", self.table.split_once('.').unwrap().0)
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(&self.direct)
    }

    pub(crate) fn superuser(&self) -> Raw {
        Raw::connect(&self.direct.replace("//lease@", "//postgres@"))
    }

    pub(crate) fn target(&self, table: &str) -> PgTarget {
        target_at(&self.direct, &self.named(table))
    }

    /// With a guard on this table.
    pub(crate) fn guarded(self, table: &str, others: Others) -> Self {
        self.target(table).install(others, true).unwrap();
        self
    }

    pub(crate) fn content(&self, table: &str, id: u32) -> String {
        self.raw().one(&format!("SELECT what FROM {} WHERE id = {id}", self.named(table)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let schema = self.table.split_once('.').unwrap().0;
        match &self.database {
            Some(name) => {
                let sup = Raw::connect(&server("PG_SUPER"));
                let _ = sup.attempt(&format!("DROP DATABASE {name} WITH (FORCE)"));
            }
            // Other tests have guards in the same database: only this one's is taken down.
            None => {
                for table in ["plain", "parted"] {
                    let _ = self.target(table).remove(true);
                }
                let _ = self.raw().attempt(&format!("DROP SCHEMA {schema} CASCADE"));
            }
        }
    }
}

pub(crate) fn target_at(server: &str, table: &str) -> PgTarget {
    let url = format!("pg:{server}#{table}");
    PgTarget::open(&url, url.strip_prefix("pg:").unwrap()).unwrap()
}

/// The run with this token; every token has one grant.
pub(crate) fn bearer(token: u64) -> Bearer {
    Bearer {
        lease: Name::new("site").unwrap(),
        epoch: Epoch { generation: 1, id: 7 },
        token: Token::new(token).unwrap(),
        grant: Grant(1000 + u128::from(token)),
    }
}

pub(crate) fn seal(place: &Place, table: &str, token: u64) {
    place.target(table).seal(&bearer(token), FenceMode::Enforce).unwrap_or_else(|e| panic!("{e}"));
}

/// Tries to, for this long.
pub(crate) fn seal_within(
    place: &Place,
    table: &str,
    token: u64,
    patience: Duration,
) -> Result<(), TargetError> {
    place.target(table).with_patience(patience).seal(&bearer(token), FenceMode::Enforce).map(drop)
}
